"""File-system calls that Python's `os` lacks or that differ per system: rename without replacing, group flush, reflink.

Each says what it does where the system cannot: the caller chooses the safe and slower way. Windows: a name that another
process has open for a moment (a virus scanner, an indexer) refuses rename and delete, so these are tried again for
about a second; read-only files must lose that attribute before they go.
"""

from __future__ import annotations

import ctypes
import errno
import functools
import os
import stat
import sys
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

_AT_FDCWD = -100
_RENAME_NOREPLACE = 1
_SYNC_FILE_RANGE_WRITE = 2
_FICLONE = 0x40049409
_CANNOT = frozenset(
    {errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EPERM, errno.EXDEV, errno.ENOTTY}
)
_SHARING_VIOLATIONS = frozenset({5, 32, 33})
"""Windows: access denied, sharing violation, lock violation."""


@functools.cache
def _libc() -> ctypes.CDLL | None:
    if not sys.platform.startswith("linux"):
        return None
    return ctypes.CDLL(None, use_errno=True)


@functools.cache
def _linux_call(name: str) -> Callable[..., int] | None:
    libc = _libc()
    try:
        return getattr(libc, name) if libc is not None else None
    except AttributeError:
        return None


def _patiently(call: Callable[[], None]) -> None:
    if sys.platform != "win32":
        call()
        return
    deadline = time.monotonic() + 1.0
    while True:
        try:
            call()
        except PermissionError as error:
            if error.winerror not in _SHARING_VIOLATIONS or time.monotonic() > deadline:
                raise
            time.sleep(0.01)
        else:
            return


def rename_new(source: str, target: str) -> None:
    """Give the file `source` the name `target`, atomically, only if `target` is absent.

    Raises:
        FileExistsError: `target` stands.
        OSError: with `errno.ENOTSUP` where this file system has no way to do it.
    """
    if sys.platform == "win32":
        _patiently(lambda: os.rename(source, target))  # Windows' rename never replaces
        return
    renameat2 = _linux_call("renameat2")
    if renameat2 is not None:
        if renameat2(_AT_FDCWD, os.fsencode(source), _AT_FDCWD, os.fsencode(target), _RENAME_NOREPLACE) == 0:
            return
        code = ctypes.get_errno()
        if code not in (errno.EINVAL, errno.ENOSYS):
            raise OSError(code, os.strerror(code), source, None, target)
    try:
        os.link(source, target, follow_symlinks=False)
    except OSError as error:
        if error.errno in (errno.EPERM, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP):
            raise OSError(errno.ENOTSUP, "neither rename without replacing nor hard links work here", target) from error
        raise
    os.unlink(source)


def replace(source: str, target: str) -> None:
    """Give the file `source` the name `target`, atomically, in the place of what stands there."""
    if sys.platform == "win32" and os.path.lexists(target):
        os.chmod(target, stat.S_IWRITE)
    _patiently(lambda: os.replace(source, target))


def unlink(path: str) -> None:
    """Remove a file, read-only or not.

    Raises:
        FileNotFoundError: it is not there.
    """
    if sys.platform == "win32":
        os.chmod(path, stat.S_IWRITE)
    _patiently(lambda: os.unlink(path))


def sync_file(fd: int) -> None:
    """Make the bytes and times of the open file `fd` durable. On macOS plain `fsync` stops at the drive's own cache."""
    if sys.platform == "darwin":
        import fcntl

        fcntl.fcntl(fd, fcntl.F_FULLFSYNC)
    else:
        os.fsync(fd)


def can_sync_filesystem() -> bool:
    """Whether `sync_filesystem` works on this system."""
    return _linux_call("syncfs") is not None


def sync_filesystem(fd: int) -> None:
    """Make durable everything written so far to the file system that holds the open file or directory `fd`.

    Linux `syncfs`; since Linux 5.8 it also reports what could not be written back.
    """
    syncfs = _linux_call("syncfs")
    if syncfs is None:
        raise OSError(errno.ENOSYS, "syncfs is not there on this system")
    if syncfs(fd) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


def start_writeback(fd: int, start: int, length: int) -> None:
    """Have the system begin to write these bytes of `fd` to disk, without waiting; a hint, and a no-op off Linux."""
    call = _linux_call("sync_file_range")
    if call is not None:
        call(ctypes.c_int(fd), ctypes.c_int64(start), ctypes.c_int64(length), ctypes.c_uint(_SYNC_FILE_RANGE_WRITE))


def sync_directory(path: str) -> None:
    """Make durable which names the directory holds. On Windows there is no such call: NTFS journals its names."""
    if sys.platform == "win32":
        return
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def share_blocks(source_fd: int, target_fd: int) -> bool:
    """Make the empty file `target_fd` share the blocks of `source_fd` (Linux `FICLONE`); False where it cannot."""
    if not sys.platform.startswith("linux"):
        return False
    import fcntl

    try:
        fcntl.ioctl(target_fd, _FICLONE, source_fd)
    except OSError as error:
        if error.errno in _CANNOT:
            return False
        raise
    return True
