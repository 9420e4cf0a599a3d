"""What an envelope needs to be recorded: it keeps the contract, and every file of it is in the store by digest."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from oarbank_cas.contracts.canonical import digest_of, parse_json
from oarbank_cas.contracts.manifest import dataset_id, manifest_bytes
from oarbank_cas.contracts.references import artifact_files, references
from oarbank_cas.contracts.rewrite import find_uploads, payload_size
from oarbank_cas.errors import InvalidInputError


@dataclass(frozen=True, slots=True)
class Recordable:
    """A checked envelope, and what recording it needs.

    Attributes:
        envelope: its bytes as given.
        document: its plain value.
        references: the size of each blob that it refers to, without the manifests.
        manifests: artifact name to the artifact's manifest.
        datasets: artifact name to the dataset id of its content.
    """

    envelope: bytes
    document: Mapping[str, Any]
    references: Mapping[str, int]
    manifests: Mapping[str, bytes]
    datasets: dict[str, str]


def check_recordable(envelope: bytes, *, max_inline_kb: int | None, where: str = "result envelope") -> Recordable:
    """Check an envelope that is to be recorded.

    Args:
        envelope: its bytes.
        max_inline_kb: KiB that the payload may have as written; None sets no limit.
        where: what it is called in errors.

    Raises:
        InvalidInputError: it breaks the contract, a `local` is left in it, or its payload is too large.
    """
    # Building the models takes longer than a whole lookup, which needs none of them.
    from oarbank_cas.contracts.envelopes import parse_result

    parsed = parse_result(envelope, where)
    scan = find_uploads(parsed.text)
    if scan.uploads:
        left = scan.uploads[0]
        raise InvalidInputError(
            f"{left.local!r} is still local: upload it first (publish does)", f"{where}: {left.where}"
        )
    check_inline(payload_size(scan), max_inline_kb, where)
    return _recordable(envelope, parsed.document)


def rewritten(envelope: bytes, where: str = "result envelope") -> Recordable:
    """Take an envelope that was checked as the runner wrote it, and in which each `local` was then replaced.

    The models are not built again: they see no more of the change than a digest and a size, both well-formed.

    Args:
        envelope: the bytes that `replace_locals` made.
        where: what it is called in errors.

    Raises:
        InvalidInputError: it names one blob with two sizes, or an artifact needs too large a manifest.
    """
    document = parse_json(envelope, where=where, big_integers=True)
    assert isinstance(document, dict)
    return _recordable(envelope, document)


def _recordable(envelope: bytes, document: Mapping[str, Any]) -> Recordable:
    manifests = {name: manifest_bytes(files) for name, files in artifact_files(document).items()}
    datasets = {name: dataset_id(digest_of(manifest)) for name, manifest in manifests.items()}
    return Recordable(envelope, document, references(document), manifests, datasets)


def check_inline(payload_size: int, max_inline_kb: int | None, where: str) -> None:
    """Check the size of a payload, in bytes as written.

    Raises:
        InvalidInputError: it has more than `max_inline_kb` KiB.
    """
    if max_inline_kb is not None and payload_size > max_inline_kb * 1024:
        raise InvalidInputError(
            f"has {payload_size} bytes; max_inline_kb allows {max_inline_kb} KiB: put large data into artifacts",
            f"{where}: $.payload",
        )
