"""An object's bytes on a disk: on their way in, as a temporary file; as they stand; and what their status says."""

from __future__ import annotations

import contextlib
import os
import sys
from typing import TYPE_CHECKING

from oarbank_cas.backends import oscalls
from oarbank_cas.backends.base import Incoming, ObjectStat, Reader
from oarbank_cas.backends.local_place import CLOEXEC

if TYPE_CHECKING:
    from oarbank_cas.backends.local_place import Place

_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | CLOEXEC
_READ_ONLY = 0o444
_EARLY_WRITEBACK = 8 * 2**20


class LocalIncoming(Incoming):
    """Bytes in a temporary file: `path`; `placed` once that has got its final name; `adopted` from another process.

    Args:
        place: the store's directory.
        path: of the file, which is made.
        whole: the size of a file that is there already, written whole by another process. Instead of its path that may
            give a word of its own, for one that has no name yet.
    """

    __slots__ = ("_fd", "_place", "_written_back", "adopted", "path", "placed", "size", "unnamed")

    def __init__(self, place: Place, path: str, whole: int | None = None) -> None:
        self._place = place
        self._fd = os.open(path, _CREATE, _READ_ONLY) if whole is None else None
        self._written_back = 0
        self.path = path
        self.placed = False
        self.adopted = whole is not None
        self.unnamed = not os.path.isabs(path)
        self.size = whole or 0

    def inode(self) -> int:
        """The file's inode; 0 where somebody took it away."""
        try:
            return os.lstat(self.path).st_ino
        except FileNotFoundError:
            return 0

    def descriptor(self) -> int:
        """The open file, before `finish`."""
        assert self._fd is not None
        return self._fd

    def write(self, chunk: bytes | bytearray | memoryview) -> None:
        """See `Incoming.write`."""
        assert self._fd is not None
        try:
            done = os.write(self._fd, chunk)
            if done < len(chunk):
                view = memoryview(chunk)
                while done < len(view):
                    done += os.write(self._fd, view[done:])
        except OSError as error:
            self._place.raise_for(error, "tmp")
        self.size += done
        if self.size - self._written_back >= _EARLY_WRITEBACK:
            oscalls.start_writeback(self._fd, self._written_back, self.size - self._written_back)
            self._written_back = self.size

    def finish(self) -> None:
        """See `Incoming.finish`."""
        if self._fd is not None:
            fd, self._fd = self._fd, None
            try:
                if not self._place.group_flush:
                    oscalls.sync_file(fd)
            except OSError as error:
                self._place.raise_for(error, "tmp")
            finally:
                os.close(fd)

    def discard(self) -> None:
        """See `Incoming.discard`."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None
        if not self.placed and not self.unnamed:
            with contextlib.suppress(FileNotFoundError):
                oscalls.unlink(self.path)


class LocalReader(Reader):
    """An open file."""

    def __init__(self, place: Place, name: str, fd: int, start: int) -> None:
        self._place = place
        self._fd: int | None = fd
        self.stat = object_stat(name, os.fstat(fd))
        if start:
            os.lseek(fd, start, os.SEEK_SET)

    def read(self, size: int) -> bytes:
        """See `Reader.read`."""
        assert self._fd is not None
        try:
            return os.read(self._fd, size)
        except OSError as error:
            self._place.raise_for(error, self.stat.name)

    def readinto(self, buffer: memoryview) -> int:
        """See `Reader.readinto`."""
        assert self._fd is not None
        try:
            return os.readv(self._fd, [buffer]) if hasattr(os, "readv") else self._read_copy(buffer)
        except OSError as error:
            self._place.raise_for(error, self.stat.name)

    def _read_copy(self, buffer: memoryview) -> int:
        chunk = self.read(len(buffer))
        buffer[: len(chunk)] = chunk
        return len(chunk)

    def close(self) -> None:
        """See `Reader.close`."""
        if self._fd is not None:
            fd, self._fd = self._fd, None
            os.close(fd)


def object_stat(name: str, st: os.stat_result) -> ObjectStat:
    """What the status of a file says of the object that it is."""
    time_ns = st.st_mtime_ns if sys.platform == "win32" else max(st.st_mtime_ns, st.st_ctime_ns)
    return ObjectStat(name, st.st_size, time_ns, f"{st.st_ino:x}-{st.st_ctime_ns:x}-{st.st_size:x}")
