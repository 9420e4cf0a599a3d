"""A blob is read as it was put, or not at all."""

from __future__ import annotations

import hashlib
import os
import stat

import pytest

from oarbank_cas import layout
from oarbank_cas.errors import ConflictError, CorruptError, InvalidInputError, NotFoundError, StorageIOError
from oarbank_cas.presence import Presence

EMPTY = hashlib.sha256(b"").hexdigest()
DATA = os.urandom(3) + bytes(range(256)) * 12_000 + b"end"  # some three of the steps that reading takes


def digest_of(data):
    return hashlib.sha256(data).hexdigest()


def read_in(size):
    def read(store, digest, _):
        found = b""
        with store.blobs.open(digest) as reader:
            while chunk := reader.read(size):
                found += chunk
        return found

    return read


def read_all(store, digest, _):
    with store.blobs.open(digest) as reader:
        return reader.readall()


def read_into(store, digest, _):
    found, buffer = b"", bytearray(77_777)
    with store.blobs.open(digest) as reader:
        while count := reader.readinto(buffer):
            found += buffer[:count]
    return found


def get_bytes(store, digest, _):
    return store.blobs.get_bytes(digest)


def get_file(store, digest, folder):
    path = folder / "got"
    try:
        assert store.blobs.get_file(digest, path) == path.stat().st_size
        return path.read_bytes()
    finally:
        assert set(os.listdir(folder)) <= {"got", "store"}


def copy_to(store, digest, folder):
    with open(folder / "copied", "w+b") as file:
        assert store.blobs.copy_to(digest, file.fileno(), "copied") == os.fstat(file.fileno()).st_size
        file.seek(0)
        return file.read()


WAYS = {
    "get_bytes": get_bytes,
    "one byte short of it": read_in(len(DATA) - 1),
    "just as much": read_in(len(DATA)),
    "more than it": read_in(len(DATA) + 1),
    "odd pieces": read_in(100_003),
    "readall": read_all,
    "readinto": read_into,
    "get_file": get_file,
    "copy_to": copy_to,
}


@pytest.fixture(params=WAYS)
def way(request, store, tmp_path):
    """A way to read a whole blob, given its digest."""
    return lambda digest: WAYS[request.param](store, digest, tmp_path)


DAMAGE = {
    "the first byte": lambda data: bytes([data[0] ^ 1]) + data[1:],
    "a byte in the middle": lambda data: data[:1_500_000] + bytes([data[1_500_000] ^ 0x80]) + data[1_500_001:],
    "the last byte": lambda data: data[:-1] + bytes([data[-1] ^ 1]),
    "truncated by one": lambda data: data[:-1],
    "truncated": lambda data: data[: 2**20],
    "one byte more": lambda data: data + b"\0",
    "much more": lambda data: data + data,
    "nothing left": lambda _: b"",
}


class TestSoundBlobs:
    def test_every_way_reads_what_was_put(self, store, way):
        assert way(store.put(DATA)) == DATA

    def test_every_way_reads_an_empty_blob(self, store, way):
        assert store.put(b"") == EMPTY
        assert way(EMPTY) == b""

    def test_every_way_says_that_a_blob_is_absent(self, store, way):
        with pytest.raises(NotFoundError, match=EMPTY):
            way(EMPTY)

    @pytest.mark.parametrize("digest", ["", "0" * 63, "0" * 65, "A" * 64, "0" * 64 + "\n", "../" + "0" * 61, None, 7])
    def test_what_is_no_digest_is_refused(self, store, digest):
        for call in (store.blobs.stat, store.blobs.has, store.blobs.open, store.blobs.get_bytes):
            with pytest.raises(InvalidInputError):
                call(digest)
        with pytest.raises(InvalidInputError):
            store.blobs.missing([digest])
        assert set(store.backend.names()) <= {"commit"}

    def test_presence_size_and_time(self, store):
        before = store.backend.now()
        digest = store.put(DATA)
        found = store.blobs.stat(digest)
        assert (found.digest, found.size) == (digest, len(DATA))
        assert found.time_ns >= before
        assert store.blobs.has(digest)
        assert store.blobs.missing([EMPTY, digest, EMPTY]) == [EMPTY]

    def test_a_larger_blob_than_expected_is_refused_unread(self, store):
        digest = store.put(DATA)
        assert store.blobs.get_bytes(digest, len(DATA)) == DATA
        with pytest.raises(CorruptError, match=str(len(DATA))):
            store.blobs.get_bytes(digest, len(DATA) - 1)
        assert store.blobs.has(digest)

    def test_a_range(self, store):
        digest = store.put(DATA)
        with store.blobs.open_range(digest, len(DATA) - 3) as reader:
            assert reader.read(100) == b"end"


class TestDamagedBlobs:
    @pytest.mark.parametrize("damage", DAMAGE)
    def test_every_way_names_both_digests_and_hands_nothing_out(self, store, way, damage, tmp_path):
        digest = store.put(DATA)
        wrong = DAMAGE[damage](DATA)
        store.rot(layout.blob(digest), wrong)
        with pytest.raises(CorruptError) as caught:
            way(digest)
        assert caught.value.expected == digest
        assert digest in str(caught.value)
        assert caught.value.actual in str(caught.value)
        if len(wrong) <= len(DATA):  # of a longer one some ways stop at the size that they were told
            assert caught.value.actual == digest_of(wrong)
        assert not (tmp_path / "got").exists()

    @pytest.mark.parametrize("damage", ["the last byte", "truncated", "nothing left"])
    def test_they_are_set_aside_and_not_served_again(self, store, way, damage):
        digest = store.put(DATA)
        wrong = DAMAGE[damage](DATA)
        store.rot(layout.blob(digest), wrong)
        with pytest.raises(CorruptError):
            way(digest)
        assert not store.blobs.has(digest)
        (aside,) = store.names(layout.DAMAGED)
        assert aside.startswith(f"damaged/{digest}.")
        assert store.object(aside) == wrong
        with pytest.raises(NotFoundError):
            way(digest)

    def test_a_new_put_heals(self, store, way):
        digest = store.put(DATA)
        store.rot(layout.blob(digest), DAMAGE["a byte in the middle"](DATA))
        with pytest.raises(CorruptError):
            way(digest)
        assert store.put(DATA) == digest
        assert way(digest) == DATA

    def test_a_put_of_a_blob_of_the_wrong_size_heals_at_once(self, store, way):
        digest = store.put(DATA)
        store.rot(layout.blob(digest), DATA[:-1])
        with store.intake() as intake:
            assert intake.add_bytes(DATA).new
            intake.commit()
        assert way(digest) == DATA
        assert len(store.names(layout.DAMAGED)) == 1

    def test_each_is_kept_for_people(self, store):
        digest = store.put(DATA)
        for turn in range(3):
            store.rot(layout.blob(digest), b"%d" % turn)
            assert store.blobs.check(digest) is False
            store.put(DATA)
        assert sorted(store.object(name) for name in store.names(layout.DAMAGED)) == [b"0", b"1", b"2"]
        assert store.blobs.check(digest) is True

    @pytest.mark.parametrize("step", [len(DATA), 1_000_001])
    def test_the_read_that_would_hand_out_the_end_raises_and_none_after_it_is_needed(self, store, step):
        digest = store.put(DATA)
        store.rot(layout.blob(digest), DAMAGE["the first byte"](DATA))
        with store.blobs.open(digest) as reader:
            left = len(DATA)
            while left > step:
                left -= len(reader.read(step))
            with pytest.raises(CorruptError):
                reader.read(left)

    def test_the_reader_raises_again_when_asked_again(self, store):
        digest = store.put(DATA)
        store.rot(layout.blob(digest), DATA[:-1])
        with store.blobs.open(digest) as reader:
            for _ in range(2):
                with pytest.raises(CorruptError):
                    reader.readall()

    def test_a_damaged_file_is_not_put_in_the_place_of_another(self, store, tmp_path):
        digest = store.put(DATA)
        store.rot(layout.blob(digest), DATA[:-1])
        (tmp_path / "kept").write_text("kept")
        with pytest.raises(CorruptError):
            store.blobs.get_file(digest, tmp_path / "kept")
        assert (tmp_path / "kept").read_text() == "kept"
        assert set(os.listdir(tmp_path)) <= {"kept", "store"}

    def test_damage_that_cannot_be_set_aside_is_still_told(self, store, monkeypatch):
        digest = store.put(DATA)
        store.rot(layout.blob(digest), DATA[:-1])

        def refuse(*_):
            raise ConflictError("no")

        store.backend.hooks.update(rename=refuse, copy=refuse)
        with pytest.raises(CorruptError, match="could not be set aside"):
            store.blobs.get_bytes(digest)


class TestASecondReading:
    """Setting a blob aside costs the store a blob: it is done to what is really damaged, and to nothing else."""

    def wrong_once(self, store, monkeypatch):
        """The first reader that is opened from now on hands out a wrong byte."""
        inner = store.backend.backend
        open_right = inner.open
        opened = []

        def open_wrong(name, start=0):
            reader = open_right(name, start)
            if opened:
                return reader
            opened.append(name)
            read, readinto = reader.read, reader.readinto

            class Wrong:
                stat = reader.stat
                close = reader.close

                def __enter__(self):
                    return self

                def __exit__(self, *_):
                    reader.close()

                def read(self, size):
                    data = read(size)
                    return b"?" + data[1:] if data else data

                def readinto(self, buffer):
                    count = readinto(buffer)
                    if count:
                        buffer[0] ^= 1
                    return count

            return Wrong()

        monkeypatch.setattr(inner, "open", open_wrong)

    def test_what_is_right_the_second_time_stays(self, store, way, monkeypatch):
        digest = store.put(DATA)
        before = store.backend.stat(layout.blob(digest))
        self.wrong_once(store, monkeypatch)
        with pytest.raises(StorageIOError, match=digest):
            way(digest)
        assert store.backend.stat(layout.blob(digest)) == before
        assert store.names(layout.DAMAGED) == []
        assert way(digest) == DATA

    def test_another_incarnation_is_never_moved(self, store, way):
        digest = store.put(DATA)
        store.rot(layout.blob(digest), DATA[:-1])
        opened = []

        def heal(name, start=0):
            opened.append(name)
            if len(opened) == 2:
                store.backend.backend.delete(name)
                store.put(DATA)

        store.backend.hooks["open"] = heal
        with pytest.raises(CorruptError, match="gone already"):
            way(digest)
        assert way(digest) == DATA
        assert store.names(layout.DAMAGED) == []

    def test_another_incarnation_is_never_moved_though_it_comes_at_the_last_moment(self, store):
        digest = store.put(DATA)
        store.rot(layout.blob(digest), DATA[:-1])

        def heal(name, *_):
            store.backend.hooks.clear()
            store.backend.backend.delete(layout.blob(digest))
            store.put(DATA)

        store.backend.hooks["rename" if store.backend.atomic_move else "delete"] = heal
        with pytest.raises(CorruptError):
            store.blobs.get_bytes(digest)
        assert store.blobs.get_bytes(digest) == DATA

    def test_a_blob_that_goes_meanwhile_is_not_looked_for(self, store):
        digest = store.put(DATA)
        store.rot(layout.blob(digest), DATA[:-1])
        with store.blobs.open(digest) as reader:
            store.remove(layout.blob(digest))
            with pytest.raises(CorruptError, match="gone already"):
                reader.readall()


class TestFiles:
    def test_a_file_takes_the_place_of_another(self, store, tmp_path):
        (tmp_path / "got").write_text("old and longer than the new")
        digest = store.put(b"new")
        assert store.blobs.get_file(digest, tmp_path / "got") == 3
        assert (tmp_path / "got").read_bytes() == b"new"

    def test_a_file_obeys_the_umask_and_may_be_written(self, store, tmp_path):
        before = os.umask(0o027)
        try:
            store.blobs.get_file(store.put(b"1"), tmp_path / "got")
        finally:
            os.umask(before)
        assert stat.S_IMODE((tmp_path / "got").stat().st_mode) == 0o640

    def test_a_link_is_replaced_and_not_written_through(self, store, tmp_path):
        (tmp_path / "target").write_text("kept")
        os.symlink(tmp_path / "target", tmp_path / "got")
        store.blobs.get_file(store.put(b"new"), tmp_path / "got")
        assert (tmp_path / "target").read_text() == "kept"
        assert (tmp_path / "got").read_bytes() == b"new"

    def test_a_folder_is_refused(self, store, tmp_path):
        (tmp_path / "folder").mkdir()
        digest = store.put(b"1")
        with pytest.raises(ConflictError, match="folder"):
            store.blobs.get_file(digest, tmp_path / "folder")
        assert os.listdir(tmp_path / "folder") == []

    @pytest.mark.skipif(os.name == "nt", reason="POSIX pipes")
    def test_a_pipe_is_refused_and_stays(self, store, tmp_path):
        os.mkfifo(tmp_path / "pipe")
        digest = store.put(b"1")
        with pytest.raises(ConflictError, match="pipe"):
            store.blobs.get_file(digest, tmp_path / "pipe")
        assert stat.S_ISFIFO(os.stat(tmp_path / "pipe").st_mode)

    @pytest.mark.parametrize("path", ["missing/got", "file/got"])
    def test_a_place_that_cannot_be_is_refused(self, store, tmp_path, path):
        (tmp_path / "file").write_text("")
        digest = store.put(b"1")
        with pytest.raises(ConflictError, match="got"):
            store.blobs.get_file(digest, tmp_path / path)

    def test_an_absent_blob_leaves_no_file(self, store, tmp_path):
        with pytest.raises(NotFoundError):
            store.blobs.get_file(EMPTY, tmp_path / "got")
        assert set(os.listdir(tmp_path)) <= {"store"}

    def test_a_full_disk_is_no_half_file(self, store, tmp_path, monkeypatch):
        digest = store.put(DATA)

        def full(*_):
            raise OSError(28, "No space left on device")

        monkeypatch.setattr("oarbank_cas.blobs.os.write", full)
        with pytest.raises(StorageIOError, match="No space left"):
            store.blobs.get_file(digest, tmp_path / "got")
        assert set(os.listdir(tmp_path)) <= {"store"}

    def test_shared_blocks_are_verified_too(self, store, tmp_path, monkeypatch):
        digest = store.put(b"right")

        def share(name, fd):
            os.write(fd, b"wrong")
            return True

        monkeypatch.setattr(store.backend.backend, "clone", share)
        with pytest.raises(StorageIOError, match=digest):  # right when read again: the blob stays
            store.blobs.get_file(digest, tmp_path / "got")
        assert store.blobs.has(digest)
        assert set(os.listdir(tmp_path)) <= {"store"}

    def test_a_blob_condemned_between_opening_and_sharing_is_still_read(self, store, tmp_path):
        digest = store.put(DATA)

        def condemn(*_):
            store.backend.hooks.clear()
            store.fossilise(digest)

        store.backend.hooks["clone"] = condemn

        def clone(name, fd):
            store.backend.backend.read(name, 2**30)
            return False

        store.backend.backend.clone = clone
        assert store.blobs.get_file(digest, tmp_path / "got") == len(DATA)


class TestFossils:
    """A condemned blob is there for readers, and for nobody else."""

    def test_readers_find_it(self, store, way):
        digest = store.put(DATA)
        store.fossilise(digest)
        assert way(digest) == DATA
        assert store.blobs.size_for_readers(digest) == len(DATA)
        with store.blobs.open_range(digest, len(DATA) - 3) as reader:
            assert reader.read(9) == b"end"

    def test_it_is_not_there_for_writers(self, store):
        digest = store.put(DATA)
        store.fossilise(digest)
        assert not store.blobs.has(digest)
        assert store.blobs.stat(digest) is None
        assert store.blobs.missing([digest]) == [digest]

    def test_a_fossil_of_another_blob_is_none_of_this(self, store):
        digest = store.put(DATA)
        other = digest[:2] + "0" * 62
        store.fossilise(digest)
        assert store.blobs.size_for_readers(other) is None
        assert store.blobs.size_for_readers(digest[:2] + "f" * 62) is None
        with pytest.raises(NotFoundError):
            store.blobs.open(other)

    def test_a_blob_condemned_while_it_is_looked_for_is_found(self, store):
        digest = store.put(DATA)

        def condemn(*_):
            store.backend.hooks.clear()
            store.fossilise(digest)

        store.backend.hooks["open"] = condemn
        assert store.blobs.get_bytes(digest) == DATA
        store.put(DATA)
        store.backend.hooks["stat"] = lambda *_: (store.backend.hooks.clear(), store.remove(layout.blob(digest)))
        assert store.blobs.size_for_readers(digest) == len(DATA)

    def test_a_listed_fossil_that_vanishes_starts_the_look_again(self, store):
        digest = store.put(DATA)
        store.fossilise(digest)

        def revive_and_purge(name, *_):
            if name.startswith(layout.FOSSILS):
                store.backend.hooks.clear()
                store.put(DATA)
                store.remove(name)

        store.backend.hooks["open"] = revive_and_purge
        assert store.blobs.get_bytes(digest) == DATA

    @pytest.mark.parametrize("clock", [0, 1])
    @pytest.mark.parametrize("late_s", [-2, 2])
    def test_a_look_that_took_longer_than_a_session_is_done_again(self, store, monkeypatch, clock, late_s):
        digest = store.put(DATA)
        store.fossilise(digest)
        moment = [1000.0, 1000.0]
        monkeypatch.setattr(Presence, "moment", staticmethod(lambda: tuple(moment)))

        def slow(*_):
            store.backend.hooks.clear()
            moment[clock] += store.session_s + late_s
            store.put(DATA)
            for name in store.names(layout.FOSSILS):
                store.remove(name)

        store.backend.hooks["listing"] = slow
        if late_s > 0:
            assert store.blobs.get_bytes(digest) == DATA
        else:
            with pytest.raises(NotFoundError):
                store.blobs.get_bytes(digest)

    def test_a_damaged_fossil_is_set_aside_and_the_next_one_serves(self, store):
        digest = store.put(DATA)
        store.fossilise(digest, "1" * 16)
        store.put(DATA)
        store.fossilise(digest, "2" * 16)
        store.rot(layout.fossil(digest, "1" * 16), DATA[:-1])
        with pytest.raises(CorruptError, match="fossils"):
            store.blobs.get_bytes(digest)
        assert len(store.names(layout.DAMAGED)) == 1
        assert store.blobs.get_bytes(digest) == DATA


class TestReviving:
    def test_it_comes_back_with_a_fresh_time_and_the_fossil_stays(self, store):
        digest = store.put(DATA)
        store.fossilise(digest)
        before = store.backend.now()
        found = store.blobs.revive(digest)
        assert found.name == layout.blob(digest)
        assert found.time_ns >= before
        assert store.blobs.get_bytes(digest) == DATA
        assert store.names(layout.FOSSILS) == [layout.fossil(digest, "0" * 16)]

    def test_nothing_comes_back_where_there_is_nothing(self, store):
        assert store.blobs.revive(EMPTY) is None

    def test_a_damaged_fossil_is_not_brought_back(self, store):
        digest = store.put(DATA)
        store.fossilise(digest)
        store.rot(layout.fossil(digest, "0" * 16), DATA[:-1])
        assert store.blobs.revive(digest) is None
        assert not store.blobs.has(digest)
        assert len(store.names(layout.DAMAGED)) == 1

    def test_a_sound_one_after_a_damaged_one_is(self, store):
        digest = store.put(DATA)
        for nonce in ("1" * 16, "2" * 16):
            store.put(DATA)
            store.fossilise(digest, nonce)
        store.rot(layout.fossil(digest, "1" * 16), b"wrong")
        assert store.blobs.revive(digest).size == len(DATA)
        assert store.blobs.get_bytes(digest) == DATA
