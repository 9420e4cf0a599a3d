"""A store in this process's memory, for tests and trials: it can behave like a disk or like an object store."""

from __future__ import annotations

import itertools
import threading
import time
from dataclasses import replace as changed
from typing import TYPE_CHECKING

from oarbank_cas.backends.base import Backend, Incoming, ObjectStat, Reader
from oarbank_cas.errors import ConflictError, CorruptError, NotFoundError, UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

_PAGE = 1000


class _MemoryIncoming(Incoming):
    def __init__(self) -> None:
        self.buffer = bytearray()
        self.size = 0

    def write(self, chunk: bytes | bytearray | memoryview) -> None:
        self.buffer += chunk
        self.size = len(self.buffer)

    def finish(self) -> None:
        pass

    def discard(self) -> None:
        self.buffer = bytearray()


class _MemoryReader(Reader):
    def __init__(self, stat: ObjectStat, data: bytes, start: int) -> None:
        self.stat = stat
        self._view = memoryview(data)[start:]

    def read(self, size: int) -> bytes:
        chunk = self._view[:size]
        self._view = self._view[size:]
        return bytes(chunk)

    def readinto(self, buffer: memoryview) -> int:
        chunk = self._view[: len(buffer)]
        buffer[: len(chunk)] = chunk
        self._view = self._view[len(chunk) :]
        return len(chunk)

    def close(self) -> None:
        self._view = memoryview(b"")


class MemoryBackend(Backend):
    """Objects in a dict.

    Args:
        atomic_move: behave like a disk (`rename` is one step and keeps the time) or, False, like an object store.
        clock: the store's own time in nanoseconds.
        granularity_ns: times are cut to a multiple of this, as object stores with whole seconds do.
    """

    def __init__(
        self, *, atomic_move: bool = True, clock: Callable[[], int] = time.time_ns, granularity_ns: int = 1
    ) -> None:
        self.where = f"memory:{id(self):x}"
        self.atomic_move = atomic_move
        self.group_commit = False
        self.expiring_delete = not atomic_move
        self._clock = clock
        self._granularity_ns = granularity_ns
        self._objects: dict[str, tuple[ObjectStat, bytes]] = {}
        self._serial = itertools.count(1)
        self._lock = threading.Lock()

    def now(self) -> int:
        """See `Backend.now`."""
        return self._clock() // self._granularity_ns * self._granularity_ns

    def _put(self, name: str, data: bytes) -> ObjectStat:
        stat = ObjectStat(name, len(data), self.now(), f"v{next(self._serial)}")
        self._objects[name] = (stat, data)
        return stat

    def _is(self, name: str, expected: str | None) -> bool:
        found = self._objects.get(name)
        return found is not None and expected in (None, found[0].validator)

    def _get(self, name: str) -> tuple[ObjectStat, bytes]:
        found = self._objects.get(name)
        if found is None:
            raise NotFoundError(f"{name} is not in {self.where}")
        return found

    def stat(self, name: str) -> ObjectStat | None:
        """See `Backend.stat`."""
        found = self._objects.get(name)
        return found[0] if found else None

    def read(self, name: str, max_bytes: int) -> tuple[bytes, ObjectStat]:
        """See `Backend.read`."""
        stat, data = self._get(name)
        if stat.size > max_bytes:
            raise CorruptError(f"{name} in {self.where} has {stat.size} bytes; at most {max_bytes} are read")
        return data, stat

    def open(self, name: str, start: int = 0) -> Reader:
        """See `Backend.open`."""
        stat, data = self._get(name)
        return _MemoryReader(stat, data, start)

    def incoming(self, size_hint: int | None = None) -> Incoming:
        """See `Backend.incoming`."""
        del size_hint
        return _MemoryIncoming()

    def commit(self, items: Sequence[tuple[str, Incoming]]) -> list[ObjectStat | None]:
        """See `Backend.commit`."""
        return [self._create(name, _bytes_of(incoming)) for name, incoming in items]

    def _create(self, name: str, data: bytes) -> ObjectStat | None:
        with self._lock:
            return None if name in self._objects else self._put(name, data)

    def replace(self, name: str, incoming: Incoming, expected: str) -> ObjectStat | None:
        """See `Backend.replace`."""
        with self._lock:
            return self._put(name, _bytes_of(incoming)) if self._is(name, expected) else None

    def delete(self, name: str, expected: str | None = None) -> bool:
        """See `Backend.delete`."""
        with self._lock:
            if not self._is(name, expected):
                return False
            del self._objects[name]
            return True

    def delete_expiring(self, name: str, issued_ns: int, life_s: int) -> bool:
        """See `Backend.delete_expiring`."""
        if not self.expiring_delete:
            return super().delete_expiring(name, issued_ns, life_s)
        if self.now() > issued_ns + life_s * 10**9:
            raise ConflictError(f"{self.where} refused a delete of {name} that came after its time")
        return self.delete(name)

    def copy(self, name: str, to: str) -> ObjectStat | None:
        """See `Backend.copy`."""
        return self._create(to, self._get(name)[1])

    def rename(self, name: str, to: str, expected: str) -> bool:
        """See `Backend.rename`."""
        self._needs_atomic_move("rename")
        with self._lock:
            if not self._is(name, expected):
                return False
            if to in self._objects:
                raise ConflictError(f"{to} stands already in {self.where}")
            stat, data = self._objects.pop(name)
            self._objects[to] = (changed(stat, name=to), data)
            return True

    def touch(self, name: str) -> ObjectStat | None:
        """See `Backend.touch`."""
        self._needs_atomic_move("touch")
        with self._lock:
            found = self._objects.get(name)
            return self._put(name, found[1]) if found else None

    def _needs_atomic_move(self, what: str) -> None:
        if not self.atomic_move:
            raise UnsupportedError(f"{self.where} cannot {what} objects: copy and delete instead")

    def listing(self, prefix: str, after: str = "") -> Iterator[ObjectStat]:
        """See `Backend.listing`."""
        while page := self._page(prefix, after):
            yield from page
            after = page[-1].name

    def _page(self, prefix: str, after: str) -> list[ObjectStat]:
        with self._lock:
            names = sorted(name for name in self._objects if name.startswith(prefix) and name > after)
            return [self._objects[name][0] for name in names[:_PAGE]]

    def flush(self, names: Iterable[str]) -> None:
        """See `Backend.flush`."""

    def sweep(self) -> int:
        """See `Backend.sweep`."""
        return 0

    def close(self) -> None:
        """See `Backend.close`."""


def _bytes_of(incoming: Incoming) -> bytes:
    assert isinstance(incoming, _MemoryIncoming)
    data = bytes(incoming.buffer)
    incoming.discard()
    return data
