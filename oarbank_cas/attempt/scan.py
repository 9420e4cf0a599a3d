"""Finding, counting and collecting the records of a journal's bytes in one streaming pass and flat memory."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

from oarbank_cas.attempt.files import Source
from oarbank_cas.attempt.records import MAX_LINE, Record, decode_record
from oarbank_cas.errors import CorruptError, InvalidInputError, StorageIOError

INLINE_CAP: Final = 1_048_576
"""Bytes that one call returns inline: an artifact's content, or the payloads of one page."""

MAX_PAGE: Final = 10_000
"""Records of one page at most."""

BLOCK: Final = 1024 * 1024
_BLANK: Final = b" \t\r"
_INDENTED: Final = re.compile(rb"[ \t\r\n]")
_INDENTED_LATER: Final = re.compile(rb"\n[ \t\r\n]")


class Page(NamedTuple):
    """Consecutive records of a journal.

    Attributes:
        records: the records, in the file's order.
        next_offset: the record number where the next page starts.
        available: the complete records that were in the file when it was looked at.
    """

    records: tuple[Record, ...]
    next_offset: int
    available: int

    @property
    def payloads(self) -> list[object]:
        """The records' payloads as Python values.

        Raises:
            InvalidInputError: one holds an integer with more digits than Python converts.
        """
        return [record.payload for record in self.records]


class Line(NamedTuple):
    """A non-blank line: where it stands, its length with the newline, and its bytes if it can be a record at all."""

    start: int
    size: int
    data: bytes | None


class Piece(NamedTuple):
    """Whole lines that follow each other, or one long line, whose bytes are not kept.

    Attributes:
        start: the byte where its first line starts.
        end: the byte after its last newline.
        data: the bytes, or None for one long line.
        records: how many of its lines are not blank.
    """

    start: int
    end: int
    data: bytes | None
    records: int

    def lines(self, source: Source) -> Iterator[Line]:
        """The non-blank lines, one at a time.

        Raises:
            StorageIOError: the file shrank meanwhile.
        """
        if self.data is None:
            size = self.end - self.start
            if self.records:
                yield Line(self.start, size, read_exactly(source, self.start, size) if size <= MAX_LINE else None)
            return
        start = at = 0
        while (at := self.data.find(b"\n", start) + 1) > 0:
            line = self.data[start:at]
            if line[0] == 0x7B or line.strip(b" \t\r\n"):  # most lines start with "{": no need to look further
                yield Line(self.start + start, at - start, line)
            start = at


def clamp_page(offset: int, limit: int) -> int:
    """The number of records that a page may hold.

    Raises:
        InvalidInputError: the offset is negative or the limit below 1.
    """
    for what, value, least in (("offset", offset, 0), ("limit", limit, 1)):
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise InvalidInputError(f"it is an integer from {least} up, not {value!r}", what)
    return min(limit, MAX_PAGE)


def read_exactly(source: Source, start: int, size: int) -> bytes:
    """`size` bytes that were there a moment ago.

    Raises:
        StorageIOError: the file is shorter now.
    """
    data = source.read_at(start, size)
    if len(data) != size:
        raise StorageIOError(f"{source.name}: it got shorter while it was read; read it again from its start")
    return data


def complete_end(source: Source, size: int, floor: int = 0) -> int:
    """The byte after the last newline before byte `size`; `floor`, a line's start, where there is none.

    What lies before that byte never changes in a journal, while a torn tail behind it may be cut off and written
    over at any moment: a reader that starts from here cannot join the halves of two records.

    Raises:
        StorageIOError: the file got shorter meanwhile.
    """
    end = size
    while end > floor:
        start = max(floor, end - BLOCK)
        found = source.read_at(start, end - start).rfind(b"\n")
        if found >= 0:
            return start + found + 1
        end = start
    return floor


def pieces(source: Source, start: int, end: int, block: int = BLOCK) -> Iterator[Piece]:
    """The lines of a stretch of a journal, in pieces of about `block` bytes.

    Args:
        source: the journal.
        start: a line's start.
        end: the byte after a newline.
        block: bytes to read at once; a longer line becomes a piece of its own, without its bytes.

    Raises:
        StorageIOError: the file got shorter meanwhile.
    """
    while start < end:
        data = read_exactly(source, start, min(block, end - start))
        cut = data.rfind(b"\n") + 1
        if cut:
            data = data[:cut] if cut < len(data) else data
            piece = Piece(start, start + cut, data, count_records(data))
        else:
            piece = _long_line(source, start, data, end, block)
        yield piece
        start = piece.end


def _long_line(source: Source, start: int, data: bytes, end: int, block: int) -> Piece:
    blank = not data.strip(_BLANK)
    at = start + len(data)
    while at < end:
        data = read_exactly(source, at, min(block, end - at))
        found = data.find(b"\n")
        blank = blank and not (data if found < 0 else data[:found]).strip(_BLANK)
        if found >= 0:
            return Piece(start, at + found + 1, None, 0 if blank else 1)
        at += len(data)
    raise StorageIOError(f"{source.name}: a newline in it went away while it was read; read it again from its start")


def count_records(lines: bytes) -> int:
    """The non-blank lines in bytes that end with a newline."""
    # Two looks at memory speed settle the usual case: no line starts with white space, so none is blank.
    if not _INDENTED.match(lines) and not _INDENTED_LATER.search(lines):
        return lines.count(b"\n")
    return sum(1 for line in lines.split(b"\n") if line.strip(_BLANK))


def check_line(source: Source, line: Line, number: int) -> Record:
    """The record of a line.

    Args:
        source: the journal, for messages.
        line: the line.
        number: the record's number, for messages.

    Raises:
        CorruptError: the line is not a checked record, or is longer than `MAX_LINE`.
    """
    where = f"{source.name}: record {number} (byte {line.start})"
    if line.data is None or line.size > MAX_LINE:
        raise CorruptError(
            f"{where}: the line takes {line.size} bytes, and a record at most {MAX_LINE}; page from record "
            f"{number + 1} to go on behind it"
        )
    return decode_record(line.data, where)


class Collector:
    """Fills one page from the pieces that are shown to it in order, and counts the records of all of them.

    Args:
        source: the journal.
        offset: the first record of the page.
        limit: the most records of the page.
        seen: the number of the first record that will be shown.
    """

    def __init__(self, source: Source, offset: int, limit: int, seen: int = 0) -> None:
        self._source = source
        self._offset = offset
        self._limit = limit
        self._room = INLINE_CAP
        self.records: list[Record] = []
        self.seen = seen
        self.full = False

    def show(self, piece: Piece) -> None:
        """Takes the page's records out of a piece; others are only counted, neither parsed nor checked.

        Raises:
            CorruptError: a record of the page does not check.
            StorageIOError: the file got shorter meanwhile.
        """
        if not self.full and self.seen + piece.records > self._offset:
            for number, line in enumerate(piece.lines(self._source), self.seen):
                if number < self._offset:
                    continue
                self._take(check_line(self._source, line, number))
                if self.full:
                    break
        self.seen += piece.records

    def _take(self, record: Record) -> None:
        size = record.size
        if self.records and size > self._room:
            self.full = True
            return
        self.records.append(record)
        self._room -= size
        # No payload is shorter than a byte: without room the next record need not be looked at.
        self.full = len(self.records) == self._limit or self._room <= 0

    def page(self, available: int) -> Page:
        """The page, when `available` records were there in all."""
        return Page(tuple(self.records), self._offset + len(self.records), available)


def page_of(source: Source, offset: int, limit: int) -> Page:
    """One page of a journal, by a pass over all of it.

    Args:
        source: the journal.
        offset: the first record wanted, counted from 0.
        limit: the most records wanted; more than `MAX_PAGE` is taken as `MAX_PAGE`.

    Raises:
        InvalidInputError: offset or limit is out of range.
        CorruptError: a record of the page does not check.
        StorageIOError: reading failed, or the file got shorter meanwhile.
    """
    limit = clamp_page(offset, limit)
    collector = Collector(source, offset, limit)
    for piece in pieces(source, 0, complete_end(source, source.size())):
        collector.show(piece)
    return collector.page(collector.seen)
