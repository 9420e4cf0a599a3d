"""What several folders of tests share: budgets, recorded backends, races between real processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from oarbank_cas.backends.base import Backend

GRANTED = max(1, int(float(os.environ.get("OARBANK_CAS_TEST_BUDGET", "1"))))


@pytest.fixture(scope="session")
def budget():
    """How many times longer than by default the long explorations run."""
    return GRANTED


@pytest.fixture
def alone(tmp_path, monkeypatch):
    """Runs in `tmp_path/here`, with a home that is empty, and no store, cache or configuration named around it."""
    (tmp_path / "here").mkdir()
    (tmp_path / "home").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for name in ("XDG_CONFIG_HOME", "OARBANK_CAS_STORE", "OARBANK_CAS_CACHE", "OARBANK_CAS_CACHE_BYTES"):
        monkeypatch.delenv(name, raising=False)


class RecordedBackend(Backend):
    """Another backend, and a list of the calls that it got.

    `hooks` maps a method's name to what is called, with the same arguments, before it.
    """

    def __init__(self, backend):
        self.backend = backend
        self.where = backend.where
        self.atomic_move = backend.atomic_move
        self.group_commit = backend.group_commit
        self.requests_at_once = backend.requests_at_once
        self.calls = []
        self.hooks = {}

    def names(self):
        return [call[0] for call in self.calls]

    def _call(self, method, *arguments):
        self.calls.append((method, *arguments))
        if method in self.hooks:
            self.hooks[method](*arguments)
        return getattr(self.backend, method)(*arguments)

    def now(self):
        return self._call("now")

    def stat(self, name):
        return self._call("stat", name)

    def read(self, name, max_bytes):
        return self._call("read", name, max_bytes)

    def open(self, name, start=0):
        return self._call("open", name, start)

    def incoming(self, size_hint=None):
        return self._call("incoming", size_hint)

    def commit(self, items):
        return self._call("commit", items)

    def replace(self, name, incoming, expected):
        return self._call("replace", name, incoming, expected)

    def delete(self, name, expected=None):
        return self._call("delete", name, expected)

    def copy(self, name, to):
        return self._call("copy", name, to)

    def rename(self, name, to, expected):
        return self._call("rename", name, to, expected)

    def touch(self, name):
        return self._call("touch", name)

    def listing(self, prefix, after=""):
        return self._call("listing", prefix, after)

    def flush(self, names):
        return self._call("flush", list(names))

    def clone(self, name, fd):
        return self._call("clone", name, fd)

    def sweep(self):
        return self._call("sweep")

    def close(self):
        return self._call("close")


@pytest.fixture
def recorded():
    """Wraps a backend so that the calls it gets can be counted and answered."""
    return RecordedBackend


@pytest.fixture
def race():
    """Runs one program in several processes that all start at the same moment; what each printed, as JSON.

    The program finds its arguments in `arguments` and calls `answer(value)` once.
    """
    prologue = (
        "import json, sys\narguments = sys.argv[1:]\n"
        "def ready():\n    print('ready', flush=True); sys.stdin.readline()\n"
        "def answer(value):\n    print(json.dumps(value), flush=True)\n"
    )
    children = []

    def run(program, *argument_lists):
        children.extend(
            subprocess.Popen(
                [sys.executable, "-c", prologue + program, *map(str, arguments)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for arguments in argument_lists
        )
        for child in children:
            assert child.stdout.readline() == "ready\n"
        for child in children:
            child.stdin.write("go\n")
            child.stdin.flush()
        return [json.loads(child.communicate(timeout=120)[0]) for child in children]

    yield run
    for child in children:
        child.kill()
        child.wait()
        child.stdin.close()
        child.stdout.close()
