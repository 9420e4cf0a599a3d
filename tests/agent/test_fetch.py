import os

import pytest
from agent_kit import dataset_of, digest, files_in, tree, write_files

from oarbank_cas import ConflictError, CorruptError, InvalidInputError, NotFoundError
from oarbank_cas.agent import placing, stage
from oarbank_cas.contracts.manifest import FileRef

FILES = {"a.txt": b"alpha", "empty": b"", "deep/er/b.bin": bytes(1000), "deep/c": b"c"}


@pytest.fixture(params=["small", "large"], autouse=True)
def sizes(request, monkeypatch):
    """Small files are brought together, large ones one by one: each of these with both."""
    if request.param == "large":
        monkeypatch.setattr(stage, "_SMALL", -1)
    return request.param


@pytest.fixture
def wanted(store):
    return [(file.path, file) for file in store.files_of(dataset_of(store, FILES))]


def test_everything(store, wanted, tmp_path, way):
    seen = []
    assert store.fetch(wanted, tmp_path / "new/folder", seen.append) == 4
    assert files_in(tmp_path / "new/folder") == FILES
    assert sorted(seen) == sorted(map(len, FILES.values()))
    umask = os.umask(0)
    os.umask(umask)
    assert os.lstat(tmp_path / "new/folder/a.txt").st_mode & 0o777 == 0o666 & ~umask


def test_again_writes_nothing(store, wanted, workdir, way):
    store.fetch(wanted, workdir)
    before = {path: os.lstat(workdir / path) for path in tree(workdir)}
    assert store.fetch(wanted, workdir) == 0
    assert {path: os.lstat(workdir / path) for path in tree(workdir)} == before
    (workdir / "deep/c").unlink()
    assert store.fetch(wanted, workdir) == 1
    assert files_in(workdir) == FILES


@pytest.mark.timeout(20)
@pytest.mark.parametrize("what", ["a file", "a longer file", "a folder", "a pipe", "a link", "a broken link"])
def test_nothing_is_overwritten_or_written_beside_it(store, wanted, workdir, outside, way, what):
    there = workdir / "deep/c"
    there.parent.mkdir()
    if what == "a file":
        there.write_bytes(b"C")
    elif what == "a longer file":
        there.write_bytes(b"ccc")
    elif what == "a folder":
        there.mkdir()
    elif what == "a pipe":
        os.mkfifo(there)
    elif what == "a link":
        write_files(workdir.parent, {"same": b"c"})
        there.symlink_to("../../same")
    else:
        there.symlink_to(outside / "new.txt")
    before = tree(workdir)
    with pytest.raises(ConflictError, match="deep/c: "):
        store.fetch(wanted, workdir)
    assert tree(workdir) == before


@pytest.mark.parametrize("at", ["deep", "deep/er"])
def test_a_link_on_the_way(store, wanted, workdir, outside, way, at):
    (workdir / at).parent.mkdir(exist_ok=True)
    (workdir / at).symlink_to(outside)
    before = tree(workdir)
    with pytest.raises(InvalidInputError, match="symbolic link"):
        store.fetch(wanted, workdir)
    assert tree(workdir) == before


def test_a_file_on_the_way(store, wanted, workdir, way):
    write_files(workdir, {"deep": b"mine"})
    with pytest.raises(InvalidInputError, match="is not a directory"):
        store.fetch(wanted, workdir)
    assert tree(workdir) == {"deep": b"mine"}


def test_the_folder_cannot_be_made(store, wanted, tmp_path):
    write_files(tmp_path, {"file": b""})
    for bad in (tmp_path / "file", tmp_path / "file/below"):
        with pytest.raises(ConflictError, match="cannot create"):
            store.fetch(wanted, bad)


def test_missing_or_mistold_blobs_are_found_before_anything_is_written(store, tmp_path):
    there = store.put_bytes(b"here").digest
    good = ("good", FileRef("good", there, 4))
    for file, error in ((FileRef("bad", digest(b"no"), 2), NotFoundError), (FileRef("bad", there, 5), CorruptError)):
        with pytest.raises(error, match="bad"):
            store.fetch([good, ("bad", file)], tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_a_damaged_blob_gets_no_name(store, wanted, workdir, way, sizes):
    name = f"blobs/{digest(b'alpha')[:2]}/{digest(b'alpha')}"
    store.backend._objects[name] = (store.backend._objects[name][0], b"aLpha")
    with pytest.raises(CorruptError):
        store.fetch(wanted, workdir)
    assert "a.txt" not in tree(workdir)
    assert sizes == "large" or tree(workdir) == {}
    assert not [path for path in tree(workdir) if "oarbank" in path]


@pytest.mark.parametrize("hard_links", [True, False])
@pytest.mark.parametrize("same", [True, False])
def test_a_file_that_appears_while_it_is_written(store, workdir, way, monkeypatch, hard_links, same):
    (file,) = store.files_of(dataset_of(store, {"x": b"x"}))

    def no_links(*args, **settings):
        raise OSError(1, "Operation not permitted")

    if not hard_links:
        monkeypatch.setattr(placing.os, "link", no_links)
    theirs = b"x" if same else b"mine"

    def appear(size):
        write_files(workdir, {"x": theirs})

    if same:
        assert store.fetch([("x", file)], workdir, appear) == 0
    else:
        with pytest.raises(ConflictError, match="x: another file stands there"):
            store.fetch([("x", file)], workdir, appear)
    assert tree(workdir) == {"x": theirs}


def test_without_hard_links(store, wanted, workdir, way, monkeypatch):
    monkeypatch.setattr(placing.os, "link", lambda *args, **settings: (_ for _ in ()).throw(NotImplementedError()))
    assert store.fetch(wanted, workdir) == 4
    assert files_in(workdir) == FILES
