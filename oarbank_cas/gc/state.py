"""What a run leaves for the next: sorted streams of records, kept as objects of about a MiB under `gc/state/`.

Every part carries the store's id and epoch and the digest of its body. A part that is missing, damaged, or of another
store or epoch is as if it had never been: the next run then reads more, or waits longer, and never knows less than it
believes.
"""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING

from oarbank_cas import layout
from oarbank_cas.errors import CorruptError, NotFoundError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from oarbank_cas.backends.base import Backend
    from oarbank_cas.descriptor import Descriptor

_VERSIONS = {"entries": 2}
"""The version of the records of a kind, where it is not the first: what an older one left out is not to be missed."""

_PART_BYTES = 2**20
_MAX_PART = 128 * 2**20
"""Bytes of a part: one record may be as large as the references of one envelope."""


def _part(run: str, kind: str, index: int) -> str:
    return f"{layout.GC_STATE}{run}/{kind}-{index:06d}"


class StateWriter:
    """Writes one stream.

    Args:
        backend: the store's storage.
        descriptor: the store.
        run: the run's id.
        kind: the stream's name.

    Attributes:
        parts: how many parts were written.
    """

    def __init__(self, backend: Backend, descriptor: Descriptor, run: str, kind: str) -> None:
        self._backend = backend
        self._descriptor = descriptor
        self._run = run
        self._kind = kind
        self._held = bytearray()
        self.parts = 0

    def add(self, record: bytes) -> None:
        """Append a record."""
        self._held += record
        if len(self._held) >= _PART_BYTES:
            self.flush()

    def flush(self) -> None:
        """Write what is held."""
        if not self._held:
            return
        head = {
            "format": _VERSIONS.get(self._kind, 1),
            "store": self._descriptor.id,
            "epoch": self._descriptor.epoch,
            "sha256": hashlib.sha256(self._held).hexdigest(),
        }
        self._backend.create(_part(self._run, self._kind, self.parts), json.dumps(head).encode() + b"\n" + self._held)
        self.parts += 1
        self._held.clear()


def read_parts(backend: Backend, descriptor: Descriptor, run: str, kind: str, parts: int) -> Iterator[bytes]:
    """The checked bodies of a stream's parts, in order, as far as they can be used."""
    for index in range(parts):
        try:
            data, _ = backend.read(_part(run, kind, index), _MAX_PART)
        except (NotFoundError, CorruptError):
            continue
        line, _, body = data.partition(b"\n")
        try:
            head = json.loads(line)
        except ValueError:
            continue
        expected = {
            "format": _VERSIONS.get(kind, 1),
            "store": descriptor.id,
            "epoch": descriptor.epoch,
            "sha256": hashlib.sha256(body).hexdigest(),
        }
        if head == expected:
            yield body
