"""Processes that are killed at every operation in turn, on a real disk: what had returned is there, and gc finishes."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
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
SPAWN = """
import os, sys, traceback
from tests.gc import crash_child
for line in sys.stdin:
    root, what, number, when = line.split("\\t")
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(read)
        os.dup2(write, 1)
        try:
            crash_child.main(root, what, number, when.strip())
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            os._exit(3)
    os.close(write)
    with os.fdopen(read) as out:
        told = out.read()
    _, status = os.waitpid(pid, 0)
    print(os.waitstatus_to_exitcode(status), told.replace("\\n", "\\t"), flush=True)
"""


class Children:
    """Forks children that run `crash_child`, from a process that has imported everything already."""

    def __init__(self):
        root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
        self.process = subprocess.Popen(
            [sys.executable, "-c", SPAWN], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=root
        )

    def run(self, root, what, number=0, when="before"):
        """Exit code, and what the child had said until it died."""
        self.process.stdin.write(f"{root}\t{what}\t{number}\t{when}\n")
        self.process.stdin.flush()
        code, _, told = self.process.stdout.readline().partition(" ")
        said = {}
        for line in told.split("\t"):
            if line.strip().startswith("{"):
                said.update(json.loads(line))
        return int(code), said

    def close(self):
        self.process.stdin.close()
        self.process.stdout.close()
        self.process.wait()


@pytest.fixture(scope="module")
def children():
    children = Children()
    yield children
    children.close()


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
            assert code == -signal.SIGKILL, (number, when, code, said)
            check(root, said)
            shutil.rmtree(root)
