"""An advisory whole-file lock that the operating system gives back when its holder dies."""

from __future__ import annotations

import errno
import os
import sys
import time

if sys.platform == "win32":
    import msvcrt

    def try_lock(fd: int) -> bool:
        """Lock the open file `fd` for this descriptor alone; False where another holds it. Never waits."""
        os.lseek(fd, 0, os.SEEK_SET)
        try:
            msvcrt.locking(fd, msvcrt.LK_NBLCK, 1)
        except OSError as error:
            if error.errno in (errno.EACCES, errno.EDEADLK):
                return False
            raise
        return True

    def lock(fd: int) -> None:
        """Lock the open file `fd` for this descriptor alone, waiting as long as it takes."""
        while not try_lock(fd):
            time.sleep(0.002)

    def unlock(fd: int) -> None:
        """Give the lock back. Closing the descriptor does it too."""
        os.lseek(fd, 0, os.SEEK_SET)
        msvcrt.locking(fd, msvcrt.LK_UNLCK, 1)

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
        """Give the lock back. Closing the descriptor does it too."""
        fcntl.flock(fd, fcntl.LOCK_UN)
