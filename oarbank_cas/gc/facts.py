"""What gc needs to know of an entry or tombstone: what it refers to, and what retention asks."""

from __future__ import annotations

import hashlib
import json
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from oarbank_cas import entry as codec
from oarbank_cas import instants
from oarbank_cas.contracts.canonical import digest_of
from oarbank_cas.contracts.manifest import MAX_MANIFEST_BYTES, FileRef, manifest_bytes, parse_dataset, parse_manifest
from oarbank_cas.contracts.references import artifact_files, references
from oarbank_cas.entry import Entry, Tombstone
from oarbank_cas.errors import CorruptError, InvalidInputError, NotFoundError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from oarbank_cas.blobs import Blobs

UNKNOWN_SIZE = -1
_REF = struct.Struct(">32sq")
_CHUNK = 2**20


class Ref(NamedTuple):
    """One blob that is referred to: its digest as 32 bytes, and its size, or `UNKNOWN_SIZE`."""

    digest: bytes
    size: int


@dataclass(frozen=True, slots=True)
class Facts:
    """What an entry or tombstone says.

    Attributes:
        ended: it is a tombstone; what follows is of the entry that it ended.
        module: the module, the part of the envelope's schema before `/`.
        recorded_ns: when it was recorded.
        refs: everything reachable, manifests too.
        manifests: digests, 32 bytes each, of the manifests among them.
    """

    ended: bool
    module: str
    recorded_ns: int
    refs: tuple[Ref, ...]
    manifests: tuple[bytes, ...]


def read_manifest(blobs: Blobs, digest: str) -> tuple[FileRef, ...]:
    """The files of a manifest in the store, by the reader's rule. Nothing is set aside: that is not gc's to do.

    Raises:
        NotFoundError: it is absent.
        CorruptError: its bytes are wrong, or no manifest.
    """
    data = bytearray()
    with blobs.open_range(digest, 0) as reader:
        if reader.stat.size > MAX_MANIFEST_BYTES:
            raise CorruptError(f"manifest {digest} is larger than a manifest may be")
        while chunk := reader.read(_CHUNK):
            data += chunk
    actual = hashlib.sha256(data).hexdigest()
    if actual != digest:
        raise CorruptError(f"manifest {digest} has the digest {actual}", expected=digest, actual=actual)
    try:
        return parse_manifest(bytes(data), f"manifest {digest}")
    except InvalidInputError as error:
        raise CorruptError(str(error)) from error


def facts_of(data: bytes, time_ns: int, manifest: Callable[[str], tuple[FileRef, ...]]) -> Facts:
    """Read an entry or tombstone.

    Args:
        data: the object's bytes.
        time_ns: the object's own time; stands in for a recorded time that cannot be read.
        manifest: gives the files of a manifest that the envelope does not spell out.

    Raises:
        CorruptError: it is damaged: nobody knows what it refers to.
        NotFoundError: a manifest is absent.
    """
    found = codec.decode(data)
    if isinstance(found, Entry):
        return _entry_facts(found, time_ns, manifest, ended=False)
    return _tombstone_facts(found, time_ns, manifest)


def _tombstone_facts(found: Tombstone, time_ns: int, manifest: Callable[[str], tuple[FileRef, ...]]) -> Facts:
    def lenient(digest: str) -> tuple[FileRef, ...]:
        try:
            return manifest(digest)
        except (CorruptError, NotFoundError):
            return ()  # what was ended cannot be brought back then

    try:
        ended = codec.decode(found.ended)
        if isinstance(ended, Entry):
            return _entry_facts(ended, time_ns, lenient, ended=True)
    except CorruptError:
        pass  # what was no entry was never answered, and cannot be brought back
    return Facts(True, "unknown", time_ns, (), ())


def _entry_facts(found: Entry, time_ns: int, manifest: Callable[[str], tuple[FileRef, ...]], *, ended: bool) -> Facts:
    try:
        document = json.loads(found.envelope)
        sizes = references(document)
        datasets = {parse_dataset(dataset) for dataset in found.datasets.values()}
    except (ValueError, RecursionError, AttributeError, InvalidInputError) as error:
        raise CorruptError(f"what it refers to cannot be read ({error})") from error
    spelt_out = _spelt_out(document)
    wanted: dict[str, int] = {**spelt_out, **dict.fromkeys(datasets - spelt_out.keys(), UNKNOWN_SIZE)}
    for digest in sorted(datasets - spelt_out.keys()):
        wanted.update({file.digest: file.size for file in manifest(digest)})
    wanted.update(sizes)
    header = found.header
    wanted = {**codec.kept_inputs(header), **wanted}
    schema = header.get("schema")
    refs = tuple(Ref(bytes.fromhex(digest), size) for digest, size in wanted.items())
    return Facts(
        ended,
        schema.partition("/")[0] if isinstance(schema, str) else "unknown",
        _recorded(header.get("recorded_at"), time_ns),
        refs,
        tuple(bytes.fromhex(digest) for digest in sorted(datasets)),
    )


def _spelt_out(document: object) -> dict[str, int]:
    """Digest and size of the manifests that follow from the envelope alone."""
    if not isinstance(document, dict):
        return {}
    try:
        manifests = [manifest_bytes(files) for files in artifact_files(document).values()]
    except InvalidInputError:
        return {}  # an envelope of a newer contract: its manifests are read instead
    return {digest_of(data): len(data) for data in manifests}


def _recorded(text: object, time_ns: int) -> int:
    try:
        return instants.from_text(text) if isinstance(text, str) else time_ns
    except InvalidInputError:
        return time_ns


# -- as cached


def encode(name: str, validator: str, facts: Facts) -> bytes:
    """One record of the cache: a JSON line, then digests and sizes."""
    head = [name, validator, facts.ended, facts.module, facts.recorded_ns, len(facts.refs), len(facts.manifests)]
    packed = b"".join(_REF.pack(digest, size) for digest, size in facts.refs)
    return json.dumps(head, separators=(",", ":")).encode() + b"\n" + packed + b"".join(facts.manifests)


def decode(body: bytes) -> Iterator[tuple[str, str, Facts]]:
    """The records of a checked part of the cache: name, validator, facts."""
    at = 0
    while at < len(body):
        end = body.index(b"\n", at)
        name, validator, ended, module, recorded_ns, refs, manifests = json.loads(body[at:end])
        at = end + 1
        split = at + refs * _REF.size
        close = split + manifests * 32
        found = tuple(Ref(*pair) for pair in _REF.iter_unpack(body[at:split]))
        at = close
        yield (
            name,
            validator,
            Facts(ended, module, recorded_ns, found, tuple(body[i : i + 32] for i in range(split, close, 32))),
        )
