"""Results that are recorded with what their keys were computed from."""

from __future__ import annotations

import json

from oarbank_cas import KeyInputs, Origin, Store, layout
from oarbank_cas import descriptor as descriptors
from oarbank_cas.backends.memory import MemoryBackend

MODULE = "org.example.render"
ORIGIN = Origin(by="agent@node", attempt="a-1", platform="linux-amd64")


def inputs(a=0.5, *, compat="render3", stage=None, module=MODULE, **more):
    params = {"a": a, "samples": 16, "lens": {"f": 2.8, "mm": 35}}
    return KeyInputs.of(module, compat, {"params": params, "scene": "art:" + "1" * 64, **more}, stage)


class Bench:
    """A store, and what tests do to it."""

    def __init__(self, store):
        self.store = store

    def record(self, given, result_class="any", *, data=None, keep=True, origin=ORIGIN):
        """A result of one file of its own; what became of it."""
        data = f"made of {given.key}".encode() if data is None else data
        blob = self.store.put_bytes(data)
        envelope = {
            "schema": "render/result@1",
            "module_version": "1.0.0",
            "payload": {},
            "artifacts": [{"name": "out", "files": [{"path": "a", "digest": blob.digest, "size": blob.size}]}],
        }
        found = self.store.record(
            str(given.key),
            json.dumps(envelope).encode(),
            origin,
            result_class,
            key_inputs=given if keep else None,
        )
        assert found.recorded
        return found

    def explain(self, question, result_class="any", **options):
        return self.store.explain(question, result_class, **options)

    def names(self, prefix=""):
        return [stat.name for stat in self.store.backend.listing(prefix)]

    def text(self, name):
        return self.store.backend.read(name, 2**20)[0]


def in_memory(**spans):
    """An empty store in memory."""
    descriptor = descriptors.new(**spans, created="2026-01-01T00:00:00Z")
    backend = MemoryBackend()
    incoming = backend.incoming()
    incoming.write(descriptor.encode())
    backend.commit([(layout.DESCRIPTOR, incoming)])
    return Store(backend, descriptor)
