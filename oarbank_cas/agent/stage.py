"""The start of a job, and people's fetches: artifacts out of the store into directories."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from oarbank_cas.agent.checking import ChangedInput, Checker
from oarbank_cas.agent.placing import check_same_file, place_file, place_together, place_tree
from oarbank_cas.agent.supply import supply_for
from oarbank_cas.agent.workdir import Folder
from oarbank_cas.batches import in_order
from oarbank_cas.cache.mounts import MountRecord
from oarbank_cas.cache.reads import CachedBlobs
from oarbank_cas.contracts.manifest import (
    MAX_MANIFEST_BYTES,
    is_artifact_dataset,
    parse_dataset,
    parse_manifest,
)
from oarbank_cas.errors import ConflictError, CorruptError, InvalidInputError, NotFoundError

if TYPE_CHECKING:
    from oarbank_cas.blobs import Blobs
    from oarbank_cas.cache.carrying import Placement
    from oarbank_cas.contracts.envelopes import SpecEnvelope
    from oarbank_cas.contracts.manifest import FileRef
    from oarbank_cas.progress import Progress

_SMALL = 2**20
"""Bytes up to which a file is brought without a look whether it is there."""

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
    _release: Callable[[], list[ChangedInput]] = field(default=list, repr=False, compare=False)

    def release(self) -> list[ChangedInput]:
        """Say that the job has ended: what it changed among these files; a cached blob that it spoilt is dropped."""
        return self._release()


class _Planned(NamedTuple):
    name: str | None
    dataset: str
    mount: str
    files: tuple[FileRef, ...]


class Stager:
    """Staging and fetching from one store.

    Args:
        blobs: the store's blobs, or a cache before them.
    """

    def __init__(self, blobs: Blobs) -> None:
        self._blobs = blobs
        self._checker = Checker(blobs if isinstance(blobs, CachedBlobs) else None)

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

    def check_present(self, files: Iterable[FileRef], label: str, known: Mapping[str, int] | None = None) -> None:
        """Check that every file is in the store, with the size that its manifest or envelope says.

        Args:
            files: any number.
            label: what they belong to, for messages.
            known: sizes of blobs that are at hand, for which the store is not asked.

        Raises:
            NotFoundError: one is absent.
            CorruptError: one has another size.
        """
        wanted = list(files)
        known = known or {}
        asked = self._blobs.sizes_for_readers([file.digest for file in wanted if file.digest not in known])
        for file in wanted:
            size = known[file.digest] if file.digest in known else next(asked)
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
        progress: Progress | None = None,
        placement: Placement = "auto",
    ) -> list[Mounted]:
        """Place the inputs and datasets of a spec envelope in a work directory, each whole or not at all.

        All manifests are read and checked, and all files seen present, before the first file is written.

        Args:
            spec: the spec envelope.
            workdir: the work directory; it exists.
            resolver: gives the `art:` dataset that a foreign dataset id stands for.
            progress: who is told of each file placed.
            placement: how files come out of the cache; without one they are written.

        Raises:
            InvalidInputError: the spec breaks the contract, a dataset is not this store's, or a link is in the way.
            NotFoundError: a dataset or a file of it is not in the store.
            CorruptError: a manifest or a blob is damaged.
            ConflictError: something else stands at a mount.
        """
        from oarbank_cas.contracts.envelopes import parse_spec  # see `check_recordable`

        envelope = parse_spec(spec).envelope
        plan = self._plan(envelope, resolver)
        everything = [file for planned in plan for file in planned.files]
        real = os.path.realpath(workdir)
        mounted: list[Mounted] = []
        with Folder(workdir) as root, supply_for(self._blobs, everything, placement, progress) as supply:
            for planned in plan:
                self.check_present(planned.files, f"dataset {planned.dataset}", supply.known)
            supply.fill()
            for name, dataset, mount, files in plan:
                supply.placed = []
                placed = place_tree(root, mount, files, supply.bring, supply.at_once)
                record = MountRecord(real, mount, "", name, dataset, envelope.job_key, [])
                if placed:
                    self._checker.remember(record, supply.placed)
                size = sum(file.size for file in files)
                release = partial(self._release, real, record, files)
                mounted.append(Mounted(name, dataset, mount, len(files), size, placed, release))
        return mounted

    def _release(self, workdir: str, record: MountRecord, files: Sequence[FileRef]) -> list[ChangedInput]:
        found = self._checker.check(workdir, self._recorded(record), files)
        self._checker.forget(record)
        return found

    def _recorded(self, wanted: MountRecord) -> MountRecord:
        """The record of a mount, where there is one; else what is given, which names no files."""
        for record in self._checker.recorded(wanted.workdir):
            if (record.mount, record.dataset) == (wanted.mount, wanted.dataset):
                return record
        return wanted

    def check(
        self, workdir: str | os.PathLike[str], spec: bytes | None = None, resolver: Resolver | None = None
    ) -> list[ChangedInput]:
        """What the job of a work directory has changed among its inputs; cached blobs that it spoilt are dropped.

        Args:
            workdir: the work directory.
            spec: the spec envelope that was staged; None for everything that the cache has a record of.
            resolver: as in `stage`.

        Raises:
            InvalidInputError: the spec breaks the contract; or there is none, and no record either.
            NotFoundError, CorruptError: a manifest is needed, and absent or damaged.
        """
        if spec is None:
            records = self._checker.recorded(workdir)
            if not records:
                raise InvalidInputError(
                    "nothing is recorded to have been placed there; name the spec that was staged", os.fspath(workdir)
                )
            return [found for record in records for found in self._checker.check(workdir, record)]
        from oarbank_cas.contracts.envelopes import parse_spec

        envelope = parse_spec(spec).envelope
        real = os.path.realpath(workdir)
        changed: list[ChangedInput] = []
        for name, dataset, mount, files in self._plan(envelope, resolver):
            record = self._recorded(MountRecord(real, mount, "", name, dataset, envelope.job_key, []))
            changed += self._checker.check(workdir, record, files)
        return changed

    def _plan(self, envelope: SpecEnvelope, resolver: Resolver | None) -> list[_Planned]:
        return [
            _Planned(name, dataset, mount, self._resolved(dataset, resolver))
            for name, dataset, mount in _wanted(envelope)
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

    def fetch(
        self,
        files: Sequence[tuple[str, FileRef]],
        directory: str | os.PathLike[str],
        progress: Progress | None = None,
    ) -> int:
        """Write files to a directory, for people: ordinary files, each whole or not at all.

        Args:
            files: where each goes below the directory (a portable path), and which it is.
            directory: made if it is absent.
            progress: who is told of each file written.

        Returns:
            How many were written; the others stood there already.

        Raises:
            NotFoundError, CorruptError: a blob is absent or damaged, or has another size; nothing is placed then but
                where a large one is found damaged.
            ConflictError: another file stands in the place of one; nothing is written then.
        """
        # A small file is brought as soon as it is asked for: all of them, before the first is seen in its place.
        self.check_present([file for _, file in files if file.size > _SMALL], "fetch")
        new = not os.path.lexists(directory)
        try:
            os.makedirs(directory, exist_ok=True)
        except OSError as error:
            raise ConflictError(f"cannot create {os.fspath(directory)}: {error.strerror}") from error
        try:
            return self._fetch(files, directory, progress)
        except BaseException:
            if new:
                with contextlib.suppress(OSError):
                    os.rmdir(directory)  # where nothing came into it
            raise

    def _fetch(
        self,
        files: Sequence[tuple[str, FileRef]],
        directory: str | os.PathLike[str],
        progress: Progress | None,
    ) -> int:
        with Folder(directory) as root:
            waiting = [(path, file) for path, file in files if not _stands(root, path, file)]
            with supply_for(self._blobs, [file for _, file in waiting], "auto", progress) as supply:
                supply.fill()
                small = [(path, file) for path, file in waiting if file.size <= _SMALL]
                large = [(path, file) for path, file in waiting if file.size > _SMALL]
                placed = place_together(root, small, supply.bring, supply.at_once)
                return placed + sum(in_order(lambda item: place_file(root, *item, supply.bring), large, supply.at_once))


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
