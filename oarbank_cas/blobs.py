"""Blobs as they stand in the store: which are there, and their bytes, verified on every full read.

A reader finds a blob under its name or, while gc is at work, among its fossils (`_open` below). Bytes that do not hash
to their name are moved to `damaged/`, for people, and are never served again.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import io
import itertools
import os
import secrets
import stat
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn, TypeVar

from oarbank_cas import layout
from oarbank_cas.absent import FEW, WINDOW, absent, present
from oarbank_cas.batches import in_order
from oarbank_cas.contracts.canonical import check_digest
from oarbank_cas.errors import CasError, ConflictError, CorruptError, NotFoundError, StorageIOError
from oarbank_cas.presence import Presence
from oarbank_cas.transfer import LARGE, copy_hashing, download, empty, hash_file, hash_reader

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from oarbank_cas.backends.base import Backend, ObjectStat, Reader

_Found = TypeVar("_Found")

CHUNK = 2**20
"""Bytes that one step of reading and hashing takes."""


@dataclass(frozen=True, slots=True)
class Blob:
    """A blob in the store.

    Attributes:
        digest: lowercase hex SHA-256 of its bytes.
        size: bytes.
        new: whether the call that answers this brought it in; False where it was there before.
        time_ns: when it came into the store, in the store's own time; None where that was not asked for.
    """

    digest: str
    size: int
    new: bool = False
    time_ns: int | None = None


class BlobReader(io.RawIOBase):
    """A blob's bytes from its first to its last. The read that would hand out the end of wrong bytes raises instead.

    Raises:
        CorruptError: from `read` and its kin, at the end, where the bytes do not hash to the digest.
    """

    def __init__(self, blobs: Blobs, digest: str, reader: Reader) -> None:
        super().__init__()
        self.digest = digest
        self.size = reader.stat.size
        self._blobs = blobs
        self._reader = reader
        self._hash = hashlib.sha256()
        self._position = 0

    def readable(self) -> bool:
        """True."""
        return True

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]
        """Read up to `len(buffer)` bytes; 0 at the end, which is reached only by right bytes."""
        if not len(buffer):
            return 0
        view = memoryview(buffer).cast("B")
        count = self._reader.readinto(view)
        self._hash.update(view[:count])
        self._position += count
        if self._position >= self.size or count == 0:
            actual = self._hash.hexdigest()
            if actual != self.digest:
                self._blobs.condemn_damaged(self.digest, self._reader.stat, actual)
        return count

    def close(self) -> None:
        """Release the blob."""
        if not self.closed:
            self._reader.close()
        super().close()


class Blobs:
    """The blobs of one store.

    Args:
        backend: the store's storage.
        session_s: the store's session, in seconds.
    """

    def __init__(self, backend: Backend, session_s: int) -> None:
        self._backend = backend
        self._session_s = session_s
        self._ranging = threading.Lock()
        self.on_gone: Callable[[], None] = lambda: None
        """Called when a blob that was to be read is absent or damaged: what was seen present may be so no more."""

    @property
    def requests_at_once(self) -> int:
        """Blobs that are best asked for, or brought, at once."""
        return self._backend.requests_at_once

    def stat(self, digest: str) -> Blob | None:
        """Size and time of a blob; None where it is absent.

        Raises:
            InvalidInputError: `digest` is not 64 lowercase hex digits.
        """
        found = self._backend.stat(layout.blob(check_digest(digest, "digest")))
        return Blob(digest, found.size, time_ns=found.time_ns) if found else None

    def has(self, digest: str) -> bool:
        """Whether a blob is there."""
        return self.stat(digest) is not None

    def missing(self, digests: Iterable[str], list_cost: float | None = None) -> list[str]:
        """Those of `digests` that are absent, each once, in the order given.

        Args:
            digests: any number.
            list_cost: what listing a shard costs, where asking for one blob costs 1; None finds it out.
        """
        wanted = dict.fromkeys(check_digest(digest, "digest") for digest in digests)
        return list(absent(self._backend, wanted, list_cost))

    def size_for_readers(self, digest: str) -> int | None:
        """The size of what a reader of `digest` would get, blob or fossil; None where there is nothing.

        Not for writers: a fossil may be purged while they rely on it.
        """
        found = self._search(digest, self._backend.stat) or self._backend.stat(layout.blob(digest))
        return found.size if found else None

    def sizes_for_readers(self, digests: Iterable[str]) -> Iterator[int | None]:
        """Like `size_for_readers` for each, in order; from afar several at once, or by lists where that is cheaper."""
        at_once = self._backend.requests_at_once
        if at_once <= 1:
            yield from map(self.size_for_readers, digests)
            return
        waiting = iter(digests)
        while window := list(itertools.islice(waiting, WINDOW)):
            there = present(self._backend, list(dict.fromkeys(window))) if len(window) > FEW else {}
            # What does not stand under its name may be among the fossils.
            yield from in_order(lambda digest: there.get(digest) or self.size_for_readers(digest), window, at_once)  # noqa: B023 - used up before the next

    def revive(self, digest: str) -> ObjectStat | None:
        """Bring a condemned blob back under its name, with a fresh time, and keep its fossil; None where there is none.

        The bytes are checked first: what goes back must be the blob.
        """
        for fossil in self._fossils(digest):
            with contextlib.suppress(NotFoundError, CorruptError):
                with BlobReader(self, digest, self._backend.open(fossil.name)) as reader:
                    while reader.read(CHUNK):
                        pass
                self._backend.copy(fossil.name, layout.blob(digest))
                return self._backend.stat(layout.blob(digest))
        return None

    def _fossils(self, digest: str) -> Iterator[ObjectStat]:
        prefix = layout.fossil_prefix(digest)
        for found in self._backend.listing(prefix, after=prefix + digest):
            if not found.name.startswith(f"{prefix}{digest}."):
                return
            yield found

    def _open(self, digest: str, start: int = 0) -> Reader:
        def look(name: str) -> Reader | None:
            try:
                return self._backend.open(name, start)
            except NotFoundError:
                return None

        return self._required(digest, look)

    def _required(self, digest: str, look: Callable[[str], _Found | None]) -> _Found:
        found = self._search(check_digest(digest, "digest"), look)
        if found is None:
            self.on_gone()
            raise NotFoundError(f"blob {digest} is not in the store {self._backend.where}")
        return found

    def _search(self, digest: str, look: Callable[[str], _Found | None]) -> _Found | None:
        """What `look` finds under the blob's name, or under one of its fossils'.

        A slow look, or a fossil that went under it, may have missed the blob on its way back: then again.
        """
        while True:
            began = Presence.moment()
            found = look(layout.blob(digest))
            if found is not None:
                return found
            vanished = False
            for fossil in self._fossils(digest):
                found = look(fossil.name)
                if found is not None:
                    return found
                vanished = True
            # By both clocks: one of them stops while a laptop sleeps, the other may be set.
            took = max(now - then for now, then in zip(Presence.moment(), began, strict=True))
            if not vanished and took < self._session_s:
                return None

    def open(self, digest: str) -> BlobReader:
        """A blob's bytes as a binary stream, verified at its end.

        Raises:
            NotFoundError: it is absent.
        """
        return BlobReader(self, digest, self._open(digest))

    def open_range(self, digest: str, start: int) -> Reader:
        """A blob's bytes from `start` on, as they are stored: a part of a blob cannot be verified."""
        return self._open(digest, start)

    def get_bytes(self, digest: str, max_bytes: int | None = None) -> bytes:
        """A blob's verified bytes.

        Args:
            digest: which.
            max_bytes: a larger blob is refused unread.

        Raises:
            NotFoundError: it is absent.
            CorruptError: its bytes are wrong (and are set aside), or more than `max_bytes`.
        """
        with self.open(digest) as reader:
            if max_bytes is not None and reader.size > max_bytes:
                raise CorruptError(f"blob {digest} has {reader.size} bytes where at most {max_bytes} are expected")
            return reader.readall() or b""

    def read_range(self, digest: str, start: int, length: int) -> bytes:
        """Some of a blob's bytes, as they are stored; fewer than `length` where it ends before.

        Raises:
            NotFoundError: it is absent.
        """

        def look(name: str) -> bytes | None:
            try:
                return self._backend.read_range(name, start, length)
            except NotFoundError:
                return None

        return self._required(digest, look)

    def copy_to(self, digest: str, fd: int, label: str, *, resume: bool = False) -> int:
        """Write a blob's verified bytes to an open file; how many bytes.

        Blocks are shared with the store where both can (reflink), and then hashed from the file. From afar a large blob
        comes in several ranges at once; where several come already, each of the others in one piece, which is the least
        work and holds little in memory. On an error the file holds a beginning of the blob, or rubbish.

        Args:
            digest: which.
            fd: open for reading and writing. What it holds is replaced.
            label: the file's name, for messages.
            resume: what the file holds may be a beginning of this blob, and is kept if it is.

        Raises:
            NotFoundError, CorruptError: as `get_bytes`.
            StorageIOError: the file cannot be written.
        """
        with self._open(digest) as reader:
            stat = reader.stat
            try:
                begun = resume and os.fstat(fd).st_size > 0
                afar = self._backend.requests_at_once > 1 and stat.size >= LARGE
                if afar and self._ranging.acquire(blocking=begun):
                    try:
                        reader.close()
                        actual = self._download(digest, stat.size, fd, label, resume=resume)
                        size = stat.size
                    finally:
                        self._ranging.release()
                else:
                    empty(fd)
                    actual, size = hash_file(fd) if self._clone(stat.name, fd) else copy_hashing(reader, fd)
            except OSError as error:
                raise StorageIOError(f"{label}: {error.strerror}") from error
            if actual != digest:
                self.condemn_damaged(digest, stat, actual)
            return size

    def _download(self, digest: str, size: int, fd: int, label: str, *, resume: bool) -> str:
        def read(start: int, length: int) -> bytes:
            return self.read_range(digest, start, length)

        if not resume:
            empty(fd)
        begun = os.fstat(fd).st_size > 0
        actual = download(read, size, fd, label, self._backend.requests_at_once)
        if actual != digest and begun:
            # What the file held may have been anything: that is no fault of the blob's.
            empty(fd)
            actual = download(read, size, fd, label, self._backend.requests_at_once)
        return actual

    def _clone(self, name: str, fd: int) -> bool:
        try:
            return self._backend.clone(name, fd)
        except NotFoundError:
            return False  # gc moved it away since it was opened: what is open can still be read

    def check(self, digest: str) -> bool:
        """Read a blob whole; whether right bytes are there. Wrong ones are set aside."""
        try:
            with self.open(digest) as reader:
                while reader.read(CHUNK):
                    pass
        except (CorruptError, NotFoundError):
            return False
        return True

    def get_file(self, digest: str, path: str | os.PathLike[str]) -> int:
        """Write a blob to the file `path`, in the place of what is there; how many bytes.

        Wrong or partial bytes never get that name.

        Raises:
            NotFoundError, CorruptError: as `get_bytes`.
            ConflictError: the file cannot be created there.
            StorageIOError: writing failed.
        """
        target = os.path.abspath(path)
        check_replaceable(target)
        partial = os.path.join(os.path.dirname(target), f".oarbank-cas-{secrets.token_hex(8)}")
        try:
            fd = os.open(partial, os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), 0o666)
        except OSError as error:
            raise ConflictError(f"cannot create {target}: {error.strerror}") from error
        try:
            try:
                size = self.copy_to(digest, fd, target)
                os.fsync(fd)
            finally:
                os.close(fd)
            os.replace(partial, target)
        except BaseException as error:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(partial)
            if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EIO):
                raise StorageIOError(f"{target}: {error.strerror}") from error
            if isinstance(error, OSError):
                raise ConflictError(f"cannot create {target}: {error.strerror}") from error
            raise
        return size

    def condemn_damaged(self, digest: str, stat: ObjectStat, actual: str) -> NoReturn:
        """Set the object aside that was found not to hold blob `digest`, and raise.

        It is read once more first: a fault of this machine's memory must not cost the store a good blob.

        Raises:
            CorruptError: always, but for
            StorageIOError: the second reading was right.
        """
        aside = "it is gone already"
        with contextlib.suppress(NotFoundError):
            with self._backend.open(stat.name) as reader:
                unchanged = reader.stat.validator == stat.validator
                again, _ = hash_reader(reader)
            if again == digest and unchanged:
                raise StorageIOError(
                    f"blob {digest} read wrong once ({actual}) and right the next time: "
                    "suspect this machine's memory or disk"
                )
            if unchanged:
                aside = self._set_aside(digest, stat)
                self.on_gone()
        raise CorruptError(
            f"{stat.name} in {self._backend.where} holds bytes with the digest {actual}, not {digest}; {aside}: "
            "put it again from its source",
            expected=digest,
            actual=actual,
        )

    def _set_aside(self, digest: str, stat: ObjectStat) -> str:
        try:
            target = self.move_aside(digest, stat)
        except CasError as error:
            return f"it could not be set aside ({error})"
        return f"they were set aside as {target}" if target else "it is gone already"

    def move_aside(self, digest: str, stat: ObjectStat) -> str | None:
        """Move an object to `damaged/`; its name there, or None where that incarnation is gone.

        Where it is copied and removed, its name there follows from the incarnation: who is cut off between the two
        leaves no second copy behind. Storage that cannot remove one incarnation and no other might remove sound bytes
        that were brought meanwhile; there only the one who made the copy removes, since nobody can bring any before.

        Args:
            digest: what the object should have held.
            stat: the object.

        Raises:
            ConflictError: another is at it.
        """
        if self._backend.atomic_move:
            target = layout.damaged(digest, secrets.token_hex(8))
            return target if self._backend.rename(stat.name, target, stat.validator) else None
        incarnation = hashlib.sha256(f"{stat.name} {stat.validator}".encode()).hexdigest()[:16]
        target = layout.damaged(digest, incarnation)
        made = self._backend.copy(stat.name, target)
        if made is None and not self._backend.exclusive:
            standing = self._backend.stat(target)
            if standing is not None and self._backend.now() - standing.time_ns <= self._session_s * 10**9:
                raise ConflictError(f"{target} was made a moment ago: another sets it aside; run this again later")
        return target if self._backend.delete(stat.name, stat.validator) else None

    def was_set_aside(self, digest: str) -> bool:
        """Whether bytes that should have been this blob's were set aside, now or ever."""
        prefix = f"{layout.DAMAGED}{digest}."
        found = next(self._backend.listing(layout.DAMAGED, after=prefix), None)
        return found is not None and found.name.startswith(prefix)


def check_replaceable(target: str) -> None:
    """Check that a new file may take the place of what stands at a path: nothing, or a regular file.

    Raises:
        ConflictError: a directory stands there, or a device or pipe, which would be replaced and not written to.
    """
    try:
        mode = os.stat(target).st_mode
    except OSError:
        return  # nothing, or out of reach, which creating the new file will tell
    if stat.S_ISDIR(mode):
        raise ConflictError(f"{target} is a directory: name a file")
    if not stat.S_ISREG(mode):
        raise ConflictError(f"{target} is no regular file: name one, or write to stdout and redirect that")
