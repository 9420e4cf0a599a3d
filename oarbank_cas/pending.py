"""Blobs on their way in that are written and have no name yet: named and made durable in stages, while more come."""

from __future__ import annotations

import threading
from concurrent.futures import wait
from typing import TYPE_CHECKING

from oarbank_cas import layout, stopping
from oarbank_cas.errors import StorageIOError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from concurrent.futures import Future

    from oarbank_cas.backends.base import Backend, Incoming, Namer

_STAGE_BYTES = 256 * 2**20
_STAGE_FILES = 20_000
"""What has piled up to so much is committed."""

_HEAD_START_S = 0.01

_STAGE_BYTES_FAR = 256 * 1024
"""To a storage from afar nearly everything is sent as it comes."""


class Pending:
    """What one batch of puts has written, until it is visible.

    Args:
        backend: the store's storage.
    """

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        is_far = backend.requests_at_once > 1
        self._in_background = backend.group_commit and not is_far
        self._stage_bytes = _STAGE_BYTES_FAR if is_far else _STAGE_BYTES
        self._lock = threading.Lock()
        self._coming: dict[str, Incoming] = {}
        self._bytes = 0
        self._committer = stopping.Threads(1, "commit")
        self._committing: Future[None] | None = None
        self.namer: Namer | None = None
        """See `Backend.create_many`; whoever sets it takes it back only after `wait`."""

    def add(self, coming: Mapping[str, Incoming]) -> None:
        """Take blobs, by digest, none of which was added before. A full stage is begun to be committed.

        One at a time, so that what is uncommitted does not pile up. What goes to a storage from afar is sent by the
        thread that has it.

        Raises:
            StorageIOError: a stage could not be committed.
        """
        with self._lock:
            self._coming.update(coming)
            self._bytes += sum([incoming.size for incoming in coming.values()])
            is_full = self._bytes >= self._stage_bytes or len(self._coming) >= _STAGE_FILES
        if is_full and self._in_background:
            self.wait()
            self._begin(1)
        elif is_full:
            self.create(self._taken())

    def settle(self) -> None:
        """Begin to make what was added so far visible and durable, while the caller goes on, where that pays."""
        if self._in_background:
            begun = self._begin(2)
            if begun is not None:
                # The flush is what takes its time: let it get there before the interpreter is busy with what follows.
                wait([begun], timeout=_HEAD_START_S)

    def _begin(self, fewest: int) -> Future[None] | None:
        with self._lock:
            before = self._committing
            if len(self._coming) < fewest:
                return None
            coming = self._take()
            self._committing = self._committer.submit(self._create_after, before, coming)
            return self._committing

    def wait(self) -> None:
        """Wait for the stages that were begun.

        Raises:
            StorageIOError: one could not be committed.
        """
        with self._lock:
            committing = self._committing
        if committing is not None:
            stopping.result(committing)

    def commit(self) -> None:
        """Make everything visible and durable.

        Raises:
            StorageIOError: something could not be committed.
        """
        self.wait()
        self.create(self._taken())

    def discard(self) -> None:
        """Throw away what was added and not committed; what is being committed is waited for."""
        self._committer.shutdown(wait=True)
        for incoming in self._taken().values():
            incoming.discard()

    def create(self, coming: Mapping[str, Incoming]) -> None:
        """Make blobs visible and durable at once. One that another brought in first is looked at.

        Raises:
            StorageIOError: a blob could not be stored.
        """
        try:
            made = self._backend.create_many(
                [(layout.blob(digest), incoming) for digest, incoming in coming.items()], self.namer
            )
            for (digest, incoming), created in zip(coming.items(), made, strict=True):
                if not created:
                    self._check_standing(digest, incoming.size)
        finally:
            for incoming in coming.values():
                incoming.discard()

    def _create_after(self, before: Future[None] | None, coming: Mapping[str, Incoming]) -> None:
        try:
            if before is not None:
                before.result()  # what failed must not be forgotten
        except BaseException:
            for incoming in coming.values():
                incoming.discard()
            raise
        self.create(coming)

    def _taken(self) -> dict[str, Incoming]:
        with self._lock:
            return self._take()

    def _take(self) -> dict[str, Incoming]:
        coming, self._coming, self._bytes = self._coming, {}, 0
        return coming

    def _check_standing(self, digest: str, size: int) -> None:
        """Damaged bytes of another size are no blob."""
        found = self._backend.stat(layout.blob(digest))
        if found is None or found.size != size:
            raise StorageIOError(
                f"blob {digest} cannot be stored: "
                + ("it was taken away at once" if found is None else f"{found.name} has {found.size} bytes")
                + "; run this again, and `oarbank-cas verify` if it persists"
            )
