"""What a run does, on a store that nobody else uses."""

from __future__ import annotations

import json

import pytest

from oarbank_cas import layout
from oarbank_cas.backends.base import Backend
from oarbank_cas.contracts.canonical import digest_of
from oarbank_cas.errors import BusyError, StorageIOError, UnavailableError
from oarbank_cas.gc.retention import Policy

from .world import DAY, GRACE_S, SETTLED, S


class Failing(Backend):
    """A backend that fails at some operation on some name."""

    def __init__(self, backend, method, prefix, error):
        self._backend, self._method, self._prefix, self._error = backend, method, prefix, error

    def __getattribute__(self, name):
        own = object.__getattribute__
        if name.startswith("_"):
            return own(self, name)
        found = getattr(own(self, "_backend"), name)
        if name != own(self, "_method"):
            return found

        def method(first, *arguments):
            if any(each.startswith(own(self, "_prefix")) for each in ([first] if isinstance(first, str) else first)):
                raise own(self, "_error")
            return found(first, *arguments)

        return method


Failing.__abstractmethods__ = frozenset()


def changes(bench):
    return {name: entry[0].validator for name, entry in bench.backend._objects.items()}


class TestBlobs:
    def test_an_orphan_is_condemned_then_purged(self, bench):
        key = bench.record("kept", b"kept", b"also kept")
        orphan = bench.put(b"orphan")
        bench.later()
        report = bench.gc()
        assert report.exit_code == 0
        assert report.done.count("blobs condemned") == 1
        assert report.done.bytes("blobs condemned") == 6
        assert not bench.blobs.has(orphan)
        assert bench.blobs.get_bytes(orphan) == b"orphan"
        bench.later()
        report = bench.gc()
        assert (report.done.count("fossils purged"), report.freed_bytes) == (1, 6)
        assert bench.blobs.size_for_readers(orphan) is None
        assert bench.stands(key)
        assert bench.names(layout.FOSSILS) == []

    def test_young_blobs_stay(self, bench):
        bench.record("kept", b"kept")
        orphan = bench.put(b"orphan")
        bench.later(GRACE_S)
        bench.gc()
        assert bench.blobs.has(orphan)

    def test_a_fossil_stays_for_a_session(self, bench):
        bench.record("kept", b"kept", b"more")
        bench.put(b"orphan")
        bench.later()
        bench.gc()
        bench.later((SETTLED - S) / S)
        assert bench.gc().done.count("fossils purged") == 0
        bench.later(90)
        assert bench.gc().done.count("fossils purged") == 1

    def test_a_fossil_that_no_completed_run_saw_stays(self, bench):
        bench.record("kept", b"kept", b"more")
        orphan = bench.put(b"orphan")
        bench.later()
        bench.gc()
        for name in bench.names(layout.GC_RUNS):
            bench.backend.delete(name)
        bench.later()
        assert bench.gc().done.count("fossils purged") == 0
        assert bench.blobs.get_bytes(orphan) == b"orphan"
        bench.later()
        assert bench.gc().done.count("fossils purged") == 1

    def test_what_a_root_needs_again_comes_back_and_its_fossil_goes_later(self, bench):
        bench.record("kept", b"kept", b"more")
        bench.put(b"needed")
        bench.later()
        bench.gc()
        key = bench.record("late", b"other", b"needed")
        bench.backend.delete(layout.blob(digest_of(b"needed")))  # as a stalled gc may, that has made a fossil of it
        bench.later()
        report = bench.gc()
        assert (report.done.count("blobs revived"), report.done.count("fossils purged")) == (1, 0)
        assert bench.blobs.has(digest_of(b"needed"))
        bench.later()
        report = bench.gc()
        assert report.done.count("fossils purged") == 1
        assert bench.stands(key)

    def test_a_half_renamed_fossil_is_finished_and_has_no_age(self, bench):
        bench.record("kept", b"kept", b"more")
        digest = bench.put(b"orphan")
        half = layout.fossil(digest, "f" * 16) + "~"
        bench.backend.copy(layout.blob(digest), half)
        bench.backend.delete(layout.blob(digest))
        bench.later(10 * DAY / S)
        report = bench.gc()
        assert (report.done.count("fossils finished"), report.done.count("fossils purged")) == (1, 0)
        assert bench.names(layout.FOSSILS) == [half[:-1]]
        bench.later()
        assert bench.gc().done.count("fossils purged") == 1

    def test_unknown_files_are_left_alone(self, bench):
        bench.record("kept", b"kept")
        strange = ["blobs/notes.txt", "fossils/ab/x", "results/ab/readme", "pins/.DS_Store", "damaged/x", "tmp.txt"]
        for name in strange:
            bench.place(name, b"?")
        for _ in range(3):
            bench.later(DAY / S)
            report = bench.gc()
            assert report.exit_code == 0
        assert report.unknown == 4
        assert set(strange) <= set(bench.names())


class TestDryRun:
    def test_it_writes_nothing_and_says_what_the_real_run_then_does(self, bench):
        bench.record("old", b"old")
        bench.record("also", b"kept", b"files", module="other")
        bench.put(b"orphan")
        bench.later(DAY / S)
        bench.record("new", b"new", module="other")
        before = changes(bench)
        policy = Policy(keep_days=0.5)
        dry = bench.gc(policy, dry_run=True, yes_really=True)
        assert changes(bench) == before
        real = bench.gc(policy, yes_really=True)
        assert dry.plan.to_json() == real.plan.to_json()
        assert (dry.plan.rows(), dry.done.rows()) == (real.done.rows(), [])
        expired = [row for row in real.done.rows() if row["action"] == "entries expired"]
        assert {row["module"]: row["count"] for row in expired} == {"demo": 1, "other": 1}
        assert {row["age"] for row in expired} == {"1 to 7 days"}


class TestDoubt:
    """Whatever cannot be read: nothing is deleted, and the run says what it was."""

    def ready(self, bench):
        """Something of each kind that would be done."""
        bench.record("ended", b"ended")
        bench.put(b"first orphan")
        bench.later(DAY / S)
        bench.gc()
        key = bench.record("kept", b"kept", b"more")
        bench.put(b"second orphan")
        bench.later(DAY / S)
        return key

    def refuses(self, bench, what, code, backend=None):
        kept = {name for name in bench.names() if not name.startswith(layout.GC)}
        versions = changes(bench)
        report = bench.gc(Policy(keep_days=0, tombstone_days=0), backend=backend, allow_no_roots=True, yes_really=True)
        assert report.exit_code == code, report.to_json()
        assert any(what in doubt.what for doubt in report.doubts), report.doubts
        after = changes(bench)
        assert {name: after.get(name) for name in kept} == {name: versions[name] for name in kept}
        assert report.done.rows() == []
        return report

    def test_an_entry(self, bench):
        key = self.ready(bench)
        name = layout.entry(key, None, "any")
        data = bytearray(bench.backend._objects[name][1])
        data[-5] ^= 1
        bench.overwrite(name, bytes(data))
        self.refuses(bench, name, 65)

    @pytest.mark.parametrize("harm", ["damaged", "gone"])
    def test_a_manifest(self, bench, harm):
        key = self.ready(bench)
        dataset = bench.lookups.lookup(key).datasets["out"]
        name = layout.blob(dataset.removeprefix("art:"))
        data = bench.backend._objects[name][1]
        bench.backend.delete(name)
        if harm == "damaged":
            bench.place(name, data[:-1] + b"?")
        self.refuses(bench, name, 65)
        assert bench.names(layout.DAMAGED) == []

    def test_a_manifest_that_an_earlier_run_could_read(self, bench):
        key = self.ready(bench)
        assert bench.gc().exit_code == 0
        name = layout.blob(bench.lookups.lookup(key).datasets["out"].removeprefix("art:"))
        bench.overwrite(name, b"rotten")
        bench.later()
        self.refuses(bench, name, 65)

    def test_a_pin(self, bench):
        self.ready(bench)
        bench.place("pins/broken", b'{"format": 1')
        self.refuses(bench, "pins/broken", 65)

    def test_a_policy(self, bench):
        self.ready(bench)
        bench.place(layout.POLICY, b'{"keep_dayz": 3}')
        self.refuses(bench, layout.POLICY, 65)

    def test_a_descriptor(self, bench):
        self.ready(bench)
        bench.overwrite(layout.DESCRIPTOR, b"{}")
        self.refuses(bench, layout.DESCRIPTOR, 65)

    @pytest.mark.parametrize("prefix", [layout.RESULTS, layout.PINS, layout.BLOBS, layout.FOSSILS, layout.GC_RUNS])
    def test_a_listing(self, bench, prefix):
        self.ready(bench)
        failing = Failing(bench.backend, "listing", prefix, UnavailableError("the network is down"))
        report = self.refuses(bench, "store", 69, failing)
        assert "network" in report.doubts[0].why

    def test_an_entry_that_cannot_be_fetched(self, bench):
        self.ready(bench)
        self.refuses(bench, "store", 74, Failing(bench.backend, "read", layout.RESULTS, StorageIOError("bad sector")))

    def test_a_listing_of_entries_that_came_back_short(self, bench):
        self.ready(bench)
        bench.gc()
        bench.later()
        short = Failing(bench.backend, "listing", "-", None)
        real = bench.backend.listing

        def listing(prefix, after=""):
            return (stat for stat in real(prefix, after) if prefix != layout.RESULTS)

        object.__setattr__(short, "_method", "listing")
        object.__setattr__(short, "_backend", _Listing(bench.backend, listing))
        self.refuses(bench, layout.RESULTS, 65, short)

    def test_a_listing_of_blobs_that_came_back_short(self, bench):
        self.ready(bench)
        real = bench.backend.listing

        def listing(prefix, after=""):
            return (stat for stat in real(prefix, after) if stat.name != layout.blob(digest_of(b"kept")))

        short = Failing(_Listing(bench.backend, listing), "listing", "-", None)
        self.refuses(bench, digest_of(b"kept"), 65, short)

    @pytest.mark.parametrize("jump", [DAY, -DAY])
    def test_a_clock_that_jumped(self, bench, jump):
        self.ready(bench)
        bench.machine.offset = -jump  # the store's clock and the machine's moved apart
        report = self.refuses(bench, "clock", 69)
        assert "since" in report.doubts[0].why
        bench.later(30)
        assert bench.gc().exit_code == 0  # the refused run is on record

    def test_a_store_clock_that_ran_backwards(self, bench):
        self.ready(bench)
        bench.machine.host = "another"
        bench.world.now -= 5 * DAY
        self.refuses(bench, "clock", 69)

    @pytest.mark.parametrize("late", [1, 4, 5])
    def test_a_clock_that_is_answered_late(self, bench, late):
        """Two clocks that were not read together are not kept, for the next run to take them for a jump."""
        self.ready(bench)
        slow = Failing(_SlowClock(bench, late), "listing", "-", None)
        if late == 5:
            self.refuses(bench, "the storage", 69, slow)
        else:
            assert bench.gc(backend=slow).exit_code == 0
        bench.later(30)
        assert bench.gc().exit_code == 0


class _Listing:
    def __init__(self, backend, listing):
        self._backend = backend
        self.listing = listing

    def __getattr__(self, name):
        return getattr(self._backend, name)


class _SlowClock(_Listing):
    """The storage, when its first answers about the time come minutes late."""

    def __init__(self, bench, late):
        super().__init__(bench.backend, bench.backend.listing)
        self._world, self._late = bench.world, late

    def now(self):
        if self._late > 0:
            self._late -= 1
            self._world.now += 170 * S
        return self._backend.now()


class TestGuards:
    def test_blobs_without_roots(self, bench):
        bench.put(b"all that is left")
        bench.later()
        report = bench.gc(yes_really=True)
        assert report.exit_code == 1
        assert "--allow-no-roots" in report.refused
        assert bench.blobs.has(digest_of(b"all that is left"))
        assert bench.gc(yes_really=True, allow_no_roots=True).exit_code == 0

    def test_more_than_half(self, bench):
        bench.record("kept", b"kept")
        bench.put(b"1", b"2", b"3")
        bench.later()
        report = bench.gc()
        assert report.exit_code == 1
        assert "--yes-really" in report.refused
        assert bench.gc(yes_really=True).done.count("blobs condemned") == 3

    def test_an_empty_store(self, bench):
        assert bench.gc().exit_code == 0

    def test_a_new_epoch_waits_for_a_word(self, bench):
        from dataclasses import replace

        bench.record("kept", b"kept", b"more")
        bench.put(b"orphan")
        bench.descriptor = replace(bench.descriptor, epoch=2)
        bench.overwrite(layout.DESCRIPTOR, bench.descriptor.encode())
        bench.later()
        assert "--roots-confirmed" in bench.gc().refused
        assert bench.gc(roots_confirmed=True).done.count("blobs condemned") == 1
        bench.later()
        assert bench.gc().done.count("fossils purged") == 1

    def test_a_new_epoch_starts_ages_again(self, bench):
        from dataclasses import replace

        bench.record("kept", b"kept", b"more")
        bench.put(b"orphan")
        bench.later()
        bench.gc()
        bench.descriptor = replace(bench.descriptor, epoch=2)
        bench.overwrite(layout.DESCRIPTOR, bench.descriptor.encode())
        bench.later()
        report = bench.gc(roots_confirmed=True)
        assert report.done.count("fossils purged") == 0
        assert report.entry_bytes_read > 0

    def test_another_gc(self, bench):
        bench.record("kept", b"kept")
        other = json.dumps({"by": "somebody", "host": "elsewhere", "pid": 12}).encode()
        bench.place(f"{layout.GC_RUNNING}1234", other)
        bench.later(5)
        with pytest.raises(BusyError, match="somebody on elsewhere"):
            bench.gc()
        assert bench.names(layout.GC_RUNNING) == [f"{layout.GC_RUNNING}1234"]
        assert bench.gc(dry_run=True).exit_code == 0
        assert bench.gc(anyway=True).exit_code == 0
        bench.later(601)
        assert bench.gc().exit_code == 0
        assert bench.names(layout.GC_RUNNING) == []

    def test_storage_that_can_neither_rename_nor_refuse_a_late_delete(self, bench):
        bench.backend.atomic_move = bench.backend.expiring_delete = False
        bench.record("kept", b"kept", b"more")
        orphan = bench.put(b"orphan")
        bench.later()
        report = bench.gc()
        assert report.done.count("blobs condemned") == 0
        assert report.notes
        assert bench.blobs.has(orphan)
        report = bench.gc(stall_bound_s=600)
        assert report.done.count("blobs condemned") == 1
        assert bench.names(layout.FOSSILS)[0].endswith("-1200")
        bench.later(1200)
        assert bench.gc(stall_bound_s=600).done.count("fossils purged") == 0
        bench.later(200)
        assert bench.gc(stall_bound_s=600).done.count("fossils purged") == 1


class TestRecords:
    def test_each_run_leaves_one_and_it_stays_for_90_days(self, bench):
        bench.record("kept", b"kept")
        bench.gc()
        (name,) = bench.names(layout.GC_RUNS)
        document = json.loads(bench.backend.read(name, 10**6)[0])
        assert document["by"] == "tester"
        assert document["completed"] is True
        assert document["plan"]["totals"]["entries kept"]["count"] == 1
        bench.later(89 * 86400)
        bench.gc()
        assert len(bench.names(layout.GC_RUNS)) == 2
        bench.later(2 * 86400)
        bench.gc()
        assert name not in bench.names(layout.GC_RUNS)

    def test_a_second_run_reads_only_what_is_new(self, bench):
        for number in range(100):
            bench.record(f"job {number}", f"file {number}".encode())
        first = bench.gc()
        bench.later()
        new = bench.record("another", b"another")
        second = bench.gc()
        assert 0 < second.entry_bytes_read < first.entry_bytes_read * 0.05
        assert second.done.count("entries kept") == 101
        assert bench.stands(new)

    def test_damaged_notes_of_an_earlier_run_cost_only_reading(self, bench):
        bench.record("kept", b"kept", b"more")
        bench.put(b"orphan")
        bench.later()
        first = bench.gc()
        for name in bench.names(layout.GC_STATE):
            data = bench.backend.read(name, 10**6)[0]
            bench.overwrite(name, data[:-3] + b"xyz")
        bench.later()
        second = bench.gc()
        assert second.exit_code == 0
        assert second.entry_bytes_read == first.entry_bytes_read
        assert second.done.count("fossils purged") == 0

    def test_old_notes_are_removed(self, bench):
        bench.record("kept", b"kept")
        for _ in range(5):
            bench.later(2 * 86400)
            bench.gc()
        assert len({name.split("/")[2] for name in bench.names(layout.GC_STATE)}) == 1

    def test_a_failure_half_way_is_told_and_the_next_run_finishes(self, bench):
        bench.record("kept", b"kept", b"more")
        bench.put(b"orphan")
        bench.later()
        bench.gc()
        bench.later()
        report = bench.gc(backend=Failing(bench.backend, "delete_many", layout.FOSSILS, UnavailableError("gone")))
        assert report.exit_code == 69
        assert report.failed.why == "gone"
        assert bench.gc().exit_code == 0
        assert bench.names(layout.FOSSILS) == []
