"""Portable paths: file names that mean the same on every system of the fleet, and never leave their directory."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import Final

from oarbank_cas.contracts.places import quoted
from oarbank_cas.errors import InvalidInputError

MAX_PATH: Final = 200
MAX_SEGMENT: Final = 100
RESERVED_MOUNTS: Final = frozenset(
    {"spec.json", "result.json", "control.json", "failure.json", "events.ndjson", "phase", "tmp"}
)
"""What the runner and the agent keep at the top of a work directory; nothing is mounted there or below."""

_DEVICE: Final = r"(?i:con|prn|aux|nul|conin\$|conout\$|com[0-9]|lpt[0-9])"
_SEGMENT: Final = rf"(?!{_DEVICE}(?:[./]|\Z))[A-Za-z0-9_+@-](?:[A-Za-z0-9._+@-]{{0,{MAX_SEGMENT - 2}}}[A-Za-z0-9_+@-])?"
_PATH: Final = re.compile(rf"{_SEGMENT}(?:/{_SEGMENT})*", re.ASCII)
_IS_DEVICE: Final = re.compile(rf"{_DEVICE}(?:\.|\Z)", re.ASCII)
_CHARACTERS: Final = re.compile(r"[A-Za-z0-9_+@-][A-Za-z0-9._+@-]*", re.ASCII)


def check_portable_path(text: str, where: str | None = None) -> str:
    """Check that a text is a portable path, and return it.

    Args:
        text: the path, relative and separated by `/`.
        where: its place, for the error.

    Returns:
        The text.

    Raises:
        InvalidInputError: saying which of the rules it breaks.
    """
    if isinstance(text, str) and len(text) <= MAX_PATH and _PATH.fullmatch(text) is not None:
        return text
    raise InvalidInputError(f"is no portable path: {_fault(text)}: {quoted(text)}", where)


def check_unique(paths: Iterable[str], where: str | None = None) -> None:
    """Check that the portable paths of one artifact can stand together in a directory of any system.

    Args:
        paths: the paths, each a portable path already.
        where: the place of the list, for the error.

    Raises:
        InvalidInputError: two of them are the same but for case, or one is a directory of another but for case.
    """
    paths = list(paths)
    clash = _first_clash(paths)
    if clash is None:
        return
    first, second = paths[clash[0]], paths[clash[1]]
    if len(first) == len(second):
        why = "has the same path twice" if first == second else "has two paths that differ only in case"
    else:
        why = "has a path that is also the directory of another"
    raise InvalidInputError(f"{why}: {quoted(first)} and {quoted(second)}", where)


def check_mount(text: str, where: str | None = None) -> str:
    """Check that a text can be a mount, a portable path outside of what the runner keeps for itself, and return it.

    Args:
        text: the path inside the work directory.
        where: its place, for the error.

    Returns:
        The text.

    Raises:
        InvalidInputError: it is no portable path, or is or lies below a reserved name.
    """
    check_portable_path(text, where)
    if text.partition("/")[0].casefold() in RESERVED_MOUNTS:
        raise InvalidInputError(f"is reserved in a work directory and no mount: {quoted(text)}", where)
    return text


def check_mounts_disjoint(mounts: Mapping[str, str], where: str | None = None) -> None:
    """Check that no mount is or lies inside another, compared without case.

    Args:
        mounts: what each mount is called in errors (such as `$.inputs.reads`), and its path.
        where: the place of the document, for the error.

    Raises:
        InvalidInputError: naming both mounts.
    """
    labels, paths = list(mounts), list(mounts.values())
    clash = _first_clash(paths)
    if clash is not None:
        first, second = clash
        raise InvalidInputError(
            f"the mounts of {labels[first]} ({quoted(paths[first])}) and {labels[second]} ({quoted(paths[second])}) "
            "overlap; each needs a place of its own",
            where,
        )


def _first_clash(paths: list[str]) -> tuple[int, int] | None:
    """Find two paths that are equal or nested but for case: their indices, the outer one first."""
    # With a separator below every other character a directory sorts right before what is inside it.
    folded = [path.casefold().replace("/", "\0") for path in paths]
    for outer, inner in pairwise(sorted(folded)):
        if inner.startswith(outer) and (len(inner) == len(outer) or inner[len(outer)] == "\0"):
            first = folded.index(outer)
            return first, folded.index(inner, first + 1 if inner == outer else 0)
    return None


def _fault(text: object) -> str:
    """Say which rule a text breaks that is no portable path."""
    if not isinstance(text, str):
        return "it is no text"
    if not text:
        return "it is empty"
    if text.startswith("/"):
        return "it is absolute"
    if len(text) > MAX_PATH:
        return f"it is longer than {MAX_PATH} bytes"
    return next(filter(None, map(_segment_fault, text.split("/"))), "it breaks the rules")


def _segment_fault(segment: str) -> str | None:
    if not segment:
        return "it has an empty segment"
    if segment in {".", ".."}:
        return f"it has the segment {segment}"
    if _CHARACTERS.fullmatch(segment) is None:
        return "a segment has letters, digits and _ + @ - . only, all ASCII, and starts with no dot"
    if segment.endswith("."):
        return "a segment ends in a dot"
    if len(segment) > MAX_SEGMENT:
        return f"a segment is longer than {MAX_SEGMENT} bytes"
    if _IS_DEVICE.match(segment):
        return "a segment is the name of a device on Windows"
    return None
