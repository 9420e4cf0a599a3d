import json
import os
import shutil
import stat
import threading
from pathlib import Path

import pytest
from agent_kit import (
    ORIGIN,
    canonical,
    dataset_of,
    digest,
    files_in,
    key,
    memory_store,
    raw_dataset,
    spec,
    tree,
    write_files,
    write_job,
)

from oarbank_cas import ConflictError, CorruptError, InvalidInputError, NotFoundError, StorageIOError, Store
from oarbank_cas.agent import placing
from oarbank_cas.backends.memory import MemoryBackend

FILES = {"a.txt": b"alpha", "empty": b"", "deep/er/b.bin": bytes(1000), "deep/c": b"c", "Z-1+2@3.x": b"z"}


def damage(store, data):
    """Change a byte of a blob in a store in memory, and not its size."""
    name = f"blobs/{digest(data)[:2]}/{digest(data)}"
    found, _ = store.backend._objects[name]
    store.backend._objects[name] = (found, bytes([data[0] ^ 1]) + data[1:])


def lose(store, data):
    del store.backend._objects[f"blobs/{digest(data)[:2]}/{digest(data)}"]


# -- what is placed


def test_inputs_and_datasets(store, workdir, way):
    one, two = dataset_of(store, FILES), dataset_of(store, {"x": b"x"})
    mounted = store.stage(spec({"reads": (one, "in/reads")}, [two], {two: "data"}), workdir)
    assert files_in(workdir) == {f"in/reads/{path}": data for path, data in FILES.items()} | {"data/x": b"x"}
    assert [(each.name, each.dataset, each.mount, each.files, each.size, each.placed) for each in mounted] == [
        ("reads", one, "in/reads", 5, sum(map(len, FILES.values())), True),
        (None, two, "data", 1, 1, True),
    ]


def test_files_are_regular_and_read_only(store, workdir, way):
    store.stage(spec({"reads": (dataset_of(store, FILES), "in")}), workdir)
    for path in FILES:
        mode = os.lstat(workdir / "in" / path).st_mode
        assert stat.S_ISREG(mode)
        assert stat.S_IMODE(mode) & 0o333 == 0
        assert mode & stat.S_IRUSR
        assert os.lstat(workdir / "in" / path).st_nlink == 1


def test_from_a_store_on_disk(tmp_path, workdir, way):
    with Store.init(tmp_path / "store")[0] as store:
        write_job(tmp_path / "first", FILES)
        dataset = store.publish(key(), tmp_path / "first", ORIGIN)[0].datasets["out"]
        store.stage(spec({"reads": (dataset, "in")}), workdir)
        assert files_in(workdir / "in") == FILES
        # What a job does to its copy is nothing to the store.
        (workdir / "in/a.txt").chmod(0o644)
        (workdir / "in/a.txt").write_bytes(b"ALPHA")
        assert store.get_bytes(digest(b"alpha")) == b"alpha"


def test_again_is_a_no_op(store, workdir, way):
    document = spec({"reads": (dataset_of(store, FILES), "in/reads")})
    store.stage(document, workdir)
    before = {path: os.lstat(workdir / path) for path in tree(workdir)}
    (mounted,) = store.stage(document, workdir)
    assert not mounted.placed
    assert {path: os.lstat(workdir / path) for path in tree(workdir)} == before


def test_an_empty_folder_at_the_mount_is_no_obstacle(store, workdir, way):
    (workdir / "in/reads").mkdir(parents=True)
    (mounted,) = store.stage(spec({"reads": (dataset_of(store, FILES), "in/reads")}), workdir)
    assert mounted.placed
    assert files_in(workdir / "in/reads") == FILES


def test_one_dataset_at_two_mounts_and_one_pair_twice(store, workdir, way):
    one = dataset_of(store, {"x": b"x"})
    mounted = store.stage(spec({"a": (one, "in/a"), "b": (one, "in/b")}, [one], {one: "in/b"}), workdir)
    assert sorted(each.mount for each in mounted) == ["in/a", "in/b"]
    assert files_in(workdir) == {"in/a/x": b"x", "in/b/x": b"x"}


def test_a_dataset_listed_for_an_input_needs_no_mount_of_its_own(store, workdir):
    one = dataset_of(store, {"x": b"x"})
    assert len(store.stage(spec({"a": (one, "in/a")}, [one]), workdir)) == 1


def test_what_else_is_in_the_work_directory_stays(store, workdir):
    write_files(workdir, {"spec.json": b"{}", "in/other/mine": b"mine"})
    store.stage(spec({"reads": (dataset_of(store, {"x": b"x"}), "in/reads")}), workdir)
    assert files_in(workdir) == {"spec.json": b"{}", "in/other/mine": b"mine", "in/reads/x": b"x"}


def test_progress_counts_every_file(store, workdir):
    seen = []
    store.stage(spec({"reads": (dataset_of(store, FILES), "in")}), workdir, progress=seen.append)
    assert sorted(seen) == sorted(map(len, FILES.values()))


def test_many_files(store, workdir):
    files = {f"d{number % 13}/f{number}": b"%d" % number for number in range(2000)}
    store.stage(spec({"reads": (dataset_of(store, files), "in")}), workdir)
    assert files_in(workdir / "in") == files


# -- something else is there


def fifo(path):
    path.unlink()
    os.mkfifo(path)


def swap(path, target):
    path.unlink()
    path.symlink_to(target)


CHANGES = {
    "an extra file": lambda m: (m / "extra").write_bytes(b""),
    "an extra file deep down": lambda m: (m / "deep/er/extra").write_bytes(b""),
    "an extra hidden file": lambda m: (m / ".extra").write_bytes(b""),
    "an extra empty folder": lambda m: (m / "deep/new").mkdir(),
    "a changed byte": lambda m: ((m / "a.txt").chmod(0o644), (m / "a.txt").write_bytes(b"Alpha")),
    "a longer file": lambda m: ((m / "a.txt").chmod(0o644), (m / "a.txt").write_bytes(b"alpha+")),
    "a missing file": lambda m: (m / "a.txt").unlink(),
    "a missing empty file": lambda m: (m / "empty").unlink(),
    "a missing folder": lambda m: shutil.rmtree(m / "deep"),
    "a link to the same": lambda m: (os.link(m / "a.txt", m.parent / "same"), swap(m / "a.txt", "../same")),
    "a link in the folder's place": lambda m: ((m / "deep").rename(m.parent / "d"), (m / "deep").symlink_to("../d")),
    "a folder in a file's place": lambda m: ((m / "a.txt").unlink(), (m / "a.txt").mkdir()),
    "a file in a folder's place": lambda m: (shutil.rmtree(m / "deep"), (m / "deep").write_bytes(b"")),
    "a pipe in a file's place": lambda m: fifo(m / "a.txt"),
}


@pytest.mark.timeout(20)
@pytest.mark.parametrize("change", CHANGES)
def test_something_else_at_the_mount(store, workdir, way, change):
    document = spec({"reads": (dataset_of(store, FILES), "in")})
    store.stage(document, workdir)
    CHANGES[change](workdir / "in")
    before = tree(workdir)
    with pytest.raises(ConflictError, match=r"in.*remove"):
        store.stage(document, workdir)
    assert tree(workdir) == before


@pytest.mark.timeout(20)
@pytest.mark.parametrize("what", ["a file", "a pipe", "a link to a folder", "a broken link", "other files", "folders"])
def test_what_stands_at_the_mount_is_not_touched(store, workdir, outside, way, what):
    mount = workdir / "in"
    if what == "a file":
        mount.write_bytes(b"mine")
    elif what == "a pipe":
        os.mkfifo(mount)
    elif what == "a link to a folder":
        mount.symlink_to(outside)
    elif what == "a broken link":
        mount.symlink_to("nowhere")
    elif what == "other files":
        write_files(mount, {"mine": b"mine"})
    else:
        (mount / "deep/er").mkdir(parents=True)
    before = tree(workdir)
    with pytest.raises(ConflictError, match=r"in: |in/mine: "):
        store.stage(spec({"reads": (dataset_of(store, FILES), "in")}), workdir)
    assert tree(workdir) == before


@pytest.mark.parametrize("at", ["in", "in/a", "in/a/b"])
@pytest.mark.parametrize("target", ["outside", "inside", "nowhere"])
def test_a_link_planted_above_the_mount(store, workdir, outside, way, at, target):
    (workdir / at).parent.mkdir(parents=True, exist_ok=True)
    (workdir / "inside").mkdir()
    (workdir / at).symlink_to({"outside": outside, "inside": workdir / "inside", "nowhere": "/nowhere"}[target])
    before = tree(workdir)
    with pytest.raises(InvalidInputError, match="symbolic link"):
        store.stage(spec({"reads": (dataset_of(store, FILES), "in/a/b/reads")}), workdir)
    assert tree(workdir) == before


def test_a_file_above_the_mount(store, workdir, way):
    (workdir / "in").write_bytes(b"mine")
    with pytest.raises(InvalidInputError, match="is not a directory"):
        store.stage(spec({"reads": (dataset_of(store, FILES), "in/reads")}), workdir)
    assert tree(workdir) == {"in": b"mine"}


def test_a_tree_deeper_than_any_descriptor_table(store, workdir, way):
    document = spec({"reads": (dataset_of(store, FILES), "in")})
    store.stage(document, workdir)
    folder = os.open(workdir / "in", os.O_RDONLY)
    for _ in range(1500):
        os.mkdir("d", dir_fd=folder)
        inner = os.open("d", os.O_RDONLY, dir_fd=folder)
        os.close(folder)
        folder = inner
    os.close(folder)
    with pytest.raises(ConflictError, match="in/d: is no part"):
        store.stage(document, workdir)
    remove_deep(workdir / "in/d")


def remove_deep(path):
    """Remove a chain of folders called `d` that is longer than any path may be."""
    aside = path.parent.parent / "aside"
    while path.exists():
        inner = path / "d"
        if inner.exists():
            inner.rename(aside)
        path.rmdir()
        if not aside.exists():
            return
        aside.rename(path)


# -- failing half-way


@pytest.mark.parametrize("failure", ["damaged", "lost meanwhile", "full"])
def test_a_failure_half_way_leaves_no_mount(store, workdir, way, failure, monkeypatch):
    first, second = dataset_of(store, {"x": b"x"}), dataset_of(store, {f"f{n}": b"%d" % n for n in range(200)})
    document = spec({"a": (first, "in/a"), "b": (second, "in/b")})
    expected = CorruptError
    if failure == "damaged":
        damage(store, b"150")
    elif failure == "lost meanwhile":
        lose(store, b"150")
        monkeypatch.setattr(store._stager, "check_present", lambda files, label, known=None: None)
        expected = NotFoundError
    else:
        real = store.blobs.copy_to

        def full(wanted, fd, label):
            if wanted == digest(b"150"):
                raise StorageIOError(f"{label}: No space left on device")
            return real(wanted, fd, label)

        monkeypatch.setattr(store.blobs, "copy_to", full)
        expected = StorageIOError
    with pytest.raises(expected):
        store.stage(document, workdir)
    assert tree(workdir) == {"in": "directory", "in/a": "directory", "in/a/x": b"x"}
    monkeypatch.undo()
    store.put_bytes(b"150")
    assert [each.placed for each in store.stage(document, workdir)] == [False, True]
    assert len(files_in(workdir / "in/b")) == 200


def test_an_interrupt_leaves_no_mount(store, workdir, way):
    def interrupt(size):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        store.stage(spec({"a": (dataset_of(store, FILES), "in")}), workdir, progress=interrupt)
    assert tree(workdir) == {}


def test_a_mount_that_is_taken_while_it_is_filled(store, workdir, way):
    document = spec({"a": (dataset_of(store, FILES), "in")})
    with pytest.raises(ConflictError, match="in/mine"):
        store.stage(document, workdir, progress=lambda size: write_files(workdir, {"in/mine": b"mine"}))
    assert tree(workdir) == {"in": "directory", "in/mine": b"mine"}
    shutil.rmtree(workdir / "in")
    with pytest.raises(ConflictError, match="in: "):
        store.stage(document, workdir, progress=lambda size: write_files(workdir, {"in": b"mine"}))
    assert tree(workdir) == {"in": b"mine"}


def test_staging_the_same_at_once(store, workdir, way):
    document = spec({"a": (dataset_of(store, FILES), "in/a")})
    barrier = threading.Barrier(4)
    placed = []

    def run():
        barrier.wait()
        placed.append(store.stage(document, workdir)[0].placed)

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(placed) == [False, False, False, True]
    assert files_in(workdir / "in/a") == FILES
    assert sorted(os.listdir(workdir / "in")) == ["a"]


def test_the_loser_of_a_race_for_the_mount_finds_it_the_same(store, workdir, monkeypatch, way):
    document = spec({"a": (dataset_of(store, FILES), "in/a")})
    real = placing._into_place
    ran = []

    def racing(*args):
        if not ran:
            ran.append(1)
            assert store.stage(document, workdir)[0].placed
        return real(*args)

    monkeypatch.setattr(placing, "_into_place", racing)
    assert not store.stage(document, workdir)[0].placed
    assert sorted(os.listdir(workdir / "in")) == ["a"]


# -- mounts and specs that are refused


@pytest.mark.parametrize(
    "mount",
    [
        "spec.json",
        "result.json",
        "control.json",
        "failure.json",
        "events.ndjson",
        "phase",
        "tmp",
        "tmp/x",
        "TMP",
        "Result.JSON",
        "/abs",
        "../w",
        "a/../../b",
        "a\\b",
        "",
        ".",
        "a/",
        ".oarbank-cas-x",
        "nul",
    ],
)
@pytest.mark.parametrize("as_input", [True, False])
def test_what_is_no_mount(store, workdir, outside, mount, as_input):
    one = dataset_of(store, {"x": b"x"})
    document = spec({"a": (one, mount)}) if as_input else spec(None, [one], {one: mount})
    with pytest.raises(InvalidInputError):
        store.stage(document, workdir)
    assert tree(workdir) == {}


@pytest.mark.parametrize("second", ["in/a", "in/A", "in", "in/a/b", "IN/a/b"])
def test_mounts_that_overlap(store, workdir, second):
    one, two = dataset_of(store, {"x": b"x"}), dataset_of(store, {"y": b"y"})
    for document in (spec({"a": (one, "in/a"), "b": (two, second)}), spec({"a": (one, "in/a")}, [two], {two: second})):
        with pytest.raises(InvalidInputError, match="overlap"):
            store.stage(document, workdir)
    assert tree(workdir) == {}


def test_datasets_and_mounts_must_agree(store, workdir):
    one, two = dataset_of(store, {"x": b"x"}), dataset_of(store, {"y": b"y"})
    with pytest.raises(InvalidInputError, match=f"no mount for the dataset {one}"):
        store.stage(spec(None, [one, two], {two: "data"}), workdir)
    with pytest.raises(InvalidInputError, match=f"mounts {two}, which is not among the datasets"):
        store.stage(spec(None, [one], {one: "one", two: "two"}), workdir)
    assert tree(workdir) == {}


def test_a_foreign_dataset(store, workdir):
    one = dataset_of(store, {"x": b"x"})
    document = spec(None, ["genome:GRCh38", one], {"genome:GRCh38": "genome", one: "one"})
    with pytest.raises(InvalidInputError, match=r"genome:GRCh38.*pass a resolver"):
        store.stage(document, workdir)
    assert tree(workdir) == {}
    mounted = store.stage(document, workdir, resolver={"genome:GRCh38": one}.__getitem__)
    assert [each.dataset for each in mounted] == ["genome:GRCh38", one]
    assert files_in(workdir) == {"genome/x": b"x", "one/x": b"x"}
    with pytest.raises(InvalidInputError, match="is no dataset of a store"):
        store.stage(document, workdir, resolver=lambda name: name)


def test_an_art_dataset_never_goes_to_the_resolver(store, workdir):
    one = dataset_of(store, {"x": b"x"})
    store.stage(spec({"a": (one, "in")}), workdir, resolver=lambda name: pytest.fail("asked"))


def test_what_is_not_in_the_store(store, workdir):
    one = dataset_of(store, {"x": b"x", "y": b"y"})
    absent = f"art:{digest(b'no such')}"
    with pytest.raises(NotFoundError, match=absent):
        store.stage(spec({"a": (one, "in/a"), "b": (absent, "in/b")}), workdir)
    assert tree(workdir) == {}
    lose(store, b"y")
    with pytest.raises(NotFoundError, match=f"{one}: y is not in the store.*{digest(b'y')}"):
        store.stage(spec({"a": (one, "in/a")}), workdir)
    assert tree(workdir) == {}


def test_the_work_directory_must_be_there(store, tmp_path):
    with pytest.raises(InvalidInputError, match="is missing"):
        store.stage(spec({"a": (dataset_of(store, {"x": b"x"}), "in")}), tmp_path / "none")
    assert not (tmp_path / "none").exists()


def test_a_work_directory_behind_a_link(store, workdir, tmp_path, way):
    (tmp_path / "link").symlink_to("w")
    store.stage(spec({"a": (dataset_of(store, {"x": b"x"}), "in")}), tmp_path / "link")
    assert files_in(workdir) == {"in/x": b"x"}


# -- hostile manifests

X = b"x"
GOOD = {"digest": digest(X), "path": "x", "size": 1}


def listing(*files):
    return canonical({"files": list(files)})


HOSTILE = {
    "absolute": listing(GOOD | {"path": "/tmp/x"}),
    "up": listing(GOOD | {"path": "../x"}),
    "up and down": listing(GOOD | {"path": "a/../../x"}),
    "here": listing(GOOD | {"path": "./x"}),
    "empty path": listing(GOOD | {"path": ""}),
    "empty segment": listing(GOOD | {"path": "a//x"}),
    "trailing slash": listing(GOOD | {"path": "x/"}),
    "backslash": listing(GOOD | {"path": "..\\x"}),
    "drive": listing(GOOD | {"path": "C:x"}),
    "hidden": listing(GOOD | {"path": ".x"}),
    "null byte": listing(GOOD | {"path": "x\0y"}),
    "newline": listing(GOOD | {"path": "x\n"}),
    "not ASCII": listing(GOOD | {"path": "\u00fc"}),
    "device": listing(GOOD | {"path": "con"}),
    "device with an extension": listing(GOOD | {"path": "a/Lpt1.txt"}),
    "long": listing(GOOD | {"path": "x" * 101}),
    "dot at the end": listing(GOOD | {"path": "x."}),
    "path no text": listing(GOOD | {"path": 7}),
    "path a list": listing(GOOD | {"path": ["x"]}),
    "twice": listing(GOOD, GOOD),
    "case twins": listing(GOOD | {"path": "X"}, GOOD),
    "a file as folder": listing(GOOD, GOOD | {"path": "x/y"}),
    "a file as folder but for case": listing(GOOD | {"path": "X"}, GOOD | {"path": "x/y"}),
    "wrong size": listing(GOOD | {"size": 2}),
    "size zero": listing(GOOD | {"size": 0}),
    "negative size": listing(GOOD | {"size": -1}),
    "huge size": listing(GOOD | {"size": 2**60}),
    "size no integer": listing(GOOD | {"size": 1.5}),
    "size true": listing(GOOD | {"size": True}),
    "size text": listing(GOOD | {"size": "1"}),
    "size null": listing(GOOD | {"size": None}),
    "size in another spelling": listing(GOOD).replace(b'"size":1', b'"size":1.0'),
    "digest upper case": listing(GOOD | {"digest": digest(X).upper()}),
    "digest a path": listing(GOOD | {"digest": "../../etc/passwd"}),
    "digest null": listing(GOOD | {"digest": None}),
    "local": listing(GOOD | {"local": "/etc/passwd"}),
    "mode": listing(GOOD | {"mode": 0o4755}),
    "no size": listing({"digest": digest(X), "path": "x"}),
    "no files": listing(),
    "files an object": canonical({"files": {"x": GOOD}}),
    "another member": canonical({"files": [GOOD], "version": 1}),
    "no manifest": canonical([GOOD]),
    "null": b"null",
    "empty": b"",
    "not JSON": b"{",
    "spaces": json.dumps({"files": [GOOD]}).encode(),
    "newline at the end": listing(GOOD) + b"\n",
    "not sorted": listing(GOOD | {"path": "y"}, GOOD),
    "a key twice": listing(GOOD).replace(b'"path"', b'"path":"y","path"'),
    "escapes": listing(GOOD).replace(b'"path":"x"', b'"path":"\\u0078"'),
    "byte order mark": b"\xef\xbb\xbf" + listing(GOOD),
    "UTF-16": listing(GOOD).decode().encode("utf-16"),
    "deep": b'{"files":' + b"[" * 100_000,
    "long number": listing(GOOD).replace(b":1}", b":" + b"1" * 5000 + b"}"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_a_hostile_manifest(store, workdir, outside, case):
    store.put_bytes(X)
    good, hostile = dataset_of(store, {"good": b"good"}), raw_dataset(store, HOSTILE[case])
    with pytest.raises(CorruptError, match=hostile):
        store.stage(spec({"a": (good, "in/a"), "b": (hostile, "in/b")}), workdir)
    assert tree(workdir) == {}


def test_a_manifest_of_very_many_files(store, workdir):
    store.put_bytes(X)
    paths = sorted(f"f{number}" for number in range(50_000))
    hostile = raw_dataset(store, listing(*[GOOD | {"path": path} for path in [*paths, paths[-1]]]))
    with pytest.raises(CorruptError):
        store.stage(spec({"a": (hostile, "in")}), workdir)
    assert tree(workdir) == {}


def test_a_manifest_larger_than_any(workdir, recorded):
    backend = recorded(MemoryBackend())
    store = memory_store(backend)
    huge = raw_dataset(store, bytes(64 * 2**20 + 1))
    with pytest.raises(CorruptError, match="at most"):
        store.stage(spec({"a": (huge, "in")}), workdir)
    assert tree(workdir) == {}


def test_a_damaged_manifest(store, workdir):
    one = dataset_of(store, {"x": b"x"})
    damage(store, store.get_bytes(one[4:]))
    with pytest.raises(CorruptError, match=one[4:]):
        store.stage(spec({"a": (one, "in")}), workdir)
    assert tree(workdir) == {}


def test_specs_that_are_none(store, workdir):
    for bad in (b"", b"[]", b"{}", b"null", b"\xff", spec()[:-1], spec(inputs={"UPPER": ("x", "y")}), spec(envelope=2)):
        with pytest.raises(InvalidInputError):
            store.stage(bad, workdir)
    assert store.stage(spec(), workdir) == []
    assert tree(workdir) == {}


def test_nothing_is_left_when_the_umask_is_odd(store, workdir):
    before = os.umask(0o077)
    try:
        store.stage(spec({"a": (dataset_of(store, FILES), "in")}), workdir)
    finally:
        os.umask(before)
    assert stat.S_IMODE(os.lstat(workdir / "in/a.txt").st_mode) == 0o400
    assert files_in(Path(workdir, "in")) == FILES
