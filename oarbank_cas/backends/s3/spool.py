"""Bytes that wait for their upload: in memory while all of them together are few, else in a file of this machine."""

from __future__ import annotations

import hashlib
import io
import os
import tempfile
import threading
from typing import IO, TYPE_CHECKING

from oarbank_cas.backends.base import FileIncoming, Incoming
from oarbank_cas.errors import StorageIOError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_CHUNK = 2**20

SMALL = 2 * 2**20
"""One object's bytes that may wait in memory."""

ALL = 48 * 2**20
"""Bytes that may wait in memory altogether."""


class Budget:
    """Memory that all waiting bytes of a store share.

    Args:
        most: bytes.
    """

    def __init__(self, most: int = ALL) -> None:
        self._left = most
        self._lock = threading.Lock()

    def take(self, size: int) -> bool:
        """Take memory, if there is that much left."""
        with self._lock:
            if size > self._left:
                return False
            self._left -= size
            return True

    def give(self, size: int) -> None:
        """Give it back."""
        with self._lock:
            self._left += size


class Spool(Incoming):
    """Bytes on their way to a bucket.

    Args:
        budget: memory to share.
        size_hint: about how many bytes will come.
    """

    def __init__(self, budget: Budget, size_hint: int | None) -> None:
        self.size = 0
        self._discarded = False
        self._budget = budget
        self._taken = 0
        self._pieces: list[bytes] = []
        self._file: IO[bytes] | None = None
        self._state = hashlib.sha256()
        if size_hint is not None and size_hint > SMALL:
            self._to_file()

    def write(self, chunk: bytes | bytearray | memoryview) -> None:
        """See `Incoming.write`."""
        size = len(chunk)
        self._state.update(chunk)
        if self._file is None and (self.size + size > SMALL or not self._budget.take(size)):
            self._to_file()
        try:
            if self._file is not None:
                _write_all(self._file, chunk)
            else:
                self._taken += size
                self._pieces.append(bytes(chunk))
        except OSError as error:
            raise _no_room(error) from error
        self.size += size

    def _to_file(self) -> None:
        try:
            self._file = tempfile.TemporaryFile(prefix="oarbank-cas-", buffering=0)  # noqa: SIM115 - closed by discard
            for piece in self._pieces:
                _write_all(self._file, piece)
        except OSError as error:
            raise _no_room(error) from error
        self._forget_pieces()

    def _forget_pieces(self) -> None:
        self._pieces = []
        self._budget.give(self._taken)
        self._taken = 0

    def finish(self) -> None:
        """See `Incoming.finish`."""

    def discard(self) -> None:
        """See `Incoming.discard`. A request that is under way keeps its bytes."""
        self._discarded = True
        self._forget_pieces()
        if self._file is not None:
            file, self._file = self._file, None
            file.close()

    @property
    def sha256(self) -> bytes:
        """The checksum of everything written."""
        return self._state.digest()

    def whole(self) -> bytes | None:
        """All bytes, where they wait in memory."""
        if self._file is not None:
            return None
        if len(self._pieces) > 1:
            self._pieces = [b"".join(self._pieces)]
        return self._pieces[0] if self._pieces else b""

    def part(self, start: int, size: int) -> bytes | FilePart:
        """Some of the bytes, as the body of a request. Parts of one spool are read by one thread at a time each."""
        if self._discarded:
            raise _ended()
        whole = self.whole()
        if whole is not None:
            return whole if (start, size) == (0, self.size) else whole[start : start + size]
        assert self._file is not None
        return FilePart(self._file.fileno(), start, size)

    def checksum(self, start: int, size: int) -> bytes:
        """The checksum of some of the bytes."""
        state = hashlib.sha256()
        for chunk in self.chunks(start, size):
            state.update(chunk)
        return state.digest()

    def chunks(self, start: int, size: int) -> Iterator[bytes]:
        """Some of the bytes, piece by piece."""
        body = self.part(start, size)
        if isinstance(body, FilePart):
            with body:
                while chunk := body.read(_CHUNK):
                    yield chunk
        else:
            yield body


class FileSpool(Spool, FileIncoming):
    """A file's bytes on their way to a bucket, from where they are: read once to be hashed, and once to be sent.

    It is hashed again while it is sent, and no request is given its last bytes where they are not those of before: what
    a server makes of checksums does not matter for that.

    Args:
        fd: the open file.
        part_size: bytes of a part; None where it is sent in one piece.
        check: given a descriptor of it, raises where the file is seen to have changed.
    """

    def __init__(self, fd: int, part_size: int | None, check: Callable[[int], None]) -> None:
        super().__init__(Budget(0), None)
        self._fd: int | None = os.dup(fd)
        self._part_size = part_size
        self._check = check
        self._part = hashlib.sha256()
        self._checksums: list[bytes] = []
        self._has_changed = False

    def write(self, chunk: bytes | bytearray | memoryview) -> None:
        """Hash the next bytes of the file."""
        self._state.update(chunk)
        view = memoryview(chunk)
        if self._part_size is None:
            self.size += len(view)
            return
        while view:
            left = self._part_size - self.size % self._part_size
            self._part.update(view[:left])
            self.size += len(view[:left])
            view = view[left:]
            if self.size % self._part_size == 0:
                self._end_part()

    def _end_part(self) -> None:
        self._checksums.append(self._part.digest())
        self._part = hashlib.sha256()

    def finish(self) -> None:
        """See `Incoming.finish`."""
        if self._part_size is not None and len(self._checksums) * self._part_size < self.size:
            self._end_part()

    def discard(self) -> None:
        """See `Incoming.discard`."""
        super().discard()
        if self._fd is not None:
            fd, self._fd = self._fd, None
            os.close(fd)

    def whole(self) -> None:
        """Never: they do not wait in memory."""

    def part(self, start: int, size: int) -> FilePart:
        """See `Spool.part`."""
        if self._fd is None:
            raise _ended()
        self._check(self._fd)
        if self._has_changed:
            raise _changed()
        return CheckedPart(self._fd, start, size, self.checksum(start, size), self._note_change)

    def _note_change(self) -> None:
        self._has_changed = True  # what the client makes of an error within a request is to try again

    def checksum(self, start: int, size: int) -> bytes:
        """See `Spool.checksum`."""
        if self._part_size is None and (start, size) == (0, self.size):
            return self.sha256
        if self._part_size is None or start % self._part_size or size != min(self._part_size, self.size - start):
            raise ValueError(f"no checksum was made of {size} bytes from {start} on")
        return self._checksums[start // self._part_size]


class FilePart(io.RawIOBase):
    """A part of an open file, with a position of its own, so that parts are read side by side.

    Args:
        fd: the file's descriptor, which stays its owner's; the part has one of its own.
        start: the part's first byte.
        size: its length.
    """

    def __init__(self, fd: int, start: int, size: int) -> None:
        super().__init__()
        self._fd = os.dup(fd)
        self._start = start
        self._size = size
        self._at = 0

    def close(self) -> None:
        """Let the file go."""
        if not self.closed:
            os.close(self._fd)
        super().close()

    def __len__(self) -> int:
        return self._size

    def readable(self) -> bool:
        """True."""
        return True

    def seekable(self) -> bool:
        """True."""
        return True

    def tell(self) -> int:
        """The position in the part."""
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Move in the part."""
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        self._at = max(0, base + offset)
        return self._at

    def read(self, size: int = -1) -> bytes:
        """The next bytes."""
        left = max(0, self._size - self._at)
        data = _read_at(self._fd, left if size is None or size < 0 else min(size, left), self._start + self._at)
        self._at += len(data)
        return data


class CheckedPart(FilePart):
    """A part of a file that may change, whose end is only read where all of it has the right checksum.

    Args:
        fd: see `FilePart`.
        start: see `FilePart`.
        size: see `FilePart`.
        expected: the checksum.
        changed: called where it has another.
    """

    def __init__(self, fd: int, start: int, size: int, expected: bytes, changed: Callable[[], None]) -> None:
        super().__init__(fd, start, size)
        self._expected = expected
        self._changed = changed
        self._state = hashlib.sha256()
        self._hashed = 0

    def read(self, size: int = -1) -> bytes:
        """The next bytes; in order from the first, as often as that is."""
        if self._at == 0:
            self._state, self._hashed = hashlib.sha256(), 0
        before = self._at
        data = super().read(size)
        if before == self._hashed:
            self._state.update(data)
            self._hashed = self._at
        short = not data and size != 0 and self._at < self._size
        if short or (data and self._at == self._size and self._state.digest() != self._expected):
            self._changed()
            raise _changed()
        return data


def _write_all(file: IO[bytes], chunk: bytes | bytearray | memoryview) -> None:
    done = file.write(chunk)
    while done < len(chunk):  # a full disk takes a part first
        done += file.write(memoryview(chunk)[done:])


_seeking = threading.Lock()


def _read_at(fd: int, size: int, offset: int) -> bytes:
    if hasattr(os, "pread"):
        return os.pread(fd, size, offset)
    with _seeking:  # Windows has no such call
        os.lseek(fd, offset, os.SEEK_SET)
        return os.read(fd, size)


def _changed() -> StorageIOError:
    return StorageIOError("a file changed while it was put: let its writer end, then run this again")


def _ended() -> StorageIOError:
    return StorageIOError("the bytes are gone that were to be put: the work on them has ended")


def _no_room(error: OSError) -> StorageIOError:
    return StorageIOError(
        f"the temporary directory {tempfile.gettempdir()}, where bytes wait for their upload: {error.strerror}; free "
        "some space or set TMPDIR"
    )
