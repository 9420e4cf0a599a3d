"""Sealing an attempt into the store: its files and what the manifest says of them become a dataset that a pin keeps."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from oarbank_cas import instants
from oarbank_cas.attempt import document
from oarbank_cas.attempt.artifacts import Sealed, digest_file, identity_of, not_listed, sealed
from oarbank_cas.attempt.declarations import RESULTS, RESULTS_FILE
from oarbank_cas.attempt.files import FileSource, open_regular, require_directory
from oarbank_cas.attempt.survey import Survey, survey_of
from oarbank_cas.contracts.manifest import FileRef, dataset_id, manifest_bytes, parse_dataset
from oarbank_cas.errors import (
    CasError,
    ConflictError,
    InvalidInputError,
    NotFoundError,
    PermissionDeniedError,
    StorageIOError,
)
from oarbank_cas.intake import Intake

if TYPE_CHECKING:
    from oarbank_cas.backends.base import Backend
    from oarbank_cas.blobs import Blob, Blobs
    from oarbank_cas.pins import Pin, Pins

PIN_PREFIX: Final = "attempt-"
"""What the default name of a pin starts with; the digest in the dataset's id follows."""


@dataclass(frozen=True, slots=True)
class PublishedSeal:
    """A sealed attempt that is in the store.

    Attributes:
        sealed: what was sealed, without what changed before it was in the store.
        dataset: the attempt's name, `art:<digest>`.
        files: the dataset's files, `manifest.json` too.
        pin: the pin that keeps it.
        published: whether this call made the pin, or made it last longer; False where it stood already.
        new_files: how many files the store did not have.
        new_size: the bytes of those.
    """

    sealed: Sealed
    dataset: str
    files: tuple[FileRef, ...]
    pin: Pin
    published: bool
    new_files: int
    new_size: int


class AttemptPublisher:
    """Publishing attempts into one store.

    Args:
        backend: the store's storage.
        blobs: its blobs.
        pins: its pins.
    """

    def __init__(self, backend: Backend, blobs: Blobs, pins: Pins) -> None:
        self._backend = backend
        self._blobs = blobs
        self._pins = pins

    def publish(
        self,
        directory: str | os.PathLike[str],
        pin: str | None = None,
        *,
        note: str = "",
        by: str = "",
        expires_at: str | None = None,
        progress: Callable[[int], None] | None = None,
    ) -> PublishedSeal:
        """Seal an attempt and keep it in the store. The very same attempt again is a no-op.

        An artifact whose file changes before it is in the store is left out, and a problem says so. Without the
        results, where there are some, nothing is published.

        Args:
            directory: the attempt directory.
            pin: the name of the pin that keeps it; `attempt-<digest of the dataset>` where None.
            note: why it is kept, for people.
            by: who publishes it.
            expires_at: when the pin ends, RFC 3339; None for never.
            progress: called with the bytes of each file that is done, from several threads.

        Raises:
            NotFoundError: there is no such directory.
            InvalidInputError: the name or the expiry is malformed, the expiry is past, or the results are no file that
                may be read.
            ConflictError: a pin of that name keeps something else.
            StorageIOError: the results changed while they were sealed, or writing failed.
        """
        path = require_directory(directory)
        self._pins.check(PIN_PREFIX if pin is None else pin, note, by, expires_at)
        if expires_at is not None and instants.from_text(expires_at) <= self._backend.now():
            raise InvalidInputError(f"{expires_at} is past: the pin would keep nothing", "expires")
        found = sealed(path)
        with Intake(self._backend, self._blobs) as intake:
            kept = _Batch(path, found, intake, progress).put()
            view = Sealed(kept.artifacts, kept.index, _without_place([*found.problems, *kept.problems], path))
            if RESULTS not in view.artifacts and os.path.lexists(path / RESULTS_FILE):
                raise _no_results(path, view.problems)
            written = intake.add_bytes(document.encode(view, kept.surveys))
            files = [FileRef(file, *kept.refs[name]) for name, file in view.artifacts.items()]
            files = sorted([*files, FileRef(document.FILE, written.digest, written.size)])
            dataset = dataset_id(intake.add_bytes(manifest_bytes(files)).digest)
            name = PIN_PREFIX + parse_dataset(dataset) if pin is None else pin
            self._require_free(name, dataset)
            hold = intake.commit()
        standing, published = self._pins.keep(name, dataset, hold, note=note, by=by, expires_at=expires_at)
        new = [blob for blob in (*kept.blobs, written) if blob.new]
        return PublishedSeal(view, dataset, tuple(files), standing, published, len(new), sum(blob.size for blob in new))

    def _require_free(self, name: str, dataset: str) -> None:
        """Refuse a pin's name that is taken, before anything gets into the store."""
        try:
            standing = self._pins.get(name)
        except NotFoundError:
            return
        if standing.dataset != dataset:
            raise ConflictError(
                f"the pin {name} in {self._backend.where} keeps another attempt, {standing.target}: unpin it first, or "
                "choose another name"
            )


class _Batch:
    """The files of a sealed attempt on their way into the store."""

    def __init__(self, directory: Path, found: Sealed, intake: Intake, progress: Callable[[int], None] | None) -> None:
        self._directory = directory
        self._found = found
        self._intake = intake
        self._progress = progress
        self.artifacts: dict[str, str] = {}
        self.index: dict[str, dict[str, Any]] = {}
        self.refs: dict[str, tuple[str, int]] = {}
        self.surveys: dict[str, Survey] = {}
        self.problems: list[str] = []
        self.blobs: list[Blob] = []

    def put(self) -> _Batch:
        """Put every file; note what became of each."""
        names = list(self._found.artifacts)
        with ThreadPoolExecutor(max_workers=os.cpu_count() or 1, thread_name_prefix="oarbank-cas-seal") as pool:
            for name, result in zip(names, pool.map(self._put_one, names), strict=True):
                if isinstance(result, CasError):
                    self.problems.append(not_listed(name, result))
                    continue
                blob, survey = result
                self.artifacts[name] = self._found.artifacts[name]
                self.index[name] = self._found.artifact_index[name]
                self.refs[name] = (blob.digest, blob.size)
                self.blobs.append(blob)
                if survey is not None:
                    self.surveys[name] = survey
        return self

    def _put_one(self, name: str) -> tuple[Blob, Survey | None] | CasError:
        path = self._directory / self._found.artifacts[name]
        said = self._found.artifact_index[name]
        sealed_as = (said["size"], said["sha256"])
        try:
            blob, survey = self._read(path, said["format"], sealed_as)
        except CasError as error:
            if _is_still(path, sealed_as):
                raise  # it is the store that failed
            return error
        if self._progress is not None:
            self._progress(blob.size)
        return blob, survey

    def _read(self, path: Path, artifact_format: str, sealed_as: tuple[int, str]) -> tuple[Blob, Survey | None]:
        source = _OpenFile(open_regular(path, os.O_RDONLY), os.fspath(path))
        try:
            file = FileSource(source.fd, source.label)
            before = identity_of(file)
            survey = survey_of(file) if artifact_format == "records" else None
            blob = self._intake.add_file(source)
            # Whatever was surveyed is what was put, and what was put is what was sealed.
            if identity_of(file) != before or (blob.size, blob.digest) != sealed_as:
                raise StorageIOError(
                    f"{source.label}: it changed after it was sealed; let its writer end, then seal again"
                )
            return blob, survey
        finally:
            os.close(source.fd)


@dataclass(frozen=True, slots=True)
class _OpenFile:
    """An open file as a source of bytes to put; whoever opened it closes it."""

    fd: int
    label: str

    def open(self) -> int:
        """A descriptor of the same open file, at its start."""
        os.lseek(self.fd, 0, os.SEEK_SET)
        return os.dup(self.fd)


def _is_still(path: Path, sealed_as: tuple[int, str]) -> bool:
    try:
        return digest_file(path) == sealed_as
    except CasError:
        return False


def _without_place(problems: list[str], directory: Path) -> list[str]:
    """Problems as they are published: without the directory's path, which is no part of an attempt; and Unicode."""
    place = os.path.join(directory, "")
    return [problem.replace(place, "").encode("utf-8", "backslashreplace").decode() for problem in problems]


def _no_results(directory: Path, problems: list[str]) -> CasError:
    why = next((problem for problem in problems if problem.startswith(f"{RESULTS} ")), "they changed meanwhile")
    said = f"{os.fspath(directory)}: the results cannot be published, so nothing is ({why})"
    try:
        digest_file(directory / RESULTS_FILE)
    except (InvalidInputError, PermissionDeniedError) as error:
        return type(error)(said)
    except CasError:
        pass
    return StorageIOError(said)
