"""Lookups: whether an identical job was already done, answered by one read. Rules 3 and 4 of `results`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from oarbank_cas import entry as codec
from oarbank_cas import layout
from oarbank_cas.batches import in_order
from oarbank_cas.contracts.keys import JobKey, check_class, parse_key
from oarbank_cas.contracts.manifest import parse_dataset
from oarbank_cas.contracts.references import references
from oarbank_cas.entry import Entry, Tombstone
from oarbank_cas.errors import CasError, CorruptError, InvalidInputError, NotFoundError
from oarbank_cas.presence import Presence

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from oarbank_cas.backends.base import Backend
    from oarbank_cas.blobs import Blobs

Status = Literal["hit", "miss", "error"]


_MANY = 8
"""Blobs of one entry from which on a storage from afar is asked for several at once."""


@dataclass(frozen=True, slots=True)
class Lookup:
    """The answer to a lookup.

    Attributes:
        job_key: the key asked for.
        result_class: the class asked for.
        status: `hit`, `miss`, or, from `lookup_many` alone, `error`.
        reason: for a miss `absent`, `corrupt`, `incomplete`, or a tombstone's cause; for an error what failed.
        detail: the same for people, with what to do.
        envelope: a hit's envelope, byte for byte; else None.
        header: the entry's or tombstone's header, where it could be read.
        missing: of an incomplete entry, the digests that are absent or have another size.
        error: of an error, the exception.
    """

    job_key: str
    result_class: str
    status: Status
    reason: str | None = None
    detail: str | None = None
    envelope: bytes | None = None
    header: Mapping[str, Any] = field(default_factory=dict)
    missing: tuple[str, ...] = ()
    error: CasError | None = None

    @property
    def hit(self) -> bool:
        """Whether the result can be used."""
        return self.status == "hit"

    @property
    def datasets(self) -> dict[str, str]:
        """Artifact name to dataset id, of a hit."""
        return Entry(self.header, b"").datasets if self.hit else {}


class Lookups:
    """The lookups of one store.

    Args:
        backend: the store's storage.
        blobs: its blobs.
        session_s: the store's session in seconds.

    Attributes:
        on_hit: called with the job key and the class of every hit, if set; it must neither raise nor wait.
    """

    def __init__(self, backend: Backend, blobs: Blobs, session_s: int) -> None:
        self.on_hit: Callable[[str, str], None] | None = None
        self._backend = backend
        self._blobs = blobs
        self._presence = Presence(session_s)

    def lookup(self, key: str, result_class: str = "any", *, complete: bool = True) -> Lookup:
        """What is recorded for a job.

        Args:
            key: the job key, `hex` or `hex:stage`.
            result_class: the class to look in, and no other.
            complete: False skips the look for the blobs; a hit may then not be usable.

        Raises:
            InvalidInputError: the key or class is malformed.
            UnavailableError, PermissionDeniedError, StorageIOError: the store cannot be read. That is never a miss.
        """
        parts, result_class = parse_key(key), check_class(result_class)
        name = layout.entry(parts.hex, parts.stage, result_class)
        try:
            data, _ = self._backend.read(name, codec.MAX_OBJECT)
        except NotFoundError:
            return Lookup(key, result_class, "miss", "absent", "no result is recorded for this key and class")
        except CorruptError as error:
            return Lookup(key, result_class, "miss", "corrupt", str(error))
        answer = self.judge(parts, result_class, data, complete=complete)
        if answer.hit and self.on_hit is not None:
            self.on_hit(key, result_class)
        return answer

    def lookup_many(self, keys: Iterable[str], result_class: str = "any", *, complete: bool = True) -> Iterator[Lookup]:
        """One answer a key, in the order of the keys. A key that could not be looked up has the status `error`.

        Args:
            keys: job keys; taken as needed, so that any number will do.
            result_class: as in `lookup`.
            complete: as in `lookup`.

        Raises:
            InvalidInputError: a key or the class is malformed.
        """

        def look(key: str) -> Lookup:
            try:
                return self.lookup(key, result_class, complete=complete)
            except InvalidInputError:
                raise
            except CasError as error:
                return Lookup(key, result_class, "error", type(error).__name__, str(error), error=error)

        return in_order(look, keys, self._backend.requests_at_once)

    def forget(self) -> None:
        """Forget which blobs were seen present: the next lookups look again."""
        self._presence.forget()

    def judge(
        self, parts: JobKey, result_class: str, data: bytes, *, complete: bool = True, remember: bool = True
    ) -> Lookup:
        """What the object `data` answers, read as the entry of a key and class.

        Args:
            parts: the key.
            result_class: the class.
            data: the object's bytes.
            complete: look for the blobs.
            remember: use and feed the memory of what was seen present. A writer must not.
        """
        key = str(parts)

        def miss(reason: str, detail: str, header: Mapping[str, Any], missing: tuple[str, ...] = ()) -> Lookup:
            return Lookup(key, result_class, "miss", reason, detail, header=header, missing=missing)

        try:
            found = codec.decode(data)
        except CorruptError as error:
            return miss("corrupt", f"the entry is damaged: {error}; record the result again", {})
        header = found.header
        if not codec.belongs(found, parts, result_class):
            return miss("corrupt", "the entry belongs to another key, stage or class; record the result again", {})
        if isinstance(found, Tombstone):
            return miss(found.cause, found.told, header)
        if not complete:
            # Otherwise seen to where the references are read.
            try:
                str(found.envelope, "utf-8")
            except UnicodeDecodeError:
                return miss("corrupt", "the entry's envelope is not UTF-8; record the result again", header)
        else:
            try:
                missing = self._missing(found, remember=remember)
            except CorruptError as error:
                return miss("corrupt", f"the entry is damaged: {error}; record the result again", header)
            if missing:
                first = f"{len(missing)} of its blobs are not in the store, such as {missing[0]}"
                return miss("incomplete", f"{first}; record the result again", header, missing)
        return Lookup(key, result_class, "hit", envelope=found.envelope, header=header)

    def _missing(self, found: Entry, *, remember: bool) -> tuple[str, ...]:
        """The blobs of an entry, and the manifests of its artifacts, that no reader would find."""
        presence = self._presence if remember else Presence(0)
        body = f"entry {found.header['header_sha256']}"
        if presence.seen(body) is not None:
            return ()
        oldest = presence.moment()
        unknown: dict[str, int | None] = {}
        for digest, size in wanted(found).items():
            remembered = presence.seen(f"{digest} {size}")
            if remembered is None:
                unknown[digest] = size
            else:
                oldest = (min(oldest[0], remembered[0]), min(oldest[1], remembered[1]))
        moment = presence.moment()
        many = self._backend.requests_at_once > 1 and len(unknown) > _MANY
        sizes = self._blobs.sizes_for_readers(unknown) if many else map(self._blobs.size_for_readers, unknown)
        missing = []
        for digest, size in unknown.items():
            if not many:
                moment = presence.moment()
            stands = next(sizes)
            if stands is None or size not in (None, stands):
                missing.append(digest)
            else:
                presence.saw(f"{digest} {size}", moment)
        if not missing:
            presence.saw(body, oldest)
        return tuple(missing)


def wanted(found: Entry) -> dict[str, int | None]:
    """Every blob that an entry needs, with its size where the envelope says it."""
    try:
        wanted: dict[str, int | None] = dict(references(json.loads(str(found.envelope, "utf-8"))))
        for dataset in found.datasets.values():
            wanted.setdefault(parse_dataset(dataset))
    except (ValueError, RecursionError, AttributeError, InvalidInputError) as error:
        raise CorruptError(f"what it refers to cannot be read ({error})") from error
    return wanted
