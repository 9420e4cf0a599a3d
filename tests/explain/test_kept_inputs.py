"""Key inputs as a blob: what keeps them, what copies them, what they never decide."""

from __future__ import annotations

import json
import time
from dataclasses import replace

import pytest
from explain_kit import ORIGIN, inputs
from hypothesis import given as hypothesis_given
from hypothesis import settings
from hypothesis import strategies as st

from oarbank_cas import CorruptError, KeyInputs, NotFoundError, Store, layout
from oarbank_cas.contracts.canonical import digest_of
from oarbank_cas.copying import Options as CopyOptions
from oarbank_cas.entry import kept_inputs
from oarbank_cas.gc.collect import Options
from oarbank_cas.gc.retention import Policy


def gc(store, policy=None):
    report = store.gc(policy, Options(yes_really=True, allow_no_roots=True))
    assert report.exit_code == 0, report.to_json()
    return report


def test_gc_keeps_them_as_long_as_an_entry_of_the_key_stands(bench):
    given = inputs()
    bench.record(given)
    bench.record(inputs(stage="mix"), "linux")
    name = layout.blob(given.key.hex)

    def twice():
        for _ in range(3):
            until = bench.store.backend.now() + 2_200_000_000
            while bench.store.backend.now() < until:
                time.sleep(0.05)
            gc(bench.store, Policy(tombstone_days=0))

    twice()
    assert name in bench.names("blobs/")
    bench.store.invalidate(str(given.key), by="ada", reason="")
    twice()
    assert name in bench.names("blobs/")  # the other stage has them too
    assert bench.explain(given).key_inputs == "kept"
    bench.store.invalidate(str(inputs(stage="mix").key), "linux", by="ada", reason="")
    twice()
    if bench.store.backend.atomic_move:  # elsewhere a condemned copy stays for a minute more
        assert name not in bench.names("blobs/")
        assert not [each for each in bench.names("fossils/") if given.key.hex in each]


def test_what_an_older_gc_left_out_is_read_again(memory):
    memory.record(inputs())
    gc(memory.store)
    (part,) = [name for name in memory.names("gc/state/") if "/entries-" in name]
    head, _, body = memory.text(part).partition(b"\n")
    assert bytes.fromhex(inputs().key.hex) in body
    # As a version that knew of no key inputs wrote it.
    without = body.replace(bytes.fromhex(inputs().key.hex) + len(inputs().canonical).to_bytes(8, "big"), b"")
    without = without.replace(b",3,1]", b",2,1]")
    assert without != body
    old = json.dumps({**json.loads(head), "format": 1, "sha256": digest_of(without)}).encode() + b"\n" + without
    memory.store.backend.delete(part)
    incoming = memory.store.backend.incoming()
    incoming.write(old)
    memory.store.backend.commit([(part, incoming)])
    report = gc(memory.store)
    assert report.entry_bytes_read > 0
    assert report.plan.count("blobs kept") == 3


def test_without_them_an_entry_is_a_hit_and_says_so(bench):
    given = inputs()
    bench.record(given)
    bench.store.backend.delete(layout.blob(given.key.hex))
    store = Store(bench.store.backend, bench.store.descriptor)
    assert store.lookup(str(given.key)).hit
    assert store.explain(given).key_inputs == "gone"
    assert store.explain(str(given.key)).answer == "hit"
    assert [(problem.kind, problem.digest) for problem in store.verify().problems] == [("missing", given.key.hex)]


def test_verify_finds_damage_in_them(memory):
    given = inputs()
    memory.record(given)
    name = layout.blob(given.key.hex)
    memory.store.backend.delete(name)
    incoming = memory.store.backend.incoming()
    incoming.write(given.canonical[:-1] + b" ")
    memory.store.backend.commit([(name, incoming)])
    assert [problem.kind for problem in memory.store.verify().problems] == ["damaged"]
    assert memory.explain(given).key_inputs == "gone"


def test_verify_and_stats_know_them_and_the_index(bench):
    bench.record(inputs())
    bench.explain(inputs(0.25))
    assert bench.names("explain/")
    report = bench.store.verify()
    assert report.problem_count == 0
    assert report.counts["orphans"] == 0
    assert bench.store.stats(with_gc=False).orphans.count == 0
    assert gc(bench.store).unknown == 0


class TestCopies:
    @pytest.fixture
    def target(self, tmp_path):
        store, _ = Store.init(tmp_path / "target")
        with store:
            yield store

    @pytest.mark.parametrize("wanted", ["everything", "one"])
    def test_they_are_copied_and_found_there(self, memory, target, wanted):
        given = inputs()
        memory.record(given)
        report = memory.store.copy_to(target, None if wanted == "everything" else [str(given.key)])
        assert report.exit_code == 0
        assert target.get_bytes(given.key.hex) == given.canonical
        assert target.lookup(str(given.key)).header["key_inputs"] == len(given.canonical)
        assert [near.count for near in target.explain(inputs(0.25)).nearest] == [1]

    @pytest.mark.parametrize("wanted", ["everything", "one"])
    def test_where_they_are_gone_the_entry_goes_without(self, memory, target, wanted):
        given = inputs()
        memory.record(given)
        memory.store.backend.delete(layout.blob(given.key.hex))
        report = memory.store.copy_to(target, None if wanted == "everything" else [str(given.key)])
        assert report.exit_code == 0
        assert target.lookup(str(given.key)).hit
        assert "key_inputs" not in target.lookup(str(given.key)).header
        assert target.explain(given).key_inputs == "none"
        assert target.verify().problem_count == 0

    def test_a_key_is_not_taken_for_its_inputs(self, memory, target):
        given = inputs()
        memory.record(given, "linux")
        report = memory.store.copy_to(target, [str(given.key)])
        assert [problem["kind"] for problem in report.problems] == ["missing"]
        assert not target.has(given.key.hex)
        assert memory.store.copy_to(target, [f"blob:{given.key.hex}"]).exit_code == 0
        assert target.has(given.key.hex)
        report = memory.store.copy_to(target, [str(given.key)], CopyOptions(result_class="linux"))
        assert report.exit_code == 0


def test_a_pin_of_a_key_is_not_taken_for_one_of_its_inputs(memory):
    given = inputs()
    memory.record(given, "linux")
    with pytest.raises(NotFoundError, match="cannot be pinned: absent"):
        memory.store.pins.pin("fig", str(given.key))
    assert memory.store.pins.pin("fig", str(given.key), result_class="linux").job_key == str(given.key)
    assert memory.store.pins.pin("inputs", f"blob:{given.key.hex}").digest == given.key.hex


def test_purging_them_leaves_the_entry_and_says_who_names_them(memory):
    given = inputs(0.5, token="secret")
    memory.record(given)
    report = memory.store.purge(given.key.hex, by="ada", reason="a secret")
    assert report.referenced_by == [layout.entry(given.key.hex, None, "any")]
    found = memory.explain(given)
    assert (found.answer, found.key_inputs) == ("hit", "gone")


def test_undo_does_not_need_them(memory):
    given = inputs()
    memory.record(given)
    memory.store.invalidate(str(given.key), by="ada", reason="")
    memory.store.backend.delete(layout.blob(given.key.hex))
    assert memory.store.undo_invalidate(str(given.key), by="ada")
    found = memory.store.lookup(str(given.key))
    assert found.hit
    assert "key_inputs" not in found.header  # a root names only what its maker holds


def test_a_condemned_document_is_brought_back_by_who_records(memory):
    given = inputs()
    memory.record(given, keep=False)
    memory.store.put_bytes(given.canonical)
    memory.store.backend.copy(layout.blob(given.key.hex), layout.fossil(given.key.hex, "0" * 16))
    memory.store.backend.delete(layout.blob(given.key.hex))
    memory.record(given, "linux")
    assert memory.store.has(given.key.hex)


def test_a_tombstone_is_not_replaced_before_what_it_names_stands(memory):
    given = inputs()
    memory.record(given)
    memory.store.invalidate(str(given.key), by="ada", reason="")
    memory.store.backend.copy(layout.blob(given.key.hex), layout.fossil(given.key.hex, "0" * 16))
    memory.store.backend.delete(layout.blob(given.key.hex))
    memory.record(given, keep=False)
    assert memory.store.has(given.key.hex)


@hypothesis_given(st.one_of(st.integers(), st.floats(), st.text(), st.none(), st.booleans(), st.lists(st.integers())))
@settings(deadline=None)
def test_a_header_that_says_anything_is_read(value):
    key = "ab" * 32
    found = kept_inputs({"job_key": f"{key}:mix", "key_inputs": value})
    right = type(value) is int and 0 <= value <= 2**20
    assert found == ({key: value} if right else {})
    assert kept_inputs({"job_key": "nonsense", "key_inputs": value}) == {}


@hypothesis_given(
    st.binary(max_size=200) | st.sampled_from([b"[" * 100_000, b'{"module": 1, "compat": "", "inputs": 0}'])
)
@settings(deadline=None)
def test_stored_bytes_that_are_no_document(data):
    with pytest.raises(CorruptError):
        KeyInputs.stored(data)


def test_origin_goes_before(memory):
    given = inputs()
    assert memory.record(given).header["module_id"] == given.module
    named = replace(ORIGIN, module_id="org.example.else")
    assert memory.record(given, "linux", origin=named).header["module_id"] == "org.example.else"
