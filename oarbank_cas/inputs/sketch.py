"""Sketches: 64 bytes that tell how alike two documents of key inputs are. Pure.

A document's values are its scalars, wherever they stand. Each value goes by its path into one of 32 places of the first
half, and by another part of the path's digest into one of 32 places of the second; there a byte of the digest of path
and value is mixed in by XOR. So a value that differs makes at most one place of each half differ, and two sketches
differ in at most twice as many places as their documents do in values. Two halves, because paths that share a place in
one of them seldom do in the other.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any, Final

import rfc8785

from oarbank_cas.contracts.canonical import MAX_INTEGER

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

HALF: Final = 32
SIZE: Final = 2 * HALF
"""Bytes of a sketch."""

MAX_VALUES: Final = 10_000
"""Values that take part, the first ones in the order of the canonical document."""


def sketch(document: dict[str, Any]) -> bytes:
    """The sketch of a document of key inputs.

    Args:
        document: module, compat and inputs, as parsed from their canonical bytes.
    """
    places = bytearray(SIZE)
    for number, (path, value) in enumerate(_values(document, b"")):
        if number == MAX_VALUES:
            break
        where = hashlib.sha256(path).digest()
        what = hashlib.sha256(path + b"\n" + value).digest()
        places[where[0] % HALF] ^= what[0]
        places[HALF + where[1] % HALF] ^= what[1]
    return bytes(places)


def _values(value: object, path: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Path and canonical form of each value; a path is the canonical form of its steps, each after a `/`."""
    if isinstance(value, dict):
        for key, child in value.items():
            yield from _values(child, path + b"/" + rfc8785.dumps(key))
    elif isinstance(value, list):
        for index, child in enumerate(value):
            yield from _values(child, b"%s/%d" % (path, index))
    elif isinstance(value, int) and abs(value) >= MAX_INTEGER:
        yield path, rfc8785.dumps(float(value))  # a double, which has this form
    else:
        yield path, rfc8785.dumps(value)  # type: ignore[arg-type]


def columns(sketches: Iterable[bytes]) -> bytes:
    """Many sketches, place by place: the first byte of each, then the second of each, and so on."""
    rows = b"".join(sketches)
    return b"".join(rows[place::SIZE] for place in range(SIZE))


def row(data: bytes, index: int) -> bytes:
    """One sketch out of columns."""
    return data[index :: len(data) // SIZE]


def distances(data: bytes, wanted: bytes) -> bytes:
    """In how many places each sketch differs from one, one byte each.

    Args:
        data: sketches as `columns` made them.
        wanted: the one.
    """
    count = len(data) // SIZE
    total = 0
    for place in range(SIZE):
        table = bytearray(b"\x01") * 256
        table[wanted[place]] = 0
        # At most one from each place, so that no byte of the sum carries over.
        total += int.from_bytes(data[place * count : (place + 1) * count].translate(table), "little")
    return total.to_bytes(count, "little")
