"""A process's own folder of temporaries in a store on disk, and how those of dead processes are told from live ones.

`tmp/<host>-<pid>-<nonce>/` belongs to one process, which holds a lock on the file `lock` in it for as long as it lives:
the operating system gives the lock back however the process ends. Whoever can take the lock knows that the owner is
gone. On a shared file system a lock may not reach across machines, so another host's folder must also have lain still
for a while before it counts as dead.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import secrets
import socket
import stat
import time
import weakref

from oarbank_cas import filelock
from oarbank_cas.backends import oscalls

FOREIGN_QUIET_S = 6 * 3600
"""Seconds that another host's folder must have lain still before it is taken for dead."""

_LOCK_NAME = "lock"
_FLAGS = (
    os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0) | getattr(os, "O_NOFOLLOW", 0)
)


def _host() -> str:
    return re.sub(r"[^A-Za-z0-9.]+", "_", socket.gethostname())[:40] or "host"


class Scratch:
    """One process's folder of temporaries: made when constructed, removed by `close` or when the process ends.

    Args:
        tmp: the store's folder of temporaries; made if absent.
    """

    def __init__(self, tmp: str) -> None:
        os.makedirs(tmp, exist_ok=True)
        self.pid = os.getpid()
        while True:
            self.path = os.path.join(tmp, f"{_host()}-{self.pid}-{secrets.token_hex(6)}")
            os.mkdir(self.path)
            lock_path = os.path.join(self.path, _LOCK_NAME)
            try:
                self._lock_fd = os.open(lock_path, _FLAGS, 0o666)
            except FileNotFoundError:
                continue  # swept between its making and its locking
            if filelock.try_lock(self._lock_fd) and _is_at(self._lock_fd, lock_path):
                break
            os.close(self._lock_fd)  # swept likewise
        self._names = itertools.count(1)
        self._finalizer = weakref.finalize(self, _remove_own, self.path, self._lock_fd, self.pid)

    def new_path(self) -> str:
        """A path in the folder that was never used."""
        return os.path.join(self.path, f"{next(self._names):x}")

    def clock(self) -> int:
        """The file system's own time, in nanoseconds: a touch of the lock file, read back."""
        if os.utime in os.supports_fd:
            os.utime(self._lock_fd)
        else:
            os.utime(os.path.join(self.path, _LOCK_NAME))
        return os.fstat(self._lock_fd).st_mtime_ns

    def close(self) -> None:
        """Remove the folder and what is left in it."""
        self._finalizer()


def _is_at(fd: int, path: str) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), os.stat(path))
    except FileNotFoundError:
        return False


def _remove_own(path: str, lock_fd: int, pid: int) -> None:
    if os.getpid() != pid:  # a forked child: the folder is its parent's
        return
    _remove_folder(path, lock_fd)


def _remove_folder(path: str, lock_fd: int) -> bool:
    """Remove a folder whose lock is held; False where something in it cannot go, which is left for another time."""
    # Windows deletes no open file, so there the lock goes first; elsewhere it is held to the end.
    if os.name == "nt":
        os.close(lock_fd)
    try:
        for name in os.listdir(path):
            if name != _LOCK_NAME:
                with contextlib.suppress(FileNotFoundError):
                    oscalls.unlink(os.path.join(path, name))
        with contextlib.suppress(FileNotFoundError):
            oscalls.unlink(os.path.join(path, _LOCK_NAME))
        os.rmdir(path)
    except OSError:
        return False
    finally:
        if os.name != "nt":
            os.close(lock_fd)
    return True


def sweep(tmp: str) -> int:
    """Remove the folders of dead processes; how many. What cannot be removed (another user's) stays."""
    swept = 0
    try:
        names = os.listdir(tmp)
    except FileNotFoundError:
        return 0
    for name in names:
        match = re.fullmatch(r"(.+)-[0-9]+-[0-9a-f]{12}", name)
        if match is not None:
            with contextlib.suppress(OSError):
                swept += _sweep_folder(os.path.join(tmp, name), foreign=match[1] != _host())
    return swept


def _sweep_folder(path: str, *, foreign: bool) -> bool:
    folder = os.lstat(path)
    if not stat.S_ISDIR(folder.st_mode):  # a link might lead to other people's files
        return False
    if foreign:
        with os.scandir(path) as scan:
            touched = max([folder.st_mtime, *(found.stat(follow_symlinks=False).st_mtime for found in scan)])
        if time.time() - touched < FOREIGN_QUIET_S:
            return False
    fd = os.open(os.path.join(path, _LOCK_NAME), _FLAGS, 0o666)
    if not filelock.try_lock(fd):
        os.close(fd)
        return False
    return _remove_folder(path, fd)
