"""A journal file of checked records: appended by one writer at a time, read, followed and paged by anyone."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from oarbank_cas.attempt.files import (
    FileSource,
    Source,
    flush_directory,
    flush_file,
    look,
    open_regular,
    reading,
    translate,
)
from oarbank_cas.attempt.lock import exclusive
from oarbank_cas.attempt.records import MAX_LINE, Record, decode_record, encode_record, payload_text
from oarbank_cas.attempt.scan import MAX_PAGE, Page, check_line, complete_end, page_of, pieces, read_exactly
from oarbank_cas.errors import CorruptError, InvalidInputError, NotFoundError

LOCK_TIMEOUT_S: Final = 60.0
"""Seconds that a writer waits for another one, unless told otherwise."""


def lock_path(path: str | os.PathLike[str]) -> Path:
    """The lock file of a journal: its name with `.lock` for its last suffix (`artifacts.jsonl`: `artifacts.lock`).

    Raises:
        InvalidInputError: the path names no file.
    """
    named = Path(path)
    if not named.name:
        raise InvalidInputError("this path names no file", repr(os.fspath(path)))
    return named.with_suffix(".lock")


class Journal:
    """A journal by its path, for writing again and again. Safe to share between threads.

    Args:
        path: the journal file; made by the first append.
        durable: whether an append returns only when the record is on the disk. Without it a record survives the death
            of the process, but not that of the machine.
        lock_timeout_s: how many seconds to wait for another writer.

    Raises:
        InvalidInputError: the path names no file.
    """

    def __init__(
        self, path: str | os.PathLike[str], *, durable: bool = True, lock_timeout_s: float = LOCK_TIMEOUT_S
    ) -> None:
        self.path = Path(path)
        self.durable = durable
        self._lock = lock_path(self.path)
        self._lock_timeout_s = lock_timeout_s
        self._named: tuple[int, int] | None = None

    def append(self, payload: object, *, schema_version: int = 1) -> None:
        """Appends one record.

        Args:
            payload: a JSON value: dicts with string keys, lists, strings, numbers, booleans, None.
            schema_version: the record version.

        Raises:
            InvalidInputError: the payload has no JSON form or is too long, or the path is no regular file.
            BusyError: another writer did not finish.
            CasError: writing failed. Nothing was added, except after a failed flush, whose message says so.
        """
        self.append_lines([encode_record(payload_text(payload), schema_version)])

    def append_many(self, payloads: Iterable[object], *, schema_version: int = 1) -> int:
        """Appends records with one flush for all of them; a crash keeps the first so many, whole.

        Args:
            payloads: JSON values, as for `append`; held in memory together.
            schema_version: the record version of all.

        Returns:
            How many there were.

        Raises:
            CasError: as `append`; a payload that is refused is refused before anything is written.
        """
        lines = [encode_record(payload_text(payload), schema_version) for payload in payloads]
        if lines:
            self.append_lines(lines)
        return len(lines)

    def append_lines(self, lines: list[bytes]) -> None:
        """Appends lines that `encode_record` made.

        Raises:
            CasError: as `append`.
        """
        with self.locked() as writer:
            writer.end_torn_tail()
            writer.write(b"".join(lines))
            writer.settle()

    @contextmanager
    def locked(self) -> Iterator[LockedJournal]:
        """The journal open for writing, with every other writer kept out.

        Raises:
            CasError: as `append`.
        """
        with exclusive(self._lock, timeout_s=self._lock_timeout_s):
            fd = open_regular(self.path, os.O_RDWR | os.O_APPEND, create=True)
            try:
                yield LockedJournal(self, fd)
            finally:
                os.close(fd)

    def name_is_durable(self, status: os.stat_result) -> None:
        """Flushes the directory, once for each file that stands under this journal's name.

        An existing file proves nothing: the process that made it may have died before it flushed the name.

        Raises:
            CasError: the flush failed.
        """
        identity = (status.st_dev, status.st_ino)
        if self._named != identity:
            flush_directory(self.path.parent)
            self._named = identity


class LockedJournal:
    """A journal while its lock is held."""

    def __init__(self, journal: Journal, fd: int) -> None:
        self._journal = journal
        self._fd = fd
        self.source = FileSource(fd, os.fspath(journal.path))

    def end_torn_tail(self, keep: Callable[[Record], bool] = lambda _: True) -> None:
        """Makes the file end with a newline: a whole valid record gets its own, anything else is cut off.

        No reader has counted the tail, and no writer was told that it is kept.

        Args:
            keep: a further test that a whole record must pass.

        Raises:
            StorageIOError: reading or writing failed.
        """
        size = self.source.size()
        if size == 0 or self.source.read_at(size - 1, 1) == b"\n":
            return
        start = complete_end(self.source, size)
        if size - start < MAX_LINE and self._is_record(start, size - start, keep):
            self.write(b"\n")
            return
        try:
            os.ftruncate(self._fd, start)
        except OSError as error:
            raise translate(error, "cut the torn tail of", self.source.name) from error

    def _is_record(self, start: int, size: int, keep: Callable[[Record], bool]) -> bool:
        try:
            record = decode_record(read_exactly(self.source, start, size), "the torn tail")
        except CorruptError:
            return False
        return keep(record)

    def write(self, data: bytes) -> None:
        """Adds bytes at the end, all or (as far as the system lets it) none.

        Raises:
            StorageIOError: writing failed.
        """
        size = self.source.size()
        left = memoryview(data)
        try:
            while left:
                left = left[os.write(self._fd, left) :]
        except OSError as error:
            # Where even this fails, the next writer finds a torn tail and ends it.
            with suppress(OSError):
                os.ftruncate(self._fd, size)
            raise translate(error, "write", self.source.name) from error

    def settle(self) -> None:
        """Returns when the bytes and the name are on the disk; at once if the journal is not durable.

        Raises:
            StorageIOError: the flush failed.
        """
        if self._journal.durable:
            flush_file(self._fd, self.source.name)
            self._journal.name_is_durable(self.source.stat())


def append(path: str | os.PathLike[str], payload: object, *, schema_version: int = 1, durable: bool = True) -> None:
    """Appends one record to a journal; `Journal` is the faster way to append many.

    Raises:
        CasError: as `Journal.append`.
    """
    Journal(path, durable=durable).append(payload, schema_version=schema_version)


def read(path: str | os.PathLike[str]) -> Iterator[Record]:
    """The complete records that are in a journal now, checked, one at a time.

    Raises:
        CorruptError: a complete line is not a checked record.
        CasError: the file cannot be read.
    """
    with reading(path) as source:
        yield from records_between(source, 0, complete_end(source, source.size()), 0, 0)


def page(path: str | os.PathLike[str], offset: int = 0, limit: int = MAX_PAGE) -> Page:
    """Records `offset` to `offset + limit` of a journal, by one pass over the file in flat memory.

    At most `INLINE_CAP` bytes of payload, but always at least one record where there is one. Records before and behind
    the page are counted, not checked.

    Args:
        path: the journal.
        offset: the first record wanted, counted from 0.
        limit: the most records wanted, from 1; more than `MAX_PAGE` is taken as `MAX_PAGE`.

    Raises:
        InvalidInputError: offset or limit is out of range, or the path is no regular file.
        CorruptError: a record of the page does not check.
        CasError: the file cannot be read.
    """
    with reading(path) as source:
        return page_of(source, offset, limit)


def follow(
    path: str | os.PathLike[str],
    offset: int = 0,
    *,
    poll_s: float = 0.1,
    stop: Callable[[], bool] | None = None,
) -> Iterator[Record]:
    """The records of a growing journal from number `offset` on, waiting for the file and for more of it.

    Args:
        path: the journal; may not exist yet.
        offset: the first record wanted, counted from 0.
        poll_s: seconds between two looks at the file.
        stop: asked after each look; the records end where it says True. Without it they end only with an error.

    Raises:
        CorruptError: a complete line is not a checked record, or records that were there are gone: the file shrank, was
            replaced or removed.
        CasError: the file cannot be read.
    """
    while True:
        try:
            with reading(path) as source:
                yield from _follow_open(source, offset, poll_s, stop)
                return
        except NotFoundError:
            if stop is not None and stop():
                return
        time.sleep(poll_s)


def _follow_open(source: FileSource, offset: int, poll_s: float, stop: Callable[[], bool] | None) -> Iterator[Record]:
    position = seen = 0
    opened = source.stat()
    while True:
        ending = stop is not None and stop()
        size = source.size()
        if size < position:
            raise CorruptError(
                f"{source.name}: it shrank from {position} to {size} bytes while it was followed; start again"
            )
        end = complete_end(source, size, position)
        seen = yield from records_between(source, position, end, seen, offset)
        position = end
        if ending:
            return
        try:
            same = os.path.samestat(opened, look(source.name))
        except NotFoundError:
            same = False
        if not same:
            raise CorruptError(f"{source.name}: it was replaced or removed while it was followed; start again")
        time.sleep(poll_s)


def records_between(source: Source, start: int, end: int, seen: int, offset: int) -> Generator[Record, None, int]:
    """The records of a stretch from number `offset` on.

    Args:
        source: the journal.
        start: the byte where a line starts.
        end: the byte after a newline.
        seen: the number of the stretch's first record.
        offset: the first record wanted.

    Returns:
        The number of the record behind the stretch.

    Raises:
        CorruptError: a complete line is not a checked record.
        StorageIOError: reading failed.
    """
    for piece in pieces(source, start, end):
        if seen + piece.records > offset:
            for number, line in enumerate(piece.lines(source), seen):
                if number >= offset:
                    yield check_line(source, line, number)
        seen += piece.records
    return seen
