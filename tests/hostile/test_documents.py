"""Whatever comes from outside is answered, or refused with an error of the package: nothing else, and nothing hangs."""

import json
import os
import shutil

import pytest
from agent_kit import (
    ORIGIN,
    canonical,
    digest,
    key,
    memory_store,
    objects,
    raw_dataset,
    result,
    spec,
    tree,
    write_files,
)
from hostile_documents import NUMBERS, PATHS, VALUES, budget, changed_bytes, changed_values, encoded, hostile, told
from hypothesis import example, given
from hypothesis import strategies as st

from oarbank_cas import CasError, CorruptError, InvalidInputError, UnsupportedError, job_key
from oarbank_cas import descriptor as descriptors
from oarbank_cas import entry as codec
from oarbank_cas import settings as found_settings
from oarbank_cas.contracts.canonical import canonical_json, parse_json
from oarbank_cas.contracts.keys import parse_key

pytestmark = pytest.mark.timeout(120)

SECRET = digest(b"secret")


def fresh_workdir(fenced):
    """A work directory with a runner's files, and what a hostile one may have left."""
    shutil.rmtree(fenced / "w", ignore_errors=True)
    write_files(fenced / "w", {"data": b"data", "a/b": b"b", "pics/t.png": b"png"})
    (fenced / "w/link").symlink_to(fenced)
    (fenced / "w/secret").symlink_to("../secret.txt")
    os.mkfifo(fenced / "w/pipe")
    return fenced / "w"


RESULT = result(
    {
        "one": [
            {"path": "x", "local": "data", "thumbnail": {"local": "pics/t.png", "w": 10}},
            {"path": "y", "local": "a/b"},
        ],
        "two": [{"path": "x", "local": "data", "digest": None, "size": None}],
    },
    provenance={"host": "node17", "argv": {"align": ["align", "-x"]}, "tool_versions": {"align": "1"}},
    effective={"threads": 4},
)


@budget(120)
@given(hostile(RESULT))
@example(encoded(result({"one": {"x": "secret"}})))
@example(encoded(result({"one": {"x": "link/secret.txt"}})))
@example(encoded(result({"one": {"x": "pipe"}})))
def test_a_result(fenced, data):
    workdir = fresh_workdir(fenced)
    (workdir / "result.json").write_bytes(data)
    before = tree(workdir)
    store = memory_store()
    try:
        recorded, uploaded = store.publish(key(), workdir, ORIGIN)
    except CasError as error:
        told(error)
        assert objects(store) == {}
    else:
        assert recorded.recorded
        found = store.lookup(key())
        assert found.hit
        assert found.envelope == uploaded.envelope
        # What was recorded can be recorded again: it keeps the same rules.
        assert store.record(key(1), found.envelope, ORIGIN).recorded
    assert not store.has(SECRET)
    assert tree(workdir) == before


@budget(120)
@given(hostile(RESULT))
def test_an_envelope_to_record(data):
    store = memory_store()
    for blob in (b"data", b"b", b"png"):
        store.put_bytes(blob)
    try:
        recorded = store.record(key(), data, ORIGIN)
    except CasError:
        assert objects(store, "results/") == {}
    else:
        assert recorded.envelope == data == store.lookup(key()).envelope


def stocked():
    store = memory_store()
    files = [{"digest": store.put_bytes(data).digest, "path": path, "size": len(data)} for path, data in STOCK.items()]
    return store, raw_dataset(store, canonical({"files": files}))


STOCK = {"a": b"a", "b/c": b"c", "b/d": b""}
LISTED = [{"digest": digest(data), "path": path, "size": len(data)} for path, data in STOCK.items()]
MANIFEST = {"files": LISTED}
DATASET = stocked()[1]
SPEC = json.loads(
    spec(
        {"reads": (DATASET, "in/reads"), "other": (DATASET, "in/other")},
        [DATASET, "genome:1"],
        {DATASET: "data", "genome:1": "g"},
        resources={"cpu": 1},
        timeout_s=10,
        platform="linux-amd64",
        stage="align",
    )
)
MOUNTS = st.one_of(
    VALUES, st.sampled_from([DATASET, "art:" + "0" * 64, "in/reads", "in", "data", "g", "link/x", "pipe"])
)


@budget(120)
@given(hostile(SPEC, MOUNTS))
@example(encoded(SPEC))
@example(encoded(SPEC | {"inputs": {"reads": {"dataset": DATASET, "mount": "link/in"}}}))
def test_a_spec(fenced, data):
    workdir = fresh_workdir(fenced)
    before = tree(workdir)
    store, dataset = stocked()
    try:
        mounted = store.stage(data, workdir, resolver=lambda name: dataset)
    except CasError as error:
        told(error)
    else:
        for mount in mounted:
            assert {path: (workdir / mount.mount / path).read_bytes() for path in STOCK} == STOCK
    after = tree(workdir)
    assert {path: after.get(path) for path in before} == before
    assert not [path for path in after if ".oarbank" in path]


@budget(120)
@given(st.one_of(hostile(MANIFEST), changed_values(MANIFEST).map(canonical)))
@example(canonical(MANIFEST))
def test_a_manifest(fenced, data):
    workdir = fresh_workdir(fenced)
    before = tree(workdir)
    store, _ = stocked()
    dataset = raw_dataset(store, data)
    document = spec({"reads": (dataset, "in")})
    try:
        store.stage(document, workdir)
        files = store.files_of(dataset)
        store.fetch([(file.path, file) for file in files], workdir / "fetched")
    except CasError as error:
        told(error)
        assert tree(workdir) == before
    else:
        assert canonical({"files": [file._asdict() for file in files]}) == data
        for folder in ("in", "fetched"):
            assert {path for path, what in tree(workdir / folder).items() if what != "directory"} == {
                f.path for f in files
            }


INPUTS = {"seed": 1, "files": [{"digest": digest(b"x"), "size": 1.5}], "names": ["\u00e9", "a\\/"]}


@budget(200)
@given(hostile(INPUTS))
def test_key_inputs(data):
    try:
        value = parse_json(data)
        found = job_key("org.example.align", "1", value)
    except InvalidInputError as error:
        told(error)
    else:
        assert parse_key(found)
        assert job_key("org.example.align", "1", value) == found
        assert json.loads(canonical_json(value), parse_int=float) == value


HEADER = {
    "kind": "entry",
    "job_key": key(),
    "stage": None,
    "class": "any",
    "recorded_at": "2026-01-01T00:00:00.000000Z",
    "recorded_by": "me",
    "held_since_ns": 1,
    "datasets": {"one": DATASET},
    "schema": "align/result@1",
}
BODY = encoded(result({"one": LISTED}))
NAME = f"results/{key()[:2]}/{key()}/_@any"
TOMBSTONE = HEADER | {"kind": "tombstone", "cause": "invalidated", "ended_at": "x", "ended_by": "you", "reason": "bad"}


def bound(header_and_body):
    """An object whose header binds its body, whatever both say; not all can be made."""
    header, body = header_and_body
    try:
        return codec.encode(header, body)
    except (TypeError, AttributeError, CasError):
        return encoded(header) + b"\n" + body


FIELDS = st.one_of(VALUES, st.sampled_from(["entry", "tombstone", key(), key(1), "any", DATASET, "linux", "1", 1]))
ENTRIES = st.one_of(
    changed_bytes(codec.encode(HEADER, BODY)),
    changed_bytes(codec.encode(TOMBSTONE, codec.encode(HEADER, BODY))),
    st.tuples(changed_values(HEADER, FIELDS), hostile(json.loads(BODY))).map(bound),
    st.tuples(changed_values(HEADER, FIELDS), st.just(BODY)).map(bound),
    st.tuples(changed_values(TOMBSTONE, FIELDS), st.just(codec.encode(HEADER, BODY))).map(bound),
    st.tuples(st.just(TOMBSTONE), st.tuples(changed_values(HEADER, FIELDS), st.just(BODY)).map(bound)).map(bound),
    st.binary(max_size=100),
)


def planted(data):
    store, _ = stocked()
    with store.intake() as intake:
        intake.add_bytes(BODY)
    incoming = store.backend.incoming()
    incoming.write(data)
    store.backend.commit([(NAME, incoming)])
    return store


@budget(250)
@given(ENTRIES)
@example(codec.encode(HEADER, BODY.decode().encode("utf-16")))
@example(codec.encode(HEADER, b"\xff"))
@example(codec.encode(HEADER, b"[]"))
@example(codec.encode(HEADER, b"7"))
@example(codec.encode(HEADER | {"datasets": {"one": "art:../../x"}}, BODY))
@example(codec.encode(HEADER | {"datasets": {"one": ["x"]}}, BODY))
@example(codec.encode(HEADER | {"stage": ["x"]}, BODY))
@example(codec.encode(HEADER, codec.encode(HEADER, BODY)))
@example(codec.encode(TOMBSTONE, b""))
def test_an_entry(data):
    store = planted(data)
    for complete in (True, False):
        found = store.lookup(key(), complete=complete)  # never raises, whatever stands there
        assert found.status in ("hit", "miss")
        assert found.hit == (found.envelope is not None)
        if found.hit:
            assert data.endswith(b"\n" + found.envelope)
            assert digest(found.envelope) == found.header["body_sha256"]
            found.envelope.decode()
        assert (found.reason is None) == found.hit
    hit = store.lookup(key()).hit
    (listed,) = store.results.listing()
    assert listed.problem is not None or listed.header["kind"] in ("entry", "tombstone")
    envelope = encoded(result({"one": [{"path": "a", "digest": digest(b"a"), "size": 1}]}))
    recorded = store.record(key(), envelope, ORIGIN)
    assert recorded.recorded != hit
    assert store.lookup(key()).hit


@budget(250)
@given(ENTRIES)
def test_an_entry_that_is_ended_and_brought_back(data):
    store = planted(data)
    before = store.lookup(key())
    try:
        ended = store.invalidate(key(), by="me", reason="bad")
    except CasError as error:
        told(error)
        return
    if before.hit:
        assert ended
        assert store.lookup(key()).reason == "invalidated"
    try:
        brought_back = store.undo_invalidate(key(), by="me")
    except CasError as error:
        told(error)
        brought_back = False
    found = store.lookup(key())
    assert found.hit == brought_back
    if before.hit and brought_back:
        assert found.envelope == before.envelope


DESCRIPTOR = descriptors.new(10, 20, 5, "2026-01-01T00:00:00Z")


@budget(200)
@given(hostile(json.loads(DESCRIPTOR.encode()), st.one_of(NUMBERS, VALUES)))
@example(DESCRIPTOR.encode())
@example(DESCRIPTOR.encode().replace(b'"session_s": 10', b'"session_s": 0'))
def test_a_descriptor(data):
    try:
        found = descriptors.decode(data, "here")
    except (CorruptError, UnsupportedError) as error:
        told(error, "here")
    else:
        assert descriptors.decode(found.encode(), "here") == found
        assert found.session_s >= 1  # a look for a blob ends when it took less than that
        assert memory_store(session_s=found.session_s).lookup(key()).reason == "absent"


CONFIGURATION = b'# where\nstore = "/data/cas"\n'


@budget(200)
@given(
    st.one_of(
        changed_bytes(CONFIGURATION),
        st.binary(max_size=100),
        st.text(max_size=100).map(str.encode),
        st.tuples(st.sampled_from(["store", "stoer", '"store"', "a.b"]), VALUES).map(
            lambda pair: f"{pair[0]} = {json.dumps(pair[1])}".encode()
        ),
    )
)
@example(b"store = " + b"[" * 100_000)
@example(b"a = " + b"{a=" * 5_000)
@example(b"a" + b".a" * 50_000 + b" = 1")
@example(b"[" + b"a." * 20_000 + b"a]")
def test_a_configuration(tmp_path, data):
    path = tmp_path / "config.toml"
    path.write_bytes(data)
    try:
        found = found_settings.read(str(path))
    except InvalidInputError as error:
        told(error, str(path))
    else:
        assert found.store is None or found.store


@budget(200)
@given(st.one_of(PATHS, st.text(max_size=80), st.just(key()), st.text(max_size=3).map(lambda end: key() + end)))
def test_keys_digests_datasets_and_classes(text):
    store = memory_store()
    calls = {
        "key": lambda: store.lookup(text),
        "class": lambda: store.lookup(key(), text),
        "digest": lambda: store.has(text),
        "blob": lambda: store.open_blob(text),
        "dataset": lambda: store.files_of(text),
        "ended": lambda: store.invalidate(text, by="me", reason="x"),
        "undone": lambda: store.undo_invalidate(key(), text, by="me"),
        "missing": lambda: store.missing([text]),
    }
    for call in calls.values():
        try:
            call()
        except CasError as error:
            told(error)
    assert objects(store) == {}
