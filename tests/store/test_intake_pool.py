"""Small files that other processes take: stored as if this one had put them, whatever is odd about some of them."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from oarbank_cas import intake_pool, intake_worker, layout
from oarbank_cas.agent.workdir import Folder, LocalSource
from oarbank_cas.backends import oscalls
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


def change_worker(monkeypatch, folder, before, after):
    """Have the processes run another program: the real one but for one place."""
    source = Path(intake_worker.__file__).read_text()
    assert source.count(before) == 1
    path = folder / "worker.py"
    path.write_text(source.replace(before, after))
    monkeypatch.setattr(intake_worker, "__file__", str(path))


@pytest.fixture(params=["unnamed", "named", "few unnamed"])
def temporaries(request, monkeypatch, tmp_path):
    """Whether temporaries may be files without a name: all of them, none, or as many as a process may have open."""
    if request.param == "named":
        change_worker(monkeypatch, tmp_path, 'if not hasattr(os, "O_TMPFILE"):', "if True:")
    elif request.param == "few unnamed":
        change_worker(monkeypatch, tmp_path, "max(0, most - _SPARE_DESCRIPTORS)", "20")
    return request.param


@pytest.fixture
def disk(tmp_path, monkeypatch, temporaries):
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
    def full(items, namer):
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


@pytest.fixture
def naming(monkeypatch):
    """What the processes were asked to name, and what they said."""
    asked = []
    name = intake_pool.IntakePool.name

    def told(self, pairs):
        answers = name(self, pairs)
        asked.extend(zip(pairs, answers, strict=True))
        return answers

    monkeypatch.setattr(intake_pool.IntakePool, "name", told)
    return asked


def test_they_are_named_elsewhere_too(disk, names, naming):
    check(disk, names, disk.put(names))
    assert len(naming) == len(disk.stored())
    assert all(answer is True for _, answer in naming)


def test_what_another_has_named_meanwhile_stands(disk, names, naming, monkeypatch):
    """It looks absent when it is taken, and is there when it is to get its name."""
    create = LocalBackend.create_many
    inodes = []

    def late(self, items, namer=None):
        if len(items) > COUNT // 2:
            with Intake(LocalBackend(disk.root, layout.DESCRIPTOR), disk.blobs) as other:
                for name in names[:100]:
                    other.add_bytes((disk.files / name).read_bytes())
                other.commit()
            inodes.append(disk.stored())
        return create(self, items, namer)

    monkeypatch.setattr(LocalBackend, "create_many", late)
    check(disk, names, disk.put(names))
    assert [answer for _, answer in naming].count(False) == len(inodes[0]) > 50
    assert inodes[0].items() <= disk.stored().items()


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_process_that_is_killed_while_it_names(disk, names, naming, monkeypatch, when):
    """What it did by then counts, told or not; the rest is named here, if it can, or by the next try."""
    ask = intake_pool.IntakePool._ask

    def killed(self, number, verb, items):
        if verb != intake_worker.NAME or number:
            return ask(self, number, verb, items)
        if when == "after":
            ask(self, number, verb, items)
        self._processes[0].kill()
        self._processes[0].wait()
        return ask(self, number, verb, items[:0])

    monkeypatch.setattr(intake_pool.IntakePool, "_ask", killed)
    put_after_all(disk, names, monkeypatch)
    assert any(answer is None for _, answer in naming)


def test_a_filesystem_without_links(disk, names, naming, monkeypatch, tmp_path):
    change_worker(monkeypatch, tmp_path, "os.link(temporary, path)", "raise PermissionError(1, 'no links here')")
    change_worker(
        monkeypatch,
        tmp_path,
        'os.link(f"/proc/self/fd/{fd}", path, src_dir_fd=self._at)',
        "raise PermissionError(1, 'no links here')",
    )
    check(disk, names, disk.put(names))
    assert {answer for _, answer in naming} == {None}
    assert not any(temporary.startswith(intake_worker.UNNAMED) for (temporary, _), _ in naming)


def test_temporaries_without_names(disk, names, naming, temporaries):
    """As many as a process may have open."""
    check(disk, names, disk.put(names))
    unnamed = [temporary for (temporary, _), _ in naming if temporary.startswith(intake_worker.UNNAMED)]
    if temporaries == "few unnamed":
        assert 20 <= len(unnamed) < len(naming)
    else:
        assert len(unnamed) == (len(naming) if temporaries == "unnamed" else 0)


def test_a_name_that_cannot_be_given_is_told(disk, names, monkeypatch, tmp_path):
    """As on a disk that is full, or where somebody removes folders."""
    change_worker(
        monkeypatch,
        tmp_path,
        'os.link(f"/proc/self/fd/{fd}", path, src_dir_fd=self._at)',
        """if "/blobs/5" in path:
            raise OSError(28, 'No space left on device')
        os.link(f"/proc/self/fd/{fd}", path, src_dir_fd=self._at)""",
    )
    put_after_all(disk, names, monkeypatch)


def put_after_all(disk, names, monkeypatch):
    """Bytes that a process alone had are lost with it, which is told; the next try brings them."""
    error = None
    try:
        blobs = disk.put(names)
    except StorageIOError as found:
        error = found
    if error is not None:
        assert "run this again" in str(error)
        whole = {layout.blob(digest_of(data)): data for data in ((disk.files / name).read_bytes() for name in names)}
        assert all((disk.root / name).read_bytes() == whole[name] for name in disk.stored())
        monkeypatch.undo()
        monkeypatch.setattr(intake_pool, "FEWEST", COUNT)
        blobs = disk.put(names)
    check(disk, names, blobs)


def test_bytes_are_durable_before_they_are_named(disk, names, naming, monkeypatch):
    events = []
    sync = oscalls.sync_filesystem
    monkeypatch.setattr(oscalls, "sync_filesystem", lambda fd: (events.append(len(naming)), sync(fd)))
    disk.put(names)
    assert events[0] == 0
    assert events[-1] == len(naming) > 0


def test_a_process_that_is_stuck_while_it_names_is_not_waited_for(disk, names, monkeypatch):
    ask = intake_pool.IntakePool._ask

    def stuck(self, number, verb, items):
        if verb == intake_worker.NAME:
            self._processes[number].send_signal(signal.SIGSTOP)
        return ask(self, number, verb, items)

    monkeypatch.setattr(intake_pool.IntakePool, "_ask", stuck)
    began = time.monotonic()
    with pytest.raises(StoppedError), Stop(2):
        disk.put(names)
    assert time.monotonic() - began < 30


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
    monkeypatch.setattr("oarbank_cas.pending._STAGE_FILES", 50)
    check(disk, names, disk.put(names))
    assert disk.left == []


def test_no_process_can_be_started(disk, names, monkeypatch):
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    check(disk, names, disk.put(names))
    assert len(disk.left) == COUNT


def test_only_the_second_process_can_be_started(disk, names, naming, monkeypatch):
    starts, start = [], subprocess.Popen

    def sometimes(*arguments, **more):
        starts.append(None)
        if len(starts) == 1:
            raise OSError("no more processes")
        return start(*arguments, **more)

    monkeypatch.setattr(intake_pool.subprocess, "Popen", sometimes)
    check(disk, names, disk.put(names))
    assert all(answer is True for _, answer in naming)
    assert len(naming) == len(disk.stored())


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
    put_after_all(disk, names, monkeypatch)
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


def test_an_error_here_ends_them(disk, names):
    told = []

    def refused(size):
        told.append(size)
        if len(told) == 30:
            raise InvalidInputError("no more", "batch")

    no_more = pytest.raises(InvalidInputError, match="no more")
    with no_more, Folder(disk.files) as top, Intake(disk.backend, disk.blobs) as intake:
        intake.add_files([LocalSource(top, name) for name in names], refused)
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
