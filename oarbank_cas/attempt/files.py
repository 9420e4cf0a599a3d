"""Opening and flushing attempt files safely: regular files only, never through a link, never blocking."""

from __future__ import annotations

import errno
import os
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, Protocol

from oarbank_cas.errors import (
    CasError,
    InvalidInputError,
    NotFoundError,
    PermissionDeniedError,
    StorageIOError,
)

# What a platform lacks is 0: there `open_regular` leans on its look before and after the open alone.
_SAFE: Final = (
    getattr(os, "O_NOFOLLOW", 0)
    | getattr(os, "O_NONBLOCK", 0)
    | getattr(os, "O_CLOEXEC", 0)
    | getattr(os, "O_NOCTTY", 0)
    | getattr(os, "O_BINARY", 0)
)
_REFUSED: Final = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})
_KINDS: Final = (
    (stat.S_ISLNK, "a symbolic link"),
    (stat.S_ISDIR, "a directory"),
    (stat.S_ISFIFO, "a FIFO"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


class Source(Protocol):
    """Bytes that can be read at any offset: a file here; anything that serves ranges elsewhere."""

    @property
    def name(self) -> str:
        """What messages call it."""
        ...

    def size(self) -> int:
        """The number of bytes there now."""
        ...

    def read_at(self, offset: int, size: int) -> bytes:
        """Up to `size` bytes from `offset`; fewer only at the end."""
        ...


class FileSource:
    """An open regular file as a `Source`. Does not own the descriptor."""

    def __init__(self, fd: int, path: str) -> None:
        self._fd = fd
        self._path = path

    @property
    def name(self) -> str:
        """The path it was opened by."""
        return self._path

    def stat(self) -> os.stat_result:
        """`fstat` of the open file.

        Raises:
            StorageIOError: the operating system failed.
        """
        try:
            return os.fstat(self._fd)
        except OSError as error:
            raise translate(error, "look at", self._path) from error

    def size(self) -> int:
        """The file's size in bytes now.

        Raises:
            StorageIOError: the operating system failed.
        """
        return self.stat().st_size

    def read_at(self, offset: int, size: int) -> bytes:
        """Up to `size` bytes from byte `offset`; fewer only at the end of the file.

        Raises:
            StorageIOError: the operating system failed.
        """
        try:
            block = _pread(self._fd, size, offset)
            if len(block) == size or not block:
                return block
            parts = [block]
            got = len(block)
            while got < size and (block := _pread(self._fd, size - got, offset + got)):
                parts.append(block)
                got += len(block)
            return b"".join(parts)
        except OSError as error:
            raise translate(error, "read", self._path) from error


def _pread(fd: int, size: int, offset: int) -> bytes:
    if sys.platform == "win32":
        os.lseek(fd, offset, os.SEEK_SET)
        return os.read(fd, size)
    return os.pread(fd, size, offset)


def translate(error: OSError | ValueError, what: str, path: str | os.PathLike[str]) -> CasError:
    """The package's error for a failed system call.

    Args:
        error: what the call raised; a ValueError is a path that the system cannot spell (a NUL byte).
        what: the verb of the sentence, such as `read`.
        path: the file.
    """
    shown = os.fspath(path)
    if isinstance(error, ValueError):
        return InvalidInputError(f"cannot {what} it: not a path of this system ({error})", repr(shown))
    reason = error.strerror or str(error)
    if isinstance(error, FileNotFoundError):
        return NotFoundError(
            f"{shown}: there is no such file or directory; check the path, or wait until it is written"
        )
    if error.errno in _REFUSED:
        return PermissionDeniedError(f"{shown}: cannot {what} it: {reason}; check its owner and mode")
    if error.errno in {errno.ELOOP, errno.EISDIR, errno.ENXIO, errno.ENOTDIR, errno.ENAMETOOLONG}:
        return InvalidInputError(f"cannot {what} it: {reason}; a regular file in an attempt directory is needed", shown)
    return StorageIOError(f"{shown}: cannot {what} it: {reason}; check the disk and its free space, then try again")


def kind_of(mode: int) -> str | None:
    """What a file is when it is not a regular file, in words; None for a regular file."""
    if stat.S_ISREG(mode):
        return None
    return next((word for test, word in _KINDS if test(mode)), "a special file")


def look(path: str | os.PathLike[str]) -> os.stat_result:
    """`lstat` of a file.

    Raises:
        CasError: whatever the operating system says, in the package's words.
    """
    try:
        return os.lstat(path)
    except (OSError, ValueError) as error:
        raise translate(error, "look at", path) from error


def require_directory(path: str | os.PathLike[str]) -> Path:
    """The path of an attempt directory.

    Raises:
        NotFoundError: it does not exist.
        InvalidInputError: it is no directory.
    """
    try:
        mode = os.stat(path).st_mode
    except (OSError, ValueError) as error:
        raise translate(error, "use", path) from error
    if not stat.S_ISDIR(mode):
        raise InvalidInputError("not a directory; give the attempt's directory", os.fspath(path))
    return Path(path)


def open_regular(path: str | os.PathLike[str], flags: int, *, create: bool = False) -> int:
    """Opens a regular file, or refuses.

    The look before the open keeps devices from noticing; the look after it settles what was really opened.

    Args:
        path: the file.
        flags: `os.O_RDONLY`, `os.O_RDWR | os.O_APPEND` and the like.
        create: make an empty file where there is none, with the mode that the umask allows.

    Returns:
        A descriptor that the caller closes.

    Raises:
        NotFoundError: there is no such file and `create` is false.
        InvalidInputError: it is a link, a directory, a FIFO, a device or a socket.
        PermissionDeniedError: the operating system refuses.
        StorageIOError: it failed.
    """
    shown = os.fspath(path)
    try:
        before = os.lstat(path)
    except FileNotFoundError as error:
        if not create:
            raise translate(error, "open", path) from error
    except (OSError, ValueError) as error:
        raise translate(error, "open", path) from error
    else:
        _refuse_special(before.st_mode, shown)
    try:
        fd = os.open(path, flags | _SAFE | (os.O_CREAT if create else 0), 0o666)
    except (OSError, ValueError) as error:
        raise translate(error, "open", path) from error
    try:
        _refuse_special(os.fstat(fd).st_mode, shown)
        if not hasattr(os, "O_NOFOLLOW"):
            _refuse_special(os.lstat(path).st_mode, shown)
    except BaseException:
        os.close(fd)
        raise
    return fd


def _refuse_special(mode: int, shown: str) -> None:
    kind = kind_of(mode)
    if kind is not None:
        raise InvalidInputError(f"it is {kind}; artifacts and journals are regular files", shown)


@contextmanager
def reading(path: str | os.PathLike[str]) -> Iterator[FileSource]:
    """A regular file open for reading, closed at the end.

    Raises:
        CasError: as `open_regular` says.
    """
    fd = open_regular(path, os.O_RDONLY)
    try:
        yield FileSource(fd, os.fspath(path))
    finally:
        os.close(fd)


def flush_file(fd: int, path: str | os.PathLike[str]) -> None:
    """Returns when the file's bytes and size are on the disk.

    Raises:
        StorageIOError: the flush failed. The bytes may or may not be kept.
    """
    try:
        if sys.platform == "darwin":
            import fcntl

            # fsync on macOS stops at the drive's cache; not every filesystem there knows the stronger call.
            with suppress(OSError):
                fcntl.fcntl(fd, fcntl.F_FULLFSYNC)
                return
        os.fsync(fd)
    except OSError as error:
        raise StorageIOError(
            f"{os.fspath(path)}: flushing it to the disk failed: {error.strerror}; what was just written may be lost: "
            "read the file again before writing more"
        ) from error


def flush_directory(path: str | os.PathLike[str]) -> None:
    """Returns when the directory's names are on the disk; nothing to do on Windows.

    Raises:
        StorageIOError: the flush failed.
        PermissionDeniedError: the directory may not be opened.
    """
    if sys.platform == "win32":
        return
    try:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise translate(error, "open", path) from error
    try:
        os.fsync(fd)
    except OSError as error:
        raise translate(error, "flush", path) from error
    finally:
        os.close(fd)
