"""A file to put: where it is, and how it is read so that nothing which changes meanwhile goes unseen."""

from __future__ import annotations

import os
import stat as stat_bits
from dataclasses import dataclass
from typing import Protocol

from oarbank_cas.errors import InvalidInputError, PermissionDeniedError, StorageIOError


class Source(Protocol):
    """A file to put.

    Attributes:
        label: what messages call it.
    """

    @property
    def label(self) -> str:
        """What messages call it."""

    def open(self) -> int:
        """A new descriptor of the regular file, open for reading; the caller closes it."""


class PlacedSource(Source, Protocol):
    """A file to put that another process can open too."""

    def place(self) -> tuple[int | None, str]:
        """Where it is: the descriptor of a directory and a path below it, on which no symbolic link is followed.

        None and a path where links are followed as by any program.
        """


@dataclass(frozen=True, slots=True)
class PathSource:
    """The file at a path, through symbolic links."""

    path: str

    @property
    def label(self) -> str:
        """The path."""
        return self.path

    def open(self) -> int:
        """See `Source.open`.

        Raises:
            InvalidInputError: it is missing, or no regular file.
        """
        flags = os.O_RDONLY | getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NONBLOCK", 0)
        try:
            fd = os.open(self.path, flags)
        except PermissionError as error:
            raise PermissionDeniedError(f"{self.path} cannot be read: {error.strerror}") from error
        except OSError as error:
            raise InvalidInputError(f"cannot be read: {error.strerror}", self.path) from error
        mode = os.fstat(fd).st_mode
        if not stat_bits.S_ISREG(mode):
            os.close(fd)
            what = "is a directory" if stat_bits.S_ISDIR(mode) else "is a pipe or a device"
            raise InvalidInputError(f"{what}, not a regular file", self.path)
        return fd

    def place(self) -> tuple[int | None, str]:
        """See `PlacedSource.place`."""
        return None, os.path.abspath(self.path)


def read_into(fd: int, buffer: memoryview) -> int:
    """Read the next bytes of a file into a buffer; how many, 0 at the end."""
    if hasattr(os, "readv"):
        return os.readv(fd, [buffer])
    data = os.read(fd, len(buffer))
    buffer[: len(data)] = data
    return len(data)


def check_unchanged(fd: int, before: os.stat_result, label: str) -> None:
    """Check that an open file is as it was when reading it began.

    Raises:
        StorageIOError: somebody wrote to it.
    """
    after = os.fstat(fd)
    if (after.st_size, after.st_mtime_ns, after.st_ctime_ns) != (
        before.st_size,
        before.st_mtime_ns,
        before.st_ctime_ns,
    ):
        raise changed(label)


def changed(label: str) -> StorageIOError:
    """The error for a file that did not stay as it was."""
    return StorageIOError(f"{label} changed while it was read: let its writer end, then run this again")
