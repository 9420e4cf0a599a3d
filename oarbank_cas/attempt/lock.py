"""One writer at a time, among threads and processes: an advisory lock on a whole file that ends with its holder."""

from __future__ import annotations

import os
import random
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from oarbank_cas.attempt.files import open_regular, translate
from oarbank_cas.errors import BusyError

_FIRST_WAIT_S: Final = 0.0005
_LONGEST_WAIT_S: Final = 0.02

if sys.platform == "win32":
    import ctypes
    import msvcrt
    from ctypes import wintypes

    class _Overlapped(ctypes.Structure):
        # The union of offsets and pointer is spelled as its two offsets: the lock starts at byte 0.
        _fields_ = (
            ("Internal", ctypes.c_void_p),
            ("InternalHigh", ctypes.c_void_p),
            ("Offset", wintypes.DWORD),
            ("OffsetHigh", wintypes.DWORD),
            ("hEvent", wintypes.HANDLE),
        )

    _LOCKFILE_FAIL_IMMEDIATELY: Final = 0x1
    _LOCKFILE_EXCLUSIVE_LOCK: Final = 0x2
    _WHOLE: Final = 0xFFFFFFFF
    _HELD_BY_ANOTHER: Final = frozenset({33, 997})  # ERROR_LOCK_VIOLATION, ERROR_IO_PENDING

    def _kernel32() -> ctypes.WinDLL:
        kernel32 = ctypes.WinDLL("kernel32", use_last_error=True)
        kernel32.LockFileEx.restype = wintypes.BOOL
        kernel32.LockFileEx.argtypes = [
            wintypes.HANDLE,
            wintypes.DWORD,
            wintypes.DWORD,
            wintypes.DWORD,
            wintypes.DWORD,
            ctypes.POINTER(_Overlapped),
        ]
        kernel32.UnlockFileEx.restype = wintypes.BOOL
        kernel32.UnlockFileEx.argtypes = [
            wintypes.HANDLE,
            wintypes.DWORD,
            wintypes.DWORD,
            wintypes.DWORD,
            ctypes.POINTER(_Overlapped),
        ]
        return kernel32

    def _try_lock(fd: int) -> bool:
        handle = msvcrt.get_osfhandle(fd)
        flags = _LOCKFILE_EXCLUSIVE_LOCK | _LOCKFILE_FAIL_IMMEDIATELY
        if _kernel32().LockFileEx(handle, flags, 0, _WHOLE, _WHOLE, ctypes.byref(_Overlapped())):
            return True
        code = ctypes.get_last_error()
        if code in _HELD_BY_ANOTHER:
            return False
        raise ctypes.WinError(code)

    def _unlock(fd: int) -> None:
        handle = msvcrt.get_osfhandle(fd)
        if not _kernel32().UnlockFileEx(handle, 0, _WHOLE, _WHOLE, ctypes.byref(_Overlapped())):
            raise ctypes.WinError(ctypes.get_last_error())

else:
    import fcntl

    def _try_lock(fd: int) -> bool:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def _unlock(fd: int) -> None:
        # Said out loud, not left to close: a forked child may still hold a copy of the descriptor.
        fcntl.flock(fd, fcntl.LOCK_UN)


@contextmanager
def exclusive(path: str | os.PathLike[str], *, timeout_s: float) -> Iterator[None]:
    """Holds the exclusive lock on a lock file, which is made where there is none and never removed.

    The operating system ends the lock of a holder that died, so there is nothing stale to break.

    Args:
        path: the lock file.
        timeout_s: how many seconds to wait for another holder; 0 tries once.

    Raises:
        BusyError: another holder kept it for `timeout_s`.
        CasError: the lock file cannot be opened or locked.
    """
    deadline = time.monotonic() + timeout_s
    fd = _acquire(path, deadline, timeout_s)
    try:
        yield
    finally:
        try:
            _unlock(fd)
        finally:
            os.close(fd)


def _acquire(path: str | os.PathLike[str], deadline: float, timeout_s: float) -> int:
    wait = _FIRST_WAIT_S
    while True:
        fd = open_regular(path, os.O_RDWR, create=True)
        try:
            while not _try_lock(fd):
                if time.monotonic() >= deadline:
                    raise BusyError(
                        f"{os.fspath(path)}: another writer has held this lock for {timeout_s:g} s; try again, and if "
                        "it persists look for a stopped process that has the file open"
                    )
                time.sleep(wait * random.uniform(0.5, 1.0))  # noqa: S311 - spreads waiters, guards nothing
                wait = min(wait * 2, _LONGEST_WAIT_S)
            if _still_named(fd, path):
                return fd
        except OSError as error:
            os.close(fd)
            raise translate(error, "lock", path) from error
        except BaseException:
            os.close(fd)
            raise
        # Someone removed the lock file while we waited: a lock on a file without a name excludes nobody.
        os.close(fd)


def _still_named(fd: int, path: str | os.PathLike[str]) -> bool:
    try:
        named = os.lstat(path)
    except FileNotFoundError:
        return False
    return os.path.samestat(os.fstat(fd), named)
