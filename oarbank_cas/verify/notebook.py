"""A verification's notes, in a database on this machine: what refers to what, what was found, and how far it came.

Memory stays small however large the store is. Kept in a file, the notes outlive a run that is killed: everything up to
the last `checkpoint` is there, and the next run goes on from it.
"""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple

from oarbank_cas.errors import ConflictError, InvalidInputError, StorageIOError
from oarbank_cas.verify.report import MAX_NAMED, MAX_PROBLEMS, REDO, Kind, Problem

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from oarbank_cas.gc.facts import Ref

_APPLICATION = 0x6F637632
_PAGE = 1000
_CACHE_KIB = 32 * 1024

_SCHEMA = f"""
PRAGMA application_id = {_APPLICATION};
CREATE TABLE IF NOT EXISTS meta (key TEXT PRIMARY KEY, value TEXT) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS roots (id INTEGER PRIMARY KEY, name BLOB);
CREATE TABLE IF NOT EXISTS refs (digest BLOB, size INTEGER, root INTEGER, live INTEGER);
CREATE TABLE IF NOT EXISTS problems (
    id INTEGER PRIMARY KEY, kind TEXT, name BLOB, detail BLOB, digest TEXT, aside INTEGER, healed INTEGER DEFAULT 0,
    moving INTEGER DEFAULT 0,
    UNIQUE (kind, name));
"""


class Wanted(NamedTuple):
    """A digest that something refers to.

    Attributes:
        digest: 64 hex digits.
        live: an entry or a pin does, not only what was ended.
        least: the smallest size that is said of it; None where none is.
        most: the largest.
    """

    digest: str
    live: bool
    least: int | None
    most: int | None

    def agrees(self, size: int) -> bool:
        """Whether everybody who says a size says this one."""
        return self.least is None or self.least == self.most == size


class Notebook:
    """The notes of one verification. Used by one thread.

    Args:
        path: a file to keep them in; None for a temporary one.
        identity: what must be the same for going on: the store and the options.

    Raises:
        InvalidInputError: the file is none of these, or of another verification.
        ConflictError: the file cannot be made.
    """

    def __init__(self, path: str | None, identity: dict[str, Any]) -> None:
        self._path = path
        self.resumed = False
        if path is not None:
            _check_file(path)
        try:
            self._db = sqlite3.connect(path or "", isolation_level=None, timeout=1.0)
            self._db.execute(f"PRAGMA cache_size = -{_CACHE_KIB}")
            if path is None:
                self._db.execute("PRAGMA journal_mode = OFF")
            else:
                self._db.execute("PRAGMA locking_mode = EXCLUSIVE")
            self._db.execute("BEGIN EXCLUSIVE")
            for statement in _SCHEMA.split(";\n"):
                self._db.execute(statement)
        except sqlite3.OperationalError as error:
            if "locked" in str(error):
                raise ConflictError(f"{path} is in use by another verify: wait for it, or name another file") from error
            raise ConflictError(f"cannot keep the state of the run in {path}: {error}") from error
        except sqlite3.DatabaseError as error:
            raise _foreign(path or "") from error
        self._identify(identity)

    def _identify(self, identity: dict[str, Any]) -> None:
        text = json.dumps(identity, sort_keys=True)
        known = self.get("identity")
        if known is None:
            self.set("identity", text)
            self.checkpoint()
        elif known != text:
            self._db.close()
            raise InvalidInputError(
                "is of a verification of another store, or with other options: name another file, or remove this one",
                self._path,
            )
        else:
            self.resumed = True

    def finish(self) -> None:
        """The verification is complete: nothing is left to go on with."""
        self._db.close()
        if self._path is not None:
            with contextlib.suppress(OSError):
                os.unlink(self._path)

    def close(self) -> None:
        """Keep what the last checkpoint had."""
        self._db.close()

    def checkpoint(self) -> None:
        """Make everything so far durable."""
        try:
            self._db.execute("COMMIT")
            self._db.execute("BEGIN")
        except sqlite3.OperationalError as error:
            raise StorageIOError(f"the state of the run cannot be kept: {error}; free some space") from error

    # -- how far it came

    def get(self, key: str) -> str | None:
        """A value by its key."""
        found = self._db.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
        return None if found is None else str(found[0])

    def set(self, key: str, value: str) -> None:
        """Keep a value."""
        self._db.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (key, value))

    def counts(self) -> Counter[str]:
        """What was counted."""
        return Counter(json.loads(self.get("counts") or "{}"))

    def keep_counts(self, counts: Counter[str]) -> None:
        """Keep what was counted."""
        self.set("counts", json.dumps(counts))

    # -- what refers to what

    def add_root(self, name: str, refs: Iterable[Ref], *, live: bool) -> None:
        """Note what an entry, a tombstone (not `live`) or a pin refers to."""
        root = self._db.execute("INSERT INTO roots (name) VALUES (?)", (_pack(name),)).lastrowid
        self._db.executemany(
            "INSERT INTO refs VALUES (?, ?, ?, ?)", ((digest, size, root, live) for digest, size in refs)
        )

    def index(self) -> None:
        """All roots are noted: from here on they are asked about."""
        self._db.execute("CREATE INDEX IF NOT EXISTS refs_digest ON refs (digest, live, size, root)")

    def wanted(self, after: str) -> Iterator[Wanted]:
        """Everything that is referred to, in the order of digests, from behind `after`."""
        last = bytes.fromhex(after)
        query = (
            "SELECT digest, max(live), min(CASE WHEN size >= 0 THEN size END), max(CASE WHEN size >= 0 THEN size END)"
            " FROM refs WHERE digest > ? GROUP BY digest ORDER BY digest LIMIT ?"
        )
        while rows := self._db.execute(query, (last, _PAGE)).fetchall():
            last = rows[-1][0]
            for digest, live, least, most in rows:
                yield Wanted(digest.hex(), bool(live), least, most)

    def roots_of(self, digest: str, not_of_size: int | None = None) -> tuple[list[str], int]:
        """The roots in force that need a digest: some of their names, and how many.

        Args:
            digest: which.
            not_of_size: only those that say another size.
        """
        where = "FROM refs JOIN roots ON roots.id = refs.root WHERE digest = ? AND live"
        values: list[Any] = [bytes.fromhex(digest)]
        if not_of_size is not None:
            where += " AND size >= 0 AND size != ?"
            values.append(not_of_size)
        count = self._db.execute(f"SELECT count(DISTINCT root) {where}", values).fetchone()[0]
        names = self._db.execute(f"SELECT DISTINCT name {where} LIMIT ?", [*values, MAX_NAMED]).fetchall()
        return [_unpack(name) for (name,) in names], int(count)

    # -- what was found

    def add_problem(self, problem: Problem, *, to_be_moved: bool = False) -> None:
        """Note a problem, once; and whether the object is to be set aside, as soon as this is durable."""
        self._db.execute(
            "INSERT OR IGNORE INTO problems (kind, name, detail, digest, aside, moving) VALUES (?, ?, ?, ?, ?, ?)",
            (problem.kind, _pack(problem.name), _pack(problem.detail), problem.digest, problem.aside, to_be_moved),
        )

    def to_be_moved(self) -> list[Problem]:
        """The problems whose objects are to be set aside."""
        rows = self._db.execute("SELECT id, kind, name, detail, digest, aside, healed FROM problems WHERE moving")
        return [self._problem(row) for row in rows.fetchall()]

    def moved(self, problem: Problem, became: Problem) -> None:
        """Note what became of an object that was to be set aside."""
        self._db.execute(
            "UPDATE OR REPLACE problems SET moving = 0, kind = ?, detail = ?, aside = ? WHERE kind = ? AND name = ?",
            (became.kind, _pack(became.detail), became.aside, problem.kind, _pack(problem.name)),
        )

    def healed(self, problem: Problem, how: str) -> None:
        """Note that a problem was put right."""
        self._db.execute(
            "UPDATE problems SET healed = 1, detail = ? WHERE kind = ? AND name = ?",
            (_pack(f"{problem.detail.removesuffix(f'; {REDO}')}; {how}"), problem.kind, _pack(problem.name)),
        )

    def unhealed(self, kinds: Iterable[str]) -> Iterator[list[Problem]]:
        """The problems of some kinds that were not put right, in groups."""
        wanted = json.dumps(list(kinds))
        last = 0
        while rows := self._db.execute(
            "SELECT id, kind, name, detail, digest, aside, healed FROM problems WHERE NOT healed AND id > ?"
            " AND kind IN (SELECT value FROM json_each(?)) ORDER BY id LIMIT 100",
            (last, wanted),
        ).fetchall():
            last = rows[-1][0]
            yield [self._problem(row) for row in rows]

    def forget(self, kind: Kind) -> None:
        """Take back what was told of one kind."""
        self._db.execute("DELETE FROM problems WHERE kind = ?", (kind,))

    def kinds(self) -> dict[str, int]:
        """How many problems of each kind there are."""
        return dict(self._db.execute("SELECT kind, count(*) FROM problems GROUP BY kind ORDER BY kind"))

    def healed_count(self) -> int:
        """How many problems were put right."""
        return int(self._db.execute("SELECT count(*) FROM problems WHERE healed").fetchone()[0])

    def problems(self) -> list[Problem]:
        """The first problems; what is only told comes last."""
        rows = self._db.execute(
            "SELECT id, kind, name, detail, digest, aside, healed FROM problems"
            " ORDER BY kind IN ('foreign', 'orphan'), id LIMIT ?",
            (MAX_PROBLEMS,),
        ).fetchall()
        return [self._problem(row) for row in rows]

    def _problem(self, row: tuple[Any, ...]) -> Problem:
        _, kind, name, detail, digest, aside, healed = row
        roots, count = self.roots_of(digest) if digest is not None and kind != "orphan" else ([], 0)
        return Problem(
            kind, _unpack(name), _unpack(detail), digest, bool(aside), bool(healed), tuple(sorted(roots)), count
        )


def _check_file(path: str) -> None:
    """A file of something else must not be written to."""
    try:
        with open(path, "rb") as file:
            head = file.read(72)
    except FileNotFoundError:
        return
    except OSError as error:
        raise ConflictError(f"cannot keep the state of the run in {path}: {error.strerror}") from error
    if head and not (head.startswith(b"SQLite format 3\0") and head[68:72] == _APPLICATION.to_bytes(4, "big")):
        raise _foreign(path)


def _foreign(path: str) -> InvalidInputError:
    return InvalidInputError("is no state of a verification: name another file, or remove this one", path)


def _pack(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _unpack(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")
