"""How a refusal names a place inside a document and quotes what it refuses."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Final

_PLAIN_KEY: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")
_QUOTE_LIMIT: Final = 80
_PATH_LIMIT: Final = 300


def quoted(value: object) -> str:
    """Quote a value from outside for a message: printable ASCII, on one line, cut where it gets long.

    Args:
        value: a string, or anything else that stands where a string was expected.

    Returns:
        The value as a JSON string, or the name of its type.
    """
    if not isinstance(value, str):
        return f"a {type(value).__name__}"
    cut = value[:_QUOTE_LIMIT]
    return json.dumps(cut) + ("..." if len(value) > _QUOTE_LIMIT else "")


def step(key: str | int) -> str:
    """Write one step of a JSON path: `.name`, `["odd name"]` or `[3]`."""
    if isinstance(key, int):
        return f"[{key}]"
    return f".{key}" if len(key) <= _QUOTE_LIMIT and _PLAIN_KEY.fullmatch(key) else f"[{quoted(key)}]"


def json_path(keys: Iterable[str | int]) -> str:
    """Write the path to a value of a JSON document.

    Args:
        keys: object keys and array indices, from the root down.

    Returns:
        The path, such as `$.artifacts[0].name`; the middle of a very long one is left out.
    """
    path = "$" + "".join(step(key) for key in keys)
    half = _PATH_LIMIT // 2
    return path if len(path) <= _PATH_LIMIT else f"{path[:half]}...{path[-half:]}"


def inner_path(keys: Iterable[str | int]) -> str:
    """Write a path as people say it, without the root: `inputs.params.a`, `files[3]`, `["odd name"].b`."""
    return "".join(map(step, keys)).removeprefix(".")


def within(where: str | None, place: str) -> str:
    """Put a place behind the name of the document that it is in."""
    return f"{where}: {place}" if where else place
