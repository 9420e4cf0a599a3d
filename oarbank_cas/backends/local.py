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
import time
from typing import TYPE_CHECKING

from oarbank_cas.backends import local_create, local_walk, oscalls, scratch
from oarbank_cas.backends.base import Backend, Incoming, ObjectStat, Reader, Workshop
from oarbank_cas.backends.local_files import LocalIncoming, LocalReader, object_stat
from oarbank_cas.backends.local_place import FEW, READ, Place
from oarbank_cas.errors import (
    ConflictError,
    CorruptError,
    NotFoundError,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from oarbank_cas.backends.base import Namer


class LocalBackend(Backend):
    """A directory.

    Args:
        root: its path.
        sentinel: an object that every store has. Where something is absent and so is this, the store is missing.
            None while a store is being made.
    """

    atomic_move = True

    def __init__(self, root: str | os.PathLike[str], sentinel: str | None = None) -> None:
        self._place = Place(root, sentinel)
        self.where = self._place.where
        self.group_commit = self._place.group_flush
        self._clone_refused: set[int] = set()

    # -- reading

    def now(self) -> int:
        """See `Backend.now`."""
        try:
            own = self._place.own()
            self._place.check_there()  # the clock's open file outlives its folder
            return own.clock()
        except OSError as error:
            self._place.raise_for(error, "tmp")

    def stat(self, name: str) -> ObjectStat | None:
        """See `Backend.stat`."""
        try:
            st = os.lstat(self._place.path(name))
        except OSError as error:
            translated = self._place.translated(error, name)
            if isinstance(translated, NotFoundError):
                return None
            raise translated from error
        if not stat_bits.S_ISREG(st.st_mode):
            raise CorruptError(f"{name} in {self.where} is not a regular file; remove it by hand")
        return object_stat(name, st)

    def _open(self, name: str) -> int:
        try:
            fd = os.open(self._place.path(name), READ)
        except OSError as error:
            if error.errno == errno.ELOOP:
                raise CorruptError(f"{name} in {self.where} is a symbolic link; remove it by hand") from error
            self._place.raise_for(error, name)
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
            self._place.raise_for(error, name)
        finally:
            os.close(fd)
        return data, object_stat(name, st)

    def open(self, name: str, start: int = 0) -> Reader:
        """See `Backend.open`."""
        fd = self._open(name)
        if not stat_bits.S_ISREG(os.fstat(fd).st_mode):
            os.close(fd)
            raise CorruptError(f"{name} in {self.where} is not a regular file; remove it by hand")
        return LocalReader(self._place, name, fd, start)

    def clone(self, name: str, fd: int) -> bool:
        """See `Backend.clone`."""
        device = os.fstat(fd).st_dev
        if device in self._clone_refused:
            return False
        source = self._open(name)
        try:
            done = oscalls.share_blocks(source, fd)
        except OSError as error:
            self._place.raise_for(error, name)
        finally:
            os.close(source)
        if not done:
            self._clone_refused.add(device)
        return done

    def listing(self, prefix: str, after: str = "") -> Iterator[ObjectStat]:
        """See `Backend.listing`."""
        yield from local_walk.objects(self._place, prefix, after)
        self._place.check_there()  # a disk that goes away looks like folders that were removed

    def strays(self, prefix: str, *, folders: bool = False) -> Iterator[tuple[str, str]]:
        """See `Backend.strays`: links, devices, pipes, sockets."""
        return local_walk.strays(self._place, prefix, folders=folders)

    # -- writing

    def incoming(self, size_hint: int | None = None) -> LocalIncoming:
        """See `Backend.incoming`."""
        del size_hint
        own = self._place.own()
        try:
            return LocalIncoming(self._place, own.new_path())
        except FileNotFoundError:
            self._place.forget(own)  # somebody emptied tmp/
        except OSError as error:
            self._place.raise_for(error, "tmp")
        try:
            return LocalIncoming(self._place, self._place.own().new_path())
        except OSError as error:
            self._place.raise_for(error, "tmp")

    def workshop(self) -> Workshop | None:
        """See `Backend.workshop`. Without a flush for all at once each file is flushed by whoever wrote it."""
        return Workshop(self._place.path(""), self._place.own().new_path()) if self._place.group_flush else None

    def adopt(self, path: str, size: int) -> Incoming:
        """See `Backend.adopt`."""
        return LocalIncoming(self._place, path, whole=size)

    def commit(self, items: Sequence[tuple[str, Incoming]]) -> list[ObjectStat | None]:
        """See `Backend.commit`."""
        return local_create.create_all(self._place, _local(items), local_create.create_told)

    def create_many(self, items: Sequence[tuple[str, Incoming]], namer: Namer | None = None) -> list[bool]:
        """See `Backend.create_many`."""
        return local_create.create_all(self._place, _local(items), local_create.create, namer)

    def replace(self, name: str, incoming: Incoming, expected: str) -> ObjectStat | None:
        """See `Backend.replace`."""
        [(_, piece)] = _local([(name, incoming)])
        path = self._place.path(name)
        try:
            local_create.flush_bytes(self._place, [piece])
            with self._place.locked(name):
                standing = self.stat(name)
                if standing is None or standing.validator != expected:
                    return None
                _outlive(piece.path, os.lstat(path).st_ctime_ns)
                inode = piece.inode()
                oscalls.replace(piece.path, path)
                piece.placed = True
                if sys.platform == "win32":
                    os.utime(path)
                stat = local_create.stat_new(self._place, name, piece, inode)
            self._place.flush_names(set(self._place.not_yet_durable(os.path.dirname(path))))
        except OSError as error:
            self._place.raise_for(error, name)
        finally:
            incoming.discard()
        return stat

    def delete(self, name: str, expected: str | None = None) -> bool:
        """See `Backend.delete`."""
        return self._delete_all([(name, expected)]) == 1

    def delete_many(self, names: Sequence[str]) -> None:
        """See `Backend.delete_many`."""
        self._delete_all([(name, None) for name in names])

    def _delete_all(self, items: Sequence[tuple[str, str | None]]) -> int:
        changed: set[str] = set()
        removed = 0
        try:
            for name, expected in items:
                if self._unlink(name, expected):
                    removed += 1
                    changed.add(os.path.dirname(self._place.path(name)))
        finally:
            try:
                # A directory that went too has nothing left to lose.
                self._place.flush_names({directory for directory in changed if os.path.isdir(directory)})
            except FileNotFoundError:
                pass
            except OSError as error:
                self._place.raise_for(error, items[0][0])
        return removed

    def _unlink(self, name: str, expected: str | None) -> bool:
        try:
            with self._place.locked(name) if expected is not None else contextlib.nullcontext():
                standing = self.stat(name)
                if standing is None or expected not in (None, standing.validator):
                    return False
                self._outlast(standing.time_ns)
                oscalls.unlink(self._place.path(name))
        except FileNotFoundError:
            return False
        except OSError as error:
            self._place.raise_for(error, name)
        return True

    def _outlast(self, time_ns: int) -> None:
        """Wait until the store's clock has passed an object that is to go: its inode may be used again at once."""
        own = self._place.own()
        while 0 <= time_ns - own.clock() < 10**9:
            time.sleep(0.001)

    def copy(self, name: str, to: str) -> ObjectStat | None:
        """See `Backend.copy`."""
        with self.open(name) as reader:
            piece = self.incoming(reader.stat.size)
            try:
                if self.clone(name, piece.descriptor()):
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
                self._place.flush_names(changed)
            except OSError as error:
                self._place.raise_for(error, moves[0][0])

    def _rename(self, name: str, to: str, expected: str, changed: set[str]) -> bool:
        path, target = self._place.path(name), self._place.path(to)
        try:
            with self._place.locked(name):
                standing = self.stat(name)
                if standing is None or standing.validator != expected:
                    return False
                changed.update((os.path.dirname(path), *self._place.not_yet_durable(os.path.dirname(target))))
                changed.update(self._place.make_parents(target))
                oscalls.rename_new(path, target)
        except FileExistsError as error:
            raise ConflictError(f"{to} stands already in {self.where}") from error
        except OSError as error:
            self._place.raise_for(error, name)
        return True

    def touch(self, name: str) -> ObjectStat | None:
        """See `Backend.touch`."""
        return self.touch_many([name])[0]

    def touch_many(self, names: Sequence[str]) -> list[ObjectStat | None]:
        """See `Backend.touch_many`."""
        one_by_one = len(names) <= FEW or not self.group_commit
        touched = [self._touch(name, flush=one_by_one) for name in names]
        if not one_by_one:
            try:
                self._place.flush_everything()
            except OSError as error:
                self._place.raise_for(error, names[0])
        return [self.stat(name) if done else None for name, done in zip(names, touched, strict=True)]

    def _touch(self, name: str, *, flush: bool) -> bool:
        path = self._place.path(name)
        if self.stat(name) is None:
            return False
        try:
            os.utime(path)
            if flush and sys.platform != "win32":
                fd = os.open(path, READ)
                try:
                    oscalls.sync_file(fd)
                finally:
                    os.close(fd)
        except FileNotFoundError:
            return False
        except OSError as error:
            self._place.raise_for(error, name)
        return True

    def flush(self, names: Iterable[str]) -> None:
        """See `Backend.flush`."""
        directories: set[str] = set()
        for name in names:
            directories.update(self._place.not_yet_durable(os.path.dirname(self._place.path(name))))
        if not directories:
            return
        try:
            self._place.check_there()
            self._place.flush_names(directories)
        except OSError as error:
            self._place.raise_for(error, "")

    def sweep(self) -> int:
        """See `Backend.sweep`."""
        self._place.check_there()
        try:
            return scratch.sweep(self._place.path("tmp"))
        except OSError as error:
            self._place.raise_for(error, "tmp")

    def close(self) -> None:
        """See `Backend.close`."""
        self._place.close()


def _local(items: Sequence[tuple[str, Incoming]]) -> list[tuple[str, LocalIncoming]]:
    pieces = []
    for name, incoming in items:
        assert isinstance(incoming, LocalIncoming)
        pieces.append((name, incoming))
    return pieces


def _outlive(path: str, ctime_ns: int) -> None:
    """Have the file's ctime pass `ctime_ns`, so that no two incarnations of one name share a validator.

    Inodes are used again at once, and a file system's clock ticks only every few milliseconds.
    """
    deadline = time.monotonic() + 1.0
    while os.lstat(path).st_ctime_ns <= ctime_ns and time.monotonic() < deadline:
        time.sleep(0.001)
        os.utime(path)
