"""A blob as a source of ranges: read where it is asked for, without the rest of it."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Self

from oarbank_cas.errors import CorruptError

if TYPE_CHECKING:
    from oarbank_cas.backends.base import Reader
    from oarbank_cas.blobs import Blobs


class BlobSource:
    """A blob that is read by ranges; see `files.Source`. Used by one thread, as a context manager.

    Parts of a blob cannot be checked against its digest. Who reads them checks what they hold.

    Args:
        blobs: the store's blobs.
        digest: which blob.
        size: the bytes that it must have.
        name: what messages call it.
    """

    def __init__(self, blobs: Blobs, digest: str, size: int, name: str) -> None:
        self._blobs = blobs
        self._digest = digest
        self._size = size
        self._name = name
        self._reader: Reader | None = None
        self._position = 0
        # The block that was read last: the next one begins with its torn end, and should not cost a new request.
        self._block = b""
        self._block_at = 0

    @property
    def name(self) -> str:
        """What messages call it."""
        return self._name

    def size(self) -> int:
        """The blob's size in bytes."""
        return self._size

    def read_at(self, offset: int, size: int) -> bytes:
        """Up to `size` bytes from byte `offset`; fewer only at the end.

        Raises:
            NotFoundError: the blob is absent.
            CorruptError: it has another size.
            CasError: the store cannot be read.
        """
        size = min(size, self._size - offset)
        if size <= 0:
            return b""
        inside = offset - self._block_at
        data = self._block[inside : inside + size] if 0 <= inside <= len(self._block) else b""
        if len(data) < size:
            data += self._read(offset + len(data), size - len(data))
            self._block, self._block_at = data, offset
        return data

    def _read(self, start: int, size: int) -> bytes:
        if self._reader is None or self._position != start:
            self.close()
            self._reader = self._blobs.open_range(self._digest, start)
            self._position = start
            found = self._reader.stat.size
            if found != self._size:
                raise CorruptError(
                    f"{self._name}: it is said to have {self._size} bytes, and blob {self._digest} has {found}; "
                    "run `oarbank-cas verify`"
                )
        parts = []
        while size > 0 and (part := self._reader.read(size)):
            parts.append(part)
            size -= len(part)
            self._position += len(part)
        return b"".join(parts)

    def close(self) -> None:
        """Release the blob. Harmless when repeated."""
        if self._reader is not None:
            self._reader.close()
            self._reader = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
