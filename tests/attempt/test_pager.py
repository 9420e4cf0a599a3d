import os
import time

import pytest
from attempt_model import flat, line_of, lines_of, page_model

from oarbank_cas.attempt import Journal, Pager, pager, scan
from oarbank_cas.errors import CorruptError, InvalidInputError, NotFoundError, StorageIOError


@pytest.fixture
def small(monkeypatch):
    """Segments of a few records, and one of them read again at each look."""
    monkeypatch.setattr(pager, "SEGMENT", 600)
    monkeypatch.setattr(pager, "RECHECK", 1)
    monkeypatch.setattr(scan, "BLOCK", 600)


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "j.jsonl"
    path.write_bytes(lines_of(range(100)))
    return path


def agree(fast, path, *offsets):
    data = path.read_bytes()
    for offset in offsets or range(0, 110, 7):
        assert flat(fast.page(offset, 5)) == page_model(data, offset, 5)


def in_place(path, edit):
    data = edit(path.read_bytes())
    with path.open("r+b") as file:
        file.write(data)
        file.truncate()


def test_an_index_survives_appends_and_torn_tails(small, path):
    fast = Pager(path)
    for number in range(60):
        agree(fast, path, 0, 50, 99 + number)
        with path.open("ab") as file:
            file.write(b'{"torn')
        agree(fast, path, 99 + number)
        Journal(path, durable=False).append([number])
    agree(fast, path)
    assert fast.rebuilds == 0
    assert fast.verify()


def test_looks_at_a_growing_journal_do_not_bloat_the_index(small, path):
    fast = Pager(path)
    for number in range(100):
        Journal(path, durable=False).append([number])
        fast.page(0, 1)
    assert fast._index.segments <= 2 * path.stat().st_size / 600 + 2
    assert fast.rebuilds == 0


def blank(data, record):
    lines = data.splitlines(keepends=True)
    lines[record] = b" " * (len(lines[record]) - 1) + b"\n"
    return b"".join(lines)


@pytest.mark.parametrize("record", [0, 50, 99])
def test_an_edit_of_the_same_length_is_noticed_by_its_time(small, path, record, monkeypatch):
    monkeypatch.setattr(pager, "_TICK_NS", 0)
    fast = Pager(path)
    time.sleep(0.02)
    agree(fast, path)
    time.sleep(0.02)
    in_place(path, lambda data: blank(data, record))
    agree(fast, path)
    assert fast.rebuilds == 1


@pytest.mark.parametrize("record", [0, 50, 99])
def test_an_edit_within_one_tick_of_the_clock_is_noticed_all_the_same(path, record):
    fast = Pager(path)
    agree(fast, path)
    before = path.stat()
    in_place(path, lambda data: blank(data, record))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    agree(fast, path)
    assert fast.rebuilds == 1


@pytest.mark.parametrize("still_for_s", [0, 1])
def test_times_that_did_not_move_are_no_proof_for_a_file_that_was_just_written(small, path, still_for_s, monkeypatch):
    monkeypatch.setattr(pager, "RECHECK", 2_000_000)
    times = time.time_ns() - still_for_s * 1_000_000_000
    real = pager._Look.at

    def at(source):
        return real(source)._replace(mtime_ns=times, ctime_ns=times)

    monkeypatch.setattr(pager._Look, "at", at)
    fast = Pager(path)
    agree(fast, path)
    in_place(path, lambda data: blank(data, 50))
    agree(fast, path, 0)
    assert fast.rebuilds == 1


@pytest.mark.parametrize("record", [0, 50, 99])
def test_an_edit_hidden_by_growth_is_noticed_up_to_the_size_that_is_read_again(path, record):
    fast = Pager(path)
    agree(fast, path)
    in_place(path, lambda data: blank(data, record) + line_of("1"))
    agree(fast, path)
    assert fast.rebuilds == 1


def test_in_a_larger_file_a_hidden_edit_is_noticed_within_one_turn(small, path):
    fast = Pager(path)
    agree(fast, path)
    in_place(path, lambda data: blank(data, 50) + line_of("1"))
    turns = 0
    while fast.rebuilds == 0:
        Journal(path, durable=False).append(1)
        fast.page(0, 1)
        turns += 1
        assert turns <= fast._index.segments + 2
    agree(fast, path)


@pytest.mark.parametrize("record", [0, 3, 50, 96, 99])
def test_a_page_over_an_edited_segment_is_never_served_from_the_index(small, path, record):
    fast = Pager(path)
    agree(fast, path)
    in_place(path, lambda data: blank(data, record) + line_of("1"))
    agree(fast, path, record)
    assert fast.rebuilds == 1


@pytest.mark.parametrize("at", [0, 1, 50, 99, 100])
def test_insertions_and_removals_are_noticed_anywhere(small, path, at):
    fast = Pager(path)
    agree(fast, path, 90)
    lines = path.read_bytes().splitlines(keepends=True)
    in_place(path, lambda _: b"".join([*lines[:at], line_of('"new"'), *lines[at:]]))
    agree(fast, path, 90)
    assert fast.rebuilds == (0 if at == 100 else 1)
    in_place(path, lambda _: b"".join(lines[:at] + lines[at + 1 :]) + lines_of(range(1000, 1005)))
    agree(fast, path, 90)
    assert fast.rebuilds == (1 if at == 100 else 2)


def test_a_shorter_and_a_replaced_file(small, path, tmp_path):
    fast = Pager(path)
    agree(fast, path)
    os.truncate(path, len(lines_of(range(30))) + 5)
    agree(fast, path)
    assert fast.rebuilds == 1
    (tmp_path / "new").write_bytes(lines_of(range(500, 700)))
    (tmp_path / "new").replace(path)
    agree(fast, path)
    assert fast.rebuilds == 2
    os.truncate(path, 0)
    agree(fast, path)
    path.unlink()
    with pytest.raises(NotFoundError):
        fast.page(0, 1)
    path.write_bytes(lines_of(range(7)))
    agree(fast, path)


def test_a_newline_taken_from_before_the_page(small, path):
    """The segment of the page itself is whole, but its first line now goes on from the one before."""
    fast = Pager(path)
    agree(fast, path)
    start = fast._index.starts[3]
    first = fast._index.before[3]

    def edit(data):
        assert data[start - 1 : start] == b"\n"
        return data[: start - 1] + b" " + data[start:] + line_of("1")

    in_place(path, edit)
    fast._index._next_check = 6  # it is not the edited segment's turn
    data = path.read_bytes()
    assert flat(fast.page(first, 5)) == page_model(data, first, 5)
    assert fast.rebuilds == 1
    with pytest.raises(CorruptError):  # two records in one line
        fast.page(first - 1, 5)


def test_damage_that_was_there_is_reported_and_damage_that_came_later_too(small, path):
    in_place(path, lambda data: data.replace(line_of("50"), line_of("50", checksum="0" * 64)))
    fast = Pager(path)
    for _ in range(2):
        with pytest.raises(CorruptError, match="record 50 "):
            fast.page(48, 5)
    assert fast.rebuilds == 0
    agree(fast, path, 0, 51)
    in_place(path, lambda data: data.replace(line_of("7"), line_of("7", checksum="0" * 64)))
    with pytest.raises(CorruptError, match="record 7 "):
        fast.page(5, 5)


def test_an_untouched_file_is_not_read_again(path, monkeypatch):
    monkeypatch.setattr(pager, "_TICK_NS", 0)
    fast = Pager(path)
    time.sleep(0.02)
    fast.page(0, 1)

    def never(*_):
        raise AssertionError("it was read again")

    monkeypatch.setattr(pager._Index, "check_some", never)
    agree(fast, path)


def test_touched_but_not_edited_is_indexed_again(path):
    fast = Pager(path)
    agree(fast, path)
    os.utime(path)
    agree(fast, path)
    assert fast.rebuilds == 1


def test_the_middle_of_an_append_is_no_edit(path, monkeypatch):
    """Times move before the size does: a look between the two waits for the size."""
    fast = Pager(path)
    agree(fast, path)
    os.utime(path)
    monkeypatch.setattr(pager.time, "sleep", lambda _: Journal(path, durable=False).append(1))
    assert fast.page(0, 1).available == 101
    agree(fast, path)
    assert fast.rebuilds == 0


def test_verify(small, path):
    fast = Pager(path)
    assert fast.verify()
    assert fast.page(0, 1).available == 100
    assert fast.verify()
    in_place(path, lambda data: blank(data, 50) + line_of("1"))
    assert not fast.verify()
    assert fast.verify()
    agree(fast, path)


def test_a_file_rewritten_without_end(small, path, monkeypatch):
    fast = Pager(path)
    fast.page(0, 1)
    monkeypatch.setattr(pager._Index, "check", lambda *_: (_ for _ in ()).throw(pager._StaleError))
    with pytest.raises(StorageIOError, match="rewritten again and again"):
        fast.page(0, 1)


def test_links_and_wrong_arguments(tmp_path, path):
    (tmp_path / "link").symlink_to(path)
    with pytest.raises(InvalidInputError, match="symbolic link"):
        Pager(tmp_path / "link").page(0, 1)
    with pytest.raises(InvalidInputError):
        Pager(path).page(-1, 1)


def test_a_pager_is_safe_to_share(path):
    from concurrent.futures import ThreadPoolExecutor

    fast = Pager(path)
    data = path.read_bytes()
    with ThreadPoolExecutor(8) as pool:
        pages = list(pool.map(lambda offset: (offset, flat(fast.page(offset, 3))), [n % 100 for n in range(400)]))
    assert all(found == page_model(data, offset, 3) for offset, found in pages)
