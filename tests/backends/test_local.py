"""What holds for a store on disk beyond the suite that every backend passes."""

from __future__ import annotations

import errno
import os
import signal
import stat
import subprocess
import sys
import threading
import time

import pytest

from oarbank_cas import filelock
from oarbank_cas.backends import local as local_module
from oarbank_cas.backends import oscalls, scratch
from oarbank_cas.backends.local import LocalBackend
from oarbank_cas.errors import (
    CasError,
    CorruptError,
    NotFoundError,
    PermissionDeniedError,
    StorageIOError,
    UnavailableError,
    UnsupportedError,
)

LIMIT = 2**20
SENTINEL = "oarbank-cas.json"

pytestmark = [
    pytest.mark.skipif(os.name == "nt", reason="POSIX modes, links and signals"),
    pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning"),  # the children here do little, and end at once
]


def tmp_of(backend):
    """The folders of temporaries that stand, without the locks."""
    tmp = os.path.join(backend.where, "tmp")
    return sorted(name for name in os.listdir(tmp) if name != "locks") if os.path.isdir(tmp) else []


def in_a_child(work):
    """Run `work` in a forked child; it must end without an exception."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            work()
            code = 0
        except BaseException as error:  # noqa: BLE001 - told on stderr
            os.write(2, f"{type(error).__name__}: {error}\n".encode())
        finally:
            os._exit(code)
    assert os.waitpid(pid, 0)[1] == 0


CALLS = {
    "now": lambda b, put: b.now(),
    "stat": lambda b, put: b.stat("x/a"),
    "read": lambda b, put: b.read("x/a", LIMIT),
    "open": lambda b, put: b.open("x/a"),
    "incoming": lambda b, put: b.incoming(),
    "commit": lambda b, put: put(b, "x/new", b"1"),
    "delete": lambda b, put: b.delete("x/a"),
    "delete one": lambda b, put: b.delete("x/a", "validator"),
    "copy": lambda b, put: b.copy("x/a", "x/b"),
    "rename": lambda b, put: b.rename("x/a", "x/b", "validator"),
    "touch": lambda b, put: b.touch("x/a"),
    "listing": lambda b, put: list(b.listing("x/")),
    "strays": lambda b, put: list(b.strays("x/")),
    "listing of all": lambda b, put: list(b.listing("")),
    "flush": lambda b, put: b.flush(["x/a"]),
    "flush of many": lambda b, put: b.flush([f"x{n}/a" for n in range(20)]),
    "sweep": lambda b, put: b.sweep(),
}


class TestAStoreThatIsNotThere:
    """Its disk is not mounted: the empty folder below must be neither read as an empty store nor written to."""

    @pytest.fixture(params=["gone", "empty folder"])
    def unmounted(self, request, disk, put):
        """A function that takes the store away, and brings it back."""
        put(disk, "x/a", b"1")
        aside = disk.where + ".aside"

        def unmount():
            os.rename(disk.where, aside)
            if request.param == "empty folder":
                os.mkdir(disk.where)

        yield unmount
        if os.path.exists(aside):
            if os.path.exists(disk.where):
                assert os.listdir(disk.where) == []
                os.rmdir(disk.where)
            os.rename(aside, disk.where)

    @pytest.mark.parametrize("call", CALLS)
    def test_every_call_raises(self, disk, put, unmounted, call):
        unmounted()
        with pytest.raises(UnavailableError):
            CALLS[call](disk, put)

    @pytest.mark.parametrize("call", CALLS)
    def test_every_call_raises_in_a_process_that_never_saw_it(self, disk, put, unmounted, call):
        unmounted()
        fresh = LocalBackend(disk.where, SENTINEL)
        with pytest.raises(UnavailableError):
            CALLS[call](fresh, put)
        fresh.close()

    @pytest.mark.parametrize("pieces", [1, 20])
    def test_what_was_on_its_way_in_is_not_committed(self, disk, unmounted, pieces):
        items = [(f"x{n}/new", disk.incoming()) for n in range(pieces)]
        for _, incoming in items:
            incoming.write(b"1")
        unmounted()
        with pytest.raises(UnavailableError):
            disk.commit(items)

    def test_what_was_to_replace_is_not_written(self, disk, unmounted):
        incoming = disk.incoming()
        incoming.write(b"1")
        validator = disk.stat("x/a").validator
        unmounted()
        with pytest.raises(UnavailableError):
            disk.replace("x/a", incoming, validator)

    def test_closing_is_harmless(self, disk, unmounted):
        disk.incoming().write(b"1")
        unmounted()
        disk.close()


class TestPlantedThings:
    """A link, a pipe or a folder under an object's name is damage, said clearly, and never waited for."""

    @pytest.fixture(params=["link to a file", "dangling link", "pipe", "folder"])
    def planted(self, request, disk, put, tmp_path):
        put(disk, "x/other", b"other")
        path = os.path.join(disk.where, "x", "a")
        secret = tmp_path / "secret"
        secret.write_text("secret")
        os.utime(secret, (1, 1))
        {
            "link to a file": lambda: os.symlink(secret, path),
            "dangling link": lambda: os.symlink("nowhere", path),
            "pipe": lambda: os.mkfifo(path),
            "folder": lambda: os.mkdir(path),
        }[request.param]()
        yield disk
        assert os.path.lexists(path)
        assert secret.read_text() == "secret"
        assert os.stat(secret).st_mtime == 1

    def test_reading_says_so(self, planted):
        for call in (planted.stat, planted.open, lambda name: planted.read(name, LIMIT), planted.touch):
            with pytest.raises(CorruptError, match="x/a"):
                call("x/a")

    def test_it_is_not_copied_moved_or_removed(self, planted):
        for call in (
            lambda: planted.copy("x/a", "x/b"),
            lambda: planted.rename("x/a", "x/b", "validator"),
            lambda: planted.delete("x/a"),
            lambda: planted.delete("x/a", "validator"),
        ):
            with pytest.raises(CorruptError, match="x/a"):
                call()
        assert planted.stat("x/b") is None

    def test_it_is_not_replaced(self, planted, put, swap):
        assert put(planted, "x/a", b"new") is None
        with pytest.raises(CorruptError, match="x/a"):
            swap(planted, "x/a", b"new", "validator")

    def test_it_is_no_object_in_a_listing(self, planted):
        assert [found.name for found in planted.listing("x/")] == ["x/other"]

    def test_it_is_told_where_strays_are_asked_for(self, planted):
        is_folder = os.path.isdir(os.path.join(planted.where, "x", "a")) and not os.path.islink(
            os.path.join(planted.where, "x", "a")
        )
        assert [name for name, _ in planted.strays("x/")] == ([] if is_folder else ["x/a"])

    def test_a_link_to_a_folder_is_not_left_out_of_a_listing(self, disk, put, tmp_path):
        put(disk, "x/ab/one", b"1")
        os.rename(os.path.join(disk.where, "x", "ab"), tmp_path / "elsewhere")
        os.symlink(tmp_path / "elsewhere", os.path.join(disk.where, "x", "ab"))
        assert disk.read("x/ab/one", LIMIT)[0] == b"1"
        with pytest.raises(CorruptError, match="x/ab"):
            list(disk.listing("x/"))

    @pytest.mark.parametrize("link", ["x", "x/ab", "tmp/locks"])
    def test_a_folder_that_is_a_dangling_link_ends_in_an_error(self, disk, put, link):
        incoming = disk.incoming()
        path = os.path.join(disk.where, link)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        os.symlink("/nowhere/at/all", path)
        call = {"tmp/locks": lambda: disk.delete("x/ab/cd/a", "validator")}
        with pytest.raises(StorageIOError):
            call.get(link, lambda: disk.commit([("x/ab/cd/a", incoming)]))()
        incoming.discard()

    def test_a_store_may_be_reached_through_a_link(self, disk, put, tmp_path):
        os.symlink(disk.where, tmp_path / "link")
        linked = LocalBackend(tmp_path / "link", SENTINEL)
        linked.commit([(f"x/{n}/a", linked.incoming()) for n in range(20)])
        assert len(list(linked.listing("x/"))) == len(list(disk.listing("x/"))) == 20
        linked.close()


class TestScratch:
    """The folders of temporaries: a dead process's goes, a living one's stays."""

    WRITER = (
        "import sys, time\nfrom oarbank_cas.backends.local import LocalBackend\n"
        f"backend = LocalBackend(sys.argv[1], {SENTINEL!r})\n"
        "incoming = backend.incoming()\nincoming.write(b'x' * 100000)\n"
        "print('written', flush=True)\ntime.sleep(600)\n"
    )

    @pytest.fixture
    def writer(self, disk):
        """A process in the middle of a write."""
        child = subprocess.Popen([sys.executable, "-c", self.WRITER, disk.where], stdout=subprocess.PIPE, text=True)
        assert child.stdout.readline() == "written\n"
        yield child
        child.kill()
        child.wait()
        child.stdout.close()

    def test_the_next_writer_removes_what_a_killed_one_left(self, disk, writer, put):
        (left,) = tmp_of(disk)
        writer.send_signal(signal.SIGKILL)
        writer.wait()
        assert tmp_of(disk) == [left]
        put(disk, "x/a", b"1")
        assert left not in tmp_of(disk)
        assert len(tmp_of(disk)) == 1

    def test_sweeping_removes_the_dead_and_says_how_many(self, disk, writer):
        assert disk.sweep() == 0
        writer.send_signal(signal.SIGKILL)
        writer.wait()
        assert disk.sweep() == 1
        assert tmp_of(disk) == []

    def test_a_living_writer_keeps_its_own(self, disk, writer, put):
        (left,) = tmp_of(disk)
        held = os.listdir(os.path.join(disk.where, "tmp", left))
        put(disk, "x/a", b"1")
        assert disk.sweep() == 0
        assert os.listdir(os.path.join(disk.where, "tmp", left)) == held

    def test_nothing_is_left_after_closing(self, disk, put):
        disk.incoming().write(b"never committed")
        put(disk, "x/a", b"1")
        disk.close()
        assert tmp_of(disk) == []

    def test_nothing_is_left_when_a_process_just_ends(self, disk, race):
        program = (
            "from oarbank_cas.backends.local import LocalBackend\n"
            f"backend = LocalBackend(arguments[0], {SENTINEL!r})\n"
            "backend.incoming().write(b'1')\nready()\nanswer(None)\n"
        )
        race(program, [disk.where])
        assert tmp_of(disk) == []

    def test_a_closed_backend_may_be_used_again(self, disk, put):
        put(disk, "x/a", b"1")
        disk.close()
        put(disk, "x/b", b"2")
        disk.close()
        assert tmp_of(disk) == []

    def test_a_forked_child_has_its_own_and_leaves_its_parents(self, disk, put):
        incoming = disk.incoming()
        incoming.write(b"parent")

        def child():
            put(disk, "x/child", b"child")
            disk.close()

        in_a_child(child)
        incoming.write(b"!")
        disk.commit([("x/parent", incoming)])
        assert disk.read("x/parent", LIMIT)[0] == b"parent!"
        assert disk.read("x/child", LIMIT)[0] == b"child"
        assert len(tmp_of(disk)) == 1

    def test_a_forked_child_that_closes_removes_nothing(self, disk):
        incoming = disk.incoming()
        in_a_child(disk.close)
        disk.commit([("x/a", incoming)])
        assert disk.stat("x/a") is not None

    def test_a_writer_whose_folder_was_emptied_begins_again(self, disk, put):
        put(disk, "x/a", b"1")
        (own,) = tmp_of(disk)
        os.unlink(os.path.join(disk.where, "tmp", own, "lock"))
        os.rmdir(os.path.join(disk.where, "tmp", own))
        put(disk, "x/b", b"2")
        assert disk.read("x/b", LIMIT)[0] == b"2"

    def test_a_temporary_that_was_taken_away_is_an_error(self, disk):
        incoming = disk.incoming()
        (own,) = tmp_of(disk)
        for name in os.listdir(os.path.join(disk.where, "tmp", own)):
            if name != "lock":
                os.unlink(os.path.join(disk.where, "tmp", own, name))
        with pytest.raises(CasError):
            disk.commit([("x/a", incoming)])
        assert disk.stat("x/a") is None

    def dead_folder(self, disk, host=None, age_s=0):
        path = os.path.join(disk.where, "tmp", f"{host or scratch._host()}-1-{'0' * 12}")
        os.makedirs(path)
        for name in ("lock", "1"):
            with open(os.path.join(path, name), "w"):
                pass
        for name in (os.path.join(path, "lock"), os.path.join(path, "1"), path):
            os.utime(name, (time.time() - age_s,) * 2)
        return path

    def test_another_hosts_folder_must_have_lain_still(self, disk):
        path = self.dead_folder(disk, "elsewhere", scratch.FOREIGN_QUIET_S - 60)
        assert disk.sweep() == 0
        assert os.path.exists(path)

    def test_another_hosts_folder_goes_in_the_end(self, disk):
        path = self.dead_folder(disk, "elsewhere", scratch.FOREIGN_QUIET_S + 60)
        assert disk.sweep() == 1
        assert not os.path.exists(path)

    def test_another_host_that_still_writes_one_long_file_is_alive(self, disk):
        path = self.dead_folder(disk, "elsewhere", scratch.FOREIGN_QUIET_S + 60)
        os.utime(os.path.join(path, "1"))
        assert disk.sweep() == 0
        assert os.path.exists(path)

    def test_what_has_another_name_is_left_alone(self, disk):
        for name in ("mine", "host-1", "a-1-00000000000g"):
            os.makedirs(os.path.join(disk.where, "tmp", name))
        assert disk.sweep() == 0
        assert set(tmp_of(disk)) == {"mine", "host-1", "a-1-00000000000g"}

    def test_a_link_is_not_followed(self, disk, tmp_path):
        (tmp_path / "home").mkdir()
        (tmp_path / "home" / "thesis").write_text("years of work")
        os.makedirs(os.path.join(disk.where, "tmp"))
        os.symlink(tmp_path / "home", os.path.join(disk.where, "tmp", f"{scratch._host()}-1-{'0' * 12}"))
        assert disk.sweep() == 0
        assert (tmp_path / "home" / "thesis").read_text() == "years of work"

    def test_no_writer_fails_because_a_dead_ones_folder_cannot_go(self, disk, put):
        path = self.dead_folder(disk)
        os.mkdir(os.path.join(path, "stubborn"))
        assert put(disk, "x/a", b"1") is not None
        assert disk.sweep() == 0
        assert os.path.exists(os.path.join(path, "lock"))

    def test_no_writer_fails_because_a_dead_ones_lock_cannot_be_opened(self, disk, put):
        path = self.dead_folder(disk)
        os.unlink(os.path.join(path, "lock"))
        os.mkdir(os.path.join(path, "lock"))
        assert put(disk, "x/a", b"1") is not None
        assert disk.sweep() == 0

    @pytest.mark.parametrize("moment", ["before the lock file", "before the lock", "between both"])
    def test_a_sweep_during_the_making_of_a_folder(self, disk, put, monkeypatch, moment):
        tmp = os.path.join(disk.where, "tmp")
        swept = []

        def sweep_once():
            if not swept:
                swept.append(True)
                scratch.sweep(tmp)

        if moment == "before the lock file":
            mkdir = os.mkdir

            def make(path, *rest):
                mkdir(path, *rest)
                if os.path.basename(path).startswith(scratch._host()):
                    sweep_once()

            monkeypatch.setattr(os, "mkdir", make)
        elif moment == "before the lock":
            try_lock = filelock.try_lock

            def lock(fd):
                if not swept:
                    swept.append(True)
                    scratch.sweep(tmp)
                return try_lock(fd)

            monkeypatch.setattr(filelock, "try_lock", lock)
        else:  # the sweeper has the lock, and the maker's file comes after the sweeper removed its own
            monkeypatch.setattr(oscalls, "unlink", self._unlink_and_make_again)
            path = self.dead_folder(disk)
            assert put(disk, "x/a", b"1") is not None
            assert os.path.exists(path)
            monkeypatch.undo()
            assert disk.sweep() == 1
            return
        assert put(disk, "x/a", b"1") is not None
        assert swept
        assert len(tmp_of(disk)) == 1

    @staticmethod
    def _unlink_and_make_again(path):
        os.unlink(path)
        if os.path.basename(path) == "lock":
            with open(path, "w"):
                pass

    def test_a_lock_on_a_file_that_is_no_longer_there_is_none(self, disk, put, monkeypatch):
        try_lock = filelock.try_lock
        replaced = []

        def lock(fd):
            got = try_lock(fd)
            if not replaced:
                (own,) = tmp_of(disk)
                path = os.path.join(disk.where, "tmp", own, "lock")
                os.unlink(path)
                with open(path, "w"):
                    replaced.append(own)
            return got

        monkeypatch.setattr(filelock, "try_lock", lock)
        put(disk, "x/a", b"1")
        assert len(tmp_of(disk)) == 2
        monkeypatch.undo()
        assert disk.sweep() == 1
        assert tmp_of(disk) != replaced


class TestLocks:
    def test_a_child_forked_under_a_lock_does_not_keep_it(self, disk, put, swap):
        first = put(disk, "x/a", b"1")
        go, stop = os.pipe()
        with disk._place.locked("x/a"):
            pid = os.fork()
            if pid == 0:
                os.read(go, 1)
                os._exit(0)
        probe = os.open(os.path.join(disk.where, "tmp", "locks", os.listdir(disk.where + "/tmp/locks")[0]), os.O_RDWR)
        try:
            assert filelock.try_lock(probe)
        finally:
            os.close(probe)
            os.write(stop, b"x")
            os.waitpid(pid, 0)
            os.close(go)
            os.close(stop)
        assert swap(disk, "x/a", b"2", first.validator) is not None

    def test_a_second_look_waits_for_the_first_act(self, disk, put, swap):
        first = put(disk, "x/a", b"1")
        done = []
        with disk._place.locked("x/a"):
            waiter = threading.Thread(target=lambda: done.append(swap(disk, "x/a", b"2", first.validator)))
            waiter.start()
            os.unlink(os.path.join(disk.where, "x", "a"))
            assert done == []
        waiter.join()
        assert done == [None]


class TestModes:
    @pytest.fixture(params=[0o022, 0o027, 0o002, 0o077])
    def umask(self, request):
        before = os.umask(request.param)
        yield request.param
        os.umask(before)

    def test_objects_are_read_only_and_folders_obey_the_umask(self, disk, put, swap, umask):
        first = put(disk, "x/ab/a", b"1")
        put(disk, "x/cd/b", b"1")
        swap(disk, "x/ab/a", b"2", first.validator)
        disk.copy("x/ab/a", "y/c")
        disk.commit([(f"z/{n}/a", disk.incoming()) for n in range(6)])
        for folder, _, files in os.walk(disk.where):
            part = os.path.relpath(folder, disk.where)
            if part != "." and not part.startswith("tmp"):
                assert stat.S_IMODE(os.stat(folder).st_mode) == 0o777 & ~umask
                for name in files:
                    assert stat.S_IMODE(os.stat(os.path.join(folder, name)).st_mode) == 0o444 & ~umask
            elif part != ".":
                assert stat.S_IMODE(os.stat(folder).st_mode) == 0o777 & ~umask

    def test_a_group_shared_store_stays_group_shared(self, disk, put):
        if os.geteuid() != 0:
            pytest.skip("needs a second group")
        os.chown(disk.where, -1, 12345)
        os.chmod(disk.where, 0o2775)
        put(disk, "x/ab/a", b"1")
        for path in ("x", "x/ab", "x/ab/a", "tmp"):
            found = os.stat(os.path.join(disk.where, path))
            assert found.st_gid == 12345
            assert path == "x/ab/a" or found.st_mode & stat.S_ISGID

    def test_two_users_of_a_group_may_work_in_one_store(self, disk, put, swap):
        if os.geteuid() != 0:
            pytest.skip("needs two users")
        before = os.umask(0o002)
        try:
            os.chown(disk.where, -1, 12345)
            os.chmod(disk.where, 0o2775)
            first = put(disk, "x/ab/a", b"1")
            swap(disk, "x/ab/a", b"2", first.validator)
            reach(disk.where)

            def other():
                become(65534, 12345)
                stands = disk.stat("x/ab/a")
                assert swap(disk, "x/ab/a", b"3", stands.validator) is not None
                assert put(disk, "x/cd/b", b"4") is not None
                assert disk.delete("x/cd/b") is True
                disk.close()

            in_a_child(other)
        finally:
            os.umask(before)
        assert disk.read("x/ab/a", LIMIT)[0] == b"3"


def reach(path):
    """Let every user reach a path below the test's own folder."""
    while (path := os.path.dirname(path)) not in ("/", "/tmp"):
        try:
            os.chmod(path, os.stat(path).st_mode | 0o011)
        except PermissionError:
            return


def become(uid, gid=65534):
    os.setgroups([])
    os.setgid(gid)
    os.setuid(uid)


class TestPermissions:
    """A refusal is said as one, and never read as absence."""

    @pytest.fixture
    def as_nobody(self, disk):
        if os.geteuid() != 0:
            pytest.skip("needs root, to become another user")
        reach(disk.where)

        def run(work):
            def child():
                become(65534)
                work(LocalBackend(disk.where, SENTINEL))

            in_a_child(child)

        return run

    def test_a_store_that_may_not_be_read(self, disk, put, as_nobody):
        put(disk, "x/ab/a", b"1")
        os.chmod(os.path.join(disk.where, "x", "ab"), 0o700)

        def work(backend):
            for call in (
                lambda: backend.stat("x/ab/a"),
                lambda: backend.read("x/ab/a", LIMIT),
                lambda: backend.open("x/ab/a"),
                lambda: list(backend.listing("x/")),
            ):
                with pytest.raises(PermissionDeniedError):
                    call()

        as_nobody(work)

    def test_an_object_that_may_not_be_read(self, disk, put, as_nobody):
        put(disk, "x/ab/a", b"1")
        os.chmod(os.path.join(disk.where, "x", "ab", "a"), 0o400)

        def work(backend):
            assert backend.stat("x/ab/a").size == 1
            for call in (lambda: backend.read("x/ab/a", LIMIT), lambda: backend.open("x/ab/a")):
                with pytest.raises(PermissionDeniedError):
                    call()

        as_nobody(work)

    def test_a_store_that_may_only_be_read(self, disk, put, as_nobody):
        first = put(disk, "x/ab/a", b"1")

        def work(backend):
            assert backend.read("x/ab/a", LIMIT)[0] == b"1"
            for call in (
                backend.now,
                backend.incoming,
                lambda: backend.delete("x/ab/a"),
                lambda: backend.delete("x/ab/a", first.validator),
                lambda: backend.rename("x/ab/a", "x/ab/b", first.validator),
                lambda: backend.touch("x/ab/a"),
            ):
                with pytest.raises(PermissionDeniedError):
                    call()

        as_nobody(work)
        assert disk.stat("x/ab/a") == first


class TestErrors:
    @pytest.mark.parametrize(
        ("code", "kind"),
        [
            (errno.ENOSPC, StorageIOError),
            (errno.EIO, StorageIOError),
            (errno.EACCES, PermissionDeniedError),
            (errno.EROFS, PermissionDeniedError),
            (errno.ESTALE, UnavailableError),
            (errno.ENOTCONN, UnavailableError),
            (errno.ENOLCK, UnsupportedError),
        ],
    )
    @pytest.mark.parametrize("at", ["write", "flush", "rename", "flush of the folder"])
    def test_an_error_on_the_way_in_is_told_and_leaves_nothing(self, disk, put, monkeypatch, code, kind, at):
        disk.now()

        def fail(*_):
            raise OSError(code, os.strerror(code))

        if at == "write":
            monkeypatch.setattr(local_module.os, "write", fail)
        else:
            name = {"flush": "sync_file", "rename": "rename_new", "flush of the folder": "sync_directory"}[at]
            monkeypatch.setattr(oscalls, name, fail)
        with pytest.raises(kind):
            put(disk, "x/a", b"1")
        monkeypatch.undo()
        (own,) = tmp_of(disk)
        assert os.listdir(os.path.join(disk.where, "tmp", own)) == ["lock"]
        if at != "flush of the folder":
            assert disk.stat("x/a") is None

    def test_an_object_that_goes_at_once_was_made_all_the_same(self, disk, put, monkeypatch):
        rename_new = oscalls.rename_new

        def rename_and_lose(source, target):
            rename_new(source, target)
            os.unlink(target)

        monkeypatch.setattr(oscalls, "rename_new", rename_and_lose)
        before = disk.now()
        made = put(disk, "x/a", b"1")
        assert made.size == 1
        assert made.time_ns >= before
        assert disk.stat("x/a") is None

    def test_what_another_put_there_at_once_is_not_taken_for_the_made(self, disk, put, monkeypatch):
        rename_new = oscalls.rename_new
        other = os.path.join(disk.where, "other")

        def rename_and_lose(source, target):
            rename_new(source, target)
            with open(other, "w") as file:
                file.write("other")
            os.replace(other, target)

        monkeypatch.setattr(oscalls, "rename_new", rename_and_lose)
        made = put(disk, "x/a", b"1")
        assert made.size == 1
        assert disk.delete("x/a", made.validator) is False
        assert disk.read("x/a", LIMIT)[0] == b"other"

    def test_an_error_of_the_listing_is_no_short_listing(self, disk, put, monkeypatch):
        put(disk, "x/ab/a", b"1")
        put(disk, "x/cd/a", b"1")
        scandir = os.scandir

        def fail(path):
            if path.rstrip("/").endswith("cd"):
                raise OSError(errno.EIO, "Input/output error")
            return scandir(path)

        monkeypatch.setattr(os, "scandir", fail)
        with pytest.raises(StorageIOError):
            list(disk.listing("x/"))


class TestACoarseClock:
    """A file system whose times tick every 20 ms and that gives every new file the same inode number."""

    TICK = 20_000_000

    @pytest.fixture(autouse=True)
    def _coarse(self, monkeypatch):
        def coarsely(call):
            def look(*arguments, **options):
                found = call(*arguments, **options)
                values = list(found)[:10]
                if stat.S_ISREG(found.st_mode):
                    values[1] = 7
                times = {
                    f"st_{kind}time_ns": getattr(found, f"st_{kind}time_ns") // self.TICK * self.TICK for kind in "amc"
                }
                return os.stat_result(values, times)

            return look

        for name in ("lstat", "fstat"):
            monkeypatch.setattr(local_module.os, name, coarsely(getattr(os, name)))
        monkeypatch.setattr(scratch, "_is_at", lambda fd, path: os.path.exists(path))

    def test_validators_never_come_again_by_replacing(self, disk, put, swap):
        stats = [put(disk, "x/a", b"....")]
        for turn in range(20):
            stats.append(swap(disk, "x/a", b"%04d" % turn, stats[-1].validator))
        assert len({found.validator for found in stats}) == 21

    def test_validators_never_come_again_by_deleting(self, disk, put):
        seen = set()
        for turn in range(20):
            made = put(disk, "x/a", b"%04d" % turn)
            seen.add(made.validator)
            disk.delete("x/a", made.validator if turn % 2 else None)
        assert len(seen) == 20

    def test_validators_never_come_again_by_moving_away(self, disk, put):
        seen = set()
        for turn in range(20):
            made = put(disk, "x/a", b"%04d" % turn)
            seen.add(made.validator)
            disk.rename("x/a", f"y/{turn}", made.validator)
            disk.delete(f"y/{turn}")
        assert len(seen) == 20

    def test_nothing_is_older_than_the_time_asked_before_it(self, disk, put):
        for turn in range(20):
            before = disk.now()
            assert put(disk, f"x/{turn}", b"1").time_ns >= before


class TestProcesses:
    OPEN = f"from oarbank_cas.backends.local import LocalBackend\nbackend = LocalBackend(arguments[0], {SENTINEL!r})\n"

    def test_one_of_many_processes_creates(self, disk, race):
        program = self.OPEN + (
            "ready()\nwon = []\n"
            "for turn in range(40):\n"
            "    piece = backend.incoming()\n    piece.write(arguments[1].encode() * 50000)\n"
            "    if backend.commit([(f'x/{turn}', piece)])[0]:\n        won.append(turn)\n"
            "backend.close()\nanswer(won)\n"
        )
        won = race(program, *[(disk.where, n) for n in range(4)])
        assert sorted(turn for turns in won for turn in turns) == list(range(40))
        for number, turns in enumerate(won):
            for turn in turns:
                assert disk.read(f"x/{turn}", LIMIT)[0] == b"%d" % number * 50_000
        assert tmp_of(disk) == []

    def test_replacing_by_validator_loses_no_step(self, disk, put, race):
        put(disk, "x/counter", b"0")
        program = self.OPEN + (
            "ready()\ndone = 0\n"
            "while done < 25:\n"
            "    data, stat = backend.read('x/counter', 100)\n"
            "    piece = backend.incoming()\n    piece.write(b'%d' % (int(data) + 1))\n"
            "    done += backend.replace('x/counter', piece, stat.validator) is not None\n"
            "backend.close()\nanswer(done)\n"
        )
        assert race(program, *[[disk.where]] * 4) == [25] * 4
        assert disk.read("x/counter", 100)[0] == b"100"
        disk.close()
        assert tmp_of(disk) == []

    def test_no_half_object_is_ever_seen(self, disk, race):
        program = self.OPEN + (
            "from oarbank_cas.errors import NotFoundError\n"
            "size = 400000\nready()\nbad = seen = 0\n"
            "if arguments[1] == 'write':\n"
            "    for turn in range(40):\n"
            "        piece = backend.incoming()\n        piece.write(bytes([turn]) * size)\n"
            "        backend.commit([(f'x/{turn}', piece)])\n"
            "else:\n"
            "    for turn in range(40):\n"
            "        while True:\n"
            "            try:\n                data, stat = backend.read(f'x/{turn}', size)\n"
            "            except NotFoundError:\n                continue\n"
            "            seen += 1\n            bad += data != bytes([turn]) * size\n            break\n"
            "backend.close()\nanswer([seen, bad])\n"
        )
        writes, reads = race(program, (disk.where, "write"), (disk.where, "read"))
        assert writes == [0, 0]
        assert reads == [40, 0]


class TestWithoutRenameat2:
    """File systems that cannot rename without replacing: hard links do it, or nothing does."""

    @pytest.fixture(autouse=True)
    def _old_system(self, monkeypatch):
        monkeypatch.setattr(oscalls, "_linux_call", lambda _: None)

    @pytest.fixture
    def old_disk(self, disk):
        backend = LocalBackend(disk.where, SENTINEL)
        assert not backend.group_commit
        yield backend
        backend.close()
        assert tmp_of(backend) == []

    def test_hard_links_serve(self, old_disk, put, swap):
        first = put(old_disk, "x/a", b"1")
        assert put(old_disk, "x/a", b"2") is None
        second = swap(old_disk, "x/a", b"3", first.validator)
        assert old_disk.rename("x/a", "y/b", second.validator) is True
        assert old_disk.read("y/b", LIMIT)[0] == b"3"
        assert os.stat(os.path.join(old_disk.where, "y", "b")).st_nlink == 1
        old_disk.commit([(f"z/{n}/a", old_disk.incoming()) for n in range(10)])
        assert len(list(old_disk.listing("z/"))) == 10

    def test_without_both_the_storage_is_refused(self, old_disk, put, monkeypatch):
        def no_links(*_, **__):
            raise OSError(errno.EPERM, "Operation not permitted")

        monkeypatch.setattr(os, "link", no_links)
        with pytest.raises(UnsupportedError):
            put(old_disk, "x/a", b"1")
        monkeypatch.undo()
        assert old_disk.stat("x/a") is None

    def test_a_file_system_that_knows_no_flag_gets_links(self, disk, put, monkeypatch):
        import ctypes

        def invalid(*_):
            ctypes.set_errno(errno.EINVAL)
            return -1

        monkeypatch.setattr(oscalls, "_linux_call", lambda name: invalid if name == "renameat2" else None)
        assert put(disk, "x/a", b"1") is not None
        assert put(disk, "x/a", b"2") is None
        assert disk.read("x/a", LIMIT)[0] == b"1"


def test_a_store_without_its_sentinel_can_be_made(tmp_path, put):
    backend = LocalBackend(tmp_path / "new")
    assert backend.stat(SENTINEL) is None
    assert list(backend.listing("")) == []
    put(backend, SENTINEL, b"{}")
    backend.close()
    with pytest.raises(NotFoundError):
        LocalBackend(tmp_path / "new", SENTINEL).read("x/a", 1)
