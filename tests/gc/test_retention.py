"""Which entries a policy keeps, where it comes from, and what hits have to do with it."""

from __future__ import annotations

import pytest

from oarbank_cas import layout
from oarbank_cas.errors import InvalidInputError
from oarbank_cas.gc.hits import HitRecorder
from oarbank_cas.gc.retention import Policy

from .scenarios import manifest_of
from .world import DAY, S


def kept(bench, policy=None, **options):
    options = {"yes_really": True, "allow_no_roots": True, **options}
    report = bench.gc(policy, **options)
    assert report.exit_code == 0, report.to_json()
    return report.done.count("entries kept"), report.done.count("entries expired")


def days(bench, count):
    bench.later(count * DAY / S)


class TestPolicies:
    def test_nothing_expires_unasked(self, bench):
        bench.record("ancient", b"x")
        days(bench, 10_000)
        assert kept(bench) == (1, 0)

    def test_days_since_recorded(self, bench):
        old = bench.record("old", b"x")
        days(bench, 20)
        new = bench.record("new", b"y")
        days(bench, 20)
        assert kept(bench, Policy(keep_days=30)) == (1, 1)
        answer = bench.lookups.lookup(old)
        assert (answer.status, answer.reason) == ("miss", "expired")
        assert bench.stands(new)

    def test_days_since_the_last_hit(self, bench):
        hit, missed = bench.record("hit", b"x"), bench.record("missed", b"y")
        days(bench, 20)
        bench.hit(hit)
        days(bench, 20)
        assert kept(bench, Policy(keep_hit_days=30)) == (1, 1)
        assert bench.stands(hit)
        assert not bench.stands(missed)

    def test_the_newest_of_each_module(self, bench):
        keys = {}
        for number in range(3):
            for module in ("align", "call"):
                keys[module, number] = bench.record(f"{module} {number}", b"x", module=module)
            days(bench, 1)
        assert kept(bench, Policy(keep_newest=1)) == (2, 4)
        assert bench.stands(keys["align", 2])
        assert bench.stands(keys["call", 2])

    def test_any_rule_that_keeps_keeps(self, bench):
        old = bench.record("old", b"x", module="rare")
        days(bench, 50)
        bench.record("new", b"y")
        assert kept(bench, Policy(keep_days=1, keep_newest=1)) == (2, 0)
        assert bench.stands(old)

    def test_bytes_shared_are_counted_once(self, bench):
        shared = b"s" * 1000
        first = bench.record("first", shared, b"a" * 100)
        days(bench, 1)
        second = bench.record("second", shared, b"b" * 100)
        both = 1200 + len(manifest_of((shared, b"a" * 100))) + len(manifest_of((shared, b"b" * 100)))
        assert kept(bench, Policy(max_bytes=both)) == (2, 0)
        assert kept(bench, Policy(max_bytes=both - 1)) == (1, 1)
        assert not bench.stands(first)
        assert bench.stands(second)

    def test_the_least_recently_hit_goes_first(self, bench):
        old = bench.record("old", b"o" * 1000)
        days(bench, 1)
        bench.record("new", b"n" * 1000)
        days(bench, 1)
        bench.hit(old)
        assert kept(bench, Policy(max_bytes=1500)) == (1, 1)
        assert bench.stands(old)

    def test_what_is_pinned_stays(self, bench):
        pinned = bench.record("pinned", b"p" * 1000)
        bench.record("other", b"o" * 1000)
        bench.pins.pin("keep", pinned, by="me")
        days(bench, 100)
        assert kept(bench, Policy(keep_days=1, max_bytes=0)) == (1, 1)
        assert bench.stands(pinned)
        bench.pins.unpin("keep")
        days(bench, 1)
        assert kept(bench, Policy(keep_days=1)) == (0, 1)

    def test_bytes_that_pins_keep_count(self, bench):
        bench.put(b"p" * 1000)
        digest = bench.put(b"p" * 1000)
        bench.pins.pin("keep", f"blob:{digest}", by="me")
        bench.record("entry", b"e" * 100)
        days(bench, 1)
        assert kept(bench, Policy(max_bytes=1050)) == (0, 1)

    def test_what_expired_is_freed_later(self, bench):
        bench.record("old", b"x" * 500)
        bench.record("kept", b"y", module="kept")
        days(bench, 2)
        policy = Policy(keep_days=1, keep_newest=None)
        bench.hit(bench.record("fresh", b"z"))
        assert kept(bench, policy) == (1, 2)
        assert bench.names(layout.FOSSILS) == []  # a tombstone is a root for a while
        bench.later()
        assert bench.gc(yes_really=True).done.count("blobs condemned") == 4
        bench.later()
        assert bench.gc().done.count("fossils purged") == 4

    def test_tombstones_go_after_their_time(self, bench):
        key = bench.record("old", b"x")
        days(bench, 2)
        kept(bench, Policy(keep_days=1))
        days(bench, 29)
        kept(bench)
        assert bench.lookups.lookup(key).reason == "expired"
        days(bench, 2)
        kept(bench)
        assert bench.lookups.lookup(key).reason == "absent"
        assert bench.names(layout.RESULTS) == []

    def test_a_pinned_key_that_was_invalidated_can_be_brought_back(self, bench):
        key = bench.record("pinned", b"x")
        bench.pins.pin("keep", key, by="me")
        bench.results.invalidate(key, by="me", reason="a doubt")
        for _ in range(4):
            days(bench, 40)
            kept(bench)
        assert bench.results.undo(key, by="me")
        assert bench.stands(key)


class TestWherePoliciesComeFrom:
    def test_the_store_and_the_command_line(self, bench):
        Policy(keep_days=30, max_bytes=10).save(bench.backend)
        Policy(keep_days=30, keep_newest=2).save(bench.backend)
        assert Policy.load(bench.backend) == Policy(keep_days=30, keep_newest=2)
        assert Policy(keep_days=5).over(Policy.load(bench.backend)) == Policy(keep_days=5, keep_newest=2)
        bench.record("old", b"x")
        days(bench, 31)
        assert bench.gc().policy == {"keep_days": 30, "keep_newest": 2}

    @pytest.mark.parametrize(
        "wrong",
        [{"keep_days": -1}, {"keep_newest": 1.5}, {"max_bytes": True}, {"keep_days": "3"}, {"max_bytes": 2**70}],
    )
    def test_nonsense_is_refused(self, wrong):
        with pytest.raises(InvalidInputError):
            Policy(**wrong)


class TestHits:
    def test_one_small_object_a_client_and_day(self, bench):
        keys = [bench.record(f"job {number}", b"x") for number in range(3)]
        for key in keys * 3:
            bench.hit(key)
        bench.hit(keys[0], client="other")
        days(bench, 1)
        bench.hit(keys[0])
        names = bench.names(layout.GC_HITS)
        assert len(names) == 3
        data = bench.backend.read(names[0], 10**6)[0]
        assert len(data.splitlines()) == 3

    def test_noting_again_writes_nothing(self, bench):
        key = bench.record("job", b"x")
        recorder = HitRecorder(bench.backend, "client", clock=lambda: bench.world.now)
        recorder.note(key, "any")
        recorder.flush()
        stat = bench.backend.stat(bench.names(layout.GC_HITS)[0])
        for _ in range(3):
            recorder.note(key, "any")
            recorder.close()
        assert bench.backend.stat(stat.name) == stat

    def test_a_store_that_takes_no_notes_does_not_disturb(self, bench):
        key = bench.record("job", b"x")

        class Refusing:
            def __getattr__(self, name):
                from oarbank_cas.errors import PermissionDeniedError

                raise PermissionDeniedError("read-only")

        recorder = HitRecorder(Refusing(), "client", clock=lambda: bench.world.now)
        recorder.note(key, "any")
        recorder.close()

    def test_old_days_are_folded_and_still_count(self, bench):
        hit, gone = bench.record("hit", b"x"), bench.record("gone", b"y")
        for _ in range(5):
            days(bench, 1)
            bench.hit(hit)
            bench.hit(gone)
        bench.backend.delete(layout.entry(gone, None, "any"))
        days(bench, 3)
        assert kept(bench) == (1, 0)
        folded = [name for name in bench.names(layout.GC_HITS) if "folded" in name]
        assert len(folded) == 1
        assert bench.names(layout.GC_HITS) == folded
        assert gone.encode() not in bench.backend.read(folded[0], 10**6)[0]
        days(bench, 10)
        assert kept(bench, Policy(keep_hit_days=15)) == (1, 0)
        assert kept(bench, Policy(keep_hit_days=12)) == (0, 1)
