"""A process that takes small files for `intake_pool`: reads each, hashes it, and writes it where it is absent.

It runs by itself, on nothing but the standard library, so that it starts in a hundredth of a second. It makes
temporaries only; giving them their names is the store's own business. Whatever is odd about a file (a link, a pipe, a
change, a full disk) it leaves to the process that asked, which finds out what it is and says so.
"""

from __future__ import annotations

import hashlib
import marshal
import os
import stat
import sys
from typing import IO

_READ = os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NONBLOCK", 0)
_NOT_THROUGH_LINKS = getattr(os, "O_NOFOLLOW", 0)
_DIRECTORY = _READ | _NOT_THROUGH_LINKS | getattr(os, "O_DIRECTORY", 0)
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0)
_READ_ONLY = 0o444
_KEPT_DIRECTORIES = 64

Taken = tuple[str, int, str]
"""Digest, size, and the temporary that holds the bytes; empty where the store has the blob."""


class Worker:
    """Takes files, one after another.

    Args:
        blobs: what a blob's path begins with; two digits of the digest, a slash, and the digest follow.
        scratch: what the path of a temporary begins with; a number follows.
        most: bytes that a file may have.
    """

    def __init__(self, blobs: str, scratch: str, most: int) -> None:
        self._blobs = blobs
        self._scratch = scratch
        self._most = most
        self._made = 0
        self._directories: dict[tuple[int, str], int] = {}

    def take(self, top: int | None, path: str) -> Taken | None:
        """Take one file.

        Args:
            top: the descriptor of a directory that the path does not leave, and below which no link is followed; or
                None.
            path: where the file is.

        Returns:
            None where somebody else is to look at it.
        """
        try:
            data = self._read(top, path)
            if data is None:
                return None
            digest = hashlib.sha256(data).hexdigest()
            try:
                found = os.lstat(f"{self._blobs}{digest[:2]}/{digest}")
            except FileNotFoundError:
                return digest, len(data), self._write(data)
        except OSError:
            return None
        return (digest, len(data), "") if stat.S_ISREG(found.st_mode) and found.st_size == len(data) else None

    def _read(self, top: int | None, path: str) -> bytes | None:
        if top is None:
            fd = os.open(path, _READ)
        else:
            directory, _, name = path.rpartition("/")
            fd = os.open(name, _READ | _NOT_THROUGH_LINKS, dir_fd=self._directory(top, directory))
        try:
            before = os.fstat(fd)
            if not stat.S_ISREG(before.st_mode) or before.st_size > self._most:
                return None
            data = os.read(fd, before.st_size + 1)  # one more, to see a file that grows
            after = os.fstat(fd)
        finally:
            os.close(fd)
        unchanged = (after.st_size, after.st_mtime_ns, after.st_ctime_ns) == (
            len(data),
            before.st_mtime_ns,
            before.st_ctime_ns,
        )
        return data if unchanged else None

    def _directory(self, top: int, path: str) -> int:
        if not path:
            return top
        kept = self._directories.get((top, path))
        if kept is not None:
            return kept
        parent, _, name = path.rpartition("/")
        fd = os.open(name, _DIRECTORY, dir_fd=self._directory(top, parent))
        if len(self._directories) >= _KEPT_DIRECTORIES:
            for each in self._directories.values():
                os.close(each)
            self._directories.clear()
        self._directories[top, path] = fd
        return fd

    def _write(self, data: bytes) -> str:
        self._made += 1
        path = f"{self._scratch}{self._made:x}"
        fd = os.open(path, _CREATE, _READ_ONLY)
        try:
            whole = os.write(fd, data) == len(data)
        except OSError:
            whole = False
        finally:
            os.close(fd)
        if not whole:
            os.unlink(path)
            raise OSError(f"{path} could not be written whole")
        return path


def receive(stream: IO[bytes]) -> object:
    """Read the next message; EOFError where there is no more."""
    head = stream.read(4)
    if len(head) < 4:
        raise EOFError
    data = stream.read(int.from_bytes(head, "little"))
    return marshal.loads(data)  # noqa: S302 - both ends are ours


def send(stream: IO[bytes], message: list[Taken | None] | list[tuple[int | None, str]] | tuple[str, str, int]) -> None:
    """Write a message, of plain values."""
    data = marshal.dumps(message)
    stream.write(len(data).to_bytes(4, "little") + data)
    stream.flush()


def main() -> None:
    """Answer until there are no more questions: first what `Worker` needs, then lists of what `take` needs."""
    questions, answers = sys.stdin.buffer, sys.stdout.buffer
    try:
        worker = Worker(*receive(questions))  # type: ignore[misc]
        while True:
            send(answers, [worker.take(*item) for item in receive(questions)])  # type: ignore[attr-defined]
    except (EOFError, BrokenPipeError):
        os._exit(0)  # whoever asked is gone, and with it whoever would read what is still buffered


if __name__ == "__main__":
    main()
