import hashlib
import json
import logging
import os
import stat
from pathlib import Path

import pytest
from agent_kit import files_in, spec
from cache_kit import check, spoil

from oarbank_cas import ConflictError, CorruptError, NotFoundError, StorageIOError, Store, UnavailableError
from oarbank_cas.cache.cache import MTIME_NS, Cache
from oarbank_cas.errors import CacheError

DATA = [b"one" * 1000, b"two" * 2000, b"", b"three"]
FILES = {"a.txt": b"alpha", "empty": b"", "deep/er/b.bin": bytes(1000), "deep/c": b"c"}


def digest(data):
    return hashlib.sha256(data).hexdigest()


READS = {
    "get_bytes": lambda store, d, tmp: store.get_bytes(d),
    "open_blob": lambda store, d, tmp: store.open_blob(d).readall(),
    "get_file": lambda store, d, tmp: (store.get_file(d, tmp / "out"), (tmp / "out").read_bytes())[1],
}


@pytest.mark.parametrize("how", READS)
@pytest.mark.parametrize("data", DATA)
def test_the_second_read_is_none_of_the_store(place, tmp_path, how, data):
    (name,) = place.put(data)
    with place.open() as store:
        assert READS[how](store, name, tmp_path) == data
        assert place.reads()[name] == 1
        place.lose_store()
        for again in READS.values():
            assert again(store, name, tmp_path) == data
    with place.open() as store:
        assert READS[how](store, name, tmp_path) == data
    assert place.reads()[name] == 1
    assert place.cached() == {name: data}
    check(place.cache)


def test_stage_and_fetch_come_through_it(place, tmp_path):
    dataset = place.dataset(FILES)
    for folder in ("one", "two", "three"):
        (tmp_path / folder).mkdir()
    with place.open() as store:
        store.stage(spec({"a": (dataset, "in")}), tmp_path / "one")
        place.lose_store()
        store.stage(spec({"a": (dataset, "in")}), tmp_path / "two")
        store.fetch([(file.path, file) for file in store.files_of(dataset)], tmp_path / "three")
    assert files_in(tmp_path / "one/in") == files_in(tmp_path / "two/in") == files_in(tmp_path / "three") == FILES
    assert set(place.reads().values()) == {1}
    assert os.access(tmp_path / "three/a.txt", os.W_OK)
    assert stat.S_IMODE(os.stat(tmp_path / "three/a.txt").st_mode) & 0o200
    check(place.cache)


def test_what_decides_by_the_store_does_not_ask_the_cache(place):
    (name,) = place.put(b"data")
    with place.open() as store:
        store.get_bytes(name)
        place.lose_store()
        assert not store.has(name)
        assert store.stat(name) is None
        assert store.missing([name]) == [name]
        assert store.blobs.size_for_readers(name) is None
        with pytest.raises(NotFoundError):
            store.blobs.get_bytes(name)


def test_errors_of_the_store_are_the_callers(place, tmp_path):
    (name,) = place.put(b"data")
    with place.open() as store:
        with pytest.raises(NotFoundError):
            store.get_bytes(digest(b"none"))
        spoil(Path(place.url, "blobs", name[:2], name))
        with pytest.raises(CorruptError):
            store.get_bytes(name)
        with pytest.raises(NotFoundError):
            store.get_bytes(name)
        assert not store.reads.resting
        assert place.put(b"data") == [name]
        assert store.get_bytes(name) == b"data"
    assert place.cached() == {name: b"data"}
    check(place.cache)


def test_what_is_larger_than_the_budget_passes_it_by(place, workdir):
    small, large = b"s" * 100, b"l" * 5000
    dataset = place.dataset({"small": small, "large": large})
    with place.open(budget=4000) as store:
        store.stage(spec({"a": (dataset, "in")}), workdir)
        assert files_in(workdir / "in") == {"small": small, "large": large}
        assert store.get_bytes(digest(large)) == large
        assert not store.reads.resting
    assert digest(large) not in place.cached()
    assert digest(small) in place.cached()
    check(place.cache, 4000)


def test_what_was_used_longest_ago_goes_first(place):
    names = place.put(*[b"%d" % number * 1000 for number in range(6)])
    with place.open(budget=3500) as store:
        for name in names[:3]:
            store.get_bytes(name)
        store.get_bytes(names[0])
        store.get_bytes(names[3])  # names[1] goes
        assert set(place.cached()) == {names[0], names[2], names[3]}
        store.get_bytes(names[2])
        store.get_bytes(names[4])
        assert set(place.cached()) == {names[2], names[3], names[4]}
    check(place.cache, 3500)


def test_nothing_that_is_held_goes(place):
    names = place.put(*[b"%d" % number * 1000 for number in range(6)])
    with place.open(budget=3500) as store:
        with store.cache.holding(names[:3]) as rows:
            assert rows == {}
            for name in names:
                assert store.get_bytes(name)  # those for which there is no room come straight
            assert set(place.cached()) == set(names[:3])
            check(place.cache, 3500, quiet=False)
        assert store.get_bytes(names[4])
        assert names[4] in place.cached()
    check(place.cache, 3500)


def test_what_a_mount_is_linked_to_does_not_go(place, workdir, tmp_path):
    dataset = place.dataset({"a": b"a" * 1000, "b": b"b" * 1000})
    others = place.put(*[b"%d" % number * 1000 for number in range(6)])
    with place.open(budget=4000) as store:
        store.stage(spec({"a": (dataset, "in")}), workdir, placement="hardlink")
        assert os.stat(workdir / "in/a").st_nlink == 2
        for name in others:
            assert store.get_bytes(name)
        assert {digest(b"a" * 1000), digest(b"b" * 1000)} <= set(place.cached())
        check(place.cache, 4000, quiet=False)
        (workdir / "in/a").unlink()
        for name in others:
            store.get_bytes(name)
        assert digest(b"a" * 1000) not in place.cached()
        assert digest(b"b" * 1000) in place.cached()
    check(place.cache, 4000)


def test_placed_files(place, tmp_path):
    dataset = place.dataset(FILES)
    with place.open() as store:
        for placement in ("auto", "copy", "reflink", "hardlink"):
            folder = tmp_path / placement
            folder.mkdir()
            store.stage(spec({"a": (dataset, "in")}), folder, placement=placement)
            assert files_in(folder / "in") == FILES
            for path, data in FILES.items():
                st = os.lstat(folder / "in" / path)
                assert stat.S_ISREG(st.st_mode)
                assert stat.S_IMODE(st.st_mode) & 0o333 == 0
                links = 2 if placement == "hardlink" and data else 1
                assert st.st_nlink == links, path
    check(place.cache)


def test_it_looks_like_a_store_and_is_none(place, tmp_path):
    (name,) = place.put(b"data")
    with place.open() as store:
        store.get_bytes(name)
    blob = Path(place.cache, "blobs", name[:2], name)
    assert blob.read_bytes() == b"data"
    assert os.stat(blob).st_mtime_ns == MTIME_NS
    assert stat.S_IMODE(os.stat(blob).st_mode) & 0o222 == 0
    with pytest.raises(UnavailableError, match="no store"):
        Store.open(place.cache)
    with pytest.raises(ConflictError, match="is a local cache"):
        Store.init(place.cache)
    blob.unlink()
    with pytest.raises(ConflictError, match="is a local cache"):
        Store.init(place.cache)


def newer(place):
    os.mkdir(place.cache)
    Path(place.cache, "oarbank-cas-cache.json").write_text(json.dumps({"format": 2, "kind": "cache"}))


def damaged(place):
    os.mkdir(place.cache)
    Path(place.cache, "oarbank-cas-cache.json").write_text("{")


def foreign(place):
    os.mkdir(place.cache)
    Path(place.cache, "thesis.tex").write_text("precious")


REFUSED = {
    "a newer one": (newer, "format 2.*newer"),
    "a damaged one": (damaged, "remove"),
    "people's files": (foreign, "thesis.tex.*empty directory"),
    "a store": (lambda place: Store.init(place.cache), "is a store"),
    "a file": (lambda place: Path(place.cache).write_text("precious"), "File exists|Not a directory"),
    "a dangling link": (lambda place: os.symlink("/nowhere/at/all", place.cache), "File exists|No such"),
    "a folder that is a file": (
        lambda place: (
            Cache(place.cache).rows([]),
            os.rmdir(f"{place.cache}/blobs"),
            Path(place.cache, "blobs").touch(),
        ),
        "Not a directory",
    ),
    "an index that is a folder": (
        lambda place: (os.mkdir(place.cache), os.mkdir(f"{place.cache}/index")),
        "index",
    ),
}


def what_stands(place):
    found = [file.relative_to(place.cache) for file in Path(place.cache).rglob("*")]
    return sorted(str(path) for path in found if not path.name.startswith("index"))


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_no_cache_is_left_alone_and_passed_by(place, workdir, caplog, what):
    make, said = REFUSED[what]
    dataset = place.dataset(FILES)
    make(place)
    before = what_stands(place)
    with place.open() as store:
        with caplog.at_level(logging.WARNING, "oarbank_cas.cache"):
            (mounted,) = store.stage(spec({"a": (dataset, "in")}), workdir, placement="hardlink")
            assert store.get_bytes(digest(b"c")) == b"c"
            store.get_file(digest(b"alpha"), workdir / "out")
            assert mounted.release() == []
        with pytest.raises(CacheError, match=said):
            store.cache.fill(digest(b"c"), 1, store.reads.fetch)
    assert files_in(workdir / "in") == FILES
    (warned,) = [record for record in caplog.records if record.name == "oarbank_cas.cache"]
    assert "straight to the store" in warned.getMessage()
    if what != "an index that is a folder":
        assert what_stands(place) == before


@pytest.mark.parametrize("harm", ["emptied", "cut", "rubbish", "removed", "no tables"])
def test_a_damaged_index_is_made_anew(place, harm):
    names = place.put(*[b"%d" % number * 1000 for number in range(6)])
    with place.open() as store:
        for name in names:
            store.get_bytes(name)
        index = Path(place.cache, "index")

        def do_harm():
            for side in ("-wal", "-shm"):
                Path(f"{index}{side}").unlink(missing_ok=True)
            if harm == "emptied":
                index.write_bytes(b"")
            elif harm == "cut":
                os.truncate(index, 5000)
            elif harm == "rubbish":
                index.write_bytes(os.urandom(8192))
            elif harm == "removed":
                index.unlink()
            else:
                import sqlite3

                connection = sqlite3.connect(index)
                connection.executescript("DROP TABLE blobs; DROP TABLE holds")
                connection.close()

        store.cache.close()
        do_harm()
        reads = place.reads()
        for _ in range(3):
            for name in names:
                assert store.get_bytes(name)
        if harm != "no tables":  # there the rows are gone, and it is noticed at once
            assert place.reads() == reads, "what was there is hashed, not brought again"
        assert not store.reads.resting
    check(place.cache)


def test_the_bytes_of_a_blob_that_is_spoilt_are_never_served(place, tmp_path):
    data = b"precious" * 1000
    (name,) = place.put(data)
    blob = Path(place.cache, "blobs", name[:2], name)
    with place.open() as store:
        for number, read in enumerate(READS.values()):
            for harm in (
                lambda: spoil(blob),
                lambda: spoil(blob, times=False),
                lambda: spoil(blob, data + b"more"),
                lambda: spoil(blob, b""),
                lambda: (blob.unlink(), blob.write_bytes(data[:-1] + b"!")),
                lambda: (blob.unlink(), blob.symlink_to(place.log)),
                lambda: (blob.unlink(), os.mkfifo(blob)),
                lambda: blob.unlink(),
            ):
                assert read(store, name, tmp_path) == data
                harm()
                assert read(store, name, tmp_path) == data, number
                assert blob.read_bytes() == data
        assert not store.reads.resting
    check(place.cache)


def test_a_blob_that_only_looks_otherwise_is_hashed_and_kept(place):
    data = b"precious" * 1000
    (name,) = place.put(data)
    blob = Path(place.cache, "blobs", name[:2], name)
    with place.open() as store:
        store.get_bytes(name)
        for change in (
            lambda: os.utime(blob),
            lambda: os.chmod(blob, 0o666),
            lambda: (os.link(blob, f"{blob}.x"), os.unlink(f"{blob}.x")),
            lambda: (os.rename(blob, f"{blob}.x"), blob.write_bytes(data), os.unlink(f"{blob}.x")),
        ):
            change()
            assert store.get_bytes(name) == data
            assert stat.S_IMODE(os.stat(blob).st_mode) == 0o444
            assert os.stat(blob).st_mtime_ns == MTIME_NS
    assert place.reads()[name] == 1
    check(place.cache)


def test_a_blob_that_is_written_while_it_is_read(place):
    data = os.urandom(3 * 2**20)
    (name,) = place.put(data)
    blob = Path(place.cache, "blobs", name[:2], name)
    with place.open() as store:
        store.get_bytes(name)
        with store.open_blob(name) as reader:
            reader.read(10)
            spoil(blob)
            spoil(blob, data[:-1] + bytes([data[-1] ^ 1]))
            with pytest.raises(StorageIOError, match="run this again"):
                reader.readall()
        assert store.get_bytes(name) == data
    check(place.cache)


def test_it_is_hashed_once_after_the_system_was_started(place, monkeypatch):
    from oarbank_cas.cache import cache as module
    from oarbank_cas.cache import index

    (name,) = place.put(b"data" * 1000)
    hashed = []
    real = module.hash_file
    monkeypatch.setattr(module, "hash_file", lambda fd: (hashed.append(1), real(fd))[1])
    with place.open() as store:
        store.get_bytes(name)
        store.get_bytes(name)
        assert hashed == []
        monkeypatch.setattr(index, "_boot", lambda: "another")
        store.get_bytes(name)
        store.get_bytes(name)
        assert hashed == [1]
        # What a power cut left in the place of bytes that were never written.
        blob = Path(place.cache, "blobs", name[:2], name)
        spoil(blob, bytes(4000))
        monkeypatch.setattr(index, "_boot", lambda: "a third")
        assert store.get_bytes(name) == b"data" * 1000
    check(place.cache)


def test_a_manifest_that_lies_about_a_size_that_is_at_hand(place, workdir):
    from agent_kit import canonical

    with place.open() as store:
        (name,) = place.put(b"data")
        store.get_bytes(name)
        manifest = canonical({"files": [{"digest": name, "path": "x", "size": 5}]})
        (listed,) = place.put(manifest)
        with pytest.raises(CorruptError, match="5 bytes"):
            store.stage(spec({"a": (f"art:{listed}", "in")}), workdir)
    assert os.listdir(workdir) == []
