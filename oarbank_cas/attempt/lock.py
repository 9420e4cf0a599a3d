"""One writer at a time, among threads and processes: an advisory lock on a whole file that ends with its holder."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from oarbank_cas import filelock
from oarbank_cas.attempt.files import open_regular, translate
from oarbank_cas.errors import BusyError

_FIRST_WAIT_S: Final = 0.0005
_LONGEST_WAIT_S: Final = 0.02


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
            filelock.unlock(fd)
        finally:
            os.close(fd)


def _acquire(path: str | os.PathLike[str], deadline: float, timeout_s: float) -> int:
    wait = _FIRST_WAIT_S
    while True:
        fd = open_regular(path, os.O_RDWR, create=True)
        try:
            while not filelock.try_lock(fd):
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
