"""A store as folders and files: what a path names, and its bytes. Knows nothing of fsspec."""

from __future__ import annotations

import functools
import os
import weakref
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn, TypeVar

from oarbank_cas.blobs import CHUNK
from oarbank_cas.contracts.canonical import check_digest
from oarbank_cas.contracts.keys import check_class, parse_key
from oarbank_cas.contracts.manifest import DATASET_PREFIX, dataset_id
from oarbank_cas.errors import CorruptError, InvalidInputError, NotFoundError, StorageIOError, UnsupportedError
from oarbank_cas.filesystem.tree import FileTree

if TYPE_CHECKING:
    from oarbank_cas.store import Store

_T = TypeVar("_T")

KINDS = ("blob", "dataset", "result")
"""What paths begin with."""

_TREES = 8
"""Manifests that are kept in memory. They never change."""


@dataclass(frozen=True, slots=True)
class File:
    """A file.

    Attributes:
        path: where it stands here.
        digest: the blob that it is.
        size: bytes that it is said to have.
    """

    path: str
    digest: str
    size: int


@dataclass(frozen=True, slots=True)
class Folder:
    """A folder.

    Attributes:
        path: where it stands here.
        children: gives what it holds, in order.
        dataset: the id of the artifact that it is, where it is one.
    """

    path: str
    children: Callable[[], Iterable[File | Folder]]
    dataset: str | None = None


Known = dict[str, Folder]
"""Results that were looked up already, by their names in paths."""


class StoreView:
    """A store opened by this process, closed when nobody has the view any more.

    Args:
        store: the store.
        result_class: the class of job keys that name none.
        complete: as in `Store.lookup`.
    """

    def __init__(self, store: Store, result_class: str, *, complete: bool) -> None:
        self.store = store
        self._class = result_class
        self._complete = complete
        self._tree = functools.lru_cache(_TREES)(lambda dataset: FileTree(store.files_of(dataset)))
        self._finalizer = weakref.finalize(self, _close, store, os.getpid())

    def close(self) -> None:
        """Close the store. Harmless when repeated."""
        self._finalizer()

    # -- what a path names

    def locate(self, path: str, known: Known | None = None) -> File | Folder:
        """What stands at a path.

        Args:
            path: below the root, with no slash at either end.
            known: what was looked up for this call already, and is not again; completed here.

        Raises:
            NotFoundError: nothing stands there, or the job key has no hit; with the reason.
            CasError: the store cannot tell.
        """
        if not path:
            return Folder("", lambda: [_unlisted(kind) for kind in KINDS])
        kind, _, rest = path.partition("/")
        if kind not in KINDS:
            raise NotFoundError(f"there is no {kind!r} here: paths begin with {', '.join(KINDS)}")
        if not rest:
            return _unlisted(kind)
        name, _, inside = rest.partition("/")
        if kind == "blob":
            return self._blob(path, name, inside)
        if kind == "dataset":
            digest = _valid(check_digest, name.removeprefix(DATASET_PREFIX))
            return self._inside(f"{kind}/{name}", dataset_id(digest), inside)
        known = {} if known is None else known
        result = known.get(name) or known.setdefault(name, self._result(f"{kind}/{name}", name))
        return self._artifact(result, inside) if inside else result

    def _blob(self, path: str, digest: str, inside: str) -> File:
        if inside:
            raise NotFoundError(f"blob/{digest} is a file, and has nothing in it")
        return File(path, digest, self._size(_valid(check_digest, digest)))

    def _size(self, digest: str) -> int:
        size = self.store.reads.size_for_readers(digest)
        if size is None:
            raise NotFoundError(f"blob {digest} is not in the store {self.store.backend.where}")
        return size

    def _result(self, path: str, name: str) -> Folder:
        key, at, result_class = name.partition("@")
        _valid(parse_key, key)
        result_class = _valid(check_class, result_class if at else self._class)
        answer = self.store.lookup(key, result_class, complete=self._complete)
        if not answer.hit:
            raise NotFoundError(f"{key} in class {result_class}: miss ({answer.reason}): {answer.detail}")
        artifacts = [
            self._artifact_folder(f"{path}/{name}", dataset) for name, dataset in sorted(answer.datasets.items())
        ]
        return Folder(path, lambda: artifacts)

    def _artifact_folder(self, path: str, dataset: str) -> Folder:
        return Folder(path, functools.partial(self._children, path, dataset, ""), dataset)

    def _artifact(self, result: Folder, inside: str) -> File | Folder:
        name, _, inside = inside.partition("/")
        artifacts = {folder.path.rpartition("/")[2]: folder for folder in result.children()}
        found = artifacts.get(name)
        if not isinstance(found, Folder) or found.dataset is None:
            raise NotFoundError(f"{result.path} has no artifact {name!r}; it has {', '.join(artifacts) or 'none'}")
        return self._inside(found.path, found.dataset, inside)

    def _inside(self, base: str, dataset: str, inside: str) -> File | Folder:
        tree = self._tree(dataset)
        if not inside:
            return self._artifact_folder(base, dataset)
        file = tree.file(inside)
        if file is not None:
            return File(f"{base}/{inside}", file.digest, file.size)
        if not tree.has_folder(inside):
            raise NotFoundError(f"{base} has no file or folder {inside!r}")
        return Folder(f"{base}/{inside}", functools.partial(self._children, base, dataset, inside))

    def _children(self, base: str, dataset: str, inside: str) -> Iterator[File | Folder]:
        for name, file in self._tree(dataset).children(inside):
            here = f"{inside}/{name}" if inside else name
            if file is not None:
                yield File(f"{base}/{here}", file.digest, file.size)
            else:
                yield Folder(f"{base}/{here}", functools.partial(self._children, base, dataset, here))

    # -- its bytes

    def check_there(self, file: File) -> None:
        """Check that a file can be read, as far as one look at its blob tells.

        Raises:
            NotFoundError: its blob is absent.
            CorruptError: its blob has another size.
        """
        size = self._size(file.digest)
        if size != file.size:
            raise _other_size(file, size)

    def whole(self, file: File) -> bytes:
        """All bytes of a file, verified.

        Raises:
            NotFoundError: its blob is absent.
            CorruptError: its blob is wrong, and is set aside; or it has another size.
        """
        data = self.store.get_bytes(file.digest, file.size)
        if len(data) != file.size:
            raise _other_size(file, len(data))
        return data

    def range(self, file: File, start: int, end: int) -> bytes:
        """Some bytes of a file: out of a verified copy where there is a cache, else as they are stored.

        Raises:
            NotFoundError: its blob is absent.
            CorruptError: its blob ends before; it is examined then.
        """
        data = self.store.reads.read_range(file.digest, start, end - start)
        if len(data) != end - start:
            self.examine(file)
        return data

    def examine(self, file: File) -> NoReturn:
        """Say what is wrong with a file of which something was read that cannot be.

        Raises:
            CorruptError: its blob is wrong, and is set aside; or it is right, and has another size.
            StorageIOError: its blob is right, and only read wrong.
            NotFoundError: its blob is gone.
        """
        with self.store.open_blob(file.digest) as reader:
            while reader.read(CHUNK):
                pass
        if reader.size != file.size:
            raise _other_size(file, reader.size)
        raise StorageIOError(
            f"{file.path}: blob {file.digest} read wrong once and right the next time: suspect this machine's memory, "
            "its disk, or the network"
        )


def below(found: File | Folder, maxdepth: int | None = None, *, folders: bool = False) -> Iterator[File | Folder]:
    """A file; or all that is below a folder.

    Args:
        found: what to begin with.
        maxdepth: folders to go down, at most.
        folders: folders too, this one among them.
    """
    if isinstance(found, File):
        yield found
        return
    if folders:
        yield found
    if maxdepth != 0:
        for child in found.children():
            yield from below(child, None if maxdepth is None else maxdepth - 1, folders=folders)


def _close(store: Store, pid: int) -> None:
    if os.getpid() == pid:  # else this is a forked child, and what is open is its parent's
        store.close()


def _unlisted(kind: str) -> Folder:
    def children() -> NoReturn:
        raise UnsupportedError(f"{kind}/ is not listed: name one; `oarbank-cas ls` lists what a store holds")

    return Folder(kind, children)


def _valid(check: Callable[[str], _T], text: str) -> _T:
    """What a check gives; what is malformed names nothing."""
    try:
        return check(text)
    except InvalidInputError as error:
        raise NotFoundError(str(error)) from error


def _other_size(file: File, size: int) -> CorruptError:
    return CorruptError(
        f"{file.path} is said to have {file.size} bytes, blob {file.digest} has {size}; run `oarbank-cas verify`",
        expected=file.digest,
    )
