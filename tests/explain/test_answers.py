"""Every answer of `explain`, made by what people and programs really do."""

from __future__ import annotations

import hashlib
import json
import time

import pytest
from explain_kit import MODULE, ORIGIN, inputs

from oarbank_cas import InvalidInputError, KeyInputs, Store, layout
from oarbank_cas.backends.readonly import ReadOnlyBackend
from oarbank_cas.gc.collect import Options
from oarbank_cas.gc.retention import Policy


def aged(bench, seconds):
    """Wait until the store's own time has passed."""
    until = bench.store.backend.now() + int(seconds * 10**9)
    while bench.store.backend.now() < until:
        time.sleep(0.05)


def collect(bench, **policy):
    report = bench.store.gc(Policy(**policy), Options(yes_really=True), by="cron@ops")
    assert report.exit_code == 0, report.to_json()
    return report


def test_a_hit(bench):
    given = inputs()
    bench.record(given)
    for question in (given, str(given.key)):
        found = bench.explain(question)
        assert (found.answer, found.hit, found.key_inputs) == ("hit", True, "kept")
        assert found.recorded_by == ORIGIN.by


def test_a_question_is_no_use_of_the_result(memory):
    memory.record(inputs())
    memory.record(inputs(0.25), "linux")
    for given in (inputs(), inputs(0.25), inputs(0.75)):
        memory.explain(given)
    memory.store._hits.close()
    assert not memory.names("gc/hits/")
    memory.store.lookup(str(inputs().key))
    memory.store._hits.close()
    assert memory.names("gc/hits/")


def test_another_class(bench):
    given = inputs()
    bench.record(given, "linux")
    found = bench.explain(given)
    assert found.answer == "other-class"
    assert "class linux" in found.detail
    assert [(each.result_class, each.status) for each in found.others] == [("linux", "hit")]
    assert bench.explain(given, "linux").hit


def test_another_stage(bench):
    bench.record(inputs(stage="first"))
    found = bench.explain(inputs(stage="second"))
    assert found.answer == "other-stage"
    assert [each.job_key for each in found.others] == [str(inputs(stage="first").key)]
    assert bench.explain(inputs()).answer == "other-stage"
    # The key alone will do: the stages of a key share its inputs.
    bench.record(inputs(0.25, stage="second"))
    near = bench.explain(str(inputs(stage="second").key)).nearest
    assert [str(each) for each in near[0].differences] == ["inputs.params.a: 0.25 -> 0.5"]


def test_invalidated(bench):
    given = inputs()
    bench.record(given)
    bench.record(given, "linux")
    bench.store.invalidate(str(given.key), by="ada", reason="bad lens")
    found = bench.explain(given)
    assert found.answer == "invalidated"
    assert (found.ended.by, found.ended.reason, found.ended.gc) == ("ada", "bad lens", None)
    assert found.ended.at in found.detail
    assert [(each.result_class, each.status) for each in found.others] == [("linux", "hit")]
    assert bench.store.undo_invalidate(str(given.key), by="ada")
    again = bench.explain(given)
    assert (again.answer, again.key_inputs) == ("hit", "kept")
    assert bench.store.lookup(str(given.key)).header["key_inputs"] == len(given.canonical)


def test_expired_by_gc_while_the_tombstone_stands_and_after_it_is_gone(bench):
    old, other = inputs(1), inputs(2, stage="mix")
    bench.record(old)
    bench.record(other)
    aged(bench, 1.1)
    bench.record(inputs(3))
    aged(bench, 1.1)
    report = collect(bench, keep_newest=1, tombstone_days=0)
    for question in (old, str(old.key), other):
        found = bench.explain(question)
        assert found.answer == "expired"
        assert (found.ended.by, found.ended.reason) == ("cron@ops", "retention")
        assert found.ended.gc.run == report.run
        assert found.ended.gc.policy == {"keep_newest": 1, "tombstone_days": 0}
        assert found.recorded_by == ORIGIN.by
    aged(bench, 2.5)
    collect(bench, tombstone_days=0)
    name = layout.entry(old.key.hex, None, "any")
    assert name not in bench.names("results/")
    for question in (old, other):
        found = bench.explain(question)
        assert (found.answer, found.ended.gc.run, found.ended.gc.by) == ("expired", report.run, "cron@ops")
        assert found.ended.gc.policy == {"keep_newest": 1, "tombstone_days": 0}
        assert "tombstone is gone" in found.detail
    assert bench.explain(old, "linux").answer == "never"
    # Its record is gone too: then only the run's name is known.
    for record in bench.names("gc/runs/"):
        bench.store.backend.delete(record)
    assert bench.explain(old).ended.gc.started is None


@pytest.mark.parametrize("how", ["purged", "damaged", "lost"])
def test_incomplete(bench, how):
    given = inputs()
    bench.record(given, data=b"to go")
    digest = hashlib.sha256(b"to go").hexdigest()
    if how == "purged":
        bench.store.purge(digest, by="ada", reason="a secret")
    elif how == "damaged":
        bench.store.backend.delete(layout.blob(digest))
        incoming = bench.store.backend.incoming()
        incoming.write(b"to  g")
        bench.store.backend.commit([(layout.blob(digest), incoming)])
        assert not bench.store.blobs.check(digest)
    else:
        bench.store.backend.delete(layout.blob(digest))
    found = Store(bench.store.backend, bench.store.descriptor).explain(given)
    assert (found.answer, found.missing_count) == ("incomplete", 1)
    (blob,) = found.missing
    assert (blob.digest, blob.size) == (digest, 5)
    if how == "purged":
        assert "by ada: a secret" in blob.why
        assert blob.last_seen in blob.why
        assert blob.seen_by == "the audit of its purge"
    elif how == "damaged":
        assert "set aside" in blob.why
        assert f"damaged/{digest}." in blob.why
    else:
        assert blob.why == "not known"
        assert blob.last_seen == found.recorded_at


def test_incomplete_because_of_its_size(memory):
    given = inputs()
    memory.record(given, data=b"to go")
    digest = hashlib.sha256(b"to go").hexdigest()
    memory.store.backend.delete(layout.blob(digest))
    incoming = memory.store.backend.incoming()
    incoming.write(b"longer than that")
    memory.store.backend.commit([(layout.blob(digest), incoming)])
    (blob,) = Store(memory.store.backend, memory.store.descriptor).explain(given).missing
    assert blob.why == "has 16 bytes where the entry says 5: run `oarbank-cas verify`"


def test_corrupt(bench):
    given = inputs()
    bench.record(given)
    name = layout.entry(given.key.hex, None, "any")
    data = bytearray(bench.text(name))
    data[len(data) // 2] ^= 1
    bench.store.backend.delete(name)
    incoming = bench.store.backend.incoming()
    incoming.write(data)
    bench.store.backend.commit([(name, incoming)])
    found = bench.explain(given)
    assert found.answer == "corrupt"
    assert "damaged" in found.detail


def test_never_and_the_nearest(bench):
    bench.record(inputs(0.5))
    bench.record(inputs(0.5, compat="render2", extra=[1, 2]))
    bench.record(inputs(0.5, module="org.example.other"))
    asked = inputs(0.25)
    found = bench.explain(asked)
    assert (found.answer, found.hit, found.searched, found.key_inputs) == ("never", False, 2, "none")
    assert [near.count for near in found.nearest] == [1, 3]
    assert [str(each) for each in found.nearest[0].differences] == ["inputs.params.a: 0.5 -> 0.25"]
    assert [str(each) for each in found.nearest[1].differences] == [
        "compat: render2 -> render3",
        "inputs.extra: [1, 2] -> (absent)",
        "inputs.params.a: 0.5 -> 0.25",
    ]
    document = json.loads(json.dumps(found.to_json()))
    assert (document["answer"], document["status"]) == ("never", "miss")
    assert document["nearest"][0]["differences"] == [
        {"path": "inputs.params.a", "before": 0.5, "after": 0.25, "text": "inputs.params.a: 0.5 -> 0.25"}
    ]
    assert not bench.explain("0" * 64).nearest
    assert bench.explain("0" * 64).searched is None


def test_what_ended_is_not_near(memory):
    memory.record(inputs(0.5))
    memory.record(inputs(0.75), "linux")
    memory.store.invalidate(str(inputs(0.5).key), by="ada", reason="")
    (near,) = memory.explain(inputs(0.25)).nearest
    assert [str(each) for each in near.differences] == ["class: linux -> any", "inputs.params.a: 0.75 -> 0.25"]


def test_a_store_that_may_only_be_read(bench):
    bench.record(inputs(0.5))
    before = bench.names()
    reader = Store(ReadOnlyBackend(bench.store.backend), bench.store.descriptor)
    assert [near.count for near in reader.explain(inputs(0.25)).nearest] == [1]
    for name in bench.names("explain/"):
        bench.store.backend.delete(name)
    assert [near.count for near in reader.explain(inputs(0.25)).nearest] == [1]
    assert [name for name in before if not name.startswith("explain/")] == bench.names()


def test_inputs_of_another_key_are_refused_before_anything_is_done(bench, tmp_path):
    given = inputs()
    (tmp_path / "w").mkdir()
    (tmp_path / "w" / "a").write_bytes(b"not to be uploaded")
    envelope = {
        "schema": "render/result@1",
        "module_version": "1.0.0",
        "payload": {},
        "artifacts": [{"name": "out", "files": [{"path": "a", "local": "a"}]}],
    }
    (tmp_path / "w" / "result.json").write_text(json.dumps(envelope))
    wrong = [inputs(0.1).key, inputs(stage="mix").key]
    for key in wrong:
        with pytest.raises(InvalidInputError, match=f"give the job key {given.key}, not"):
            bench.store.publish(str(key), tmp_path / "w", ORIGIN, key_inputs=given)
    assert not bench.names("blobs/")
    published = bench.store.publish(str(given.key), tmp_path / "w", ORIGIN, key_inputs=given)
    assert published.recorded.header["key_inputs"] == len(given.canonical)
    assert published.recorded.header["module_id"] == MODULE
    assert bench.store.get_bytes(given.key.hex) == given.canonical
    assert bench.explain(given).answer == "hit"


def test_who_comes_second_changes_nothing(bench):
    given = inputs()
    bench.record(given, keep=False)
    entry = bench.text(layout.entry(given.key.hex, None, "any"))
    standing = bench.store.lookup(str(given.key)).envelope
    assert not bench.store.record(str(given.key), standing, ORIGIN, key_inputs=given).recorded
    assert bench.text(layout.entry(given.key.hex, None, "any")) == entry
    assert bench.explain(given).key_inputs == "none"


@pytest.mark.parametrize(
    ("document", "why"),
    [
        (b"[]", "must be an object"),
        (b'{"module": "a.b", "compat": "1"}', 'has no "inputs"'),
        (b'{"module": "a.b", "compat": "1", "inputs": {}, "seed": 1}', 'has the member "seed"'),
        (b'{"module": "a", "compat": "1", "inputs": {}}', r"\$.module: is no module id"),
        (b'{"module": "a.b", "compat": 1, "inputs": {}}', r"\$.compat"),
        (b'{"module": "a.b", "compat": "1", "inputs": {}, "stage": 1}', "stage: is no name"),
        (b'{"module": "a.b", "compat": "1", "inputs": {"a": 1, "a": 2}}', "twice"),
        (b'{"module": "a.b", "compat": "1", "inputs": "' + b"x" * 2**20 + b'"}', "at most 1048576"),
        (b'{"module": "a.b", "compat": "1", "inputs": [' + b"1e20," * 99_999 + b"0]}", "at most 1048576"),
    ],
)
def test_documents_that_are_none(document, why):
    with pytest.raises(InvalidInputError, match=why):
        KeyInputs.parse(document)


def test_a_document_in_any_spelling():
    given = KeyInputs.parse(b'{"stage": null, "inputs": {"b": 1e20, "a": 1.0}, "compat": "1", "module": "a.b"}')
    assert given.canonical == b'{"compat":"1","inputs":{"a":1,"b":100000000000000000000},"module":"a.b"}'
    assert given.document == {"module": "a.b", "compat": "1", "inputs": {"a": 1, "b": 10**20}}
    assert KeyInputs.stored(given.canonical) == given
