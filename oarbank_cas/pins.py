"""Pins: named roots that operators and coordinators keep alive: a job key, a dataset, or a single blob.

A pin is created only by one who holds everything that it reaches, and who looks at the time again afterwards (rule 3 of
docs/gc.md). It is never rewritten, but to keep the same for longer. A pinned job key is kept as whatever its entry
says: retention does not end it, and if someone invalidates it, what it named stays until the pin goes, so that the
invalidation can be undone.
"""

from __future__ import annotations

import json
import re
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from oarbank_cas import instants, layout
from oarbank_cas.contracts.canonical import is_digest, parse_json
from oarbank_cas.contracts.keys import check_class, parse_key
from oarbank_cas.contracts.manifest import MAX_MANIFEST_BYTES, is_artifact_dataset, parse_dataset, parse_manifest
from oarbank_cas.contracts.paths import check_portable_path
from oarbank_cas.contracts.places import quoted
from oarbank_cas.contracts.recordable import check_recordable
from oarbank_cas.errors import ConflictError, CorruptError, InvalidInputError, NotFoundError, StorageIOError
from oarbank_cas.inputs.kept import kept
from oarbank_cas.intake import Intake

if TYPE_CHECKING:
    from collections.abc import Iterator

    from oarbank_cas.backends.base import Backend, ObjectStat
    from oarbank_cas.blobs import Blobs
    from oarbank_cas.intake import Hold
    from oarbank_cas.lookups import Lookups
    from oarbank_cas.results import Results

NAME_PATTERN = "^[a-z0-9][a-z0-9._-]{0,99}$"
"""The name of a pin: the same file name on every system. No Windows device, no dot at its end."""

MAX_BYTES = 64 * 1024
MAX_NOTE = 1000
"""Characters of a note, or of who."""

_TRIES = 100
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,99}")


@dataclass(frozen=True, slots=True)
class Pin:
    """A pin as it stands.

    Attributes:
        name: its name.
        job_key: the job key that it keeps; else None.
        result_class: the class of that key's entry; else None.
        dataset: the dataset that it keeps, `art:<digest>`; else None.
        digest: the blob that it keeps; else None.
        note: why, for people.
        by: who made it.
        created_at: when, RFC 3339.
        expires_at: when it stops to keep anything, RFC 3339; None for never.
        held_since: the store's time from which on its maker held what it reaches, RFC 3339.
        attempt: names the call that made it.
    """

    name: str
    job_key: str | None
    result_class: str | None
    dataset: str | None
    digest: str | None
    note: str
    by: str
    created_at: str
    expires_at: str | None
    held_since: str
    attempt: str

    @property
    def target(self) -> str:
        """What it keeps, as it was asked for."""
        return self.job_key or self.dataset or self.digest or ""

    @property
    def expires_ns(self) -> int | None:
        """When it expires, in nanoseconds since 1970."""
        return None if self.expires_at is None else instants.from_text(self.expires_at, "expires_at")

    def is_expired(self, now_ns: int) -> bool:
        """Whether it keeps nothing any more at a moment, nanoseconds since 1970."""
        return self.expires_ns is not None and self.expires_ns <= now_ns

    @property
    def entry(self) -> str | None:
        """The object name of the entry that it keeps, where it keeps a job key."""
        if self.job_key is None or self.result_class is None:
            return None
        parts = parse_key(self.job_key)
        return layout.entry(parts.hex, parts.stage, self.result_class)


def is_pin_name(text: str) -> bool:
    """Whether a text can name a pin."""
    if _NAME.fullmatch(text) is None:
        return False
    try:
        check_portable_path(text)
    except InvalidInputError:
        return False
    return True


def is_pin_object(name: str) -> bool:
    """Whether an object of this name would be a pin."""
    return name.startswith(layout.PINS) and is_pin_name(name.removeprefix(layout.PINS))


def decode(data: bytes, name: str, where: str) -> Pin:
    """Read a pin.

    Raises:
        CorruptError: it is none, or of a kind that this version does not know.
    """
    place = f"{layout.pin(name)} in {where}"
    try:
        document = parse_json(data, where=place)
        if not isinstance(document, dict) or document.get("format") != layout.FORMAT or document.get("pin") != name:
            raise InvalidInputError("is no pin of a known format", place)
        return _pin_of(document, name, place)
    except InvalidInputError as error:
        raise CorruptError(f"{error}; unpin it and pin again") from error


def _pin_of(document: dict[str, Any], name: str, place: str) -> Pin:
    texts = {key: document.get(key) for key in ("job_key", "class", "dataset", "digest", "expires_at")}
    if not all(value is None or isinstance(value, str) for value in texts.values()):
        raise InvalidInputError("has a member of a wrong kind", place)
    key, digest, dataset = texts["job_key"], texts["digest"], texts["dataset"]
    targets = [text for text in (key, digest, dataset) if text is not None]
    if len(targets) != 1 or not isinstance(document.get("held_since"), str):
        raise InvalidInputError("does not say what it keeps, or since when", place)
    if key is not None:
        parse_key(key, place)
        check_class(texts["class"] or "", place)
    elif not (is_digest(digest) if dataset is None else is_artifact_dataset(dataset)):
        raise InvalidInputError("keeps something that is no dataset and no digest", place)
    if texts["expires_at"] is not None:
        instants.from_text(texts["expires_at"], place)
    return Pin(
        name,
        key,
        texts["class"],
        dataset,
        digest,
        str(document.get("note", "")),
        str(document.get("by", "")),
        str(document.get("created_at", "")),
        texts["expires_at"],
        str(document["held_since"]),
        str(document.get("attempt", "")),
    )


def _encode(name: str, kept: dict[str, str], hold: Hold, *, note: str, by: str, expires_at: str | None) -> bytes:
    document = {
        "format": layout.FORMAT,
        "pin": name,
        **kept,
        "note": note,
        "by": by,
        "created_at": instants.to_text(hold.t0_ns),
        "expires_at": expires_at,
        "held_since": instants.to_text(hold.t0_ns),
        "attempt": uuid.uuid4().hex,
    }
    return (json.dumps(document, indent=2) + "\n").encode()


def _lasts(standing: Pin, new: Pin) -> bool:
    """Whether a pin that stands keeps what it keeps at least as long as a new one would."""
    if standing.expires_ns is None or new.expires_ns is None:
        return standing.expires_ns is None
    return standing.expires_ns >= new.expires_ns


class Pins:
    """The pins of one store.

    Args:
        backend: the store's storage.
        blobs: its blobs.
        lookups: its lookups.
        results: its results.
        session_s: the store's session in seconds.
    """

    def __init__(self, backend: Backend, blobs: Blobs, lookups: Lookups, results: Results, session_s: int) -> None:
        self._backend = backend
        self._blobs = blobs
        self._lookups = lookups
        self._results = results
        self._session_ns = session_s * 10**9

    def pin(
        self,
        name: str,
        target: str,
        *,
        result_class: str = "any",
        note: str = "",
        by: str = "",
        expires_at: str | None = None,
    ) -> Pin:
        """Keep something alive under a name.

        Args:
            name: the pin's name, `NAME_PATTERN`.
            target: a job key, a dataset `art:<digest>`, or the digest of a blob prefixed with `blob:`. A bare digest
                is a job key where one is recorded in the class, else a blob.
            result_class: the class of a job key's entry.
            note: why, for people.
            by: who.
            expires_at: when it stops to keep anything, RFC 3339; None for never.

        Raises:
            InvalidInputError: the name, the target or the expiry is malformed, or the expiry is past.
            NotFoundError: the target is not in the store, or not all of it.
            ConflictError: a pin of that name stands.
            StorageIOError: it took longer than a session, and something went meanwhile; nothing is pinned.
        """
        self.check(name, note, by, expires_at)
        if self._backend.stat(layout.pin(name)) is not None:
            raise self._taken(name)
        kept = self._kept(target, check_class(result_class))
        hold = self._hold(kept)
        data = _encode(name, kept, hold, note=note, by=by, expires_at=expires_at)
        made = decode(data, name, self._backend.where)
        if made.is_expired(hold.t0_ns):
            raise InvalidInputError(f"{expires_at} is past: it would keep nothing; name a later moment", "expires")
        created = self._write(name, data)
        if created is None:
            raise self._taken(name)
        self._confirm(created, kept, hold)
        return made

    def keep(
        self, name: str, dataset: str, hold: Hold, *, note: str = "", by: str = "", expires_at: str | None = None
    ) -> tuple[Pin, bool]:
        """Pin a dataset that the caller holds, or find that the pin of that name keeps it for as long already.

        Only here a pin is ever written again, by identity: one that keeps the very same dataset, but less long.

        Args:
            name: the pin's name, `NAME_PATTERN`.
            dataset: `art:<digest>`.
            hold: the caller's, of everything that the dataset reaches.
            note: why, for people.
            by: who.
            expires_at: when it may stop to keep it, RFC 3339; None for never.

        Returns:
            The pin that stands, and whether this call wrote it.

        Raises:
            InvalidInputError: as `check`.
            ConflictError: a pin of that name keeps something else, or it changed again and again.
            CorruptError: a pin of that name cannot be read.
            StorageIOError: it took longer than a session, and something went meanwhile; nothing is pinned.
        """
        self.check(name, note, by, expires_at)
        kept = {"dataset": dataset}
        data = _encode(name, kept, hold, note=note, by=by, expires_at=expires_at)
        new = decode(data, name, self._backend.where)
        for _ in range(_TRIES):
            standing, validator = self._standing(name)
            if standing is not None and standing.dataset != dataset:
                raise self._taken(name)
            if standing is not None and _lasts(standing, new):
                return standing, False
            written = self._write(name, data, validator)
            if written is not None:
                self._confirm(written, kept, hold)
                return new, True
        raise ConflictError(f"the pin {name} in {self._backend.where} changes again and again; try again later")

    def check(self, name: str, note: str = "", by: str = "", expires_at: str | None = None) -> None:
        """Check what a pin is to say.

        Raises:
            InvalidInputError: the name or the expiry is malformed, or a text is too long.
        """
        if not is_pin_name(name):
            raise InvalidInputError(
                f"is no name of a pin (1 to 100 of a-z 0-9 . _ -, no device name, no dot at an end): {quoted(name)}",
                "pin",
            )
        if max(len(note), len(by)) > MAX_NOTE:
            raise InvalidInputError(f"has more than {MAX_NOTE} characters", "note")
        if expires_at is not None:
            instants.from_text(expires_at, "expires")

    def _standing(self, name: str) -> tuple[Pin | None, str | None]:
        try:
            data, stat = self._backend.read(layout.pin(name), MAX_BYTES)
        except NotFoundError:
            return None, None
        return decode(data, name, self._backend.where), stat.validator

    def _write(self, name: str, data: bytes, expected: str | None = None) -> ObjectStat | None:
        """Create a pin, or replace its incarnation `expected`; None where another stands, or that one no more."""
        incoming = self._backend.incoming(len(data))
        try:
            incoming.write(data)
            if expected is not None:
                return self._backend.replace(layout.pin(name), incoming, expected)
            return self._backend.commit([(layout.pin(name), incoming)])[0]
        finally:
            incoming.discard()

    def unpin(self, name: str) -> bool:
        """Remove a pin: the one that stands, and none that is made meanwhile. False where there is none."""
        self.check(name)
        standing = self._backend.stat(layout.pin(name))
        return standing is not None and self._backend.delete(layout.pin(name), standing.validator)

    def get(self, name: str) -> Pin:
        """A pin by its name.

        Raises:
            NotFoundError: there is none.
            CorruptError: it cannot be read.
        """
        self.check(name)
        data, _ = self._backend.read(layout.pin(name), MAX_BYTES)
        return decode(data, name, self._backend.where)

    def listing(self) -> Iterator[Pin]:
        """Every pin, by name. Files that no pin can be called are left out.

        Raises:
            CorruptError: one cannot be read.
        """
        for stat in self._backend.listing(layout.PINS):
            name = stat.name.removeprefix(layout.PINS)
            if is_pin_name(name):
                try:
                    data, _ = self._backend.read(stat.name, MAX_BYTES)
                except NotFoundError:
                    continue  # unpinned meanwhile
                yield decode(data, name, self._backend.where)

    # -- holding what is pinned

    def _taken(self, name: str) -> ConflictError:
        return ConflictError(f"a pin {name} stands in {self._backend.where}: unpin it first, or choose another name")

    def _kept(self, target: str, result_class: str) -> dict[str, str]:
        if target.startswith("blob:") and is_digest(target[5:]):
            return {"digest": target[5:]}
        if is_artifact_dataset(target):
            return {"dataset": target}
        parts = parse_key(target, "pin target")
        recorded = self._backend.stat(layout.entry(parts.hex, parts.stage, result_class)) is not None
        is_blob = not recorded and parts.stage is None and self._blobs.size_for_readers(target) is not None
        # The key inputs of a job are a blob with the very digest; who names the key does not mean that.
        if is_blob and kept(self._blobs, target) is None:
            return {"digest": target}
        return {"job_key": target, "class": result_class}

    def _hold(self, kept: dict[str, str]) -> Hold:
        """Hold everything that a pin reaches.

        Raises:
            NotFoundError: not all of it is there.
        """
        with Intake(self._backend, self._blobs) as intake:
            if "job_key" in kept:
                found = self._lookups.lookup(kept["job_key"], kept["class"])
                if found.envelope is None:
                    raise NotFoundError(
                        f"{kept['job_key']} in class {kept['class']} cannot be pinned: {found.reason}: {found.detail}"
                    )
                self._results.require(intake, check_recordable(found.envelope, max_inline_kb=None))
                self._results.require_inputs(intake, found.header)
            elif "dataset" in kept:
                data = self._blobs.get_bytes(parse_dataset(kept["dataset"]), MAX_MANIFEST_BYTES)
                intake.add_bytes(data)
                self._require(intake, {file.digest: file.size for file in parse_manifest(data, kept["dataset"])})
            else:
                size = self._blobs.size_for_readers(kept["digest"])
                if size is None:
                    raise NotFoundError(f"blob {kept['digest']} is not in the store {self._backend.where}")
                self._require(intake, {kept["digest"]: size})
            return intake.commit()

    def _require(self, intake: Intake, sizes: dict[str, int]) -> None:
        missing = intake.require(sizes)
        if missing:
            more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
            raise NotFoundError(f"blob {missing[0]}{more}: not in the store {self._backend.where}; nothing is pinned")

    def _confirm(self, created: ObjectStat, kept: dict[str, str], hold: Hold) -> None:
        """Rule 3: a pin that came late is held anew, or withdrawn; so is one whose entry was ended before it stood."""
        late = not 0 <= created.time_ns - hold.t0_ns <= self._session_ns
        try:
            if late:
                self._hold(kept)
            if "job_key" in kept and not self._lookups.lookup(kept["job_key"], kept["class"], complete=False).hit:
                self._backend.delete(created.name, created.validator)
                raise NotFoundError(f"{kept['job_key']} was ended before it could be pinned; nothing is pinned")
        except (NotFoundError, InvalidInputError) as error:
            if not late:
                raise
            self._backend.delete(created.name, created.validator)
            raise StorageIOError(
                f"pinning took longer than the store's session, and meanwhile something went: {error}; pin again"
            ) from error
