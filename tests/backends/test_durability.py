"""A store on disk survives a power cut: what is flushed, in which order, and how often."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys

import pytest

from oarbank_cas.backends import oscalls
from oarbank_cas.backends.local import LocalBackend

SENTINEL = "oarbank-cas.json"

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="counts Linux calls")


class Log:
    """What the backend asked the system to do, in order: (call, path below the store or `bytes` for a temporary)."""

    def __init__(self, root):
        self.root = os.path.realpath(root)
        self.calls = []

    def named(self, path):
        path = os.path.relpath(os.path.realpath(path), self.root)
        return "bytes" if re.fullmatch(r"tmp/[^/]+-[0-9a-f]{12}/[0-9a-f]+", path) else path

    def add(self, call, path):
        self.calls.append((call, self.named(path)))

    def of(self, *calls):
        return [path for call, path in self.calls if call in calls]

    def index(self, call, path=None):
        return next(i for i, (made, at) in enumerate(self.calls) if made == call and path in (None, at))


@pytest.fixture
def log(disk, monkeypatch):
    """Records the calls while they do what they do."""
    disk.now()
    log = Log(disk.where)

    def by_path(name):
        call = getattr(oscalls, name)

        def made(*paths):
            result = call(*paths)
            log.add(name, paths[-1])
            return result

        monkeypatch.setattr(oscalls, name, made)

    def by_descriptor(name):
        call = getattr(oscalls, name)

        def made(fd):
            log.add(name, os.readlink(f"/proc/self/fd/{fd}"))
            return call(fd)

        monkeypatch.setattr(oscalls, name, made)

    for name in ("rename_new", "replace", "unlink", "sync_directory"):
        by_path(name)
    for name in ("sync_file", "sync_filesystem"):
        by_descriptor(name)
    return log


def pieces(disk, names):
    items = [(name, disk.incoming()) for name in names]
    for _, incoming in items:
        incoming.write(b"bytes")
    return items


class TestTheOrderOfCalls:
    def test_one_object_is_flushed_before_it_has_a_name_and_its_folders_after(self, disk, log):
        disk.commit(pieces(disk, ["x/ab/a"]))
        calls = [call for call in log.calls if call[0] != "unlink"]
        assert calls[0] == ("sync_file", "bytes")
        assert calls[1] == ("rename_new", "x/ab/a")
        assert sorted(calls[2:]) == [("sync_directory", "."), ("sync_directory", "x"), ("sync_directory", "x/ab")]

    def test_the_second_in_a_folder_costs_one_flush_of_bytes_and_one_of_the_folder(self, disk, log):
        disk.commit(pieces(disk, ["x/ab/a"]))
        log.calls.clear()
        disk.commit(pieces(disk, ["x/ab/b"]))
        assert [call for call in log.calls if call[0] != "unlink"] == [
            ("sync_file", "bytes"),
            ("rename_new", "x/ab/b"),
            ("sync_directory", "x/ab"),
        ]

    def test_a_batch_of_a_hundred_is_flushed_twice_in_all(self, disk, log):
        disk.commit(pieces(disk, [f"x/{n}/a" for n in range(100)]))
        calls = [call for call, _ in log.calls if call != "unlink"]
        assert calls == ["sync_filesystem", *["rename_new"] * 100, "sync_filesystem"]

    def test_a_batch_in_one_folder_flushes_that(self, disk, log):
        disk.commit(pieces(disk, [f"x/ab/{n}" for n in range(100)]))
        calls = [call for call, _ in log.calls if call != "unlink"]
        assert calls[:101] == ["sync_filesystem", *["rename_new"] * 100]
        assert sorted(log.calls[i] for i in range(len(log.calls)) if log.calls[i][0] == "sync_directory") == [
            ("sync_directory", "."),
            ("sync_directory", "x"),
            ("sync_directory", "x/ab"),
        ]

    def test_without_a_group_flush_each_is_flushed_before_it_has_a_name(self, disk, log):
        disk._place.group_flush = False
        disk.commit(pieces(disk, [f"x/{n}/a" for n in range(10)]))
        assert log.of("sync_filesystem") == []
        assert log.of("sync_file") == ["bytes"] * 10
        last_bytes = max(i for i, call in enumerate(log.calls) if call[0] == "sync_file")
        assert last_bytes < log.index("rename_new")
        assert set(log.of("sync_directory")) == {".", "x", *[f"x/{n}" for n in range(10)]}

    def test_the_loser_of_a_race_flushes_what_stands(self, disk, log):
        other = LocalBackend(disk.where, SENTINEL)
        disk.commit(pieces(disk, ["x/ab/a"]))
        log.calls.clear()
        assert other.commit(pieces(other, ["x/ab/a"])) == [None]
        other.close()
        assert set(log.of("sync_directory")) == {".", "x", "x/ab"}

    def test_folders_that_another_process_has_just_made_are_flushed_too(self, disk, log):
        os.makedirs(os.path.join(disk.where, "x", "ab"))
        disk.commit(pieces(disk, ["x/ab/a"]))
        assert set(log.of("sync_directory")) == {".", "x", "x/ab"}

    @pytest.mark.parametrize("deep", ["x/ab/key/a", "x/ab/key/deeper/a"])
    def test_folders_down_to_the_object_are_flushed_each_time_they_are_new(self, disk, log, deep):
        disk.commit(pieces(disk, ["x/ab/first"]))
        os.makedirs(os.path.dirname(os.path.join(disk.where, deep)))
        log.calls.clear()
        disk.commit(pieces(disk, [deep]))
        flushed = set(log.of("sync_directory"))
        folder = os.path.dirname(deep)
        while folder != "x":
            assert folder in flushed
            folder = os.path.dirname(folder)

    def test_replacing_flushes_the_bytes_before_and_the_folder_after(self, disk, log, swap):
        (first,) = disk.commit(pieces(disk, ["x/ab/a"]))
        log.calls.clear()
        swap(disk, "x/ab/a", b"new", first.validator)
        calls = [call for call in log.calls if call[0] != "unlink"]
        assert calls == [("sync_file", "bytes"), ("replace", "x/ab/a"), ("sync_directory", "x/ab")]

    @pytest.mark.parametrize("exact", [True, False])
    def test_deleting_flushes_the_folder_after(self, disk, log, exact):
        (first,) = disk.commit(pieces(disk, ["x/ab/a"]))
        log.calls.clear()
        disk.delete("x/ab/a", first.validator if exact else None)
        assert log.calls == [("unlink", "x/ab/a"), ("sync_directory", "x/ab")]

    def test_renaming_flushes_both_folders_after(self, disk, log):
        (first,) = disk.commit(pieces(disk, ["x/ab/a"]))
        log.calls.clear()
        disk.rename("x/ab/a", "y/cd/b", first.validator)
        assert log.calls[0] == ("rename_new", "y/cd/b")
        assert set(log.of("sync_directory")) >= {"x/ab", "y/cd", "y", "."}

    def test_touching_flushes_the_time(self, disk, log):
        disk.commit(pieces(disk, ["x/ab/a"]))
        log.calls.clear()
        disk.touch("x/ab/a")
        assert log.calls == [("sync_file", "x/ab/a")]

    def test_copying_is_creating(self, disk, log):
        disk.commit(pieces(disk, ["x/ab/a"]))
        log.calls.clear()
        disk.copy("x/ab/a", "x/ab/b")
        calls = [call for call in log.calls if call[0] != "unlink"]
        assert calls == [("sync_file", "bytes"), ("rename_new", "x/ab/b"), ("sync_directory", "x/ab")]

    def test_flushing_found_objects_flushes_every_folder_above_them(self, disk, log):
        other = LocalBackend(disk.where, SENTINEL)
        disk.commit(pieces(disk, ["x/ab/a"]))
        log.calls.clear()
        other.flush(["x/ab/a"])
        assert set(log.of("sync_directory")) == {".", "x", "x/ab"}
        log.calls.clear()
        other.flush(["x/ab/a"])
        assert log.calls == [("sync_directory", "x/ab")]

    def test_flushing_many_found_objects_is_one_flush(self, disk, log):
        disk.commit(pieces(disk, [f"x/{n}/a" for n in range(20)]))
        log.calls.clear()
        disk.flush([f"x/{n}/a" for n in range(20)])
        assert [call for call, _ in log.calls] == ["sync_filesystem"]

    def test_flushing_nothing_costs_nothing(self, disk, log):
        disk.flush([])
        assert log.calls == []

    def test_a_failed_flush_of_the_bytes_gives_no_name(self, disk, log, monkeypatch):
        def fail(fd):
            raise OSError(5, "Input/output error")

        monkeypatch.setattr(oscalls, "sync_file", fail)
        monkeypatch.setattr(oscalls, "sync_filesystem", fail)
        for names in (["x/a"], [f"x/{n}" for n in range(10)]):
            with pytest.raises(Exception, match="Input/output error"):
                disk.commit(pieces(disk, names))
        assert log.of("rename_new") == []


class TestTheSystemsOwnView:
    """The same, as the kernel sees it."""

    PROGRAM = (
        "import os, sys\n"
        "from oarbank_cas.backends.local import LocalBackend\n"
        f"backend = LocalBackend(sys.argv[1], {SENTINEL!r})\n"
        "backend.now()\n"
        "os.stat('/begin')\n"
    )

    @pytest.fixture
    def traced(self, disk, tmp_path):
        strace = shutil.which("strace")
        if strace is None:
            pytest.skip("needs strace")

        def run(work):
            trace = tmp_path / "trace"
            program = self.PROGRAM.replace("os.stat('/begin')", "os.access('/begin', 0)") + work
            calls = "access,faccessat,faccessat2,fsync,fdatasync,syncfs,renameat2,rename,renameat,link,linkat,mkdir"
            done = subprocess.run(
                [
                    *(strace, "-f", "-y", "-o", str(trace), "-e", f"trace={calls}"),
                    *(sys.executable, "-c", program, disk.where),
                ],
                capture_output=True,
                text=True,
            )
            if "ptrace" in done.stderr:
                pytest.skip("may not trace here")
            assert done.returncode == 0, done.stderr
            lines = trace.read_text().splitlines()
            start = next(i for i, line in enumerate(lines) if '"/begin"' in line)
            found = []
            for line in lines[start + 1 :]:
                match = re.match(r"\d+ +(\w+)\((.*)\) += 0", line)
                if match:
                    found.append((match[1], match[2].replace(os.path.realpath(disk.where), "")))
            return found

        return run

    def test_one_object(self, traced):
        calls = traced(
            "piece = backend.incoming()\npiece.write(b'bytes')\nbackend.commit([('x/ab/a', piece)])\nos._exit(0)\n"
        )
        kinds = [call for call, _ in calls if call != "mkdir"]
        assert kinds == ["fsync", "renameat2", "fsync", "fsync", "fsync"]
        assert "/tmp/" in calls[0][1]
        assert "/x/ab/a" in next(rest for call, rest in calls if call == "renameat2")
        assert sorted(rest[rest.index("<") :] for call, rest in calls[-3:]) == ["</x/ab>", "</x>", "<>"]

    def test_a_hundred_objects(self, traced):
        calls = traced(
            "items = [(f'x/{n}/a', backend.incoming()) for n in range(100)]\n"
            "for _, piece in items:\n    piece.write(b'bytes')\n"
            "backend.commit(items)\nos._exit(0)\n"
        )
        kinds = [call for call, _ in calls if call != "mkdir"]
        assert kinds == ["syncfs", *["renameat2"] * 100, "syncfs"]

    def test_every_folder_is_made_before_the_last_flush(self, traced):
        calls = traced("backend.commit([(f'x/{n}/a', backend.incoming()) for n in range(10)])\nos._exit(0)\n")
        kinds = [call for call, _ in calls]
        assert kinds[-1] == "syncfs"
        assert kinds.count("mkdir") == 11
