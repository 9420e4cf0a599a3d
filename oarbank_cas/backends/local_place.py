"""The directory that a store lives in: paths and folders, the operating system's errors, locks, and what is durable."""

from __future__ import annotations

import contextlib
import errno
import os
import threading
import zlib
from typing import TYPE_CHECKING, NoReturn

from oarbank_cas import filelock
from oarbank_cas.backends import oscalls, scratch
from oarbank_cas.errors import (
    CasError,
    NotFoundError,
    PermissionDeniedError,
    StorageIOError,
    UnavailableError,
    UnsupportedError,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

CLOEXEC = getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
READ = os.O_RDONLY | CLOEXEC | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)

TRIES = 100
"""Times that a missing directory is made again: others may remove it, but a dangling link never ends."""

_KEPT_LEVELS = 2
"""Levels of directories that stay once they are made, such as `blobs/ab`."""

FEW = 4
"""Up to this many objects are flushed one by one: a whole file system's flush may wait for other programs' bytes."""

_UNREACHABLE = frozenset({errno.ESTALE, errno.ENODEV, errno.ENOTCONN, errno.ETIMEDOUT, errno.EHOSTDOWN, errno.ENOTDIR})


class Place:
    """A store's directory.

    Args:
        root: its path.
        sentinel: an object that every store has. Where something is absent and so is this, the store is missing.
            None while a store is being made.

    Attributes:
        where: its absolute path.
        group_flush: a whole file system can be flushed in one call.
    """

    def __init__(self, root: str | os.PathLike[str], sentinel: str | None) -> None:
        self.where = os.path.abspath(root)
        self.group_flush = oscalls.can_sync_filesystem()
        self._sentinel = sentinel
        # The \\?\ form lifts Windows' limit of 260 characters a path.
        self._root = f"\\\\?\\{self.where}\\" if os.name == "nt" else self.where.rstrip("/") + "/"
        self._scratch: scratch.Scratch | None = None
        self._scratch_lock = threading.Lock()
        self._durable: set[str] = set()

    def path(self, name: str) -> str:
        """Where object `name` is on disk."""
        return self._root + (name.replace("/", "\\") if os.name == "nt" else name)

    def raise_for(self, error: OSError, name: str) -> NoReturn:
        """Raise the package's error for one of the operating system's, met at object `name`."""
        raise self.translated(error, name) from error

    def translated(self, error: OSError, name: str) -> CasError:
        """The package's error for one of the operating system's, met at object `name`."""
        place = f"{name} in {self.where}" if name else self.where
        if error.errno == errno.ENOENT:
            try:
                self.check_there()
            except UnavailableError as gone:
                return gone
            return NotFoundError(f"{place} is not there")
        if error.errno == errno.EROFS:
            return PermissionDeniedError(f"{place}: {error.strerror}; mount it for writing, or use another store")
        if error.errno in (errno.EACCES, errno.EPERM):
            return PermissionDeniedError(
                f"{place}: {error.strerror}; check the owner, group and mode of the store's files"
            )
        if error.errno in _UNREACHABLE:
            return UnavailableError(f"{place} cannot be reached: {error.strerror}")
        if error.errno in (errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOLCK, errno.ENOSYS):
            return UnsupportedError(
                f"{place}: {error.strerror}; the file system cannot keep what a store needs, use another"
            )
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            return StorageIOError(f"{self.where}: {error.strerror}; free some space and run this again")
        return StorageIOError(f"{place}: {error.strerror or error}")

    def check_there(self) -> None:
        """Raise where the store is gone: nothing may be made in the empty folder that its disk was mounted on."""
        if self._sentinel is not None and not os.path.exists(self.path(self._sentinel)):
            raise UnavailableError(
                f"the store {self.where} is not there ({self._sentinel} is missing): is its disk mounted?"
            )

    def own(self) -> scratch.Scratch:
        """This process's folder of temporaries, made when first asked for."""
        own = self._scratch
        if own is not None and own.pid == os.getpid():
            return own
        with self._scratch_lock:
            if self._scratch is None or self._scratch.pid != os.getpid():
                self.check_there()
                tmp = self.path("tmp")
                try:
                    scratch.sweep(tmp)
                    self._scratch = scratch.Scratch(tmp)
                except OSError as error:
                    self.raise_for(error, "tmp")
            return self._scratch

    def make_parents(self, path: str) -> list[str]:
        """Make the missing directories above `path`; the directories that got a new name in them."""
        self.check_there()
        changed: list[str] = []
        parent = os.path.dirname(path)
        for _ in range(TRIES):
            try:
                os.mkdir(parent)
            except FileExistsError:
                return changed
            except FileNotFoundError:
                changed += self.make_parents(parent)
            else:
                changed.append(os.path.dirname(parent))
                return changed
        raise StorageIOError(f"the directory {parent} cannot be made: is one above it a link to nowhere?")

    @contextlib.contextmanager
    def locked(self, name: str) -> Iterator[None]:
        """Hold the lock that replacing and removing `name` needs."""
        path = self.path(f"tmp/locks/{zlib.crc32(name.encode()) & 0xFF:02x}")
        fd = self._open_lock(path, name)
        try:
            try:
                filelock.lock(fd)
            except OSError as error:
                self.raise_for(error, name)
            yield
        finally:
            with contextlib.suppress(OSError):
                filelock.unlock(fd)  # closing is not enough where a child was forked meanwhile
            os.close(fd)

    def _open_lock(self, path: str, name: str) -> int:
        for _ in range(TRIES):
            try:
                return os.open(path, os.O_RDWR | os.O_CREAT | CLOEXEC, 0o666)
            except FileNotFoundError:
                self.make_parents(path)
            except PermissionError as error:
                # Another user's lock file in a shared store: a lock needs no more than an open file.
                try:
                    return os.open(path, READ)
                except OSError:
                    self.raise_for(error, name)
            except OSError as error:
                self.raise_for(error, name)
        raise StorageIOError(f"the lock {path} cannot be made: is its directory a link to nowhere?")

    def flush_bytes(self, paths: Sequence[str]) -> None:
        """Make durable the bytes of these files, all closed by now."""
        if self.group_flush:
            if len(paths) > FEW:
                self.flush_everything()
            else:
                for path in paths:
                    fd = os.open(path, READ)
                    try:
                        oscalls.sync_file(fd)
                    finally:
                        os.close(fd)

    def flush_everything(self) -> None:
        """Make durable all that was written to this file system so far; where `group_flush`."""
        fd = os.open(self._root, READ)
        try:
            oscalls.sync_filesystem(fd)
        finally:
            os.close(fd)

    def flush_names(self, directories: set[str]) -> None:
        """Make durable which names these directories hold."""
        if self.group_flush and len(directories) > FEW:
            self.flush_everything()
        else:
            for directory in directories:
                oscalls.sync_directory(directory)
        # Only those near the root: they are few, and never removed.
        self._durable.update(
            directory
            for directory in directories
            if directory.count(os.sep, len(self._root)) < _KEPT_LEVELS and os.path.dirname(directory) in directories
        )

    def not_yet_durable(self, directory: str) -> list[str]:
        """The directory, and those above it down to which a new name in it may yet be lost.

        Another process may have made them a moment ago, and not flushed them yet.
        """
        found = [directory]
        while directory not in self._durable and len(directory) > len(self._root):
            directory = os.path.dirname(directory)
            found.append(directory)
        return found

    def forget(self, own: scratch.Scratch) -> None:
        """Make a new folder of temporaries the next time: somebody has removed this one."""
        with self._scratch_lock:
            if self._scratch is own:
                self._scratch = None  # it goes when the last thread that uses it lets go

    def close(self) -> None:
        """Remove this process's temporaries."""
        with self._scratch_lock:
            if self._scratch is not None:
                self._scratch.close()
                self._scratch = None
