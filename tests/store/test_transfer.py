"""A large blob comes from afar in ranges, in order, and goes on where an earlier transfer was cut."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oarbank_cas import layout, transfer
from oarbank_cas.backends.memory import MemoryBackend
from oarbank_cas.blobs import Blobs
from oarbank_cas.errors import CorruptError, StorageIOError, UnavailableError
from oarbank_cas.intake import Intake

SIZE = 3 * transfer.RANGE + 12345
DATA = (bytes(range(251)) * (SIZE // 251 + 1))[:SIZE]


def digest_of(data):
    return hashlib.sha256(data).hexdigest()


class Far(MemoryBackend):
    """A storage from afar: it notes which ranges are asked for, and how many at once."""

    requests_at_once = 16

    def __init__(self):
        super().__init__(atomic_move=False)
        self.asked = []
        self.under_way = self.most = 0
        self.lock = threading.Lock()
        self.fail_from = None

    def read_range(self, name, start, length):
        with self.lock:
            self.asked.append((start, length))
            self.under_way += 1
            self.most = max(self.most, self.under_way)
        time.sleep(0.01)
        try:
            if self.fail_from is not None and start >= self.fail_from:
                raise UnavailableError("gone")
            return super().read_range(name, start, length)
        finally:
            with self.lock:
                self.under_way -= 1


@pytest.fixture
def far():
    backend = Far()
    with Intake(backend, Blobs(backend, 3600)) as intake:
        intake.add_bytes(DATA)
        intake.add_bytes(DATA[: transfer.LARGE - 1])
        intake.commit()
    return backend


@pytest.fixture
def file(tmp_path):
    fd = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    yield fd
    os.close(fd)


def held(fd):
    return os.pread(fd, 2 * SIZE, 0)


def copy(far, fd, data=DATA, **how):
    return Blobs(far, 3600).copy_to(digest_of(data), fd, "file", **how)


def test_a_large_blob_comes_in_ranges_several_at_once(far, file):
    assert copy(far, file) == SIZE
    assert held(file) == DATA
    assert sorted(far.asked) == [(start, min(transfer.RANGE, SIZE - start)) for start in range(0, SIZE, transfer.RANGE)]
    assert 1 < far.most <= transfer.AT_ONCE


def test_a_smaller_one_comes_at_once(far, file):
    copy(far, file, DATA[: transfer.LARGE - 1])
    assert held(file) == DATA[: transfer.LARGE - 1]
    assert far.asked == []


@pytest.mark.parametrize("begun", [1, transfer.RANGE, transfer.RANGE + 17, SIZE - 1, SIZE])
def test_it_goes_on_where_it_was_cut(far, file, begun):
    os.write(file, DATA[:begun])
    assert copy(far, file, resume=True) == SIZE
    assert held(file) == DATA
    assert sum(length for _, length in far.asked) == SIZE - begun


@pytest.mark.parametrize("rubbish", [b"x", DATA[:-1] + b"?", DATA + b"more", b"\0" * SIZE])
def test_what_is_no_beginning_of_it_does_no_harm(far, file, rubbish):
    """It is fetched again, and the blob is not taken for damaged."""
    os.write(file, rubbish)
    assert copy(far, file, resume=True) == SIZE
    assert held(file) == DATA
    assert far.stat(layout.blob(digest_of(DATA))) is not None
    assert list(far.listing(layout.DAMAGED)) == []


def test_without_resuming_what_the_file_holds_is_replaced(far, file):
    os.write(file, DATA[:100])
    copy(far, file)
    assert sum(length for _, length in far.asked) == SIZE
    os.write(file, bytes(2 * SIZE))
    copy(far, file, DATA[: transfer.LARGE - 1])
    assert held(file) == DATA[: transfer.LARGE - 1]


def test_an_error_leaves_a_beginning(far, file):
    far.fail_from = 2 * transfer.RANGE
    with pytest.raises(UnavailableError):
        copy(far, file)
    assert held(file) == DATA[: 2 * transfer.RANGE]
    far.fail_from, far.asked = None, []
    copy(far, file, resume=True)
    assert held(file) == DATA
    assert sum(length for _, length in far.asked) == SIZE - 2 * transfer.RANGE


@pytest.mark.parametrize("resume", [False, True])
def test_wrong_bytes_in_the_store_are_set_aside(far, file, resume):
    name = layout.blob(digest_of(DATA))
    with far._lock:
        stat, data = far._objects[name]
        far._objects[name] = (stat, data[:-1] + b"?")
    with pytest.raises(CorruptError):
        copy(far, file, resume=resume)
    assert far.stat(name) is None
    assert len(list(far.listing(layout.DAMAGED))) == 1


def test_a_range_that_is_too_short_is_an_error(file):
    with pytest.raises(StorageIOError, match="3 bytes"):
        transfer.download(lambda start, length: b"abc", 10, file, "file", 1)


@given(st.binary(max_size=60), st.integers(1, 20), st.integers(1, 4), st.data())
def test_any_beginning_and_any_ranges(data, length, at_once, draw):
    begun = draw.draw(st.integers(0, len(data)))
    rest = draw.draw(st.binary(max_size=4)) if begun == len(data) else b""
    fd = os.memfd_create("file") if hasattr(os, "memfd_create") else pytest.skip("no files in memory here")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(transfer, "RANGE", length)
        os.write(fd, data[:begun] + rest)
        read = []

        def ranged(start, count):
            read.append(count)
            return data[start : start + count]

        assert transfer.download(ranged, len(data), fd, "file", at_once) == digest_of(data)
        assert held(fd) == data
        assert sum(read) == len(data) - begun
    os.close(fd)


@pytest.mark.skipif(os.name == "nt", reason="needs SIGKILL")
def test_a_killed_transfer_is_gone_on_with(tmp_path):
    """Whatever a killed process leaves is a beginning, and the next process fetches no more than the rest."""
    program = textwrap.dedent(
        """
        import os, sys, time
        from oarbank_cas import transfer
        data = open(sys.argv[1], "rb").read()
        fd = os.open(sys.argv[2], os.O_RDWR | os.O_CREAT)
        fetched = []
        transfer.RANGE = 65536
        def read(start, length):
            time.sleep(0.002)
            fetched.append(length)
            return data[start:start + length]
        print("begun", flush=True)
        print(transfer.download(read, len(data), fd, "file", 4), sum(fetched), flush=True)
        """
    )
    (tmp_path / "data").write_bytes(DATA)
    command = [sys.executable, "-c", program, str(tmp_path / "data"), str(tmp_path / "file")]
    for _ in range(6):
        with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
            process.stdout.readline()
            time.sleep(0.04)
            process.send_signal(signal.SIGKILL)
        found = (tmp_path / "file").read_bytes() if (tmp_path / "file").exists() else b""
        assert DATA.startswith(found)
    digest, fetched = subprocess.run(command, capture_output=True, check=True, text=True).stdout.split()[1:]
    assert digest == digest_of(DATA)
    assert int(fetched) == SIZE - len(found)
    assert (tmp_path / "file").read_bytes() == DATA
