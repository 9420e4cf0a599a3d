import hashlib
import os
import shutil
import stat
from pathlib import Path

import pytest
from agent_kit import files_in, key, memory_store, spec
from cache_kit import check, spoil

from oarbank_cas import InvalidInputError
from oarbank_cas.cache import carrying

FILES = {"a.txt": b"alpha", "empty": b"", "deep/er/b.bin": bytes(1000), "deep/c": b"c"}
WAYS = ("auto", "copy", "hardlink")


def digest(data):
    return hashlib.sha256(data).hexdigest()


@pytest.fixture
def document(place):
    return spec({"reads": (place.dataset(FILES), "in/reads")})


def told(changed):
    return {each.path: each.what for each in changed}


@pytest.mark.parametrize("way", WAYS)
def test_a_job_that_changed_nothing(place, workdir, document, way):
    with place.open() as store:
        (mounted,) = store.stage(document, workdir, placement=way)
        assert store.check_mounts(workdir) == []
        assert store.check_mounts(workdir, document) == []
        assert mounted.release() == []
        with pytest.raises(InvalidInputError, match="name the spec"):
            store.check_mounts(workdir)
        assert store.check_mounts(workdir, document) == []
    check(place.cache)


def test_what_looks_as_it_was_is_not_read(place, workdir, document, monkeypatch):
    with place.open() as store:
        store.stage(document, workdir, placement="hardlink")
        monkeypatch.setattr("hashlib.file_digest", lambda *_: pytest.fail("read"))
        assert store.check_mounts(workdir) == []


def test_a_mere_look_otherwise_is_no_change(place, workdir, document):
    with place.open() as store:
        store.stage(document, workdir, placement="hardlink")
        os.chmod(workdir / "in/reads/a.txt", 0o644)
        os.utime(workdir / "in/reads/deep/c")
        shutil.copy(workdir / "in/reads/deep/er/b.bin", workdir / "copy")
        os.replace(workdir / "copy", workdir / "in/reads/deep/er/b.bin")
        assert store.check_mounts(workdir) == []
    check(place.cache)


def replace(path):
    path.unlink()
    path.write_bytes(b"mine")


CHANGES = {
    "written in place": (spoil, "changed"),
    "written in place, times not set back": (lambda path: spoil(path, times=False), "changed"),
    "made longer": (lambda path: spoil(path, path.read_bytes() + b"!"), "changed"),
    "emptied": (lambda path: spoil(path, b""), "changed"),
    "another put there": (replace, "changed"),
    "removed": (lambda path: path.unlink(), "missing"),
    "its folder removed": (lambda path: shutil.rmtree(path.parent), "missing"),
    "its folder a link": (
        lambda path: (path.parent.rename(path.parents[2] / "x"), path.parent.symlink_to(path.parents[2] / "x")),
        "missing",
    ),
    "a link": (lambda path: (path.unlink(), path.symlink_to("/etc/passwd")), "replaced"),
    "a pipe": (lambda path: (path.unlink(), os.mkfifo(path)), "replaced"),
    "a folder": (lambda path: (path.unlink(), path.mkdir()), "replaced"),
    "written in place and renamed": (lambda path: (spoil(path), path.rename(path.parent / "z")), "missing"),
}


@pytest.mark.parametrize("given", ["record", "spec", "release", "no cache"])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("change", CHANGES)
def test_a_change_is_found_and_seen_by_nobody_else(place, tmp_path, document, way, change, given):
    act, what = CHANGES[change]
    one, two = tmp_path / "one", tmp_path / "two"
    for folder in (one, two):
        folder.mkdir()
    with place.open() as store:
        (mounted,) = store.stage(document, one, placement=way)
        act(one / "in/reads/deep/c")
        if given == "no cache":
            shutil.rmtree(place.cache)
        found = {
            "record": lambda: store.check_mounts(one),
            "spec": lambda: store.check_mounts(one, document),
            "release": mounted.release,
            "no cache": lambda: store.check_mounts(one, document),
        }[given]()
        expected = {"in/reads/deep/c": what}
        if change.startswith("its folder"):
            expected["in/reads/deep/er/b.bin"] = what
        assert told(found) == expected
        (said,) = [each for each in found if each.path == "in/reads/deep/c"]
        assert (said.name, said.digest, said.job_key, said.workdir) == ("reads", digest(b"c"), key(), str(one))
        in_place = change in ("made longer", "emptied") or change.startswith("written in place")
        assert said.spoilt_cache == (in_place and way == "hardlink" and given != "no cache")
        check(place.cache, quiet=False) if given != "no cache" else None
        store.stage(document, two, placement=way)
        assert files_in(two / "in/reads") == FILES
    check(place.cache)


@pytest.mark.parametrize("checked", [True, False])
def test_a_spoilt_blob_is_dropped_and_brought_again(place, tmp_path, document, checked):
    folders = [tmp_path / str(number) for number in range(3)]
    for folder in folders:
        folder.mkdir()
    with place.open() as store:
        store.stage(document, folders[0], placement="hardlink")
        store.stage(document, folders[1], placement="hardlink")
        assert place.reads()[digest(b"alpha")] == 1
        spoil(folders[0] / "in/reads/a.txt")
        if checked:
            (said,) = store.check_mounts(folders[0])
            assert said.spoilt_cache
            assert said.also_mounted == (str(folders[1] / "in/reads/a.txt"),)
            assert digest(b"alpha") not in place.cached()
            (other,) = store.check_mounts(folders[1])
            assert not other.spoilt_cache
        store.stage(document, folders[2], placement="hardlink")
        assert files_in(folders[2] / "in/reads") == FILES
        assert store.get_bytes(digest(b"alpha")) == b"alpha"
        assert place.reads()[digest(b"alpha")] == 2
        assert place.reads()[digest(b"c")] == 1
    check(place.cache)


def test_the_work_directory_of_another_job_at_the_same_path(place, workdir, document):
    with place.open() as store:
        store.stage(document, workdir)
        shutil.rmtree(workdir)
        workdir.mkdir()
        with pytest.raises(InvalidInputError, match="name the spec"):
            store.check_mounts(workdir)
        (mounted,) = store.stage(document, workdir)
        assert mounted.placed
        spoil(workdir / "in/reads/a.txt")
        assert told(mounted.release()) == {"in/reads/a.txt": "changed"}


def test_records_of_mounts_that_are_gone_do_not_pile_up(place, tmp_path, document):
    with place.open() as store:
        for number in range(50):
            folder = tmp_path / f"job{number}"
            folder.mkdir()
            store.stage(document, folder)
            shutil.rmtree(folder)
        assert len(os.listdir(f"{place.cache}/mounts")) <= 2


def test_without_a_cache_every_file_is_hashed(tmp_path, workdir):
    from agent_kit import dataset_of

    store = memory_store()
    document = spec({"reads": (dataset_of(store, FILES), "in")})
    (mounted,) = store.stage(document, workdir, placement="hardlink")
    assert store.check_mounts(workdir, document) == []
    spoil(workdir / "in/a.txt")
    assert told(store.check_mounts(workdir, document)) == told(mounted.release()) == {"in/a.txt": "changed"}
    with pytest.raises(InvalidInputError, match="name the spec"):
        store.check_mounts(workdir)


def test_a_work_directory_that_a_job_took_apart(place, workdir, document):
    with place.open() as store:
        (mounted,) = store.stage(document, workdir, placement="hardlink")
        shutil.rmtree(workdir / "in")
        (workdir / "in").symlink_to("/")
        assert set(told(mounted.release()).values()) == {"missing"}


# -- what cannot be linked is copied


@pytest.mark.parametrize("code", ["EMLINK", "EXDEV", "EPERM", "EACCES", "ENOTSUP"])
def test_what_cannot_be_linked_is_copied(place, workdir, document, monkeypatch, code):
    import errno

    def refuse(*args, **options):
        raise OSError(getattr(errno, code), "refused")

    with place.open() as store:
        monkeypatch.setattr(carrying.os, "link", refuse)
        store.stage(document, workdir, placement="hardlink")
    monkeypatch.undo()
    assert files_in(workdir / "in/reads") == FILES
    assert {os.stat(workdir / "in/reads" / path).st_nlink for path in FILES} == {1}


@pytest.mark.skipif(not os.path.isdir("/dev/shm"), reason="needs a second file system")
@pytest.mark.parametrize("way", WAYS)
def test_a_cache_on_another_file_system(place, tmp_path, document, way):
    cache = f"/dev/shm/oarbank-cas-test-{os.getpid()}"
    assert os.stat("/dev/shm").st_dev != os.stat(tmp_path).st_dev
    try:
        with place.open(cache=cache) as store:
            for folder in ("one", "two"):
                (tmp_path / folder).mkdir()
                store.stage(document, tmp_path / folder, placement=way)
                assert files_in(tmp_path / folder / "in/reads") == FILES
            assert {os.stat(tmp_path / "one/in/reads" / path).st_nlink for path in FILES} == {1}
            spoil(tmp_path / "one/in/reads/a.txt")
            assert told(store.check_mounts(tmp_path / "one")) == {"in/reads/a.txt": "changed"}
            assert store.get_bytes(digest(b"alpha")) == b"alpha"
        check(cache)
    finally:
        shutil.rmtree(cache)


@pytest.mark.parametrize("moment", ["before the link", "after the link"])
def test_a_blob_that_is_written_to_while_it_is_linked(place, tmp_path, document, monkeypatch, moment):
    """What is linked is what was looked at: a link to anything else is taken back."""
    one, two = tmp_path / "one", tmp_path / "two"
    for folder in (one, two):
        folder.mkdir()
    real = carrying.Carrier.link
    done = []

    def racing(self, source, *more):
        mine = source.endswith(digest(b"alpha")) and not done
        if mine and moment == "before the link":
            done.append(1)
            spoil(one / "in/reads/a.txt", times=False)
        linked = real(self, source, *more)
        if mine and moment == "after the link":
            done.append(1)
            spoil(one / "in/reads/a.txt", times=False)
        return linked

    with place.open() as store:
        store.stage(document, one, placement="hardlink")
        monkeypatch.setattr(carrying.Carrier, "link", racing)
        store.stage(document, two, placement="hardlink")
        assert done
        assert files_in(two / "in/reads") == FILES
    monkeypatch.undo()
    check(place.cache)


def test_a_blob_that_is_written_to_while_it_is_copied(place, workdir, monkeypatch):
    data = os.urandom(2**20)
    dataset = place.dataset({"x": data})
    blob = Path(place.cache, "blobs", digest(data)[:2], digest(data))
    real = carrying.Carrier.carry

    def racing(self, *arguments):
        monkeypatch.undo()
        spoil(blob)
        return real(self, *arguments)

    with place.open() as store:
        store.get_bytes(digest(data))
        monkeypatch.setattr(carrying.Carrier, "carry", racing)
        store.stage(spec({"a": (dataset, "in")}), workdir)
        assert files_in(workdir / "in") == {"x": data}
        assert store.get_bytes(digest(data)) == data
    check(place.cache)


def test_a_mount_appears_whole_or_not_at_all(place, workdir, document):
    def interrupt(size):
        raise KeyboardInterrupt

    with place.open() as store:
        for way in WAYS:
            with pytest.raises(KeyboardInterrupt):
                store.stage(document, workdir, placement=way, progress=interrupt)
            assert files_in(workdir) == {}
        assert {stat.S_IMODE(os.stat(file).st_mode) for file in Path(place.cache, "blobs").glob("*/*")} == {0o444}
        assert {os.stat(file).st_nlink for file in Path(place.cache, "blobs").glob("*/*")} == {1}
    check(place.cache)


def test_links_are_noted_and_removed_ones_are_hashed(place, tmp_path, document, monkeypatch):
    from oarbank_cas.cache import cache as module

    hashed = []
    real = module.hash_file
    monkeypatch.setattr(module, "hash_file", lambda fd: (hashed.append(1), real(fd))[1])
    with place.open() as store:
        for number in range(3):
            (tmp_path / str(number)).mkdir()
            store.stage(document, tmp_path / str(number), placement="hardlink")
        assert hashed == []
        shutil.rmtree(tmp_path / "0")
        (tmp_path / "0").mkdir()
        store.stage(document, tmp_path / "0", placement="hardlink")
        assert len(hashed) == 3, "each but the empty one, which is never linked"
    check(place.cache)


def test_one_blob_many_times_in_a_mount(place, workdir, monkeypatch):
    from oarbank_cas.cache import cache as module

    monkeypatch.setattr(module, "hash_file", lambda fd: pytest.fail("hashed"))
    files = {f"f{number}": b"same" for number in range(100)}
    with place.open() as store:
        store.stage(spec({"a": (place.dataset(files), "in")}), workdir, placement="hardlink")
        assert files_in(workdir / "in") == files
        assert os.stat(workdir / "in/f7").st_nlink == 101
        monkeypatch.undo()
        assert store.check_mounts(workdir) == []


def test_a_job_that_maps_its_input_and_writes_later(place, tmp_path, document):
    """A page that was written to once can be written to again without a trace: what was written to is not trusted."""
    import mmap

    one, two = tmp_path / "one", tmp_path / "two"
    for folder in (one, two):
        folder.mkdir()
    with place.open() as store:
        store.stage(document, one, placement="hardlink")
        path = one / "in/reads/deep/er/b.bin"
        os.chmod(path, 0o600)
        with open(path, "r+b") as file, mmap.mmap(file.fileno(), 0) as mapped:
            mapped[0:1] = b"\0"  # the same byte: nothing is wrong yet
            store.stage(document, two, placement="hardlink")
            mapped[0:1] = b"!"
            assert files_in(two / "in/reads") == FILES
            assert store.get_bytes(digest(FILES["deep/er/b.bin"])) == FILES["deep/er/b.bin"]
    check(place.cache)
