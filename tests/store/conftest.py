"""A store's rooms over a recorded backend, on disk and in memory, and ways to damage what it holds."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass, replace

import pytest

from oarbank_cas import layout
from oarbank_cas.backends.local import LocalBackend
from oarbank_cas.backends.memory import MemoryBackend
from oarbank_cas.blobs import Blobs
from oarbank_cas.intake import Intake
from oarbank_cas.lookups import Lookups
from oarbank_cas.results import Origin, Results
from oarbank_cas.sources import PathSource

SESSION_S = 3600


def digest_of(data):
    return hashlib.sha256(data).hexdigest()


@dataclass
class Rooms:
    """A store without its front door."""

    backend: object
    root: str | None = None
    session_s: int = SESSION_S

    def __post_init__(self):
        self.blobs = Blobs(self.backend, self.session_s)
        self.lookups = Lookups(self.backend, self.blobs, self.session_s)
        self.results = Results(self.backend, self.blobs, self.lookups, self.session_s)

    def again(self):
        """The same store as another process sees it: nothing is remembered."""
        return Rooms(self.backend, self.root, self.session_s)

    # -- putting

    def intake(self):
        return Intake(self.backend, self.blobs)

    def put(self, data):
        """A blob; its digest."""
        with self.intake() as intake:
            blob = intake.add_bytes(data)
            intake.commit()
        return blob.digest

    def put_file(self, path):
        with self.intake() as intake:
            blob = intake.add_file(PathSource(os.fspath(path)))
            intake.commit()
        return blob

    def place(self, name, data):
        """An object, by hand."""
        incoming = self.backend.incoming(len(data))
        incoming.write(data)
        (stat,) = self.backend.commit([(name, incoming)])
        assert stat is not None

    def remove(self, name):
        assert self.backend.delete(name)

    def fossilise(self, digest, nonce="0" * 16):
        """Condemn a blob, as gc does."""
        assert self.backend.copy(layout.blob(digest), layout.fossil(digest, nonce)) is not None
        self.remove(layout.blob(digest))

    def rot(self, name, data):
        """Other bytes in an object, behind the store's back."""
        inner = self.backend.backend
        if self.root is None:
            stat, _ = inner._objects[name]
            inner._objects[name] = (replace(stat, size=len(data), validator=stat.validator + "r"), data)
            return
        path = os.path.join(self.root, name)
        os.chmod(path, 0o644)
        with open(path, "r+b") as file:
            file.truncate(0)
            file.write(data)
        os.chmod(path, 0o444)

    # -- looking

    def names(self, prefix):
        return [stat.name for stat in self.backend.listing(prefix)]

    def object(self, name):
        return self.backend.read(name, 2**30)[0]


class Far(MemoryBackend):
    """A storage in memory that is asked as one from afar."""

    requests_at_once = 4


@pytest.fixture(params=["memory", "bucket", "far", "disk"])
def store(request, tmp_path, recorded):
    """An empty store. It must leave no temporaries behind."""
    if request.param == "far":
        yield Rooms(recorded(Far(atomic_move=False)))
        return
    if request.param != "disk":
        yield Rooms(recorded(MemoryBackend(atomic_move=request.param == "memory")))
        return
    root = tmp_path / "store"
    root.mkdir()
    (root / layout.DESCRIPTOR).write_text("{}")
    backend = LocalBackend(root, layout.DESCRIPTOR)
    yield Rooms(recorded(backend), str(root))
    backend.close()
    assert not (root / "tmp").exists() or set(os.listdir(root / "tmp")) <= {"locks"}


class Clock:
    """A store's clock that stands until it is moved."""

    def __init__(self):
        self.time_ns = 1_800_000_000 * 10**9

    def __call__(self):
        self.time_ns += 1000
        return self.time_ns

    def pass_s(self, seconds):
        self.time_ns += seconds * 10**9


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def clocked(clock, recorded):
    """A store in memory whose time is `clock`'s."""
    return Rooms(recorded(MemoryBackend(clock=clock)))


KEY = "0f" * 32


@pytest.fixture
def key():
    """A job key."""
    return KEY


@pytest.fixture
def origin():
    return Origin(by="tests", attempt="attempt-1", platform="linux-amd64", host="here", module_id="org.example.module")


@pytest.fixture
def envelope():
    """Makes a result envelope of files (path to bytes' digest and size), spelled in a way that only it is spelled."""

    def make(files=None, payload=None, **more):
        document = {
            "schema": "org.example.module/result@1",
            "module_version": "1.2.3",
            "artifacts": [
                {
                    "name": "out",
                    "files": [{"path": path, "digest": digest, "size": size} for path, (digest, size) in files.items()],
                }
            ]
            if files
            else [],
            "payload": payload if payload is not None else {"answer": 42},
            **more,
        }
        return b" \n" + json.dumps(document, indent=1).replace(": 42", ": 4.20e1").encode() + b"\n\n"

    return make


@pytest.fixture
def filled(store, envelope):
    """A store with two blobs, and an envelope of them."""
    files = {"a.txt": b"first", "deep/b.bin": bytes(range(256)) * 40}
    store.digests = [store.put(data) for data in files.values()]
    store.envelope = envelope({path: (digest_of(data), len(data)) for path, data in files.items()})
    return store
