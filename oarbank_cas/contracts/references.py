"""What an envelope refers to, read from the parsed document: no model is built, since every lookup asks."""

from __future__ import annotations

from collections.abc import Mapping

from oarbank_cas.contracts.canonical import is_digest
from oarbank_cas.contracts.manifest import FileRef, check_size
from oarbank_cas.contracts.places import quoted
from oarbank_cas.errors import InvalidInputError


def references(document: Mapping[str, object]) -> dict[str, int]:
    """Collect the blobs that a result envelope refers to.

    A reference is an object with a well-formed `digest` and an integer `size`, at any depth under `artifacts`: fields
    that this version does not know may hold some too.

    Args:
        document: the parsed envelope.

    Returns:
        The size of each digest, in no particular order.

    Raises:
        InvalidInputError: one digest has two sizes.
    """
    found: dict[str, int] = {}
    waiting: list[object] = [document.get("artifacts")]
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            digest, size = value.get("digest"), value.get("size")
            if type(size) is int and size >= 0 and is_digest(digest) and found.setdefault(digest, size) != size:
                raise InvalidInputError(f"give the blob {digest} two sizes, {found[digest]} and {size}", "$.artifacts")
            waiting.extend([child for child in value.values() if isinstance(child, (dict, list))])
        elif isinstance(value, list):
            waiting.extend(value)
    return found


def artifact_files(document: Mapping[str, object]) -> dict[str, tuple[FileRef, ...]]:
    """List the files of each artifact of a result envelope whose files are all in the store.

    Args:
        document: the parsed envelope.

    Returns:
        Name of the artifact -> its files, in the envelope's order.

    Raises:
        InvalidInputError: the artifacts are malformed, two have one name, or a file has no digest or size.
    """
    listed = document.get("artifacts", [])
    if not isinstance(listed, list):
        raise InvalidInputError("must be a list", "$.artifacts")
    artifacts: dict[str, tuple[FileRef, ...]] = {}
    for index, artifact in enumerate(listed):
        where = f"$.artifacts[{index}]"
        if not isinstance(artifact, dict) or not isinstance(artifact.get("name"), str):
            raise InvalidInputError("must be an object with a name", where)
        if artifact["name"] in artifacts:
            raise InvalidInputError(f"has a name that another artifact has: {quoted(artifact['name'])}", where)
        if not isinstance(artifact.get("files"), list):
            raise InvalidInputError("must be a list", f"{where}.files")
        artifacts[artifact["name"]] = _files(artifact["files"], where)
    return artifacts


def _files(listed: list[object], where: str) -> tuple[FileRef, ...]:
    files = []
    for index, file in enumerate(listed):
        if not isinstance(file, dict) or not isinstance(file.get("path"), str):
            raise InvalidInputError("must be an object with a path", f"{where}.files[{index}]")
        digest = file.get("digest")
        if not is_digest(digest):
            raise InvalidInputError("has no digest; the file was not uploaded", f"{where}.files[{index}]")
        files.append(FileRef(file["path"], digest, check_size(file.get("size"), f"{where}.files[{index}].size")))
    return tuple(files)
