"""Paging a large journal in milliseconds: a sparse index of offsets, checked against the file at every look."""

from __future__ import annotations

import hashlib
import os
import threading
import time
from array import array
from bisect import bisect_right
from typing import Final, NamedTuple

from oarbank_cas.attempt.files import FileSource, reading
from oarbank_cas.attempt.scan import Collector, Page, clamp_page, complete_end, pieces, read_exactly
from oarbank_cas.errors import CorruptError, StorageIOError

SEGMENT: Final = 128 * 1024
"""Bytes of one segment of the index, about: one segment is read to find a record."""

RECHECK: Final = 2 * 1024 * 1024
"""Bytes of old segments that are read again, in turn, at each look at a file that has grown."""

_HASH: Final = 16
_TRIES: Final = 3
_SETTLE_S: Final = 0.001
# A change within one tick of a filesystem's clock leaves no trace in its times; FAT's tick is the longest, 2 s.
_TICK_NS: Final = 2_000_000_000


class _Look(NamedTuple):
    """What a look at the file's metadata says; equal looks, apart in time, mean an untouched file."""

    device: int
    inode: int
    size: int
    mtime_ns: int
    ctime_ns: int

    @classmethod
    def at(cls, source: FileSource) -> _Look:
        status = source.stat()
        return cls(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


class _StaleError(Exception):
    """The index is not of the file that is there now."""


class _Index:
    """Segments of whole lines, in order and without gaps: where each starts, records before it, a hash of its bytes."""

    def __init__(self) -> None:
        self.starts = array("Q", [0])
        self.before = array("Q", [0])
        self._hashes = bytearray()
        self._next_check = 0

    @property
    def end(self) -> int:
        """The byte up to which the file is indexed."""
        return self.starts[-1]

    @property
    def records(self) -> int:
        """The records before `end`."""
        return self.before[-1]

    @property
    def segments(self) -> int:
        return len(self.starts) - 1

    def extend(self, source: FileSource, end: int) -> None:
        """Indexes what lies between `self.end` and byte `end`, a line's end."""
        if self.segments and end > self.end and self.starts[-1] - self.starts[-2] < SEGMENT // 2:
            # A journal looked at after each append would otherwise get a segment for each record.
            del self.starts[-1], self.before[-1]
            del self._hashes[-_HASH:]
        for piece in pieces(source, self.end, end, SEGMENT):
            self._hashes += _digest(source, piece.start, piece.end, piece.data)
            self.starts.append(piece.end)
            self.before.append(self.before[-1] + piece.records)

    def segment_of(self, record: int) -> int:
        """The segment that holds a record that is there."""
        return bisect_right(self.before, record) - 1

    def check(self, source: FileSource, segment: int) -> int:
        """Reads a segment again; returns its size.

        Raises:
            _StaleError: its bytes are not those that were indexed.
        """
        start, end = self.starts[segment], self.starts[segment + 1]
        if start and read_exactly(source, start - 1, 1) != b"\n":
            raise _StaleError
        if _digest(source, start, end, None) != self._hashes[segment * _HASH : (segment + 1) * _HASH]:
            raise _StaleError
        return end - start

    def check_some(self, source: FileSource) -> None:
        """Reads the first and the last segment again, and the next `RECHECK` bytes of all in turn.

        An insertion or a removal anywhere moves the last segment, so only an edit that keeps the length of all that
        was there can pass this once, and not for long.

        Raises:
            _StaleError: some bytes are not those that were indexed.
        """
        if not self.segments:
            return
        checked = {0, self.segments - 1}
        for segment in checked:
            self.check(source, segment)
        left = RECHECK
        for _ in range(self.segments):
            if left <= 0:
                break
            segment = self._next_check % self.segments
            self._next_check = segment + 1
            left -= (
                self.starts[segment + 1] - self.starts[segment] if segment in checked else self.check(source, segment)
            )


def _digest(source: FileSource, start: int, end: int, data: bytes | None) -> bytes:
    state = hashlib.sha256(data or b"")
    if data is None:
        for at in range(start, end, SEGMENT):
            state.update(read_exactly(source, at, min(SEGMENT, end - at)))
    return state.digest()[:_HASH]


class Pager:
    """Pages of one journal, fast after a first pass over it. Safe to share between threads, which take turns.

    The index is never trusted over the file. At each page the file is opened anew. Another file under the name, a
    shorter one, or one of the same size whose times changed is indexed again from its start. In one that has grown, the
    first, the last and some more of the old segments are compared with their hashes (all of them up to 2 MiB). The
    segments of the page itself are compared always, and its records' checksums verified.

    Args:
        path: the journal; need not exist before the first page.

    Attributes:
        rebuilds: how often an index was thrown away because the file was not a continuation of the one indexed. A
            caller that walks by `next_offset` starts again when it changes.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.fspath(path)
        self.rebuilds = 0
        self._index = _Index()
        self._look: _Look | None = None
        self._settled = False
        self._lock = threading.Lock()

    def page(self, offset: int, limit: int) -> Page:
        """As `journal.page`: the same page for the same file.

        Args:
            offset: the first record wanted, counted from 0.
            limit: the most records wanted, from 1; more than `MAX_PAGE` is taken as `MAX_PAGE`.

        Raises:
            InvalidInputError: offset or limit is out of range, or the path is no regular file.
            CorruptError: a record of the page does not check.
            StorageIOError: the file kept changing in ways that no journal does.
            CasError: the file cannot be read.
        """
        limit = clamp_page(offset, limit)
        with self._lock, reading(self.path) as source:
            for _ in range(_TRIES):
                try:
                    self._refresh(source)
                    return self._collect(source, offset, limit)
                except (_StaleError, StorageIOError):
                    # Also a file that got shorter while it was read: what is there now gets a fresh index.
                    self._forget()
            self._refresh(source)
            try:
                return self._collect(source, offset, limit)
            except _StaleError as error:
                raise StorageIOError(
                    f"{self.path}: it is rewritten again and again while it is read; stop that writer, then page again"
                ) from error

    def verify(self) -> bool:
        """Compares the whole file with the index now, in one pass; a file that differs is indexed again.

        Returns:
            True if what was indexed before is still there, byte for byte.

        Raises:
            CasError: the file cannot be read.
        """
        with self._lock, reading(self.path) as source:
            before = self.rebuilds
            try:
                for segment in range(self._index.segments):
                    self._index.check(source, segment)
            except (_StaleError, StorageIOError):
                self._forget()
            self._refresh(source)
            return self.rebuilds == before

    def _forget(self) -> None:
        if self._look is not None:
            self.rebuilds += 1
        self._index = _Index()
        self._look = None

    def _refresh(self, source: FileSource) -> None:
        """Makes the index one of the file that is open.

        Raises:
            _StaleError: the file was edited.
        """
        look = self._wait_for_size(source)
        known = self._look
        if known is not None and not self._continues(known, look):
            self._forget()
        elif known is not None and (look != known or not self._settled):
            self._index.check_some(source)
        # Judged before the file is read: an edit from here on gets a later time than the look has.
        settled = time.time_ns() - max(look.ctime_ns, look.mtime_ns) > _TICK_NS
        self._index.extend(source, complete_end(source, look.size, self._index.end))
        self._look = look
        self._settled = settled

    def _continues(self, known: _Look, look: _Look) -> bool:
        same_file = (look.device, look.inode) == (known.device, known.inode)
        untouched = look == known
        return same_file and look.size >= self._index.end and (untouched or look.size != known.size)

    def _wait_for_size(self, source: FileSource) -> _Look:
        """A look at the file; a moment later when only its times moved, as they do in the middle of an append."""
        look = _Look.at(source)
        known = self._look
        for _ in range(_TRIES):
            if known is None or look == known or look.size != known.size or look.inode != known.inode:
                break
            time.sleep(_SETTLE_S)
            look = _Look.at(source)
        return look

    def _collect(self, source: FileSource, offset: int, limit: int) -> Page:
        """The page by the index.

        Raises:
            _StaleError: the page's segments are not those that were indexed.
        """
        index = self._index
        if offset >= index.records:
            return Page((), offset, index.records)
        first = index.segment_of(offset)
        collector = Collector(source, offset, limit, index.before[first])
        end = index.starts[first]
        damage: CorruptError | None = None
        try:
            for piece in pieces(source, end, index.end, SEGMENT):
                end = piece.end
                collector.show(piece)
                if collector.full:
                    break
        except CorruptError as error:
            damage = error
        # After the records were read, not before: an edit in between must not go unseen.
        for segment in range(first, index.segments):
            if index.starts[segment] >= end:
                break
            index.check(source, segment)
        if damage is not None:
            raise damage
        return collector.page(index.records)
