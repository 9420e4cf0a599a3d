"""What is put is stored once, whole, durable, and as its source was at one moment."""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import threading

import pytest

from oarbank_cas import intake as intake_module
from oarbank_cas import layout
from oarbank_cas.errors import InvalidInputError, StorageIOError, UnavailableError
from oarbank_cas.sources import PathSource

WRITES = {"incoming", "commit", "replace", "delete", "copy", "rename", "touch"}
SIZES = [0, 1, 2**20 - 1, 2**20, 2**20 + 1, 8 * 2**20, 9 * 2**20 + 7]


def digest_of(data):
    return hashlib.sha256(data).hexdigest()


def content(size):
    return (bytes(range(256)) * (size // 256 + 1))[:size]


class Trickle(io.RawIOBase):
    """A stream that gives a few bytes at a time, as a pipe does."""

    def __init__(self, data, step):
        super().__init__()
        self.rest, self.step = data, step

    def readable(self):
        return True

    def read(self, size=-1):
        chunk, self.rest = self.rest[: self.step], self.rest[self.step :]
        return chunk


@pytest.fixture
def small_limits(monkeypatch):
    """Files count as large from 3 MiB on, so that tests need no large ones."""
    monkeypatch.setattr(intake_module, "HELD_BYTES", 3 * 2**20)


class TestWhatIsPut:
    @pytest.mark.parametrize("size", SIZES)
    def test_bytes_file_and_stream_are_one_blob(self, store, tmp_path, small_limits, size):
        data = content(size)
        (tmp_path / "file").write_bytes(data)
        for put in (
            lambda intake: intake.add_bytes(data),
            lambda intake: intake.add_file(PathSource(str(tmp_path / "file"))),
            lambda intake: intake.add_stream(io.BytesIO(data)),
            lambda intake: intake.add_stream(Trickle(data, 100_003)),
        ):
            with store.intake() as intake:
                blob = put(intake)
                assert (blob.digest, blob.size, blob.new) == (digest_of(data), size, True)
                hold = intake.commit()
            assert hold.sizes == {blob.digest: size}
            assert store.blobs.get_bytes(blob.digest) == data
            store.remove(layout.blob(blob.digest))

    def test_nothing_is_visible_before_the_commit(self, store):
        with store.intake() as intake:
            digest = intake.add_bytes(b"1").digest
            assert not store.blobs.has(digest)
            intake.commit()
        assert store.blobs.has(digest)

    def test_leaving_without_a_commit_discards(self, store):
        with store.intake() as intake:
            digest = intake.add_bytes(b"1").digest
        assert not store.blobs.has(digest)
        with contextlib.suppress(ZeroDivisionError), store.intake() as intake:
            intake.add_bytes(b"1")
            raise ZeroDivisionError
        assert store.names(layout.BLOBS) == []

    def test_a_batch_is_one_commit(self, store):
        with store.intake() as intake:
            for number in range(50):
                intake.add_bytes(b"%d" % number)
            intake.commit()
        assert store.backend.names().count("commit") == 1
        assert len(store.names(layout.BLOBS)) == 50

    def test_many_files_are_put_on_all_cores_and_answered_in_order(self, store, tmp_path):
        paths = []
        for number in range(200):
            paths.append(tmp_path / f"{number}")
            paths[-1].write_bytes(b"%d" % (number % 150))
        seen = []
        with store.intake() as intake:
            blobs = intake.add_files([PathSource(str(path)) for path in paths], seen.append)
            hold = intake.commit()
        assert [blob.digest for blob in blobs] == [digest_of(path.read_bytes()) for path in paths]
        assert sum(blob.new for blob in blobs) == len(hold.sizes) == 150
        assert sum(seen) == sum(blob.size for blob in blobs)
        assert len(store.names(layout.BLOBS)) == 150

    def test_what_is_there_is_asked_for_together(self, store, tmp_path):
        """Of many small files no byte is sent that is there, and none is asked for twice."""
        paths = [tmp_path / f"{number}" for number in range(100)]
        for path in paths:
            path.write_bytes(path.name.encode())
        with store.intake() as intake:
            intake.add_files([PathSource(str(path)) for path in paths[:50]])
            intake.commit()
        store.backend.calls.clear()
        with store.intake() as intake:
            blobs = intake.add_files([PathSource(str(path)) for path in paths])
            intake.commit()
        assert [blob.new for blob in blobs] == [False] * 50 + [True] * 50
        assert store.backend.names().count("incoming") == 50
        asked = [call[1] for call in store.backend.calls if call[0] == "stat"]
        assert len(asked) == len(set(asked)) <= 100

    def test_one_bad_file_of_many_fails_the_batch(self, store, tmp_path):
        paths = [tmp_path / f"{number}" for number in range(100)]
        for path in paths[:-1]:
            path.write_bytes(path.name.encode())
        with store.intake() as intake, pytest.raises(InvalidInputError, match="99"):
            intake.add_files([PathSource(str(path)) for path in paths])
        assert store.names(layout.BLOBS) == []

    def test_many_threads_put_one_blob_in_one_batch(self, store):
        with store.intake() as intake:
            blobs = []
            threads = [threading.Thread(target=lambda: blobs.append(intake.add_bytes(b"same"))) for _ in range(8)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            intake.commit()
        assert sum(blob.new for blob in blobs) == 1
        assert store.names(layout.BLOBS) == [layout.blob(digest_of(b"same"))]

    def test_the_hold_begins_before_the_first_look(self, store):
        intake = store.intake()
        intake.add_bytes(b"1")
        assert store.backend.names()[:2] == ["now", "stat"]
        now = store.backend.now()
        assert intake.commit().t0_ns <= now
        assert store.blobs.stat(digest_of(b"1")).time_ns >= intake.commit().t0_ns


class TestWhatIsThereAlready:
    @pytest.mark.parametrize("size", SIZES)
    def test_it_is_not_written_again(self, store, tmp_path, small_limits, size):
        data = content(size)
        (tmp_path / "file").write_bytes(data)
        digest = store.put(data)
        before = store.backend.stat(layout.blob(digest))
        for put in (
            lambda intake: intake.add_bytes(data),
            lambda intake: intake.add_file(PathSource(str(tmp_path / "file"))),
        ):
            store.backend.calls.clear()
            with store.intake() as intake:
                blob = put(intake)
                intake.commit()
            assert (blob.digest, blob.size, blob.new) == (digest, size, False)
            assert [call for call in store.backend.calls if call[0] in WRITES and call != ("commit", [])] == []
        assert store.backend.stat(layout.blob(digest)) == before

    def test_a_stream_of_it_leaves_it_as_it_is(self, store):
        data = content(9 * 2**20)
        before = store.backend.stat(layout.blob(store.put(data)))
        with store.intake() as intake:
            assert not intake.add_stream(io.BytesIO(data)).new
            intake.commit()
        assert store.backend.stat(before.name) == before

    def test_a_found_blob_is_made_durable_with_the_batch(self, store):
        digest = store.put(b"found")
        store.backend.calls.clear()
        with store.intake() as intake:
            intake.add_bytes(b"found")
            intake.add_bytes(b"new")
            hold = intake.commit()
        assert ("flush", [layout.blob(digest)]) in store.backend.calls
        assert set(hold.sizes) == {digest, digest_of(b"new")}

    def test_what_another_brought_in_meanwhile_is_as_good(self, store):
        with store.intake() as intake:
            digest = intake.add_bytes(b"same").digest
            before = store.backend.stat(layout.blob(store.put(b"same")))
            hold = intake.commit()
        assert hold.sizes == {digest: 4}
        assert store.backend.stat(layout.blob(digest)) == before

    def test_what_another_brought_in_damaged_is_no_success(self, store):
        with store.intake() as intake:
            digest = intake.add_bytes(b"same").digest
            store.place(layout.blob(digest), b"sam")
            with pytest.raises(StorageIOError, match=digest):
                intake.commit()

    def test_a_fossil_alone_is_put_again(self, store):
        digest = store.put(b"1")
        store.fossilise(digest)
        with store.intake() as intake:
            assert intake.add_bytes(b"1").new
            intake.commit()
        assert store.blobs.has(digest)
        assert len(store.names(layout.FOSSILS)) == 1

    def test_a_blob_of_the_wrong_size_with_a_sound_fossil_is_put_again(self, store):
        digest = store.put(b"sound")
        store.fossilise(digest)
        store.place(layout.blob(digest), b"soun")
        found = []

        def damaged_goes(*_):
            if not found:
                found.append(True)
                return
            store.backend.hooks.clear()
            store.remove(layout.blob(digest))

        store.backend.hooks["open"] = damaged_goes
        with store.intake() as intake:
            intake.add_bytes(b"sound")
            intake.commit()
        assert store.blobs.has(digest)
        assert store.blobs.get_bytes(digest) == b"sound"


class TestSources:
    @pytest.mark.parametrize("make", ["missing", "folder", "pipe", "in a file"])
    def test_what_is_no_regular_file_is_refused_and_not_waited_for(self, store, tmp_path, make):
        path = tmp_path / "source"
        {
            "missing": lambda: None,
            "folder": path.mkdir,
            "pipe": lambda: os.mkfifo(path),
            "in a file": lambda: path.write_text(""),
        }[make]()
        name = path / "below" if make == "in a file" else path
        with store.intake() as intake, pytest.raises(InvalidInputError, match="source"):
            intake.add_file(PathSource(str(name)))
        assert "incoming" not in store.backend.names()

    def test_a_link_to_a_file_is_the_file(self, store, tmp_path):
        (tmp_path / "file").write_bytes(b"1")
        os.symlink(tmp_path / "file", tmp_path / "link")
        assert store.put_file(tmp_path / "link").digest == digest_of(b"1")


class Changing:
    """A file that something happens to after a number of reads."""

    label = "the source"

    def __init__(self, path, after, happen):
        self.path, self.after, self.happen = path, after, happen

    def open(self):
        return os.open(self.path, os.O_RDONLY)

    def install(self, monkeypatch):
        calls = {name: getattr(os, name) for name in ("read", "readv")}
        done = [0]

        def hooked(name):
            def read(fd, *rest):
                result = calls[name](fd, *rest)
                if os.path.realpath(f"/proc/self/fd/{fd}") == os.path.realpath(self.path):
                    done[0] += 1
                    if done[0] == self.after:
                        self.happen(self.path)
                return result

            return read

        for name in calls:
            monkeypatch.setattr(os, name, hooked(name))


def append(path):
    with open(path, "ab") as file:
        file.write(b"more")


def truncate(path):
    os.truncate(path, 10)


def rewrite(path):
    with open(path, "r+b") as file:
        file.write(b"other bytes of the same length, so that only times tell")


def rewrite_and_set_the_time_back(path):
    before = os.stat(path)
    rewrite(path)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="tells a descriptor's file by /proc")
class TestASourceThatChanges:
    @pytest.mark.parametrize("size", [1000, 2 * 2**20, 5 * 2**20])
    @pytest.mark.parametrize("happen", [append, truncate, rewrite, rewrite_and_set_the_time_back])
    def test_it_is_refused_by_name(self, store, tmp_path, monkeypatch, small_limits, size, happen):
        (tmp_path / "file").write_bytes(content(size))
        source = Changing(tmp_path / "file", 1, happen)
        source.install(monkeypatch)
        with store.intake() as intake, pytest.raises(StorageIOError, match="the source changed"):
            intake.add_file(source)
        assert store.names(layout.BLOBS) == []

    @pytest.mark.parametrize("happen", [append, truncate, rewrite, rewrite_and_set_the_time_back])
    @pytest.mark.parametrize("reads", [6, 7, 9, 11])
    def test_a_large_one_is_refused_in_the_second_reading_too(
        self, store, tmp_path, monkeypatch, small_limits, happen, reads
    ):
        (tmp_path / "file").write_bytes(content(5 * 2**20))
        source = Changing(tmp_path / "file", reads, happen)
        source.install(monkeypatch)
        with store.intake() as intake, pytest.raises(StorageIOError, match="the source changed"):
            intake.add_file(source)
        assert store.names(layout.BLOBS) == []

    @pytest.mark.parametrize("size", [1000, 2 * 2**20, 5 * 2**20])
    def test_one_that_grows_for_ever_is_not_read_for_ever(self, store, tmp_path, monkeypatch, small_limits, size):
        path = tmp_path / "file"
        path.write_bytes(content(size))
        readv = os.readv
        reads = []

        def growing(fd, buffers):
            reads.append(fd)
            assert len(reads) < 100
            with open(path, "ab") as file:
                file.write(bytes(len(buffers[0])))
            return readv(fd, buffers)

        monkeypatch.setattr(os, "readv", growing)
        if size == 1000:
            append(path)
            pytest.skip("read in one go")
        with store.intake() as intake, pytest.raises(StorageIOError, match="changed"):
            intake.add_file(PathSource(str(path)))

    def test_other_bytes_in_the_second_reading_are_refused_whatever_the_times_say(
        self, store, tmp_path, monkeypatch, small_limits
    ):
        (tmp_path / "file").write_bytes(content(5 * 2**20))
        monkeypatch.setattr(intake_module, "check_unchanged", lambda *_: None)
        source = Changing(tmp_path / "file", 6, rewrite)
        source.install(monkeypatch)
        with store.intake() as intake, pytest.raises(StorageIOError, match="the source changed"):
            intake.add_file(source)
        assert store.names(layout.BLOBS) == []


class TestFailures:
    def test_a_failing_write_leaves_nothing(self, store):
        def full(*_):
            raise StorageIOError("No space left on device")

        store.backend.hooks["commit"] = full
        with store.intake() as intake:
            intake.add_bytes(b"1")
            with pytest.raises(StorageIOError):
                intake.commit()
        assert store.names(layout.BLOBS) == []

    def test_a_stream_that_fails_half_way_leaves_nothing(self, store):
        class Failing(io.RawIOBase):
            def read(self, size=-1):
                if self.tell_left:
                    self.tell_left -= 1
                    return bytes(2**20)
                raise ConnectionResetError

            tell_left = 10

        with store.intake() as intake, pytest.raises(ConnectionResetError):
            intake.add_stream(Failing())
        assert store.names(layout.BLOBS) == []

    def test_a_store_out_of_reach_is_no_absence(self, store):
        def gone(*_):
            raise UnavailableError("gone")

        digest = store.put(b"1")
        with store.intake() as intake:
            store.backend.hooks["stat"] = gone
            for call in (
                lambda: intake.add_bytes(b"1"),
                lambda: intake.require({digest: 1}),
                lambda: store.blobs.has(digest),
                lambda: store.blobs.missing([digest]),
                lambda: store.blobs.size_for_readers(digest),
            ):
                with pytest.raises(UnavailableError):
                    call()


class TestRequiring:
    """Relying on blobs that must be there already."""

    def test_what_is_there_is_held(self, store):
        digest = store.put(b"1")
        with store.intake() as intake:
            assert intake.require({digest: 1}) == []
            hold = intake.commit()
        assert hold.sizes == {digest: 1}
        assert ("flush", [layout.blob(digest)]) in store.backend.calls

    def test_what_is_absent_is_named(self, store):
        digest, absent = store.put(b"1"), digest_of(b"2")
        with store.intake() as intake:
            assert intake.require({digest: 1, absent: 1}) == [absent]

    def test_what_is_in_the_batch_counts(self, store):
        with store.intake() as intake:
            digest = intake.add_bytes(b"1").digest
            assert intake.require({digest: 1}) == []
            with pytest.raises(InvalidInputError, match=digest):
                intake.require({digest: 2})

    def test_a_condemned_one_is_brought_back(self, store):
        digest = store.put(b"1")
        store.fossilise(digest)
        with store.intake() as intake:
            assert intake.require({digest: 1}) == []
            hold = intake.commit()
        assert store.blobs.stat(digest).time_ns >= hold.t0_ns
        assert len(store.names(layout.FOSSILS)) == 1

    def test_another_size_is_refused(self, store):
        digest = store.put(b"1")
        with store.intake() as intake, pytest.raises(InvalidInputError, match="1 bytes, not 2"):
            intake.require({digest: 2})
        assert store.blobs.has(digest)

    def test_a_damaged_one_of_another_size_is_missing_and_set_aside(self, store):
        digest = store.put(b"sound")
        store.rot(layout.blob(digest), b"soun")
        with store.intake() as intake:
            assert intake.require({digest: 5}) == [digest]
        assert not store.blobs.has(digest)
        assert len(store.names(layout.DAMAGED)) == 1


class TestManyProcesses:
    def test_all_put_one_blob_and_all_succeed(self, tmp_path, race):
        root = tmp_path / "store"
        root.mkdir()
        (root / layout.DESCRIPTOR).write_text("{}")
        program = (
            "from oarbank_cas.backends.local import LocalBackend\n"
            "from oarbank_cas.blobs import Blobs\nfrom oarbank_cas.intake import Intake\n"
            "backend = LocalBackend(arguments[0], 'oarbank-cas.json')\nblobs = Blobs(backend, 3600)\n"
            "ready()\ndigests = []\n"
            "for turn in range(20):\n"
            "    with Intake(backend, blobs) as intake:\n"
            "        digests += [intake.add_bytes(bytes([turn]) * 100000).digest, intake.add_bytes(b'same').digest]\n"
            "        intake.commit()\n"
            "backend.close()\nanswer(digests)\n"
        )
        expected = [digest for turn in range(20) for digest in (digest_of(bytes([turn]) * 100_000), digest_of(b"same"))]
        assert race(program, *[[root]] * 4) == [expected] * 4
        assert sum(len(files) for _, _, files in os.walk(root / "blobs")) == 21
        assert set(os.listdir(root / "tmp")) <= {"locks"}
