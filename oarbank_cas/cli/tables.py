"""How commands show tables and figures to people: with rich on a terminal, plain lines elsewhere."""

from __future__ import annotations

import io
import os
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from oarbank_cas.cli.session import Session, shown

if TYPE_CHECKING:
    from rich.console import RenderableType

_PLAIN_WIDTH = 100


@contextmanager
def counting(session: Session) -> Iterator[Callable[[str, int], None] | None]:
    """A line on a terminal that counts objects by what is done with them; None where nobody watches."""
    if session.as_json or session.verbosity < 0 or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=None)
        done: Counter[str] = Counter()

        def advance(stage: str, count: int) -> None:
            done[stage] += count
            bar.update(task, description=", ".join(f"{name} {number:,}" for name, number in done.items()))

        yield advance


def is_terminal() -> bool:
    """Whether stdout is one."""
    return sys.stdout.isatty()


def show(*renderables: RenderableType) -> None:
    """Print what rich can render: with colours on a terminal, without elsewhere, in UTF-8 whatever the locale says."""
    from rich.console import Console

    text = io.StringIO()
    terminal = is_terminal()
    width = shutil.get_terminal_size((100, 24)).columns if terminal else _PLAIN_WIDTH
    no_color = "NO_COLOR" in os.environ
    console = Console(
        file=text, force_terminal=terminal, width=width, highlight=False, no_color=no_color, legacy_windows=False
    )
    for each in renderables:
        console.print(each)
    # Elsewhere than on a terminal, spaces that only fill a line are noise.
    lines = text.getvalue() if terminal else "\n".join(map(str.rstrip, text.getvalue().splitlines())) + "\n"
    click.echo(lines.encode("utf-8", "backslashreplace"), nl=False)


def show_table(
    session: Session, title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[int] = ()
) -> None:
    """Show a table.

    Args:
        session: the run.
        title: above it, on a terminal.
        columns: the heads of its columns.
        rows: its cells.
        right: which columns are numbers.
    """
    if not is_terminal():
        for row in rows:
            session.line("  ".join(row))
        return
    from rich.markup import escape
    from rich.table import Table

    table = Table(title=escape(title), title_justify="left", box=None, pad_edge=False, header_style="bold")
    for index, column in enumerate(columns):
        table.add_column(column, justify="right" if index in right else "left", overflow="fold")
    for row in rows:
        table.add_row(*[escape(shown(cell)) for cell in row])
    show(table)
