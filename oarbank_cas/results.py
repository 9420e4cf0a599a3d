"""Results by job key and class: recorded once, and ended by tombstones.

The rules kept here and in `lookups` (docs/entries.md):

1. The first writer wins, atomically; whoever comes second gets what stands. An entry is never rewritten.
2. A record may take the place of a tombstone, or of an entry that is no hit, and only of that very incarnation.
3. A hit is what can be used: key, stage and class are those asked for, the bytes are right, every blob is there.
4. Damage is a miss with a reason. A store out of reach is an error, never a miss.
5. An entry is created only by one who holds everything that it refers to, durable, and who looks at the time again
   afterwards: created later than a session after the hold began, it is held anew or withdrawn.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from oarbank_cas import entry as codec
from oarbank_cas import instants, layout
from oarbank_cas.contracts.keys import JobKey, check_class, check_module, check_platform, class_covers, parse_key
from oarbank_cas.contracts.recordable import Recordable, check_recordable
from oarbank_cas.entry import Cause, Entry, Tombstone
from oarbank_cas.errors import BusyError, CasError, CorruptError, InvalidInputError, NotFoundError, StorageIOError
from oarbank_cas.inputs.index import InputsIndex
from oarbank_cas.inputs.kept import kept
from oarbank_cas.intake import Hold, Intake
from oarbank_cas.lookups import wanted

if TYPE_CHECKING:
    from collections.abc import Iterator

    from oarbank_cas.backends.base import Backend, ObjectStat
    from oarbank_cas.blobs import Blobs
    from oarbank_cas.contracts.key_inputs import KeyInputs
    from oarbank_cas.lookups import Lookups

_TRIES = 100
"""Times that a record or invalidate begins again because another changed the entry meanwhile."""

MAX_INLINE_KB = 256
"""KiB of an envelope's payload, as written, unless the caller says otherwise."""

_KEPT = ("recorded_at", "recorded_by", "host", "platform", "module_id", "schema", "attempt", "datasets")

_HEADER_STEP = 4096

MAX_NOTE = 1000
"""Characters of who, why and attempt ids in headers."""


@dataclass(frozen=True, slots=True)
class Recorded:
    """What became of a record.

    Attributes:
        job_key: the key.
        result_class: the class.
        recorded: True where this envelope now stands; False where another stood first.
        envelope: the envelope that stands, byte for byte.
        datasets: artifact name to dataset id, of the envelope that stands.
        header: the header of the entry that stands.
        exclusive: False where the store's storage ignores conditions (`Backend.exclusive`). One who recorded under the
            same key at the same moment may then have been told the same, and by now his envelope may stand: look it up
            where that matters. What stands is whole, and one of theirs.
    """

    job_key: str
    result_class: str
    recorded: bool
    envelope: bytes
    datasets: Mapping[str, str]
    header: Mapping[str, Any]
    exclusive: bool = True


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a result comes from, as its entry's header keeps it.

    Attributes:
        by: who records.
        attempt: the attempt's id; a new one where None.
        platform: the platform token that the job ran on.
        host: the machine; the envelope's `provenance.host` where None.
        module_id: the module's full id.
    """

    by: str
    attempt: str | None = None
    platform: str | None = None
    host: str | None = None
    module_id: str | None = None


@dataclass(frozen=True, slots=True)
class ListedEntry:
    """An entry or tombstone as listed: its header alone is read.

    Attributes:
        name: the object's name.
        size: the object's bytes.
        time_ns: the store's own time of it.
        header: its header; empty where it cannot be read.
        problem: what is wrong with it, or None.
    """

    name: str
    size: int
    time_ns: int
    header: Mapping[str, Any]
    problem: str | None = None


class Results:
    """The results of one store.

    Args:
        backend: the store's storage.
        blobs: its blobs.
        lookups: its lookups.
        session_s: the store's session in seconds.
    """

    def __init__(self, backend: Backend, blobs: Blobs, lookups: Lookups, session_s: int) -> None:
        self._backend = backend
        self._blobs = blobs
        self._lookups = lookups
        self._session_ns = session_s * 10**9

    # -- recording

    def record(
        self,
        key: str,
        envelope: bytes,
        origin: Origin,
        result_class: str = "any",
        *,
        max_inline_kb: int = MAX_INLINE_KB,
        key_inputs: KeyInputs | None = None,
    ) -> Recorded:
        """Record an envelope whose blobs are already in the store.

        Args:
            key: the job key.
            envelope: the envelope, kept byte for byte; no `local` is left in it.
            origin: where it comes from.
            result_class: the class to record it in.
            max_inline_kb: KiB that its payload may have, as written.
            key_inputs: what the key was computed from, kept with the entry for `explain`; an entry that stands already
                does not change.

        Returns:
            What became of it. The first wins, exactly one of several; but see `Recorded.exclusive`.

        Raises:
            InvalidInputError: the envelope breaks the contract, or is to be uploaded first; a size is wrong; the key
                inputs give another key.
            NotFoundError: a blob that it refers to is absent.
            StorageIOError: it took longer than a session, and a blob went meanwhile; nothing is recorded.
        """
        checked = check_recordable(envelope, max_inline_kb=max_inline_kb)
        parts = self.check_target(key, result_class, origin, key_inputs)
        standing = self._standing(parts, result_class)
        if standing is not None and standing.hit is not None:
            self._backend.flush([standing.stat.name])  # its writer may not have come to that yet
            return standing.hit
        with Intake(self._backend, self._blobs) as intake:
            self.require(intake, checked)
            if key_inputs is not None:
                intake.add_bytes(key_inputs.canonical)
            return self.create(parts, result_class, checked, origin, intake.commit(), key_inputs)

    def check_target(self, key: str, result_class: str, origin: Origin, key_inputs: KeyInputs | None = None) -> JobKey:
        """Check what a result is to be recorded under, before any work is done for it.

        Raises:
            InvalidInputError: a part is malformed, the class does not take results of the platform, or the key inputs
                give another key.
        """
        parts = parse_key(key)
        if key_inputs is not None:
            key_inputs.check_gives(key)
        check_class(result_class)
        if origin.platform is not None:
            check_platform(origin.platform)
            if not class_covers(result_class, origin.platform):
                raise InvalidInputError(
                    f"does not take results of {origin.platform}: name any, its system, its architecture or itself",
                    f"class {result_class}",
                )
        if origin.module_id is not None:
            check_module(origin.module_id)
        _check_notes(by=origin.by, attempt=origin.attempt or "", host=origin.host or "")
        return parts

    def require(self, intake: Intake, checked: Recordable) -> None:
        """Put an envelope's manifests, and rely on everything that it refers to.

        Raises:
            NotFoundError: a blob is absent.
            InvalidInputError: a blob has another size than the envelope says.
        """
        for manifest in checked.manifests.values():
            intake.add_bytes(manifest)
        missing = intake.require(checked.references)
        if missing:
            more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
            raise NotFoundError(
                f"blob {missing[0]}{more} of the envelope: not in the store {self._backend.where}; upload first"
            )

    def require_inputs(self, intake: Intake, header: Mapping[str, Any]) -> None:
        """Rely on the key inputs that an entry names, if they are there: what is for people stops nobody."""
        with contextlib.suppress(InvalidInputError):  # a blob of another size is not what was kept
            intake.require(codec.kept_inputs(header))

    def create(
        self,
        parts: JobKey,
        result_class: str,
        checked: Recordable,
        origin: Origin,
        hold: Hold,
        key_inputs: KeyInputs | None = None,
    ) -> Recorded:
        """Create an entry under a hold on everything that it refers to.

        Args:
            parts: the job key.
            result_class: the class.
            checked: the envelope.
            origin: where it comes from.
            hold: covers all references and manifests, and the key inputs, durable.
            key_inputs: what the key was computed from, where the entry is to name it.

        Raises:
            StorageIOError: it took longer than a session, and a blob went meanwhile; nothing is recorded.
        """
        provenance = checked.document.get("provenance")
        host = origin.host or (provenance.get("host") if isinstance(provenance, dict) else None)
        header = {
            "recorded_at": instants.to_text(hold.t0_ns),
            "recorded_by": origin.by,
            "host": host,
            "platform": origin.platform,
            "module_id": origin.module_id or (key_inputs.module if key_inputs is not None else None),
            "schema": checked.document["schema"],
            "datasets": checked.datasets,
        }
        if key_inputs is not None:
            header["key_inputs"] = len(key_inputs.canonical)
        return self._place(parts, result_class, header, checked, hold, origin.attempt, key_inputs=key_inputs)

    def adopt(
        self, parts: JobKey, result_class: str, header: Mapping[str, Any], checked: Recordable, hold: Hold
    ) -> Recorded:
        """Create an entry that another store has, under a hold of this store's on everything that it refers to.

        Args:
            parts: the job key.
            result_class: the class.
            header: the other entry's header: who recorded it, when, where, and fields that this version does not know.
            checked: its envelope.
            hold: covers all references and manifests, durable; and the key inputs, if the new entry is to name them.

        Raises:
            StorageIOError: it took longer than a session, and a blob went meanwhile; nothing is recorded.
        """
        attempt = header.get("attempt")
        fields = {**header, "datasets": checked.datasets}
        return self._place(parts, result_class, fields, checked, hold, attempt if isinstance(attempt, str) else None)

    def _place(
        self,
        parts: JobKey,
        result_class: str,
        fields: Mapping[str, Any],
        checked: Recordable,
        hold: Hold,
        attempt: str | None,
        instead_of: ObjectStat | None = None,
        key_inputs: KeyInputs | None = None,
    ) -> Recorded:
        name = layout.entry(parts.hex, parts.stage, result_class)
        header = {
            **fields,
            "kind": "entry",
            "job_key": str(parts),
            "stage": parts.stage,
            "class": result_class,
            "attempt": attempt or uuid.uuid4().hex,
            "held_since_ns": hold.t0_ns,
        }
        if not codec.kept_inputs(header).keys() <= hold.sizes.keys():
            del header["key_inputs"]  # a root names only what its maker holds
        data = codec.encode(header, checked.envelope)
        for _ in range(_TRIES):
            created = self._create_or_replace(name, data, instead_of)
            if created is not None:
                self._confirm(created, checked, hold, header)
                self._note(parts, header, key_inputs)
                found = codec.decode_header(data[: data.index(b"\n")])
                alone = self._backend.exclusive
                return Recorded(str(parts), result_class, True, checked.envelope, fields["datasets"], found, alone)
            standing = self._standing(parts, result_class)
            if standing is not None and standing.hit is not None:
                return standing.hit
            if standing is not None and standing.tombstone is not None:
                self._leave_readable(standing.stat, standing.tombstone, hold)
            instead_of = standing.stat if standing is not None else None
        raise BusyError(f"the entry of {parts} in class {result_class} changes all the time; try again later")

    def _note(self, parts: JobKey, header: Mapping[str, Any], key_inputs: KeyInputs | None) -> None:
        """Have `explain` find an entry by its inputs. Best effort: the entry stands, and the index can be made anew."""
        if codec.kept_inputs(header):
            with contextlib.suppress(CasError):
                key_inputs = key_inputs or kept(self._blobs, parts.hex)
                if key_inputs is not None:
                    InputsIndex(self._backend).note(key_inputs)

    def _create_or_replace(self, name: str, data: bytes, instead_of: ObjectStat | None) -> ObjectStat | None:
        incoming = self._backend.incoming(len(data))
        try:
            incoming.write(data)
            if instead_of is None:
                return self._backend.commit([(name, incoming)])[0]
            return self._backend.replace(name, incoming, instead_of.validator)
        finally:
            incoming.discard()

    def _leave_readable(self, stat: ObjectStat, tombstone: Tombstone, hold: Hold) -> None:
        """Before a tombstone is replaced: whoever was answered from the entry that it ended may still be reading.

        A young tombstone is a root for them (docs/gc.md, rule 5). Once it is gone, what they need must stand under its
        own name: from there on it lasts a session at least, whatever gc does.
        """
        if stat.time_ns + 2 * self._session_ns < hold.t0_ns:
            return
        with contextlib.suppress(CorruptError):
            ended = codec.decode(tombstone.ended)
            for digest in {**wanted(ended), **codec.kept_inputs(ended.header)} if isinstance(ended, Entry) else ():
                if self._backend.stat(layout.blob(digest)) is None:
                    self._blobs.revive(digest)

    def _confirm(self, created: ObjectStat, checked: Recordable, hold: Hold, header: Mapping[str, Any]) -> None:
        """Rule 5: a root that came late is held anew, or withdrawn."""
        if 0 <= created.time_ns - hold.t0_ns <= self._session_ns:
            return
        try:
            with Intake(self._backend, self._blobs) as intake:
                self.require(intake, checked)
                self.require_inputs(intake, header)
                intake.commit()
        except (NotFoundError, InvalidInputError) as error:
            self._end(created, "withdrawn", "oarbank-cas", "recorded later than a session after its blobs were seen")
            raise StorageIOError(
                f"recording took longer than the store's session, and meanwhile a blob went: {error}; publish again"
            ) from error

    # -- ending

    def invalidate(self, key: str, result_class: str = "any", *, by: str, reason: str) -> bool:
        """End an entry: a tombstone takes its place, and lookups miss until a new result is recorded.

        Args:
            key: the job key.
            result_class: the class.
            by: who does it.
            reason: why, for people.

        Returns:
            False where nothing is recorded, or it was ended before.
        """
        parts, name = self._name(key, result_class)
        _check_notes(by=by, reason=reason)
        for _ in range(_TRIES):
            standing = self._standing(parts, result_class)
            if standing is None or standing.tombstone is not None:
                return False
            if self._end(standing.stat, "invalidated", by, reason) is not None:
                return True
        raise BusyError(f"{name} changes all the time; try again later")

    def undo(self, key: str, result_class: str = "any", *, by: str) -> bool:
        """Bring back the entry that a tombstone ended, while the tombstone and every blob are there.

        Returns:
            False where no tombstone stands, or another result was recorded meanwhile.

        Raises:
            NotFoundError: a blob of it is gone.
            CorruptError: what was ended was no sound entry.
        """
        parts, name = self._name(key, result_class)
        standing = self._standing(parts, result_class)
        if standing is None or standing.tombstone is None:
            return False
        ended = codec.decode(standing.tombstone.ended)
        if not isinstance(ended, Entry) or not codec.belongs(ended, parts, result_class):
            raise CorruptError(f"{name} ended no entry; record the result again")
        checked = check_recordable(ended.envelope, max_inline_kb=None)
        with Intake(self._backend, self._blobs) as intake:
            self.require(intake, checked)
            self.require_inputs(intake, ended.header)
            hold = intake.commit()
        restored = {"at": instants.to_text(hold.t0_ns), "by": by}
        fields = {**ended.header, "datasets": checked.datasets, "restored": restored}
        return self._place(parts, result_class, fields, checked, hold, None, standing.stat).recorded

    def expire(self, stat: ObjectStat, *, by: str, reason: str, run: str | None = None) -> ObjectStat | None:
        """End the very entry that retention judged; None where another stands by now, or none.

        Args:
            stat: the entry's object, as it was judged.
            by: who does it.
            reason: why, for people.
            run: the gc that does it.
        """
        return self._end(stat, "expired", by, reason, {} if run is None else {"gc_run": run})

    def _end(
        self, stat: ObjectStat, cause: Cause, by: str, reason: str, more: Mapping[str, str] | None = None
    ) -> ObjectStat | None:
        """Put a tombstone in the place of one incarnation of an entry; None where another stands by now."""
        try:
            ended, now_stands = self._backend.read(stat.name, codec.MAX_OBJECT)
        except NotFoundError:
            return None
        if now_stands.validator != stat.validator:
            return None
        _, _, key_hex, last = stat.name.split("/")
        stage, _, result_class = last.partition("@")
        header = {
            **_kept_of(ended),
            "kind": "tombstone",
            "job_key": str(JobKey(key_hex, None if stage == "_" else stage)),
            "stage": None if stage == "_" else stage,
            "class": result_class,
            "cause": cause,
            "ended_at": instants.to_text(self._backend.now()),
            "ended_by": by,
            "reason": reason,
            **(more or {}),
        }
        return self._create_or_replace(stat.name, codec.encode(header, ended), stat)

    # -- what stands

    def _name(self, key: str, result_class: str) -> tuple[JobKey, str]:
        parts = parse_key(key)
        return parts, layout.entry(parts.hex, parts.stage, check_class(result_class))

    def _standing(self, parts: JobKey, result_class: str) -> _Standing | None:
        name = layout.entry(parts.hex, parts.stage, result_class)
        try:
            data, stat = self._backend.read(name, codec.MAX_OBJECT)
        except NotFoundError:
            return None
        except CorruptError:
            found = self._backend.stat(name)
            return _Standing(found, None, None) if found else None
        answer = self._lookups.judge(parts, result_class, data, remember=False)
        if answer.envelope is not None:
            alone = self._backend.exclusive
            hit = Recorded(str(parts), result_class, False, answer.envelope, answer.datasets, answer.header, alone)
            return _Standing(stat, hit, None)
        try:
            decoded = codec.decode(data)
        except CorruptError:
            return _Standing(stat, None, None)
        if isinstance(decoded, Tombstone) and codec.belongs(decoded, parts, result_class):
            return _Standing(stat, None, decoded)
        return _Standing(stat, None, None)

    def listing(self) -> Iterator[ListedEntry]:
        """Every entry and tombstone, in the order of their keys; only headers are read."""
        for stat in self._backend.listing(layout.RESULTS):
            try:
                with self._backend.open(stat.name) as reader:
                    line = b""
                    while b"\n" not in line and len(line) <= codec.MAX_HEADER and (more := reader.read(_HEADER_STEP)):
                        line += more
                header = codec.decode_header(line.partition(b"\n")[0])
            except NotFoundError:
                continue
            except CorruptError as error:
                yield ListedEntry(stat.name, stat.size, stat.time_ns, {}, str(error))
            else:
                yield ListedEntry(stat.name, stat.size, stat.time_ns, header)


def _kept_of(ended: bytes) -> dict[str, Any]:
    """What a tombstone repeats of the entry that it ends, so that one can choose among tombstones as among entries."""
    try:
        header = codec.decode_header(ended[: max(ended.find(b"\n", 0, codec.MAX_HEADER + 1), 0)])
    except CorruptError:
        return {}
    return {name: header[name] for name in _KEPT if name in header}


@dataclass(frozen=True, slots=True)
class _Standing:
    """What stands under an entry's name: a hit, a tombstone, or (neither) something that may be superseded."""

    stat: ObjectStat
    hit: Recorded | None
    tombstone: Tombstone | None


def _check_notes(**notes: str) -> None:
    for what, text in notes.items():
        if len(text) > MAX_NOTE:
            raise InvalidInputError(f"has {len(text)} characters; at most {MAX_NOTE} are kept", what)
