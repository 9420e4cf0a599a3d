"""The mark: what the roots of a store reach, noted in the ledger; and everything that stands in its way, as doubts.

An entry that the last completed run has read, under the same name and with the same strong validator, is not read
again (rule 6).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from oarbank_cas import entry as codec
from oarbank_cas import layout, pins
from oarbank_cas.contracts.manifest import parse_dataset
from oarbank_cas.errors import CasError, CorruptError, NotFoundError
from oarbank_cas.gc import facts as facts_codec
from oarbank_cas.gc import rules
from oarbank_cas.gc.facts import UNKNOWN_SIZE, Facts, Ref, facts_of, read_manifest
from oarbank_cas.gc.names import is_entry_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from oarbank_cas.backends.base import Backend, ObjectStat
    from oarbank_cas.blobs import Blobs
    from oarbank_cas.contracts.manifest import FileRef
    from oarbank_cas.gc.ledger import Ledger
    from oarbank_cas.gc.state import StateWriter

Cached = tuple[str, str, Facts]


class Mark:
    """One run's mark.

    Args:
        backend: the store's storage.
        blobs: its blobs.
        ledger: takes the notes.
        spans: the store's.
        tm_ns: the run's time.
        doubt: called with each object that cannot be read, and what is wrong.

    Attributes:
        roots: how many roots there are.
        unknown: how many objects under `results/` and `pins/` are none of a store's.
    """

    def __init__(
        self,
        backend: Backend,
        blobs: Blobs,
        ledger: Ledger,
        spans: rules.Spans,
        tm_ns: int,
        doubt: Callable[[str, CasError], None],
    ) -> None:
        self._backend = backend
        self._blobs = blobs
        self._ledger = ledger
        self._spans = spans
        self._tm_ns = tm_ns
        self._doubt = doubt
        self._pinned: set[str] = set()
        self._unseen: dict[str, str] = {}
        self.roots = 0
        self.unknown = 0

    # -- pins

    def read_pins(self) -> None:
        """Note what pins reach. What a pinned job key reaches follows from its entry, ended or not."""
        for stat in self._backend.listing(layout.PINS):
            name = stat.name.removeprefix(layout.PINS)
            if not pins.is_pin_name(name):
                self.unknown += 1
                continue
            try:
                data, _ = self._backend.read(stat.name, pins.MAX_BYTES)
                pin = pins.decode(data, name, self._backend.where)
                if rules.pin_is_root(pin.expires_ns, self._tm_ns, self._spans):
                    self._pin(pin)
            except NotFoundError:
                if self._backend.stat(stat.name) is None:
                    continue  # unpinned meanwhile
                self._doubt(stat.name, CorruptError("something that it keeps is not there; unpin it, or bring it back"))
            except CorruptError as error:
                self._doubt(stat.name, error)

    def check_strays(self) -> None:
        """A root that is no object is in no listing, and yet something that somebody wanted kept (rule 6)."""
        for prefix, is_root in ((layout.RESULTS, is_entry_name), (layout.PINS, pins.is_pin_object)):
            for name, what in self._backend.strays(prefix, folders=True):
                if is_root(name):
                    self._doubt(
                        name, CorruptError(f"it is {what}: put the file itself there, or end what it stood for")
                    )

    def _pin(self, pin: pins.Pin) -> None:
        self.roots += 1
        if pin.entry is not None:
            self._pinned.add(pin.entry)
            self._unseen[pin.entry] = pin.name
        elif pin.dataset is not None:
            digest = parse_dataset(pin.dataset)
            refs = [Ref(bytes.fromhex(file.digest), file.size) for file in self._manifest(digest)]
            self._ledger.add_refs([self._single(digest), *refs], (), None)
        elif pin.digest is not None:
            self._ledger.add_refs([self._single(pin.digest)], (), None)

    def _single(self, digest: str) -> Ref:
        size = self._blobs.size_for_readers(digest)
        return Ref(bytes.fromhex(digest), UNKNOWN_SIZE if size is None else size)

    def _manifest(self, digest: str) -> tuple[FileRef, ...]:
        return read_manifest(self._blobs, digest)

    # -- entries

    def read_entries(
        self, cached: Iterator[Cached], writer: StateWriter | None, note: Callable[[str, int], None]
    ) -> None:
        """Note every entry and tombstone, and what the roots among them reach.

        Args:
            cached: what the last completed run has read, in the order of names.
            writer: takes the same for the next run; None where nothing is to be written.
            note: called with each that is done.
        """
        known = next(cached, None)
        for stat in self._backend.listing(layout.RESULTS):
            note("mark", 1)
            if not is_entry_name(stat.name):
                self.unknown += 1
                continue
            while known is not None and known[0] < stat.name:
                self._check_gone(known[0])
                known = next(cached, None)
            before = None
            if known is not None and known[0] == stat.name:
                before, known = known, next(cached, None)
            if before is not None and before[1] == rules.cache_key(stat.validator, stat.time_ns):
                self._entry(stat, before[2], writer)
                continue
            found = self._read(stat)
            if found is not None:
                self._entry(*found, writer)
        while known is not None:
            self._check_gone(known[0])
            known = next(cached, None)
        for name, pin in self._unseen.items():
            # Neither an entry nor its tombstone goes while it is pinned: somebody took it, or restored only a part.
            try:
                if self._backend.stat(layout.pin(pin)) is not None and self._backend.stat(name) is None:
                    raise CorruptError(f"the pin {pin} keeps it, and it is gone: bring it back, or unpin {pin}")
            except CorruptError as error:
                self._doubt(name, error)

    def _read(self, listed: ObjectStat) -> tuple[ObjectStat, Facts] | None:
        try:
            data, stat = self._backend.read(listed.name, codec.MAX_OBJECT)
        except NotFoundError:
            return None  # a tombstone whose retention ended, removed by another gc
        except CorruptError as error:
            self._doubt(listed.name, error)
            return None
        try:
            return stat, facts_of(data, stat.time_ns, self._manifest)
        except (CorruptError, NotFoundError) as error:
            self._doubt(listed.name, error)
            return None

    def _entry(self, stat: ObjectStat, facts: Facts, writer: StateWriter | None) -> None:
        pinned = stat.name in self._pinned
        self._unseen.pop(stat.name, None)
        number = self._ledger.add_entry(stat, facts, pinned=pinned)
        if not facts.ended or pinned or rules.tombstone_is_root(stat.time_ns, self._tm_ns, self._spans):
            self.roots += 1
            # Nobody is answered from a tombstone: a manifest of it that is gone stands in nobody's way.
            self._ledger.add_refs(facts.refs, () if facts.ended else facts.manifests, number)
        if writer is not None:
            writer.add(facts_codec.encode(stat.name, rules.cache_key(stat.validator, stat.time_ns), facts))

    def _check_gone(self, name: str) -> None:
        """An entry that the last run saw, and this listing does not show, must be gone: else the listing is short."""
        try:
            stat = self._backend.stat(name)
        except CorruptError as error:
            self._doubt(name, error)
            return
        if stat is not None and rules.listing_is_short(stat.time_ns, self._tm_ns, self._spans):
            self._doubt(
                name, CorruptError("the listing left it out, and it stands: check the storage, and run gc again")
            )
