"""What is right about one object: a blob or fossil, an entry or tombstone, a pin. Nothing here walks a store."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from oarbank_cas import entry as codec
from oarbank_cas import layout
from oarbank_cas import pins as pin_codec
from oarbank_cas.contracts.canonical import digest_of
from oarbank_cas.contracts.manifest import dataset_id, manifest_bytes, parse_dataset
from oarbank_cas.contracts.references import artifact_files
from oarbank_cas.copying import key_of
from oarbank_cas.entry import Entry, Tombstone
from oarbank_cas.errors import (
    CasError,
    CorruptError,
    InvalidInputError,
    NotFoundError,
    StorageIOError,
    UnavailableError,
)
from oarbank_cas.gc.facts import UNKNOWN_SIZE, Facts, Ref, facts_of, read_manifest
from oarbank_cas.transfer import hash_reader
from oarbank_cas.verify.report import REDO, Problem

if TYPE_CHECKING:
    from oarbank_cas.backends.base import Backend, ObjectStat
    from oarbank_cas.blobs import Blobs
    from oarbank_cas.contracts.manifest import FileRef
    from oarbank_cas.pins import Pin

_LEFT = "left where it is"


@dataclass(frozen=True, slots=True)
class Bytes:
    """What came of reading a blob.

    Attributes:
        read: bytes that were hashed.
        problem: what is wrong, or None.
        there: it stood.
    """

    read: int
    problem: Problem | None = None
    there: bool = True


def check_bytes(backend: Backend, name: str, digest: str) -> Bytes:
    """Read an object that should hold a blob; wrong bytes are read a second time. Nothing is moved here.

    Args:
        backend: the store's storage.
        name: the object's name.
        digest: of the bytes that it should have.

    Raises:
        UnavailableError: the store is out of reach.
    """
    try:
        with backend.open(name) as reader:
            stat = reader.stat
            actual, size = hash_reader(reader)
    except NotFoundError:
        return Bytes(0, there=False)  # gc moved it: it is met again among the fossils, or was not needed
    except UnavailableError:
        raise
    except CorruptError as error:
        return Bytes(0, Problem("irregular", name, str(error), digest))
    except CasError as error:
        return Bytes(0, Problem("unreadable", name, str(error), digest))
    if actual == digest:
        return Bytes(size)
    try:
        return Bytes(size, _look_again(backend, stat, digest, actual))
    except StorageIOError as error:
        return Bytes(size, Problem("unreadable", name, str(error), digest))


def _look_again(backend: Backend, stat: ObjectStat, digest: str, actual: str) -> Problem | None:
    try:
        with backend.open(stat.name) as reader:
            again, _ = hash_reader(reader)
    except NotFoundError:
        return None
    if again == digest:
        return _read_in_two_ways(stat.name, digest, actual)
    return Problem("damaged", stat.name, f"its bytes have the digest {again}; {_LEFT}", digest)


def _read_in_two_ways(name: str, digest: str, actual: str) -> Problem:
    why = f"read wrong once ({actual}) and right the next time: suspect this machine's memory or disk"
    return Problem("unreadable", name, why, digest)


def set_aside(backend: Backend, blobs: Blobs, found: Problem) -> Problem:
    """Move a blob or fossil whose bytes are wrong to `damaged/`; they are read again before.

    Harmless when repeated: what an earlier call moved, or a reader who met it, counts as moved.

    Args:
        backend: the store's storage.
        blobs: its blobs.
        found: what `check_bytes` said of it.

    Returns:
        The same, and what became of it.

    Raises:
        UnavailableError: the store is out of reach.
    """
    digest = found.digest or ""
    told = found.detail.removesuffix(_LEFT)
    try:
        with backend.open(found.name) as reader:
            stat = reader.stat
            actual, _ = hash_reader(reader)
        if actual != digest:
            blobs.condemn_damaged(digest, stat, actual)
    except UnavailableError:
        raise
    except CorruptError as error:
        standing = backend.stat(found.name)
        if standing is not None and standing.validator == stat.validator:
            return replace(found, detail=str(error))
    except NotFoundError:
        pass
    except CasError as error:
        return replace(found, kind="unreadable", detail=f"{told}then: {error}")
    if blobs.was_set_aside(digest):
        return replace(found, detail=f"{told}set aside in {layout.DAMAGED}", aside=True)
    return replace(found, detail=f"{told}then it was gone")


def check_entry(blobs: Blobs, stat: ObjectStat, data: bytes) -> tuple[Facts | None, Problem | None]:
    """Check an entry or tombstone against its header and its name.

    Returns:
        What it refers to, where that can be read; and what is wrong, or None.
    """
    try:
        found = codec.decode(data)
    except CorruptError as error:
        return None, Problem("damaged", stat.name, f"{error}; {REDO}")
    key, result_class = key_of(stat.name)
    if not codec.belongs(found, key, result_class):
        said = f"{found.header['job_key']} in class {found.header['class']}"
        return None, Problem("misplaced", stat.name, f"is the entry of {said}, which no lookup finds here; {REDO}")
    absent: list[str] = []

    def manifest(digest: str) -> tuple[FileRef, ...]:
        try:
            return read_manifest(blobs, digest)
        except (NotFoundError, CorruptError) as error:
            absent.append(str(error))
            return ()

    try:
        facts = facts_of(data, stat.time_ns, manifest)
    except (CorruptError, NotFoundError) as error:
        return None, Problem("damaged", stat.name, f"{error}; {REDO}")
    if isinstance(found, Tombstone):
        return facts, None
    return facts, _check_datasets(stat.name, found, absent)


def _check_datasets(name: str, found: Entry, absent: list[str]) -> Problem | None:
    if absent:
        return Problem("missing", name, f"the files of its datasets cannot be told: {absent[0]}; {REDO}")
    try:
        files = artifact_files(json.loads(found.envelope))
        spelt_out = {artifact: dataset_id(digest_of(manifest_bytes(each))) for artifact, each in files.items()}
    except (InvalidInputError, ValueError):
        return None  # an envelope of a newer contract: what it refers to was read all the same
    wrong = sorted(artifact for artifact, dataset in spelt_out.items() if found.datasets.get(artifact) != dataset)
    if wrong:
        said = found.datasets.get(wrong[0])
        return Problem(
            "mismatch",
            name,
            f"its header says that the artifact {wrong[0]} is {said}; its envelope says {spelt_out[wrong[0]]}; {REDO}",
        )
    return None


def pin_refs(backend: Backend, blobs: Blobs, name: str, pin: Pin) -> tuple[list[Ref], Problem | None]:
    """What a pin keeps that no entry names, and whether what it names is there.

    Args:
        backend: the store's storage.
        blobs: its blobs.
        name: the pin's object name.
        pin: the pin.
    """
    if pin.entry is not None:
        if backend.stat(pin.entry) is None:
            return [], Problem("missing", name, f"keeps {pin.job_key} in class {pin.result_class}, which is not there")
        return [], None
    if pin.dataset is None:
        return [Ref(bytes.fromhex(pin.digest or ""), UNKNOWN_SIZE)], None
    digest = parse_dataset(pin.dataset)
    problem = None
    files: tuple[FileRef, ...] = ()
    try:
        files = read_manifest(blobs, digest)
    except (NotFoundError, CorruptError) as error:
        problem = Problem("missing", name, f"the files of {pin.dataset} cannot be told: {error}")
    return [Ref(bytes.fromhex(digest), UNKNOWN_SIZE), *(Ref(bytes.fromhex(f.digest), f.size) for f in files)], problem


def in_force(backend: Backend, roots: list[str], count: int) -> bool:
    """Whether entries and pins that were seen to need something still stand, and were not ended since.

    Args:
        backend: the store's storage.
        roots: the object names of some of them.
        count: how many there are.
    """
    return count > len(roots) or any(_is_in_force(backend, name) for name in roots)


def _is_in_force(backend: Backend, name: str) -> bool:
    if name.startswith(layout.PINS):
        return backend.stat(name) is not None
    try:
        return isinstance(codec.decode(backend.read(name, codec.MAX_OBJECT)[0]), Entry)
    except (NotFoundError, CorruptError):
        return False


def read_pin(backend: Backend, name: str) -> Pin:
    """A pin by its object name.

    Raises:
        NotFoundError: it is gone.
        CorruptError: it is none.
    """
    data, _ = backend.read(name, pin_codec.MAX_BYTES)
    return pin_codec.decode(data, name.rpartition("/")[2], backend.where)
