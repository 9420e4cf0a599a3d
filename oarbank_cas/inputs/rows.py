"""An object of many rows of the index of key inputs, as bytes; and the nearest rows out of many. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from oarbank_cas.contracts.canonical import digest_of
from oarbank_cas.inputs.sketch import SIZE, columns, row

MAX_ROWS: Final = 65_536
"""Rows of one object."""

KEY: Final = 32
"""Bytes of a key."""

ROW: Final = SIZE + KEY

HALF_NAME: Final = 32
"""Hex digits of the digests in the name of such an object."""


class Rows(NamedTuple):
    """An object of rows, as listed: its name, how many rows it has by its size, and the digests in its name."""

    name: str
    rows: int
    sketches: str
    keys: str


def encode(rows: Mapping[bytes, bytes]) -> tuple[str, str, bytes]:
    """The digests of the two halves of an object, and its bytes.

    Args:
        rows: key to sketch.
    """
    ordered = sorted(rows)
    sketches = columns(rows[key] for key in ordered)
    keys = b"".join(ordered)
    return digest_of(sketches)[:HALF_NAME], digest_of(keys)[:HALF_NAME], sketches + keys


def decode(data: bytes, of: Rows) -> dict[bytes, bytes] | None:
    """Key to sketch, of sound bytes; None of others."""
    split = of.rows * SIZE
    sketches, keys = data[:split], data[split:]
    if (digest_of(sketches)[:HALF_NAME], digest_of(keys)[:HALF_NAME]) != (of.sketches, of.keys):
        return None
    return {keys[at * KEY : (at + 1) * KEY]: row(sketches, at) for at in range(of.rows)}


class Hit(NamedTuple):
    """A row: how far it is, and its key, or where that is to be read."""

    distance: int
    key: str
    row: tuple[Rows, int] | None


@dataclass(slots=True)
class Best:
    """The nearest rows so far, at most `most`."""

    most: int
    found: list[Hit] = field(default_factory=list)

    def offer(self, far: bytes, named: Callable[[int], tuple[str, tuple[Rows, int] | None]]) -> None:
        """Take the nearest of many rows, whose distances are `far`."""
        taken: list[Hit] = []
        for distance in sorted(set(far)):
            at = far.find(distance)
            while at >= 0 and len(taken) < self.most:
                taken.append(Hit(distance, *named(at)))
                at = far.find(distance, at + 1)
            if len(taken) >= self.most:
                break
        self.found = sorted([*self.found, *taken], key=lambda hit: hit.distance)[: self.most]
