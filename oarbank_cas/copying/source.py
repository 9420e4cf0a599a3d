"""How a copy reads its source: objects in groups, blobs as streams."""

from __future__ import annotations

from typing import TYPE_CHECKING

from oarbank_cas.errors import CorruptError, StorageIOError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from oarbank_cas.backends.base import ObjectStat
    from oarbank_cas.blobs import BlobReader

_GROUP_BYTES = 64 * 2**20


class Stream:
    """A blob of the source as `Intake.add_stream` reads it: what cannot be read there is that blob's problem alone."""

    def __init__(self, reader: BlobReader) -> None:
        self._reader = reader

    def read(self, size: int) -> bytes:
        """The next bytes."""
        try:
            return self._reader.read(size) or b""
        except StorageIOError as error:
            raise CorruptError(f"blob {self._reader.digest} cannot be read: {error}") from error


def groups(stats: Iterator[ObjectStat], most: int) -> Iterator[list[ObjectStat]]:
    """Objects in groups of at most so many, and not many bytes."""
    group: list[ObjectStat] = []
    size = 0
    for stat in stats:
        group.append(stat)
        size += stat.size
        if len(group) >= most or size >= _GROUP_BYTES:
            yield group
            group, size = [], 0
    if group:
        yield group
