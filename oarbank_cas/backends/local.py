"""A store in a directory on a disk: temporaries, flushes and renames, so that what returned survives a power cut.

An object is written to a temporary, its bytes are flushed, it is renamed to its name without replacing anything, and
the directory is flushed. A batch shares its flushes: one `syncfs` for all bytes, one for all names.

`replace`, and `delete` and `rename` of a given incarnation, hold an advisory lock (one of 256, by name) from the look
to the act; creating needs none, since it only ever fills an absent name. A validator is inode, ctime and size. An
object's time is the later of mtime and ctime: a rename sets ctime, so that a writer that slept between writing a
temporary and renaming it cannot make an object that looks older than its name. Windows has no such ctime: there the new
name is touched.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat as stat_bits
import sys
import threading
import time
import zlib
from typing import TYPE_CHECKING, NoReturn

from oarbank_cas import filelock
from oarbank_cas.backends import oscalls, scratch
from oarbank_cas.backends.base import Backend, Incoming, ObjectStat, Reader
from oarbank_cas.errors import (
    CasError,
    ConflictError,
    CorruptError,
    NotFoundError,
    PermissionDeniedError,
    StorageIOError,
    UnavailableError,
    UnsupportedError,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

_CLOEXEC = getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
_READ = os.O_RDONLY | _CLOEXEC | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | _CLOEXEC
_READ_ONLY = 0o444
_EARLY_WRITEBACK = 8 * 2**20
_TRIES = 100
"""Times that a missing directory is made again: others may remove it, but a dangling link never ends."""

_KEPT_LEVELS = 2
"""Levels of directories that stay once they are made, such as `blobs/ab`."""

_FEW = 4
"""Up to this many objects are flushed one by one: a whole file system's flush may wait for other programs' bytes."""

_UNREACHABLE = frozenset({errno.ESTALE, errno.ENODEV, errno.ENOTCONN, errno.ETIMEDOUT, errno.EHOSTDOWN, errno.ENOTDIR})


class _LocalIncoming(Incoming):
    __slots__ = ("_backend", "_fd", "_written_back", "inode", "path", "placed", "size")

    def __init__(self, backend: LocalBackend, path: str) -> None:
        self._backend = backend
        self._fd: int | None = os.open(path, _CREATE, _READ_ONLY)
        self._written_back = 0
        self.inode = os.fstat(self._fd).st_ino
        self.path = path
        self.placed = False
        self.size = 0

    def write(self, chunk: bytes | bytearray | memoryview) -> None:
        assert self._fd is not None
        try:
            done = os.write(self._fd, chunk)
            if done < len(chunk):
                view = memoryview(chunk)
                while done < len(view):
                    done += os.write(self._fd, view[done:])
        except OSError as error:
            self._backend.raise_for(error, "tmp")
        self.size += done
        if self.size - self._written_back >= _EARLY_WRITEBACK:
            oscalls.start_writeback(self._fd, self._written_back, self.size - self._written_back)
            self._written_back = self.size

    def finish(self) -> None:
        if self._fd is not None:
            fd, self._fd = self._fd, None
            try:
                if not self._backend.group_commit:
                    oscalls.sync_file(fd)
            except OSError as error:
                self._backend.raise_for(error, "tmp")
            finally:
                os.close(fd)

    def discard(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None
        if not self.placed:
            with contextlib.suppress(FileNotFoundError):
                oscalls.unlink(self.path)


class _LocalReader(Reader):
    def __init__(self, backend: LocalBackend, name: str, fd: int, start: int) -> None:
        self._backend = backend
        self._fd: int | None = fd
        self.stat = _object_stat(name, os.fstat(fd))
        if start:
            os.lseek(fd, start, os.SEEK_SET)

    def read(self, size: int) -> bytes:
        assert self._fd is not None
        try:
            return os.read(self._fd, size)
        except OSError as error:
            self._backend.raise_for(error, self.stat.name)

    def readinto(self, buffer: memoryview) -> int:
        assert self._fd is not None
        try:
            return os.readv(self._fd, [buffer]) if hasattr(os, "readv") else self._read_copy(buffer)
        except OSError as error:
            self._backend.raise_for(error, self.stat.name)

    def _read_copy(self, buffer: memoryview) -> int:
        chunk = self.read(len(buffer))
        buffer[: len(chunk)] = chunk
        return len(chunk)

    def close(self) -> None:
        if self._fd is not None:
            fd, self._fd = self._fd, None
            os.close(fd)


def _object_stat(name: str, st: os.stat_result) -> ObjectStat:
    time_ns = st.st_mtime_ns if sys.platform == "win32" else max(st.st_mtime_ns, st.st_ctime_ns)
    return ObjectStat(name, st.st_size, time_ns, f"{st.st_ino:x}-{st.st_ctime_ns:x}-{st.st_size:x}")


class LocalBackend(Backend):
    """A directory.

    Args:
        root: its path.
        sentinel: an object that every store has. Where something is absent and so is this, the store is missing.
            None while a store is being made.
    """

    atomic_move = True

    def __init__(self, root: str | os.PathLike[str], sentinel: str | None = None) -> None:
        self.where = os.path.abspath(root)
        self.group_commit = oscalls.can_sync_filesystem()
        self._sentinel = sentinel
        # The \\?\ form lifts Windows' limit of 260 characters a path.
        self._root = f"\\\\?\\{self.where}\\" if os.name == "nt" else self.where.rstrip("/") + "/"
        self._scratch: scratch.Scratch | None = None
        self._scratch_lock = threading.Lock()
        self._clone_refused: set[int] = set()
        self._durable: set[str] = set()

    # -- names and errors

    def _path(self, name: str) -> str:
        return self._root + (name.replace("/", "\\") if os.name == "nt" else name)

    def raise_for(self, error: OSError, name: str) -> NoReturn:
        """Raise the package's error for one of the operating system's, met at object `name`."""
        raise self._translated(error, name) from error

    def _translated(self, error: OSError, name: str) -> CasError:
        place = f"{name} in {self.where}" if name else self.where
        if error.errno == errno.ENOENT:
            try:
                self._check_there()
            except UnavailableError as gone:
                return gone
            return NotFoundError(f"{place} is not there")
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            return PermissionDeniedError(
                f"{place}: {error.strerror}; check the owner, group and mode of the store's files"
            )
        if error.errno in _UNREACHABLE:
            return UnavailableError(f"{place} cannot be reached: {error.strerror}")
        if error.errno in (errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOLCK, errno.ENOSYS):
            return UnsupportedError(
                f"{place}: {error.strerror}; the file system cannot keep what a store needs, use another"
            )
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            return StorageIOError(f"{self.where}: {error.strerror}; free some space and run this again")
        return StorageIOError(f"{place}: {error.strerror or error}")

    def _check_there(self) -> None:
        """Raise where the store is gone: nothing may be made in the empty folder that its disk was mounted on."""
        if self._sentinel is not None and not os.path.exists(self._path(self._sentinel)):
            raise UnavailableError(
                f"the store {self.where} is not there ({self._sentinel} is missing): is its disk mounted?"
            )

    def _own(self) -> scratch.Scratch:
        own = self._scratch
        if own is not None and own.pid == os.getpid():
            return own
        with self._scratch_lock:
            if self._scratch is None or self._scratch.pid != os.getpid():
                self._check_there()
                tmp = self._path("tmp")
                try:
                    scratch.sweep(tmp)
                    self._scratch = scratch.Scratch(tmp)
                except OSError as error:
                    self.raise_for(error, "tmp")
            return self._scratch

    def _make_parents(self, path: str) -> list[str]:
        """Make the missing directories above `path`; the directories that got a new name in them."""
        self._check_there()
        changed: list[str] = []
        parent = os.path.dirname(path)
        for _ in range(_TRIES):
            try:
                os.mkdir(parent)
            except FileExistsError:
                return changed
            except FileNotFoundError:
                changed += self._make_parents(parent)
            else:
                changed.append(os.path.dirname(parent))
                return changed
        raise StorageIOError(f"the directory {parent} cannot be made: is one above it a link to nowhere?")

    @contextlib.contextmanager
    def _locked(self, name: str) -> Iterator[None]:
        path = self._path(f"tmp/locks/{zlib.crc32(name.encode()) & 0xFF:02x}")
        fd = self._open_lock(path, name)
        try:
            try:
                filelock.lock(fd)
            except OSError as error:
                self.raise_for(error, name)
            yield
        finally:
            with contextlib.suppress(OSError):
                filelock.unlock(fd)  # closing is not enough where a child was forked meanwhile
            os.close(fd)

    def _open_lock(self, path: str, name: str) -> int:
        for _ in range(_TRIES):
            try:
                return os.open(path, os.O_RDWR | os.O_CREAT | _CLOEXEC, 0o666)
            except FileNotFoundError:
                self._make_parents(path)
            except PermissionError as error:
                # Another user's lock file in a shared store: a lock needs no more than an open file.
                try:
                    return os.open(path, _READ)
                except OSError:
                    self.raise_for(error, name)
            except OSError as error:
                self.raise_for(error, name)
        raise StorageIOError(f"the lock {path} cannot be made: is its directory a link to nowhere?")

    # -- reading

    def now(self) -> int:
        """See `Backend.now`."""
        try:
            own = self._own()
            self._check_there()  # the clock's open file outlives its folder
            return own.clock()
        except OSError as error:
            self.raise_for(error, "tmp")

    def stat(self, name: str) -> ObjectStat | None:
        """See `Backend.stat`."""
        try:
            st = os.lstat(self._path(name))
        except OSError as error:
            translated = self._translated(error, name)
            if isinstance(translated, NotFoundError):
                return None
            raise translated from error
        if not stat_bits.S_ISREG(st.st_mode):
            raise CorruptError(f"{name} in {self.where} is not a regular file; remove it by hand")
        return _object_stat(name, st)

    def _open(self, name: str) -> int:
        try:
            fd = os.open(self._path(name), _READ)
        except OSError as error:
            if error.errno == errno.ELOOP:
                raise CorruptError(f"{name} in {self.where} is a symbolic link; remove it by hand") from error
            self.raise_for(error, name)
        return fd

    def read(self, name: str, max_bytes: int) -> tuple[bytes, ObjectStat]:
        """See `Backend.read`."""
        fd = self._open(name)
        try:
            st = os.fstat(fd)
            if not stat_bits.S_ISREG(st.st_mode):
                raise CorruptError(f"{name} in {self.where} is not a regular file; remove it by hand")
            if st.st_size > max_bytes:
                raise CorruptError(f"{name} in {self.where} has {st.st_size} bytes; at most {max_bytes} are read")
            data = os.read(fd, st.st_size + 1)
            while len(data) < st.st_size and (more := os.read(fd, st.st_size - len(data))):
                data += more
        except OSError as error:
            self.raise_for(error, name)
        finally:
            os.close(fd)
        return data, _object_stat(name, st)

    def open(self, name: str, start: int = 0) -> Reader:
        """See `Backend.open`."""
        fd = self._open(name)
        if not stat_bits.S_ISREG(os.fstat(fd).st_mode):
            os.close(fd)
            raise CorruptError(f"{name} in {self.where} is not a regular file; remove it by hand")
        return _LocalReader(self, name, fd, start)

    def clone(self, name: str, fd: int) -> bool:
        """See `Backend.clone`."""
        device = os.fstat(fd).st_dev
        if device in self._clone_refused:
            return False
        source = self._open(name)
        try:
            done = oscalls.share_blocks(source, fd)
        except OSError as error:
            self.raise_for(error, name)
        finally:
            os.close(source)
        if not done:
            self._clone_refused.add(device)
        return done

    def listing(self, prefix: str, after: str = "") -> Iterator[ObjectStat]:
        """See `Backend.listing`."""
        yield from self._walk(prefix, after)
        self._check_there()  # a disk that goes away looks like folders that were removed

    def _walk(self, prefix: str, after: str) -> Iterator[ObjectStat]:
        try:
            with os.scandir(self._path(prefix)) as scan:
                entries = [self._listed(prefix, e) for e in scan]
        except FileNotFoundError:
            return  # never made, or removed since its parent was listed
        except OSError as error:
            self.raise_for(error, prefix)
        for name in sorted(entries):
            if name.endswith("/"):
                if name > after or after.startswith(name):
                    yield from self._walk(name, after)
            elif name > after:
                try:
                    st = os.lstat(self._path(name))
                except FileNotFoundError:
                    continue
                except OSError as error:
                    self.raise_for(error, name)
                if stat_bits.S_ISREG(st.st_mode):
                    yield _object_stat(name, st)

    def strays(self, prefix: str) -> Iterator[tuple[str, str]]:
        """See `Backend.strays`: links, devices, pipes, sockets."""
        folders: list[str] = []
        try:
            with os.scandir(self._path(prefix)) as scan:
                for found in scan:
                    if found.is_dir(follow_symlinks=False):
                        folders.append(f"{prefix}{found.name}/")
                    elif not found.is_file(follow_symlinks=False):
                        yield f"{prefix}{found.name}", "a symbolic link" if found.is_symlink() else "no regular file"
        except (FileNotFoundError, NotADirectoryError):
            self._check_there()
            return
        except OSError as error:
            self.raise_for(error, prefix)
        for folder in folders:
            yield from self.strays(folder)

    def _listed(self, prefix: str, found: os.DirEntry[str]) -> str:
        if found.is_dir(follow_symlinks=False):
            return f"{prefix}{found.name}/"
        if found.is_symlink() and found.is_dir():
            # Names below it can be read: leaving them out would be a listing that comes back short.
            raise CorruptError(f"{prefix}{found.name} in {self.where} is a link to a directory; replace it by one")
        return prefix + found.name

    # -- writing

    def incoming(self, size_hint: int | None = None) -> Incoming:
        """See `Backend.incoming`."""
        del size_hint
        own = self._own()
        try:
            return _LocalIncoming(self, own.new_path())
        except FileNotFoundError:
            self._forget(own)  # somebody emptied tmp/
        except OSError as error:
            self.raise_for(error, "tmp")
        try:
            return _LocalIncoming(self, self._own().new_path())
        except OSError as error:
            self.raise_for(error, "tmp")

    def _forget(self, own: scratch.Scratch) -> None:
        with self._scratch_lock:
            if self._scratch is own:
                self._scratch = None  # it goes when the last thread that uses it lets go

    def commit(self, items: Sequence[tuple[str, Incoming]]) -> list[ObjectStat | None]:
        """See `Backend.commit`."""
        if not items:
            return []
        try:
            pieces = [(name, _local(incoming)) for name, incoming in items]
            self._check_there()
            self._flush_bytes([piece for _, piece in pieces])
            changed: set[str] = set()
            stats = [self._create(name, piece, changed) for name, piece in pieces]
            self._flush_names(changed)
        except OSError as error:
            self.raise_for(error, items[0][0])
        finally:
            for _, incoming in items:
                incoming.discard()
        return stats

    def _flush_bytes(self, pieces: Sequence[_LocalIncoming]) -> None:
        for piece in pieces:
            piece.finish()
        if self.group_commit:
            if len(pieces) > _FEW:
                self._sync_filesystem()
            else:
                for piece in pieces:
                    fd = os.open(piece.path, _READ)
                    try:
                        oscalls.sync_file(fd)
                    finally:
                        os.close(fd)

    def _sync_filesystem(self) -> None:
        fd = os.open(self._root, _READ)
        try:
            oscalls.sync_filesystem(fd)
        finally:
            os.close(fd)

    def _flush_names(self, directories: set[str]) -> None:
        if self.group_commit and len(directories) > _FEW:
            self._sync_filesystem()
        else:
            for directory in directories:
                oscalls.sync_directory(directory)
        # Only those near the root: they are few, and never removed.
        self._durable.update(
            directory
            for directory in directories
            if directory.count(os.sep, len(self._root)) < _KEPT_LEVELS and os.path.dirname(directory) in directories
        )

    def _not_yet_durable(self, directory: str) -> list[str]:
        """The directory, and those above it down to which a new name in it may yet be lost.

        Another process may have made them a moment ago, and not flushed them yet.
        """
        found = [directory]
        while directory not in self._durable and len(directory) > len(self._root):
            directory = os.path.dirname(directory)
            found.append(directory)
        return found

    def _create(self, name: str, piece: _LocalIncoming, changed: set[str]) -> ObjectStat | None:
        path = self._path(name)
        changed.update(self._not_yet_durable(os.path.dirname(path)))
        for _ in range(_TRIES):
            try:
                oscalls.rename_new(piece.path, path)
            except FileNotFoundError:
                if not os.path.exists(piece.path):
                    self._check_there()
                    raise StorageIOError(f"{self.where}: a temporary file was removed; run this again") from None
                changed.update(self._make_parents(path))
            except FileExistsError:
                return None
            else:
                piece.placed = True
                return self._stat_new(name, path, piece)
        raise StorageIOError(f"the directory of {path} cannot be made: is it a link to nowhere?")

    def _stat_new(self, name: str, path: str, piece: _LocalIncoming) -> ObjectStat:
        with contextlib.suppress(FileNotFoundError):
            if sys.platform == "win32":
                os.utime(path)
            st = os.lstat(path)
            if st.st_ino == piece.inode:
                return _object_stat(name, st)
        # Another took it away, or put its own there, since it was made.
        return ObjectStat(name, piece.size, self._own().clock(), f"gone-{piece.inode:x}")

    def replace(self, name: str, incoming: Incoming, expected: str) -> ObjectStat | None:
        """See `Backend.replace`."""
        piece = _local(incoming)
        path = self._path(name)
        try:
            self._flush_bytes([piece])
            with self._locked(name):
                standing = self.stat(name)
                if standing is None or standing.validator != expected:
                    return None
                _outlive(piece.path, os.lstat(path).st_ctime_ns)
                oscalls.replace(piece.path, path)
                piece.placed = True
                stat = self._stat_new(name, path, piece)
            self._flush_names(set(self._not_yet_durable(os.path.dirname(path))))
        except OSError as error:
            self.raise_for(error, name)
        finally:
            incoming.discard()
        return stat

    def delete(self, name: str, expected: str | None = None) -> bool:
        """See `Backend.delete`."""
        return self._delete_all([(name, expected)]) == 1

    def delete_many(self, names: Sequence[str]) -> int:
        """See `Backend.delete_many`."""
        return self._delete_all([(name, None) for name in names])

    def _delete_all(self, items: Sequence[tuple[str, str | None]]) -> int:
        changed: set[str] = set()
        removed = 0
        try:
            for name, expected in items:
                if self._unlink(name, expected):
                    removed += 1
                    changed.add(os.path.dirname(self._path(name)))
        finally:
            try:
                # A directory that went too has nothing left to lose.
                self._flush_names({directory for directory in changed if os.path.isdir(directory)})
            except FileNotFoundError:
                pass
            except OSError as error:
                self.raise_for(error, items[0][0])
        return removed

    def _unlink(self, name: str, expected: str | None) -> bool:
        try:
            with self._locked(name) if expected is not None else contextlib.nullcontext():
                standing = self.stat(name)
                if standing is None or expected not in (None, standing.validator):
                    return False
                self._outlast(standing.time_ns)
                oscalls.unlink(self._path(name))
        except FileNotFoundError:
            return False
        except OSError as error:
            self.raise_for(error, name)
        return True

    def _outlast(self, time_ns: int) -> None:
        """Wait until the store's clock has passed an object that is to go: its inode may be used again at once."""
        own = self._own()
        while 0 <= time_ns - own.clock() < 10**9:
            time.sleep(0.001)

    def copy(self, name: str, to: str) -> ObjectStat | None:
        """See `Backend.copy`."""
        with self.open(name) as reader:
            piece = self.incoming(reader.stat.size)
            try:
                if self.clone(name, _descriptor(piece)):
                    piece.size = reader.stat.size
                else:
                    while chunk := reader.read(2**20):
                        piece.write(chunk)
            except BaseException:
                piece.discard()
                raise
        return self.commit([(to, piece)])[0]

    def rename(self, name: str, to: str, expected: str) -> bool:
        """See `Backend.rename`."""
        return self.rename_many([(name, to, expected)])[0]

    def rename_many(self, moves: Sequence[tuple[str, str, str]]) -> list[bool]:
        """See `Backend.rename_many`."""
        changed: set[str] = set()
        try:
            return [self._rename(name, to, expected, changed) for name, to, expected in moves]
        finally:
            try:
                self._flush_names(changed)
            except OSError as error:
                self.raise_for(error, moves[0][0])

    def _rename(self, name: str, to: str, expected: str, changed: set[str]) -> bool:
        path, target = self._path(name), self._path(to)
        try:
            with self._locked(name):
                standing = self.stat(name)
                if standing is None or standing.validator != expected:
                    return False
                changed.update((os.path.dirname(path), *self._not_yet_durable(os.path.dirname(target))))
                changed.update(self._make_parents(target))
                oscalls.rename_new(path, target)
        except FileExistsError as error:
            raise ConflictError(f"{to} stands already in {self.where}") from error
        except OSError as error:
            self.raise_for(error, name)
        return True

    def touch(self, name: str) -> ObjectStat | None:
        """See `Backend.touch`."""
        return self.touch_many([name])[0]

    def touch_many(self, names: Sequence[str]) -> list[ObjectStat | None]:
        """See `Backend.touch_many`."""
        one_by_one = len(names) <= _FEW or not self.group_commit
        touched = [self._touch(name, flush=one_by_one) for name in names]
        if not one_by_one:
            try:
                self._sync_filesystem()
            except OSError as error:
                self.raise_for(error, names[0])
        return [self.stat(name) if done else None for name, done in zip(names, touched, strict=True)]

    def _touch(self, name: str, *, flush: bool) -> bool:
        path = self._path(name)
        if self.stat(name) is None:
            return False
        try:
            os.utime(path)
            if flush and sys.platform != "win32":
                fd = os.open(path, _READ)
                try:
                    oscalls.sync_file(fd)
                finally:
                    os.close(fd)
        except FileNotFoundError:
            return False
        except OSError as error:
            self.raise_for(error, name)
        return True

    def flush(self, names: Iterable[str]) -> None:
        """See `Backend.flush`."""
        directories: set[str] = set()
        for name in names:
            directories.update(self._not_yet_durable(os.path.dirname(self._path(name))))
        if not directories:
            return
        try:
            self._check_there()
            self._flush_names(directories)
        except OSError as error:
            self.raise_for(error, "")

    def sweep(self) -> int:
        """See `Backend.sweep`."""
        self._check_there()
        try:
            return scratch.sweep(self._path("tmp"))
        except OSError as error:
            self.raise_for(error, "tmp")

    def close(self) -> None:
        """See `Backend.close`."""
        with self._scratch_lock:
            if self._scratch is not None:
                self._scratch.close()
                self._scratch = None


def _local(incoming: Incoming) -> _LocalIncoming:
    assert isinstance(incoming, _LocalIncoming)
    return incoming


def _descriptor(incoming: Incoming) -> int:
    fd = _local(incoming)._fd  # noqa: SLF001 - one module
    assert fd is not None
    return fd


def _outlive(path: str, ctime_ns: int) -> None:
    """Have the file's ctime pass `ctime_ns`, so that no two incarnations of one name share a validator.

    Inodes are used again at once, and a file system's clock ticks only every few milliseconds.
    """
    deadline = time.monotonic() + 1.0
    while os.lstat(path).st_ctime_ns <= ctime_ns and time.monotonic() < deadline:
        time.sleep(0.001)
        os.utime(path)
