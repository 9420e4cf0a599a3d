"""What a shell completes: files and folders, where a parameter's metavar says that it names one."""

from __future__ import annotations

import re

import click
from click.shell_completion import CompletionItem

_FIRST_WORDS = {"FILE": "file", "GRANTS": "file", "PATH": "file", "DIR": "dir", "URL": "dir", "W": "dir"}


class _Named(click.types.StringParamType):
    """A text that names a file or a folder; nothing else differs from any other text."""

    def __init__(self, kind: str) -> None:
        self._kind = kind

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Leave it to the shell, which knows what is there."""
        del ctx, param
        return [CompletionItem(incomplete, type=self._kind)]


def complete_paths(command: click.Command) -> None:
    """Have a command, and those in it, complete the paths that they take."""
    for param in command.params:
        word = re.match(r"\[?([A-Za-z]+(?:\.json)?)", param.metavar or "")
        kind = _FIRST_WORDS.get(word[1]) or ("file" if word[1].endswith(".json") else None) if word else None
        if kind is not None and type(param.type) is click.types.StringParamType:
            param.type = _Named(kind)
    for each in getattr(command, "commands", {}).values():
        complete_paths(each)
