"""A file of a store that is open for reading, as fsspec hands it out."""

from __future__ import annotations

import contextlib
import errno
import hashlib
from typing import TYPE_CHECKING, Any

from fsspec.spec import AbstractBufferedFile

from oarbank_cas.errors import NotFoundError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from oarbank_cas.filesystem.fs import StoreFileSystem
    from oarbank_cas.filesystem.view import File


@contextlib.contextmanager
def telling(path: str) -> Iterator[None]:
    """Say that something is not there in the way that every reader of files understands."""
    try:
        yield
    except NotFoundError as error:
        raise FileNotFoundError(errno.ENOENT, str(error), path) from error


class StoreFile(AbstractBufferedFile):  # type: ignore[misc] # fsspec is not typed
    """The blob that a path named when it was opened, and no other, whatever happens to the path.

    A file of no more bytes than a block is read whole, and verified, whatever is asked of it. A larger one is verified
    where its bytes are read in order to their end, in one piece or in many: the read that would hand out the end of
    wrong ones raises CorruptError.

    Args:
        fs: its filesystem.
        file: what it is.
        block_size: bytes of a block; 5 MiB where None.
        cache_type: how fsspec keeps what was read.
        cache_options: options of that.
    """

    def __init__(
        self,
        fs: StoreFileSystem,
        file: File,
        block_size: int | str | None,
        cache_type: str,
        cache_options: dict[str, Any] | None,
    ) -> None:
        self._file = file
        self._all: bytes | None = None
        self._hash = hashlib.sha256()
        self._hashed = 0
        super().__init__(
            fs,
            file.path,
            block_size=block_size,
            cache_type=cache_type,
            cache_options=cache_options,
            size=file.size,
        )
        self.details = fs.described(file)
        if not file.size:
            self._whole()  # no read would ever look

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        """The same bytes elsewhere, at the same place."""
        return _again, (self.fs, self._file, self.blocksize, self.cache.name if self.cache else "none", self.loc)

    def _whole(self) -> bytes:
        with telling(self.path):
            return self.fs.view.whole(self._file)  # type: ignore[no-any-return]

    def _fetch_range(self, start: int, end: int) -> bytes:
        end = min(end, self.size)
        if self._all is None and self.size <= self.blocksize:
            self._all = self._whole()
        if self._all is not None:
            return self._all[start:end]
        if start >= end:
            return b""
        with telling(self.path):
            data: bytes = self.fs.view.range(self._file, start, end)
            self._follow(start, data)
        return data

    def _follow(self, start: int, data: bytes) -> None:
        """Hash what follows on what was hashed already; at the end, compare."""
        if not start <= self._hashed < start + len(data):
            return
        self._hash.update(memoryview(data)[self._hashed - start :])
        self._hashed = start + len(data)
        if self._hashed == self.size and self._hash.hexdigest() != self._file.digest:
            self.fs.view.examine(self._file)


def _again(fs: StoreFileSystem, file: File, block_size: int, cache_type: str, loc: int) -> StoreFile:
    opened = StoreFile(fs, file, block_size, cache_type, None)
    opened.seek(loc)
    return opened
