"""The plan: what is to become of every blob and fossil.

It is made by walking what is reached, what stands and what was condemned side by side, in the order of digests.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Generic, TypeVar

from oarbank_cas import layout
from oarbank_cas.errors import CasError, CorruptError, NotFoundError
from oarbank_cas.gc import rules
from oarbank_cas.gc.clocks import Moment
from oarbank_cas.gc.facts import read_manifest
from oarbank_cas.gc.report import Table, age_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from oarbank_cas.backends.base import Backend, ObjectStat
    from oarbank_cas.blobs import Blobs
    from oarbank_cas.gc.ledger import Ledger
    from oarbank_cas.gc.state import StateWriter

T = TypeVar("T")


class _Cursor(Generic[T]):
    """A stream of (key, value) in the order of keys, from which all values of one key are taken at a time."""

    def __init__(self, stream: Iterator[tuple[str, T]]) -> None:
        self._stream = stream
        self._head = next(stream, None)

    @property
    def key(self) -> str | None:
        """The key that comes next; None at the end."""
        return self._head[0] if self._head else None

    def take(self, key: str) -> list[T]:
        """The values of `key`; what comes before it is skipped."""
        found: list[T] = []
        while self._head is not None and self._head[0] <= key:
            if self._head[0] == key:
                found.append(self._head[1])
            self._head = next(self._stream, None)
        return found


class Plan:
    """Makes the plan of one run.

    Args:
        backend: the store's storage.
        blobs: its blobs.
        ledger: has the mark; takes the plan.
        spans: the store's.
        tm_ns: the run's time.
        now: the run's moment, by gc's clocks.
        table: counts what is planned.
        doubt: called with each object that cannot be read, and what is wrong.

    Attributes:
        standing: how many blobs stand, condemned ones and those only reached left out.
        missing: how many reached blobs are nowhere.
        unknown: how many objects under `blobs/` and `fossils/` are none of a store's.
    """

    def __init__(
        self,
        backend: Backend,
        blobs: Blobs,
        ledger: Ledger,
        spans: rules.Spans,
        tm_ns: int,
        now: Moment,
        table: Table,
        doubt: Callable[[str, CasError], None],
    ) -> None:
        self._backend = backend
        self._blobs = blobs
        self._ledger = ledger
        self._spans = spans
        self._tm_ns = tm_ns
        self._now = now
        self._table = table
        self._doubt = doubt
        self._writer: StateWriter | None = None
        self._can_condemn = True
        self.standing = 0
        self.missing = 0
        self.unknown = 0

    def make(
        self,
        seen: Iterator[tuple[str, Moment]],
        verified: Iterator[tuple[str, str]],
        writer: StateWriter | None,
        note: Callable[[str, int], None],
        *,
        can_condemn: bool,
    ) -> None:
        """Walk the store.

        Args:
            seen: fossils that completed runs saw, by name, and when first.
            verified: manifests that completed runs have read, by digest, and the validators that their blobs had.
            writer: takes the manifests for the next run; None where nothing is to be written.
            note: called with each digest that is done.
            can_condemn: the storage allows it at all.
        """
        self._writer = writer
        self._can_condemn = can_condemn
        reached = _Cursor(self._ledger.reached())
        blobs = _Cursor(self._blob_stream())
        fossils = _Cursor(self._fossil_stream())
        seen_before = _Cursor(seen)
        checked = _Cursor(verified)
        while keys := [key for key in (reached.key, blobs.key, fossils.key) if key is not None]:
            digest = min(keys)
            note("plan", 1)
            is_manifest = reached.take(digest)
            blob = next(iter(blobs.take(digest)), None)
            condemned = fossils.take(digest)
            for stat, fossil in condemned:
                if fossil.moving:
                    self._note("finish", "fossils finished", stat)
            final = [
                (stat, fossil, next(iter(seen_before.take(stat.name)), None))
                for stat, fossil in condemned
                if not fossil.moving
            ]
            self._fossils(final, blob, reached=bool(is_manifest))
            if is_manifest:
                self._reached(digest, blob, fossil=bool(condemned))
                if is_manifest[0]:
                    self._verify(digest, blob, checked.take(digest))
            elif blob is not None:
                self._unreached(blob)

    def _blob_stream(self) -> Iterator[tuple[str, ObjectStat]]:
        for stat in self._backend.listing(layout.BLOBS):
            digest = rules.blob_of(stat.name)
            if digest is None:
                self.unknown += 1
            else:
                self.standing += 1
                yield digest, stat

    def _fossil_stream(self) -> Iterator[tuple[str, tuple[ObjectStat, rules.Fossil]]]:
        for stat in self._backend.listing(layout.FOSSILS):
            fossil = rules.fossil_of(stat.name)
            if fossil is None:
                self.unknown += 1
            else:
                yield fossil.digest, (stat, fossil)

    def _note(self, what: str, row: str, stat: ObjectStat) -> None:
        self._ledger.plan(what, stat.name, stat.validator, stat.size, stat.time_ns)
        self._count(row, stat)

    def _count(self, row: str, stat: ObjectStat) -> None:
        self._table.add(row, age_of(stat.time_ns, self._tm_ns), stat.size)

    # -- one digest

    def _fossils(
        self,
        condemned: list[tuple[ObjectStat, rules.Fossil, Moment | None]],
        blob: ObjectStat | None,
        *,
        reached: bool,
    ) -> None:
        for stat, fossil, first in condemned:
            if rules.may_purge(
                age_start_ns=fossil.age_start_ns(stat.time_ns),
                seen_for_ns=None if first is None else self._now.since(first),
                reached=reached,
                blob_time_ns=blob.time_ns if blob else None,
                tm_ns=self._tm_ns,
                spans=self._spans,
            ):
                self._note("purge", "fossils purged", stat)
            else:
                self._ledger.saw(stat.name, None if first is None else json.dumps(first.to_json()))
                self._count("fossils kept", stat)

    def _unreached(self, blob: ObjectStat) -> None:
        if self._can_condemn and rules.worth_condemning(blob.time_ns, self._tm_ns, self._spans):
            self._note("condemn", "blobs condemned", blob)
        else:
            self._count("blobs kept", blob)

    def _reached(self, digest: str, blob: ObjectStat | None, *, fossil: bool) -> None:
        if blob is not None:
            self._count("blobs kept", blob)
            return
        if fossil:
            self._ledger.plan("revive", digest)
            self._table.add("blobs revived", "under 1 day", 0)
            return
        standing = self._backend.stat(layout.blob(digest))
        if standing is None:
            # Condemned by another gc since it was listed, or nowhere at all.
            if self._blobs.size_for_readers(digest) is None:
                self.missing += 1
            else:
                self._ledger.plan("revive", digest)
        elif rules.listing_is_short(standing.time_ns, self._tm_ns, self._spans):
            self._doubt(
                standing.name,
                CorruptError("the listing left it out, and it stands: check the storage, and run gc again"),
            )

    def _verify(self, digest: str, blob: ObjectStat | None, before: list[str]) -> None:
        """A manifest that a root names must be readable; one that was, and has not changed since, is."""
        if blob is None or blob.validator not in before:
            try:
                read_manifest(self._blobs, digest)
            except (NotFoundError, CorruptError) as error:
                why = f"the manifest of a live entry or pin cannot be read ({error}): bring it back, or end the entry"
                self._doubt(layout.blob(digest), CorruptError(why))
                return
        if blob is not None and self._writer is not None:
            self._writer.add(f"{digest} {blob.validator}\n".encode())
