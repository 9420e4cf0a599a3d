"""Small files that other processes take: stored as if this one had put them, whatever is odd about some of them."""

from __future__ import annotations

import hashlib
import os
import signal
import sys
import threading
import time
from pathlib import Path

import pytest

from oarbank_cas import intake_pool, intake_worker, layout
from oarbank_cas.agent.workdir import Folder, LocalSource
from oarbank_cas.backends.local import LocalBackend
from oarbank_cas.blobs import Blobs
from oarbank_cas.errors import CasError, InvalidInputError, StoppedError, StorageIOError
from oarbank_cas.intake import Intake
from oarbank_cas.sources import PathSource
from oarbank_cas.stopping import Stop

pytestmark = pytest.mark.skipif(not intake_pool.is_possible(), reason="other processes do not help here")

COUNT = 700


def digest_of(data):
    return hashlib.sha256(data).hexdigest()


class Disk:
    """A store on disk, a folder of files to put, and what the processes left for this one to do."""

    def __init__(self, folder):
        self.root, self.files = folder / "store", folder / "files"
        self.root.mkdir()
        self.files.mkdir()
        (self.root / layout.DESCRIPTOR).write_text("{}")
        self.backend = LocalBackend(self.root, layout.DESCRIPTOR)
        self.blobs = Blobs(self.backend, 3600)
        self.left = None
        self.may_leave = False
        """Temporaries that a killed process did not tell of: they go with this process's own."""

    def write(self, name, data):
        path = self.files / name
        path.parent.mkdir(exist_ok=True, parents=True)
        path.write_bytes(data)

    def put(self, names, source=None):
        """Put files; their blobs."""
        with Folder(self.files) as top, Intake(self.backend, self.blobs) as intake:
            make = source or (lambda name: LocalSource(top, name))
            blobs = intake.add_files([make(name) for name in names])
            hold = intake.commit()
        assert hold.sizes == {blob.digest: blob.size for blob in blobs}
        return blobs

    def stored(self):
        return {stat.name: stat.validator for stat in self.backend.listing(layout.BLOBS)}


@pytest.fixture
def disk(tmp_path, monkeypatch):
    """Leaves nothing behind: no temporary, no process, no descriptor."""
    found = Disk(tmp_path)
    take, pools = intake_pool.IntakePool.take, []

    def told(self, sources, use):
        pools.append(self)
        left = take(self, sources, use)
        found.left = [sources[index].label for index in left]
        return left

    monkeypatch.setattr(intake_pool.IntakePool, "take", told)
    monkeypatch.setattr(intake_pool, "FEWEST", COUNT)
    descriptors = len(os.listdir("/proc/self/fd"))
    yield found
    (scratch,) = [path for path in (found.root / "tmp").iterdir() if path.name != "locks"]
    assert os.listdir(scratch) == ["lock"] or found.may_leave
    found.backend.close()
    assert not scratch.exists()
    assert len(os.listdir("/proc/self/fd")) <= descriptors
    assert all(process.returncode is not None for pool in pools for process in pool._processes)


@pytest.fixture
def names(disk):
    """Files of all small sizes, some alike, in several folders."""
    found = [f"d{number % 3}/e/f{number}" for number in range(COUNT)]
    for number, name in enumerate(found):
        disk.write(name, b"%d " % (number % 600) * (number % 40))
    return found


def check(disk, names, blobs):
    """Every file is there, once, byte for byte, read-only, as the umask wants it."""
    contents = [(disk.files / name).read_bytes() for name in names]
    assert [(blob.digest, blob.size) for blob in blobs] == [(digest_of(data), len(data)) for data in contents]
    for data in contents:
        path = disk.root / layout.blob(digest_of(data))
        assert path.read_bytes() == data
        assert path.stat().st_mode & 0o777 == 0o444
        assert path.stat().st_nlink == 1


def test_all_are_taken(disk, names):
    blobs = disk.put(names)
    assert disk.left == []
    check(disk, names, blobs)
    assert sum(blob.new for blob in blobs) == len(disk.stored()) == len({blob.digest for blob in blobs})


def test_what_is_there_is_not_written_again(disk, names):
    disk.put(names[: COUNT // 2] * 2)
    before = disk.stored()
    blobs = disk.put(names)
    check(disk, names, blobs)
    assert disk.left == []
    assert before.items() <= disk.stored().items()
    assert sum(blob.new for blob in blobs) == len(disk.stored()) - len(before)
    assert not any(blob.new for blob in disk.put(names))


def test_what_is_there_is_made_durable_too(disk, names, monkeypatch):
    """Another process may have made it visible a moment ago, and not flushed it yet."""
    disk.put(names)
    flushed = []
    monkeypatch.setattr(disk.backend, "flush", flushed.extend)
    disk.put(names)
    assert set(flushed) == set(disk.stored())


def test_what_fails_while_the_caller_goes_on_is_told_by_the_commit(disk, monkeypatch):
    def full(items):
        if items:
            raise StorageIOError("No space left on device")
        return []

    with Intake(disk.backend, disk.blobs) as intake:
        intake.add_bytes(b"1")
        intake.add_bytes(b"2")
        monkeypatch.setattr(disk.backend, "create_many", full)
        intake.settle()
        with pytest.raises(StorageIOError, match="No space"):
            intake.commit()
    assert disk.stored() == {}


def test_a_path_that_any_program_takes(disk, names, monkeypatch):
    """Relative to here, through links."""
    (disk.files / "link").symlink_to(names[0])
    monkeypatch.chdir(disk.files)
    blobs = disk.put([*names, "link"], PathSource)
    assert disk.left == []
    assert blobs[-1].digest == blobs[0].digest
    check(disk, names, blobs[:-1])


def test_large_files_and_links_inside_are_put_by_the_asking_process(disk, names):
    disk.write("large", bytes(2**20))
    disk.write("just", bytes(2**18))
    (disk.files / "link").symlink_to("large")
    odd = ["large", "link", "just"]
    blobs = disk.put([*names, *odd])
    assert disk.left == ["large", "link"]
    assert blobs[-2].digest == blobs[-3].digest
    check(disk, [*names, *odd], blobs)


@pytest.mark.parametrize("kind", ["missing", "pipe", "folder", "link outside", "linked folder"])
def test_what_is_no_file_of_the_folder_is_refused_by_name(disk, names, kind, tmp_path):
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "odd").write_bytes(b"secret")
    path = disk.files / "odd"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind == "link outside":
        path.symlink_to(tmp_path / "outside" / "odd")
    elif kind == "linked folder":
        (disk.files / "f").symlink_to(tmp_path / "outside")
    odd = "f/odd" if kind == "linked folder" else "odd"
    with pytest.raises(InvalidInputError, match=odd):
        disk.put([*names, odd])
    assert layout.blob(digest_of(b"secret")) not in disk.stored()


@pytest.mark.parametrize("standing", ["folder", "other size"])
def test_something_else_in_a_blobs_place(disk, names, standing):
    """Bytes of another size are set aside, and the blob is stored; what is no file at all is an error that names it."""
    data = (disk.files / names[5]).read_bytes()
    path = disk.root / layout.blob(digest_of(data))
    path.parent.mkdir(parents=True)
    if standing == "folder":
        path.mkdir()
        with pytest.raises(CasError, match=digest_of(data)):
            disk.put(names)
        path.rmdir()
    else:
        path.write_bytes(b"cut")
    check(disk, names, disk.put(names))


def test_a_store_in_stages_while_it_is_taken(disk, names, monkeypatch):
    monkeypatch.setattr("oarbank_cas.intake._STAGE_FILES", 50)
    check(disk, names, disk.put(names))
    assert disk.left == []


def test_no_process_can_be_started(disk, names, monkeypatch):
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    check(disk, names, disk.put(names))
    assert len(disk.left) == COUNT


def test_processes_that_end_at_once(disk, names, monkeypatch):
    monkeypatch.setattr(sys, "executable", "/bin/false")
    check(disk, names, disk.put(names))
    assert len(disk.left) == COUNT


@pytest.mark.parametrize("killed", [1, 8])
def test_processes_that_are_killed(disk, names, monkeypatch, killed):
    """One of them, or all, in the middle of it."""
    disk.may_leave = True
    answers, pools = [], []
    receive, start = intake_worker.receive, intake_pool.IntakePool.__init__

    def received(stream):
        answers.append(None)
        if len(answers) == 2:
            for process in pools[0]._processes[:killed]:
                process.send_signal(signal.SIGKILL)
                process.wait()
        return receive(stream)

    def started(self, *arguments):
        start(self, *arguments)
        pools.append(self)

    monkeypatch.setattr(intake_worker, "receive", received)
    monkeypatch.setattr(intake_pool.IntakePool, "__init__", started)
    monkeypatch.setattr(intake_pool, "_BATCH", 50)
    check(disk, names, disk.put(names))
    assert 0 < len(disk.left) < COUNT or killed > 1


@pytest.mark.parametrize("way", ["deadline", "cancel"])
def test_a_process_that_is_stuck_is_not_waited_for(disk, names, monkeypatch, way):
    """As one is whose work directory is on a disk that is gone."""
    start = intake_pool.IntakePool.__init__
    stop = Stop(1 if way == "deadline" else None)

    def started(self, *arguments):
        start(self, *arguments)
        for process in self._processes:
            process.send_signal(signal.SIGSTOP)
        if way == "cancel":
            threading.Timer(0.5, stop.cancel).start()

    monkeypatch.setattr(intake_pool.IntakePool, "__init__", started)
    began = time.monotonic()
    disk.may_leave = True
    with pytest.raises(StoppedError), stop:
        disk.put(names)
    assert time.monotonic() - began < 30
    assert disk.stored() == {}
    monkeypatch.setattr(intake_pool.IntakePool, "__init__", start)
    check(disk, names, disk.put(names))


def test_an_error_here_ends_them(disk, names, monkeypatch):
    taken, take = [], Intake._take

    def refused(self, digest, incoming):
        taken.append(digest)
        if len(taken) == 30:
            incoming.discard()
            raise InvalidInputError("no more", "batch")
        return take(self, digest, incoming)

    monkeypatch.setattr(Intake, "_take", refused)
    with pytest.raises(InvalidInputError, match="no more"):
        disk.put(names)
    assert disk.stored() == {}


def test_a_file_that_changes_while_it_is_read_is_left(tmp_path, monkeypatch):
    path = tmp_path / "file"
    path.write_bytes(b"as it was")
    read = os.read

    def reading(fd, size):
        data = read(fd, size)
        os.utime(path, ns=(1, 1))
        return data

    worker = intake_worker.Worker(f"{tmp_path}/blobs/", f"{tmp_path}/t-", 100)
    monkeypatch.setattr(os, "read", reading)
    assert worker.take(None, str(path)) is None
    monkeypatch.undo()
    assert worker.take(None, str(path)) == (digest_of(b"as it was"), 9, f"{tmp_path}/t-1")
    assert os.listdir(tmp_path) == ["file", "t-1"] or os.listdir(tmp_path) == ["t-1", "file"]


def test_a_write_that_is_cut_short_leaves_nothing(tmp_path, monkeypatch):
    path = tmp_path / "file"
    path.write_bytes(b"123456789")
    write = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: write(fd, data[:3]))
    assert intake_worker.Worker(f"{tmp_path}/blobs/", f"{tmp_path}/t-", 100).take(None, str(path)) is None
    assert os.listdir(tmp_path) == ["file"]


def test_many_folders_are_not_all_kept_open(tmp_path):
    worker = intake_worker.Worker(f"{tmp_path}/blobs/", f"{tmp_path}/t-", 100)
    before = len(os.listdir("/proc/self/fd"))
    top = os.open(tmp_path, os.O_RDONLY)
    for number in range(300):
        Path(tmp_path / f"d{number}" / "e").mkdir(parents=True)
        Path(tmp_path / f"d{number}" / "e" / "f").write_bytes(b"%d" % number)
        assert worker.take(top, f"d{number}/e/f")[0] == digest_of(b"%d" % number)
    assert len(os.listdir("/proc/self/fd")) < before + 70
    for fd in [top, *worker._directories.values()]:
        os.close(fd)
