"""One question: from a key, or what it is made of, to what became of its result."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, get_args

from oarbank_cas import entry as codec
from oarbank_cas import layout
from oarbank_cas.blobs import Blobs
from oarbank_cas.contracts.key_inputs import KeyInputs
from oarbank_cas.contracts.keys import check_class, parse_key
from oarbank_cas.copying import key_of
from oarbank_cas.entry import Cause, Entry
from oarbank_cas.errors import CorruptError, NotFoundError
from oarbank_cas.explain import traces
from oarbank_cas.explain.answers import Explanation, Kept, Standing
from oarbank_cas.explain.nearest import names_of, nearest
from oarbank_cas.explain.traces import text
from oarbank_cas.inputs.kept import kept
from oarbank_cas.lookups import Lookup, Lookups, wanted

if TYPE_CHECKING:
    from oarbank_cas.contracts.keys import JobKey
    from oarbank_cas.explain.answers import Answer
    from oarbank_cas.progress import Step
    from oarbank_cas.rooms import Rooms


def explain(
    rooms: Rooms,
    question: str | KeyInputs,
    result_class: str = "any",
    *,
    nearest: int = 5,
    progress: Step | None = None,
) -> Explanation:
    """Say why a job is a hit or a miss. That counts as no hit.

    Args:
        rooms: the store.
        question: the job key, or what it is made of.
        result_class: the class asked for.
        nearest: how many recorded results that are like it are wanted, where none is recorded.
        progress: called with the bytes of each document, where the index of key inputs has to be made again.

    Raises:
        InvalidInputError: the key or class is malformed.
        UnavailableError, PermissionDeniedError, StorageIOError: the store cannot be read.
    """
    given = question if isinstance(question, KeyInputs) else None
    parts = given.key if given is not None else parse_key(str(question))
    return _Asking(rooms, parts, check_class(result_class), given).answer(nearest, progress)


class _Asking:
    """The state of one question."""

    def __init__(self, rooms: Rooms, parts: JobKey, result_class: str, given: KeyInputs | None) -> None:
        self._rooms = rooms
        self._parts = parts
        self._class = result_class
        # A question is no use of the result: these note no hits, and what they find absent others need not forget.
        self._blobs = Blobs(rooms.backend, rooms.descriptor.session_s)
        self._lookups = Lookups(rooms.backend, self._blobs, rooms.descriptor.session_s)
        self._kept = kept(self._blobs, parts.hex, parts.stage)
        self._inputs = given or self._kept

    def answer(self, most: int, progress: Step | None) -> Explanation:
        found = self._lookups.lookup(str(self._parts), self._class)
        if found.hit:
            at = text(found.header.get("recorded_at"))
            return self._explanation(found, "hit", f"recorded {at} by {found.header.get('recorded_by')}")
        if found.reason == "absent":
            return self._absent(found, most, progress)
        others = self._others()
        if found.reason == "incomplete":
            lost = traces.lost_blobs(self._rooms, found.header, found.missing, self._sizes())
            told = self._explanation(found, "incomplete", found.detail or "")
            return replace(told, missing=lost, missing_count=len(found.missing), others=others)
        if found.reason == "corrupt":
            return replace(self._explanation(found, "corrupt", found.detail or ""), others=others)
        known = {cause: cause for cause in get_args(Cause)}
        told = self._explanation(found, known.get(found.reason or "", "ended"), found.detail or "")
        return replace(told, ended=traces.ending(self._rooms, found.header), others=others)

    def _explanation(self, found: Lookup, answer: Answer, detail: str) -> Explanation:
        state: Kept = "kept" if self._kept is not None else "none"
        if state == "none" and self._names_inputs(found):
            state = "gone"
        return Explanation(
            str(self._parts),
            self._class,
            answer,
            detail,
            text(found.header.get("recorded_at")),
            text(found.header.get("recorded_by")),
            key_inputs=state,
        )

    def _names_inputs(self, found: Lookup) -> bool:
        return bool(found.header and codec.kept_inputs(found.header))

    def _sizes(self) -> dict[str, int | None]:
        """What the envelope says of its blobs' sizes."""
        name = layout.entry(self._parts.hex, self._parts.stage, self._class)
        try:
            entry = codec.decode(self._rooms.backend.read(name, codec.MAX_OBJECT)[0])
            return wanted(entry) if isinstance(entry, Entry) else {}
        except (NotFoundError, CorruptError):
            return {}  # it changed this moment

    def _others(self) -> tuple[Standing, ...]:
        """What else stands of the key."""
        own = layout.entry(self._parts.hex, self._parts.stage, self._class)
        found = []
        for name in names_of(self._rooms.backend, self._parts.hex):
            if name == own:
                continue
            parts, in_class = key_of(name)
            answer = self._lookups.lookup(str(parts), in_class)
            at, by = text(answer.header.get("recorded_at")), text(answer.header.get("recorded_by"))
            found.append(Standing(str(parts), in_class, answer.reason or "hit", at, by))
        return tuple(found)

    # -- nothing is recorded under this name

    def _absent(self, found: Lookup, most: int, progress: Step | None) -> Explanation:
        others = self._others()
        own = str(self._parts)
        classes = [each.result_class for each in others if each.job_key == own and each.status == "hit"]
        if classes:
            detail = f"nothing is recorded in class {self._class}; it is in class {', '.join(classes)}"
            return replace(self._explanation(found, "other-class", detail), others=others)
        told = self._ended_or_never(found, others)
        if self._inputs is None:
            return told
        near, searched = nearest(
            self._rooms.backend, self._blobs, self._lookups, self._inputs, self._class, most, progress
        )
        return replace(told, nearest=near, searched=searched)

    def _ended_or_never(self, found: Lookup, others: tuple[Standing, ...]) -> Explanation:
        name = layout.entry(self._parts.hex, self._parts.stage, self._class)
        ended = traces.forgotten(self._rooms, name)
        if ended is not None:
            detail = f"ended by gc at {ended.at}; its tombstone is gone since"
            return replace(self._explanation(found, "expired", detail), ended=ended, others=others)
        stages = [each.job_key for each in others if each.status == "hit"]
        if stages:
            detail = f"nothing is recorded for this stage; it is for {', '.join(stages)}"
            return replace(self._explanation(found, "other-stage", detail), others=others)
        detail = "nothing is known of a result of this key and class"
        return replace(self._explanation(found, "never", detail), others=others)
