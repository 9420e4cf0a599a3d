"""Where placed files come from: the store, or the machine's cache, which is filled first."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from typing import TYPE_CHECKING, Protocol

from oarbank_cas.agent.placing import READ_ONLY, new_file
from oarbank_cas.batches import in_order
from oarbank_cas.cache.cache import MTIME_NS, BusyElsewhere
from oarbank_cas.cache.index import Row, note_of
from oarbank_cas.cache.mounts import look_of
from oarbank_cas.cache.reads import CachedBlobs
from oarbank_cas.errors import CacheError, ConflictError
from oarbank_cas.progress import steps

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from oarbank_cas.agent.workdir import Folder
    from oarbank_cas.blobs import Blobs
    from oarbank_cas.cache.carrying import Placement
    from oarbank_cas.cache.mounts import Placed
    from oarbank_cas.contracts.manifest import FileRef
    from oarbank_cas.progress import Progress, Step

_TRIES = 3
_SMALL = 128 * 1024


class Supply(Protocol):
    """A source of placed files.

    Attributes:
        placed: what it has placed, as far as a record of it is worth while.
        at_once: files that are best brought at once.
        known: sizes of blobs for which the store need not be asked.
    """

    placed: list[Placed]
    at_once: int
    known: Mapping[str, int]

    def fill(self) -> None:
        """Get ready: what is better done for all files at once than one by one."""

    def bring(self, inside: Folder, name: str, file: FileRef, mode: int) -> None:
        """See `placing.Bring`."""


@contextlib.contextmanager
def supply_for(
    blobs: Blobs, files: Sequence[FileRef], placement: Placement, progress: Progress | None
) -> Iterator[Supply]:
    """What brings these files: out of the cache, where there is one, which keeps them until this ends.

    The store is not asked for any yet.

    Args:
        blobs: the store's blobs, or a cache before them.
        files: what is to be placed.
        placement: how; of no consequence where there is no cache.
        progress: who is told of each file placed.
    """
    step = steps(progress, lambda: sum(file.size for file in files))
    with contextlib.ExitStack() as stack:
        supply: Supply = FromStore(blobs, step)
        if isinstance(blobs, CachedBlobs) and files and not blobs.resting:
            with blobs.sparing():
                rows = stack.enter_context(blobs.cache.holding({file.digest for file in files}))
                supply = cached = FromCache(blobs, files, rows, placement, step)
                stack.callback(cached.note_links)
        yield supply


class FromStore:
    """Files written with bytes from the store.

    Args:
        blobs: the store's blobs.
        progress: called with the bytes of each.
    """

    def __init__(self, blobs: Blobs, progress: Step | None) -> None:
        self._blobs = blobs
        self._progress = progress
        self.placed: list[Placed] = []
        self.at_once = max(blobs.requests_at_once, os.cpu_count() or 1)
        self.known: Mapping[str, int] = {}

    def fill(self) -> None:
        """See `Supply.fill`: nothing."""

    def bring(self, inside: Folder, name: str, file: FileRef, mode: int) -> None:
        """See `placing.Bring`."""
        fd = new_file(inside, name, mode)
        try:
            self._blobs.copy_to(file.digest, fd, os.path.join(inside.path, name))
        finally:
            os.close(fd)
        if self._progress is not None:
            self._progress(file.size)


class FromCache:
    """Files linked to cached blobs, or written with their bytes; those that the cache cannot give, from the store.

    Args:
        blobs: the store's blobs, and the cache before them.
        files: all that may be wanted.
        rows: what the cache has of them, and keeps; completed by `fill`.
        placement: how.
        progress: called with the bytes of each.
    """

    def __init__(
        self,
        blobs: CachedBlobs,
        files: Sequence[FileRef],
        rows: dict[str, Row],
        placement: Placement,
        progress: Step | None,
    ) -> None:
        self._blobs = blobs
        self._cache = blobs.cache
        self._files = files
        self._rows = rows
        self._placement = placement
        self._progress = progress
        self.placed: list[Placed] = []
        self.relinked: dict[str, Row] = {}
        # Small files are the interpreter's work, which threads only slow down.
        self.at_once = 1 if sum(file.size for file in files) < _SMALL * len(files) else os.cpu_count() or 1
        self.known: Mapping[str, int] = {digest: row.size for digest, row in rows.items()}

    def fill(self) -> None:
        """See `Supply.fill`: what is absent is brought in; what other processes are bringing comes last."""
        wanted = {file.digest: file.size for file in self._files if file.digest not in self._rows}
        if wanted:
            with self._blobs.sparing():
                self._fill_all(wanted)

    def _fill_all(self, wanted: dict[str, int]) -> None:
        wanted = {digest: size for digest, size in wanted.items() if size <= self._cache.budget}
        at_once = max(self._blobs.requests_at_once, os.cpu_count() or 1)

        def try_one(item: tuple[str, int]) -> tuple[str, int] | None:
            try:
                self._fill_one(*item, wait=False)
            except BusyElsewhere:
                return item
            return None

        left = [item for item in in_order(try_one, wanted.items(), at_once) if item is not None]
        for _ in in_order(lambda item: self._fill_one(*item, wait=True), left, at_once):
            pass

    def _fill_one(self, digest: str, size: int, *, wait: bool) -> None:
        fd = self._cache.fill(digest, size, self._blobs.fetch, wait=wait)
        if fd is not None:
            self._rows[digest] = Row(size, note_of(os.fstat(fd)))
            os.close(fd)

    def bring(self, inside: Folder, name: str, file: FileRef, mode: int) -> None:
        """See `placing.Bring`."""
        if not (self._placement == "hardlink" and mode == READ_ONLY and self._link(inside, name, file)):
            self._copy(inside, name, file, mode)
        if self._progress is not None:
            self._progress(file.size)

    def _copy(self, inside: Folder, name: str, file: FileRef, mode: int) -> None:
        fd = new_file(inside, name, mode)
        try:
            self._write(file, fd, f"{inside.path}{os.sep}{name}")
            self.placed.append((file.path, file.digest, file.size, look_of(os.fstat(fd)), False))
        finally:
            os.close(fd)

    def _write(self, file: FileRef, fd: int, label: str) -> None:
        source = self._open(file)
        if source is not None:
            try:
                if self._blobs.carry(file.digest, source, fd, label, self._placement) is not None:
                    return
            finally:
                os.close(source)
        self._blobs.straight.copy_to(file.digest, fd, label)

    def _open(self, file: FileRef, *, noting: bool = True) -> int | None:
        """The cached blob, brought anew where it was found wrong; None where the store is to be read."""
        row = self._rows.get(file.digest)
        if row is None or self._blobs.resting:
            return None
        try:
            fd = self._cache.open_known(file.digest, row, noting=noting)
            return fd if fd is not None else self._cache.fill(file.digest, file.size, self._blobs.fetch)
        except CacheError as error:
            self._blobs.rest(error)
            return None

    def note_links(self) -> None:
        """Note what linked files look like now: to make a link changes the time of the last change."""
        if self.relinked and not self._blobs.resting:
            with self._blobs.sparing():
                self._cache.renote({digest: row.note for digest, row in self.relinked.items()})

    def _link(self, inside: Folder, name: str, file: FileRef) -> bool:
        """Link the cached blob, surely right and read-only; False where it is to be copied."""
        row = self._rows.get(file.digest)
        if row is None or not file.size:
            return False
        path = self._cache.folder.blob(file.digest)
        for _ in range(_TRIES):
            try:
                before = os.lstat(path)
            except OSError:
                before = None
            if before is None or note_of(before) != row.note:
                fd = self._open(file, noting=False)
                if fd is None:
                    return False
                before = os.fstat(fd)
                os.close(fd)
            if before.st_mtime_ns != MTIME_NS or before.st_mode & 0o333:
                return False  # it cannot be told from one that a job has written to, or written to again
            try:
                if not self._blobs.carrier.link(path, inside.at(name), inside.fd, before.st_dev, inside.device):
                    return False
            except OSError as error:
                if error.errno == errno.ENOENT:
                    continue
                raise ConflictError(f"cannot create {os.path.join(inside.path, name)}: {error.strerror}") from error
            after = inside.lstat(name)
            if after is not None and stat.S_ISREG(after.st_mode) and _same(before, after):
                self.placed.append((file.path, file.digest, file.size, look_of(after), True))
                self._rows[file.digest] = self.relinked[file.digest] = Row(file.size, note_of(after))
                return True
            os.unlink(inside.at(name), dir_fd=inside.fd)  # another file had got the cached one's name
        return False


def _same(before: os.stat_result, after: os.stat_result) -> bool:
    return os.path.samestat(before, after) and (before.st_size, before.st_mtime_ns) == (
        after.st_size,
        after.st_mtime_ns,
    )
