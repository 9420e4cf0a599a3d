"""What operators do with a cache: look at it, make it smaller, check all of it."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from oarbank_cas.cache import folder as places
from oarbank_cas.cache.index import IndexFullError
from oarbank_cas.cache.mounts import MountRecords

if TYPE_CHECKING:
    from collections.abc import Callable

    from oarbank_cas.cache.cache import Cache
    from oarbank_cas.cache.mounts import MountRecord

_PAGE = 1000


@dataclass(frozen=True, slots=True)
class Status:
    """What a cache holds.

    Attributes:
        where: its directory.
        budget: bytes that it may hold.
        size: bytes that it holds, and has taken room for.
        blobs: how many blobs are there.
        incoming: how many are on their way in.
        held: blobs that something is being placed from just now.
        linked: blobs that are hard links in mounts, and stay as long as these.
        oldest_use_ns: when the blob that goes next was last used, in nanoseconds since 1970; None where there is none.
        mounts: mounts that stand, of which there is a record.
    """

    where: str
    budget: int
    size: int
    blobs: int
    incoming: int
    held: int
    linked: int
    oldest_use_ns: int | None
    mounts: list[MountRecord]


@dataclass(frozen=True, slots=True)
class Freed:
    """What went out of a cache, and what is left.

    Attributes:
        removed: blobs that went.
        removed_size: their bytes.
        blobs: blobs that are left.
        size: their bytes, and those for which room is taken.
    """

    removed: int
    removed_size: int
    blobs: int
    size: int


@dataclass(slots=True)
class Checked:
    """What a check of all of a cache found.

    Attributes:
        blobs: blobs checked.
        size: their bytes.
        wrong: digests of blobs that were wrong, and are dropped.
        gone: digests of blobs that were not there any more.
        strays: paths below the cache that are no blobs of its; they are left alone.
    """

    blobs: int = 0
    size: int = 0
    wrong: list[str] = field(default_factory=list)
    gone: list[str] = field(default_factory=list)
    strays: list[str] = field(default_factory=list)


def status(cache: Cache) -> Status:
    """Look at a cache, which must be there.

    Raises:
        CacheError: it cannot be used; so do all below.
    """
    cache.folder.prepare(make=False)
    with cache.index.reading() as sql:
        (size,) = sql.execute("SELECT bytes FROM total").fetchone()
        blobs, oldest = sql.execute("SELECT count(*), min(used) FROM blobs").fetchone()
        (incoming,) = sql.execute("SELECT count(*) FROM claims").fetchone()
        (held,) = sql.execute("SELECT count(DISTINCT value) FROM holds, json_each(digests)").fetchone()
    linked = sum(1 for _, st in _files(cache) if st.st_nlink > 1)
    mounts = list(MountRecords(cache.folder).all())
    return Status(cache.folder.where, cache.budget, size, blobs, incoming, held, linked, oldest, mounts)


def trim(cache: Cache, limit: int | None = None) -> Freed:
    """Remove what dead processes left, and blobs, those used longest ago first; none that is in use.

    Args:
        cache: which.
        limit: bytes that it may hold then; its budget where None.
    """
    cache.folder.prepare(make=False)
    before, size_before = _count(cache)
    limit = cache.budget if limit is None else limit
    try:
        try:
            cache.room.trim(limit)
        except IndexFullError:
            cache.index.discard()  # which makes room for a new one, so that something can go at all
            cache.room.trim(limit)
    except OSError as error:
        cache.folder.raise_for(error)
    list(MountRecords(cache.folder).all())
    after, size_after = _count(cache)
    return Freed(max(0, before - after), max(0, size_before - size_after), after, size_after)


def verify(cache: Cache, progress: Callable[[int], None] | None = None) -> Checked:
    """Hash every blob; drop what is wrong.

    Args:
        cache: which.
        progress: called with the bytes of each.
    """
    cache.folder.prepare(make=False)
    found = Checked(strays=sorted(_adopt(cache)))
    after = ""
    while True:
        with cache.index.reading() as sql:
            page = sql.execute(
                "SELECT digest, size FROM blobs WHERE digest > ? ORDER BY digest LIMIT ?", (after, _PAGE)
            ).fetchall()
        if not page:
            return found
        for digest, size in page:
            there = os.path.lexists(cache.folder.blob(digest))
            found.blobs += 1
            found.size += size
            if not cache.examine(digest):
                (found.wrong if there else found.gone).append(digest)
            if progress is not None:
                progress(size)
        after = page[-1][0]


def _count(cache: Cache) -> tuple[int, int]:
    with cache.index.reading() as sql:
        (size,) = sql.execute("SELECT bytes FROM total").fetchone()
        (blobs,) = sql.execute("SELECT count(*) FROM blobs").fetchone()
    return int(blobs), int(size)


def _files(cache: Cache) -> list[tuple[str, os.stat_result]]:
    """Path below `blobs/` and status of everything there that is no folder of it."""
    found: list[tuple[str, os.stat_result]] = []
    root = cache.folder.path(places.BLOBS)
    for base, _, names in os.walk(root):
        for name in names:
            path = os.path.join(base, name)
            try:
                found.append((os.path.relpath(path, root), os.lstat(path)))
            except FileNotFoundError:
                continue  # evicted meanwhile
    return found


def _adopt(cache: Cache) -> list[str]:
    """Take files that stand as blobs, and are not known, for blobs in doubt; the paths of what is none."""
    strays: list[str] = []
    files: dict[str, int] = {}
    for path, st in _files(cache):
        digest = os.path.basename(path)
        if stat.S_ISREG(st.st_mode) and places.is_blob_path(path):
            files[digest] = st.st_size
        else:
            strays.append(f"{places.BLOBS}/{path}")
    with cache.index.transaction() as sql:
        for digest, size in files.items():
            if sql.execute("SELECT 1 FROM claims WHERE digest = ?", (digest,)).fetchone() is None:
                sql.execute("INSERT OR IGNORE INTO blobs VALUES (?, ?, '', 0)", (digest, size))
    return strays
