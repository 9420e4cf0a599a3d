"""A cache: blobs out of it that are surely right, and new ones into it, each brought by one process of the machine.

A blob's bytes are hashed on their way in. After that a look at the file is enough: it is compared with the blob's note,
and only hashed again where it looks otherwise. Every blob gets one fixed modification time, so that a write in place
shows however soon it comes; that the time was set back shows in the time of the last change, which nobody can set.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import stat
import time
from typing import TYPE_CHECKING, Final, TypeVar

from oarbank_cas.backends import oscalls
from oarbank_cas.cache import room
from oarbank_cas.cache.folder import READ, CacheFolder
from oarbank_cas.cache.index import Index, IndexLostError, Row, flushes_needed, note_of
from oarbank_cas.contracts.canonical import check_digest
from oarbank_cas.errors import CacheError, CorruptError, NotFoundError, StorageIOError
from oarbank_cas.transfer import hash_file

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from typing import TypeAlias

Fetch: TypeAlias = "Callable[[str, int, str], int]"
"""Brings a blob: digest, descriptor, what messages call it; gives its size.

The file is open for reading and writing and may hold the beginning of the blob, or anything else, that another bringer
has left. When this returns it holds the blob's bytes, which were hashed, and nothing else. An `OSError` of the
file comes as the cause of a StorageIOError.
"""

DEFAULT_BYTES = 20 * 2**30
"""The budget where none is given."""

MTIME_NS: Final = 315_532_800 * 10**9
"""The modification time of every cached blob: the beginning of 1980, the first that every archive format can hold."""

_R = TypeVar("_R")
_CHUNK = 2**20
_TRIES = 5


class BusyElsewhere(Exception):  # noqa: N818 - says how things stand; nothing failed
    """Another process is just bringing the blob."""


class Cache:
    """A cache on this machine's disk; for any number of threads and processes.

    Args:
        path: its directory; made if absent.
        budget: bytes that it may hold.

    Raises:
        CacheError: from everything here, where the cache cannot be used. Whoever asks goes straight to the store then.
    """

    def __init__(self, path: str | os.PathLike[str], budget: int = DEFAULT_BYTES) -> None:
        self.folder = CacheFolder(path)
        self.index = Index(self.folder)
        self.room = room.Room(self.folder, self.index, budget)
        self._holds = itertools.count(1)
        self._buried = False

    @property
    def budget(self) -> int:
        """Bytes that it may hold."""
        return self.room.budget

    def close(self) -> None:
        """Let it go; what it holds stays for the next."""
        self.index.close()
        self.folder.close()

    # -- out of it

    def open(self, digest: str) -> int | None:
        """A descriptor of a blob's bytes, surely right when it was opened; None where they are not there."""
        row = self._again(lambda: self.index.use([check_digest(digest, "digest")])).get(digest)
        return self.open_known(digest, row) if row is not None else None

    def open_known(self, digest: str, row: Row, *, noting: bool = True) -> int | None:
        """As `open`, where the index has been asked already.

        Args:
            digest: which.
            row: what the index said.
            noting: note how the file looks where it had to be hashed. In vain where it is to be linked.
        """
        try:
            fd = os.open(self.folder.blob(digest), READ)
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ELOOP, errno.ENXIO):
                self.folder.raise_for(error)
            self.drop(digest, None)
            return None
        sure = False
        try:
            sure = note_of(os.fstat(fd)) == row.note or self._settle(digest, fd, noting=noting)
        except OSError as error:
            self.folder.raise_for(error)
        finally:
            if not sure:
                os.close(fd)
        return fd if sure else None

    def rows(self, digests: Iterable[str]) -> dict[str, Row]:
        """What is known of those of `digests` that are there; this is no use of them."""
        wanted = list(digests)
        return self._again(lambda: self.index.rows(wanted))

    def renote(self, notes: Mapping[str, str]) -> None:
        """Note how files of blobs look, by digest, now that their bytes are known to be right."""
        self._again(lambda: self.index.renote(notes))

    def examine(self, digest: str) -> bool:
        """Hash a blob that is there, whatever its note says; False where it was wrong, and was dropped, or is gone."""
        fd = self.open_known(digest, Row(0, ""))
        if fd is not None:
            os.close(fd)
        return fd is not None

    def _settle(self, digest: str, fd: int, *, noting: bool) -> bool:
        """Hash a file that is in doubt: note it where it is right, drop it where it is not."""
        for _ in range(_TRIES):
            st = os.fstat(fd)
            if st.st_nlink > 1 and st.st_mtime_ns != MTIME_NS:
                # Somebody has it open for writing, as it seems, in a mount: what is right now may not stay so.
                self.drop(digest, st)
                return False
            before, is_right = self._put_right(fd)
            if not stat.S_ISREG(before.st_mode) or hash_file(fd)[0] != digest:
                self.drop(digest, before)
                return False
            os.lseek(fd, 0, os.SEEK_SET)
            note = note_of(before)
            if note_of(os.fstat(fd)) == note:
                if noting and is_right:
                    self.renote({digest: note})
                return True
        return True  # right each time: others make and remove hard links of it all the while

    def _put_right(self, fd: int) -> tuple[os.stat_result, bool]:
        """Give a blob's file its fixed time and mode, which a job may have changed; its status, and whether it has."""
        st = os.fstat(fd)
        is_right = (st.st_mtime_ns, stat.S_IMODE(st.st_mode)) == (MTIME_NS, self.folder.blob_mode)
        if is_right or not stat.S_ISREG(st.st_mode) or os.name == "nt":
            return st, is_right
        try:
            os.utime(fd, ns=(time.time_ns(), MTIME_NS))
            os.fchmod(fd, self.folder.blob_mode)
        except PermissionError:  # another user's
            return st, False
        return os.fstat(fd), True

    def drop(self, digest: str, seen: os.stat_result | None) -> None:
        """Remove a blob that is wrong, or gone. The next who wants it brings it anew.

        Args:
            digest: which.
            seen: the file that was found wrong, which goes if it still stands there; None where there was none.
        """

        def act() -> None:
            with self.index.transaction() as sql:
                try:
                    st = os.lstat(self.folder.blob(digest))
                except FileNotFoundError:
                    st = None
                # A good file may have come since: it is another, or a file where there was none.
                if st is None or (os.path.samestat(st, seen) if seen else not stat.S_ISREG(st.st_mode)):
                    room.remove(self.folder, sql, digest)

        try:
            self._again(act)
        except OSError as error:
            self.folder.raise_for(error)

    # -- into it

    def fill(self, digest: str, size: int, fetch: Fetch, *, wait: bool = True) -> int | None:
        """A descriptor of a blob's bytes, brought in first where they are not there.

        Args:
            digest: which.
            size: its bytes, for which room is made.
            fetch: brings it.
            wait: wait while another process brings it.

        Returns:
            None where there is no room for it.

        Raises:
            BusyElsewhere: another process is bringing it, and `wait` is false.
            CasError: what `fetch` raises.
        """
        for left in reversed(range(_TRIES)):
            try:
                return self._fill(digest, size, fetch, wait=wait)
            except (FileNotFoundError, IndexLostError) as error:
                # Somebody removes the cache, or has removed it. It is simply made again.
                if not left:
                    raise CacheError(f"{self.folder.where} was removed while it was used ({error})") from error
                self.folder.prepare()
            except OSError as error:
                self.folder.raise_for(error)
        raise AssertionError

    def _fill(self, digest: str, size: int, fetch: Fetch, *, wait: bool) -> int | None:
        fd = self.open(digest)
        if fd is not None or size > self.budget:
            return fd
        with self.folder.locked(self.folder.partial(digest) + ".lock", wait=wait) as mine:
            if not mine:
                raise BusyElsewhere
            fd = self.open(digest)  # brought by whoever had the lock
            if fd is not None:
                return fd
            if not self._buried:
                self._buried = True
                self.room.bury()
            if not self.room.claim(digest, size):
                return None
            try:
                return self._bring(digest, size, fetch)
            except BaseException as error:
                if (
                    isinstance(error, OSError | CacheError | CorruptError | NotFoundError)
                    or self._came(digest) < _CHUNK
                ):
                    self._give_up(digest)
                raise  # else the next goes on from what came, and its room is kept

    def _came(self, digest: str) -> int:
        try:
            return os.stat(self.folder.partial(digest)).st_size
        except OSError:
            return 0

    def _give_up(self, digest: str) -> None:
        with contextlib.suppress(OSError):
            oscalls.unlink(self.folder.partial(digest))
        with contextlib.suppress(CacheError):
            self.index.unclaim(digest)

    def _bring(self, digest: str, size: int, fetch: Fetch) -> int:
        fd = self.folder.open_shared(self.folder.partial(digest))
        try:
            if not self.folder.lock_open(fd, self.folder.partial(digest)):
                raise _gone(self.folder.partial(digest))
            _check_space(fd, size)
            try:
                got = fetch(digest, fd, self.folder.partial(digest))
            except StorageIOError as error:
                if isinstance(error.__cause__, OSError):
                    raise CacheError(str(error)) from error
                raise
            if flushes_needed():
                oscalls.sync_file(fd)
            self._name(digest, fd)
        except BaseException:
            os.close(fd)
            raise
        if os.name == "nt":  # which renames no open file, and lets nobody remove one
            os.close(fd)
            fd = self._name_closed(digest)
        try:
            os.lseek(fd, 0, os.SEEK_SET)
            st = os.fstat(fd)
            if st.st_size != got:
                raise _gone(self.folder.blob(digest))
            self.index.enter(digest, got, note_of(st))
        except BaseException:
            os.close(fd)
            _unlink(self.folder.blob(digest))  # nothing stands that is not counted
            raise
        return fd

    def _name(self, digest: str, fd: int) -> None:
        """Give the verified file `fd` its blob's name.

        Raises:
            FileNotFoundError: somebody has removed it, or put another in its place.
        """
        if os.name == "nt":
            return
        os.fchmod(fd, self.folder.blob_mode)
        os.utime(fd, ns=(time.time_ns(), MTIME_NS))
        self._rename(digest)
        target = self.folder.blob(digest)
        if not os.path.samestat(os.fstat(fd), os.lstat(target)):
            # The lock was removed with all else, and what had the name was another's, who may be writing to it yet.
            _unlink(target)
            raise _gone(target)

    def _name_closed(self, digest: str) -> int:
        """The same where only a closed file can get a name; a descriptor of it."""
        os.utime(self.folder.partial(digest), ns=(time.time_ns(), MTIME_NS))
        self._rename(digest)
        return os.open(self.folder.blob(digest), READ)

    def _rename(self, digest: str) -> None:
        path, target = self.folder.partial(digest), self.folder.blob(digest)
        try:
            oscalls.replace(path, target)
        except FileNotFoundError:
            self.folder.make_folder(os.path.dirname(target))
            oscalls.replace(path, target)

    # -- staying in it

    @contextlib.contextmanager
    def holding(self, digests: Iterable[str]) -> Iterator[dict[str, Row]]:
        """Keep these blobs, present or yet to come, from being evicted; what is known of those that are there.

        This counts as their use. The hold ends with the body, or with the process.
        """
        wanted = list(digests)
        owner = f"{self._owner()}.{next(self._holds)}"
        rows = self._again(lambda: self.index.use(wanted, owner))
        try:
            yield rows
        finally:
            with contextlib.suppress(CacheError):  # then it ends with the process
                self.index.release(owner)

    def _owner(self) -> str:
        for left in reversed(range(_TRIES)):
            try:
                return self.folder.owner()
            except FileNotFoundError as error:
                if not left:
                    self.folder.raise_for(error)
                self.folder.prepare()
            except OSError as error:
                self.folder.raise_for(error)
        raise AssertionError

    def _again(self, act: Callable[[], _R]) -> _R:
        """Do something with the index; again where it was found damaged, or removed, and is made anew."""
        for _ in range(_TRIES - 1):
            with contextlib.suppress(IndexLostError):
                return act()
        return act()


def _gone(path: str) -> FileNotFoundError:
    return FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)


def _unlink(path: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        oscalls.unlink(path)


def _check_space(fd: int, size: int) -> None:
    """Refuse what will not fit before it is brought, and not at its end."""
    if size >= _CHUNK and hasattr(os, "fstatvfs"):
        found = os.fstatvfs(fd)
        if found.f_bavail * found.f_frsize < size:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), None)
