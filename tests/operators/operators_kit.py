"""Stores for tests of the operators' tools: filled with results, damaged in every way, and compared."""

import hashlib
import json
import os
import random
from dataclasses import dataclass, field
from pathlib import Path

from oarbank_cas import Origin, Store, layout
from oarbank_cas import descriptor as descriptors
from oarbank_cas.backends.memory import MemoryBackend


def digest_of(data):
    return hashlib.sha256(data).hexdigest()


def key(number):
    return digest_of(f"job {number}".encode())


def envelope(files, module="align", **more):
    """A result envelope of path -> bytes."""
    listed = [{"path": path, "digest": digest_of(data), "size": len(data)} for path, data in files.items()]
    document = {
        "schema": f"{module}/result@1",
        "module_version": "1.2.3",
        "payload": {"n": "1.0"},
        "artifacts": [{"name": "out", "files": listed}] if listed else [],
    }
    return b" " + json.dumps(document | more, indent=1).encode() + b"\n"


def files_of(number, sizes=(10, 3000)):
    """What job `number` makes: files of its own, and one that all share."""
    rng = random.Random(number)
    own = {f"deep/{size}.bin": rng.randbytes(size) + str(number).encode() for size in sizes}
    return own | {"shared.txt": b"the same for every job"}


def record(store, number, *, result_class="any", **more):
    """Put what a job makes, and record it."""
    files = files_of(number)
    with store.intake() as intake:
        for data in files.values():
            intake.add_bytes(data)
        intake.commit()
    origin = Origin("tester@bench", attempt=f"attempt-{number}", platform="linux-amd64", host=f"node{number % 3}")
    sent = envelope(files, module=f"module{number % 3}", **more)
    assert store.record(key(number), sent, origin, result_class).recorded
    return sent


def memory_store(**options):
    return Store(MemoryBackend(**options), descriptors.new(3600, 86400, 300, "2026-01-01T00:00:00Z"))


@dataclass
class Filled:
    """A store on disk or in memory, and what is in it."""

    store: Store
    root: Path | None
    jobs: list = field(default_factory=list)
    orphan: str = ""

    def fill(self, jobs=12):
        for number in range(jobs):
            record(self.store, number)
            self.jobs.append(number)
        self.orphan = self.store.put_bytes(b"nothing refers to this").digest
        self.store.pins.pin("a-job", key(0), note="kept", by="tester")
        self.store.pins.pin("a-blob", f"blob:{self.orphan}")
        self.store.pins.pin("a-dataset", self.dataset(1))
        return self

    def dataset(self, number):
        return self.store.lookup(key(number)).datasets["out"]

    def blob(self, number=3, file="deep/3000.bin"):
        """A digest that job `number` alone needs."""
        return digest_of(files_of(number)[file])

    def entry(self, number):
        return layout.entry(key(number), None, "any")

    # -- behind the store's back

    def path(self, name):
        return self.root / name

    def read(self, name):
        if self.root is not None:
            return self.path(name).read_bytes()
        return self.store.backend._objects[name][1]

    def write(self, name, data):
        """Other bytes under a name, whatever stands there."""
        if self.root is not None:
            path = self.path(name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.unlink(missing_ok=True)
            path.write_bytes(data)
            path.chmod(0o444)
        else:
            self.store.backend._put(name, data)

    def flip(self, name):
        data = bytearray(self.read(name))
        data[len(data) // 2] ^= 1
        self.write(name, bytes(data))

    def remove(self, name):
        if self.root is not None:
            self.path(name).unlink()
        else:
            del self.store.backend._objects[name]

    def move(self, name, to):
        self.write(to, self.read(name))
        self.remove(name)

    def fossilise(self, digest, nonce="0" * 16):
        self.move(layout.blob(digest), layout.fossil(digest, nonce))

    def names(self, prefix=""):
        return [
            stat.name for stat in self.store.backend.listing(prefix) if not stat.name.startswith(("tmp/", "gc/hits/"))
        ]

    def contents(self, prefix=""):
        return {name: self.read(name) for name in self.names(prefix)}

    def check_whole(self):
        """Every job is a hit, and its files are what they were."""
        fresh = Store(self.store.backend, self.store.descriptor)
        for number in self.jobs:
            found = fresh.lookup(key(number))
            assert found.hit, (number, found)
            for data in files_of(number).values():
                assert fresh.get_bytes(digest_of(data)) == data


def kinds(report):
    """Kind and object name of what was found and is not healed."""
    return sorted((problem.kind, problem.name) for problem in report.problems if not problem.healed)


def disk_store(folder, **spans):
    store, _ = Store.init(folder, **spans)
    return Filled(store, Path(folder))


def tree(folder):
    """Path -> bytes and mtime of every file below a folder."""
    found = {}
    for base, _, names in os.walk(folder):
        for name in names:
            path = Path(base, name)
            found[str(path.relative_to(folder))] = path.read_bytes() if path.is_file() else None
    return {name: data for name, data in found.items() if not name.startswith("tmp/")}
