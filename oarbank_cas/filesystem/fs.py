"""The class that fsspec finds: what it asks of a filesystem, answered by a `StoreView`."""

from __future__ import annotations

import errno
import hashlib
import os
from typing import TYPE_CHECKING, Any, NoReturn

from fsspec.callbacks import DEFAULT_CALLBACK
from fsspec.spec import AbstractFileSystem
from fsspec.utils import isfilelike

from oarbank_cas.batches import in_order
from oarbank_cas.blobs import CHUNK
from oarbank_cas.contracts.keys import ANY_CLASS, check_class
from oarbank_cas.contracts.manifest import DATASET_PREFIX
from oarbank_cas.errors import CasError, InvalidInputError, UnsupportedError
from oarbank_cas.filesystem.file import StoreFile, telling
from oarbank_cas.filesystem.options import store_options
from oarbank_cas.filesystem.view import File, Folder, Known, StoreView, below

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from oarbank_cas.backends.s3.options import S3Options
    from oarbank_cas.store import Store

_FSSPECS = {"use_listings_cache", "listings_expiry_time", "max_paths", "asynchronous", "loop", "batch_size"}
"""Options of fsspec's own that may come along, and change nothing here."""


class StoreFileSystem(AbstractFileSystem):  # type: ignore[misc] # fsspec is not typed
    """The files of a store; nothing is written through it. Safe to use from many threads, and after a fork.

    The store is opened when it is first asked for something. A path that names nothing, a job key without a hit and a
    blob that is absent raise FileNotFoundError with the reason; a store out of reach raises UnavailableError, never
    that. What is read whole is checked against its digest, and wrong bytes raise CorruptError.

    Args:
        store: the store's URL. Else what `OARBANK_CAS_STORE` or a configuration file says, as for the command line,
            each time that something is asked for.
        s3: options of a bucket: `S3Options`, or a mapping with their names. Else the configuration file's.
        config: the configuration file; else those of the command line.
        cache: the directory of a local cache; empty for none. Else `OARBANK_CAS_CACHE` or the configuration file.
        cache_bytes: bytes that it may hold.
        result_class: the class of job keys that name none.
        complete: False skips the look for all files of a result, as in `Store.lookup`.
        read_only: open the store for reading only: damaged bytes are not set aside, and hits are not noted.
        fo: the store, where its URL is chained to this one's (`oarbank-cas://...::file:///data/cas`).
        target_protocol: the protocol of that.
        target_options: the options of that: those of a bucket.

    Raises:
        InvalidInputError: an option is unknown, or says what cannot be.
        UnsupportedError: the store is of another kind of storage.
    """

    protocol = "oarbank-cas"

    def __init__(
        self,
        store: str | os.PathLike[str] | None = None,
        *,
        s3: S3Options | Mapping[str, object] | None = None,
        config: str | None = None,
        cache: str | os.PathLike[str] | None = None,
        cache_bytes: int | None = None,
        result_class: str = ANY_CLASS,
        complete: bool = True,
        read_only: bool = False,
        fo: str | None = None,
        target_protocol: str | None = None,
        target_options: Mapping[str, object] | None = None,
        **others: Any,  # noqa: ANN401 - as fsspec has it
    ) -> None:
        unknown = sorted(others.keys() - _FSSPECS)
        if unknown:
            raise InvalidInputError(
                "is unknown; a credential belongs in AWS's own files or environment", f"storage option {unknown[0]}"
            )
        self._options = store_options(
            store,
            s3,
            (fo, target_protocol, target_options),
            config=config,
            cache=cache,
            cache_bytes=cache_bytes,
            read_only=read_only,
        )
        self._class = check_class(result_class, "storage option result_class")
        self._complete = complete
        self._views: dict[tuple[int, str], StoreView] = {}
        super().__init__(**others)

    @property
    def view(self) -> StoreView:
        """The store as this process sees it, opened if it is not yet.

        Raises:
            CasError: what `Store.open` raises.
        """
        url = self._options.url()
        mine = (os.getpid(), url)
        view = self._views.get(mine)
        if view is None:
            new = StoreView(self._options.open(url), self._class, complete=self._complete)
            view = self._views.setdefault(mine, new)  # a lock might be held for ever after a fork
            if view is not new:
                new.close()
        return view

    @property
    def store(self) -> Store:
        """The store; see `view`."""
        return self.view.store

    def __repr__(self) -> str:
        return f"<{type(self).__name__} over {self._options.store or 'the store that settings name'}>"

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        """The same store elsewhere, whatever settings say there; a cache is that machine's."""
        chain = ("fo", "target_protocol", "target_options")
        options = {name: value for name, value in self.storage_options.items() if name not in chain}
        return _again, (type(self), options | self._options.pinned())

    @classmethod
    def _strip_protocol(cls, path: str | list[str]) -> Any:  # noqa: ANN401 - as many as were given
        stripped = super()._strip_protocol(path)
        return stripped if isinstance(stripped, list) else stripped.strip("/")

    # -- looking

    def _locate(self, path: str, known: Known | None = None) -> File | Folder:
        path = self._strip_protocol(path)
        with telling(path):
            return self.view.locate(path, known)

    def _file_at(self, path: str, known: Known | None = None) -> File:
        found = self._locate(path, known)
        if isinstance(found, Folder):
            raise IsADirectoryError(errno.EISDIR, "this is a folder: name a file in it", found.path)
        return found

    def described(self, found: File | Folder) -> dict[str, Any]:
        """What `info` says of something."""
        if isinstance(found, File):
            return {"name": found.path, "size": found.size, "type": "file", "sha256": found.digest}
        more = {"dataset": found.dataset} if found.dataset is not None else {}
        return {"name": found.path, "size": 0, "type": "directory", **more}

    def info(self, path: str, **_: object) -> dict[str, Any]:
        """Name, `size` in bytes and `type`; of a file its digest as `sha256`, of an artifact its id as `dataset`.

        Raises:
            FileNotFoundError: nothing is there; also where a file is listed, but its blob is gone.
            CorruptError: the blob has another size.
        """
        found = self._locate(path)
        if isinstance(found, File):
            with telling(found.path):
                self.view.check_there(found)
        return self.described(found)

    def ls(self, path: str, detail: bool = True, **_: object) -> list[Any]:
        """What a folder holds, from its manifest; or a file itself.

        Raises:
            FileNotFoundError: nothing is there.
            UnsupportedError: all blobs, datasets or results of the store were asked for.
        """
        found = self._locate(path)
        with telling(found.path):
            infos = [self.described(each) for each in (found.children() if isinstance(found, Folder) else [found])]
        return infos if detail else [info["name"] for info in infos]

    def find(
        self, path: str, maxdepth: int | None = None, withdirs: bool = False, detail: bool = False, **_: object
    ) -> Any:  # noqa: ANN401 - as fsspec has it
        """All files below a path, of one state of the store; see `AbstractFileSystem.find`.

        Raises:
            FileNotFoundError, UnsupportedError: as `ls`.
        """
        if maxdepth is not None and maxdepth < 1:
            raise ValueError("maxdepth must be at least 1")
        found = self._locate(path)
        with telling(found.path):
            infos = {each.path: self.described(each) for each in below(found, maxdepth, folders=withdirs)}
        infos.pop("", None)
        return {name: infos[name] for name in sorted(infos)} if detail else sorted(infos)

    def du(
        self, path: str, total: bool = True, maxdepth: int | None = None, withdirs: bool = False, **_: object
    ) -> Any:  # noqa: ANN401 - as fsspec has it
        """Bytes of the files below a path, together or each; see `AbstractFileSystem.du`."""
        infos = self.find(path, maxdepth=maxdepth, withdirs=withdirs, detail=True)
        sizes = {name: info["size"] for name, info in infos.items()}
        return sum(sizes.values()) if total else sizes

    def exists(self, path: str, **_: object) -> bool:
        """Whether there is something at a path. A store that cannot tell raises."""
        try:
            self.info(path)
        except FileNotFoundError:
            return False
        return True

    def isfile(self, path: str) -> bool:
        """Whether there is a file at a path. A store that cannot tell raises."""
        try:
            return bool(self.info(path)["type"] == "file")
        except FileNotFoundError:
            return False

    def isdir(self, path: str) -> bool:
        """Whether there is a folder at a path. A store that cannot tell raises."""
        try:
            return isinstance(self._locate(path), Folder)
        except FileNotFoundError:
            return False

    def ukey(self, path: str) -> str:
        """What tells one content from every other: the digest of a file, or of an artifact's manifest."""
        found = self._locate(path)
        if isinstance(found, File):
            return found.digest
        if found.dataset is not None:
            return found.dataset.removeprefix(DATASET_PREFIX)
        with telling(found.path):
            files = [(each.path, each.digest) for each in below(found) if isinstance(each, File)]
        return hashlib.sha256(repr(files).encode()).hexdigest()

    def checksum(self, path: str) -> str:
        """The same as `ukey`."""
        return self.ukey(path)

    # -- reading

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **_: object) -> bytes:
        """The bytes of a file, or some, by Python's rules of slices. All of them are verified, a part is not.

        Raises:
            FileNotFoundError, IsADirectoryError: there is no file.
            CorruptError: all bytes were read, and are wrong; they are set aside.
        """
        return self._cat(self._file_at(path), start, end)

    def _cat(self, file: File, start: int | None, end: int | None) -> bytes:
        first, last, _ = slice(start, end).indices(file.size)
        with telling(file.path):
            if (first, last) == (0, file.size):
                return self.view.whole(file)
            return self.view.range(file, first, last) if first < last else b""

    def cat_ranges(
        self,
        paths: list[str],
        starts: int | list[int | None] | None,
        ends: int | list[int | None] | None,
        max_gap: int | None = None,
        on_error: str = "return",
        **_: object,
    ) -> list[bytes | Exception]:
        """Ranges of many files, several at once where the store is afar; see `AbstractFileSystem.cat_ranges`."""
        del max_gap  # a hint
        if not isinstance(paths, list):
            raise TypeError(f"paths must be a list, not {type(paths).__name__}")
        firsts = starts if isinstance(starts, list) else [starts] * len(paths)
        lasts = ends if isinstance(ends, list) else [ends] * len(paths)
        if not len(paths) == len(firsts) == len(lasts):
            raise ValueError("paths, starts and ends must be of one length")
        known: Known = {}

        def one(item: tuple[str, int | None, int | None]) -> bytes | Exception:
            path, first, last = item
            try:
                return self._cat(self._file_at(path, known), first, last)
            except (CasError, OSError) as error:
                if on_error == "return":
                    return error
                raise

        return list(in_order(one, zip(paths, firsts, lasts, strict=True), self.store.reads.requests_at_once))

    def get_file(
        self,
        rpath: str,
        lpath: Any,  # noqa: ANN401 - a path, or a file that is open
        callback: Any = DEFAULT_CALLBACK,  # noqa: ANN401 - as fsspec has it
        outfile: Any = None,  # noqa: ANN401 - a file that is open
        **_: object,
    ) -> None:
        """Copy a file to a local one, which gets verified bytes or does not appear; a folder makes a directory."""
        outfile = lpath if outfile is None and isfilelike(lpath) else outfile
        found = self._locate(rpath)
        if isinstance(found, Folder):
            os.makedirs(lpath, exist_ok=True)
            return
        callback.set_size(found.size)
        with telling(found.path):
            self.view.check_there(found)
            if outfile is None:
                os.makedirs(os.path.dirname(os.path.abspath(lpath)), exist_ok=True)
                callback.relative_update(self.store.get_file(found.digest, lpath))
                return
            with self.store.open_blob(found.digest) as reader:
                while data := reader.read(CHUNK):
                    outfile.write(data)
                    callback.relative_update(len(data))

    def _open(
        self,
        path: str,
        mode: str = "rb",
        block_size: int | str | None = None,
        autocommit: bool = True,
        cache_options: dict[str, Any] | None = None,
        *,
        cache_type: str = "readahead",
        **_: object,
    ) -> StoreFile:
        del autocommit
        if mode != "rb":
            self._refused()
        file = self._file_at(path)
        with telling(file.path):
            self.view.check_there(file)
        return StoreFile(self, file, block_size, cache_type, cache_options)

    # -- not writing

    def _refused(self, *_: object, **__: object) -> NoReturn:
        """Refused: nothing is written through this filesystem.

        Raises:
            UnsupportedError: always.
        """
        raise UnsupportedError(
            "oarbank-cas:// is for reading only: `oarbank-cas put` and `publish`, or Store's methods, bring files in"
        )

    mkdir = makedirs = rmdir = rm = rm_file = _rm = cp_file = mv = put_file = pipe_file = touch = _refused


def _again(kind: type[StoreFileSystem], options: dict[str, Any]) -> StoreFileSystem:
    return kind(**options)
