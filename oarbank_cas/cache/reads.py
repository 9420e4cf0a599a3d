"""Reading blobs through the machine's cache. Where the cache has trouble, reads go straight to the store."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import time
from typing import TYPE_CHECKING, NoReturn

from oarbank_cas.backends.base import ObjectStat, Reader
from oarbank_cas.blobs import BlobReader, Blobs
from oarbank_cas.cache.cache import MTIME_NS
from oarbank_cas.cache.carrying import Carrier, Placement
from oarbank_cas.errors import CacheError, StorageIOError
from oarbank_cas.sources import is_unchanged
from oarbank_cas.transfer import empty, hash_file

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from oarbank_cas.backends.base import Backend
    from oarbank_cas.cache.cache import Cache
    from oarbank_cas.cache.index import Row

_LOG = logging.getLogger("oarbank_cas.cache")

REST_S = 60.0
"""Seconds for which a cache that had trouble is left alone: the trouble may end, and costs no job more than this."""

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""What the target of a copy answers when it is full."""

_CACHED = "cached"


class CachedBlobs(Blobs):
    """The blobs of a store, read through a cache. Only reads differ; nothing here says what the store itself has.

    Args:
        backend: the store's storage.
        session_s: the store's session, in seconds.
        straight: the same blobs, without the cache.
        cache: the cache.
    """

    def __init__(self, backend: Backend, session_s: int, straight: Blobs, cache: Cache) -> None:
        super().__init__(backend, session_s)
        self.straight = straight
        self.cache = cache
        self.carrier = Carrier()
        self._rests_until = 0.0
        self._warned: set[str] = set()

    # -- trouble

    @property
    def resting(self) -> bool:
        """Whether the cache had trouble a moment ago, and is left alone."""
        return time.monotonic() < self._rests_until

    @contextlib.contextmanager
    def sparing(self) -> Iterator[None]:
        """Say once what trouble the cache has, and leave it alone for a while; the body ends there."""
        try:
            yield
        except CacheError as error:
            self.rest(error)

    def rest(self, error: CacheError) -> None:
        """Say once what trouble the cache has, and leave it alone for a while."""
        self._rests_until = time.monotonic() + REST_S
        if str(error) not in self._warned:
            self._warned.add(str(error))
            _LOG.warning("the cache is not used, reads go straight to the store: %s", error)

    # -- reads

    def fetch(self, digest: str, fd: int, label: str) -> int:
        """Bring a blob from the store, going on from what another began; see `cache.Fetch`."""
        return self.straight.copy_to(digest, fd, label, resume=True)

    def _open_cached(self, digest: str) -> int | None:
        """A descriptor of a cached blob, brought in first where it is not there; None where the store is to be read."""
        if self.resting:
            return None
        fd: int | None = None
        with self.sparing():
            fd = self.cache.open(digest)
            if fd is None:
                size = self.straight.size_for_readers(digest)
                if size is not None and size <= self.cache.budget:
                    fd = self.cache.fill(digest, size, self.fetch)
        return fd

    def open(self, digest: str) -> BlobReader:
        """See `Blobs.open`."""
        fd = self._open_cached(digest)
        if fd is None:
            return self.straight.open(digest)
        return BlobReader(self, digest, _CachedReader(digest, fd))

    def get_bytes(self, digest: str, max_bytes: int | None = None) -> bytes:
        """See `Blobs.get_bytes`."""
        try:
            return super().get_bytes(digest, max_bytes)
        except _SpoiltError:
            with self.straight.open(digest) as reader:
                return reader.readall() or b""

    def read_range(self, digest: str, start: int, length: int) -> bytes:
        """See `Blobs.read_range`. Out of the cache, into which the whole blob comes first, they are verified bytes."""
        fd = self._open_cached(digest)
        if fd is not None:
            before = os.fstat(fd)
            with contextlib.suppress(OSError), os.fdopen(fd, "rb") as file:
                file.seek(start)
                data = file.read(length)
                # A part cannot be hashed: of a file that may have been written to since it was opened none is used.
                if before.st_mtime_ns == MTIME_NS and is_unchanged(before, os.fstat(fd)):
                    return data
        return self.straight.read_range(digest, start, length)

    def copy_to(self, digest: str, fd: int, label: str, *, resume: bool = False) -> int:
        """See `Blobs.copy_to`. Bytes that were verified on their way into the cache are not again."""
        source = self._open_cached(digest)
        if source is not None:
            empty(fd)
            resume = False
            try:
                size = self.carry(digest, source, fd, label)
            finally:
                os.close(source)
            if size is not None:
                return size
        return self.straight.copy_to(digest, fd, label, resume=resume)

    def carry(self, digest: str, source: int, fd: int, label: str, placement: Placement = "auto") -> int | None:
        """Copy an open cached blob to an open, empty file; None where that failed, and the store is to be read.

        Raises:
            StorageIOError: the file's disk is full.
        """
        before = os.fstat(source)
        try:
            self.carrier.carry(source, fd, before.st_size, before.st_dev, placement)
        except OSError as error:
            if error.errno in FULL:
                raise StorageIOError(f"{label}: {error.strerror}; free some space and run this again") from error
            return None
        if not is_unchanged(before, os.fstat(source)):
            # Written, or only linked, while it was copied.
            return before.st_size if hash_file(fd)[0] == digest else None
        return before.st_size

    def size_for_readers(self, digest: str) -> int | None:
        """See `Blobs.size_for_readers`."""
        return next(self.sizes_for_readers([digest]))

    def sizes_for_readers(self, digests: Iterable[str]) -> Iterator[int | None]:
        """See `Blobs.sizes_for_readers`; the store is only asked for what is not cached."""
        wanted = list(digests)
        rows: dict[str, Row] = {}
        if not self.resting:
            with self.sparing():
                rows = self.cache.rows(wanted)
        if not rows:
            yield from self.straight.sizes_for_readers(wanted)
            return
        others = self.straight.sizes_for_readers([digest for digest in wanted if digest not in rows])
        for digest in wanted:
            yield rows[digest].size if digest in rows else next(others)

    def condemn_damaged(self, digest: str, stat: ObjectStat, actual: str) -> NoReturn:
        """See `Blobs.condemn_damaged`; a wrong copy in the cache is dropped."""
        if stat.validator != _CACHED:
            super().condemn_damaged(digest, stat, actual)
        with self.sparing():
            self.cache.examine(digest)
        raise _SpoiltError(
            f"the cached copy of blob {digest} was changed while it was read, and is dropped: run this again"
        )


class _SpoiltError(StorageIOError):
    """A cached copy was written to while it was read."""


class _CachedReader(Reader):
    """A cached blob's bytes."""

    def __init__(self, digest: str, fd: int) -> None:
        st = os.fstat(fd)
        self.stat = ObjectStat(digest, st.st_size, st.st_mtime_ns, _CACHED)
        self._file = os.fdopen(fd, "rb", buffering=0)

    def read(self, size: int) -> bytes:
        try:
            return self._file.read(size)
        except OSError as error:
            raise StorageIOError(f"the cached copy of blob {self.stat.name}: {error.strerror}") from error

    def readinto(self, buffer: memoryview) -> int:
        try:
            return self._file.readinto(buffer) or 0
        except OSError as error:
            raise StorageIOError(f"the cached copy of blob {self.stat.name}: {error.strerror}") from error

    def close(self) -> None:
        self._file.close()
