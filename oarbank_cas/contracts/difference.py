"""How two JSON documents differ, path by path, in few and readable steps."""

from __future__ import annotations

import enum
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from oarbank_cas.contracts.canonical import JsonValue
from oarbank_cas.contracts.places import inner_path

_SHOWN: Final = 100
"""Characters of a value that people are shown."""

_WORDS: Final = frozenset({"true", "false", "null", "NaN", "Infinity"})
"""What would look like something else without its quotes."""


class Absent(enum.Enum):
    """Stands where one of two documents has nothing."""

    ABSENT = "absent"


ABSENT: Final = Absent.ABSENT

Side: TypeAlias = JsonValue | Absent
Path: TypeAlias = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Difference:
    """One place where two documents differ.

    Attributes:
        path: keys and indices from the root down. An element that only one array has is named by its index there.
        before: the first document's value; `ABSENT` where it has none.
        after: the second document's.
    """

    path: Path
    before: Side
    after: Side

    def __str__(self) -> str:
        return f"{inner_path(self.path)}: {_shown(self.before)} -> {_shown(self.after)}"

    def to_json(self) -> dict[str, Any]:
        """As a JSON object; a side that is absent has no member."""
        sides = {"before": self.before, "after": self.after}
        present = {name: value for name, value in sides.items() if value is not ABSENT}
        return {"path": inner_path(self.path), **present, "text": str(self)}


def differences(before: JsonValue, after: JsonValue, path: Path = ()) -> Iterator[Difference]:
    """Every difference between two documents, in the order of their paths; nothing where they are equal.

    What is in one document only is one difference, however much it is. Arrays are compared from both ends: elements
    between what their beginnings and their ends share are compared one by one.

    Args:
        before: the first document; numbers of one value must have one type, as in what was parsed of canonical JSON.
        after: the second.
        path: where they are in something larger.
    """
    if isinstance(before, dict) and isinstance(after, dict):
        for key in sorted(before.keys() | after.keys()):
            here = (*path, key)
            if key not in before:
                yield Difference(here, ABSENT, after[key])
            elif key not in after:
                yield Difference(here, before[key], ABSENT)
            else:
                yield from differences(before[key], after[key], here)
    elif isinstance(before, list) and isinstance(after, list):
        yield from _of_arrays(before, after, path)
    elif not same(before, after):
        yield Difference(path, before, after)


def _of_arrays(before: list[JsonValue], after: list[JsonValue], path: Path) -> Iterator[Difference]:
    shorter = min(len(before), len(after))
    head = 0
    while head < shorter and same(before[head], after[head]):
        head += 1
    tail = 0
    while tail < shorter - head and same(before[-1 - tail], after[-1 - tail]):
        tail += 1
    for index in range(head, shorter - tail):
        yield from differences(before[index], after[index], (*path, index))
    for index in range(shorter - tail, len(before) - tail):
        yield Difference((*path, index), before[index], ABSENT)
    for index in range(shorter - tail, len(after) - tail):
        yield Difference((*path, index), ABSENT, after[index])


def same(one: JsonValue, other: JsonValue) -> bool:
    """Whether two values are the same JSON: `true` is not 1."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(value, other[key]) for key, value in one.items())
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same, one, other))
    return type(one) is type(other) and one == other


def _shown(side: Side) -> str:
    if isinstance(side, Absent):
        return "(absent)"
    plain = isinstance(side, str) and side.isascii() and side.isidentifier() and side not in _WORDS
    text = str(side) if plain else json.dumps(side)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
