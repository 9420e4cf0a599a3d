"""The backends that pass the one suite. A new backend is one more line in `KINDS`."""

from __future__ import annotations

import os

import pytest

from oarbank_cas.backends.local import LocalBackend
from oarbank_cas.backends.memory import MemoryBackend

SENTINEL = "oarbank-cas.json"


def local(folder):
    root = os.path.join(folder, "store")
    os.mkdir(root)
    with open(os.path.join(root, SENTINEL), "w") as file:
        file.write("{}")
    return LocalBackend(root, SENTINEL)


KINDS = {
    "memory-disk": lambda _: MemoryBackend(),
    "memory-bucket": lambda _: MemoryBackend(atomic_move=False),
    "memory-seconds": lambda _: MemoryBackend(granularity_ns=10**9),
    "local": local,
}


@pytest.fixture(scope="session")
def kinds():
    """Each kind of backend: its name to what makes an empty one, given a folder."""
    return KINDS


@pytest.fixture(params=sorted(KINDS))
def backend(request, tmp_path):
    """An empty store's backend. It must leave no temporaries behind."""
    made = KINDS[request.param](tmp_path)
    yield made
    made.close()
    if request.param == "local":
        tmp = tmp_path / "store" / "tmp"
        assert not tmp.exists() or set(os.listdir(tmp)) <= {"locks"}


@pytest.fixture
def disk(tmp_path):
    """An empty store on disk."""
    made = local(tmp_path)
    yield made
    made.close()


@pytest.fixture
def put():
    """Creates an object; its stat, or None where the name stood."""

    def create(backend, name, data):
        incoming = backend.incoming(len(data))
        try:
            incoming.write(data)
            return backend.commit([(name, incoming)])[0]
        finally:
            incoming.discard()

    return create


@pytest.fixture
def swap():
    """Replaces an incarnation of an object; its stat, or None where another stood."""

    def replace(backend, name, data, expected):
        incoming = backend.incoming(len(data))
        incoming.write(data)
        return backend.replace(name, incoming, expected)

    return replace
