"""Full disks, disks that may not be written, people without permission, people who share: real ones of each."""

import hashlib
import os
import shutil
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest
from agent_kit import files_in, spec
from cache_kit import Place, check, program

from oarbank_cas import StorageIOError
from oarbank_cas.cache import reads as reads_module

IS_ROOT = hasattr(os, "geteuid") and os.geteuid() == 0
NOBODY, SOMEBODY, GROUP = 65534, 65533, 65532


def digest(data):
    return hashlib.sha256(data).hexdigest()


def mounted(folder, size="4m", options=""):
    """A small file system of its own; skips where that is not allowed."""
    folder.mkdir(exist_ok=True)
    if (
        not IS_ROOT
        or subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"size={size}{options}", "tmpfs", str(folder)], capture_output=True
        ).returncode
    ):
        pytest.skip("needs the right to mount a small file system")


@pytest.fixture
def small_disk(tmp_path):
    folder = tmp_path / "small"
    mounted(folder)
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def messages(caplog):
    return [record.getMessage() for record in caplog.records if record.name == "oarbank_cas.cache"]


@pytest.mark.parametrize("large", [True, False])
def test_a_full_disk(place, workdir, small_disk, caplog, large):
    """Known before a large blob is brought, found out in the middle of many small ones; reads go on either way."""
    files = {"x": os.urandom(6 * 2**20)} if large else {f"f{n}": os.urandom(100_000) for n in range(60)}
    dataset = place.dataset(files)
    with place.open(cache=small_disk / "cache") as store:
        store.stage(spec({"a": (dataset, "in")}), workdir)
        assert files_in(workdir / "in") == files
        if large:
            assert place.reads()[digest(files["x"])] == 1, "not brought in vain"
    (said,) = messages(caplog)
    assert "No space left" in said or "disk is full" in said
    assert "straight to the store" in said
    assert os.listdir(small_disk / "cache/partial") == []
    check(small_disk / "cache")


def test_a_disk_that_fills_up_while_a_blob_is_brought(place, small_disk, caplog):
    data = os.urandom(3 * 2**20)
    (name,) = place.put(data)
    with place.open(cache=small_disk / "cache") as store:
        real = store.reads.straight.copy_to

        def filling(wanted, fd, label, **more):
            if label.startswith(str(small_disk)):
                (small_disk / "other").write_bytes(bytes(2 * 2**20))
            return real(wanted, fd, label, **more)

        store.reads.straight.copy_to = filling
        assert store.get_bytes(name) == data
    assert len(messages(caplog)) == 1
    (small_disk / "other").unlink()
    assert os.listdir(small_disk / "cache/partial") == []
    check(small_disk / "cache")
    with place.open(cache=small_disk / "cache") as store:
        assert store.get_bytes(name) == data
    check(small_disk / "cache")


def test_a_full_work_directory_is_no_trouble_of_the_cache(place, small_disk, caplog):
    dataset = place.dataset({"x": os.urandom(6 * 2**20)})
    (small_disk / "w").mkdir()
    with place.open() as store:
        with pytest.raises(StorageIOError, match="No space left"):
            store.stage(spec({"a": (dataset, "in")}), small_disk / "w")
        assert not store.reads.resting
    assert messages(caplog) == []
    assert os.listdir(small_disk / "w") == []
    check(place.cache)


def test_no_inodes_are_left(place, workdir, tmp_path, caplog):
    mounted(tmp_path / "few", options=",nr_inodes=40")
    try:
        files = {f"f{n}": os.urandom(100) for n in range(60)}
        dataset = place.dataset(files)
        with place.open(cache=tmp_path / "few/cache") as store:
            store.stage(spec({"a": (dataset, "in")}), workdir)
        assert files_in(workdir / "in") == files
        assert len(messages(caplog)) == 1
        check(tmp_path / "few/cache")
    finally:
        subprocess.run(["umount", "-l", str(tmp_path / "few")], check=True)


def test_a_disk_that_may_only_be_read(place, workdir, small_disk, caplog):
    files = {"x": b"x" * 1000}
    dataset = place.dataset(files)
    with place.open(cache=small_disk / "cache") as store:
        store.get_bytes(digest(files["x"]))
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    with place.open(cache=small_disk / "cache") as store:
        store.stage(spec({"a": (dataset, "in")}), workdir, placement="hardlink")
        assert store.check_mounts(workdir, spec({"a": (dataset, "in")})) == []
    assert files_in(workdir / "in") == files
    (said,) = messages(caplog)
    assert "may not be written" in said


def test_a_quota(place, workdir):
    """A limit of what one process may write to one file."""
    large = b"l" * 2**20
    dataset = place.dataset({"large": large, "small": b"small"})
    (place.folder / "spec").write_bytes(spec({"a": (dataset, "in")}))
    child = run(
        """
import resource, logging
place = cache_kit.Place(arguments[0])
with place.open() as store:
    store.cache.rows([])  # the index is made before the limit holds
    resource.setrlimit(resource.RLIMIT_FSIZE, (2**19, resource.RLIM_INFINITY))
    assert store.get_bytes(arguments[2]) == b"l" * 2**20
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
""",
        place.folder,
        workdir,
        digest(large),
    )
    assert child.returncode == 0, child.stderr
    assert child.stderr.count("the cache is not used") == 1
    assert "File too large" in child.stderr
    assert os.listdir(f"{place.cache}/partial") == []
    check(place.cache)


def test_it_is_used_again_after_a_rest(place, small_disk, monkeypatch):
    (name,) = place.put(b"d" * 2**20)
    (small_disk / "other").write_bytes(bytes(3 * 2**20 + 500_000))
    with place.open(cache=small_disk / "cache") as store:
        store.get_bytes(name)
        assert store.reads.resting
        (small_disk / "other").unlink()
        store.get_bytes(name)
        assert place.reads()[name] == 2
        monkeypatch.setattr(reads_module.time, "monotonic", lambda: time.perf_counter() + 10**6)
        store.get_bytes(name)
        store.get_bytes(name)
        assert place.reads()[name] == 3
    check(small_disk / "cache")


_BECOME = """
import tempfile
user, group, umask = map(int, arguments[-3:])
with tempfile.TemporaryDirectory() as own:  # imports what will be needed, which this user may
    first = cache_kit.Place(own)
    document = agent_kit.spec({"a": (first.dataset({"x": b"x"}), "in")})
    os.mkdir(f"{own}/w")
    with first.open() as store:
        store.stage(document, f"{own}/w", placement="hardlink")[0].release()
os.umask(umask)
if user:
    os.setgroups([group] if group else [])
    os.setgid(user)
    os.setuid(user)
"""


def run(text, *arguments, user=0, group=0, umask=0o022):
    """Run a program as somebody; what it says."""
    return subprocess.run(
        [sys.executable, "-c", "import sys\narguments = sys.argv[1:]\n" + program(_BECOME + text)]
        + [str(each) for each in (*arguments, user, group, umask)],
        capture_output=True,
        text=True,
        timeout=120,
    )


_USE = """
place = cache_kit.Place(arguments[0])
cache, workdir, document, way = arguments[1], Path(arguments[2]), Path(arguments[3]).read_bytes(), arguments[4]
workdir.mkdir()
with place.open(cache=cache, budget=int(arguments[5])) as store:
    (mounted,) = store.stage(document, workdir, placement=way)
    assert mounted.release() == []
"""


@pytest.fixture
def shared(tmp_path):
    """A place that others may enter, outside of pytest's own folders, which they may not."""
    if not IS_ROOT:
        pytest.skip("needs the right to be another user")
    folder = Path(f"/dev/shm/oarbank-cas-shared-{os.getpid()}")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    os.chmod(folder, 0o777)
    yield folder
    shutil.rmtree(folder)


def opened(place):
    subprocess.run(["chmod", "-R", "a+rX", place.url], check=True)
    Path(place.log).touch()
    os.chmod(place.log, 0o666)


def test_a_cache_without_permission(shared):
    place = Place(shared)
    files = {"x": b"x" * 1000}
    (shared / "spec").write_bytes(spec({"a": (place.dataset(files), "in")}))
    opened(place)
    os.mkdir(place.cache, 0o755)
    for cache in (place.cache, "/root/cache", "/proc/nowhere"):
        workdir = shared / f"w{len(os.listdir(shared))}"
        child = run(_USE, shared, cache, workdir, shared / "spec", "hardlink", 2**30, user=NOBODY)
        assert child.returncode == 0, child.stderr
        assert child.stderr.count("the cache is not used") == 1
        assert files_in(workdir / "in") == files
    assert os.listdir(place.cache) == []


@pytest.mark.parametrize("way", ["auto", "hardlink"])
@pytest.mark.parametrize("umask", [0o022, 0o077, 0o002])
def test_two_users_share_a_cache_by_their_group(shared, way, umask):
    place = Place(shared)
    pieces = [bytes([number]) * 1000 for number in range(9)]
    for number in range(3):
        dataset = place.dataset({f"f{n}": pieces[number * 3 + n] for n in range(3)})
        (shared / f"spec{number}").write_bytes(spec({"a": (dataset, "in")}))
    opened(place)
    os.mkdir(place.cache)
    os.chown(place.cache, 0, GROUP)
    os.chmod(place.cache, 0o2770)
    users = [NOBODY, SOMEBODY]
    for turn, number in enumerate([0, 0, 1, 0, 1, 2, 2, 1, 0, 1]):
        workdir = shared / f"w{turn}"
        given = (shared, place.cache, workdir, shared / f"spec{number}", way, 8000)
        child = run(_USE, *given, user=users[turn % 2], group=GROUP, umask=umask)
        assert child.returncode == 0, child.stderr
        assert child.stderr == ""
        assert len(files_in(workdir / "in")) == 3
        if way == "hardlink":
            shutil.rmtree(workdir)
    assert sum(place.reads().values()) < 10 * 4 / 2, "they did share"
    assert max(place.reads().values()) > 1, "they did evict each other's"
    for file in Path(place.cache).rglob("*"):
        st = os.lstat(file)
        assert st.st_gid == GROUP, file
        assert stat.S_IMODE(st.st_mode) & 0o007 == 0, file
    check(place.cache, 8000)


def test_a_private_cache_lets_nobody_in(shared):
    place = Place(shared)
    (shared / "spec").write_bytes(spec({"a": (place.dataset({"x": b"x"}), "in")}))
    opened(place)
    for user in (NOBODY, SOMEBODY):
        given = (shared, place.cache, shared / f"w{user}", shared / "spec", "auto", 2**30)
        child = run(_USE, *given, user=user, umask=0o077)
        assert child.returncode == 0, child.stderr
        assert ("the cache is not used" in child.stderr) == (user == SOMEBODY)
    for file in [Path(place.cache), *Path(place.cache).rglob("*")]:
        assert stat.S_IMODE(os.lstat(file).st_mode) & 0o077 == 0, file
