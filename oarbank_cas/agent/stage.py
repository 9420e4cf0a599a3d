"""The start of a job, and people's fetches: artifacts out of the store into directories."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from oarbank_cas.agent.placing import check_same_file, place_file, place_tree
from oarbank_cas.agent.workdir import Folder
from oarbank_cas.contracts.manifest import (
    MAX_MANIFEST_BYTES,
    is_artifact_dataset,
    parse_dataset,
    parse_manifest,
)
from oarbank_cas.errors import ConflictError, CorruptError, InvalidInputError, NotFoundError

if TYPE_CHECKING:
    from oarbank_cas.blobs import Blobs
    from oarbank_cas.contracts.envelopes import SpecEnvelope
    from oarbank_cas.contracts.manifest import FileRef

Resolver: TypeAlias = Callable[[str], str]
"""Given a dataset id that is not this store's, gives the `art:` dataset that it stands for, or raises."""


@dataclass(frozen=True, slots=True)
class Mounted:
    """A dataset in a work directory.

    Attributes:
        name: the input's name; None for one of the spec's own datasets.
        dataset: the dataset's id, as the spec gives it.
        mount: where it stands, below the work directory.
        files: how many files it has.
        size: their bytes together.
        placed: False where it stood there already.
    """

    name: str | None
    dataset: str
    mount: str
    files: int
    size: int
    placed: bool


class Stager:
    """Staging and fetching from one store.

    Args:
        blobs: the store's blobs.
    """

    def __init__(self, blobs: Blobs) -> None:
        self._blobs = blobs

    def files_of(self, dataset: str) -> tuple[FileRef, ...]:
        """The files of an `art:` dataset, from its manifest.

        Raises:
            InvalidInputError: it is no such dataset id.
            NotFoundError: the store does not have it.
            CorruptError: its manifest is damaged, or no manifest.
        """
        digest = parse_dataset(dataset)
        try:
            data = self._blobs.get_bytes(digest, MAX_MANIFEST_BYTES)
        except NotFoundError as error:
            raise NotFoundError(f"dataset {dataset}: {error}") from error
        try:
            return parse_manifest(data, dataset)
        except InvalidInputError as error:
            raise CorruptError(f"{error}; the dataset cannot be used") from error

    def check_present(self, files: Iterable[FileRef], label: str) -> None:
        """Check that every file is in the store, with the size that its manifest or envelope says.

        Raises:
            NotFoundError: one is absent.
            CorruptError: one has another size.
        """
        wanted = list(files)
        for file, size in zip(wanted, self._blobs.sizes_for_readers([file.digest for file in wanted]), strict=True):
            if size is None:
                raise NotFoundError(f"{label}: {file.path} is not in the store (blob {file.digest})")
            if size != file.size:
                raise CorruptError(
                    f"{label}: {file.path} is said to have {file.size} bytes, blob {file.digest} has {size}"
                )

    def stage(
        self,
        spec: bytes,
        workdir: str | os.PathLike[str],
        resolver: Resolver | None = None,
        progress: Callable[[int], None] | None = None,
    ) -> list[Mounted]:
        """Place the inputs and datasets of a spec envelope in a work directory, each whole or not at all.

        All manifests are read and checked, and all files seen present, before the first file is written.

        Args:
            spec: the spec envelope.
            workdir: the work directory; it exists.
            resolver: gives the `art:` dataset that a foreign dataset id stands for.
            progress: called with the bytes of each file placed, from several threads.

        Raises:
            InvalidInputError: the spec breaks the contract, a dataset is not this store's, or a link is in the way.
            NotFoundError: a dataset or a file of it is not in the store.
            CorruptError: a manifest or a blob is damaged.
            ConflictError: something else stands at a mount.
        """
        from oarbank_cas.contracts.envelopes import parse_spec  # see `check_recordable`

        plan = [
            (name, dataset, mount, self._resolved(dataset, resolver))
            for name, dataset, mount in _wanted(parse_spec(spec).envelope)
        ]
        for _, dataset, _, files in plan:
            self.check_present(files, f"dataset {dataset}")
        write = self._writer(progress)
        with Folder(workdir) as root:
            return [
                Mounted(
                    name,
                    dataset,
                    mount,
                    len(files),
                    sum(file.size for file in files),
                    place_tree(root, mount, files, write),
                )
                for name, dataset, mount, files in plan
            ]

    def _resolved(self, dataset: str, resolver: Resolver | None) -> tuple[FileRef, ...]:
        if is_artifact_dataset(dataset):
            return self.files_of(dataset)
        if resolver is None:
            raise InvalidInputError(
                "is not a dataset of this store (art:<digest>); whoever owns it must place it, or pass a resolver",
                f"dataset {dataset}",
            )
        return self.files_of(resolver(dataset))

    def _writer(self, progress: Callable[[int], None] | None) -> Callable[[FileRef, int, str], None]:
        def write(file: FileRef, fd: int, label: str) -> None:
            self._blobs.copy_to(file.digest, fd, label)
            if progress is not None:
                progress(file.size)

        return write

    def fetch(
        self,
        files: Sequence[tuple[str, FileRef]],
        directory: str | os.PathLike[str],
        progress: Callable[[int], None] | None = None,
    ) -> int:
        """Write files to a directory, for people: ordinary files, each whole or not at all.

        Args:
            files: where each goes below the directory (a portable path), and which it is.
            directory: made if it is absent.
            progress: called with the bytes of each file written.

        Returns:
            How many were written; the others stood there already.

        Raises:
            NotFoundError, CorruptError: as `check_present`; nothing is written then.
            ConflictError: another file stands in the place of one; nothing is written then.
        """
        self.check_present([file for _, file in files], "fetch")
        try:
            os.makedirs(directory, exist_ok=True)
        except OSError as error:
            raise ConflictError(f"cannot create {os.fspath(directory)}: {error.strerror}") from error
        write = self._writer(progress)
        with Folder(directory) as root:
            waiting = [(path, file) for path, file in files if not _stands(root, path, file)]
            return sum(place_file(root, path, file, write) for path, file in waiting)


def _stands(root: Folder, path: str, file: FileRef) -> bool:
    *above, name = path.split("/")
    folder = root.walk([])
    try:
        for part in above:
            if folder.lstat(part) is None:
                return False
            following = folder.enter(part)
            folder.close()
            folder = following
        if folder.lstat(name) is None:
            return False
        check_same_file(folder, name, file, path)
    finally:
        folder.close()
    return True


def _wanted(spec: SpecEnvelope) -> list[tuple[str | None, str, str]]:
    """What a spec wants placed: input name or None, dataset, mount."""
    wanted: dict[tuple[str, str], str | None] = {
        (given.dataset, given.mount): name for name, given in spec.inputs.items()
    }
    taken = {dataset for dataset, _ in wanted}
    for dataset in spec.datasets:
        if dataset in spec.mounts:
            wanted.setdefault((dataset, spec.mounts[dataset]), None)
        elif dataset not in taken:
            raise InvalidInputError(f"says no mount for the dataset {dataset}", "$.mounts")
    for dataset, mount in spec.mounts.items():
        if (dataset, mount) not in wanted:
            raise InvalidInputError(f"mounts {dataset}, which is not among the datasets", "$.mounts")
    return [(name, dataset, mount) for (dataset, mount), name in wanted.items()]
