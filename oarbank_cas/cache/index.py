"""What a cache knows of its blobs: their notes and last uses, what is on its way in, and what is held. An SQLite file.

A *note* is what a blob's file looked like when its bytes were last known to be right (`note_of`). A file that looks the
same still holds them; one that does not is hashed before it is used. A *claim* is room taken for a blob on its way in.
A *hold* keeps a blob from being evicted while its owner lives.

The index is never needed: it is thrown away where it is damaged, and made again from the files that are there, each
with an empty note. Everything in `blobs/` has a row or a claim, so that the bytes on disk are never more than counted.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import sqlite3
import sys
import threading
import time
from typing import TYPE_CHECKING, NamedTuple

from oarbank_cas.cache import folder as places
from oarbank_cas.errors import CacheError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from oarbank_cas.cache.folder import CacheFolder

_VERSION = 2
_BUSY_S = 20.0
_DAMAGED = frozenset({"SQLITE_CORRUPT", "SQLITE_NOTADB", "SQLITE_IOERR_SHORT_READ", "SQLITE_FORMAT", "SQLITE_ERROR"})
"""The last where the tables are not those that are expected."""

_SCHEMA = """
CREATE TABLE blobs (digest TEXT PRIMARY KEY, size INTEGER NOT NULL, note TEXT NOT NULL, used INTEGER NOT NULL)
    WITHOUT ROWID;
CREATE INDEX by_use ON blobs (used);
CREATE TABLE claims (digest TEXT PRIMARY KEY, size INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE holds (owner TEXT PRIMARY KEY, digests TEXT NOT NULL);
CREATE TABLE total (bytes INTEGER NOT NULL);
INSERT INTO total VALUES (0);
CREATE TRIGGER blob_in AFTER INSERT ON blobs BEGIN UPDATE total SET bytes = bytes + new.size; END;
CREATE TRIGGER blob_out AFTER DELETE ON blobs BEGIN UPDATE total SET bytes = bytes - old.size; END;
CREATE TRIGGER claim_in AFTER INSERT ON claims BEGIN UPDATE total SET bytes = bytes + new.size; END;
CREATE TRIGGER claim_out AFTER DELETE ON claims BEGIN UPDATE total SET bytes = bytes - old.size; END;
"""


class IndexLostError(CacheError):
    """The index was damaged and has been thrown away: the same call will find a new one."""


class IndexFullError(CacheError):
    """The disk has no room for a change of the index."""


class Row(NamedTuple):
    """What is known of a cached blob.

    Attributes:
        size: bytes.
        note: see the module's docstring; empty where nothing is known of its bytes.
    """

    size: int
    note: str


@functools.cache
def _boot() -> str:
    """This run of the system, where it says; what was not flushed before a power cut is doubted after it."""
    with contextlib.suppress(OSError), open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        return file.read().strip()
    return ""


def flushes_needed() -> bool:
    """Whether the system does not say when it was started, so that a blob must be durable before its note is."""
    return not _boot()


def note_of(st: os.stat_result) -> str:
    """The note of a file whose bytes are right and whose status is `st`."""
    changed = st.st_mtime_ns if sys.platform == "win32" else st.st_ctime_ns  # Windows' ctime is when it was made
    return f"{st.st_ino:x}-{st.st_size:x}-{st.st_mtime_ns:x}-{changed:x}-{_boot()}"


class Index:
    """The index of one cache; for all threads of a process, and of its forked children.

    Args:
        folder: the cache's directory.
    """

    def __init__(self, folder: CacheFolder) -> None:
        self._folder = folder
        self._connection: sqlite3.Connection | None = None
        self._file: tuple[int, int] | None = None
        self._pid = os.getpid()
        self._lock = threading.RLock()
        self._inherited: list[sqlite3.Connection] = []

    @contextlib.contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """Change the index, alone among all processes; undone where the body raises or the process dies.

        Raises:
            IndexLostError: it was damaged.
            CacheError: it cannot be used.
        """
        with self._connected() as connection:
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield connection
            except BaseException:
                connection.rollback()
                raise
            connection.commit()

    @contextlib.contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """Look at the index, as it is at one moment; raises as `transaction`."""
        with self._connected() as connection:
            connection.execute("BEGIN")
            try:
                yield connection
            finally:
                connection.rollback()

    @contextlib.contextmanager
    def _connected(self) -> Iterator[sqlite3.Connection]:
        """This process's connection, for one thread; what SQLite finds wrong comes as the package's own errors."""
        if self._pid != os.getpid():
            self._after_fork()
        with self._lock:
            try:
                yield self._opened()
            except sqlite3.Error as error:
                self._failed(error)

    # -- opening it

    def _after_fork(self) -> None:
        """Let the parent's connection be: SQLite forbids its use, and closing it would take away the parent's files."""
        if self._connection is not None:
            self._inherited.append(self._connection)
        self._connection, self._pid, self._lock = None, os.getpid(), threading.RLock()

    def _opened(self) -> sqlite3.Connection:
        if self._connection is not None and self._file == _file_at(self._folder.path(places.INDEX)):
            return self._connection
        try:
            return self._open()
        except FileNotFoundError as error:
            raise IndexLostError(f"{self._folder.where} was removed while it was opened ({error})") from error
        except OSError as error:
            self._folder.raise_for(error)

    def _open(self) -> sqlite3.Connection:
        path = self._folder.path(places.INDEX)
        self._disconnect()  # the cache was removed, or the index thrown away: there may be a new one
        self._folder.prepare()
        os.close(self._folder.open_shared(path))  # SQLite gives the files beside it the same permissions
        self._file = _file_at(path)
        connection = sqlite3.connect(path, timeout=_BUSY_S, isolation_level=None, check_same_thread=False)
        try:
            connection.execute("PRAGMA synchronous = NORMAL")
            if _version(connection) != _VERSION:
                with self._folder.locked(self._folder.path("index.lock"), keep=True):
                    self._initialise(connection)
        except BaseException:
            connection.close()
            raise
        self._connection = connection
        return connection

    def _initialise(self, connection: sqlite3.Connection) -> None:
        if _version(connection) == _VERSION:
            return
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("BEGIN IMMEDIATE")
        try:
            for kind, name in connection.execute(
                "SELECT type, name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite%'"
            ).fetchall():
                connection.execute(f"DROP {kind} {name}")
            for statement in _SCHEMA.replace("; END;", "; END;;").split(";\n"):
                connection.execute(statement.replace("END;", "END"))
            connection.executemany("INSERT INTO blobs VALUES (?, ?, '', ?)", _standing(self._folder.path(places.BLOBS)))
            connection.execute(f"PRAGMA user_version = {_VERSION}")
        except BaseException:
            connection.rollback()
            raise
        connection.commit()

    def _failed(self, error: sqlite3.Error) -> None:
        path = self._folder.path(places.INDEX)
        if getattr(error, "sqlite_errorname", "") in _DAMAGED or _file_at(path) != self._file:
            self._disconnect()
            self._throw_away(path)
            raise IndexLostError(f"{path} was damaged and is made anew ({error})") from error
        kind = IndexFullError if getattr(error, "sqlite_errorname", "") == "SQLITE_FULL" else CacheError
        raise kind(f"{path}: {error}") from error

    def discard(self) -> None:
        """Throw the index away, with its holds: what is cached will be hashed before it is used again."""
        with self._lock:
            self._disconnect()
            self._throw_away(self._folder.path(places.INDEX))

    def _throw_away(self, path: str) -> None:
        lock = self._folder.locked(self._folder.path("index.lock"), keep=True)
        with contextlib.suppress(OSError, CacheError), lock:
            if _file_at(path) == self._file:  # else another has made a new one already
                for name in (path, f"{path}-wal", f"{path}-shm"):
                    with contextlib.suppress(FileNotFoundError):
                        os.unlink(name)
        self._file = None

    def _disconnect(self) -> None:
        if self._connection is not None:
            with contextlib.suppress(sqlite3.Error):
                self._connection.close()
            self._connection = None

    def close(self) -> None:
        """Let it go."""
        if self._pid == os.getpid():
            with self._lock:
                self._disconnect()

    # -- single steps

    def rows(self, digests: Iterable[str]) -> dict[str, Row]:
        """What is known of those of `digests` that are there."""
        with self.reading() as sql:
            return _rows(sql, json.dumps(sorted(digests)))

    def use(self, digests: Iterable[str], owner: str | None = None) -> dict[str, Row]:
        """Note that these are used now, and hold them, present or not, where there is an owner; as `rows`."""
        wanted = json.dumps(sorted(digests))  # in the order of the table, which is several times faster
        with self.transaction() as sql:
            if owner is not None:
                # As one list, since only eviction looks into it.
                sql.execute("INSERT INTO holds VALUES (?, ?)", (owner, wanted))
            sql.execute(
                "UPDATE blobs SET used = ? WHERE digest IN (SELECT value FROM json_each(?))", (time.time_ns(), wanted)
            )
            return _rows(sql, wanted)

    def release(self, owner: str) -> None:
        """End an owner's holds."""
        with self.transaction() as sql:
            sql.execute("DELETE FROM holds WHERE owner = ?", (owner,))

    def enter(self, digest: str, size: int, note: str) -> None:
        """Turn a claim into a blob."""
        with self.transaction() as sql:
            sql.execute("DELETE FROM claims WHERE digest = ?", (digest,))
            sql.execute("DELETE FROM blobs WHERE digest = ?", (digest,))
            sql.execute("INSERT INTO blobs VALUES (?, ?, ?, ?)", (digest, size, note, time.time_ns()))

    def renote(self, notes: Mapping[str, str]) -> None:
        """Note how files of blobs look, by digest, now that their bytes are known to be right."""
        with self.transaction() as sql:
            sql.executemany(
                "UPDATE blobs SET note = ? WHERE digest = ?", [(notes[each], each) for each in sorted(notes)]
            )

    def unclaim(self, digest: str) -> None:
        """Give the room of a claim back."""
        with self.transaction() as sql:
            sql.execute("DELETE FROM claims WHERE digest = ?", (digest,))


def _rows(sql: sqlite3.Connection, wanted: str) -> dict[str, Row]:
    found = sql.execute(
        "SELECT digest, size, note FROM blobs WHERE digest IN (SELECT value FROM json_each(?))", (wanted,)
    )
    return {digest: Row(size, note) for digest, size, note in found}


def _version(connection: sqlite3.Connection) -> int:
    return int(connection.execute("PRAGMA user_version").fetchone()[0])


def _file_at(path: str) -> tuple[int, int] | None:
    try:
        st = os.stat(path)
    except OSError:
        return None
    return st.st_dev, st.st_ino


def _standing(blobs: str) -> Iterator[tuple[str, int, int]]:
    """Digest, size and last use, as far as the file tells it, of every blob that stands."""
    for group in os.scandir(blobs):
        if group.is_dir(follow_symlinks=False):
            for found in os.scandir(group.path):
                if places.is_blob_path(f"{group.name}/{found.name}"):
                    st = found.stat(follow_symlinks=False)
                    yield found.name, st.st_size, st.st_ctime_ns
