"""Purging one blob at once and for good, whatever refers to it: a leaked secret, a deletion that the law demands.

First an audit record is written, then everything that holds the bytes goes: the blob, its condemned incarnations, and
what was set aside as damaged. Entries that refer to it stay, and are incomplete from then on.
"""

from __future__ import annotations

import json
import secrets
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from oarbank_cas import entry as codec
from oarbank_cas import instants, layout, pins
from oarbank_cas.contracts.canonical import check_digest
from oarbank_cas.contracts.manifest import parse_dataset
from oarbank_cas.errors import BusyError, CasError, CorruptError, InvalidInputError, NotFoundError, UnavailableError
from oarbank_cas.gc.facts import facts_of, read_manifest
from oarbank_cas.gc.names import is_entry_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from oarbank_cas.contracts.manifest import FileRef
    from oarbank_cas.rooms import Rooms

MAX_REASON = 1000
"""Characters of who and why."""

MAX_NAMED = 1000
"""Entries and pins that an audit record names; more are counted."""

_PASSES = 20
"""Times that what was brought back meanwhile is removed again."""


@dataclass(slots=True)
class Report:
    """What was purged.

    Attributes:
        digest: the blob.
        audit: the name of the audit record.
        deleted: the names of the objects that were removed.
        referenced_by: object names of entries, tombstones and pins that refer to it; the first `MAX_NAMED`.
        references: how many do.
        is_manifest: datasets are named by it: while entries or pins name one of these, gc deletes nothing.
        gc_running: a gc is under way, and may bring a condemned copy back that it is just reading.
    """

    digest: str
    audit: str
    deleted: list[str] = field(default_factory=list)
    referenced_by: list[str] = field(default_factory=list)
    references: int = 0
    is_manifest: bool = False
    gc_running: bool = False

    def to_json(self) -> dict[str, Any]:
        """As a JSON object."""
        return {
            "digest": self.digest,
            "audit": self.audit,
            "deleted": self.deleted,
            "referenced_by": self.referenced_by,
            "references": self.references,
            "is_manifest": self.is_manifest,
            "gc_running": self.gc_running,
        }


def purge(rooms: Rooms, digest: str, *, by: str, reason: str, progress: Callable[[int], None] | None = None) -> Report:
    """Remove a blob at once and for good. To find it gone is success.

    Args:
        rooms: the store.
        digest: the blob.
        by: who does it.
        reason: why, for people.
        progress: called with the bytes of each entry that is searched.

    Raises:
        InvalidInputError: the digest is malformed, or no reason is given.
        BusyError: it is brought back again and again.
    """
    check_digest(digest, "purge")
    for what, text in (("reason", reason), ("by", by)):
        if not text.strip() or len(text) > MAX_REASON:
            raise InvalidInputError(f"must be 1 to {MAX_REASON} characters", what)
    now_ns = rooms.backend.now()
    nonce = secrets.token_hex(4)
    name = f"{layout.GC_PURGES}{now_ns // 10**9:012d}-{digest}-{nonce}.json"
    report = Report(digest, name)
    _find_references(rooms, report, progress or (lambda _size: None))
    report.gc_running = any(True for _ in rooms.backend.listing(layout.GC_RUNNING))
    document = {
        "format": layout.FORMAT,
        "purge": digest,
        "at": instants.to_text(now_ns),
        "by": by,
        "reason": reason,
        "referenced_by": report.referenced_by,
        "references": report.references,
        "is_manifest": report.is_manifest,
        "objects": [found for found, _ in _holders(rooms, digest)],
    }
    rooms.backend.create(name, (json.dumps(document, indent=2) + "\n").encode())
    for _ in range(_PASSES):
        holders = list(_holders(rooms, digest))
        if not holders:
            rooms.lookups.forget()
            return report
        for found, _size in holders:
            if rooms.backend.delete(found):
                report.deleted.append(found)
    raise BusyError(f"blob {digest} is brought back again and again: stop its writers and gc, and purge it again")


def _holders(rooms: Rooms, digest: str) -> Iterator[tuple[str, int]]:
    """The objects that hold a blob's bytes, or did before they were damaged."""
    backend = rooms.backend
    name = layout.blob(digest)
    try:
        standing = backend.stat(name)
    except CorruptError:
        raise CorruptError(
            f"{name} in {backend.where} is no regular file: remove it by hand, then purge again"
        ) from None
    if standing is not None:
        yield name, standing.size
    for prefix, after in (
        (layout.fossil_prefix(digest), f"{layout.fossil_prefix(digest)}{digest}"),
        (layout.DAMAGED, f"{layout.DAMAGED}{digest}"),
    ):
        for stat in backend.listing(prefix, after=after):
            if not stat.name.startswith(f"{after}."):
                break
            yield stat.name, stat.size


def _find_references(rooms: Rooms, report: Report, progress: Callable[[int], None]) -> None:
    for name, is_manifest in _references(rooms, report.digest, progress):
        report.references += 1
        report.is_manifest = report.is_manifest or is_manifest
        if len(report.referenced_by) < MAX_NAMED:
            report.referenced_by.append(name)


def _references(rooms: Rooms, digest: str, progress: Callable[[int], None]) -> Iterator[tuple[str, bool]]:
    """The entries, tombstones and pins that refer to a blob, and whether as to a dataset's manifest."""
    for stat in rooms.backend.listing(layout.RESULTS):
        if not is_entry_name(stat.name):
            continue
        try:
            data, _ = rooms.backend.read(stat.name, codec.MAX_OBJECT)
        except UnavailableError:
            raise
        except CasError:
            continue  # what cannot be read is not answered either
        progress(len(data))
        as_manifest = _refers(rooms, digest, stat.time_ns, data)
        if as_manifest is not None:
            yield stat.name, as_manifest
    for pin in _pins(rooms):
        own = None if pin.dataset is None else parse_dataset(pin.dataset)
        if digest in (pin.digest, own):
            yield layout.pin(pin.name), own == digest
        elif own is not None and any(file.digest == digest for file in _manifest(rooms, own)):
            yield layout.pin(pin.name), False


def _refers(rooms: Rooms, digest: str, time_ns: int, data: bytes) -> bool | None:
    """Whether an entry or tombstone refers to a blob as to a manifest (True) or else (False); None: it does not."""
    try:
        facts = facts_of(data, time_ns, lambda wanted: _manifest(rooms, wanted))
    except (CorruptError, NotFoundError):
        return False if digest.encode() in data else None
    raw = bytes.fromhex(digest)
    if not any(ref.digest == raw for ref in facts.refs):
        return None
    return raw in facts.manifests


def _manifest(rooms: Rooms, digest: str) -> tuple[FileRef, ...]:
    try:
        return read_manifest(rooms.blobs, digest)
    except (NotFoundError, CorruptError):
        return ()


def _pins(rooms: Rooms) -> Iterator[pins.Pin]:
    for stat in rooms.backend.listing(layout.PINS):
        name = stat.name.removeprefix(layout.PINS)
        if pins.is_pin_name(name):
            try:
                yield rooms.pins.get(name)
            except (NotFoundError, CorruptError):
                continue
