"""The command that shows figures about a store, on a terminal or as a page."""

from __future__ import annotations

import contextlib
import os
import secrets
from typing import TYPE_CHECKING

import click

from oarbank_cas.cli.session import Session, pass_session, shown
from oarbank_cas.cli.tables import show
from oarbank_cas.errors import ConflictError
from oarbank_cas.sizes import size_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import RenderableType

    from oarbank_cas.stats import Count, Stats

_BAR = 30
_MODULES = 20


@click.command()
@click.option("--html", "html", metavar="FILE", help="Write one page that needs nothing else, for a browser.")
@click.option("--no-gc", is_flag=True, help="Do not ask what a gc would free.")
@pass_session
def stats(session: Session, html: str | None, no_gc: bool) -> None:
    """Show what a store holds: blobs, entries, modules, sizes, ages, what sharing saves, and what a gc would free.

    \b
    Examples:
      oarbank-cas stats
      oarbank-cas stats --html stats.html
    """
    from oarbank_cas.stats_page import page

    store = session.store(read_only=True)
    with session.progress("stats") as progress:
        found = store.stats(progress, with_gc=not no_gc)
    if html is not None:
        _write(html, page(found))
    if session.as_json:
        session.document(found.to_json() | ({"html": html} if html is not None else {}))
    elif html is not None:
        session.line(f"written  {html}")
    else:
        show(*_page(found))


def _write(path: str, text: str) -> None:
    """Write a file whole, or not at all."""
    partial = f"{path}.{secrets.token_hex(4)}.tmp"
    try:
        with open(partial, "x", encoding="utf-8") as file:
            file.write(text)
        os.replace(partial, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            os.unlink(partial)
        raise ConflictError(f"cannot create {path}: {error.strerror}") from error


def _page(found: Stats) -> list[RenderableType]:
    from rich.rule import Rule
    from rich.text import Text

    parts: list[RenderableType] = [
        Rule(Text(f"{shown(found.store)}   {found.time[:19].replace('T', ' ')} UTC", style="bold"), align="left"),
        _figures(found),
    ]
    for title, counts in (("blobs by size", found.sizes), ("blobs by age", found.ages)):
        parts += [Rule(Text(title), align="left", style="dim"), _bars(counts)]
    if found.modules:
        parts += [Rule(Text("modules"), align="left", style="dim"), _modules(found)]
    if found.free is not None:
        parts += [Rule(Text("a gc now"), align="left", style="dim"), _free(found)]
    return parts


def _grid(rows: Sequence[Sequence[str]], right: Sequence[int], heads: Sequence[str] | None = None) -> RenderableType:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, show_header=heads is not None, header_style="dim", padding=(0, 3, 0, 0))
    for index in range(len(rows[0])):
        head = heads[index] if heads else ""
        table.add_column(head, justify="right" if index in right else "left", overflow="fold")
    for row in rows:
        table.add_row(*[Text(shown(cell), style="cyan" if set(cell) <= set("█▌") and cell else "") for cell in row])
    return table


def _amount(count: Count) -> tuple[str, str]:
    return f"{count.count:,}", size_text(count.bytes)


def _figures(found: Stats) -> RenderableType:
    ratio = found.dedup_ratio
    saved = max(found.referenced.bytes - found.distinct.bytes, 0)
    rows = [
        ("blobs", *_amount(found.blobs), ""),
        ("entries", *_amount(found.entries), ""),
        ("tombstones", *_amount(found.tombstones), ""),
        ("pins", f"{found.pins:,}", "", ""),
        ("referred to", *_amount(found.referenced), "counted for every entry"),
        (
            "stored for that",
            *_amount(found.distinct),
            "" if ratio is None else f"each once: ratio {ratio:.2f}, {size_text(saved)} saved",
        ),
        ("no entry refers to", *_amount(found.orphans), "pins may"),
        ("condemned", *_amount(found.fossils), "gone after a session"),
    ]
    if found.damaged.count:
        rows.append(("set aside, damaged", *_amount(found.damaged), "in damaged/, for people"))
    if found.missing or found.unreadable:
        problem = f"{found.missing:,} blobs missing, {found.unreadable:,} entries unreadable"
        rows.append(("problems", "", "", f"{problem}: run verify"))
    return _grid(rows, (1, 2))


def _bars(counts: dict[str, Count]) -> RenderableType:
    most = max((count.count for count in counts.values()), default=0) or 1
    rows = []
    for name, count in counts.items():
        halves = round(2 * _BAR * count.count / most) or (1 if count.count else 0)
        rows.append((name, *_amount(count), "█" * (halves // 2) + "▌" * (halves % 2)))
    return _grid(rows, (1, 2))


def _modules(found: Stats) -> RenderableType:
    ordered = sorted(found.modules.items(), key=lambda item: -item[1].distinct.bytes)
    rows = [
        (
            name or "-",
            f"{module.entries.count:,}",
            f"{module.tombstones.count:,}",
            size_text(module.distinct.bytes),
            size_text(module.referenced.bytes),
            found.to_json()["modules"][name]["last_recorded_at"][:10] if module.last_ns else "-",
        )
        for name, module in ordered[:_MODULES]
    ]
    if len(ordered) > _MODULES:
        rows.append((f"and {len(ordered) - _MODULES} more", "", "", "", "", ""))
    return _grid(rows, (1, 2, 3, 4), ("module", "entries", "ended", "stored", "referred to", "last recorded"))


def _free(found: Stats) -> RenderableType:
    free = found.free
    assert free is not None
    rows = [
        ("would remove", *_amount(free.purged), "condemned before"),
        ("would condemn", *_amount(free.condemned), "removed by a later gc"),
        ("would end", *_amount(free.expired), "entries, by the store's policy"),
    ]
    if free.why_not is not None:
        rows.append(("but would stop", "", "", free.why_not))
    return _grid(rows, (1, 2))
