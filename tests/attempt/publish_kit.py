"""Stores for attempts: one in memory whose clock the test moves, and gc over it; hostile datasets."""

import json

from attempt_model import line_of

from oarbank_cas import descriptor, layout
from oarbank_cas.backends.memory import MemoryBackend
from oarbank_cas.contracts.manifest import FileRef, dataset_id, manifest_bytes
from oarbank_cas.gc.clocks import Moment, Surroundings
from oarbank_cas.gc.collect import Options, collect
from oarbank_cas.store import Store

SESSION_S, SLACK_S, GRACE_S = 100, 20, 1
SETTLED_S = SESSION_S + SLACK_S


class Clock:
    """Time that stands until it is moved."""

    def __init__(self):
        self.now_ns = 1_800_000_000 * 10**9

    def __call__(self):
        self.now_ns += 1000
        return self.now_ns

    def pass_s(self, seconds):
        self.now_ns += seconds * 10**9


class Around(Surroundings):
    def __init__(self, clock):
        self._clock = clock

    def moment(self):
        return Moment("here", self._clock())


class World:
    """A store in memory.

    `wrap` is put around its backend, as the store sees it.
    """

    def __init__(self, *, atomic_move=True, wrap=lambda backend: backend):
        self.clock = Clock()
        self.memory = MemoryBackend(clock=self.clock, atomic_move=atomic_move)
        self.backend = wrap(self.memory)
        self.descriptor = descriptor.new(SESSION_S, GRACE_S, SLACK_S, "2027-01-15T08:00:00Z")
        put(self.memory, layout.DESCRIPTOR, self.descriptor.encode())
        self.store = Store(self.backend, self.descriptor)

    def gc(self):
        options = Options(allow_no_roots=True, yes_really=True)
        report = collect(self.memory, self.descriptor, options=options, around=Around(self.clock))
        assert report.exit_code == 0, report
        return report

    def gc_until_settled(self):
        """As often as it takes for whatever nobody reaches to be gone."""
        for _ in range(4):
            self.clock.pass_s(SETTLED_S + 70)
            self.gc()

    def names(self, prefix):
        return [found.name for found in self.memory.listing(prefix)]

    def blobs(self):
        return {name.rpartition("/")[2] for name in self.names("blobs/")}


def put(backend, name, data):
    incoming = backend.incoming(len(data))
    incoming.write(data)
    assert backend.commit([(name, incoming)])[0] is not None


def dataset_of(store, files):
    """A dataset of these files: bytes, or the FileRef that the manifest is to say."""
    refs = []
    for path, data in files.items():
        if isinstance(data, FileRef):
            refs.append(data)
        else:
            blob = store.put_bytes(data)
            refs.append(FileRef(path, blob.digest, blob.size))
    return dataset_id(store.put_bytes(manifest_bytes(refs)).digest)


def numbered_lines(count, width=80):
    """Journal lines `[n, "xx..."]`, numbered from 0."""
    return b"".join(line_of(json.dumps([n, "x" * width])) for n in range(count))
