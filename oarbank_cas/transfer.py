"""A blob's bytes on their way into a file, hashed as they come; whoever asked compares the digest.

A large blob from afar comes in several ranges at once, which are written in order. So the file always holds a beginning
of the blob and nothing after it: what a killed transfer leaves is where the next one goes on, once it has hashed it.
"""

from __future__ import annotations

import hashlib
import os
from typing import TYPE_CHECKING, Final

from oarbank_cas import stopping
from oarbank_cas.backends import oscalls
from oarbank_cas.batches import in_order
from oarbank_cas.errors import StorageIOError

if TYPE_CHECKING:
    from collections.abc import Callable

    from oarbank_cas.backends.base import Reader

RANGE: Final = 8 * 2**20
"""Bytes of one range. Each under way is held in memory."""

LARGE: Final = 2 * RANGE
"""Bytes from which a blob is worth several requests."""

AT_ONCE: Final = 4
"""Ranges under way at once, at most: a connection's share of a link grows little beyond that, and memory does."""

_CHUNK = 2**20


def download(read: Callable[[int, int], bytes], size: int, fd: int, label: str, at_once: int) -> str:
    """Complete a file that holds the beginning of a blob, or nothing.

    Args:
        read: gives the bytes from a position on, of a length.
        size: the blob's bytes.
        fd: the file, open for reading and writing. What it holds counts as the blob's beginning; bytes beyond `size`
            are cut off.
        label: the file's name, for messages.
        at_once: calls of `read` that are best under way at once.

    Returns:
        The digest of what the file holds now.

    Raises:
        StorageIOError: the file cannot be read or written.
        CasError: what `read` raises. The file keeps what had come in order.
    """
    state = hashlib.sha256()
    try:
        done = _beginning(fd, size, state)
    except OSError as error:
        raise StorageIOError(f"{label}: {error.strerror}") from error

    def part(start: int) -> bytes:
        length = min(RANGE, size - start)
        data = read(start, length)
        if len(data) != length:
            raise StorageIOError(f"{label}: {len(data)} bytes came from {start} on, where {length} were asked for")
        return data

    for data in in_order(part, range(done, size, RANGE), min(at_once, AT_ONCE), ahead=1):
        state.update(data)
        try:
            write_all(fd, data)
        except OSError as error:
            raise StorageIOError(f"{label}: {error.strerror}") from error
        oscalls.start_writeback(fd, done, len(data))
        done += len(data)
    return state.hexdigest()


def _beginning(fd: int, size: int, state: hashlib._Hash) -> int:
    """Hash what the file holds of the blob; how many bytes. Writing goes on there."""
    os.lseek(fd, 0, os.SEEK_SET)
    done = 0
    while done < size and (chunk := os.read(fd, min(_CHUNK, size - done))):
        stopping.check()
        state.update(chunk)
        done += len(chunk)
    os.ftruncate(fd, done)
    os.lseek(fd, done, os.SEEK_SET)
    return done


def write_all(fd: int, data: bytes | memoryview) -> None:
    """Write all of it to a file, however little each write takes."""
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def copy_hashing(reader: Reader, fd: int) -> tuple[str, int]:
    """Write all that a reader gives to a file; its digest, and how many bytes."""
    state = hashlib.sha256()
    size = 0
    buffer = memoryview(bytearray(min(_CHUNK, reader.stat.size)))
    while size < reader.stat.size and (count := reader.readinto(buffer)):
        stopping.check()
        state.update(buffer[:count])
        write_all(fd, buffer[:count])
        size += count
    return state.hexdigest(), size


def hash_reader(reader: Reader) -> tuple[str, int]:
    """The digest of all that a reader gives, and how many bytes."""
    state = hashlib.sha256()
    size = 0
    step = min(_CHUNK, reader.stat.size + 1)  # a buffer of a MiB for each small blob would be the most of the work
    while chunk := reader.read(step):
        state.update(chunk)
        size += len(chunk)
    return state.hexdigest(), size


def hash_file(fd: int) -> tuple[str, int]:
    """The digest of an open file, from its beginning, and how many bytes it has."""
    os.lseek(fd, 0, os.SEEK_SET)
    state = hashlib.sha256()
    size = 0
    while chunk := os.read(fd, _CHUNK):
        stopping.check()
        state.update(chunk)
        size += len(chunk)
    return state.hexdigest(), size


def empty(fd: int) -> None:
    """Throw away what an open file holds."""
    os.lseek(fd, 0, os.SEEK_SET)
    os.ftruncate(fd, 0)
