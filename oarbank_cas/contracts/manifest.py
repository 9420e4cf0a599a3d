"""Manifests: the canonical file list of an artifact, whose digest names the artifact's content as a dataset."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from oarbank_cas.contracts.canonical import MAX_INTEGER, check_digest, is_digest, parse_json
from oarbank_cas.contracts.paths import check_portable_path, check_unique
from oarbank_cas.contracts.places import quoted, within
from oarbank_cas.errors import InvalidInputError

MAX_MANIFEST_BYTES: Final = 64 * 1024 * 1024
"""The largest manifest that is made or read: far above half a million files."""
DATASET_PREFIX: Final = "art:"
DATASET_PATTERN: Final = "^[A-Za-z0-9][A-Za-z0-9_.:+-]{0,127}$"
"""A dataset id of any origin, as the JSON Schemas write it."""

_DATASET: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:+-]{0,127}")
_MEMBERS: Final = {"digest", "path", "size"}

# A file as it stands in a canonical manifest, for which no general parser is needed.
_PLAIN: Final = re.compile(
    r'\{"digest":"([0-9a-f]{64})","path":"([A-Za-z0-9_+@./-]{1,200})","size":(0|[1-9][0-9]{0,16})\}'
)


class FileRef(NamedTuple):
    """One file of an artifact.

    Attributes:
        path: where it is inside the artifact, a portable path.
        digest: the digest of its bytes.
        size: how many bytes it has.
    """

    path: str
    digest: str
    size: int


def manifest_bytes(files: Iterable[FileRef], where: str = "artifact") -> bytes:
    """Make the manifest of an artifact.

    Args:
        files: its files, in any order; at least one.
        where: the place of the artifact, for errors.

    Returns:
        The same bytes for the same files, on every machine.

    Raises:
        InvalidInputError: a file is malformed, two paths clash, there is no file, or there are too many.
    """
    ordered = sorted(files)
    _check_files(ordered, where)
    data = _render(ordered)
    if len(data) > MAX_MANIFEST_BYTES:
        raise InvalidInputError(f"needs a manifest larger than {MAX_MANIFEST_BYTES} bytes; split the artifact", where)
    return data


def parse_manifest(data: bytes, where: str = "manifest") -> tuple[FileRef, ...]:
    """Read a manifest that may come from anyone.

    A manifest is canonical: bytes that say the same in another way are refused, so that one list of files has one name.

    Args:
        data: the bytes.
        where: what the manifest is called in errors.

    Returns:
        The files, sorted by path.

    Raises:
        InvalidInputError: saying what is wrong, and where.
    """
    if len(data) > MAX_MANIFEST_BYTES:
        raise InvalidInputError(f"is larger than a manifest may be ({MAX_MANIFEST_BYTES} bytes)", where)
    place = within(where, "$.files")
    found = [FileRef(path, digest, int(size)) for digest, path, size in _PLAIN.findall(data.decode("latin-1"))]
    if found and _render(found) == data:  # nothing else can give the same bytes
        _check_files(found, place)
        if found == sorted(found):
            return tuple(found)
    document = parse_json(data, where=where)
    if not isinstance(document, dict) or document.keys() != {"files"}:
        raise InvalidInputError('is no manifest: an object with the one member "files"', where)
    listed = document["files"]
    if not isinstance(listed, list):
        raise InvalidInputError("must be a list of files", place)
    files = []
    for index, file in enumerate(listed):
        if not isinstance(file, dict) or file.keys() != _MEMBERS:
            raise InvalidInputError('must be an object with just "digest", "path" and "size"', f"{place}[{index}]")
        # The types are what _check_files looks at.
        files.append(FileRef(file["path"], file["digest"], file["size"]))  # type: ignore[arg-type]
    _check_files(files, place)
    if _render(sorted(files)) != data:
        raise InvalidInputError(
            "is not in canonical form (sorted by path, no spaces, each number in its one form)", where
        )
    return tuple(files)


def dataset_id(manifest_digest: str) -> str:
    """Name the content of an artifact by the digest of its manifest: `art:<digest>`."""
    return DATASET_PREFIX + check_digest(manifest_digest)


def check_dataset_id(text: str, where: str = "dataset") -> str:
    """Check a dataset id of any origin, and return it.

    Raises:
        InvalidInputError: it does not follow `DATASET_PATTERN`.
    """
    if not isinstance(text, str) or _DATASET.fullmatch(text) is None:
        raise InvalidInputError(
            "is no dataset id (a letter or digit, then at most 127 letters, digits or _ . : + -): " + quoted(text),
            where,
        )
    return text


def is_artifact_dataset(text: str) -> bool:
    """Say whether a dataset id is one of a store's own, `art:<digest>`."""
    return text.startswith(DATASET_PREFIX) and is_digest(text[len(DATASET_PREFIX) :])


def parse_dataset(text: str, where: str = "dataset") -> str:
    """Take the manifest's digest out of a dataset id of a store's own.

    Args:
        text: the id, `art:<digest>`.
        where: its place, for the error.

    Returns:
        The digest.

    Raises:
        InvalidInputError: the id is none of a store's own.
    """
    if not isinstance(text, str) or not is_artifact_dataset(text):
        raise InvalidInputError(f"is no dataset of a store (art:<64 lowercase hex digits>): {quoted(text)}", where)
    return text[len(DATASET_PREFIX) :]


def check_size(size: object, where: str | None = None) -> int:
    """Check the size of a file, an integer from 0 to 2^53, and return it.

    Raises:
        InvalidInputError: it is anything else.
    """
    # bool is an int to Python but not to JSON.
    if type(size) is not int or not 0 <= size <= MAX_INTEGER:
        shown = size if type(size) is int and abs(size) <= 10 * MAX_INTEGER else quoted(size)
        raise InvalidInputError(f"is no size (an integer from 0 to 2^53): {shown}", where)
    return size


def _check_files(files: Sequence[FileRef], where: str) -> None:
    if not files:
        raise InvalidInputError("has no files; an artifact has at least one", where)
    for index, (path, digest, size) in enumerate(files):
        try:
            check_portable_path(path)
            check_digest(digest)
            check_size(size)
        except InvalidInputError as error:
            raise InvalidInputError(error.why, f"{where}[{index}]") from None
    check_unique([file.path for file in files], where)


def _render(files: Iterable[FileRef]) -> bytes:
    # Checked paths and digests have nothing to escape, and ASCII sorts as UTF-16 does, so this is the canonical form
    # at a fraction of the general serialiser's time.
    members = ",".join([f'{{"digest":"{digest}","path":"{path}","size":{size}}}' for path, digest, size in files])
    return f'{{"files":[{members}]}}'.encode("ascii")
