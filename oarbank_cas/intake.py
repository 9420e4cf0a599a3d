"""Bytes on their way into the store: hashed as they are read, written only where absent, made durable in one go.

What a writer may rely on afterwards is a `Hold` (docs/gc.md, rule 2): from the store's time before the first look, for
one session.
"""

from __future__ import annotations

import hashlib
import os
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from oarbank_cas import intake_pool, layout, stopping
from oarbank_cas.absent import present
from oarbank_cas.batches import in_order
from oarbank_cas.blobs import CHUNK, Blob
from oarbank_cas.errors import CasError, InvalidInputError, StorageIOError
from oarbank_cas.pending import Pending
from oarbank_cas.progress import steps
from oarbank_cas.sources import FileReader, changed, check_unchanged, read_into, size_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from concurrent.futures import Future
    from typing import BinaryIO

    from oarbank_cas.backends.base import Backend, FileIncoming, Incoming, ObjectStat
    from oarbank_cas.blobs import Blobs
    from oarbank_cas.intake_worker import Taken
    from oarbank_cas.progress import Progress
    from oarbank_cas.sources import PlacedSource, Source, Window

HELD_BYTES = 64 * 2**20
"""A file up to this size is kept in memory between hashing and writing; a larger one is read twice if it is new."""

_STREAM_HELD = 8 * 2**20
_WRITE = 8 * 2**20
"""Bytes of one write: each tells the system that it may begin to write back."""

_SMALL = 256 * 1024
"""Bytes up to which a file is put at once, without a thread of its own."""

_LARGE_AT_ONCE = 4
"""Large files on their way to a storage from afar. Each may have parts under way."""


@dataclass(frozen=True, slots=True)
class Hold:
    """A writer's right to rely on blobs: durable, and seen present at or after `t0_ns`.

    Attributes:
        t0_ns: the store's own time before the first of them was looked for or put.
        sizes: digest to size in bytes.
    """

    t0_ns: int
    sizes: Mapping[str, int]


class Intake:
    """One batch of puts. After `commit` everything is there, durable.

    A large batch is committed in stages while it grows, so that a long upload that is cut off need not begin again:
    what is there by then is found the next time, or freed by gc. On a disk a small one is visible at once or not at
    all. To a storage from afar files are sent as they come, while the rest is still read and hashed.

    `add_*` may be called from many threads. Use it as a context manager: leaving it without a commit discards.

    Args:
        backend: the store's storage.
        blobs: the store's blobs.
    """

    def __init__(self, backend: Backend, blobs: Blobs) -> None:
        self._backend = backend
        self._blobs = blobs
        self._is_far = backend.requests_at_once > 1
        self._t0_ns = backend.now()
        self._sizes: dict[str, int] = {}
        self._pending = Pending(backend)
        self._found: set[str] = set()
        self._lock = threading.Lock()
        self._reader = FileReader()
        self._helpers: intake_pool.IntakePool | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._helpers is not None and kind is not None and issubclass(kind, intake_pool.AT_ONCE):
            self._helpers.kill()  # one that is stuck would hold up the committing thread
        self.discard()

    def add_bytes(self, data: bytes) -> Blob:
        """Put these bytes."""
        digest = hashlib.sha256(data).hexdigest()
        if self._is_known(digest, len(data)):
            return Blob(digest, len(data))
        return self._take_held(digest, data)

    def add_stream(self, stream: BinaryIO) -> Blob:
        """Put all bytes of a stream, however many. Beyond a few MiB they wait in the store's temporaries."""
        state = hashlib.sha256()
        held = bytearray()
        incoming: Incoming | None = None
        size = 0
        try:
            while chunk := _next_of(stream):
                stopping.check()
                state.update(chunk)
                size += len(chunk)
                held += chunk
                if len(held) >= _STREAM_HELD:
                    incoming = incoming or self._backend.incoming()
                    incoming.write(held)
                    held.clear()
            digest = state.hexdigest()
            if self._is_known(digest, size):
                return Blob(digest, size)
            incoming = incoming or self._backend.incoming(size)
            incoming.write(held)
            taken, incoming = incoming, None
            return self._take(digest, taken)
        finally:
            if incoming is not None:
                incoming.discard()

    def add_file(self, source: Source) -> Blob:
        """Put a file.

        Raises:
            InvalidInputError: it cannot be read as a regular file.
            StorageIOError: it changed while it was read, or writing failed.
        """
        blob = self._add_file(source, None)
        assert blob is not None
        return blob

    def _add_file(self, source: Source, at_most: int | None) -> Blob | None:
        """Put a file, unless it has more than `at_most` bytes: then None."""
        stopping.check()
        fd = source.open()
        try:
            before = os.fstat(fd)
            size = before.st_size
            if at_most is not None and size > at_most:
                return None
            sending = self._backend.incoming_file(fd, size, lambda fd: check_unchanged(fd, before, source.label))
            if sending is not None:
                return self._send(fd, before, sending, source.label)
            if size <= HELD_BYTES:
                data = self._reader.held(fd, size, source.label)
                digest = hashlib.sha256(data).hexdigest()
            else:
                data = None
                digest = self._reader.hash(fd, size, source.label)
            check_unchanged(fd, before, source.label)
            if self._is_known(digest, size):
                return Blob(digest, size)
            return self._copy(fd, before, digest, source.label) if data is None else self._take_held(digest, data)
        except OSError as error:
            raise StorageIOError(f"{source.label} cannot be read: {error.strerror}") from error
        finally:
            os.close(fd)

    def add_files(self, sources: Sequence[PlacedSource], progress: Progress | None = None) -> list[Blob]:
        """Put many files, on all cores; one answer each, in order.

        Args:
            sources: the files.
            progress: who is told of each file that is done.

        Raises:
            InvalidInputError, StorageIOError: as `add_file`, for the first file that fails.
        """
        blobs: dict[int, Blob] = {}
        step = steps(progress, lambda: sum(map(size_of, sources)))

        def done(index: int, blob: Blob) -> None:
            blobs[index] = blob
            if step is not None:
                step(blob.size)

        def put(index: int, at_most: int | None) -> bool:
            blob = self._add_file(sources[index], at_most)
            if blob is not None:
                done(index, blob)
            return blob is not None

        if self._is_far:
            large = self._send_small(sources, done)
        else:
            # Threads pay where hashing and writing do the work, which run beside the interpreter; for small files the
            # interpreter is the work.
            large = [index for index in self._take_elsewhere(sources, done) if not put(index, _SMALL)]
        at_once = min(self._backend.requests_at_once, _LARGE_AT_ONCE) if self._is_far else os.cpu_count() or 1
        with stopping.Threads(at_once, "put") as pool:
            stopping.results([pool.submit(put, index, None) for index in large])
        return [blobs[index] for index in range(len(sources))]

    def _send_small(self, sources: Sequence[PlacedSource], done: Callable[[int, Blob], None]) -> list[int]:
        """Put small files into a storage from afar; the indices of the others.

        A window of files is read, hashed and asked for while the one before it is on its way.
        """
        large: list[int] = []
        waiting = iter(range(len(sources)))
        with stopping.Threads(1, "send") as pool:
            sending: Future[None] | None = None
            while window := self._reader.window(sources, waiting, _SMALL, large):
                there = present(self._backend, [digest for digest in window if digest not in self._sizes])
                if sending is not None:
                    stopping.result(sending)
                sending = pool.submit(self._send_window, window, there, done)
            if sending is not None:
                stopping.result(sending)
        return large

    def _send_window(self, window: Window, there: Mapping[str, int], done: Callable[[int, Blob], None]) -> None:
        coming: dict[str, Incoming] = {}
        try:
            for digest, (data, _) in window.items():
                if there.get(digest) == len(data):
                    with self._lock:
                        self._sizes[digest] = len(data)
                        self._found.add(digest)
                elif digest not in self._sizes and not (digest in there and self._is_known(digest, len(data))):
                    coming[digest] = self._backend.incoming(len(data))
                    coming[digest].write(data)
                    coming[digest].finish()
            with self._lock:
                self._sizes |= {digest: incoming.size for digest, incoming in coming.items()}
        except BaseException:
            for incoming in coming.values():
                incoming.discard()
            raise
        self._pending.create(coming)
        for digest, (data, indices) in window.items():
            for index in indices:
                done(index, Blob(digest, len(data), new=digest in coming and index == indices[0]))

    def expect(self, folder: int | None, count: int) -> None:
        """Prepare for about so many files of one folder; harmless where fewer come, or others.

        Args:
            folder: its descriptor, which stays open until this intake ends.
            count: how many.
        """
        if count >= intake_pool.FEWEST and folder is not None:
            self._call_helpers({folder})

    def _call_helpers(self, tops: set[int]) -> intake_pool.IntakePool | None:
        """Other processes that take small files, where that pays."""
        if self._helpers is not None and self._helpers.tops >= tops:
            return self._helpers
        workshop = self._backend.workshop() if intake_pool.is_possible() else None
        if workshop is None:
            return None
        self._pending.wait()
        self._dismiss_helpers()
        self._helpers = intake_pool.IntakePool(workshop.root + layout.BLOBS, workshop.scratch, _SMALL, tops)
        self._pending.namer = self._helpers.name
        return self._helpers

    def _dismiss_helpers(self) -> None:
        """End the processes that help; no stage is under way any more."""
        if self._helpers is not None:
            self._pending.namer = None
            self._helpers.close()
            self._helpers = None

    def _take_elsewhere(self, sources: Sequence[PlacedSource], done: Callable[[int, Blob], None]) -> Sequence[int]:
        """Have other processes take small files, where that pays; the indices of those that they did not take."""
        everything = range(len(sources))
        if len(sources) < intake_pool.FEWEST:
            return everything
        helpers = self._call_helpers({top for top, _ in (source.place() for source in sources) if top is not None})
        if helpers is None:
            return everything

        def use(taken: Sequence[tuple[int, Taken]]) -> None:
            coming: dict[str, Incoming] = {}
            twice: list[Incoming] = []
            new = set()
            with self._lock:
                for index, (digest, size, path) in taken:
                    known = digest in self._sizes
                    self._sizes[digest] = size
                    if path and known:
                        twice.append(self._backend.adopt(path, size))
                    elif path:
                        coming[digest] = self._backend.adopt(path, size)
                        new.add(index)
                    elif not known:
                        self._found.add(digest)
            for incoming in twice:
                incoming.discard()
            self._pending.add(coming)
            for index, (digest, size, _) in taken:
                done(index, Blob(digest, size, new=index in new))

        return helpers.take(sources, use)

    def require(self, sizes: Mapping[str, int]) -> list[str]:
        """Rely on blobs that must be there already, in this batch or in the store. A condemned one is brought back.

        Args:
            sizes: digest to the size that it must have.

        Returns:
            The digests that are absent.

        Raises:
            InvalidInputError: a blob has another size.
        """
        missing = []
        unknown = [digest for digest in sizes if digest not in self._sizes]

        def look(digest: str) -> ObjectStat | None:
            return self._backend.stat(layout.blob(digest)) or self._blobs.revive(digest)

        seen = dict(zip(unknown, in_order(look, unknown, self._backend.requests_at_once), strict=True))
        for digest, size in sizes.items():
            known = self._sizes.get(digest)
            if known is None:
                found = seen[digest]
                if found is None:
                    missing.append(digest)
                    continue
                if found.size != size and not self._blobs.check(digest):
                    missing.append(digest)  # damaged, and set aside by now
                    continue
                known = found.size
                with self._lock:
                    self._sizes[digest] = known
                    self._found.add(digest)
            if known != size:
                raise InvalidInputError(f"has {known} bytes, not {size}", f"blob {digest}")
        return missing

    def settle(self) -> None:
        """Begin to make what was added so far visible and durable, while the caller goes on; `commit` waits for it."""
        self._pending.settle()

    def commit(self) -> Hold:
        """Make everything added visible and durable.

        Returns:
            The right to rely on every blob added, found ones too.

        Raises:
            StorageIOError: something could not be committed.
        """
        self._pending.commit()
        self._dismiss_helpers()
        self._backend.flush([layout.blob(digest) for digest in self._found])
        return Hold(self._t0_ns, dict(self._sizes))

    def discard(self) -> None:
        """Throw away what was added and not committed."""
        self._pending.discard()
        self._dismiss_helpers()

    # -- one blob's way in

    def _is_known(self, digest: str, size: int) -> bool:
        """Whether the blob needs no writing: in this batch already, or in the store."""
        if digest in self._sizes:
            return True
        found = self._backend.stat(layout.blob(digest))
        if found is not None and found.size != size:
            self._blobs.check(digest)  # which sets it aside
            found = self._backend.stat(layout.blob(digest))
        if found is None or found.size != size:
            return False
        with self._lock:
            self._sizes[digest] = size
            self._found.add(digest)
        return True

    def _take_held(self, digest: str, data: bytes | bytearray | memoryview) -> Blob:
        incoming = self._backend.incoming(len(data))
        try:
            if len(data) <= _WRITE:
                incoming.write(data)
            else:
                view = memoryview(data)
                for start in range(0, len(view), _WRITE):
                    incoming.write(view[start : start + _WRITE])
        except BaseException:
            incoming.discard()
            raise
        return self._take(digest, incoming)

    def _take(self, digest: str, incoming: Incoming) -> Blob:
        try:
            incoming.finish()
        except BaseException:
            incoming.discard()
            raise
        with self._lock:
            taken = digest not in self._sizes
            self._sizes[digest] = incoming.size
        if taken:
            self._pending.add({digest: incoming})
        else:
            incoming.discard()
        return Blob(digest, incoming.size, new=taken)

    def _send(self, fd: int, before: os.stat_result, sending: FileIncoming, label: str) -> Blob:
        """Put a file from where it is."""
        try:
            self._reader.feed(fd, before.st_size, label, sending.write)
            check_unchanged(fd, before, label)
            digest = sending.sha256.hex()
            if self._is_known(digest, before.st_size):
                return Blob(digest, before.st_size)
            taken, sending = sending, None  # type: ignore[assignment]
        finally:
            if sending is not None:
                sending.discard()
        try:
            return self._take(digest, taken)
        except CasError:
            check_unchanged(fd, before, label)  # which says more than that the server refuses it
            raise

    def _copy(self, fd: int, before: os.stat_result, digest: str, label: str) -> Blob:
        os.lseek(fd, 0, os.SEEK_SET)
        state = hashlib.sha256()
        buffer = self._reader.buffer(CHUNK)
        incoming = self._backend.incoming(before.st_size)
        try:
            while incoming.size <= before.st_size and (count := read_into(fd, buffer)):
                stopping.check()
                state.update(buffer[:count])
                incoming.write(buffer[:count])
            check_unchanged(fd, before, label)
            if state.hexdigest() != digest:
                raise changed(label)
        except BaseException:
            incoming.discard()
            raise
        return self._take(digest, incoming)


def _next_of(stream: BinaryIO) -> bytes:
    chunk: bytes | None = stream.read(CHUNK)
    if chunk is None:
        raise StorageIOError("the stream has nothing to read yet, which is not its end: give a blocking one")
    return chunk
