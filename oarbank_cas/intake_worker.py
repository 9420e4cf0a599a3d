"""A process that takes small files for `intake_pool`: reads each, hashes it, and writes it where it is absent.

It runs by itself, on nothing but the standard library, so that it starts in a hundredth of a second. It makes
temporaries, and gives them their names when it is told to: what is durable by then is the asker's business. Whatever is
odd about a file (a link, a pipe, a change, a full disk) it leaves to the process that asked, which finds out what it is
and says so.
"""

from __future__ import annotations

import contextlib
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
_UNNAMED = os.O_WRONLY | getattr(os, "O_TMPFILE", 0) | getattr(os, "O_CLOEXEC", 0)
_KEPT_DIRECTORIES = 64
_SPARE_DESCRIPTORS = 100

UNNAMED = "#"
"""What the temporary begins with that has no name yet at all: only the process that wrote it can give it one."""

TAKE, NAME = "take", "name"
"""What a question asks for."""

Taken = tuple[str, int, str]
"""Digest, size, and the temporary that holds the bytes; empty where the store has the blob."""

Question = tuple[str, list[tuple[int | None, str]] | list[tuple[str, str]]]
Answers = list[Taken | None] | list[bool | None]


class Worker:
    """Takes files, one after another.

    Where the system can, a temporary has no name (`O_TMPFILE`): it costs no entry in a directory that all write to, and
    goes with its process. It is an open file, so there are as many as the system's limit on those allows.

    Args:
        blobs: what a blob's path begins with; two digits of the digest, a slash, and the digest follow.
        scratch: what the path of a temporary begins with; a number follows.
        most: bytes that a file may have.
        unnamed: how many temporaries may have no name, where that works.
    """

    def __init__(self, blobs: str, scratch: str, most: int, unnamed: int = 0) -> None:
        self._blobs = blobs
        self._scratch = scratch
        self._most = most
        self._made = 0
        self._directories: dict[tuple[int, str], int] = {}
        self._folder = os.path.dirname(scratch)
        self._at = os.open(self._folder, _DIRECTORY)
        self._unnamed_left = unnamed if unnamed and self._can_be_unnamed() else 0

    def _can_be_unnamed(self) -> bool:
        probe = f"{self._scratch}0"
        try:
            fd = os.open(self._folder, _UNNAMED, _READ_ONLY)
            try:
                self._link(fd, probe)
            finally:
                os.close(fd)
            os.unlink(probe)
        except OSError:
            return False
        return True

    def _link(self, fd: int, path: str) -> None:
        # With a directory's descriptor Python asks for linkat(AT_SYMLINK_FOLLOW), which this needs; see open(2).
        os.link(f"/proc/self/fd/{fd}", path, src_dir_fd=self._at)

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

    def name(self, temporary: str, path: str) -> bool | None:
        """Give a temporary its name.

        One that has a name gets a second one, and loses the first: renames between directories wait for each other in
        the whole filesystem.

        Args:
            temporary: where it is.
            path: the name, in a directory that is there.

        Returns:
            False where the name stands already, None where it cannot be given. A temporary with a name is left then.
        """
        unnamed = int(temporary.rpartition("-")[2]) if temporary.startswith(UNNAMED) else None
        try:
            if unnamed is None:
                os.link(temporary, path)
            else:
                self._link(unnamed, path)
        except FileExistsError:
            return False
        except OSError:
            return None
        finally:
            if unnamed is not None:
                os.close(unnamed)
                self._unnamed_left += 1
        if unnamed is None:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary)
        return True

    def answer(self, verb: str, items: list[tuple[int | None, str]] | list[tuple[str, str]]) -> Answers:
        """Do what a question asks for, item by item."""
        if verb == TAKE:
            return [self.take(*item) for item in items]
        return [self.name(*item) for item in items]

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
        return self._write_named(data) if self._unnamed_left < 1 else self._write_unnamed(data)

    def _write_unnamed(self, data: bytes) -> str:
        fd = os.open(self._folder, _UNNAMED, _READ_ONLY)
        try:
            if os.write(fd, data) != len(data):
                raise OSError("could not be written whole")
        except BaseException:
            os.close(fd)
            raise
        self._unnamed_left -= 1
        return f"{UNNAMED}{self._scratch}{fd}"

    def _write_named(self, data: bytes) -> str:
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


def send(stream: IO[bytes], message: Question | Answers | tuple[str, str, int]) -> None:
    """Write a message, of plain values."""
    data = marshal.dumps(message)
    stream.write(len(data).to_bytes(4, "little") + data)
    stream.flush()


def spare_descriptors() -> int:
    """How many more files this process may have open, after it has raised its limit as far as it may."""
    if not hasattr(os, "O_TMPFILE"):
        return 0
    import resource

    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    except (OSError, ValueError):
        return 0
    return sys.maxsize if most == resource.RLIM_INFINITY else max(0, most - _SPARE_DESCRIPTORS)


def main() -> None:
    """Answer until there are no more questions: first what `Worker` needs, then what `Worker.answer` does."""
    questions, answers = sys.stdin.buffer, sys.stdout.buffer
    try:
        worker = Worker(*receive(questions), unnamed=spare_descriptors())  # type: ignore[misc]
        while True:
            send(answers, worker.answer(*receive(questions)))  # type: ignore[misc]
    except (EOFError, BrokenPipeError):
        os._exit(0)  # whoever asked is gone, and with it whoever would read what is still buffered


if __name__ == "__main__":
    main()
