"""The bytes of files: slices, ranges, open files; what is verified, and what is said of damage."""

import io
import json
import os
import random
from pathlib import Path

import fsspec
import hypothesis.strategies as st
import pytest
from agent_kit import canonical, digest, raw_dataset
from filesystem_kit import BLOCK, CONTENTS, KEY, LARGE
from hypothesis import HealthCheck, given, settings

from oarbank_cas import CorruptError, Store
from oarbank_cas.filesystem.file import StoreFile

BASE = f"result/{KEY}/out"
BIG = f"{BASE}/deep/b.bin"
SIZE = len(LARGE)
EDGES = [0, 1, 5, BLOCK - 1, BLOCK, BLOCK + 1, SIZE - 1, SIZE, SIZE + 1, 10 * SIZE]
OFFSETS = st.none() | st.sampled_from(EDGES) | st.sampled_from([-edge for edge in EDGES]) | st.integers(-SIZE, SIZE)
same_store = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=60)


@same_store
@given(st.sampled_from(sorted(CONTENTS)), OFFSETS, OFFSETS)
def test_ranges_are_slices(fs, path, start, end):
    assert fs.cat_file(f"result/{KEY}/{path}", start, end) == CONTENTS[path][start:end]
    assert fs.read_bytes(f"blob/{digest(CONTENTS[path])}", start, end) == CONTENTS[path][start:end]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # fsspec's mmap leaves a file open
@same_store
@given(
    st.sampled_from(["readahead", "none", "bytes", "blockcache", "mmap", "all", "first", "background"]),
    st.sampled_from(sorted(CONTENTS)),
    st.lists(
        st.tuples(st.just("read"), st.integers(-1, SIZE + 1))
        | st.tuples(st.just("seek"), st.sampled_from(EDGES) | st.integers(0, SIZE))
        | st.tuples(st.just("line"), st.none()),
        max_size=12,
    ),
)
def test_an_open_file_is_like_any_other(fs, cache_type, path, steps):
    model = io.BytesIO(CONTENTS[path])
    with fs.open(f"result/{KEY}/{path}", block_size=BLOCK, cache_type=cache_type) as file:
        assert (file.size, file.readable(), file.seekable(), file.writable()) == (
            len(CONTENTS[path]),
            True,
            True,
            False,
        )
        for step, number in steps:
            if step == "seek":
                file.seek(number)
                model.seek(number)
            elif step == "line":
                assert file.readline() == model.readline()
            elif model.tell() <= len(CONTENTS[path]):
                assert file.read(number) == model.read(number)
            assert file.tell() == model.tell()


def test_many_ranges(fs):
    rng = random.Random(3)
    paths, starts, ends = [], [], []
    for _ in range(50):
        path = rng.choice(sorted(CONTENTS))
        paths.append(f"result/{KEY}/{path}")
        starts.append(rng.choice([None, 0, 3, -2, SIZE]))
        ends.append(rng.choice([None, 2, 9, -1, SIZE * 2]))
    wanted = [
        CONTENTS[path.removeprefix(f"result/{KEY}/")][start:end]
        for path, start, end in zip(paths, starts, ends, strict=True)
    ]
    assert fs.cat_ranges(paths, starts, ends) == wanted
    assert fs.cat_ranges([BIG, BIG], 5, 9, max_gap=100) == [LARGE[5:9]] * 2
    assert fs.cat_ranges([], [], []) == []
    bad = fs.cat_ranges([BIG, f"{BASE}/nothing", BASE], [0, 0, 0], [1, 1, 1])
    assert bad[0] == LARGE[:1]
    assert isinstance(bad[1], FileNotFoundError)
    assert isinstance(bad[2], IsADirectoryError)
    with pytest.raises(FileNotFoundError):
        fs.cat_ranges([f"{BASE}/nothing"], 0, 1, on_error="raise")
    with pytest.raises(TypeError):
        fs.cat_ranges(BIG, 0, 1)
    with pytest.raises(ValueError, match="one length"):
        fs.cat_ranges([BIG], [0, 1], [1, 2])


def test_one_lookup_serves_many_ranges(fs, monkeypatch):
    asked = []
    store = fs.store
    monkeypatch.setattr(store, "lookup", lambda *args, **more: asked.append(args) or Store.lookup(store, *args, **more))
    fs.cat_ranges([f"result/{KEY}/{path}" for path in CONTENTS] * 3, 0, 1)
    fs.find(f"result/{KEY}")
    assert len(asked) == 2


def test_many_files_at_once(fs, tmp_path):
    assert fs.cat([f"{BASE}/a.txt", f"{BASE}/empty"]) == {f"{BASE}/a.txt": b"alpha", f"{BASE}/empty": b""}
    fs.get(f"result/{KEY}", str(tmp_path / "got"), recursive=True)
    for path, data in CONTENTS.items():
        assert (tmp_path / "got" / path).read_bytes() == data
    assert fs.read_text(f"result/{KEY}/log/run.log") == "one\ntwo\nthree"
    assert fs.head(BIG, 7) == LARGE[:7]
    assert fs.tail(BIG, 7) == LARGE[-7:]
    with open(tmp_path / "handle", "wb") as handle:
        fs.get_file(BIG, handle)
    assert (tmp_path / "handle").read_bytes() == LARGE
    counted = fsspec.callbacks.Callback()
    fs.get_file(BIG, tmp_path / "deep" / "file", callback=counted)
    assert (counted.size, counted.value) == (SIZE, SIZE)
    assert (tmp_path / "deep" / "file").read_bytes() == LARGE
    fs.get_file(f"{BASE}/deep", tmp_path / "folder")
    assert os.listdir(tmp_path / "folder") == []


# -- damage

WRONG = b"x" + LARGE[1:]


def in_pieces(file):
    while file.read(BLOCK // 3):
        pass


def backwards(file):
    file.seek(-10, 2)
    file.read(5)


def backwards_then_forwards(file):
    backwards(file)
    file.seek(0)
    in_pieces(file)


WHOLE_READS = {
    "cat": lambda fs, path: fs.cat_file(path),
    "slice": lambda fs, path: fs.cat_file(path, 0, SIZE + 5),
    "ranges": lambda fs, path: fs.cat_ranges([path], None, None, on_error="raise"),
    "get": lambda fs, path: fs.get_file(path, "got"),
    "stream": lambda fs, path: fs.get_file(path, io.BytesIO()),
    "read": lambda fs, path: fs.open(path, block_size=BLOCK).read(),
    "pieces": lambda fs, path: in_pieces(fs.open(path, block_size=BLOCK)),
    "footer": lambda fs, path: backwards_then_forwards(fs.open(path, block_size=BLOCK)),
    "uncached": lambda fs, path: in_pieces(fs.open(path, block_size=BLOCK, cache_type="none")),
    "blocks": lambda fs, path: in_pieces(fs.open(path, block_size=BLOCK, cache_type="blockcache")),
    "small": lambda fs, path: backwards(fs.open(path)),  # no more bytes than a block: read whole at once
    "text": lambda fs, path: fs.read_text(path, encoding="latin-1"),
}


@pytest.mark.parametrize("how", WHOLE_READS)
@pytest.mark.parametrize("wrong", [WRONG, LARGE[:-1] + b"x"], ids=["first", "last"])
def test_wrong_bytes_read_whole_are_told_and_set_aside(made, fs, how, wrong):
    made.spoil(LARGE, wrong)
    with pytest.raises(CorruptError) as caught:
        WHOLE_READS[how](fs, BIG)
    assert (caught.value.expected, caught.value.actual) == (digest(LARGE), digest(wrong))
    assert digest(LARGE) in str(caught.value)
    assert digest(wrong) in str(caught.value)
    assert not os.path.exists("got")
    assert not made.blob(LARGE).exists()
    (aside,) = os.listdir(f"{made.url}/damaged")
    assert aside.startswith(digest(LARGE))
    for call in (fs.info, fs.open, fs.cat_file):
        with pytest.raises(FileNotFoundError, match=r"miss \(incomplete\)"):
            call(BIG)


@pytest.mark.parametrize("how", WHOLE_READS)
@pytest.mark.parametrize("wrong", [LARGE[:-1], LARGE + b"x", b""], ids=["short", "long", "empty"])
def test_another_size_is_told(made, fs, how, wrong):
    made.spoil(LARGE, wrong)
    with pytest.raises(CorruptError, match=r"run `oarbank-cas verify`|at most|holds bytes"):
        WHOLE_READS[how](fs, f"dataset/{made.datasets['out']}/deep/b.bin")
    assert not os.path.exists("got")
    with pytest.raises(FileNotFoundError, match=r"miss \(incomplete\)"):
        WHOLE_READS[how](fs, BIG)


def test_a_part_is_not_verified_unless_it_comes_from_a_cache(made, tmp_path):
    straight = fsspec.filesystem("oarbank-cas", store=made.url)
    cached = fsspec.filesystem("oarbank-cas", store=made.url, cache=str(tmp_path / "cache"))
    assert cached.cat_file(BIG, 5, 9) == LARGE[5:9]  # the whole of it is in the cache now
    made.spoil(LARGE, WRONG)
    assert straight.cat_file(BIG, 0, 4) == WRONG[:4]  # as stored: the promise of a range ends here
    assert cached.cat_file(BIG, 0, 4) == LARGE[:4]
    with cached.open(BIG, block_size=BLOCK, cache_type="none") as file:
        assert file.read(9) == LARGE[:9]
    assert cached.cat_file(BIG) == LARGE
    other = fsspec.filesystem("oarbank-cas", store=made.url, cache=str(tmp_path / "other"))
    with pytest.raises(CorruptError) as caught:
        other.cat_file(BIG, 100, 200)  # a range through a cache reads, and verifies, the whole
    assert caught.value.actual == digest(WRONG)
    assert not made.blob(LARGE).exists()


@pytest.mark.parametrize("when", ["before it is read", "while it is read"])
def test_a_cached_copy_that_is_written_to_hands_nothing_out(made, tmp_path, monkeypatch, when):
    cached = fsspec.filesystem("oarbank-cas", store=made.url, cache=str(tmp_path / "cache"))
    assert cached.cat_file(BIG, 5, 9) == LARGE[5:9]
    (copy,) = Path(tmp_path, "cache", "blobs").glob(f"*/{digest(LARGE)}")
    where, name = {"before it is read": (cached.store.reads, "_open_cached"), "while it is read": (os, "fdopen")}[when]
    real = getattr(where, name)

    def opening(*args, **more):
        opened = real(*args, **more)
        if name == "_open_cached" or os.path.samestat(os.fstat(opened.fileno()), copy.stat()):
            os.chmod(copy, 0o600)
            copy.write_bytes(WRONG)  # in place, after it was found right
        return opened

    monkeypatch.setattr(where, name, opening)
    assert cached.cat_file(BIG, 0, 4) == LARGE[:4]
    assert copy.read_bytes() == WRONG


def test_ranges_come_out_of_the_cache_alone(made, tmp_path):
    cached = fsspec.filesystem("oarbank-cas", store=made.url, cache=str(tmp_path / "cache"))
    with cached.open(BIG, block_size=BLOCK) as file:
        assert file.read(3) == LARGE[:3]
        os.unlink(made.blob(LARGE))
        file.seek(2 * BLOCK)
        assert file.read() == LARGE[2 * BLOCK :]


def test_a_blob_that_has_no_room_in_the_cache_is_read_past_it(made, tmp_path):
    cached = fsspec.filesystem("oarbank-cas", store=made.url, cache=str(tmp_path / "cache"), cache_bytes=BLOCK)
    assert cached.cat_file(BIG, 5, 9) == LARGE[5:9]
    assert cached.cat_file(BIG) == LARGE


def test_a_range_past_the_end_of_a_short_blob_is_told(made, fs):
    with fs.open(BIG, block_size=BLOCK, cache_type="none") as file:
        made.spoil(LARGE, LARGE[:BLOCK])
        file.seek(BLOCK - 5)
        with pytest.raises(CorruptError) as caught:
            file.read(10)
    assert (caught.value.expected, caught.value.actual) == (digest(LARGE), digest(LARGE[:BLOCK]))
    assert not made.blob(LARGE).exists()


def test_a_blob_that_goes_while_its_file_is_open(made, fs):
    with fs.open(BIG, block_size=BLOCK, cache_type="none") as file:
        os.unlink(made.blob(LARGE))
        with pytest.raises(FileNotFoundError, match="is not in the store"):
            file.read(10)


def test_a_condemned_blob_is_still_read(made, fs):
    fossils = f"{made.url}/fossils/{digest(LARGE)[:2]}"
    os.makedirs(fossils)
    os.rename(made.blob(LARGE), f"{fossils}/{digest(LARGE)}.{'0' * 16}")
    assert fs.cat_file(BIG, 7, 11) == LARGE[7:11]
    assert fs.cat_file(BIG) == LARGE


@pytest.mark.parametrize("size", [0, 1, SIZE - 1, SIZE + 1, 2**53])
def test_a_manifest_that_lies_about_a_size_hands_nothing_out_and_costs_no_blob(made, fs, size):
    with Store.open(made.url) as store:
        listed = [{"digest": digest(LARGE), "path": "b", "size": size}]
        dataset = raw_dataset(store, canonical({"files": listed}))
    for call in (fs.info, fs.open, fs.cat_file, lambda path: fs.get_file(path, "got")):
        with pytest.raises(CorruptError, match=f"{SIZE} bytes|has {SIZE}"):
            call(f"dataset/{dataset}/b")
    assert not os.path.exists("got")
    assert made.blob(LARGE).read_bytes() == LARGE


def test_an_empty_file_whose_blob_is_not(made, fs):
    made.spoil(b"", b"full")
    for call in (fs.open, fs.cat_file, fs.info):
        with pytest.raises(CorruptError):
            call(f"dataset/{made.datasets['out']}/empty")


def test_nothing_at_all_is_no_file_that_had_bytes(made, fs):
    """The manifest and what is left of the blob agree that there is nothing: only the digest knows better."""
    with Store.open(made.url) as store:
        dataset = raw_dataset(store, canonical({"files": [{"digest": digest(LARGE), "path": "b", "size": 0}]}))
    made.spoil(LARGE, b"")
    with pytest.raises(CorruptError):
        fs.open(f"dataset/{dataset}/b")


def test_a_blob_that_reads_wrong_only_once_is_kept(made, fs, monkeypatch):
    """A fault on the way, not in the store."""
    real = type(fs.store.blobs).read_range
    monkeypatch.setattr(type(fs.store.blobs), "read_range", lambda self, *args: b"?" * len(real(self, *args)))
    with pytest.raises(Exception, match="read wrong once and right the next time"):
        in_pieces(fs.open(BIG, block_size=BLOCK))
    assert made.blob(LARGE).exists()


def test_an_open_file_keeps_its_bytes_when_its_result_becomes_another(made, fs):
    with fs.open(BIG, block_size=BLOCK) as file:
        file.read(10)
        made.invalidate(KEY)
        made.publish(KEY, {"out/deep/b.bin": LARGE[::-1]})
        assert file.read() == LARGE[10:]
        assert isinstance(file, StoreFile)
    assert fs.cat_file(BIG) == LARGE[::-1]


def test_lines_of_text(fs):
    with fs.open(f"result/{KEY}/log/run.log", "r") as file:
        assert list(file) == ["one\n", "two\n", "three"]
    with fsspec.open(f"oarbank-cas://result/{KEY}/log/run.log", "rt", store=fs.store.backend.where) as file:
        assert json.dumps(file.readlines()) == '["one\\n", "two\\n", "three"]'
