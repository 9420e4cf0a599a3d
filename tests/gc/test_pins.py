"""Pins: what can be pinned, what a pin keeps, and what becomes of one that came late."""

from __future__ import annotations

import pytest

from oarbank_cas import instants, layout
from oarbank_cas.contracts.canonical import digest_of
from oarbank_cas.errors import ConflictError, CorruptError, InvalidInputError, NotFoundError, StorageIOError
from oarbank_cas.gc.retention import Policy

from .world import DAY, SESSION_S, S


def collected(bench, runs=3, policy=None):
    for _ in range(runs):
        bench.later(2 * DAY / S)
        report = bench.gc(policy, yes_really=True, allow_no_roots=True)
        assert report.exit_code == 0, report.to_json()


class TestTargets:
    def test_a_blob(self, bench):
        digest = bench.put(b"kept")
        bench.put(b"not kept")
        for target in (digest, f"blob:{digest}"):
            pin = bench.pins.pin("p", target, note="why", by="who")
            assert (pin.digest, pin.target, pin.note, pin.by, pin.job_key) == (digest, digest, "why", "who", None)
            collected(bench)
            assert bench.blobs.get_bytes(digest) == b"kept"
            assert bench.blobs.size_for_readers(digest_of(b"not kept")) is None
            bench.pins.unpin("p")
        collected(bench)
        assert not bench.blobs.has(digest)

    def test_a_dataset_with_all_its_files(self, bench):
        key = bench.record("job", b"one", b"two")
        dataset = bench.lookups.lookup(key).datasets["out"]
        pin = bench.pins.pin("p", dataset, by="who")
        assert pin.dataset == dataset
        bench.results.invalidate(key, by="who", reason="wrong")
        collected(bench, 4, Policy(tombstone_days=0))
        assert bench.names(layout.RESULTS) == []
        for content in (b"one", b"two"):
            assert bench.blobs.get_bytes(digest_of(content)) == content
        assert bench.blobs.get_bytes(dataset[4:])

    def test_a_job_key(self, bench):
        key = bench.record("job", b"one", b"two")
        pin = bench.pins.pin("p", key, by="who")
        assert (pin.job_key, pin.result_class) == (key, "any")
        collected(bench, 3, Policy(keep_days=0))
        assert bench.stands(key)

    @pytest.mark.parametrize("target", ["a" * 64, "blob:" + "a" * 64, "art:" + "a" * 64, "a" * 64 + ":stage"])
    def test_what_is_not_there(self, bench, target):
        with pytest.raises(NotFoundError):
            bench.pins.pin("p", target, by="who")
        assert bench.names(layout.PINS) == []

    def test_a_dataset_with_a_file_missing(self, bench):
        key = bench.record("job", b"one", b"two")
        bench.backend.delete(layout.blob(digest_of(b"two")))
        with pytest.raises(NotFoundError):
            bench.pins.pin("p", bench.lookups.lookup(key, complete=False).datasets["out"], by="who")
        with pytest.raises(NotFoundError):
            bench.pins.pin("p", key, by="who")

    @pytest.mark.parametrize("target", ["", "nonsense", "art:x", "blob:x", "A" * 64])
    def test_nonsense(self, bench, target):
        with pytest.raises(InvalidInputError):
            bench.pins.pin("p", target, by="who")

    def test_a_condemned_blob_is_brought_back(self, bench):
        digest = bench.put(b"kept")
        bench.record("other", b"x", b"y")
        bench.later()
        bench.gc()
        assert not bench.blobs.has(digest)
        bench.pins.pin("p", digest, by="who")
        assert bench.blobs.has(digest)


class TestPins:
    @pytest.mark.parametrize("name", ["", "Upper", "a/b", "con", "nul.txt", "a" * 101, ".hidden", "dot.", "a b", "ä"])
    def test_names_that_no_file_can_have_everywhere(self, bench, name):
        digest = bench.put(b"x")
        with pytest.raises(InvalidInputError):
            bench.pins.pin(name, digest, by="who")

    def test_a_name_is_taken_once(self, bench):
        digest = bench.put(b"x")
        first = bench.pins.pin("p", digest, by="who")
        with pytest.raises(ConflictError):
            bench.pins.pin("p", digest, by="another")
        assert bench.pins.get("p") == first
        assert list(bench.pins.listing()) == [first]
        assert bench.pins.unpin("p")
        assert not bench.pins.unpin("p")
        with pytest.raises(NotFoundError):
            bench.pins.get("p")

    def test_it_expires(self, bench):
        digest = bench.put(b"kept")
        expires = instants.to_text(bench.world.now + 10 * DAY)
        assert bench.pins.pin("p", digest, by="who", expires_at=expires).expires_at == expires
        collected(bench, 3)
        assert bench.blobs.has(digest)
        collected(bench, 5)
        assert not bench.blobs.has(digest)
        assert [pin.name for pin in bench.pins.listing()] == ["p"]  # gc deletes no pins

    def test_a_wrong_expiry(self, bench):
        with pytest.raises(InvalidInputError):
            bench.pins.pin("p", bench.put(b"x"), by="who", expires_at="tomorrow")

    def test_damage_is_told(self, bench):
        bench.pins.pin("p", bench.put(b"x"), by="who")
        bench.overwrite("pins/p", b'{"format": 1, "pin": "p"}')
        with pytest.raises(CorruptError, match="pins/p"):
            bench.pins.get("p")
        assert bench.pins.unpin("p")

    def test_one_that_came_late_is_held_anew(self, bench):
        digest = bench.put(b"x")
        self.late(bench)
        assert bench.pins.pin("p", digest, by="who").digest == digest

    def test_one_that_came_late_is_withdrawn_where_something_went(self, bench):
        digest = bench.put(b"x")
        self.late(bench, lambda: bench.backend.delete(layout.blob(digest)))
        with pytest.raises(StorageIOError, match="pin again"):
            bench.pins.pin("p", digest, by="who")
        assert bench.names(layout.PINS) == []

    def test_one_of_an_entry_that_was_ended_meanwhile_is_withdrawn(self, bench):
        key = bench.record("job", b"x")
        self.late(bench, lambda: bench.results.invalidate(key, by="who", reason="wrong"), seconds=0)
        with pytest.raises(NotFoundError, match="ended"):
            bench.pins.pin("p", key, by="who")
        assert bench.names(layout.PINS) == []

    def late(self, bench, then=lambda: None, seconds=SESSION_S + 10):
        real = bench.backend.commit

        def commit(items):
            if items and items[0][0].startswith(layout.PINS):
                del bench.backend.commit
                bench.later(seconds)
                then()
            return real(items)

        bench.backend.commit = commit
