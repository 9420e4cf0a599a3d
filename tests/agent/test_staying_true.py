"""What a store found out at work overrides what it remembered; a long upload that is cut off keeps what arrived."""

from __future__ import annotations

import io
import json
import os

import pytest

from oarbank_cas import CorruptError, NotFoundError, Origin, StorageIOError, Store, layout
from oarbank_cas.intake import Intake

KEY = "ab" * 32


@pytest.fixture
def disk(tmp_path):
    store, _ = Store.init(tmp_path / "store")
    with store:
        yield store


def work(tmp_path, files):
    folder = tmp_path / "work"
    folder.mkdir()
    for name, data in files.items():
        (folder / name).write_bytes(data)
    listed = [{"path": name, "local": name} for name in files]
    envelope = {
        "schema": "m/result@1",
        "module_version": "1.0.0",
        "payload": {},
        "artifacts": [{"name": "out", "files": listed}],
    }
    (folder / "result.json").write_text(json.dumps(envelope))
    return folder


def path_of(store, digest):
    return os.path.join(store.backend.where, layout.blob(digest))


def published(store, tmp_path):
    store.publish(KEY, work(tmp_path, {"a": b"alpha"}), Origin("me"))
    answer = store.lookup(KEY)
    assert answer.hit
    return store.files_of(answer.datasets["out"])[0].digest


def test_a_blob_found_damaged_is_missed_at_once(disk, tmp_path):
    digest = published(disk, tmp_path)
    os.chmod(path_of(disk, digest), 0o644)
    with open(path_of(disk, digest), "wb") as file:
        file.write(b"omega")
    assert disk.lookup(KEY).hit  # nobody has read it yet
    with pytest.raises(CorruptError):
        disk.get_bytes(digest)
    assert disk.lookup(KEY).reason == "incomplete"


def test_a_blob_found_absent_by_a_reader_is_missed_at_once(disk, tmp_path):
    digest = published(disk, tmp_path)
    os.unlink(path_of(disk, digest))
    with pytest.raises(NotFoundError):
        disk.open_blob(digest)
    assert disk.lookup(KEY).reason == "incomplete"


def test_a_damaged_header_is_a_miss_also_where_the_entry_was_seen_whole(disk, tmp_path):
    published(disk, tmp_path)
    entry = os.path.join(disk.backend.where, layout.entry(KEY, None, "any"))
    os.chmod(entry, 0o644)
    with open(entry, "r+b") as file:
        data = file.read()
        file.seek(data.index(b'"out":"art:'))
        file.write(b'"in_":"art:')
    assert disk.lookup(KEY).reason == "corrupt"


def test_a_publish_that_is_cut_off_keeps_what_arrived(disk, tmp_path, monkeypatch):
    monkeypatch.setattr("oarbank_cas.pending._STAGE_FILES", 3)
    folder = work(tmp_path, {f"f{number}": os.urandom(100) for number in range(10)})
    (folder / "f9").chmod(0o000)
    whole = Intake._add_file

    def stops_at_the_ninth(self, source, at_most):
        if source.label == "f8":
            raise StorageIOError("the machine goes down")
        return whole(self, source, at_most)

    monkeypatch.setattr(Intake, "_add_file", stops_at_the_ninth)
    with pytest.raises(StorageIOError):
        disk.publish(KEY, folder, Origin("me"))
    assert disk.lookup(KEY).reason == "absent"
    assert len(list(disk.backend.listing(layout.BLOBS))) == 6  # two stages of three
    monkeypatch.setattr(Intake, "_add_file", whole)
    (folder / "f9").chmod(0o644)
    uploaded = disk.publish(KEY, folder, Origin("me")).uploaded
    assert (uploaded.files, uploaded.new_files) == (10, 4)
    assert disk.lookup(KEY).hit


def test_a_stream_that_has_nothing_yet_is_not_at_its_end(disk):
    class Waiting(io.RawIOBase):
        def readable(self):
            return True

        def read(self, size=-1):
            return None

    with pytest.raises(StorageIOError, match="not its end"):
        disk.put_stream(Waiting())
    assert list(disk.backend.listing(layout.BLOBS)) == []
