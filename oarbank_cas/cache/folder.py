"""The directory that a cache lives in: what stands where, who may share it, and locks that die with their holders.

    oarbank-cas-cache.json     what this directory is, and its format
    blobs/<d[0:2]>/<d>         the bytes of blob d, as in a store
    partial/<d>                bytes on their way in; partial/<d>.lock is locked by whoever brings them
    live/<owner>               locked by a process for as long as it lives; it owns the holds of that name
    mounts/<id>.json           what was placed in work directories
    index, index-wal, -shm     see `index`

Whoever may write the directory may use the cache: everything in it gets the access that the directory itself gives to
its group and to others, whatever the umask of the process that makes it.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import secrets
import stat
import weakref
from typing import TYPE_CHECKING, NoReturn

from oarbank_cas import filelock, layout, stopping
from oarbank_cas.backends import oscalls
from oarbank_cas.contracts.canonical import parse_json
from oarbank_cas.errors import CacheError, InvalidInputError

if TYPE_CHECKING:
    from collections.abc import Iterator

FORMAT = 1
"""The layout's version. A cache of a newer one is left alone."""

BLOBS, PARTIAL, LIVE, MOUNTS, INDEX = "blobs", "partial", "live", "mounts", "index"
_FOLDERS = (BLOBS, PARTIAL, LIVE, MOUNTS)
_NEW = ".oarbank-cas-"
_MAX_DESCRIPTOR = 64 * 1024
_TRIES = 100
_STEP_S = 0.02
_DIGEST = re.compile(r"[0-9a-f]{64}")
_BINARY = getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0)
READ = os.O_RDONLY | _BINARY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
WRITE = os.O_RDWR | os.O_CREAT | _BINARY | getattr(os, "O_NOFOLLOW", 0)


def is_blob_path(path: str) -> bool:
    """Whether a path below `blobs/` is where a blob stands."""
    group, _, digest = path.replace(os.sep, "/").partition("/")
    return _DIGEST.fullmatch(digest) is not None and digest[:2] == group


class CacheFolder:
    """A cache's directory.

    Args:
        path: where it is.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.where = os.path.abspath(path)
        self._shared = 0
        self._live: _Live | None = None

    # -- what stands where

    def path(self, *parts: str) -> str:
        """A path in the cache."""
        return os.path.join(self.where, *parts)

    def blob(self, digest: str) -> str:
        """Where the bytes of a blob stand."""
        return f"{self.where}{os.sep}{BLOBS}{os.sep}{digest[:2]}{os.sep}{digest}"

    def partial(self, digest: str) -> str:
        """Where the bytes of a blob are on their way in."""
        return self.path(PARTIAL, digest)

    # -- making it

    def prepare(self, *, make: bool = True) -> None:
        """Make what is missing of the cache, and refuse what is none.

        Args:
            make: make the directory itself, or a cache of an empty one, too.

        Raises:
            CacheError: it is something else, of a newer version, or cannot be made or written.
        """
        try:
            if make:
                os.makedirs(self.where, exist_ok=True)
            elif not os.path.isdir(self.where):
                raise CacheError(f"there is no cache at {self.where}: check --cache")
            names = set(os.listdir(self.where))
            if layout.DESCRIPTOR in names:
                raise CacheError(f"{self.where} is a store, and no cache: name another directory")
            if layout.CACHE_DESCRIPTOR in names:
                self._check_descriptor()
            elif not make:
                raise CacheError(f"there is no cache at {self.where}: check --cache")
            else:
                self._check_empty(names)
            if not os.access(self.where, os.W_OK | os.X_OK):
                raise PermissionError(errno.EACCES, "it may not be written")
            self._shared = stat.S_IMODE(os.stat(self.where).st_mode) & 0o066
            for name in _FOLDERS:
                self.make_folder(self.path(name))
            if layout.CACHE_DESCRIPTOR not in names:
                document = {"format": FORMAT, "kind": "cache", "id": secrets.token_hex(16)}
                self.write_new(self.path(layout.CACHE_DESCRIPTOR), (json.dumps(document, indent=2) + "\n").encode())
        except OSError as error:
            self.raise_for(error)

    def _check_empty(self, names: set[str]) -> None:
        others = {name for name in names if not name.startswith((_NEW, INDEX))} - set(_FOLDERS) - {"lost+found"}
        if others:
            raise CacheError(f"{self.where} holds {min(others)} and is no cache: name an empty directory")

    def _check_descriptor(self) -> None:
        place = self.path(layout.CACHE_DESCRIPTOR)
        with open(place, "rb") as file:
            data = file.read(_MAX_DESCRIPTOR)
        try:
            document = parse_json(data, where=place)
        except InvalidInputError as error:
            raise CacheError(f"{error}; remove {self.where}, nothing in it is needed") from error
        found = document.get("format") if isinstance(document, dict) else None
        if type(found) is not int or found < 1:
            raise CacheError(f"{place} is no descriptor of a cache; remove {self.where}, nothing in it is needed")
        if found > FORMAT:
            raise CacheError(
                f"{self.where} is a cache of format {found}; this version reads up to {FORMAT}: use a newer "
                "oarbank-cas, or another directory"
            )

    def raise_for(self, error: OSError) -> NoReturn:
        """Raise the package's error for one of the operating system's, met in the cache."""
        where = error.filename if isinstance(error.filename, str) else self.where
        raise CacheError(f"{where}: {error.strerror or error}") from error

    # -- making things in it

    @property
    def file_mode(self) -> int:
        """The permissions of a file that all who share the cache write."""
        return 0o600 | self._shared

    @property
    def blob_mode(self) -> int:
        """The permissions of a blob: nobody writes it."""
        return self.file_mode & 0o444

    def make_folder(self, path: str) -> None:
        """Make a folder, if it is absent, and let in who may use the cache."""
        with contextlib.suppress(FileExistsError):
            os.mkdir(path)
            if os.name != "nt":
                wanted = 0o700 | self._shared | (self._shared >> 2 & 0o011)
                with contextlib.suppress(FileNotFoundError):
                    found = stat.S_IMODE(os.stat(path).st_mode)  # with the setgid bit, where that is inherited
                    os.chmod(path, (found & ~0o777) | wanted)

    def open_shared(self, path: str, flags: int = 0) -> int:
        """Open a file that all who share the cache write, made if it is absent."""
        try:
            fd = os.open(path, WRITE | os.O_EXCL | flags, 0o600)
        except FileExistsError:
            return os.open(path, WRITE | flags, 0o600)
        if self._shared and hasattr(os, "fchmod"):
            os.fchmod(fd, self.file_mode)
        return fd

    def write_new(self, path: str, data: bytes) -> None:
        """Write a small file whole, in the place of what is there."""
        partial = os.path.join(os.path.dirname(path), _NEW + secrets.token_hex(8))
        try:
            fd = self.open_shared(partial)
            with os.fdopen(fd, "wb") as file:
                file.write(data)
            oscalls.replace(partial, path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(partial)
            raise

    # -- locks

    @contextlib.contextmanager
    def locked(self, path: str, *, wait: bool = True, keep: bool = False) -> Iterator[bool]:
        """Hold a lock file, which is made and, unless `keep`, removed again; False where another holds it.

        The lock goes back when its holder dies. Never waited for while a transaction of the index is open.
        """
        fd = self._lock_file(path, wait=wait)
        try:
            yield fd is not None
        finally:
            if fd is not None:
                _let_go(fd, path, remove=not keep)

    def _lock_file(self, path: str, *, wait: bool) -> int | None:
        for _ in range(_TRIES):
            try:
                fd = self.open_shared(path)
            except PermissionError:
                fd = os.open(path, READ)  # another user's: a lock needs no more than an open file
            keep = False
            try:
                if not (_wait_for(fd) if wait else filelock.try_lock(fd)):
                    return None
                keep = _is_at(fd, path)  # else its holder removed it: what counts is what has its name now
            finally:
                if not keep:
                    os.close(fd)
            if keep:
                return fd
        raise CacheError(f"{path} comes and goes: who else works in this directory?")

    def lock_open(self, fd: int, path: str) -> bool:
        """Lock the open file itself until it is closed, also where its lock file was removed; False where it is gone.

        No two processes write to one file then, whatever somebody removes under their feet.
        """
        _wait_for(fd)
        return _is_at(fd, path)

    # -- who is alive

    def owner(self) -> str:
        """A name that is this process's for as long as it lives."""
        live = self._live
        if live is None or live.pid != os.getpid() or not live.there():
            name = secrets.token_hex(12)
            path = self.path(LIVE, name)
            fd = self._lock_file(path, wait=True)
            assert fd is not None
            live = self._live = _Live(name, path, fd)
        return live.name

    def is_dead(self, owner: str) -> bool:
        """Whether the process that had this name is gone; its file is removed then. Never waits."""
        if self._live is not None and self._live.name == owner and self._live.pid == os.getpid():
            return False
        path = self.path(LIVE, owner)
        try:
            fd = os.open(path, READ)
        except FileNotFoundError:
            return True
        except OSError:
            return False
        if not filelock.try_lock(fd):
            os.close(fd)
            return False
        _let_go(fd, path, remove=True)
        return True

    def close(self) -> None:
        """Give this process's name back."""
        if self._live is not None:
            self._live.close()
            self._live = None


class _Live:
    """A locked file in `live/`: gone when closed, when forgotten, and at the latest unlocked when the process ends."""

    def __init__(self, name: str, path: str, fd: int) -> None:
        self.name = name
        self.pid = os.getpid()
        self._path = path
        self._fd = fd
        self.close = weakref.finalize(self, _end_own, fd, path, self.pid)

    def there(self) -> bool:
        """Whether the file still stands: else others take this process for dead."""
        return _is_at(self._fd, self._path)


def _end_own(fd: int, path: str, pid: int) -> None:
    if os.getpid() == pid:  # else this is a forked child, and the file is its parent's
        _let_go(fd, path, remove=True)


def _let_go(fd: int, path: str, *, remove: bool) -> None:
    # Windows removes no open file, so there the lock goes first; elsewhere it is held to the end.
    if os.name == "nt":
        os.close(fd)
    if remove:
        with contextlib.suppress(OSError):
            os.unlink(path)
    if os.name != "nt":
        with contextlib.suppress(OSError):
            filelock.unlock(fd)  # a forked child may have a copy of the descriptor
        os.close(fd)


def _wait_for(fd: int) -> bool:
    """Wait for a lock. In steps where the wait may be ended early, since the kernel's own would not be."""
    if not stopping.is_in_force():
        filelock.lock(fd)
        return True
    while not filelock.try_lock(fd):
        stopping.sleep(_STEP_S)
    return True


def _is_at(fd: int, path: str) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), os.stat(path, follow_symlinks=False))
    except OSError:
        return False
