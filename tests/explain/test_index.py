"""The index of key inputs: it finds the nearest, costs little, and nothing rests on it."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor

import pytest
from explain_kit import MODULE, Bench, in_memory, inputs
from hypothesis import given, settings
from hypothesis import strategies as st

from oarbank_cas import KeyInputs, Store, layout
from oarbank_cas.contracts.difference import differences
from oarbank_cas.gc.collect import Options
from oarbank_cas.gc.retention import Policy
from oarbank_cas.inputs import index as index_module
from oarbank_cas.inputs.index import GATHER_AT, InputsIndex, module_tag
from oarbank_cas.inputs.sketch import SIZE, columns, distances, row, sketch

VALUES = st.one_of(st.integers(0, 2), st.sampled_from(["a", "b"]), st.booleans())
PARAMS = st.dictionaries(st.sampled_from([f"p{number}" for number in range(30)]), VALUES, max_size=12)


def of(params, module=MODULE):
    return KeyInputs.of(module, "1", params)


def note_many(store, count, start=0):
    """Notes and documents of a sweep, without their entries."""
    index = InputsIndex(store.backend)
    made = []
    for number in range(start, start + count):
        each = inputs(number / 7, salt=number)
        index.note(each)
        made.append(each)
    return made


class TestSketches:
    @given(PARAMS, PARAMS)
    @settings(max_examples=300, deadline=None)
    def test_they_differ_in_no_more_places_than_their_documents_do(self, one, other):
        one, other = of(one), of(other)
        apart = sum(a != b for a, b in zip(sketch(one.document), sketch(other.document), strict=True))
        assert apart <= 2 * len(list(differences(one.document, other.document)))

    @given(st.lists(st.binary(min_size=SIZE, max_size=SIZE), max_size=50), st.binary(min_size=SIZE, max_size=SIZE))
    @settings(deadline=None)
    def test_distances_of_many_are_those_of_each(self, rows, wanted):
        data = columns(rows)
        assert [row(data, at) for at in range(len(rows))] == rows
        expected = [sum(a != b for a, b in zip(each, wanted, strict=True)) for each in rows]
        assert list(distances(data, wanted)) == expected

    def test_a_document_of_many_values_costs_little(self):
        many = of([0] * 200_000)
        assert len(sketch(many.document)) == SIZE

    def test_they_are_the_same_for_all_time(self):
        """Another sketch needs another folder: docs/formats.md."""
        document = {"compat": "1", "inputs": {"a": [1.5, {}, True, None, 10**20], "é": "x"}, "module": "a.b"}
        assert sketch(KeyInputs.of("a.b", "1", {"a": [1.5, {}, True, None, 1e20], "é": "x"}).document).hex() == SAME
        assert sketch(document).hex() == SAME


SAME = (
    "0000000800000000000000000064d4002300000000ee180000ee000000000000"
    "00000000000000cc000000b66600fb0000000000000000000000e7000000bc00"
)


class TestNearest:
    @given(st.lists(PARAMS, min_size=1, max_size=25), PARAMS)
    @settings(max_examples=60, deadline=None)
    def test_they_come_in_the_order_of_their_differences(self, recorded, asked):
        asked = of(asked)
        made = {str(each.key): each for each in map(of, recorded)}
        made.pop(str(asked.key), None)
        with in_memory(session_s=3600, grace_s=3600, slack_s=0) as store:
            for each in made.values():
                Bench(store).record(each)
            found = store.explain(asked, nearest=30)
        counts = [len(list(differences(made[near.job_key].document, asked.document))) for near in found.nearest]
        assert [near.count for near in found.nearest] == counts == sorted(counts)
        assert len(found.nearest) == len(made)

    @pytest.mark.parametrize("gathered", [False, True])
    def test_a_needle_in_a_sweep(self, memory, gathered):
        """Thousands that differ in two values hide none that differs in one."""
        index = InputsIndex(memory.store.backend)
        for number in range(3 * GATHER_AT):
            index.note(inputs(number / 7, salt=number))
        memory.record(inputs(0.25, salt=-1))
        if gathered:
            index.gather(module_tag(MODULE))
            assert not memory.names(layout.EXPLAIN_NEW)
        found = index.alike(inputs(0.5, salt=-1), 20)
        assert inputs(0.25, salt=-1).key.hex in found.keys
        assert found.rows == 3 * GATHER_AT + 1
        (near,) = memory.explain(inputs(0.5, salt=-1)).nearest
        assert [str(each) for each in near.differences] == ["inputs.params.a: 0.25 -> 0.5"]

    def test_the_latest_of_equals_comes_first(self, memory):
        for number in (3, 1, 2):
            memory.record(inputs(number))
        found = memory.explain(inputs(9)).nearest
        assert [str(near.differences[0]) for near in found] == [
            f"inputs.params.a: {number} -> 9" for number in (2, 1, 3)
        ]


class TestGathering:
    def test_notes_become_rows_and_rows_grow_together(self, bench, monkeypatch):
        monkeypatch.setattr(index_module, "GATHER_AT", 20)
        made = []
        for start in range(0, 100, 25):
            made += note_many(bench.store, 25, start)
            found = InputsIndex(bench.store.backend).alike(inputs(-1), 200)
            assert set(found.keys) == {each.key.hex for each in made}
        assert not bench.names(layout.EXPLAIN_NEW)
        assert len(bench.names(layout.EXPLAIN_ROWS)) <= 3
        assert found.rows == 100
        before = bench.names()
        assert InputsIndex(bench.store.backend).alike(inputs(-1), 200).rows == 100
        assert bench.names() == before

    def test_two_at_once_lose_nothing(self, bench, monkeypatch):
        monkeypatch.setattr(index_module, "GATHER_AT", 10)
        made = note_many(bench.store, 60)

        def ask():
            for _ in range(3):
                found = InputsIndex(bench.store.backend).alike(inputs(-1), 500)
                assert {each.key.hex for each in made} <= set(found.keys)
                assert not found.damaged

        with ThreadPoolExecutor(4) as pool:
            asking = [pool.submit(ask) for _ in range(4)]
            more = note_many(bench.store, 40, 1000)
        for each in asking:
            each.result()
        InputsIndex(bench.store.backend).alike(inputs(-1), 500)
        found = InputsIndex(bench.store.backend).alike(inputs(-1), 500)
        assert set(found.keys) == {each.key.hex for each in made + more}

    @pytest.mark.parametrize("reads", [0, 1, 5])
    def test_an_object_that_is_merged_away_while_it_is_read_is_looked_for_again(
        self, memory, monkeypatch, recorded, reads
    ):
        """Before its sketches are read, and before its keys are."""
        monkeypatch.setattr(index_module, "GATHER_AT", 10)
        made = note_many(memory.store, 15)
        InputsIndex(memory.store.backend).gather(module_tag(MODULE))
        made += note_many(memory.store, 9, 100)
        slow = recorded(memory.store.backend)

        def merge(*_):
            if slow.names().count("open") <= reads:
                return
            slow.hooks.clear()
            InputsIndex(memory.store.backend).gather(module_tag(MODULE))

        slow.hooks["open"] = merge
        found = InputsIndex(slow).alike(inputs(-1), 500)
        assert set(found.keys) == {each.key.hex for each in made}
        assert slow.names().count("listing") > 3

    def test_notes_go_only_when_their_rows_stand(self, memory, monkeypatch, recorded):
        made = note_many(memory.store, 30)
        broken = recorded(memory.store.backend)

        def fail(*_):
            from oarbank_cas import StorageIOError

            raise StorageIOError("the disk is full")

        broken.hooks["commit"] = fail
        monkeypatch.setattr(index_module, "GATHER_AT", 10)
        found = InputsIndex(broken).alike(inputs(-1), 500)
        assert set(found.keys) == {each.key.hex for each in made}
        assert len(memory.names(layout.EXPLAIN_NEW)) == 30


class TestLossAndDamage:
    def gathered(self, bench, count=12):
        for number in range(count):
            bench.record(inputs(number))
        InputsIndex(bench.store.backend).gather(module_tag(MODULE))
        (name,) = bench.names(layout.EXPLAIN_ROWS)
        return name

    def replace(self, bench, name, data):
        bench.store.backend.delete(name)
        incoming = bench.store.backend.incoming()
        incoming.write(data)
        bench.store.backend.commit([(name, incoming)])

    @pytest.mark.parametrize("how", ["flipped", "cut", "empty", "huge", "keys"])
    def test_a_damaged_object_is_made_again(self, bench, how):
        name = self.gathered(bench)
        right = bench.text(name)
        wrong = {
            "flipped": right[:10] + bytes([right[10] ^ 1]) + right[11:],
            "cut": right[:-50],
            "empty": b"",
            "huge": right * 6000,
            "keys": right[:-1] + bytes([right[-1] ^ 1]),
        }[how]
        self.replace(bench, name, wrong)
        found = bench.explain(inputs(-1), nearest=12)
        if how == "keys":  # a key that is none is not found, and harms nobody
            assert len(found.nearest) == 11
            assert InputsIndex(bench.store.backend).remake()
            assert len(bench.explain(inputs(-1), nearest=12).nearest) == 12
            assert bench.text(name) == right
        else:
            assert len(found.nearest) == 12
            assert bench.text(name) == right

    def test_a_lost_index_is_made_again(self, bench):
        self.gathered(bench)
        bench.record(inputs(3, module="org.example.other"))
        for name in bench.names("explain/"):
            bench.store.backend.delete(name)
        assert len(bench.explain(inputs(-1), nearest=20).nearest) == 12
        assert len(bench.explain(inputs(-1, module="org.example.other"), nearest=20).nearest) == 1
        assert layout.EXPLAIN_MADE in bench.names("explain/")

    def test_a_store_without_inputs_is_read_once(self, memory, recorded):
        memory.record(inputs(1), keep=False)
        assert memory.explain(inputs(2)).searched == 0
        asked = recorded(memory.store.backend)
        assert InputsIndex(asked).alike(inputs(2), 5).rows == 0
        assert "read" not in asked.names()

    def test_what_is_foreign_is_left_alone(self, bench):
        self.gathered(bench)
        tag = module_tag(MODULE)
        foreign = [
            f"explain/1/new/{tag}/ab/nonsense",
            f"explain/1/new/{tag}/x",
            "explain/1/new/README",
            f"explain/1/rows/{tag}/nonsense",
            "explain/1/rows/stray",
            "explain/2/later",
        ]
        for name in foreign:
            self.replace(bench, name, b"somebody's")
        assert len(bench.explain(inputs(-1), nearest=12).nearest) == 12
        InputsIndex(bench.store.backend).drop(lambda _key: False)
        assert InputsIndex(bench.store.backend).remake()
        assert set(foreign) <= set(bench.names("explain/"))

    def test_a_row_that_lies_leads_nowhere(self, memory):
        """A forged note of a key that has other inputs, or none, makes no answer."""
        memory.record(inputs(1))
        memory.record(inputs(2), keep=False)
        memory.record(inputs(3, module="org.example.other"))
        lie = sketch(inputs(-1).document).hex()
        for key in (inputs(2).key.hex, inputs(3, module="org.example.other").key.hex, "0" * 64):
            self.replace(memory, layout.key_inputs_new(module_tag(MODULE), key, lie), b"")
        found = memory.explain(inputs(-1))
        assert [near.job_key for near in found.nearest] == [str(inputs(1).key)]

    def test_a_note_that_cannot_be_written_costs_no_record(self, memory, recorded):
        slow = recorded(memory.store.backend)
        store = Store(slow, memory.store.descriptor)

        def fail(items):
            from oarbank_cas import StorageIOError

            if items[0][0].startswith("explain/"):
                raise StorageIOError("the disk is full")

        slow.hooks["commit"] = fail
        Bench(store).record(inputs(1))
        assert store.lookup(str(inputs(1).key)).hit
        assert not memory.names("explain/")


def test_without_inputs_a_record_asks_nothing_more_of_the_storage(memory, recorded):
    calls = []
    for keep in (False, True):
        storage = recorded(memory.store.backend)
        Bench(Store(storage, memory.store.descriptor)).record(inputs(keep), keep=keep)
        calls.append(storage.names())
    without, kept = calls
    assert len(kept) - len(without) <= 8
    assert not [name for name in memory.names("explain/") if inputs(False).key.hex in name]


def test_gc_forgets_rows_of_what_is_recorded_no_more(bench):
    import time

    def later():
        until = bench.store.backend.now() + 2_200_000_000
        while bench.store.backend.now() < until:
            time.sleep(0.05)

    def collect(**policy):
        report = bench.store.gc(Policy(tombstone_days=0, **policy), Options(yes_really=True))
        assert report.exit_code == 0, report.to_json()
        return report

    index = InputsIndex(bench.store.backend)
    for number in range(6):
        bench.record(inputs(number))
    bench.record(inputs(0, stage="mix"))
    index.gather(module_tag(MODULE))
    bench.record(inputs(6))
    bench.record(inputs(7))
    for number in (0, 1, 6):
        bench.store.invalidate(str(inputs(number).key), by="ada", reason="")
    later()
    collect()
    assert index.alike(inputs(-1), 50).rows == 6
    assert set(index.alike(inputs(-1), 50).keys) == {inputs(number).key.hex for number in (0, 2, 3, 4, 5, 7)}


def test_a_gc_that_cannot_tidy_is_done_all_the_same(memory, monkeypatch):
    from oarbank_cas import StorageIOError

    def fail(*_):
        raise StorageIOError("the disk is full")

    monkeypatch.setattr(InputsIndex, "drop", fail)
    monkeypatch.setattr("oarbank_cas.gc.rules.tombstone_may_go", lambda *_, **__: True)
    memory.record(inputs())
    memory.store.invalidate(str(inputs().key), by="ada", reason="")
    report = memory.store.gc(options=Options(yes_really=True, allow_no_roots=True))
    assert report.exit_code == 0
    assert report.done.count("tombstones removed") == 1


def test_many_modules_keep_apart(memory):
    rng = random.Random(1)
    for module in ("a.b", "a.c", "b.a"):
        for number in range(5):
            memory.record(inputs(number, module=module, salt=rng.random()))
    index = InputsIndex(memory.store.backend)
    assert index.remake()
    index.drop(lambda _key: False)
    for module in ("a.b", "a.c", "b.a"):
        assert index.alike(inputs(9, module=module), 50).rows == 10  # noted, and made again
        index.gather(module_tag(module))
        assert len(index.alike(inputs(9, module=module), 50).keys) == 5


def test_where_most_have_ended_it_looks_further(memory):
    """Forty that are nearest and have ended hide none that is further away and stands."""
    for number in range(40):
        memory.record(inputs(number))
        memory.store.invalidate(str(inputs(number).key), by="ada", reason="")
    for number in range(3):
        memory.record(inputs(number, compat="render2", more=number))
    assert [near.count for near in memory.explain(inputs(-1)).nearest] == [3, 3, 3]
