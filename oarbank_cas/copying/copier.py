"""How single things come from one store to another: blobs, entries, tombstones, pins."""

from __future__ import annotations

import contextlib
import os
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from oarbank_cas import entry as codec
from oarbank_cas import layout, stopping
from oarbank_cas.contracts.canonical import is_digest
from oarbank_cas.contracts.keys import JobKey, parse_key
from oarbank_cas.contracts.manifest import is_artifact_dataset, parse_dataset
from oarbank_cas.contracts.recordable import check_recordable
from oarbank_cas.entry import Entry, Tombstone
from oarbank_cas.errors import (
    CasError,
    CorruptError,
    InvalidInputError,
    NotFoundError,
    UnavailableError,
)
from oarbank_cas.gc import rules
from oarbank_cas.gc.facts import UNKNOWN_SIZE, facts_of, read_manifest
from oarbank_cas.gc.names import is_entry_name
from oarbank_cas.inputs.kept import kept
from oarbank_cas.intake import Hold, Intake
from oarbank_cas.pins import is_pin_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from oarbank_cas.backends.base import ObjectStat
    from oarbank_cas.blobs import Blob
    from oarbank_cas.contracts.manifest import FileRef
    from oarbank_cas.contracts.recordable import Recordable
    from oarbank_cas.rooms import Rooms

from oarbank_cas.copying.report import Options, Report
from oarbank_cas.copying.source import Stream, groups

Progress = Callable[[int], None]
"""Called with the bytes of each blob and entry that is done, from several threads."""

_BLOBS = 128
"""Blobs that share their flushes."""

_ENTRIES = 32
"""Entries that share one hold."""


def key_of(name: str) -> tuple[JobKey, str]:
    """The job key and the class in the object name of an entry."""
    _, _, key_hex, last = name.split("/")
    stage, _, result_class = last.partition("@")
    return JobKey(key_hex, None if stage == "_" else stage), result_class


class Copier:
    """Copies from one store to another. Its methods that copy one thing may be called from many threads.

    Args:
        source: where things are.
        target: where they are to be.
        options: how.
        progress: see `Progress`.
    """

    def __init__(self, source: Rooms, target: Rooms, options: Options, progress: Progress | None = None) -> None:
        self._source = source
        self._target = target
        self._options = options
        self._progress = progress or (lambda _size: None)
        self._workers = options.workers or 2 * (os.cpu_count() or 1)
        self._whole = False
        self._counted: set[str] = set()
        self.report = Report(source.backend.where, target.backend.where, options.dry_run)

    def guarded(self, name: str, do: Callable[[], object]) -> None:
        """Do something; what is wrong with the one thing that it is about becomes a problem."""
        try:
            do()
        except NotFoundError as error:
            self.report.problem("missing", name, str(error))
        except (CorruptError, InvalidInputError) as error:
            self.report.problem("damaged", name, f"{error}; run `oarbank-cas verify` on {self._source.backend.where}")

    # -- what was named

    def named(self, name: str) -> Callable[[], object]:
        """How to copy something by its name.

        Raises:
            InvalidInputError: it is no name of anything.
        """
        if name.startswith("blob:") and is_digest(name[5:]):
            return lambda: self.blobs({name[5:]: UNKNOWN_SIZE})
        if is_artifact_dataset(name):
            return lambda: self.dataset(name)
        parts = parse_key(name, "copy")
        entry = layout.entry(parts.hex, parts.stage, self._options.result_class)
        is_blob = parts.stage is None and self._source.backend.stat(entry) is None and self._source.blobs.has(name)
        # The key inputs of a job are a blob with the very digest; who names the key does not mean that.
        if is_blob and kept(self._source.blobs, name) is None:
            return lambda: self.blobs({name: UNKNOWN_SIZE})
        return lambda: self.entry(entry)

    def dataset(self, dataset: str) -> None:
        """Copy a dataset: its manifest, and its files.

        Raises:
            NotFoundError: the source does not have all of it.
            CorruptError: it is damaged there.
        """
        digest = parse_dataset(dataset)
        files = read_manifest(self._source.blobs, digest)
        self.blobs({digest: UNKNOWN_SIZE, **{file.digest: file.size for file in files}})

    # -- everything

    def everything(self) -> None:
        """Copy all blobs, then all entries, then all pins."""
        self._whole = True
        absent = groups(self._absent(), _BLOBS)
        self._in_parallel(absent, lambda group: self._bring_group(group))
        entries = (stat for stat in self._source.backend.listing(layout.RESULTS) if is_entry_name(stat.name))
        self._in_parallel(groups(entries, _ENTRIES), lambda group: self._entry_group(group))
        for stat in self._source.backend.listing(layout.PINS):
            if is_pin_name(stat.name.removeprefix(layout.PINS)):
                self.guarded(stat.name, lambda name=stat.name: self._pin(name))  # type: ignore[misc]

    def _absent(self) -> Iterator[ObjectStat]:
        """The source's blobs that the target does not have, by walking both side by side."""
        there = iter(self._target.backend.listing(layout.BLOBS))
        ahead = next(there, None)
        for stat in self._source.backend.listing(layout.BLOBS):
            if rules.blob_of(stat.name) is None:
                continue
            while ahead is not None and ahead.name < stat.name:
                ahead = next(there, None)
            if ahead is not None and (ahead.name, ahead.size) == (stat.name, stat.size):
                self.report.add("blobs there")
            else:
                yield stat

    def _bring_group(self, group: list[ObjectStat]) -> None:
        with self._intake() as intake:
            for stat in group:
                digest = rules.blob_of(stat.name) or ""
                self.guarded(f"blob {digest}", lambda digest=digest: self._bring(intake, digest))  # type: ignore[misc]
            if intake is not None:
                intake.commit()

    def _in_parallel(self, items: Iterable[Any], do: Callable[[Any], None]) -> None:
        waiting: deque[Future[None]] = deque()
        with stopping.Threads(self._workers, "copy") as pool:
            try:
                for item in items:
                    waiting.append(pool.submit(do, item))
                    while len(waiting) > 4 * self._workers:
                        stopping.result(waiting.popleft())
                while waiting:
                    stopping.result(waiting.popleft())
            finally:
                for future in waiting:
                    future.cancel()

    # -- blobs

    def _intake(self) -> AbstractContextManager[Intake | None]:
        if self._options.dry_run:
            return nullcontext(None)
        return Intake(self._target.backend, self._target.blobs)

    def blobs(self, sizes: dict[str, int]) -> None:
        """Have the target hold these blobs; a size that is not known is `UNKNOWN_SIZE`.

        Raises:
            NotFoundError: the source does not have one.
            CorruptError: one is damaged there.
        """
        with self._intake() as intake:
            self._ensure(intake, sizes)
            if intake is not None:
                intake.commit()

    def _ensure(self, intake: Intake | None, sizes: dict[str, int]) -> None:
        """Rely on blobs at the target; those that are not there are brought."""
        known = {}
        for digest, size in sizes.items():
            if size == UNKNOWN_SIZE:
                found = self._source.blobs.size_for_readers(digest)
                if found is None and (found := self._target.blobs.size_for_readers(digest)) is None:
                    raise NotFoundError(f"blob {digest} is not in the store {self._source.backend.where}")
                known[digest] = found
            else:
                known[digest] = size
        missing = intake.require(known) if intake is not None else self._target.blobs.missing(known)
        if not self._whole:
            self.report.add("blobs there", len(known) - len(missing))
        for digest in missing:
            self._bring(intake, digest)

    def _first(self, digest: str) -> bool:
        """Whether a run that only counts has not met this blob yet."""
        with self.report.lock:
            new = digest not in self._counted
            self._counted.add(digest)
        return new

    def _bring(self, intake: Intake | None, digest: str) -> None:
        with self._source.blobs.open(digest) as reader:
            size = reader.size
            if intake is not None:
                blob = intake.add_stream(Stream(reader))  # type: ignore[arg-type]
                assert blob.digest == digest
        if intake is None and not self._first(digest):
            return
        self.report.add("blobs copied")
        self.report.add("bytes copied", size)
        self._progress(size)

    # -- entries

    def entry(self, name: str) -> bool:
        """Copy the entry, or where asked the tombstone, under an object name, with everything that it needs.

        Returns:
            Whether the target now has just this.

        Raises:
            NotFoundError: it is absent, or a blob of it is.
            CorruptError, InvalidInputError: it is damaged.
        """
        with self._intake() as intake:
            prepared = self._prepare(intake, name)
            hold = None if intake is None else intake.commit()
        return prepared if isinstance(prepared, bool) else self._finish(prepared, hold)

    def _entry_group(self, group: list[ObjectStat]) -> None:
        """Copy entries that share one hold, and its flushes."""
        prepared: list[_Prepared | bool] = []
        with self._intake() as intake:
            for stat in group:
                name = stat.name
                self.guarded(name, lambda name=name: prepared.append(self._prepare(intake, name)))  # type: ignore[misc]
            hold = None if intake is None else intake.commit()
        for each in prepared:
            if isinstance(each, _Prepared):
                self.guarded(each.name, lambda each=each: self._finish(each, hold))  # type: ignore[misc]

    def _prepare(self, intake: Intake | None, name: str) -> _Prepared | bool:
        """Bring everything that an entry needs; a bool where nothing is left to do: see `entry`."""
        data, stat = self._source.backend.read(name, codec.MAX_OBJECT)
        found = codec.decode(data)
        parts, result_class = key_of(name)
        if not codec.belongs(found, parts, result_class):
            raise CorruptError(f"{name} is the entry of another key, stage or class")
        if isinstance(found, Tombstone):
            return self._tombstone(name, data)
        standing = self._standing(name, parts, result_class, found)
        if standing is not None:
            return standing
        facts = facts_of(data, stat.time_ns, self._manifest)
        checked = check_recordable(found.envelope, max_inline_kb=None, where=name)
        inputs = {d: size for d, size in codec.kept_inputs(found.header).items() if d not in checked.references}
        sizes = {ref.digest.hex(): ref.size for ref in facts.refs if ref.digest.hex() not in inputs}
        if intake is not None:
            for manifest in checked.manifests.values():
                made = intake.add_bytes(manifest)
                sizes.pop(made.digest, None)
                self._count_manifest(made)
        if intake is not None or not self._whole:
            self._ensure(intake, sizes)
            with contextlib.suppress(NotFoundError, CorruptError, InvalidInputError):  # the entry goes without, then
                self._ensure(intake, inputs)
        return _Prepared(name, stat.size, found, checked)

    def _finish(self, prepared: _Prepared, hold: Hold | None) -> bool:
        """Record an entry whose needs are held; whether the target now has just this."""
        found = prepared.found
        if hold is not None:
            parts, result_class = key_of(prepared.name)
            made = self._target.results.adopt(parts, result_class, found.header, prepared.checked, hold)
            if made.envelope != found.envelope:
                self._differs(prepared.name)
                return False
        self._progress(prepared.size)
        self.report.add("entries copied")
        return True

    def _count_manifest(self, made: Blob) -> None:
        if made.new:
            self.report.add("blobs copied")
            self.report.add("bytes copied", made.size)
        elif not self._whole:
            self.report.add("blobs there")

    def _manifest(self, digest: str) -> tuple[FileRef, ...]:
        try:
            return read_manifest(self._source.blobs, digest)
        except (NotFoundError, CorruptError):
            return read_manifest(self._target.blobs, digest)

    def _standing(self, name: str, parts: JobKey, result_class: str, found: Entry) -> bool | None:
        """What stands at the target, where it stays: the same (True), or something else (False). None: to be copied."""
        answer = self._target.lookups.lookup(str(parts), result_class)
        if answer.hit:
            if answer.envelope == found.envelope:
                self.report.add("entries there")
                return True
            self._differs(name)
            return False
        if answer.reason in ("absent", "corrupt", "incomplete") or self._options.replace_ended:
            return None
        self.report.problem("ended", name, f"was ended at {self._target.backend.where} ({answer.detail}): stays so")
        return False

    def _differs(self, name: str) -> None:
        why = f"{self._target.backend.where} has another result for it, which stays"
        self.report.problem("differs", name, why)

    def _tombstone(self, name: str, data: bytes) -> bool:
        if not self._options.tombstones:
            self.report.add("tombstones left out")
            return False
        backend = self._target.backend
        made = backend.stat(name) is None if self._options.dry_run else backend.create(name, data)
        if made:
            self.report.add("tombstones copied")
            return True
        try:
            standing = codec.decode(backend.read(name, codec.MAX_OBJECT)[0])
        except CasError as error:
            if isinstance(error, UnavailableError):
                raise
            standing = None
        if isinstance(standing, Tombstone):
            self.report.add("tombstones there")
            return True
        self.report.problem("differs", name, f"was ended here, and stands at {backend.where}, where it stays")
        return False

    # -- pins

    def _pin(self, object_name: str) -> None:
        name = object_name.removeprefix(layout.PINS)
        pin = self._source.pins.get(name)
        if pin.is_expired(time.time_ns()):
            self.report.add("pins expired")  # it keeps nothing
            return
        if self._target.backend.stat(object_name) is not None:
            standing = self._target.pins.get(name)
            if (standing.target, standing.result_class) == (pin.target, pin.result_class):
                self.report.add("pins there")
            else:
                self.report.problem("differs", object_name, f"pins {standing.target} at the target, which stays")
            return
        if pin.job_key is not None and self._differs_there(pin.job_key, pin.result_class or "any"):
            where = self._target.backend.where
            self.report.problem("differs", object_name, f"{where} has another result for its key: it is not pinned")
            return
        if not self._options.dry_run:
            self._target.pins.pin(
                name,
                f"blob:{pin.digest}" if pin.digest is not None else pin.target,
                result_class=pin.result_class or "any",
                note=pin.note,
                by=pin.by,
                expires_at=pin.expires_at,
            )
        self.report.add("pins copied")

    def _differs_there(self, key: str, result_class: str) -> bool:
        """Whether the target answers a key with something else than the source: its pin never meant that."""
        there = self._target.lookups.lookup(key, result_class)
        return there.hit and there.envelope != self._source.lookups.lookup(key, result_class).envelope


@dataclass(frozen=True, slots=True)
class _Prepared:
    """An entry of the source whose needs the target has."""

    name: str
    size: int
    found: Entry
    checked: Recordable
