"""The end of a job: upload what its envelope calls `local`, put digests there instead, and record it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from oarbank_cas.agent.workdir import Folder, LocalSource
from oarbank_cas.contracts.recordable import Recordable, check_inline, rewritten
from oarbank_cas.contracts.rewrite import find_uploads, payload_size, replace_locals
from oarbank_cas.entry import MAX_ENVELOPE
from oarbank_cas.errors import InvalidInputError
from oarbank_cas.intake import Intake
from oarbank_cas.results import Recorded
from oarbank_cas.sources import PathSource

if TYPE_CHECKING:
    from oarbank_cas.backends.base import Backend
    from oarbank_cas.blobs import Blob, Blobs
    from oarbank_cas.contracts.key_inputs import KeyInputs
    from oarbank_cas.progress import Progress
    from oarbank_cas.results import Origin, Results
    from oarbank_cas.sources import Source

RESULT = "result.json"
"""The envelope's name in a work directory."""


@dataclass(frozen=True, slots=True)
class Uploaded:
    """A job's end before it is recorded.

    Attributes:
        envelope: the envelope with digests in the place of local files; every other byte as the runner wrote it.
        datasets: artifact name to dataset id.
        files: how many files were put.
        size: their bytes together.
        new_files: how many of them the store did not have.
        new_size: the bytes of those.
    """

    envelope: bytes
    datasets: dict[str, str]
    files: int
    size: int
    new_files: int
    new_size: int


class Published(NamedTuple):
    """What became of a publish.

    Attributes:
        recorded: what became of the record.
        uploaded: what was uploaded for it.
    """

    recorded: Recorded
    uploaded: Uploaded


class Publisher:
    """Publishing into one store.

    Args:
        backend: the store's storage.
        blobs: its blobs.
        results: its results.
    """

    def __init__(self, backend: Backend, blobs: Blobs, results: Results) -> None:
        self._backend = backend
        self._blobs = blobs
        self._results = results

    def upload(
        self,
        workdir: str | os.PathLike[str],
        result: str | os.PathLike[str] | None,
        *,
        max_inline_kb: int,
        progress: Progress | None = None,
    ) -> Uploaded:
        """Upload a job's files and manifests, without recording anything.

        Args:
            workdir: the work directory.
            result: the envelope's file; `result.json` in the work directory where None.
            max_inline_kb: KiB that the payload may have, as written.
            progress: who is told of each file that is done.

        Raises:
            InvalidInputError: the envelope breaks the contract, or a local file is not to be had; nothing is uploaded.
            StorageIOError: a file changed while it was read, or writing failed.
        """
        with Folder(workdir) as folder, Intake(self._backend, self._blobs) as intake:
            _, uploaded = self._add(intake, folder, result, max_inline_kb, progress)
            intake.commit()
            return uploaded

    def publish(
        self,
        key: str,
        workdir: str | os.PathLike[str],
        result: str | os.PathLike[str] | None,
        origin: Origin,
        result_class: str,
        *,
        max_inline_kb: int,
        progress: Progress | None = None,
        key_inputs: KeyInputs | None = None,
    ) -> Published:
        """Upload a job's files and record its envelope.

        Args:
            key: the job key.
            workdir: see `upload`.
            result: see `upload`.
            origin: where the result comes from.
            result_class: the class to record it in.
            max_inline_kb: see `upload`.
            progress: see `upload`.
            key_inputs: what the key was computed from, kept with the entry.

        Raises:
            InvalidInputError, StorageIOError: as `upload`, and as `Results.create`.
        """
        parts = self._results.check_target(key, result_class, origin, key_inputs)
        with Folder(workdir) as folder, Intake(self._backend, self._blobs) as intake:
            checked, uploaded = self._add(intake, folder, result, max_inline_kb, progress)
            if key_inputs is not None:
                intake.add_bytes(key_inputs.canonical)
            hold = intake.commit()
        return Published(self._results.create(parts, result_class, checked, origin, hold, key_inputs), uploaded)

    def _add(
        self,
        intake: Intake,
        folder: Folder,
        result: str | os.PathLike[str] | None,
        max_inline_kb: int,
        progress: Progress | None,
    ) -> tuple[Recordable, Uploaded]:
        # Building the models takes longer than a whole lookup, which needs none of them.
        from oarbank_cas.contracts.envelopes import parse_result

        source = LocalSource(folder, RESULT) if result is None else PathSource(os.fspath(result))
        data = read_document(source)
        intake.expect(folder.fd, data.count(b'"local"'))
        scan = find_uploads(parse_result(data, source.label).text, source.label)
        check_inline(payload_size(scan), max_inline_kb, source.label)
        sources = [LocalSource(folder, upload.local) for upload in scan.uploads]
        folder.check_files([each.local for each in sources])
        blobs = intake.add_files(sources, progress)
        intake.settle()
        text = replace_locals(scan, [(blob.digest, blob.size) for blob in blobs], source.label)
        checked = rewritten(text.encode(), source.label)
        self._results.require(intake, checked)
        return checked, _told(checked, blobs)


def _told(checked: Recordable, blobs: list[Blob]) -> Uploaded:
    new = [blob for blob in blobs if blob.new]
    return Uploaded(
        checked.envelope,
        checked.datasets,
        len(blobs),
        sum(blob.size for blob in blobs),
        len(new),
        sum(blob.size for blob in new),
    )


def read_document(source: Source, max_bytes: int = MAX_ENVELOPE) -> bytes:
    """Read a document from outside, at most `max_bytes` of it.

    Raises:
        InvalidInputError: it cannot be read as a regular file, or is larger.
    """
    with os.fdopen(source.open(), "rb") as file:
        try:
            data = file.read(max_bytes + 1)
        except OSError as error:
            raise InvalidInputError(f"cannot be read: {error.strerror}", source.label) from error
    if len(data) > max_bytes:
        raise InvalidInputError(f"has more than {max_bytes} bytes", source.label)
    return data
