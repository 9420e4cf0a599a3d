"""A root that no listing shows is a doubt: what stands in its place is no file, or it is pinned and gone."""

from __future__ import annotations

import json
import os

import pytest

from oarbank_cas import Origin, Store, layout
from oarbank_cas.gc.collect import Options

KEY = "ab" * 32


@pytest.fixture
def store(tmp_path):
    store, _ = Store.init(tmp_path / "store", session_s=1, grace_s=1, slack_s=0)
    with store:
        for number in range(4):
            record(store, f"{number}" * 64, b"kept %d" % number)
        record(store, KEY, b"alpha")
        yield store


def record(store, key, data):
    blob = store.put_bytes(data)
    files = [{"path": "a", "digest": blob.digest, "size": blob.size}]
    envelope = {"schema": "m/result@1", "module_version": "1.0.0", "payload": {}}
    envelope["artifacts"] = [{"name": "out", "files": files}]
    store.record(key, json.dumps(envelope).encode(), Origin("me"))
    return blob.digest


def as_link(path, aside):
    os.rename(path, aside)
    os.symlink(aside, path)


def as_pipe(path, aside):
    os.rename(path, aside)
    os.mkfifo(path)


def as_folder(path, aside):
    os.rename(path, aside)
    os.mkdir(path)


def doubts(store):
    report = store.gc(options=Options(yes_really=True))
    assert report.exit_code in (0, 65)
    return [doubt.what for doubt in report.doubts]


@pytest.mark.skipif(os.name == "nt", reason="POSIX")
@pytest.mark.parametrize("become", [as_link, as_pipe, as_folder])
@pytest.mark.parametrize("what", ["entry", "pin"])
def test_what_is_no_file_stops_gc(store, tmp_path, become, what):
    store.pins.pin("fig", KEY)
    assert doubts(store) == []
    name = layout.entry(KEY, None, "any") if what == "entry" else layout.pin("fig")
    path = os.path.join(store.backend.where, name)
    become(path, tmp_path / "aside")
    assert name in doubts(store)
    assert any(problem.name == name for problem in store.verify().problems)


def test_a_pinned_entry_that_is_gone_stops_gc(store):
    store.pins.pin("fig", KEY)
    name = layout.entry(KEY, None, "any")
    os.unlink(os.path.join(store.backend.where, name))
    assert name in doubts(store)
    store.pins.unpin("fig")
    assert doubts(store) == []
