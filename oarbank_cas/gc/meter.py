"""A backend that counts what is asked of the one below: requests, and bytes read."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from oarbank_cas.backends.base import Backend, Incoming, ObjectStat, Reader

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

_PAGE = 1000
"""Objects that count as one request of a listing, or of a delete of many."""


class MeteredBackend(Backend):
    """Passes everything on, and counts.

    Args:
        backend: the one below.

    Attributes:
        requests: how often each operation was asked for.
        bytes_read: bytes that `read` gave, by the first part of the name.
    """

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self.where = backend.where
        self.atomic_move = backend.atomic_move
        self.group_commit = backend.group_commit
        self.expiring_delete = backend.expiring_delete
        self.exact_identity = backend.exact_identity
        self.exclusive = backend.exclusive
        self.exact_delete = backend.exact_delete
        self.requests_at_once = backend.requests_at_once
        self.requests: Counter[str] = Counter()
        self.bytes_read: Counter[str] = Counter()

    def now(self) -> int:
        """See `Backend.now`."""
        self.requests["now"] += 1
        return self._backend.now()

    def stat(self, name: str) -> ObjectStat | None:
        """See `Backend.stat`."""
        self.requests["stat"] += 1
        return self._backend.stat(name)

    def read(self, name: str, max_bytes: int) -> tuple[bytes, ObjectStat]:
        """See `Backend.read`."""
        self.requests["read"] += 1
        data, stat = self._backend.read(name, max_bytes)
        self.bytes_read[name.partition("/")[0]] += len(data)
        return data, stat

    def open(self, name: str, start: int = 0) -> Reader:
        """See `Backend.open`."""
        self.requests["open"] += 1
        reader = self._backend.open(name, start)
        self.bytes_read[name.partition("/")[0]] += reader.stat.size - start
        return reader

    def incoming(self, size_hint: int | None = None) -> Incoming:
        """See `Backend.incoming`."""
        return self._backend.incoming(size_hint)

    def commit(self, items: Sequence[tuple[str, Incoming]]) -> list[ObjectStat | None]:
        """See `Backend.commit`."""
        self.requests["create"] += len(items)
        return self._backend.commit(items)

    def replace(self, name: str, incoming: Incoming, expected: str) -> ObjectStat | None:
        """See `Backend.replace`."""
        self.requests["replace"] += 1
        return self._backend.replace(name, incoming, expected)

    def delete(self, name: str, expected: str | None = None) -> bool:
        """See `Backend.delete`."""
        self.requests["delete"] += 1
        return self._backend.delete(name, expected)

    def delete_many(self, names: Sequence[str]) -> None:
        """See `Backend.delete_many`."""
        self.requests["delete_many"] += -(-len(names) // _PAGE)
        self._backend.delete_many(names)

    def delete_expiring(self, name: str, issued_ns: int, life_s: int) -> bool:
        """See `Backend.delete_expiring`."""
        self.requests["delete"] += 1
        return self._backend.delete_expiring(name, issued_ns, life_s)

    def copy(self, name: str, to: str) -> ObjectStat | None:
        """See `Backend.copy`."""
        self.requests["copy"] += 1
        return self._backend.copy(name, to)

    def rename(self, name: str, to: str, expected: str) -> bool:
        """See `Backend.rename`."""
        self.requests["rename"] += 1
        return self._backend.rename(name, to, expected)

    def rename_many(self, moves: Sequence[tuple[str, str, str]]) -> list[bool]:
        """See `Backend.rename_many`."""
        self.requests["rename"] += len(moves)
        return self._backend.rename_many(moves)

    def touch(self, name: str) -> ObjectStat | None:
        """See `Backend.touch`."""
        self.requests["touch"] += 1
        return self._backend.touch(name)

    def touch_many(self, names: Sequence[str]) -> list[ObjectStat | None]:
        """See `Backend.touch_many`."""
        self.requests["touch"] += len(names)
        return self._backend.touch_many(names)

    def listing(self, prefix: str, after: str = "") -> Iterator[ObjectStat]:
        """See `Backend.listing`."""
        for index, stat in enumerate(self._backend.listing(prefix, after)):
            if index % _PAGE == 0:
                self.requests["list"] += 1
            yield stat

    def strays(self, prefix: str, *, folders: bool = False) -> Iterator[tuple[str, str]]:
        """See `Backend.strays`."""
        return self._backend.strays(prefix, folders=folders)

    def flush(self, names: Iterable[str]) -> None:
        """See `Backend.flush`."""
        self._backend.flush(names)

    def clone(self, name: str, fd: int) -> bool:
        """See `Backend.clone`."""
        return self._backend.clone(name, fd)

    def sweep(self) -> int:
        """See `Backend.sweep`."""
        return self._backend.sweep()

    def close(self) -> None:
        """Nothing: the backend below belongs to another."""
