"""A run's working notes, in a temporary database on this machine: memory stays small, however large the store."""

from __future__ import annotations

import sqlite3
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from oarbank_cas.backends.base import ObjectStat
    from oarbank_cas.gc.facts import Facts, Ref

_CACHE_KIB = 48 * 1024
_BATCH = 500

_SCHEMA = """
PRAGMA journal_mode = OFF;
PRAGMA synchronous = OFF;
PRAGMA cache_size = -%d;
PRAGMA temp_store = FILE;
CREATE TABLE entries (
    id INTEGER PRIMARY KEY, name TEXT, validator TEXT, time INTEGER, size INTEGER, ended INTEGER, module TEXT,
    recorded INTEGER, used INTEGER, pinned INTEGER, expire INTEGER DEFAULT 0);
CREATE TABLE refs (digest BLOB, size INTEGER, manifest INTEGER, entry INTEGER);
CREATE TABLE hits (name TEXT PRIMARY KEY, day INTEGER) WITHOUT ROWID;
CREATE TABLE actions (
    id INTEGER PRIMARY KEY, what TEXT, name TEXT, validator TEXT, size INTEGER, time INTEGER);
CREATE INDEX actions_what ON actions (what, id);
CREATE TABLE seen (name TEXT PRIMARY KEY, moment TEXT) WITHOUT ROWID;
BEGIN;
"""


class Action(NamedTuple):
    """Something to do to one object: its name (or a digest), and what was known of it when it was decided."""

    name: str
    validator: str
    size: int
    time_ns: int


class Listed(NamedTuple):
    """An entry as retention sees it.

    Attributes:
        id: its number in the ledger.
        module: its module.
        recorded_ns: when it was recorded.
        used_ns: its last hit; when it was recorded, where there is none.
        pinned: a pin names it.
    """

    id: int
    module: str
    recorded_ns: int
    used_ns: int
    pinned: bool


class Standing(NamedTuple):
    """An entry or tombstone as the plan sees it."""

    name: str
    validator: str
    time_ns: int
    size: int
    ended: bool
    module: str
    pinned: bool
    expire: bool


class Ledger:
    """Notes of one run. Used by one thread."""

    def __init__(self) -> None:
        # The empty name is a database that is spilled to a file when it grows, and gone when it is closed.
        self.db = sqlite3.connect("", isolation_level=None, check_same_thread=False)
        self.db.executescript(_SCHEMA % _CACHE_KIB)

    def close(self) -> None:
        """Throw the notes away."""
        self.db.close()

    # -- the mark

    def add_entry(self, stat: ObjectStat, facts: Facts, *, pinned: bool) -> int:
        """Note an entry or tombstone; its number."""
        hit = self.db.execute("SELECT day FROM hits WHERE name = ?", (stat.name,)).fetchone()
        used = max(facts.recorded_ns, hit[0]) if hit else facts.recorded_ns
        row = (stat.name, stat.validator, stat.time_ns, stat.size, facts.ended, facts.module)
        cursor = self.db.execute(
            "INSERT INTO entries (name, validator, time, size, ended, module, recorded, used, pinned)"
            " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (*row, facts.recorded_ns, used, pinned),
        )
        assert cursor.lastrowid is not None
        return cursor.lastrowid

    def add_refs(self, refs: Iterable[Ref], manifests: Iterable[bytes], entry: int | None) -> None:
        """Note what a root reaches. `entry` is its number; None for a pin."""
        marked = frozenset(manifests)
        self.db.executemany(
            "INSERT INTO refs VALUES (?, ?, ?, ?)",
            ((digest, size, digest in marked, entry) for digest, size in refs),
        )

    def add_hits(self, hits: Iterable[tuple[str, int]]) -> None:
        """Note last hits: the entry's object name, and when, in nanoseconds."""
        self.db.executemany(
            "INSERT INTO hits VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET day = max(day, excluded.day)", hits
        )

    def live_hits(self) -> Iterator[tuple[str, int]]:
        """The last hit of every entry that stands."""
        self._index("entries", "name")
        yield from self.db.execute("SELECT h.name, h.day FROM hits h WHERE h.name IN (SELECT name FROM entries)")

    def reached(self) -> Iterator[tuple[str, bool]]:
        """Every reached digest in order, and whether it is a manifest."""
        for digest, manifest in self.db.execute(
            "SELECT digest, max(manifest) FROM refs GROUP BY digest ORDER BY digest"
        ):
            yield digest.hex(), bool(manifest)

    # -- retention

    def all_entries(self) -> Iterator[Standing]:
        """Every entry and tombstone."""
        rows = self.db.execute("SELECT name, validator, time, size, ended, module, pinned, expire FROM entries")
        yield from map(Standing._make, rows)

    def module_of(self, name: str) -> str | None:
        """The module of an entry."""
        self._index("entries", "name")
        found = self.db.execute("SELECT module FROM entries WHERE name = ?", (name,)).fetchone()
        return found[0] if found else None

    def entries(self, order: str) -> Iterator[Listed]:
        """The live entries, in an order: `newest` (within each module) or `used` (most recent first, pinned before)."""
        by = {"newest": "module, recorded DESC, name", "used": "pinned DESC, used DESC, recorded DESC, name"}[order]
        rows = self.db.execute(
            f"SELECT id, module, recorded, used, pinned FROM entries WHERE ended = 0 AND expire = 0 ORDER BY {by}"  # noqa: S608 - a constant
        )
        yield from map(Listed._make, rows)

    def expire(self, entries: Iterable[int]) -> None:
        """Note that these entries are to be ended."""
        self.db.executemany("UPDATE entries SET expire = 1 WHERE id = ?", ((number,) for number in entries))

    def marginal_bytes(self) -> Iterator[tuple[int | None, int]]:
        """The bytes that pins keep (None), then for each entry in the order `used` what keeping it costs above that.

        Each digest counts once: for the pins, or for the first entry that reaches it.
        """
        pinned = self.db.execute(
            "SELECT coalesce(sum(size), 0) FROM (SELECT max(max(size), 0) AS size FROM refs WHERE digest IN"
            " (SELECT digest FROM refs WHERE entry IS NULL) GROUP BY digest)"
        ).fetchone()
        yield None, int(pinned[0])
        self.db.execute(
            "CREATE TEMP TABLE IF NOT EXISTS ranks AS SELECT id AS entry, row_number() OVER"
            " (ORDER BY pinned DESC, used DESC, recorded DESC, name) AS rank FROM entries"
            " WHERE ended = 0 AND expire = 0"
        )
        self.db.execute("CREATE UNIQUE INDEX IF NOT EXISTS temp.by_entry ON ranks (entry)")
        yield from self.db.execute(
            "SELECT ranks.entry, coalesce(sum(first.size), 0) FROM ranks LEFT JOIN ("
            " SELECT max(max(size), 0) AS size, min(CASE WHEN refs.entry IS NULL THEN 0 ELSE r.rank END) AS rank"
            " FROM refs LEFT JOIN ranks r ON r.entry = refs.entry GROUP BY digest) AS first"
            " ON first.rank = ranks.rank GROUP BY ranks.rank ORDER BY ranks.rank"
        )

    # -- the plan

    def plan(self, what: str, name: str, validator: str = "", size: int = 0, time_ns: int = 0) -> None:
        """Note something to do."""
        self.db.execute(
            "INSERT INTO actions (what, name, validator, size, time) VALUES (?, ?, ?, ?, ?)",
            (what, name, validator, size, time_ns),
        )

    def planned(self, what: str) -> Iterator[list[Action]]:
        """What is to be done of one kind, in groups."""
        last = 0
        while rows := self.db.execute(
            "SELECT id, name, validator, size, time FROM actions WHERE what = ? AND id > ? ORDER BY id LIMIT ?",
            (what, last, _BATCH),
        ).fetchall():
            last = rows[-1][0]
            yield [Action(*row[1:]) for row in rows]

    def plans(self, what: str, prefix: str) -> bool:
        """Whether there is anything to do of one kind with an object whose name starts so; `prefix` ends with `/`."""
        self._index("actions", "name")
        found = self.db.execute(
            "SELECT 1 FROM actions WHERE name > ? AND name < ? AND what = ? LIMIT 1", (prefix, f"{prefix[:-1]}0", what)
        ).fetchone()
        return found is not None

    def has_plan(self) -> bool:
        """Whether there is anything to do."""
        return self.db.execute("SELECT 1 FROM actions LIMIT 1").fetchone() is not None

    def count(self, what: str) -> int:
        """How much is to be done of one kind."""
        found = self.db.execute("SELECT count(*) FROM actions WHERE what = ?", (what,)).fetchone()
        return int(found[0])

    # -- which fossils were seen, and when first

    def saw(self, name: str, moment: str | None) -> None:
        """Note a fossil. `moment` is when a completed run first saw it; None: it was this one."""
        self.db.execute("INSERT OR REPLACE INTO seen VALUES (?, ?)", (name, moment))

    def seen(self) -> Iterator[tuple[str, str | None]]:
        """Every fossil noted, in the order of names."""
        yield from self.db.execute("SELECT name, moment FROM seen ORDER BY name")

    def _index(self, table: str, column: str) -> None:
        self.db.execute(f"CREATE INDEX IF NOT EXISTS {table}_{column} ON {table} ({column})")
