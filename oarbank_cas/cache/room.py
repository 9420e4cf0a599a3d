"""Room in a cache: what may go to make some, and in which order; what dead processes left.

The budget counts blobs and claims together, under one lock of the index, so that all processes keep it as one. What may
not go: blobs that somebody holds, and blobs whose file has a second name, which is a hard link in a mount: the kernel
keeps that count, whoever was killed or whatever was removed meanwhile.
"""

from __future__ import annotations

import contextlib
import os
import stat
import time
from typing import TYPE_CHECKING

from oarbank_cas.backends import oscalls
from oarbank_cas.cache import folder as places

if TYPE_CHECKING:
    import sqlite3

    from oarbank_cas.cache.folder import CacheFolder
    from oarbank_cas.cache.index import Index

KEPT_S = 24 * 3600
"""Seconds for which the beginning of a blob is kept after its bringer died, for the next one to go on from."""

_PAGE = 256


class Room:
    """The room in one cache.

    Args:
        folder: the cache's directory.
        index: its index.
        budget: bytes that it may hold.
    """

    def __init__(self, folder: CacheFolder, index: Index, budget: int) -> None:
        self._folder = folder
        self._index = index
        self.budget = budget

    def claim(self, digest: str, size: int) -> bool:
        """Take room for a blob on its way in, evicting others; False where there is not enough that may go."""
        with self._index.transaction() as sql:
            sql.execute("DELETE FROM claims WHERE digest = ?", (digest,))  # a dead bringer's
            if not self._make(sql, size, self.budget):
                return False
            sql.execute("INSERT INTO claims VALUES (?, ?)", (digest, size))
        return True

    def trim(self, limit: int) -> None:
        """Evict until at most `limit` bytes are held, or nothing more may go; first what dead processes left."""
        with self._index.transaction() as sql:
            self._bury(sql, kept_s=0.0)
            self._evict(sql, limit)

    def bury(self, kept_s: float = KEPT_S) -> None:
        """Remove what dead processes left."""
        with self._index.transaction() as sql:
            self._bury(sql, kept_s)

    def _make(self, sql: sqlite3.Connection, size: int, budget: int) -> bool:
        if _held(sql) + size <= budget:
            return True
        self._evict(sql, budget - size)
        if _held(sql) + size > budget:
            self._bury(sql, kept_s=0.0)
            self._evict(sql, budget - size)
        return _held(sql) + size <= budget

    def _evict(self, sql: sqlite3.Connection, limit: int) -> None:
        """Remove the blobs that were used longest ago, until at most `limit` bytes are held.

        A file goes before its row: a row without a file is found out when it is used, a file without a row would not be
        counted.
        """
        # By the newest use there is, not by the clock, which may have been set back.
        (newest,) = sql.execute("SELECT coalesce(max(used), 0) FROM blobs").fetchone()
        began = later = max(newest + 1, time.time_ns())
        while (held := _held(sql)) > limit:
            page = sql.execute(
                "SELECT digest, size FROM blobs WHERE used < ? AND digest NOT IN "
                "(SELECT value FROM holds, json_each(holds.digests)) "
                "ORDER BY used LIMIT ?",
                (began, _PAGE),
            ).fetchall()
            if not page:
                return
            for digest, size in page:
                if held <= limit:
                    break
                if self._in_use(digest):
                    sql.execute("UPDATE blobs SET used = ? WHERE digest = ?", (later, digest))
                    later += 1
                else:
                    remove(self._folder, sql, digest)
                    held -= size

    def _in_use(self, digest: str) -> bool:
        try:
            st = os.lstat(self._folder.blob(digest))
        except OSError:
            return False
        return stat.S_ISREG(st.st_mode) and st.st_nlink > 1

    def _bury(self, sql: sqlite3.Connection, kept_s: float) -> None:
        for (owner,) in sql.execute("SELECT owner FROM holds").fetchall():
            if self._folder.is_dead(owner.partition(".")[0]):
                sql.execute("DELETE FROM holds WHERE owner = ?", (owner,))
        for (digest,) in sql.execute("SELECT digest FROM claims").fetchall():
            with self._folder.locked(self._folder.partial(digest) + ".lock", wait=False) as dead:
                if dead and not _is_young(self._folder.partial(digest), kept_s):
                    self._bury_claim(sql, digest)
        for name in os.listdir(self._folder.path(places.LIVE)):
            self._folder.is_dead(name)
        self._bury_partials(sql, kept_s)

    def _bury_claim(self, sql: sqlite3.Connection, digest: str) -> None:
        """End the claim of a dead bringer, who may have got as far as naming the blob."""
        with contextlib.suppress(FileNotFoundError):
            oscalls.unlink(self._folder.partial(digest))
        sql.execute("DELETE FROM claims WHERE digest = ?", (digest,))
        with contextlib.suppress(FileNotFoundError):
            st = os.lstat(self._folder.blob(digest))
            sql.execute("INSERT OR IGNORE INTO blobs VALUES (?, ?, '', ?)", (digest, st.st_size, st.st_ctime_ns))

    def _bury_partials(self, sql: sqlite3.Connection, kept_s: float) -> None:
        """Remove files in `partial/` that nobody brings: claims come before files, so these are of an older index."""
        claimed = {digest for (digest,) in sql.execute("SELECT digest FROM claims")}
        for name in os.listdir(self._folder.path(places.PARTIAL)):
            digest = name.removesuffix(".lock")
            path = self._folder.partial(digest)
            if digest not in claimed and not _is_young(path, kept_s):
                with self._folder.locked(path + ".lock", wait=False) as dead:
                    if dead:
                        with contextlib.suppress(FileNotFoundError):
                            oscalls.unlink(path)


def remove(folder: CacheFolder, sql: sqlite3.Connection, digest: str) -> None:
    """Remove a blob: its file, then its row."""
    with contextlib.suppress(FileNotFoundError):
        oscalls.unlink(folder.blob(digest))
    sql.execute("DELETE FROM blobs WHERE digest = ?", (digest,))


def _held(sql: sqlite3.Connection) -> int:
    return int(sql.execute("SELECT bytes FROM total").fetchone()[0])


def _is_young(path: str, kept_s: float) -> bool:
    try:
        return time.time() - os.lstat(path).st_mtime < kept_s
    except OSError:
        return False
