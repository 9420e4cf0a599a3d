"""An advisory exclusive lock on a whole file, which the operating system gives back when its holder dies."""

from __future__ import annotations

import errno
import sys

if sys.platform == "win32":
    import ctypes
    import msvcrt
    import time
    from ctypes import wintypes
    from typing import Final

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
    _POLL_S: Final = 0.002

    def _kernel32() -> ctypes.WinDLL:
        kernel32 = ctypes.WinDLL("kernel32", use_last_error=True)
        low, high, overlapped = wintypes.DWORD, wintypes.DWORD, ctypes.POINTER(_Overlapped)
        kernel32.LockFileEx.restype = kernel32.UnlockFileEx.restype = wintypes.BOOL
        kernel32.LockFileEx.argtypes = [wintypes.HANDLE, wintypes.DWORD, wintypes.DWORD, low, high, overlapped]
        kernel32.UnlockFileEx.argtypes = [wintypes.HANDLE, wintypes.DWORD, low, high, overlapped]
        return kernel32

    def try_lock(fd: int) -> bool:
        """Lock the open file `fd` for this descriptor alone; False where another holds it. Never waits."""
        handle = msvcrt.get_osfhandle(fd)
        flags = _LOCKFILE_EXCLUSIVE_LOCK | _LOCKFILE_FAIL_IMMEDIATELY
        if _kernel32().LockFileEx(handle, flags, 0, _WHOLE, _WHOLE, ctypes.byref(_Overlapped())):
            return True
        code = ctypes.get_last_error()
        if code in _HELD_BY_ANOTHER:
            return False
        raise ctypes.WinError(code)

    def lock(fd: int) -> None:
        """Lock the open file `fd` for this descriptor alone, waiting as long as it takes."""
        while not try_lock(fd):  # a wait inside the kernel could not be interrupted
            time.sleep(_POLL_S)

    def unlock(fd: int) -> None:
        """Give the lock back. Closing the descriptor does it too, but later."""
        handle = msvcrt.get_osfhandle(fd)
        if not _kernel32().UnlockFileEx(handle, 0, _WHOLE, _WHOLE, ctypes.byref(_Overlapped())):
            raise ctypes.WinError(ctypes.get_last_error())

else:
    import fcntl

    def try_lock(fd: int) -> bool:
        """Lock the open file `fd` for this descriptor alone; False where another holds it. Never waits."""
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
                return False
            raise
        return True

    def lock(fd: int) -> None:
        """Lock the open file `fd` for this descriptor alone, waiting as long as it takes."""
        fcntl.flock(fd, fcntl.LOCK_EX)

    def unlock(fd: int) -> None:
        """Give the lock back. Closing does it too, but not while a forked child has a copy of the descriptor."""
        fcntl.flock(fd, fcntl.LOCK_UN)
