"""A store opened for reading only: every change is refused before it reaches the storage."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from oarbank_cas.backends.base import Backend, Incoming, ObjectStat, Reader
from oarbank_cas.errors import PermissionDeniedError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence


class ReadOnlyBackend(Backend):
    """The reading half of another backend.

    Args:
        backend: the one that is read.
    """

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self.where = backend.where
        self.atomic_move = backend.atomic_move
        self.group_commit = backend.group_commit
        self.expiring_delete = backend.expiring_delete  # what a plan for this storage depends on
        self.exact_identity = backend.exact_identity
        self.exclusive = backend.exclusive
        self.exact_delete = backend.exact_delete
        self.requests_at_once = backend.requests_at_once

    def _refuse(self) -> NoReturn:
        raise PermissionDeniedError(f"the store {self.where} was opened for reading only")

    def now(self) -> int:
        """See `Backend.now`."""
        return self._backend.now()

    def stat(self, name: str) -> ObjectStat | None:
        """See `Backend.stat`."""
        return self._backend.stat(name)

    def read(self, name: str, max_bytes: int) -> tuple[bytes, ObjectStat]:
        """See `Backend.read`."""
        return self._backend.read(name, max_bytes)

    def open(self, name: str, start: int = 0) -> Reader:
        """See `Backend.open`."""
        return self._backend.open(name, start)

    def listing(self, prefix: str, after: str = "") -> Iterator[ObjectStat]:
        """See `Backend.listing`."""
        return self._backend.listing(prefix, after)

    def strays(self, prefix: str, *, folders: bool = False) -> Iterator[tuple[str, str]]:
        """See `Backend.strays`."""
        return self._backend.strays(prefix, folders=folders)

    def read_range(self, name: str, start: int, length: int) -> bytes:
        """See `Backend.read_range`."""
        return self._backend.read_range(name, start, length)

    def clone(self, name: str, fd: int) -> bool:
        """See `Backend.clone`."""
        return self._backend.clone(name, fd)

    def grant_read(self, name: str, life_s: int) -> tuple[str, dict[str, str]]:
        """See `Backend.grant_read`."""
        return self._backend.grant_read(name, life_s)

    def grant_create(self, name: str, sha256: bytes, life_s: int) -> tuple[str, dict[str, str]]:
        """Refused."""
        del name, sha256, life_s
        self._refuse()

    def incoming(self, size_hint: int | None = None) -> Incoming:
        """Refused."""
        del size_hint
        self._refuse()

    def commit(self, items: Sequence[tuple[str, Incoming]]) -> list[ObjectStat | None]:
        """Refused."""
        del items
        self._refuse()

    def replace(self, name: str, incoming: Incoming, expected: str) -> ObjectStat | None:
        """Refused."""
        del name, incoming, expected
        self._refuse()

    def delete(self, name: str, expected: str | None = None) -> bool:
        """Refused."""
        del name, expected
        self._refuse()

    def copy(self, name: str, to: str) -> ObjectStat | None:
        """Refused."""
        del name, to
        self._refuse()

    def rename(self, name: str, to: str, expected: str) -> bool:
        """Refused."""
        del name, to, expected
        self._refuse()

    def touch(self, name: str) -> ObjectStat | None:
        """Refused."""
        del name
        self._refuse()

    def flush(self, names: Iterable[str]) -> None:
        """Nothing was made, so nothing is to be flushed."""

    def sweep(self) -> int:
        """Refused."""
        self._refuse()

    def close(self) -> None:
        """See `Backend.close`."""
        self._backend.close()
