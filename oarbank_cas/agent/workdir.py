"""A work directory that cannot be left: every path below it is walked step by step, never through a symbolic link.

A runner may have planted links, pipes or worse. Directories are opened one inside the other (`openat`), so what was
checked is what is used. Where the system has no such calls (Windows) each step is looked at before it is taken.
"""

from __future__ import annotations

import errno
import functools
import os
import stat
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Self, TypeVar

from oarbank_cas.errors import ConflictError, InvalidInputError, PermissionDeniedError, StorageIOError

_READ = (
    os.O_RDONLY
    | getattr(os, "O_CLOEXEC", 0)
    | getattr(os, "O_BINARY", 0)
    | getattr(os, "O_NOFOLLOW", 0)
    | getattr(os, "O_NONBLOCK", 0)
)
_MAX_LINKS = 8
_KEPT_FOLDERS = 64
_MANY_IN_A_FOLDER = 20
_T = TypeVar("_T")
HAS_DIR_FD = os.open in os.supports_dir_fd and os.mkdir in os.supports_dir_fd

_KINDS = {
    stat.S_IFREG: "a file",
    stat.S_IFDIR: "a directory",
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFLNK: "a symbolic link",
}


_IS_SURROGATE = 0x20000000
"""The bit of a reparse tag that says: this stands for another name (a junction, a symbolic link)."""


def _is_link(found: os.stat_result) -> bool:
    return stat.S_ISLNK(found.st_mode) or bool(getattr(found, "st_reparse_tag", 0) & _IS_SURROGATE)


def kind_of(mode: int) -> str:
    """What a file of this `st_mode` is, in words."""
    return _KINDS.get(stat.S_IFMT(mode), "something unknown")


class Folder:
    """An open directory. Where the system has no directory descriptors it is known by its path.

    Args:
        path: its path; a symbolic link at its end is followed only here, at the top.
    """

    def __init__(self, path: str | os.PathLike[str], *, _inside: tuple[Folder, str] | None = None) -> None:
        self.path = os.path.abspath(path)
        self.fd: int | None = None
        self._kept: dict[str, Folder] = {}
        self._lock = threading.Lock()
        parent, name = _inside or (None, "")
        try:
            if not HAS_DIR_FD:
                if parent is not None and _is_link(os.lstat(self.path)):
                    raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), self.path)
                os.listdir(self.path)
            elif parent is None:
                self.fd = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            else:
                self.fd = os.open(name, _READ | os.O_DIRECTORY, dir_fd=parent.fd)
        except OSError as error:
            raise self._refused(error, top=parent is None) from error

    def _refused(self, error: OSError, *, top: bool) -> InvalidInputError:
        if error.errno == errno.ENOENT:
            return InvalidInputError("is missing", self.path)
        if top and error.errno == errno.ENOTDIR:
            return InvalidInputError("is not a directory", self.path)
        if error.errno in (errno.ENOTDIR, errno.ELOOP):
            return InvalidInputError("is not a directory, or a symbolic link to one, which is not followed", self.path)
        return InvalidInputError(f"cannot be opened: {error.strerror}", self.path)

    @functools.cached_property
    def device(self) -> int:
        """The device that it is on."""
        return (os.stat(self.path) if self.fd is None else os.fstat(self.fd)).st_dev

    def at(self, name: str) -> str:
        """What `name` in this folder is called in a call that gets `fd` as its `dir_fd`."""
        return name if self.fd is not None else os.path.join(self.path, name)

    def enter(self, name: str) -> Folder:
        """The folder `name` in this one, unless it is a symbolic link.

        Raises:
            InvalidInputError: it is missing, or no directory.
        """
        return Folder(os.path.join(self.path, name), _inside=(self, name))

    def make(self, name: str) -> Folder:
        """The folder `name` in this one, made if it is absent.

        Raises:
            InvalidInputError: something else stands there.
            ConflictError: it cannot be made.
        """
        try:
            os.mkdir(self.at(name), dir_fd=self.fd)
        except FileExistsError:
            pass
        except OSError as error:
            raise ConflictError(f"cannot create {os.path.join(self.path, name)}: {error.strerror}") from error
        return self.enter(name)

    def walk(self, parts: list[str], *, make: bool = False) -> Folder:
        """The folder at the end of `parts`, a new one even where there are none; the caller closes it."""
        folder = self._again()
        for part in parts:
            try:
                following = folder.make(part) if make else folder.enter(part)
            finally:
                folder.close()
            folder = following
        return folder

    def _again(self) -> Folder:
        return Folder(self.path) if self.fd is None else self.enter(".")

    def lstat(self, name: str) -> os.stat_result | None:
        """The status of `name` itself, or None where it is absent."""
        try:
            return os.stat(self.at(name), dir_fd=self.fd, follow_symlinks=False)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise InvalidInputError(f"cannot be read: {error.strerror}", os.path.join(self.path, name)) from error

    def names(self) -> list[str]:
        """The names in it, sorted."""
        try:
            return sorted(os.listdir(self.path if self.fd is None else self.fd))
        except OSError as error:
            raise InvalidInputError(f"cannot be read: {error.strerror}", self.path) from error

    def close(self) -> None:
        """Release it. Harmless when repeated."""
        for folder in self._kept.values():
            folder.close()
        self._kept = {}
        if self.fd is not None:
            os.close(self.fd)
            self.fd = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def open_file(self, local: str) -> int:
        """A descriptor of the regular file at the `/`-separated path `local` below this folder.

        The file itself may be a symbolic link that stays inside; a directory on the way may not.

        Raises:
            InvalidInputError: it is missing, leaves the folder, or is no regular file; the message names it.
        """
        return self._act_on(local, _open_regular)

    def check_file(self, local: str) -> None:
        """Refuse what `open_file` would refuse, as far as a look without opening tells.

        Raises:
            InvalidInputError: as `open_file`.
        """
        self._act_on(local, _check_regular)

    def check_files(self, locals_: Sequence[str]) -> None:
        """Like `check_file` for each, in order; a directory with many of them is read once.

        Raises:
            InvalidInputError: as `open_file`, for the first that is refused.
        """
        folders: dict[str, int] = {}
        for local in locals_:
            folder = local.rpartition("/")[0]
            folders[folder] = folders.get(folder, 0) + 1
        regular = {
            folder: self._regular_files(folder) for folder, count in folders.items() if count >= _MANY_IN_A_FOLDER
        }
        for local in locals_:
            folder, _, name = local.rpartition("/")
            if name not in regular.get(folder, ()):
                self.check_file(local)

    def _regular_files(self, directory: str) -> set[str]:
        """The regular files in a directory, as far as its listing tells; none where it is not to be read."""
        if self.fd is None:
            return set()
        try:
            with self._reached(directory.split("/") if directory else [], directory) as folder:
                assert folder.fd is not None
                with os.scandir(folder.fd) as found:
                    return {each.name for each in found if each.is_file(follow_symlinks=False)}
        except (OSError, InvalidInputError):
            return set()

    def _act_on(self, local: str, act: Callable[[Folder, str, str, os.stat_result], _T]) -> _T:
        path = local
        for _ in range(_MAX_LINKS):
            *directories, name = path.split("/")
            with self._reached(directories, local) as folder:
                found = folder.lstat(name)
                if found is None:
                    raise InvalidInputError("is missing", local)
                if not _is_link(found):
                    return act(folder, name, local, found)
                try:
                    target = os.readlink(folder.at(name), dir_fd=folder.fd)
                except OSError as error:
                    raise _replaced(local) from error
                path = self._link_target(target, directories, local)
        raise InvalidInputError("leads through too many symbolic links", local)

    @contextmanager
    def _reached(self, directories: list[str], local: str) -> Iterator[Folder]:
        """The folder at the end of `directories`. A few are kept open, since a job's files stand side by side."""
        path = "/".join(directories)
        folder = self._kept.get(path)
        if folder is not None:
            yield folder
            return
        try:
            folder = self.walk(directories)
        except InvalidInputError as error:
            raise InvalidInputError(f"cannot be reached: {error}", local) from error
        with self._lock:
            keep = self.fd is not None and len(self._kept) < _KEPT_FOLDERS and path not in self._kept
            if keep:
                self._kept[path] = folder
        try:
            yield folder
        finally:
            if not keep:
                folder.close()

    def _link_target(self, target: str, directories: list[str], local: str) -> str:
        target = target.replace(os.sep, "/")
        inside = os.path.realpath(self.path).replace(os.sep, "/").rstrip("/") + "/"
        if target.startswith(inside):
            target, directories = target[len(inside) :], []
        if target.startswith("/") or os.path.isabs(target):
            raise InvalidInputError(f"is a symbolic link that leaves the work directory: {target}", local)
        parts: list[str] = list(directories)
        for part in target.split("/"):
            if part == "..":
                if not parts:
                    raise InvalidInputError(f"is a symbolic link that leaves the work directory: {target}", local)
                parts.pop()
            elif part not in ("", "."):
                parts.append(part)
        if not parts:
            raise InvalidInputError("is a symbolic link to the work directory itself", local)
        return "/".join(parts)


def _check_regular(folder: Folder, name: str, local: str, found: os.stat_result) -> None:
    del folder, name
    if not stat.S_ISREG(found.st_mode):
        raise InvalidInputError(f"is {kind_of(found.st_mode)}, not a regular file", local)


def _open_regular(folder: Folder, name: str, local: str, found: os.stat_result) -> int:
    _check_regular(folder, name, local, found)
    try:
        fd = os.open(folder.at(name), _READ, dir_fd=folder.fd)
    except PermissionError as error:
        raise PermissionDeniedError(f"{local} cannot be read: {error.strerror}") from error
    except OSError as error:
        raise InvalidInputError(f"cannot be read: {error.strerror}", local) from error
    opened = os.fstat(fd)
    if not stat.S_ISREG(opened.st_mode) or (opened.st_dev, opened.st_ino) != (found.st_dev, found.st_ino):
        os.close(fd)
        raise _replaced(local)
    return fd


def _replaced(local: str) -> StorageIOError:
    return StorageIOError(f"{local} was replaced while it was opened: let its writer end, then run this again")


@dataclass(frozen=True, slots=True)
class LocalSource:
    """A file of a work directory, to put into a store.

    Attributes:
        workdir: the work directory.
        local: the path below it, `/`-separated.
    """

    workdir: Folder
    local: str

    @property
    def label(self) -> str:
        """The path below the work directory."""
        return self.local

    def open(self) -> int:
        """A descriptor of the regular file; see `Folder.open_file`."""
        return self.workdir.open_file(self.local)

    def place(self) -> tuple[int | None, str]:
        """See `PlacedSource.place`."""
        fd = self.workdir.fd
        return (None, os.path.join(self.workdir.path, self.local)) if fd is None else (fd, self.local)
