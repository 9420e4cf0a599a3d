"""A hook of MkDocs: the page of all commands, made from the commands themselves whenever the site is built."""

from __future__ import annotations

import html
import inspect
from typing import TYPE_CHECKING

import click
from mkdocs.structure.files import File

from oarbank_cas.cli.app import cli
from oarbank_cas.cli.session import NAME

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files

PAGE = "commands.md"

_INTRODUCTION = f"""# Commands

Made from the commands themselves; `{NAME} COMMAND --help` says the same. Which store is meant, exit codes and JSON
fields are in the [overview](reference.md).
"""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the page."""
    files.append(File.generated(config, PAGE, content=page()))
    return files


def page() -> str:
    """The page as Markdown."""
    context = click.Context(cli, info_name=NAME)
    return "\n".join([_INTRODUCTION, *_section(context, "Global options"), *_below(context)])


def _below(context: click.Context) -> Iterator[str]:
    group = context.command
    assert isinstance(group, click.Group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        inner = click.Context(command, info_name=name, parent=context)
        yield from _section(inner, inner.command_path.removeprefix(f"{NAME} "))
        if isinstance(command, click.Group):
            yield from _below(inner)


def _section(context: click.Context, title: str) -> Iterator[str]:
    command = context.command
    yield f"## {title}\n"
    yield f"```text\n{' '.join([context.command_path, *command.collect_usage_pieces(context)])}\n```\n"
    yield from _prose(command.help or "")
    params = [param for param in command.get_params(context) if isinstance(param, click.Option)]
    options = [record for param in params if (record := param.get_help_record(context))]
    if options:
        yield "| option | is |\n| --- | --- |"
        for names, text in options:
            yield f"| {' '.join(_code(part) for part in names.split(', '))} | {_escaped(_cell(text))} |"
        yield ""
    if command.epilog:
        yield f"{_escaped(command.epilog)}\n"


def _prose(text: str) -> Iterator[str]:
    """A help text as Markdown: what click must not wrap becomes a block of code."""
    for paragraph in inspect.cleandoc(text).split("\n\n"):
        if not paragraph.startswith("\b"):
            yield f"{_escaped(paragraph)}\n"
            continue
        lines = paragraph.lstrip("\b\n").split("\n")
        if not lines[0].startswith(" ") and lines[0].endswith(":"):
            yield f"{_escaped(lines.pop(0))}\n"
        block = "\n".join(lines)
        yield f"```text\n{inspect.cleandoc(block)}\n```\n"


def _code(text: str) -> str:
    """Code in a table's cell; between backticks a bar could not be written."""
    return f"<code>{html.escape(text).replace('|', '&#124;')}</code>"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _escaped(text: str) -> str:
    """Text in which Markdown shall see nothing but its own code marks."""
    return text.replace("<", "&lt;").replace("[", "\\[").replace("*", "\\*").replace("_", "\\_")
