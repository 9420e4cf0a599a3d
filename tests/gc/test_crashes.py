"""Processes that are killed at every operation in turn, on a real disk: what had returned is there, and gc finishes."""

from __future__ import annotations

import os
import shutil
import signal
import time

import pytest

from oarbank_cas import layout
from oarbank_cas.blobs import Blobs
from oarbank_cas.contracts.canonical import digest_of
from oarbank_cas.gc.collect import Options, collect
from oarbank_cas.store import Store

from .scenarios import KEY, OTHER, X, Y

pytestmark = pytest.mark.skipif(os.name == "nt", reason="needs SIGKILL and fork")

OPTIONS = Options(anyway=True, allow_no_roots=True, yes_really=True)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory, children):
    """A store with an entry, a condemned blob that may go, and one that is to be condemned; spans of a second."""
    root = str(tmp_path_factory.mktemp("prepared") / "store")
    store, _ = Store.init(root, session_s=1, grace_s=1, slack_s=0)
    with store:
        store.put_bytes(b"condemned long ago")
        time.sleep(1.3)
        store.put_bytes(X)
        assert collect(store.backend, store.descriptor, None, OPTIONS).done.count("blobs condemned") == 1
        code, _ = children.run(root, "rerecord")
        assert code == 0
        time.sleep(2.6)
        store.put_bytes(b"young")
    return root


def clone(prepared, tmp_path, number):
    root = str(tmp_path / f"store{number}")
    # Hard links keep the times that a copy would lose; objects are never written in place.
    shutil.copytree(prepared, root, copy_function=os.link)
    return root


def check(root, said):
    """What had returned is there; a new gc, twice, finishes and leaves nothing over."""
    with Store.open(root) as store:
        for key in {KEY, OTHER} & {said.get("recorded")}:
            assert store.lookup(key).hit, "a recorded result is not answered"
        for digest in said.get("put", ()):
            assert Blobs(store.backend, 1).get_bytes(digest)
        assert store.lookup(OTHER).reason in (None, "expired", "invalidated", "absent")
        for _ in range(2):
            report = collect(store.backend, store.descriptor, None, OPTIONS)
            assert (report.exit_code, report.missing) == (0, 0), report.to_json()
        for key in (KEY, OTHER):
            answer = store.lookup(key)
            assert answer.hit or answer.reason in ("absent", "expired", "invalidated")
            if answer.hit:
                for digest in [digest_of(X)] + [digest_of(Y)] * (key == KEY):
                    assert store.get_bytes(digest) in (X, Y)
        left = [stat.name for stat in store.backend.listing("") if not stat.name.startswith(layout.TMP)]
        assert not [name for name in left if name.endswith("~")]
        assert not [name for name in left if name.startswith(layout.GC_RUNNING)]
    scratch = [name for name in os.listdir(os.path.join(root, "tmp")) if name != "locks"]
    assert not scratch, scratch


@pytest.mark.parametrize("what", ["publish", "rerecord", "collect", "expire"])
def test_killed_at_every_operation(what, prepared, children, tmp_path, budget):
    """By default before every odd one and after every even one; with a budget, before and after each."""
    root = clone(prepared, tmp_path, 0)
    code, said = children.run(root, what)
    assert code == 0, said
    assert not said.get("doubts"), said
    check(root, said)
    operations = said["operations"]
    assert operations >= 9
    for number in range(1, operations + 1):
        for when in ("before", "after") if budget > 1 else (("after", "before")[number % 2],):
            root = clone(prepared, tmp_path, f"{number}{when}")
            code, said = children.run(root, what, number, when)
            if code != 0 or said["operations"] >= number:  # on a busy machine a root comes late, and costs some more
                assert code == -signal.SIGKILL, (number, when, code, said)
            check(root, said)
            shutil.rmtree(root)
