"""What a store still knows of what is gone: which gc ended an entry, what became of a blob. Nothing is guessed."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from oarbank_cas import layout
from oarbank_cas.errors import CorruptError, NotFoundError
from oarbank_cas.explain.answers import Ending, LostBlob, Run
from oarbank_cas.gc import audit
from oarbank_cas.instants import to_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from oarbank_cas.rooms import Rooms

MAX_TRACED = 100
"""Blobs that are looked into; more are counted."""

_MAX_RECORD = 2**20
_PURGE = re.compile(re.escape(layout.GC_PURGES) + r"\d+-([0-9a-f]{64})-[0-9a-f]+\.json")


def text(value: object) -> str | None:
    """A text out of a stored document; None where something else stands there."""
    return value if isinstance(value, str) else None


def ending(rooms: Rooms, header: Mapping[str, Any]) -> Ending:
    """How an entry ended, by its tombstone's header."""
    run = text(header.get("gc_run"))
    gc = _run(rooms, run) if run is not None else None
    return Ending(text(header.get("ended_at")), text(header.get("ended_by")), text(header.get("reason")), gc)


def forgotten(rooms: Rooms, name: str) -> Ending | None:
    """How an entry ended whose tombstone is gone, by gc's audit; None where that knows nothing of it.

    Args:
        rooms: the store.
        name: the entry's object name.
    """
    run = audit.who_ended(rooms.backend, name)
    if run is None:
        return None
    gc = _run(rooms, run)
    return Ending(gc.started, gc.by, "retention", gc)


def _run(rooms: Rooms, run: str) -> Run:
    record = audit.run_record(rooms.backend, run)
    if record is None:
        return Run(run)
    policy = record.get("policy")
    held = {name: value for name, value in policy.items() if value is not None} if isinstance(policy, dict) else None
    return Run(run, text(record.get("started")), text(record.get("by")), held)


def lost_blobs(
    rooms: Rooms, header: Mapping[str, Any], missing: Iterable[str], sizes: Mapping[str, int | None]
) -> tuple[LostBlob, ...]:
    """What is known of blobs that an entry needs and no reader finds.

    Args:
        rooms: the store.
        header: the entry's header. Whoever recorded it, or brought it back, had seen all of its blobs.
        missing: their digests; the first `MAX_TRACED` are looked into.
        sizes: what the envelope says of their sizes.
    """
    restored = header.get("restored")
    seen, how = text(header.get("recorded_at")), "the record of the entry"
    if isinstance(restored, dict) and text(restored.get("at")) is not None:
        seen, how = text(restored["at"]), "the entry's being brought back"
    purges = _purges(rooms)
    found = []
    for digest in list(missing)[:MAX_TRACED]:
        wrong = _wrong_size(rooms, digest, sizes.get(digest))
        purged = _purge(rooms, purges.get(digest))
        aside = _set_aside(rooms, digest)
        trace = (seen, how if seen else None, "not known")
        if wrong is not None:
            trace = (seen, trace[1], wrong)
        elif purged is not None:
            at, by, reason = purged
            trace = (at, "the audit of its purge", f"purged {at} by {by}: {reason}")
        elif aside is not None:
            trace = (aside[0], "its being set aside", f"its bytes were wrong: set aside {aside[0]} as {aside[1]}")
        found.append(LostBlob(digest, sizes.get(digest), *trace))
    return tuple(found)


def _wrong_size(rooms: Rooms, digest: str, said: int | None) -> str | None:
    try:
        size = rooms.blobs.size_for_readers(digest)
    except CorruptError as error:
        return str(error)
    return None if size is None else f"has {size} bytes where the entry says {said}: run `oarbank-cas verify`"


def _purges(rooms: Rooms) -> dict[str, str]:
    """The latest audit record of each blob that was purged, by digest."""
    names = (stat.name for stat in rooms.backend.listing(layout.GC_PURGES))
    return {match[1]: match[0] for name in names if (match := _PURGE.fullmatch(name)) is not None}


def _purge(rooms: Rooms, name: str | None) -> tuple[str | None, str | None, str | None] | None:
    if name is None:
        return None
    try:
        record = json.loads(rooms.backend.read(name, _MAX_RECORD)[0])
    except (NotFoundError, CorruptError, ValueError, RecursionError):
        return None
    if not isinstance(record, dict):
        return None
    return text(record.get("at")), text(record.get("by")), text(record.get("reason"))


def _set_aside(rooms: Rooms, digest: str) -> tuple[str, str] | None:
    """When and as what the bytes of a blob were last set aside."""
    prefix = f"{layout.DAMAGED}{digest}."
    latest = None
    for stat in rooms.backend.listing(layout.DAMAGED, after=prefix):
        if not stat.name.startswith(prefix):
            break
        if latest is None or stat.time_ns > latest.time_ns:
            latest = stat
    return None if latest is None else (to_text(latest.time_ns), latest.name)
