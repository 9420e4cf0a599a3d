"""A sealed journal's survey: how many records it has, and where some of them start, so that a page reads a part of it.

It is made once, when the journal is published, and stands beside it. Where a page is read the records between the marks
are counted again: a survey of another journal is noticed. One that is wrong on purpose can shift the numbers of
records, and no more than that.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import Final, NamedTuple

from oarbank_cas.attempt.files import Source
from oarbank_cas.attempt.scan import BLOCK, Collector, Page, clamp_page, complete_end, pieces, read_exactly
from oarbank_cas.errors import CorruptError, StorageIOError

MAX_MARKS: Final = 256
"""Marks of one journal at most, but for a rounding."""

_LEAST_STRIDE: Final = BLOCK // 2


class Mark(NamedTuple):
    """A place in a journal.

    Attributes:
        byte: where a line starts.
        before: how many records come before it.
    """

    byte: int
    before: int


class Survey(NamedTuple):
    """What is known of a journal that does not change any more.

    Attributes:
        records: how many complete records it has.
        marks: places in it, in order; its start is none of them.
    """

    records: int
    marks: tuple[Mark, ...]

    def before(self, record: int) -> int:
        """The number of the last stretch that starts at or before a record; 0 is the journal's start."""
        return bisect_right(self.marks, record, key=lambda mark: mark.before)


def survey_of(source: Source) -> Survey:
    """Survey a journal, by one pass in flat memory.

    Raises:
        StorageIOError: it got shorter meanwhile, or reading failed.
    """
    size = source.size()
    end = complete_end(source, size)
    stride = max(_LEAST_STRIDE, size // MAX_MARKS)
    marks: list[Mark] = []
    last = seen = 0
    for piece in pieces(source, 0, end):
        seen += piece.records
        if piece.end - last >= stride and piece.end < end:
            last = piece.end
            marks.append(Mark(last, seen))
    return Survey(seen, tuple(marks))


def start_of(source: Source, survey: Survey, stretch: int) -> Mark:
    """Where a stretch starts.

    Raises:
        CorruptError: no line starts there: the survey is wrong.
    """
    if stretch == 0:
        return Mark(0, 0)
    mark = survey.marks[stretch - 1]
    if read_exactly(source, mark.byte - 1, 1) != b"\n":
        raise wrong(source, f"no line starts at byte {mark.byte}")
    return mark


def surveyed_page(source: Source, survey: Survey, offset: int, limit: int) -> Page:
    """The page that `scan.page_of` gives, read without what comes before and behind its stretches.

    Args:
        source: the journal.
        survey: its survey, from anyone.
        offset: the first record wanted, counted from 0.
        limit: the most records wanted; more than `MAX_PAGE` is taken as `MAX_PAGE`.

    Raises:
        InvalidInputError: offset or limit is out of range.
        CorruptError: a record of the page does not check, or the survey is wrong where the page is.
        StorageIOError: reading failed.
    """
    limit = clamp_page(offset, limit)
    if offset >= survey.records:
        return Page((), offset, survey.records)
    stretch = survey.before(offset)
    start, before = start_of(source, survey, stretch)
    collector = Collector(source, offset, limit, before)
    while True:
        last = stretch == len(survey.marks)
        if last:
            end, records = complete_end(source, source.size(), start), survey.records
        else:
            end, records = survey.marks[stretch]
        _show(source, collector, start, end)
        if collector.seen != records:
            raise wrong(source, f"record {collector.seen} starts at byte {end}, not record {records}")
        if collector.full or last:
            return collector.page(survey.records)
        start, stretch = end, stretch + 1


def _show(source: Source, collector: Collector, start: int, end: int) -> None:
    """Show a whole stretch, also behind a full page: it is counted to its end."""
    try:
        for piece in pieces(source, start, end):
            collector.show(piece)
    except StorageIOError:
        if read_exactly(source, end - 1, 1) != b"\n":
            raise wrong(source, f"no line ends before byte {end}") from None
        raise


def wrong(source: Source, why: str) -> CorruptError:
    """The error for a survey that is not of this journal."""
    return CorruptError(f"{source.name}: what was published about this journal is wrong: {why}; fetch the file whole")
