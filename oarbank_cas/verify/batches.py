"""The walks over blobs and fossils: what stands beside what is referred to, in batches whose bytes are then read."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from oarbank_cas import layout
from oarbank_cas.errors import CorruptError
from oarbank_cas.gc import rules
from oarbank_cas.verify.checks import in_force
from oarbank_cas.verify.report import Options, Problem

if TYPE_CHECKING:
    from collections.abc import Iterator

    from oarbank_cas.backends.base import ObjectStat
    from oarbank_cas.rooms import Rooms
    from oarbank_cas.verify.notebook import Notebook, Wanted

_BATCH_ITEMS = 256
_BATCH_BYTES = 16 * 2**20
_BATCH_OBJECTS = 10_000

_MISPLACED = re.compile(r"blobs/(?:.*/)?([0-9a-f]{64})")


@dataclass(slots=True)
class Batch:
    """Objects that lie side by side, and what the walk saw around them.

    Attributes:
        last: the name of the last object that a later run may go on from; empty where there is none.
        items: object name and digest of those whose bytes are to be read, and the size that all say it has, or -1.
        size: bytes to read.
        counts: what the walk counted.
        problems: what it found.
    """

    last: str = ""
    items: list[tuple[str, str, int]] = field(default_factory=list)
    size: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    problems: list[Problem] = field(default_factory=list)

    @property
    def is_full(self) -> bool:
        """Whether it is enough for one step."""
        return (
            len(self.items) >= _BATCH_ITEMS
            or self.size >= _BATCH_BYTES
            or len(self.problems) >= _BATCH_ITEMS
            or self.counts["blobs"] + self.counts["fossils"] >= _BATCH_OBJECTS
        )


class Batches:
    """Walks one store.

    Args:
        rooms: the store.
        options: say whose bytes are to be read.
        notebook: knows what is referred to.
    """

    def __init__(self, rooms: Rooms, options: Options, notebook: Notebook) -> None:
        self._backend = rooms.backend
        self._blobs = rooms.blobs
        self._options = options
        self._notebook = notebook

    def blobs(self, after: str) -> Iterator[Batch]:
        """What stands under `blobs/`, from behind the name `after`, and what is referred to and does not."""
        digest = rules.blob_of(after) if after else None
        wanted = self._notebook.wanted(digest or "")
        ahead = next(wanted, None)
        batch = Batch()
        for stat in self._backend.listing(layout.BLOBS, after):
            digest = rules.blob_of(stat.name)
            if digest is None:
                self._odd(batch, stat)  # and not gone on from: only a blob's name says what was looked for by then
                continue
            while ahead is not None and ahead.digest < digest:
                self._absent(batch, ahead)
                ahead = next(wanted, None)
                if batch.is_full:
                    yield batch
                    batch = Batch()
            asked = None
            if ahead is not None and ahead.digest == digest:
                asked, ahead = ahead, next(wanted, None)
            self._standing(batch, stat, digest, asked)
            batch.last = stat.name
            if batch.is_full:
                yield batch
                batch = Batch()
        while ahead is not None:
            self._absent(batch, ahead)
            ahead = next(wanted, None)
            if batch.is_full:
                yield batch
                batch = Batch()
        yield batch

    def _standing(self, batch: Batch, stat: ObjectStat, digest: str, asked: Wanted | None) -> None:
        batch.counts["blobs"] += 1
        batch.counts["blob_bytes"] += stat.size
        if asked is None:
            batch.counts["orphans"] += 1
            batch.counts["orphan_bytes"] += stat.size
            if self._options.list_orphans:
                batch.problems.append(Problem("orphan", stat.name, f"{stat.size} bytes that nothing refers to", digest))
        suspect = asked is not None and asked.live and not asked.agrees(stat.size)
        if suspect or self._chosen(digest, stat):
            batch.items.append((stat.name, digest, -1 if suspect else stat.size))
            batch.size += stat.size

    def _chosen(self, digest: str, stat: ObjectStat) -> bool:
        """Whether the bytes are to be read."""
        options = self._options
        if options.since_ns is not None and stat.time_ns < options.since_ns:
            return False
        if options.sample >= 100:
            return True
        drawn = hashlib.sha256(f"{options.seed} {digest}".encode()).digest()[:8]
        return int.from_bytes(drawn, "big") < options.sample / 100 * 2**64

    def _absent(self, batch: Batch, asked: Wanted) -> None:
        """Something is referred to, and was not listed."""
        if not asked.live:
            return
        name = layout.blob(asked.digest)
        try:
            size = self._blobs.size_for_readers(asked.digest)
        except CorruptError as error:
            batch.problems.append(Problem("irregular", name, str(error), asked.digest))
            return
        if size is not None:
            if not asked.agrees(size):
                batch.items.append((name, asked.digest, -1))  # came in meanwhile, or is a fossil that is met later
            return
        if not in_force(self._backend, *self._notebook.roots_of(asked.digest)):
            return  # ended meanwhile
        batch.problems.append(
            Problem("missing", name, "is not in the store, and is referred to: repair it from another", asked.digest)
        )

    def _odd(self, batch: Batch, stat: ObjectStat) -> None:
        match = _MISPLACED.fullmatch(stat.name)
        if match is None:
            batch.problems.append(Problem("foreign", stat.name, "is no blob; it is left alone"))
            return
        why = f"is named like a blob, and belongs to {layout.blob(match[1])}: nobody finds it here"
        batch.problems.append(Problem("misplaced", stat.name, why, match[1]))

    def fossils(self, after: str) -> Iterator[Batch]:
        """What stands under `fossils/`, from behind the name `after`."""
        batch = Batch()
        for stat in self._backend.listing(layout.FOSSILS, after):
            batch.last = stat.name
            fossil = rules.fossil_of(stat.name)
            if fossil is None:
                batch.problems.append(Problem("foreign", stat.name, "is no condemned blob; it is left alone"))
                continue
            batch.counts["fossils"] += 1
            if self._chosen(fossil.digest, stat):
                batch.items.append((stat.name, fossil.digest, stat.size))
                batch.size += stat.size
            if batch.is_full:
                yield batch
                batch = Batch()
        yield batch
