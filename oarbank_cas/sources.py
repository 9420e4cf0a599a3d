"""A file to put: where it is, and how it is read so that nothing which changes meanwhile goes unseen."""

from __future__ import annotations

import hashlib
import os
import stat as stat_bits
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeAlias

from oarbank_cas import stopping
from oarbank_cas.errors import InvalidInputError, PermissionDeniedError, StorageIOError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

_CHUNK = 2**20
_WINDOW_FILES = 1000
_WINDOW_BYTES = 16 * 2**20

Window: TypeAlias = "dict[str, tuple[bytes, list[int]]]"
"""Digest to the bytes of small files, and the indices of the files that have them."""


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


def size_of(source: Source) -> int:
    """The bytes that a file has now."""
    fd = source.open()
    try:
        return os.fstat(fd).st_size
    finally:
        os.close(fd)


class FileReader:
    """Reads files whole, or to hash them, through one buffer for each thread."""

    def __init__(self) -> None:
        self._buffers = threading.local()

    def small(self, source: Source, at_most: int) -> bytes | None:
        """A file's bytes; None where it has more than `at_most`.

        Raises:
            InvalidInputError: it cannot be read as a regular file.
            StorageIOError: it changed while it was read.
        """
        fd = source.open()
        try:
            before = os.fstat(fd)
            if before.st_size > at_most:
                return None
            data = os.read(fd, before.st_size + 1)  # one more, to see a file that grows
            if len(data) != before.st_size:
                raise changed(source.label)
            check_unchanged(fd, before, source.label)
        except OSError as error:
            raise StorageIOError(f"{source.label} cannot be read: {error.strerror}") from error
        finally:
            os.close(fd)
        return data

    def window(self, sources: Sequence[Source], waiting: Iterator[int], at_most: int, larger: list[int]) -> Window:
        """The next small files, few enough to be held in memory.

        Args:
            sources: all files.
            waiting: the indices of those that are to come; taken as needed.
            at_most: bytes of a small file.
            larger: gets the indices of files that are not small.
        """
        window: Window = {}
        held = 0
        for index in waiting:
            stopping.check()
            data = self.small(sources[index], at_most)
            if data is None:
                larger.append(index)
                continue
            window.setdefault(hashlib.sha256(data).hexdigest(), (data, []))[1].append(index)
            held += len(data)
            if len(window) >= _WINDOW_FILES or held >= _WINDOW_BYTES:
                break
        return window

    def held(self, fd: int, size: int, label: str) -> bytes | memoryview:
        """An open file's bytes. They are good until this thread reads again.

        Raises:
            StorageIOError: there are more or fewer than `size`.
        """
        if size <= _CHUNK:
            data = os.read(fd, size + 1)
            if len(data) != size:
                raise changed(label)
            return data
        buffer = self.buffer(size)
        done = 0
        while done < size and (count := read_into(fd, buffer[done:])):
            done += count
        if done != size:
            raise changed(label)
        return buffer

    def buffer(self, size: int) -> memoryview:
        """This thread's buffer, of `size` bytes."""
        buffer: memoryview | None = getattr(self._buffers, "buffer", None)
        if buffer is None or len(buffer) < size:
            buffer = memoryview(bytearray(size))
            self._buffers.buffer = buffer
        return buffer[:size]

    def hash(self, fd: int, size: int, label: str) -> str:
        """The digest of an open file, from where it stands; raises as `feed`."""
        state = hashlib.sha256()
        self.feed(fd, size, label, state.update)
        return state.hexdigest()

    def feed(self, fd: int, size: int, label: str, take: Callable[[memoryview], object]) -> None:
        """Read an open file, from where it stands, piece by piece.

        Raises:
            StorageIOError: it has more or fewer bytes than `size`.
        """
        buffer = self.buffer(_CHUNK)
        done = 0
        while done <= size and (count := read_into(fd, buffer)):  # a file may grow as fast as it is read
            stopping.check()
            take(buffer[:count])
            done += count
        if done != size:
            raise changed(label)


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
    if not is_unchanged(before, os.fstat(fd)):
        raise changed(label)


def is_unchanged(before: os.stat_result, after: os.stat_result) -> bool:
    """Whether nobody was seen to write to a file between two looks at it."""
    return (after.st_size, after.st_mtime_ns, after.st_ctime_ns) == (
        before.st_size,
        before.st_mtime_ns,
        before.st_ctime_ns,
    )


def changed(label: str) -> StorageIOError:
    """The error for a file that did not stay as it was."""
    return StorageIOError(f"{label} changed while it was read: let its writer end, then run this again")
