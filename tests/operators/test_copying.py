"""Copying: only what is missing, verified, roots last; what stands at the target stays."""

import json

import pytest
from operators_kit import digest_of, disk_store, envelope, files_of, key, record

from oarbank_cas import Origin, Store, layout
from oarbank_cas import entry as codec
from oarbank_cas.copying import Options
from oarbank_cas.errors import InvalidInputError, NotFoundError, StorageIOError, UnavailableError


def kinds_of(report):
    return sorted((problem["kind"], problem["name"]) for problem in report.problems)


def test_everything(filled, other):
    report = filled.store.copy_to(other.store)
    assert (report.exit_code, report.problems) == (0, [])
    blobs = filled.names("blobs/")
    assert report.counts["blobs copied"] == len(blobs)
    assert report.counts["bytes copied"] == sum(len(filled.read(name)) for name in blobs)
    assert (report.counts["entries copied"], report.counts["pins copied"]) == (12, 3)
    assert other.contents("blobs/") == filled.contents("blobs/")
    assert other.store.verify().problems == []
    other.jobs = filled.jobs
    other.check_whole()


def test_again_is_a_no_op(filled, mirror):
    before = mirror.contents()
    report = filled.store.copy_to(mirror.store)
    assert mirror.contents() == before
    counts = report.counts
    assert (counts["blobs copied"], counts["entries copied"], counts["pins copied"]) == (0, 0, 0)
    assert (counts["blobs there"], counts["entries there"], counts["pins there"]) == (len(before) - 16, 12, 3)


def test_only_what_is_missing(filled, mirror):
    record(filled.store, 50)
    report = filled.store.copy_to(mirror.store)
    assert (report.counts["blobs copied"], report.counts["entries copied"]) == (3, 1)
    assert mirror.store.lookup(key(50)).hit


def test_headers_are_kept_and_held_anew(filled, other):
    name = filled.entry(3)
    found = codec.decode(filled.read(name))
    filled.write(name, codec.encode({**found.header, "a_newer_field": [1, "x"]}, found.envelope))
    before = other.store.backend.now()
    filled.store.copy_to(other.store)
    copied = codec.decode(other.read(name))
    assert copied.envelope == found.envelope
    assert copied.header["held_since_ns"] >= before > found.header["held_since_ns"]
    assert copied.header["a_newer_field"] == [1, "x"]
    changed = {"held_since_ns", "a_newer_field", "header_sha256"}
    assert {k: v for k, v in copied.header.items() if k not in changed} == {
        k: v for k, v in found.header.items() if k not in changed
    }
    assert (copied.header["recorded_by"], copied.header["attempt"]) == ("tester@bench", "attempt-3")


def test_pins_keep_their_words(filled, mirror):
    there, here = mirror.store.pins.get("a-job"), filled.store.pins.get("a-job")
    assert (there.target, there.note, there.by) == (here.target, "kept", "tester")
    assert mirror.store.pins.get("a-blob").digest == filled.orphan


@pytest.mark.parametrize("stage", [None, "plot"])
def test_one_key(filled, other, stage):
    name = key(70) if stage is None else f"{key(70)}:{stage}"
    data = b"of job 70"
    filled.store.put_bytes(data)
    filled.store.record(name, envelope({"a": data}), Origin("me"), "linux")
    assert filled.store.copy_to(other.store, [name]).exit_code == 1
    report = filled.store.copy_to(other.store, [name], Options(result_class="linux"))
    assert report.exit_code == 0
    assert other.store.lookup(name, "linux").hit
    assert len(other.names("results/")) == 1
    assert len(other.names("blobs/")) == 2


def test_a_dataset(filled, other):
    dataset = filled.dataset(3)
    assert filled.store.copy_to(other.store, [dataset]).exit_code == 0
    assert {file.digest for file in other.store.files_of(dataset)} <= {
        name.rpartition("/")[2] for name in other.names("blobs/")
    }
    assert other.names("results/") == []


def test_blobs(filled, other):
    report = filled.store.copy_to(other.store, [filled.orphan, f"blob:{filled.blob()}"])
    assert (report.exit_code, report.counts["blobs copied"]) == (0, 2)
    assert len(other.names("blobs/")) == 2


def test_what_the_source_does_not_have(filled, other):
    names = [key(98), f"blob:{key(97)}", f"art:{key(96)}"]
    report = filled.store.copy_to(other.store, [*names, key(3)])
    assert kinds_of(report) == sorted(("missing", name) for name in names)
    assert report.exit_code == 1
    assert other.store.lookup(key(3)).hit


def test_names_that_are_none(filled, other):
    for name in ("", "nope", "art:nope", "blob:nope", key(1) + ":Bad"):
        with pytest.raises(InvalidInputError):
            filled.store.copy_to(other.store, [key(3), name])
    assert other.names("results/") == []  # nothing is begun


def test_a_store_to_itself(disk):
    with Store.open(disk.root) as same, pytest.raises(InvalidInputError):
        disk.store.copy_to(same)


def test_damaged_blobs_at_the_source(filled, other):
    name = layout.blob(filled.blob(3))
    filled.flip(name)
    report = filled.store.copy_to(other.store)
    assert {kind for kind, _ in kinds_of(report)} <= {"damaged", "missing"}
    assert any(filled.blob(3) in problem["name"] for problem in report.problems)
    assert any(problem["name"] == filled.entry(3) for problem in report.problems)
    assert name not in other.names()
    assert filled.entry(3) not in other.names()
    assert report.counts["entries copied"] == 11
    assert other.store.verify().sound


def test_damaged_entries_at_the_source(filled, other):
    filled.write(filled.entry(3), b"")
    filled.write(filled.entry(90), filled.read(filled.entry(4)))
    report = filled.store.copy_to(other.store)
    assert kinds_of(report) == sorted([("damaged", filled.entry(3)), ("damaged", filled.entry(90))])
    assert other.store.verify().sound


def test_incomplete_entries_are_completed_from_what_the_target_has(filled, other):
    digest = filled.blob(3)
    other.store.put_bytes(filled.read(layout.blob(digest)))
    filled.remove(layout.blob(digest))
    assert filled.store.copy_to(other.store).exit_code == 0
    assert other.store.lookup(key(3)).hit


def test_condemned_blobs_are_found(filled, other):
    filled.fossilise(filled.blob(3))
    report = filled.store.copy_to(other.store)
    assert report.exit_code == 0
    other.jobs = filled.jobs
    other.check_whole()
    assert other.names("fossils/") == []


def test_a_different_result_at_the_target_stays(filled, other):
    theirs = envelope({"a": b"theirs"})
    other.store.put_bytes(b"theirs")
    other.store.record(key(3), theirs, Origin("them"))
    for wanted in (None, [key(3)]):
        report = filled.store.copy_to(other.store, wanted)
        assert kinds_of(report) == [("differs", filled.entry(3))]
        assert report.exit_code == 1
    assert other.store.lookup(key(3)).envelope == theirs


def test_a_result_that_was_ended_at_the_target_stays_ended(filled, mirror):
    mirror.store.invalidate(key(3), by="me", reason="wrong")
    report = filled.store.copy_to(mirror.store)
    assert kinds_of(report) == [("ended", filled.entry(3))]
    assert not mirror.store.lookup(key(3)).hit
    assert filled.store.copy_to(mirror.store, None, Options(replace_ended=True)).exit_code == 0
    assert mirror.store.lookup(key(3)).hit


@pytest.mark.parametrize("damage", ["entry", "blob", "truncated blob"])
def test_what_is_damaged_at_the_target_is_replaced(filled, mirror, damage):
    name = layout.blob(filled.blob(3))
    if damage == "entry":
        mirror.write(filled.entry(3), b"")
    elif damage == "blob":
        mirror.remove(name)
    else:
        mirror.write(name, filled.read(name)[:-1])
    assert filled.store.copy_to(mirror.store).exit_code == 0
    assert mirror.store.verify().sound
    assert mirror.read(name) == filled.read(name)


def test_tombstones(filled, other):
    filled.store.invalidate(key(3), by="me", reason="wrong")
    filled.store.invalidate(key(4), by="me", reason="wrong")
    record(other.store, 4)
    plain = filled.store.copy_to(other.store)
    assert plain.counts["tombstones left out"] == 2
    assert filled.entry(3) not in other.names()
    asked = filled.store.copy_to(other.store, None, Options(tombstones=True))
    assert asked.counts["tombstones copied"] == 1
    assert kinds_of(asked) == [("differs", filled.entry(4))]
    assert other.store.lookup(key(3)).reason == "invalidated"
    assert other.store.lookup(key(4)).hit
    assert filled.store.copy_to(other.store, None, Options(tombstones=True)).counts["tombstones there"] == 1
    assert other.store.undo_invalidate(key(3), by="me")


def test_pins_of_the_target_stay(filled, other):
    mine = other.store.put_bytes(b"mine").digest
    other.store.pins.pin("a-job", f"blob:{mine}")
    filled.write("pins/broken", b"{")
    report = filled.store.copy_to(other.store)
    assert kinds_of(report) == [("damaged", "pins/broken"), ("differs", "pins/a-job")]
    assert other.store.pins.get("a-job").digest == mine


def test_a_dry_run_writes_nothing(filled, other):
    filled.store.copy_to(other.store, [key(3)])
    before = other.contents()
    report = filled.store.copy_to(other.store, None, Options(dry_run=True))
    assert other.contents() == before
    real = filled.store.copy_to(other.store)
    assert dict(report.counts) == dict(real.counts)


def test_a_dry_run_of_some(filled, other):
    report = filled.store.copy_to(other.store, [key(3), key(4)], Options(dry_run=True))
    assert other.names("blobs/") == []
    real = filled.store.copy_to(other.store, [key(3), key(4)])
    assert (report.counts["blobs copied"], report.counts["entries copied"]) == (7, 2)
    assert report.counts["bytes copied"] == real.counts["bytes copied"]


def test_an_unreadable_blob_is_its_own_problem(filled, other, monkeypatch):
    from oarbank_cas.blobs import BlobReader

    bad = filled.blob(3)
    real = BlobReader.readinto

    def readinto(self, buffer):
        if self.digest == bad and self._blobs is filled.store.blobs:
            raise StorageIOError("I/O error")
        return real(self, buffer)

    monkeypatch.setattr(BlobReader, "readinto", readinto)
    report = filled.store.copy_to(other.store)
    assert report.problem_count == 2  # the blob, and its entry
    assert report.counts["entries copied"] == 11


def test_a_full_disk_ends_the_copy(filled, other, monkeypatch):
    real = other.store.backend.commit

    def commit(items):
        if any(name.startswith("results/") for name, _ in items):
            raise StorageIOError("no space left on device")
        return real(items)

    monkeypatch.setattr(other.store.backend, "commit", commit)
    with pytest.raises(StorageIOError):
        filled.store.copy_to(other.store)
    monkeypatch.undo()
    assert filled.store.copy_to(other.store).exit_code == 0


def test_roots_come_after_all_that_they_need(filled, other, monkeypatch):
    """At each moment the target is sound."""
    real = other.store.backend.commit
    seen = []

    def commit(items):
        for name, _ in items:
            if name.startswith("results/"):
                found = Store(other.store.backend, other.store.descriptor)
                number = next(n for n in filled.jobs if filled.entry(n) == name)
                assert not found.missing([digest_of(data) for data in files_of(number).values()])
                seen.append(name)
        return real(items)

    monkeypatch.setattr(other.store.backend, "commit", commit)
    filled.store.copy_to(other.store)
    assert len(seen) == 12


def test_a_target_that_goes_away(filled, other, monkeypatch):
    def gone(*_):
        raise UnavailableError("gone")

    monkeypatch.setattr(other.store.backend, "commit", gone)
    with pytest.raises(UnavailableError):
        filled.store.copy_to(other.store)


def test_back_and_forth(filled, other, tmp_path):
    third = disk_store(tmp_path / "third")
    filled.store.copy_to(other.store)
    other.store.copy_to(third.store)
    for number in filled.jobs:
        name = filled.entry(number)
        assert codec.decode(third.read(name)).envelope == codec.decode(filled.read(name)).envelope
    with pytest.raises(NotFoundError):
        third.store.get_bytes(key(1))
    third.store.close()


def test_a_truncated_blob_that_nothing_refers_to_is_replaced(filled, mirror):
    name = layout.blob(filled.orphan)
    filled.store.pins.unpin("a-blob")
    mirror.store.pins.unpin("a-blob")
    mirror.write(name, b"nothing")
    report = filled.store.copy_to(mirror.store)
    assert (report.exit_code, report.counts["blobs copied"]) == (0, 1)
    assert mirror.read(name) == filled.read(name)


def test_a_pin_of_a_key_does_not_move_to_another_result(filled, other):
    """The target has another result for the key: a pin of the source's was never a pin of that one."""
    sent = envelope({}, other="result")
    assert other.store.record(key(0), sent, Origin("another")).recorded
    for dry in (True, False):
        report = filled.store.copy_to(other.store, None, Options(dry_run=dry))
        assert sorted((each["kind"], each["name"]) for each in report.problems) == [
            ("differs", "pins/a-job"),
            ("differs", filled.entry(0)),
        ]
        assert report.counts["pins copied"] == 2
        assert "pins/a-job" not in other.names()
        for name in ("a-blob", "a-dataset"):
            other.store.pins.unpin(name)
    assert other.store.lookup(key(0)).envelope == sent


def test_pins_that_have_expired_stay_behind(filled, other):
    document = json.loads(filled.read("pins/a-job"))
    filled.write("pins/a-job", json.dumps(document | {"expires_at": "2026-01-01T00:00:00Z"}).encode())
    report = filled.store.copy_to(other.store)
    assert (report.problems, report.counts["pins expired"], report.counts["pins copied"]) == ([], 1, 2)
    assert other.names("pins/") == ["pins/a-blob", "pins/a-dataset"]
