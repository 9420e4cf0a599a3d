"""A published attempt as its readers see it: a dataset whose `manifest.json` says what its files are."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from oarbank_cas.attempt import document
from oarbank_cas.attempt.artifacts import Content, Listed, whole_lines
from oarbank_cas.attempt.blobsource import BlobSource
from oarbank_cas.attempt.declarations import RESULTS, RESULTS_ARTIFACT
from oarbank_cas.attempt.document import Artifact, Document
from oarbank_cas.attempt.journal import records_between
from oarbank_cas.attempt.records import Record
from oarbank_cas.attempt.scan import INLINE_CAP, Page, complete_end, page_of
from oarbank_cas.attempt.survey import Mark, start_of, surveyed_page, wrong
from oarbank_cas.attempt.view import not_a_journal, not_declared
from oarbank_cas.contracts.manifest import DATASET_PREFIX, MAX_MANIFEST_BYTES, FileRef, parse_dataset, parse_manifest
from oarbank_cas.errors import CorruptError, InvalidInputError, NotFoundError

if TYPE_CHECKING:
    from oarbank_cas.blobs import Blobs
    from oarbank_cas.pins import Pins

_CHUNK = 1024 * 1024


class PublishedAttempt:
    """A published attempt in a store; see `AttemptView`. Nothing of it changes any more.

    Args:
        blobs: the store's blobs.
        dataset: the attempt, `art:<digest>`.

    Raises:
        NotFoundError: the store does not have it.
        InvalidInputError: it is no dataset, or one that is no published attempt.
        CorruptError: its manifests are damaged, or contradict each other.
    """

    def __init__(self, blobs: Blobs, dataset: str) -> None:
        self._blobs = blobs
        self.dataset = dataset
        manifest = parse_dataset(dataset)
        try:
            data = blobs.get_bytes(manifest, MAX_MANIFEST_BYTES)
        except NotFoundError as error:
            raise NotFoundError(f"attempt {dataset}: {error}") from error
        files = {file.path: file for file in parse_manifest(data, dataset)}
        self._document = self._read(files)
        self._artifacts = {found.declaration.name: found for found in self._document.artifacts}

    def _read(self, files: dict[str, FileRef]) -> Document:
        listed = files.get(document.FILE)
        if listed is None:
            raise InvalidInputError(f"it is no published attempt: it has no {document.FILE}", self.dataset)
        place = self._label(document.FILE)
        if listed.size > document.MAX_BYTES:
            raise InvalidInputError(f"it has {listed.size} bytes, and at most {document.MAX_BYTES} are read", place)
        found = document.decode(self._whole(listed), place)
        for artifact in found.artifacts:
            file = files.get(artifact.declaration.file)
            if file is None:
                raise InvalidInputError(f"it names {artifact.declaration.file}, which the dataset does not have", place)
            if (file.digest, file.size) != (artifact.digest, artifact.size):
                raise InvalidInputError(
                    f"it says that {file.path} has {artifact.size} bytes and the digest {artifact.digest}, and the "
                    f"dataset says {file.size} and {file.digest}",
                    place,
                )
        return found

    def _label(self, file: str) -> str:
        return f"{file} of attempt {self.dataset}"

    def _whole(self, file: FileRef) -> bytes:
        """A file's verified bytes."""
        try:
            data = self._blobs.get_bytes(file.digest, file.size)
        except NotFoundError as error:
            raise NotFoundError(f"{self._label(file.path)}: {error}") from error
        if len(data) != file.size:
            raise CorruptError(
                f"{self._label(file.path)}: {len(data)} bytes are there, and it is said to have {file.size}"
            )
        return data

    def listing(self) -> tuple[list[Listed], list[str]]:
        """Every artifact with its size, `results` first and with None where there were none; and the problems."""
        listed = [Listed(found.declaration, found.size) for found in self._document.artifacts]
        if RESULTS not in self._artifacts:
            listed.insert(0, Listed(RESULTS_ARTIFACT, None))
        return listed, list(self._document.problems)

    def _find(self, name: str) -> Artifact:
        found = self._artifacts.get(name)
        if found is None:
            if name == RESULTS:
                raise NotFoundError(f"attempt {self.dataset}: it has no results")
            raise not_declared(f"attempt {self.dataset}", name, self._artifacts)
        return found

    def content(self, name: str) -> Content:
        """The content of an artifact, at most `INLINE_CAP` bytes; verified.

        Raises:
            NotFoundError: there is no such artifact, or its file is gone.
            InvalidInputError: a `json` document, or the first record, is above the cap.
            CorruptError: the file is damaged.
        """
        found = self._find(name)
        file = FileRef(found.declaration.file, found.digest, found.size)
        journal = found.declaration.format == "records"
        if found.size <= INLINE_CAP:
            data = self._whole(file)
            return Content(data[: data.rfind(b"\n") + 1] if journal else data, found.size)
        if not journal:
            raise InvalidInputError(
                f"it has {found.size} bytes, and a json artifact above {INLINE_CAP} is not returned inline; get it "
                f"with `oarbank-cas fetch {self.dataset} {file.path}`",
                self._label(file.path),
            )
        with self._source(found) as source:
            content = whole_lines(source)
            try:
                for _ in records_between(source, 0, len(content.data), 0, 0):
                    pass
            except CorruptError:
                self._verify(found)  # where the store is not to blame, these are the bytes that were published
        return content

    def page(self, name: str, offset: int, limit: int) -> Page:
        """Records `offset` to `offset + limit` of a journal; each is checked, and not much more of it is read.

        Raises:
            NotFoundError: there is no such artifact, or its file is gone.
            InvalidInputError: it is no journal, or offset or limit is out of range.
            CorruptError: a record of the page does not check, or the file or what is said of it is damaged.
        """
        found = self._journal(name)
        with self._reading(found) as source:
            if found.survey is None:
                return page_of(source, offset, limit)
            return surveyed_page(source, found.survey, offset, limit)

    def follow(self, name: str, offset: int) -> Iterator[Record]:
        """The records of a journal from `offset` on, to its end: no more will come.

        Raises:
            CasError: as `page`.
        """
        return self._records(self._journal(name), offset)

    def _records(self, found: Artifact, offset: int) -> Iterator[Record]:
        with self._reading(found) as source:
            survey = found.survey
            start = Mark(0, 0) if survey is None else start_of(source, survey, survey.before(offset))
            end = complete_end(source, source.size(), start.byte)
            seen = yield from records_between(source, start.byte, end, start.before, offset)
            if survey is not None and seen != survey.records:
                raise wrong(source, f"it ends after record {seen}, not {survey.records}")

    def _source(self, found: Artifact) -> BlobSource:
        return BlobSource(self._blobs, found.digest, found.size, self._label(found.declaration.file))

    @contextmanager
    def _reading(self, found: Artifact) -> Iterator[BlobSource]:
        """An artifact's file by ranges. Where something in it does not check, all of it is read: who is to blame?

        Raises:
            CorruptError: the blob is damaged, and set aside; or else the error that led here.
        """
        with self._source(found) as source:
            try:
                yield source
            except CorruptError as error:
                self._verify(found)
                raise CorruptError(f"{error} (the store holds the file as it was published)") from error

    def _verify(self, found: Artifact) -> None:
        with self._blobs.open(found.digest) as reader:
            while reader.read(_CHUNK):
                pass

    def _journal(self, name: str) -> Artifact:
        found = self._find(name)
        if found.declaration.format != "records":
            raise not_a_journal(found.declaration)
        return found


def published_attempt(blobs: Blobs, pins: Pins, reference: str) -> PublishedAttempt:
    """A published attempt by its dataset, `art:<digest>`, or by the name of a pin that keeps it.

    Raises:
        NotFoundError: there is no such pin, or the store does not have the attempt (any more).
        InvalidInputError: it can be neither, or what it names is no published attempt.
        CorruptError: the pin or the attempt's manifests are damaged.
    """
    if reference.startswith(DATASET_PREFIX):
        return PublishedAttempt(blobs, reference)
    try:
        pin = pins.get(reference)
    except NotFoundError as error:
        raise NotFoundError(f"no attempt is published under the name {reference}: {error}") from error
    if pin.dataset is None:
        raise InvalidInputError(f"keeps {pin.target}, which is no published attempt", f"pin {reference}")
    return PublishedAttempt(blobs, pin.dataset)
