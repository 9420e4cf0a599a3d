"""The artifacts of an attempt: which there are, their content, and what the manifest says of them when it is sealed."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

from oarbank_cas.attempt.declarations import DECLARATIONS, FORMATS, RESULTS_ARTIFACT, Declaration, declarations
from oarbank_cas.attempt.files import FileSource, Source, kind_of, look, reading
from oarbank_cas.attempt.scan import INLINE_CAP, complete_end
from oarbank_cas.errors import CasError, InvalidInputError, NotFoundError, StorageIOError

_BLOCK: Final = 1024 * 1024
_TRIES: Final = 3
_HASHERS: Final = 8
# Two changes within one tick of the kernel's clock (10 ms at most) leave the same times on a file.
_TICK_NS: Final = 20_000_000


class FileDigest(NamedTuple):
    """The size of a file in bytes, and the SHA-256 of its bytes in lowercase hexadecimal digits."""

    size: int
    sha256: str


class Content(NamedTuple):
    """What a call returns of an artifact.

    Attributes:
        data: the bytes.
        size: the bytes of the file when it was looked at; more than `len(data)` where the rest was left off.
    """

    data: bytes
    size: int


@dataclass(frozen=True, slots=True)
class Progress:
    """The artifact index of a running attempt: name to format, size, task and description; and the problems found."""

    artifact_index: dict[str, dict[str, Any]] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Sealed:
    """What the manifest of a sealed attempt says of its artifacts.

    Attributes:
        artifacts: name to file, of every artifact whose file is there.
        artifact_index: name to format, size, sha256, task and description of the same artifacts.
        problems: what was found wrong, one sentence each.
    """

    artifacts: dict[str, str] = field(default_factory=dict)
    artifact_index: dict[str, dict[str, Any]] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """The manifest's members: `artifacts`, `runner.artifact_index`, and `problems`."""
        return {
            "artifacts": self.artifacts,
            "runner": {"artifact_index": self.artifact_index},
            "problems": self.problems,
        }


def all_artifacts(directory: str | os.PathLike[str]) -> list[Declaration]:
    """Every artifact of an attempt, `results` first, then the declarations in their order; also where no file is yet.

    Raises:
        CasError: as `declarations`.
    """
    return [RESULTS_ARTIFACT, *declarations(directory)]


def all_or_results(directory: str | os.PathLike[str]) -> tuple[list[Declaration], CasError | None]:
    """Every artifact of an attempt; or, when its declarations cannot be trusted, `results` alone and the error."""
    try:
        return all_artifacts(directory), None
    except CasError as error:
        return [RESULTS_ARTIFACT], error


def read_content(path: str | os.PathLike[str], artifact_format: str) -> Content:
    """The content of an artifact, at most `INLINE_CAP` bytes, and the size of its file.

    Args:
        path: the artifact's file.
        artifact_format: one of `FORMATS`.

    Raises:
        CasError: as `content`.
    """
    if artifact_format not in FORMATS:
        raise InvalidInputError(f"{artifact_format!r} is no artifact format; use {' or '.join(FORMATS)}", "format")
    with reading(path) as source:
        return whole_lines(source) if artifact_format == "records" else _document(source)


def content(path: str | os.PathLike[str], format: str) -> bytes:  # noqa: A002 - the contract's word
    """The content of an artifact, at most `INLINE_CAP` bytes, as it stands in the file: nothing in it is checked.

    Of a `records` artifact the complete lines, and of a longer one as many of the first as fit; `page` gives the rest.

    Args:
        path: the artifact's file.
        format: one of `FORMATS`.

    Raises:
        NotFoundError: the file is not there (yet).
        InvalidInputError: a `json` document, or the first record, is above the cap; no such format; no regular file.
        StorageIOError: a `json` document kept changing while it was read, or reading failed.
        CasError: the file cannot be read.
    """
    return read_content(path, format).data


def whole_lines(source: Source) -> Content:
    """The complete lines among the first `INLINE_CAP` bytes of a journal.

    Raises:
        InvalidInputError: not even the first one fits.
        StorageIOError: reading failed.
    """
    size = source.size()
    data = source.read_at(0, complete_end(source, min(size, INLINE_CAP)))
    if not data and size > INLINE_CAP:
        raise InvalidInputError(f"its first record alone is above {INLINE_CAP} bytes; read it with page", source.name)
    return Content(data, size)


def _document(source: FileSource) -> Content:
    for _ in range(_TRIES):
        before = identity_of(source)
        size = source.size()
        if size > INLINE_CAP:
            raise InvalidInputError(
                f"it has {size} bytes, and a json artifact above {INLINE_CAP} is not returned inline; copy the file "
                "from the attempt directory, or fetch it from the store once the attempt is sealed",
                source.name,
            )
        data = source.read_at(0, size)
        if len(data) == size and identity_of(source) == before:
            return Content(data, size)
    raise StorageIOError(
        f"{source.name}: it kept changing while it was read; a json artifact is to be replaced as a whole (write a "
        "temporary file, then rename it)"
    )


def identity_of(source: FileSource) -> tuple[int, int, int]:
    """Size and times of an open file: equal ones, a tick of the clock apart, mean that it did not change between."""
    status = source.stat()
    return status.st_size, status.st_mtime_ns, status.st_ctime_ns


def _let_tick_pass(changed_ns: int) -> None:
    """Waits until a change from now on gets a later time than the last one did."""
    age = time.time_ns() - changed_ns
    if 0 <= age < _TICK_NS:
        time.sleep((_TICK_NS - age) / 1e9)


def digest_file(path: str | os.PathLike[str]) -> FileDigest:
    """The size and SHA-256 of a regular file, read in blocks.

    Raises:
        StorageIOError: the file changed while it was read, or reading failed.
        CasError: the file cannot be read.
    """
    with reading(path) as source:
        before = identity_of(source)
        _let_tick_pass(max(before[1:]))
        state = hashlib.sha256()
        size = 0
        while block := source.read_at(size, min(_BLOCK, before[0] + 1 - size)):
            state.update(block)
            size += len(block)
            if size > before[0]:
                break
        if size != before[0] or identity_of(source) != before:
            raise StorageIOError(f"{source.name}: it changed while it was read; wait until its writer is done")
        return FileDigest(size, state.hexdigest())


class Listed(NamedTuple):
    """An artifact and its file's size in bytes; None where there is no file that may be served."""

    artifact: Declaration
    size: int | None


def listing(directory: str | os.PathLike[str]) -> tuple[list[Listed], list[str]]:
    """The artifacts of an attempt with their sizes now, and the problems found.

    One whose file is not there yet has no size. One in whose place something else than a file stands is not listed.
    Never raises for what is wrong in the attempt: the problems say it.
    """
    artifacts, error = all_or_results(directory)
    problems = [f"no declaration of {DECLARATIONS} is served: {error}"] if error else []
    listed = []
    for one in artifacts:
        known = len(problems)
        size = _size_now(Path(directory) / one.file, one, problems)
        if len(problems) == known:
            listed.append(Listed(one, size))
    return listed, problems


def progress(directory: str | os.PathLike[str]) -> Progress:
    """The artifact index of a running attempt: each artifact whose file is there, with its size now.

    Never raises for what is wrong in the attempt: `problems` says it.
    """
    listed, problems = listing(directory)
    index = {one.name: {"format": one.format, "size": size, **_words(one)} for one, size in listed if size is not None}
    return Progress(index, problems)


def sealed(directory: str | os.PathLike[str]) -> Sealed:
    """What the manifest says of an attempt's artifacts when it is sealed; hashes the files, several at once.

    Only regular files that are there are listed. A file that changes while it is read is read again, and not listed if
    it never stands still. Never raises for what is wrong in the attempt: `problems` says it, and the results stand.
    """
    listed, problems = listing(directory)
    there = [one for one, size in listed if size is not None]
    found = Sealed(problems=problems)
    for artifact, digest in zip(there, _digests([Path(directory) / one.file for one in there]), strict=True):
        if isinstance(digest, CasError):
            problems.append(not_listed(artifact.name, digest))
            continue
        found.artifacts[artifact.name] = artifact.file
        found.artifact_index[artifact.name] = {
            "format": artifact.format,
            "size": digest.size,
            "sha256": digest.sha256,
            **_words(artifact),
        }
    return found


def not_listed(name: str, why: object) -> str:
    """The problem of an artifact that is left out."""
    return f"{name} is not listed: {why}"


def _words(artifact: Declaration) -> dict[str, Any]:
    return {"task": artifact.task_id, "description": artifact.description}


def _size_now(path: Path, artifact: Declaration, problems: list[str]) -> int | None:
    """The size of an artifact's file; None when it is not there, or is none that may be listed."""
    try:
        status = look(path)
    except NotFoundError:
        return None
    except CasError as error:
        problems.append(not_listed(artifact.name, error))
        return None
    kind = kind_of(status.st_mode)
    if kind is not None:
        problems.append(not_listed(artifact.name, f"{path} is {kind}, not a regular file"))
        return None
    return status.st_size


def _digests(paths: Sequence[Path]) -> list[FileDigest | CasError]:
    if len(paths) < 2:
        return [_digest_or_error(path) for path in paths]
    from concurrent.futures import ThreadPoolExecutor  # heavy, and most callers never seal

    try:
        with ThreadPoolExecutor(max_workers=min(_HASHERS, os.cpu_count() or 1, len(paths))) as pool:
            return list(pool.map(_digest_or_error, paths))
    except RuntimeError:
        # The system gives no more threads; sealing still must not fail.
        return [_digest_or_error(path) for path in paths]


def _digest_or_error(path: Path) -> FileDigest | CasError:
    for _ in range(_TRIES - 1):
        try:
            return digest_file(path)
        except StorageIOError:
            continue
        except CasError as error:
            return error
    try:
        return digest_file(path)
    except CasError as error:
        return error
