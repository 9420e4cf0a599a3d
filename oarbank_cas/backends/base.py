"""The port: the few storage primitives that everything above is built on, and what each one guarantees.

A backend knows names and bytes, never digests, envelopes or policy. A name is `/`-separated, relative, and made by
`oarbank_cas.layout`. All of these hold for every backend, and `tests/backends/` checks them on each:

1. An object is visible whole or not at all. Nobody ever sees the first half of one.
2. `commit` creates: of several that create one name at once exactly one wins, and an object is never overwritten by it.
3. `replace` and `delete`, `rename` with `expected` act on exactly the incarnation that `expected` names, or on nothing.
4. What a call has returned survives a crash of the process, the machine and its power, unless its docstring says else.
5. A validator is strong: two incarnations of a name, or two contents, never share one (but see `exact_identity`). It
   may also change when the object did not; that costs a retry, never a wrong answer.
6. Times are the store's own (`now`), and an object's time is not before the moment its name became visible, or its
   last `touch`. `rename` may keep the old time.
7. `listing` returns every object that stood when it began and still stands when it ends, sorted by name, or raises. It
   never comes back short.
8. Errors are those of `oarbank_cas.errors`. Absence is `None` or `NotFoundError`; a store that is missing or out of
   reach is `UnavailableError`, never absence.
9. Every method may be called from many threads, and a store from many processes at once.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from oarbank_cas.errors import UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from types import TracebackType


@dataclass(frozen=True, slots=True)
class ObjectStat:
    """What a backend knows of an object.

    Attributes:
        name: its full name in the store.
        size: bytes.
        time_ns: the store's own time in nanoseconds since 1970 (rule 6 above).
        validator: opaque; names this incarnation (rule 5 above).
    """

    name: str
    size: int
    time_ns: int
    validator: str


class Incoming(ABC):
    """Bytes on their way into the store: invisible until committed, gone when discarded.

    Used by one thread at a time.
    """

    size: int

    @abstractmethod
    def write(self, chunk: bytes | bytearray | memoryview) -> None:
        """Append `chunk`, all of it.

        Raises:
            StorageIOError: no space is left, or the write failed.
        """

    @abstractmethod
    def finish(self) -> None:
        """Say that no more bytes come; gives back whatever writing needs (a descriptor). Harmless when repeated."""

    @abstractmethod
    def discard(self) -> None:
        """Throw the bytes away. Harmless after a commit, or when repeated."""


class FileIncoming(Incoming):
    """Bytes that are sent from a file of the caller's, who reads it once and `write`s all of it, to have it hashed.

    What is sent afterwards are the bytes that were hashed, or nothing is: the file may change, but not unnoticed.
    """

    @property
    @abstractmethod
    def sha256(self) -> bytes:
        """The checksum of everything written."""


@dataclass(frozen=True, slots=True)
class Workshop:
    """Where other processes of this machine may write bytes on their way into the store.

    Attributes:
        root: what the path of an object begins with; its name follows.
        scratch: what the path of a temporary begins with, never given out before; any text without a separator follows.
    """

    root: str
    scratch: str


if TYPE_CHECKING:
    Namer = Callable[[Sequence[tuple[str, str]]], Sequence[bool | None]]
    """Gives temporaries of a workshop their names: paths from and to. For each whether it did; False says that the name
    stands, None that the asker is to try it."""


class Reader(ABC):
    """An object opened for reading: always the incarnation that was opened, whatever happens to its name meanwhile."""

    stat: ObjectStat

    @abstractmethod
    def read(self, size: int) -> bytes:
        """The next bytes, at most `size` and at least one; empty at the end."""

    @abstractmethod
    def readinto(self, buffer: memoryview) -> int:
        """Read into `buffer`; how many bytes came, 0 at the end."""

    @abstractmethod
    def close(self) -> None:
        """Release it. Harmless when repeated."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Backend(ABC):
    """One store's storage. See the module's docstring for the rules that every method keeps.

    Attributes:
        where: the store's URL or path, for messages.
        atomic_move: `rename` and `touch` work, and `rename` is one atomic step. Elsewhere an object is moved aside by
            `copy` and `delete`.
        group_commit: committing many objects in one call is much cheaper than one by one.
        expiring_delete: `delete_expiring` works.
        exact_identity: rule 5 holds to the letter. Elsewhere two incarnations of a name share a validator where they
            hold the same bytes and were made in the same second. Nothing above minds: entries and pins carry numbers
            of their own, and such blobs are equally old.
        exclusive: rules 2 and 3 hold to the letter. Elsewhere the storage ignores conditions, and of two writers of one
            name at the same moment both may be told that they won; what stands is one's, whole.
        exact_delete: rule 3 holds for `delete` to the letter. Elsewhere of several that remove or replace one
            incarnation at the same moment more than one may be told that it did, and what replaced it may be gone.
        requests_at_once: calls that are best under way at once, where each waits for an answer from afar.
    """

    where: str
    atomic_move: bool
    group_commit: bool
    expiring_delete: bool = False
    exact_identity: bool = True
    exclusive: bool = True
    exact_delete: bool = True
    requests_at_once: int = 1

    @abstractmethod
    def now(self) -> int:
        """The store's own time, in nanoseconds since 1970: not after the time of anything made after this call."""

    @abstractmethod
    def stat(self, name: str) -> ObjectStat | None:
        """What is known of `name`, or None where it is not there."""

    @abstractmethod
    def read(self, name: str, max_bytes: int) -> tuple[bytes, ObjectStat]:
        """The whole object.

        Raises:
            NotFoundError: it is not there.
            CorruptError: it has more than `max_bytes` bytes; nothing of it is kept in memory.
        """

    @abstractmethod
    def open(self, name: str, start: int = 0) -> Reader:
        """The object as a stream, from byte `start` on.

        Raises:
            NotFoundError: it is not there.
        """

    def read_range(self, name: str, start: int, length: int) -> bytes:
        """Bytes of the object: `length` of them from byte `start` on, or fewer where it ends before.

        Raises:
            NotFoundError: it is not there.
        """
        pieces = []
        with self.open(name, start) as reader:
            while length > 0 and (piece := reader.read(length)):
                pieces.append(piece)
                length -= len(piece)
        return b"".join(pieces)

    @abstractmethod
    def incoming(self, size_hint: int | None = None) -> Incoming:
        """A place for new bytes; about `size_hint` of them, where known."""

    def incoming_file(self, fd: int, size: int, check: Callable[[int], None]) -> FileIncoming | None:
        """A way to put a file from where it is; None where its bytes are best written into an `incoming`.

        Args:
            fd: the open file; may be closed afterwards.
            size: its bytes.
            check: given a descriptor of it, raises where it has changed; asked before anything is sent.
        """
        del fd, size, check
        return None

    def workshop(self) -> Workshop | None:
        """Where other processes may write temporaries for `adopt`; None where they cannot help."""
        return None

    def adopt(self, path: str, size: int) -> Incoming:
        """Take a whole temporary that another process wrote in the `workshop`.

        Args:
            path: where it is.
            size: its bytes.
        """
        del size
        raise UnsupportedError(f"{self.where} has no use for the file {path}")

    @abstractmethod
    def commit(self, items: Sequence[tuple[str, Incoming]]) -> list[ObjectStat | None]:
        """Create each name from its bytes, if it is absent; one answer an item, in order.

        Returns:
            The new object's stat where this call created it; None where the name stood already (its bytes are then
            discarded, and what stands is made durable as `flush` does).
        """

    def create_many(self, items: Sequence[tuple[str, Incoming]], namer: Namer | None = None) -> list[bool]:
        """Like `commit`, where no more is asked than whether each was created. A stat costs some storages a request.

        Args:
            items: see `commit`.
            namer: may give those that were adopted their names, with other processes' time.
        """
        del namer
        return [stat is not None for stat in self.commit(items)]

    def create(self, name: str, data: bytes) -> bool:
        """Create a small object, if it is absent, durable on return; False where the name is taken."""
        incoming = self.incoming(len(data))
        try:
            incoming.write(data)
            return self.commit([(name, incoming)])[0] is not None
        finally:
            incoming.discard()

    @abstractmethod
    def replace(self, name: str, incoming: Incoming, expected: str) -> ObjectStat | None:
        """Put new bytes in the place of the incarnation whose validator is `expected`.

        Returns:
            The new object's stat, or None where `name` is gone or another incarnation (the bytes are discarded).
        """

    @abstractmethod
    def delete(self, name: str, expected: str | None = None) -> bool:
        """Remove `name`, or only its incarnation `expected`. False where there was nothing to remove."""

    def delete_many(self, names: Sequence[str]) -> None:
        """Remove each of `names`. To find one gone already is success."""
        for name in names:
            self.delete(name)

    def delete_expiring(self, name: str, issued_ns: int, life_s: int) -> bool:
        """Where `expiring_delete`: remove `name`, but never later than `life_s` seconds after `issued_ns`.

        The storage itself refuses a request that reaches it later, by its own time; however long the caller, the
        network or a gateway held it back. After an error the removal may still happen, until that moment.

        Returns:
            False where there was nothing to remove.

        Raises:
            ConflictError: it was refused as too late; nothing was removed.
            UnsupportedError: the storage cannot promise this.
        """
        del issued_ns, life_s
        raise UnsupportedError(f"{self.where} cannot refuse a late delete of {name}")

    def grant_create(self, name: str, sha256: bytes, life_s: int) -> tuple[str, dict[str, str]]:
        """Let somebody create `name` with bytes of this checksum, and no others, by one HTTP PUT.

        Returns:
            The URL, which is a secret, and headers that the request must carry.

        Raises:
            UnsupportedError: the storage cannot be reached by HTTP.
        """
        del sha256, life_s
        raise UnsupportedError(f"{self.where} gives no grants for {name}: that needs a store in a bucket")

    def grant_read(self, name: str, life_s: int) -> tuple[str, dict[str, str]]:
        """Let somebody read `name` by one HTTP GET; as `grant_create`."""
        del life_s
        raise UnsupportedError(f"{self.where} gives no grants for {name}: that needs a store in a bucket")

    @abstractmethod
    def copy(self, name: str, to: str) -> ObjectStat | None:
        """Create `to` with the bytes of `name` and a fresh time, if `to` is absent; else None.

        Raises:
            NotFoundError: `name` is not there.
        """

    @abstractmethod
    def rename(self, name: str, to: str, expected: str) -> bool:
        """Where `atomic_move`: give the incarnation `expected` of `name` the name `to`, which must be absent.

        Returns:
            False where `name` is gone or another incarnation.

        Raises:
            ConflictError: `to` stands already.
            UnsupportedError: the storage cannot rename.
        """

    def rename_many(self, moves: Sequence[tuple[str, str, str]]) -> list[bool]:
        """Like `rename` for each (name, to, expected), in order, with shared flushes."""
        return [self.rename(name, to, expected) for name, to, expected in moves]

    def touch_many(self, names: Sequence[str]) -> list[ObjectStat | None]:
        """Like `touch` for each name, in order, with shared flushes."""
        return [self.touch(name) for name in names]

    @abstractmethod
    def touch(self, name: str) -> ObjectStat | None:
        """Where `atomic_move`: give `name` the store's present time. None where it is gone.

        Raises:
            UnsupportedError: the storage cannot do this.
        """

    @abstractmethod
    def listing(self, prefix: str, after: str = "") -> Iterator[ObjectStat]:
        """Every object whose name starts with `prefix` and sorts after `after`, in the order of their names' bytes.

        `prefix` is empty or ends with `/`. Read in pages: memory does not grow with the store.
        """

    def strays(self, prefix: str, *, folders: bool = False) -> Iterator[tuple[str, str]]:
        """What lies under `prefix` and is no object, so that no listing shows it: its name, and what it is.

        Where only objects can be, nothing. `prefix` is as in `listing`. With `folders` these are told too.
        """
        del prefix, folders
        return iter(())

    @abstractmethod
    def flush(self, names: Iterable[str]) -> None:
        """Make durable that these objects stand: what another process has just made visible may not be so yet."""

    def clone(self, name: str, fd: int) -> bool:
        """Give the open, empty file `fd` the object's bytes by sharing blocks on disk, where storage and file can.

        Returns:
            False where they cannot; nothing was written then.
        """
        del name, fd
        return False

    @abstractmethod
    def sweep(self) -> int:
        """Remove what dead processes left half-written; how many pieces. Never touches a living process's."""

    @abstractmethod
    def close(self) -> None:
        """Give back what this object holds, and remove its own temporaries. Harmless when repeated."""
