import os
import stat
import subprocess
import sys
import threading
from types import SimpleNamespace

import pytest
from agent_kit import ORIGIN, dataset_of, digest, key, objects, result, spec, tree, write_files, write_job

from oarbank_cas import CasError, ConflictError, InvalidInputError
from oarbank_cas.agent import placing
from oarbank_cas.agent import workdir as workdir_module
from oarbank_cas.agent.workdir import HAS_DIR_FD, Folder

needs_descriptors = pytest.mark.skipif(not HAS_DIR_FD, reason="only directory descriptors withstand a race")


def swap(path, target):
    """Put a link to `target` in the place of a folder, which stays beside it."""
    path.rename(path.with_name(path.name + ".aside"))
    path.symlink_to(target)


def once(action):
    done = []

    def run():
        if not done:
            done.append(1)
            action()

    return run


@needs_descriptors
@pytest.mark.parametrize("step", ["lstat", "open", "walk"])
def test_a_folder_swapped_before_a_file_is_read(store, workdir, outside, monkeypatch, step):
    """`d` becomes a link to a folder with the same names, after it was looked at."""
    write_files(outside, {})
    write_job(workdir, {"d/secret.txt": b"mine"}, result({"out": {"x": "d/secret.txt"}}))
    act = once(lambda: swap(workdir / "d", outside))
    if step == "open":
        real_open = os.open

        def opening(path, *args, **settings):
            if path == "secret.txt":
                act()
            return real_open(path, *args, **settings)

        monkeypatch.setattr(os, "open", opening)
    elif step == "lstat":
        real_lstat = Folder.lstat

        def looking(self, name):
            found = real_lstat(self, name)
            if name == "secret.txt":
                act()
            return found

        monkeypatch.setattr(Folder, "lstat", looking)
    else:
        real_walk = Folder.walk

        def walking(self, parts, *, make=False):
            folder = real_walk(self, parts, make=make)
            if parts == ["d"]:
                act()
            return folder

        monkeypatch.setattr(Folder, "walk", walking)
    with_error = None
    try:
        store.publish(key(), workdir, ORIGIN)
    except CasError as error:
        with_error = error
    monkeypatch.undo()
    assert (workdir / "d").is_symlink()
    assert not store.has(digest(b"secret")), with_error
    if with_error is not None:
        assert objects(store) == {}


@needs_descriptors
@pytest.mark.parametrize("step", ["made", "filled", "written"])
def test_a_folder_swapped_before_a_file_is_placed(store, workdir, outside, monkeypatch, step):
    """A parent of the mount becomes a link after it was entered: what is written goes where it was."""
    dataset = dataset_of(store, {"deep/secret.txt": b"mine", "x": b"x"})
    (workdir / "in").mkdir()
    act = once(lambda: swap(workdir / "in", outside))
    if step == "made":
        real_make = Folder.make

        def making(self, name):
            folder = real_make(self, name)
            if name.startswith(".oarbank"):
                act()
            return folder

        monkeypatch.setattr(Folder, "make", making)
    elif step == "filled":
        real_place = placing._into_place

        def naming(*args):
            act()
            return real_place(*args)

        monkeypatch.setattr(placing, "_into_place", naming)
    with_progress = (lambda size: act()) if step == "written" else None
    store.stage(spec({"a": (dataset, "in/a")}), workdir, progress=with_progress)
    monkeypatch.undo()
    assert tree(workdir) == {
        "in": f"link to {outside}",
        "in.aside": "directory",
        "in.aside/a": "directory",
        "in.aside/a/deep": "directory",
        "in.aside/a/deep/secret.txt": b"mine",
        "in.aside/a/x": b"x",
    }


@needs_descriptors
def test_a_link_planted_inside_the_tree_that_is_being_filled(store, workdir, outside, monkeypatch):
    dataset = dataset_of(store, {"deep/secret.txt": b"mine"})
    real = os.mkdir

    def planting(name, *args, **settings):
        if name == "deep":
            os.symlink(outside, name, dir_fd=settings["dir_fd"])
        return real(name, *args, **settings)

    monkeypatch.setattr(os, "mkdir", planting)
    with pytest.raises((InvalidInputError, ConflictError), match="symbolic link"):
        store.stage(spec({"a": (dataset, "in")}), workdir)
    monkeypatch.undo()
    assert tree(workdir) == {}


def test_a_link_planted_at_the_file_that_is_being_written(store, workdir, outside, monkeypatch, way):
    dataset = dataset_of(store, {"x": b"x"})
    real = os.open

    def planting(path, flags, *args, **settings):
        if flags & os.O_CREAT and os.path.basename(path) == "x":
            os.symlink(outside / "planted", path, dir_fd=settings.get("dir_fd"))
        return real(path, flags, *args, **settings)

    monkeypatch.setattr(os, "open", planting)
    with pytest.raises(ConflictError, match="cannot create"):
        store.stage(spec({"a": (dataset, "in")}), workdir)
    monkeypatch.undo()
    assert tree(workdir) == {}


def test_a_link_is_not_entered(workdir, outside, way):
    (workdir / "out").symlink_to(outside)
    (workdir / "pipe").write_bytes(b"")
    with Folder(workdir) as folder:
        for name in ("out", "pipe"):
            with pytest.raises(InvalidInputError, match=f"{name}: is not a directory"):
                folder.enter(name)
            with pytest.raises(InvalidInputError, match=f"{name}: is not a directory"):
                folder.make(name)
        with pytest.raises(InvalidInputError, match="none: is missing"):
            folder.enter("none")


@pytest.mark.parametrize("tag", [0xA0000003, 0xA000000C], ids=["junction", "symbolic link"])
def test_a_junction_of_windows_is_a_link(tag):
    assert workdir_module._is_link(SimpleNamespace(st_mode=stat.S_IFDIR | 0o777, st_reparse_tag=tag))
    assert not workdir_module._is_link(SimpleNamespace(st_mode=stat.S_IFDIR | 0o777, st_reparse_tag=0))
    assert not workdir_module._is_link(SimpleNamespace(st_mode=stat.S_IFREG, st_reparse_tag=0x9000001A))  # a cloud's


def test_a_folder_that_turns_into_a_junction_is_refused(workdir, outside, monkeypatch):
    monkeypatch.setattr(workdir_module, "HAS_DIR_FD", False)
    write_files(workdir, {"d/x": b"x"})
    real = os.lstat

    def lstat(path, **settings):
        found = real(path, **settings)
        if os.path.basename(path) == "d":
            return SimpleNamespace(st_mode=found.st_mode, st_reparse_tag=0xA0000003)
        return found

    with Folder(workdir) as folder:
        monkeypatch.setattr(os, "lstat", lstat)
        with pytest.raises(InvalidInputError, match="is not a directory"):
            folder.open_file("d/x")


def test_many_threads_share_a_folder(workdir, way):
    contents = {f"d{number}/e/f": b"%d" % number for number in range(150)}
    write_files(workdir, contents)
    wrong = []

    def run():
        for path, data in contents.items():
            fd = folder.open_file(path)
            if os.read(fd, 10) != data:
                wrong.append(path)
            os.close(fd)

    with Folder(workdir) as folder:
        threads = [threading.Thread(target=run) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert wrong == []


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="needs /proc")
def test_no_descriptor_is_lost(store, workdir, outside, way):
    def count():
        return len(os.listdir("/proc/self/fd"))

    write_files(workdir, {f"d{number}/x": b"x" for number in range(100)} | {"plain": b""})
    (workdir / "out").symlink_to(outside)
    (workdir / "in").symlink_to("d1/x")
    dataset = dataset_of(store, {"a/b": b"1", "c": b"2"})
    before = count()
    with Folder(workdir) as folder:
        for number in range(100):
            os.close(folder.open_file(f"d{number}/x"))
        os.close(folder.open_file("in"))
        for bad in ("none/x", "plain/x", "out/secret.txt", "d1", "d1/none", "d1/x/y"):
            with pytest.raises(InvalidInputError):
                folder.open_file(bad)
    store.stage(spec({"a": (dataset, "mount")}), workdir)
    store.stage(spec({"a": (dataset, "mount")}), workdir)
    for mount in ("plain", "out/x", "d1"):
        with pytest.raises(CasError):
            store.stage(spec({"a": (dataset, mount)}), workdir)
    assert count() == before


@pytest.mark.skipif(sys.platform != "linux", reason="a limit on descriptors as Linux has it")
def test_few_descriptors_are_enough(workdir, tmp_path):
    write_job(workdir, {f"d{number}/e/x": b"%d" % number for number in range(300)})
    program = (
        "import resource, sys\nresource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))\n"
        "from oarbank_cas import Origin, Store\n"
        "with Store.init(sys.argv[1])[0] as store:\n"
        "    print(store.publish('0' * 64, sys.argv[2], Origin('me'))[1].files)\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program, tmp_path / "store", workdir], capture_output=True, text=True, check=True
    )
    assert ran.stdout == "300\n"
