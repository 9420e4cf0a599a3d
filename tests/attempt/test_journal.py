import itertools
import json
import os
import tempfile
import threading
from pathlib import Path

import pytest
from attempt_model import (
    BadError,
    complete_lines,
    flat,
    line_of,
    lines_of,
    model_outcome,
    outcome,
    page_model,
    quick,
    read_model,
    repaired,
)
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from oarbank_cas.attempt import (
    INLINE_CAP,
    MAX_PAGE,
    Journal,
    Pager,
    append,
    files,
    follow,
    journal,
    page,
    pager,
    read,
    scan,
)
from oarbank_cas.errors import CorruptError, InvalidInputError, NotFoundError, StorageIOError

GOOD = line_of('{"a": 1}')
fragments = st.sampled_from(
    [
        GOOD,
        GOOD[:-1],
        line_of("2", 7),
        line_of(json.dumps("x" * 60)),
        line_of(json.dumps("é" * 9)),
        GOOD[:-1] + b"\r\n",
        b"\n",
        b" \t\r\n",
        b"\r",
        b"  ",
        b"{",
        b"}\n",
        b"\x00" * 5,
        b"\x00\n",
        b"\x0c\n",
        b"\xff\n",
        GOOD[:50],
        line_of("1", checksum="0" * 64),
        b"{" * 50 + b"\n",
        b" " * 40 + b"\n",
        b" " * 40 + GOOD,
    ]
)
files_of_fragments = st.lists(fragments, max_size=12).map(b"".join)


def everything(path, pages):
    return (
        outcome(lambda: [tuple(record) for record in read(path)]),
        [flat(outcome(page, path, offset, limit)) for offset, limit in pages],
        outcome(lambda: [tuple(record) for record in follow(path, stop=lambda: True)]),
    )


def everything_by_model(data, pages, **more):
    records = model_outcome(read_model, data)
    return records, [model_outcome(page_model, data, offset, limit, **more) for offset, limit in pages], records


@quick(150)
@given(
    files_of_fragments | st.binary(max_size=300),
    st.lists(st.tuples(st.integers(0, 14), st.integers(1, 14)), max_size=3),
    st.sampled_from([1, 2, 7, 64, 1000]),
    st.sampled_from([1, 10, 100, 1000]),
)
def test_readers_agree_with_the_model_on_any_bytes(data, pages, block, cap):
    with tempfile.TemporaryDirectory() as directory, pytest.MonkeyPatch.context() as patch:
        patch.setattr(scan, "BLOCK", block)
        patch.setattr(scan.pieces, "__defaults__", (block,))
        patch.setattr(scan, "INLINE_CAP", cap)
        path = Path(directory, "j.jsonl")
        path.write_bytes(data)
        assert everything(path, pages) == everything_by_model(data, pages, cap=cap)
        patch.setattr(pager, "SEGMENT", block)
        fast = Pager(path)
        for offset, limit in pages * 2:
            assert flat(outcome(fast.page, offset, limit)) == model_outcome(page_model, data, offset, limit, cap=cap)
        assert fast.rebuilds == 0
        assert fast.verify()


def test_every_cut_of_a_journal():
    data = GOOD + b"\n" + line_of('"two"') + GOOD[:-1] + b"\r\n" + line_of("4")
    pages = [(0, 10), (1, 2), (3, 1), (9, 9)]
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "j.jsonl")
        for cut in range(len(data) + 1):
            path.write_bytes(data[:cut])
            assert everything(path, pages) == everything_by_model(data[:cut], pages)
            assert outcome(read, path) is not BadError
            append(path, "new", durable=False)
            assert path.read_bytes() == repaired(data[:cut]) + append_bytes("new")
            # Only whole records of before, and the new one.
            got = [record.payload for record in read(path)]
            assert got == [json.loads(record_text) for _, record_text in read_model(repaired(data[:cut]))] + ["new"]


def append_bytes(value):
    text = json.dumps(value)
    return json.dumps(json.loads(line_of(text)), separators=(",", ":"), ensure_ascii=False).encode() + b"\n"


class JournalMachine(RuleBasedStateMachine):
    """One journal under every kind of change, and a pager that lives through all of them."""

    def __init__(self):
        super().__init__()
        self.directory = tempfile.TemporaryDirectory()
        self.path = Path(self.directory.name, "j.jsonl")
        self.patch = pytest.MonkeyPatch()
        self.data = b""
        self.path.touch()
        self.fast = Pager(self.path)
        self.moved = False

    @initialize(segment=st.sampled_from([16, 200, 100_000]), cap=st.sampled_from([20, 300, 1_048_576]))
    def sizes(self, segment, cap):
        self.patch.setattr(pager, "SEGMENT", segment)
        self.patch.setattr(scan, "BLOCK", segment)
        self.patch.setattr(scan, "INLINE_CAP", cap)
        self.cap = cap

    def teardown(self):
        self.patch.undo()
        self.directory.cleanup()

    @rule(value=st.text("aé\u2028\n", max_size=40) | st.integers(), version=st.integers(0, 3))
    def append(self, value, version):
        Journal(self.path, durable=False).append(value, schema_version=version)
        before = repaired(self.data)
        self.data = self.path.read_bytes()
        assert self.data.startswith(before)
        assert read_model(self.data[len(before) :]) == [(version, json.dumps(value, ensure_ascii=False))]

    @rule(values=st.lists(st.integers(0, 9), max_size=30))
    def append_many(self, values):
        assert Journal(self.path, durable=False).append_many(values) == len(values)
        before = repaired(self.data) if values else self.data
        self.data = self.path.read_bytes()
        assert self.data.startswith(before)
        assert read_model(self.data[len(before) :]) == [(1, str(value)) for value in values]

    def rewrite(self, data):
        self.moved = True
        with open(self.path, "r+b") as file:  # the same inode
            file.truncate(len(data))
            file.write(data)
        self.data = data

    @rule(more=fragments)
    def another_writer(self, more):
        with open(self.path, "ab") as file:
            file.write(more)
        self.data += more

    @precondition(lambda self: self.data)
    @rule(draw=st.data())
    def cut(self, draw):
        self.rewrite(self.data[: draw.draw(st.integers(0, len(self.data) - 1))])

    @precondition(lambda self: self.data)
    @rule(draw=st.data(), byte=st.sampled_from(list(b'\n {0"\x00')))
    def overwrite(self, draw, byte):
        at = draw.draw(st.integers(0, len(self.data) - 1))
        self.rewrite(self.data[:at] + bytes([byte]) + self.data[at + 1 :])

    @rule(draw=st.data(), more=fragments)
    def insert(self, draw, more):
        lines = self.data.splitlines(keepends=True)
        at = draw.draw(st.integers(0, len(lines)))
        self.rewrite(b"".join([*lines[:at], more, *lines[at:]]))

    @precondition(lambda self: self.data.count(b"\n") > 1)
    @rule(draw=st.data())
    def blank_a_line(self, draw):
        # The same length, one record less, and every record behind it still whole.
        lines = self.data.splitlines(keepends=True)
        at = draw.draw(st.integers(0, len(lines) - 1))
        lines[at] = b" " * (len(lines[at]) - 1) + lines[at][-1:]
        self.rewrite(b"".join(lines))

    @rule(data=files_of_fragments)
    def replace(self, data):
        other = self.path.with_suffix(".new")
        other.write_bytes(data)
        other.replace(self.path)
        self.data, self.moved = data, True

    @rule(offset=st.integers(0, 40), limit=st.integers(1, 40))
    def both_pages(self, offset, limit):
        expected = model_outcome(page_model, self.data, offset, limit, cap=self.cap)
        assert flat(outcome(page, self.path, offset, limit)) == expected
        assert flat(outcome(self.fast.page, offset, limit)) == expected

    @invariant()
    def an_appended_journal_keeps_its_index(self):
        if not self.moved:
            assert self.fast.rebuilds == 0


TestJournalMachine = JournalMachine.TestCase
TestJournalMachine.settings = quick(60)


def test_a_page_is_exact_at_the_inline_cap(tmp_path):
    path = tmp_path / "j.jsonl"
    half = INLINE_CAP // 2
    values = ["x" * (half - 2), "x" * (half - 2), "", "y" * INLINE_CAP, 1, "x" * (half - 2), "x" * (half - 1), 2]
    Journal(path, durable=False).append_many(values)
    sizes = [len(json.dumps(value)) for value in values]
    assert sizes[0] + sizes[1] == INLINE_CAP
    first = page(path, 0, 100)
    assert (len(first.records), first.next_offset, first.available) == (2, 2, 8)  # exactly the cap
    second = page(path, 2, 100)
    assert len(second.records) == 1  # the next is above the cap: not taken along
    third = page(path, 3, 100)
    assert (third.payloads, third.next_offset) == ([values[3]], 4)  # alone it comes, whole
    fourth = page(path, 4, 100)
    assert fourth.next_offset == 6  # 1 + half + half + 1 is above by two
    assert page(path, 5, 100).next_offset == 6  # half + (half + 1) is above by one
    assert page(path, 6, 100).next_offset == 8
    fast = Pager(path)
    for offset, limit in itertools.product(range(9), (1, 2, 100)):
        assert fast.page(offset, limit) == page(path, offset, limit)
        assert flat(page(path, offset, limit)) == page_model(path.read_bytes(), offset, limit)


def test_a_cap_counts_bytes_and_not_characters(tmp_path):
    path = tmp_path / "j.jsonl"
    Journal(path, durable=False).append_many(["é" * (INLINE_CAP // 4), "é" * (INLINE_CAP // 4)])
    assert page(path).next_offset == 1


def test_page_limits(tmp_path):
    path = tmp_path / "j.jsonl"
    path.write_bytes(line_of("1") * (MAX_PAGE + 5))
    assert len(page(path, 0, MAX_PAGE).records) == MAX_PAGE
    assert len(page(path, 0, MAX_PAGE + 1).records) == MAX_PAGE
    assert page(path, 0, 10**30).next_offset == MAX_PAGE
    assert page(path, MAX_PAGE, 10).payloads == [1] * 5
    assert page(path, 10**30, 10) == ((), 10**30, MAX_PAGE + 5)
    for offset, limit in [(-1, 1), (0, 0), (0, -1), (True, 1), (0, True), (1.0, 1), ("0", 1), (0, None)]:
        for pages in (lambda o, n: page(path, o, n), Pager(path).page):
            with pytest.raises(InvalidInputError):
                pages(offset, limit)


def test_only_the_records_of_the_page_are_checked(tmp_path):
    path = tmp_path / "j.jsonl"
    path.write_bytes(b"junk\n" + line_of("1") + line_of("2") + b"more junk\n")
    for pages in (lambda o, n: page(path, o, n), Pager(path).page):
        assert pages(1, 2).payloads == [1, 2]
        assert pages(1, 2).available == 4
        with pytest.raises(CorruptError, match=r"record 0 \(byte 0\)"):
            pages(0, 1)
        with pytest.raises(CorruptError, match="record 3 "):
            pages(1, 3)


def test_lines_longer_than_a_record_are_counted_but_never_served(tmp_path, monkeypatch):
    monkeypatch.setattr(scan, "MAX_LINE", 300)
    path = tmp_path / "j.jsonl"
    long = line_of(json.dumps("x" * 400))
    path.write_bytes(line_of("1") + long + line_of("2"))
    for block in (64, 1000):
        monkeypatch.setattr(scan.pieces, "__defaults__", (block,))
        assert page(path, 2, 1).payloads == [2]
        assert page(path, 0, 1) == (((1, "1"),), 1, 3)
        with pytest.raises(CorruptError, match=r"record 1 .* page from record 2"):
            page(path, 0, 3)
        with pytest.raises(CorruptError, match=f"takes {len(long)} bytes"):
            list(read(path))


def test_a_torn_tail_longer_than_a_record_is_cut(tmp_path, monkeypatch):
    monkeypatch.setattr(journal, "MAX_LINE", 300)
    path = tmp_path / "j.jsonl"
    for length, kept in ((299, True), (300, False)):
        text = json.dumps("x" * (length - len(line_of('""')) + 1))
        tail = line_of(text)[:-1]
        assert len(tail) == length
        path.write_bytes(line_of("1") + tail)
        append(path, 2, durable=False)
        assert len(complete_lines(path.read_bytes())) == (3 if kept else 2)


def test_the_first_durable_append_flushes_file_then_directory(tmp_path, monkeypatch):
    flushed = []
    monkeypatch.setattr(journal, "flush_file", lambda fd, path: flushed.append((os.fstat(fd).st_size > 0, "file")))
    monkeypatch.setattr(journal, "flush_directory", lambda path: flushed.append((Path(path), "directory")))
    writer = Journal(tmp_path / "j.jsonl")
    writer.append(1)
    assert flushed == [(True, "file"), (tmp_path, "directory")]
    writer.append(2)
    assert flushed[2:] == [(True, "file")]
    # A file that is there proves nothing about its name; nor does the name of another file.
    Journal(writer.path).append(3)
    assert flushed[3:] == [(True, "file"), (tmp_path, "directory")]
    (tmp_path / "other").write_bytes(b"")
    (tmp_path / "other").replace(writer.path)
    writer.append(4)
    assert flushed[5:] == [(True, "file"), (tmp_path, "directory")]
    Journal(writer.path, durable=False).append(5)
    assert len(flushed) == 7


def test_flushes_are_real(tmp_path, monkeypatch):
    seen = []
    real = os.fsync
    monkeypatch.setattr(files.os, "fsync", lambda fd: (seen.append(os.path.isdir(f"/proc/self/fd/{fd}")), real(fd)))
    append(tmp_path / "j.jsonl", 1)
    assert seen == [False, True]


def test_a_failed_write_leaves_nothing_behind(tmp_path, monkeypatch):
    path = tmp_path / "j.jsonl"
    append(path, 1)
    before = path.read_bytes()
    real = os.write

    def full(fd, data):
        if len(data) > 10:
            return real(fd, data[:10])
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(journal.os, "write", full)
        with pytest.raises(StorageIOError, match="No space left"):
            append(path, 2)
    assert path.read_bytes() == before
    append(path, 3)
    assert [record.payload for record in read(path)] == [1, 3]


def test_a_short_write_is_continued(tmp_path, monkeypatch):
    real = os.write
    monkeypatch.setattr(journal.os, "write", lambda fd, data: real(fd, data[:7]))
    append(tmp_path / "j.jsonl", "abc")
    assert [record.payload for record in read(tmp_path / "j.jsonl")] == ["abc"]


def test_a_failed_flush_is_said(tmp_path, monkeypatch):
    def fail(fd):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(files.os, "fsync", fail)
    with pytest.raises(StorageIOError, match="may be lost"):
        append(tmp_path / "j.jsonl", 1)


def test_refused_payloads_change_nothing(tmp_path):
    path = tmp_path / "j.jsonl"
    path.write_bytes(b"torn")
    with pytest.raises(InvalidInputError):
        Journal(path).append_many([1, float("nan")])
    with pytest.raises(InvalidInputError):
        append(path, 1, schema_version=-1)
    assert path.read_bytes() == b"torn"
    assert Journal(path).append_many([]) == 0
    assert path.read_bytes() == b"torn"


@pytest.mark.parametrize("use", [read, page, Journal.append, follow], ids=["read", "page", "append", "follow"])
@pytest.mark.parametrize("kind", ["link", "dangling", "directory", "fifo", "device", "socket", "nul"])
def test_what_is_no_regular_file_is_refused_at_once(tmp_path, use, kind):
    path = special(tmp_path, kind)

    def run():
        if use is Journal.append:
            append(path, 1)
        elif use is page:
            page(path)
        else:
            list(use(path))

    with pytest.raises(InvalidInputError):
        run()
    assert not (tmp_path / "target-of-dangling").exists()


@pytest.mark.parametrize("kind", ["fifo", "device", "socket", "directory", "link"])
def test_what_is_no_regular_file_is_not_even_opened(tmp_path, kind, monkeypatch):
    """To open a device can be an act of its own. What is opened is looked at again: the name may have changed hands."""
    path = special(tmp_path, kind)
    real = os.open
    opened = []
    monkeypatch.setattr(files.os, "open", lambda *args, **more: (opened.append(args[0]), real(*args, **more))[1])
    with pytest.raises(InvalidInputError):
        files.open_regular(path, os.O_RDONLY)
    assert opened == []
    regular = tmp_path / "regular"
    regular.touch()
    opened.clear()
    monkeypatch.setattr(files.os, "lstat", lambda _: os.stat(regular))
    with pytest.raises(InvalidInputError):
        files.open_regular(path, os.O_RDONLY)
    assert opened == [path]


def special(tmp_path, kind):
    path = tmp_path / "j.jsonl"
    if kind == "link":
        (tmp_path / "target").write_bytes(GOOD)
        path.symlink_to(tmp_path / "target")
    elif kind == "dangling":
        path.symlink_to(tmp_path / "target-of-dangling")
    elif kind == "directory":
        path.mkdir()
    elif kind == "fifo":
        os.mkfifo(path)
    elif kind == "device":
        return "/dev/null"
    elif kind == "socket":
        import socket

        short = tempfile.mkdtemp(prefix="s")
        path = Path(short, "j.jsonl")
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(str(path))
    else:
        return "j\0.jsonl"
    return path


def test_missing_files(tmp_path):
    for use in (lambda p: list(read(p)), page, lambda p: Pager(p).page(0, 1)):
        with pytest.raises(NotFoundError):
            use(tmp_path / "none.jsonl")
    with pytest.raises(NotFoundError):
        append(tmp_path / "none" / "j.jsonl", 1)
    with pytest.raises(InvalidInputError):
        append("", 1)
    assert list(follow(tmp_path / "none.jsonl", stop=lambda: True)) == []


def test_follow_waits_for_the_file_and_for_more(tmp_path):
    path = tmp_path / "j.jsonl"
    values = list(range(40))

    def write():
        for value in values:
            append(path, value, durable=False)

    thread = threading.Thread(target=write)
    records = follow(path, 5, poll_s=0.001)
    thread.start()
    assert [record.payload for record in itertools.islice(records, 35)] == values[5:]
    thread.join()
    records.close()


def test_follow_sees_a_torn_tail_only_when_it_is_whole(tmp_path):
    path = tmp_path / "j.jsonl"
    path.write_bytes(line_of("1") + b'{"torn')
    asked = []

    def step():
        asked.append(1)
        if len(asked) == 3:
            append(path, 2)
        return len(asked) > 5

    assert [record.payload for record in follow(path, poll_s=0, stop=step)] == [1, 2]


@pytest.mark.parametrize("how", ["shrink", "replace", "remove", "damage"])
def test_follow_notices_that_records_went_away(tmp_path, how):
    path = tmp_path / "j.jsonl"
    path.write_bytes(lines_of([1, 2]))
    records = follow(path, poll_s=0)
    assert next(records).payload == 1
    assert next(records).payload == 2
    if how == "shrink":
        path.write_bytes(lines_of([1]))
    elif how == "replace":
        (tmp_path / "new").write_bytes(lines_of([1, 2, 3]))
        (tmp_path / "new").replace(path)
    elif how == "remove":
        path.unlink()
    else:
        with path.open("ab") as file:
            file.write(b"junk\n")
    with pytest.raises(CorruptError):
        next(records)


def test_flat_memory_on_a_line_of_100_mb(tmp_path):
    """Counted, skipped, cut and refused: never held."""
    import tracemalloc

    path = tmp_path / "j.jsonl"
    size = 100_000_000
    with path.open("wb") as file:
        file.write(line_of("1") + b"{")
        file.truncate(len(line_of("1")) + size - 1)
        file.seek(0, os.SEEK_END)
        file.write(b"\n" + line_of("2"))
    tracemalloc.start()
    try:
        assert page(path, 2, 1).payloads == [2]
        assert page(path, 0, 1).available == 3
        with pytest.raises(CorruptError, match="100000000 bytes"):
            page(path, 0, 3)
        fast = Pager(path)
        assert fast.page(2, 1).payloads == [2]
        with pytest.raises(CorruptError, match="100000000 bytes"):
            fast.page(1, 1)
        os.truncate(path, len(line_of("1")) + size - 1)
        assert page(path, 0, 9) == (((1, "1"),), 1, 1)
        append(path, 3)
        assert [record.payload for record in read(path)] == [1, 3]
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 8_000_000
