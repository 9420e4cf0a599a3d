"""Figures about a whole store: what it holds, how old and how large that is, what sharing saves, what gc would free."""

from __future__ import annotations

import sqlite3
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from oarbank_cas import entry as codec
from oarbank_cas import instants, layout
from oarbank_cas.errors import BusyError, CasError, CorruptError, UnavailableError
from oarbank_cas.gc import collect as gc
from oarbank_cas.gc import rules
from oarbank_cas.gc.facts import Facts, facts_of, read_manifest
from oarbank_cas.gc.names import is_entry_name
from oarbank_cas.gc.report import AGES, OLDEST, age_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from oarbank_cas.gc.report import Report as GcReport
    from oarbank_cas.rooms import Rooms

Progress = Callable[[int], None]
"""Called with the bytes of each object that is met."""

AGE_NAMES = (*(name for _, name in AGES), OLDEST)

SIZES = (
    (0, "empty"),
    (2**10, "to 1 KiB"),
    (16 * 2**10, "to 16 KiB"),
    (256 * 2**10, "to 256 KiB"),
    (4 * 2**20, "to 4 MiB"),
    (64 * 2**20, "to 64 MiB"),
    (2**30, "to 1 GiB"),
)
"""Size classes: up to so many bytes, and their name."""

LARGEST = "over 1 GiB"
SIZE_NAMES = (*(name for _, name in SIZES), LARGEST)

_CACHE_KIB = 32 * 1024
_BATCH = 1000


def size_class(size: int) -> str:
    """The size class of so many bytes."""
    return next((name for most, name in SIZES if size <= most), LARGEST)


@dataclass(slots=True)
class Count:
    """How many, and how many bytes."""

    count: int = 0
    bytes: int = 0

    def add(self, size: int) -> None:
        """Count one."""
        self.count += 1
        self.bytes += size

    def to_json(self) -> dict[str, int]:
        """As a JSON object."""
        return {"count": self.count, "bytes": self.bytes}


@dataclass(slots=True)
class Module:
    """What one module has in the store.

    Attributes:
        entries: its entries, and the bytes of the objects that hold them.
        tombstones: the same of its tombstones.
        referenced: every reference of its entries, with the bytes of what is referred to.
        distinct: the same, each blob counted once.
        ages: its entries by age.
        last_ns: when its latest entry was recorded.
    """

    entries: Count = field(default_factory=Count)
    tombstones: Count = field(default_factory=Count)
    referenced: Count = field(default_factory=Count)
    distinct: Count = field(default_factory=Count)
    ages: Counter[str] = field(default_factory=Counter)
    last_ns: int = 0

    def to_json(self) -> dict[str, Any]:
        """As a JSON object."""
        return {
            "entries": self.entries.to_json(),
            "tombstones": self.tombstones.to_json(),
            "referenced": self.referenced.to_json(),
            "distinct": self.distinct.to_json(),
            "ages": {name: self.ages[name] for name in AGE_NAMES},
            "last_recorded_at": instants.to_text(self.last_ns) if self.last_ns else None,
        }


@dataclass(slots=True)
class Freeable:
    """What a gc would do now, under the store's own policy.

    Attributes:
        condemned: blobs that it would condemn; they are gone a session and a gc later.
        purged: condemned blobs that it would remove for good.
        expired: entries that it would end.
        why_not: why it would do nothing, or why that is not known; else None.
    """

    condemned: Count = field(default_factory=Count)
    purged: Count = field(default_factory=Count)
    expired: Count = field(default_factory=Count)
    why_not: str | None = None

    def to_json(self) -> dict[str, Any]:
        """As a JSON object."""
        return {
            "condemned": self.condemned.to_json(),
            "purged": self.purged.to_json(),
            "expired": self.expired.to_json(),
            "why_not": self.why_not,
        }


@dataclass(slots=True)
class Stats:
    """The figures.

    Attributes:
        store: the store.
        id: its identity.
        time: the store's time, RFC 3339.
        blobs: what stands under `blobs/`.
        referenced: every reference of every entry, with the bytes of what is referred to.
        distinct: the blobs that entries refer to, each counted once, as they stand.
        orphans: the blobs that no entry refers to; pins may.
        missing: how many distinct blobs are referred to and not there.
        fossils: condemned blobs.
        damaged: what was set aside.
        pins: how many.
        unreadable: entries that cannot be read.
        modules: by module.
        sizes: the blobs by size class.
        ages: the blobs by age class.
        free: what a gc would free; None where nobody asked.
        seconds: how long it took.
    """

    store: str
    id: str
    time: str
    blobs: Count = field(default_factory=Count)
    referenced: Count = field(default_factory=Count)
    distinct: Count = field(default_factory=Count)
    orphans: Count = field(default_factory=Count)
    missing: int = 0
    fossils: Count = field(default_factory=Count)
    damaged: Count = field(default_factory=Count)
    pins: int = 0
    unreadable: int = 0
    modules: dict[str, Module] = field(default_factory=dict)
    sizes: dict[str, Count] = field(default_factory=lambda: {name: Count() for name in SIZE_NAMES})
    ages: dict[str, Count] = field(default_factory=lambda: {name: Count() for name in AGE_NAMES})
    free: Freeable | None = None
    seconds: float = 0.0

    @property
    def entries(self) -> Count:
        """All entries."""
        return _sum(module.entries for module in self.modules.values())

    @property
    def tombstones(self) -> Count:
        """All tombstones."""
        return _sum(module.tombstones for module in self.modules.values())

    @property
    def dedup_ratio(self) -> float | None:
        """Bytes referred to, over the bytes that are stored for them; None where nothing is."""
        return self.referenced.bytes / self.distinct.bytes if self.distinct.bytes else None

    def to_json(self) -> dict[str, Any]:
        """As a JSON object."""
        ratio = self.dedup_ratio
        return {
            "store": self.store,
            "id": self.id,
            "time": self.time,
            "blobs": self.blobs.to_json(),
            "entries": self.entries.to_json(),
            "tombstones": self.tombstones.to_json(),
            "pins": self.pins,
            "referenced": self.referenced.to_json(),
            "distinct": self.distinct.to_json(),
            "dedup_ratio": None if ratio is None else round(ratio, 4),
            "orphans": self.orphans.to_json(),
            "missing": self.missing,
            "fossils": self.fossils.to_json(),
            "damaged": self.damaged.to_json(),
            "unreadable": self.unreadable,
            "modules": {name: module.to_json() for name, module in sorted(self.modules.items())},
            "sizes": {name: count.to_json() for name, count in self.sizes.items()},
            "ages": {name: count.to_json() for name, count in self.ages.items()},
            "gc": self.free.to_json() if self.free else None,
            "seconds": round(self.seconds, 3),
        }


def _sum(counts: Iterator[Count] | Any) -> Count:  # noqa: ANN401 - any iterable
    total = Count()
    for each in counts:
        total.count += each.count
        total.bytes += each.bytes
    return total


def stats(rooms: Rooms, progress: Progress | None = None, *, with_gc: bool = True) -> Stats:
    """Look at everything in a store.

    Args:
        rooms: the store.
        progress: for people who wait.
        with_gc: ask a dry run of gc what it would free.

    Raises:
        UnavailableError: the store is out of reach.
        CorruptError: a part of it cannot be listed.
    """
    began = time.monotonic()
    now = time.time_ns()  # the store's own time is told by writing to it
    found = Stats(rooms.backend.where, rooms.descriptor.id, instants.to_text(now))
    walk = _Walk(rooms, found, now, progress or (lambda _size: None))
    try:
        walk.entries()
        walk.blobs()
        walk.beside()
    finally:
        walk.close()
    if with_gc:
        found.free = freeable(rooms)
    found.seconds = time.monotonic() - began
    return found


def freeable(rooms: Rooms) -> Freeable:
    """What a gc would free now."""
    try:
        report = gc.collect(rooms.backend, rooms.descriptor, None, gc.Options(dry_run=True), by="oarbank-cas stats")
    except BusyError as error:
        return Freeable(why_not=str(error))
    why_not = report.refused
    if report.doubts:
        why_not = f"{report.doubts[0].what}: {report.doubts[0].why}"
    return Freeable(
        _planned(report, "blobs condemned"),
        _planned(report, "fossils purged"),
        _planned(report, "entries expired"),
        why_not,
    )


def _planned(report: GcReport, action: str) -> Count:
    return Count(report.plan.count(action), report.plan.bytes(action))


class _Walk:
    """One look at a store. What is referred to is noted in a temporary database, so that memory stays small."""

    def __init__(self, rooms: Rooms, found: Stats, now_ns: int, progress: Progress) -> None:
        self._rooms = rooms
        self._backend = rooms.backend
        self._found = found
        self._now_ns = now_ns
        self._progress = progress
        self._db = sqlite3.connect("", isolation_level=None)
        self._db.execute(f"PRAGMA cache_size = -{_CACHE_KIB}")
        self._db.execute("PRAGMA journal_mode = OFF")
        self._db.execute("CREATE TABLE refs (digest BLOB, module TEXT, count INTEGER, size INTEGER)")
        self._db.execute("BEGIN")

    def close(self) -> None:
        """Forget everything."""
        self._db.close()

    def entries(self) -> None:
        """Look at every entry and tombstone."""
        for stat in self._backend.listing(layout.RESULTS):
            if not is_entry_name(stat.name):
                continue
            try:
                data, _ = self._backend.read(stat.name, codec.MAX_OBJECT)
                facts = facts_of(data, stat.time_ns, lambda digest: read_manifest(self._rooms.blobs, digest))
            except UnavailableError:
                raise
            except CasError:
                self._found.unreadable += 1
                continue
            self._entry(stat.size, facts)
            self._progress(stat.size)

    def _entry(self, size: int, facts: Facts) -> None:
        module = self._found.modules.setdefault(facts.module, Module())
        if facts.ended:
            module.tombstones.add(size)
            return
        module.entries.add(size)
        module.ages[age_of(facts.recorded_ns, self._now_ns)] += 1
        module.last_ns = max(module.last_ns, facts.recorded_ns)
        self._db.executemany(
            "INSERT INTO refs VALUES (?, ?, 1, ?)", ((ref.digest, facts.module, ref.size) for ref in facts.refs)
        )

    def _wanted(self) -> Iterator[tuple[str, list[tuple[str, int, int]]]]:
        """Each digest that is referred to, in order: by which modules, how often, and the size that is said."""
        rows = self._db.execute(
            "SELECT digest, module, count(*), max(size) FROM refs GROUP BY digest, module ORDER BY digest"
        )
        digest: bytes | None = None
        group: list[tuple[str, int, int]] = []
        while batch := rows.fetchmany(_BATCH):
            for found, module, count, size in batch:
                if digest is not None and found != digest:
                    yield digest.hex(), group
                    group = []
                digest = found
                group.append((module, count, size))
        if digest is not None:
            yield digest.hex(), group

    def blobs(self) -> None:
        """Look at every blob, beside what is referred to."""
        wanted = self._wanted()
        ahead = next(wanted, None)
        for stat in self._backend.listing(layout.BLOBS):
            digest = rules.blob_of(stat.name)
            if digest is None:
                continue
            while ahead is not None and ahead[0] < digest:
                self._referred(*ahead, standing=None)
                ahead = next(wanted, None)
            self._found.blobs.add(stat.size)
            self._found.sizes[size_class(stat.size)].add(stat.size)
            self._found.ages[age_of(stat.time_ns, self._now_ns)].add(stat.size)
            if ahead is not None and ahead[0] == digest:
                self._referred(*ahead, standing=stat.size)
                ahead = next(wanted, None)
            else:
                self._found.orphans.add(stat.size)
            self._progress(stat.size)
        while ahead is not None:
            self._referred(*ahead, standing=None)
            ahead = next(wanted, None)

    def _referred(self, digest: str, by: list[tuple[str, int, int]], standing: int | None) -> None:
        found = self._found
        if standing is None:
            try:
                standing = self._rooms.blobs.size_for_readers(digest)
            except CorruptError:
                standing = None
            if standing is None:
                found.missing += 1
            elif self._is_condemned(digest):
                found.distinct.add(standing)
        else:
            found.distinct.add(standing)
        for module, count, said in by:
            size = standing if standing is not None else max(said, 0)
            for total in (found.referenced, found.modules[module].referenced):
                total.count += count
                total.bytes += count * size
            found.modules[module].distinct.add(size)

    def _is_condemned(self, digest: str) -> bool:
        """Only its fossil is there; else it came in after the listing passed its name."""
        return self._backend.stat(layout.blob(digest)) is None

    def beside(self) -> None:
        """Look at fossils, damaged bytes and pins."""
        for stat in self._backend.listing(layout.FOSSILS):
            self._found.fossils.add(stat.size)
        for stat in self._backend.listing(layout.DAMAGED):
            self._found.damaged.add(stat.size)
        self._found.pins = sum(1 for _ in self._backend.listing(layout.PINS))
