"""The backends that pass the one suite. A new backend is one more line in `KINDS`."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent.parent / "s3"))

import s3_kit

from oarbank_cas.backends.local import LocalBackend
from oarbank_cas.backends.memory import MemoryBackend
from oarbank_cas.backends.s3.backend import S3Backend

SENTINEL = "oarbank-cas.json"


def local(folder):
    root = os.path.join(folder, "store")
    os.mkdir(root)
    with open(os.path.join(root, SENTINEL), "w") as file:
        file.write("{}")
    return LocalBackend(root, SENTINEL)


def bucket(_, engine="boto3"):
    """A prefix of its own in a real server's bucket; large objects begin early, so that some go up in parts."""
    found = s3_kit.wire(engine=engine)
    s3_kit.plain(found).put_object(Bucket=found.place.bucket, Key=found.key(SENTINEL), Body=b"{}")
    return S3Backend(found, s3_kit.capabilities(), SENTINEL, multipart_above=8 * 2**20, part_size=5 * 2**20)


KINDS = {
    "memory-disk": lambda _: MemoryBackend(),
    "memory-bucket": lambda _: MemoryBackend(atomic_move=False),
    "memory-seconds": lambda _: MemoryBackend(granularity_ns=10**9),
    "local": local,
    "s3": bucket,
    "s3-fast": lambda folder: bucket(folder, "obstore"),
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
    if request.param in ("s3", "s3-fast"):
        assert s3_kit.left_behind(made.wire) == []
    if request.param == "local":
        tmp = tmp_path / "store" / "tmp"
        assert not tmp.exists() or set(os.listdir(tmp)) <= {"locks"}


@pytest.fixture
def turns(backend):
    """How often a race is run: a real server takes a second or two for one, where all racers want one name."""
    if not backend.exclusive:
        pytest.skip("this server ignores conditions: both of two may win")
    return 3 if backend.requests_at_once > 1 else 10


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
