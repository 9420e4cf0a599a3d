"""Large files are sent from where they are: exactly the bytes that were hashed, or none, and no copy on this disk."""

from __future__ import annotations

import hashlib
import os
import tempfile
from datetime import UTC, datetime, timedelta

import pytest
import s3_kit
from hypothesis import given
from hypothesis import strategies as st

from oarbank_cas import layout
from oarbank_cas.backends.s3 import multipart
from oarbank_cas.backends.s3.backend import S3Backend
from oarbank_cas.backends.s3.capabilities import Capabilities
from oarbank_cas.backends.s3.spool import SMALL, CheckedPart, FilePart, FileSpool
from oarbank_cas.blobs import Blobs
from oarbank_cas.errors import CasError, StorageIOError
from oarbank_cas.intake import Intake
from oarbank_cas.sources import PathSource

PART = multipart.LEAST_PART
SIZES = {"whole": SMALL + 1, "two parts": PART + 1, "full parts": 2 * PART, "parts": 3 * PART + 4321}


@pytest.fixture(params=["as it is", "trusted with nothing"])
def backend(place, request, monkeypatch, tmp_path):
    """Also as on a server whose checks nobody knows; nothing may go to the temporary directory."""
    known = s3_kit.capabilities() if request.param == "as it is" else Capabilities()
    made = S3Backend(s3_kit.wire(place, engine="boto3"), known, multipart_above=PART, part_size=PART)
    monkeypatch.setattr(tempfile, "TemporaryFile", None)
    descriptors = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else None
    made.stat("x")
    yield made
    made.close()
    assert s3_kit.left_behind(made.wire) == []
    if descriptors is not None:
        assert len(os.listdir("/proc/self/fd")) <= descriptors + 5  # connections, which are kept for a while


def put(backend, *paths):
    with Intake(backend, Blobs(backend, 3600)) as intake:
        blobs = intake.add_files([PathSource(str(path)) for path in paths])
        intake.commit()
    return blobs


def stored(backend):
    return {stat.name: backend.read(stat.name, 2**30)[0] for stat in backend.listing(layout.BLOBS)}


def named(data):
    return layout.blob(hashlib.sha256(data).hexdigest())


@pytest.mark.parametrize("kind", SIZES)
def test_every_size(backend, tmp_path, kind):
    data = os.urandom(SIZES[kind])
    (tmp_path / "file").write_bytes(data)
    (blob,) = put(backend, tmp_path / "file")
    assert (blob.size, blob.new) == (len(data), True)
    assert stored(backend) == {named(data): data}
    assert not put(backend, tmp_path / "file")[0].new


def test_several_at_once_and_one_of_them_twice(backend, tmp_path):
    contents = [os.urandom(SIZES[kind]) for kind in SIZES]
    paths = [tmp_path / str(number) for number in range(len(contents))]
    for path, data in zip(paths, contents, strict=True):
        path.write_bytes(data)
    blobs = put(backend, *paths, paths[0])
    assert sum(blob.new for blob in blobs) == len(contents)
    assert stored(backend) == {named(data): data for data in contents}


@pytest.mark.parametrize("kind", SIZES)
@pytest.mark.parametrize("change", ["one byte", "one byte, unseen", "shorter", "longer", "another file"])
def test_a_file_that_changes_between_hashing_and_sending(backend, tmp_path, monkeypatch, kind, change):
    """Nothing but the hashed bytes ever stands under their name."""
    data = os.urandom(SIZES[kind])
    path = tmp_path / "file"
    path.write_bytes(data)
    create = S3Backend.create_many

    def changing(self, items, namer=None):
        if items and change == "another file":
            os.replace(_written(tmp_path / "other", os.urandom(len(data))), path)
        elif items:
            _change(path, change)
        return create(self, items, namer)

    monkeypatch.setattr(S3Backend, "create_many", changing)
    if change == "one byte, unseen":  # as a mapping of the file may do it
        monkeypatch.setattr("oarbank_cas.intake.check_unchanged", lambda *_: None)
    with pytest.raises(CasError) as told:
        put(backend, path)
    assert stored(backend) == {}
    if change != "one byte, unseen":
        assert isinstance(told.value, StorageIOError)
        assert "file changed while it was read" in str(told.value)
    for key, upload in multipart.abandoned(backend.wire, datetime.now(UTC) + timedelta(hours=1)):
        assert change == "one byte, unseen"  # which looks like a network that spoils what it carries
        multipart.abort(backend.wire, key, upload)


def _written(path, data):
    path.write_bytes(data)
    return path


def _change(path, how):
    before = path.stat()
    with open(path, "r+b") as file:
        if how == "shorter":
            file.truncate(before.st_size - 1)
        elif how == "longer":
            file.seek(0, os.SEEK_END)
            file.write(b"x")
        else:
            file.seek(before.st_size // 2)
            byte = file.read(1)
            file.seek(-1, os.SEEK_CUR)
            file.write(bytes([byte[0] ^ 1]))


def test_a_file_is_read_twice_at_most(backend, tmp_path, monkeypatch):
    if backend.capabilities == Capabilities():
        pytest.skip("what was put is read back, by its own way")
    data = os.urandom(SIZES["parts"])
    (tmp_path / "file").write_bytes(data)
    sent = []
    read = FilePart.read

    def counted(self, size=-1):
        found = read(self, size)
        sent.append(len(found))
        return found

    monkeypatch.setattr(FilePart, "read", counted)
    put(backend, tmp_path / "file")
    # boto3 hashes a part once more, to sign it.
    assert sum(sent) <= 2 * len(data)


@given(st.binary(min_size=1, max_size=60), st.integers(1, 20), st.integers(1, 20))
def test_each_part_has_its_checksum_however_the_file_is_read(data, part_size, piece):
    with tempfile.NamedTemporaryFile() as file:
        file.write(data)
        file.flush()
        spool = FileSpool(file.fileno(), part_size, lambda fd: None)
        for start in range(0, len(data), piece):
            spool.write(data[start : start + piece])
        spool.finish()
        for start in range(0, len(data), part_size):
            part = data[start : start + part_size]
            assert spool.checksum(start, len(part)) == hashlib.sha256(part).digest()
            with spool.part(start, len(part)) as body:
                assert body.read() == part
        assert (spool.size, spool.sha256) == (len(data), hashlib.sha256(data).digest())
        spool.discard()


@given(st.binary(min_size=1, max_size=60), st.data())
def test_a_part_that_was_changed_is_never_read_to_its_end(data, draw):
    """Whatever the server makes of checksums, it never gets the whole of it."""
    at, step = draw.draw(st.integers(0, len(data) - 1)), draw.draw(st.integers(1, 70))
    told = []
    with tempfile.NamedTemporaryFile() as file:
        file.write(data)
        file.flush()
        expected = hashlib.sha256(data).digest()
        with CheckedPart(file.fileno(), 0, len(data), expected, lambda: told.append(1)) as part:
            assert b"".join(iter(lambda: part.read(step), b"")) == data
            part.seek(0, os.SEEK_END)
            assert part.tell() == len(data)
            part.seek(0)
            file.seek(at)
            file.write(bytes([data[at] ^ 1]))
            file.flush()
            got = []
            with pytest.raises(StorageIOError, match="changed"):
                got.extend(iter(lambda: part.read(step), b""))
            assert sum(map(len, got)) < len(data)
            assert told == [1]
