"""One verification: the walks over a store, in an order that lets a killed run be gone on with."""

from __future__ import annotations

import json
import os
import re
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from typing import TYPE_CHECKING

from oarbank_cas import entry as codec
from oarbank_cas import instants, layout, pins, stopping
from oarbank_cas.errors import CasError, CorruptError, NotFoundError, PermissionDeniedError, UnavailableError
from oarbank_cas.gc.names import is_entry_name
from oarbank_cas.verify import checks
from oarbank_cas.verify.batches import Batch, Batches
from oarbank_cas.verify.checks import in_force
from oarbank_cas.verify.notebook import Notebook
from oarbank_cas.verify.repair import Repair
from oarbank_cas.verify.report import Kind, Options, Problem, Report

if TYPE_CHECKING:
    from collections.abc import Iterator

    from oarbank_cas.backends.base import ObjectStat
    from oarbank_cas.rooms import Rooms

Progress = Callable[[int], None]
"""Called with the bytes of each object that is done."""

_CHECKPOINT_S = 1.0
_PHASES = ("entries", "pins", "blobs", "fossils", "rest", "repair")
_KNOWN_NAMES = frozenset({layout.DESCRIPTOR, "capabilities.json", layout.POLICY})
_KNOWN_FOLDERS = (
    layout.BLOBS,
    layout.DAMAGED,
    layout.EXPLAIN,
    layout.FOSSILS,
    layout.GC,
    layout.PINS,
    layout.RESULTS,
    layout.TMP,
)
_LAST = "\U0010ffff"
"""Sorts behind what any name goes on with."""

_IRREGULAR = re.compile(r"blobs/([0-9a-f]{2})/(\1[0-9a-f]{62})")


def verify(
    rooms: Rooms, options: Options | None = None, source: Rooms | None = None, progress: Progress | None = None
) -> Report:
    """Check a whole store, and repair it where asked.

    Args:
        rooms: the store.
        options: what to do.
        source: another store, to heal from.
        progress: for people who wait; called from one thread.

    Returns:
        What was found.

    Raises:
        UnavailableError: the store is out of reach.
        InvalidInputError: an option makes no sense, or the resume file is of another run.
    """
    asked = options or Options()
    began = time.monotonic()
    now = time.time_ns() if asked.look_only else store_time(rooms)
    identity = {
        "store": rooms.descriptor.id,
        "epoch": rooms.descriptor.epoch,
        "options": [
            asked.look_only,
            asked.repair,
            asked.sample,
            asked.seed,
            asked.since_ns,
            asked.list_orphans,
        ],
    }
    notebook = Notebook(asked.resume, identity)
    try:
        seed = notebook.get("seed") or asked.seed or instants.to_text(now)[:10]
        started = notebook.get("started") or instants.to_text(now)
        notebook.set("seed", seed)
        notebook.set("started", started)
        run = _Run(rooms, replace(asked, seed=seed), notebook, source, now, progress or (lambda _size: None))
        run.run()
        if run.counts["roots_unread"]:
            # An entry that nobody could read may refer to any of them.
            run.counts["orphans"] = run.counts["orphan_bytes"] = 0
            notebook.forget("orphan")
        report = Report(
            rooms.backend.where,
            started,
            replace(asked, seed=seed),
            run.counts,
            notebook.kinds(),
            notebook.healed_count(),
            notebook.problems(),
            notebook.resumed,
            time.monotonic() - began,
        )
    except BaseException:
        notebook.close()
        raise
    notebook.finish()
    return report


def store_time(rooms: Rooms) -> int:
    """The store's time; this machine's where the store may not be written to, which telling the time may need."""
    try:
        return rooms.backend.now()
    except PermissionDeniedError:
        return time.time_ns()


class _Run:
    """The state of one verification."""

    def __init__(
        self,
        rooms: Rooms,
        options: Options,
        notebook: Notebook,
        source: Rooms | None,
        now_ns: int,
        progress: Progress,
    ) -> None:
        self._rooms = rooms
        self._backend = rooms.backend
        self._blobs = rooms.blobs
        self._options = options
        self._notebook = notebook
        self._batches = Batches(rooms, options, notebook)
        self._source = source
        self._now_ns = now_ns
        self._progress = progress
        self._settled_at = time.monotonic()
        self._after = ""
        self.counts = notebook.counts()

    def run(self) -> None:
        """Everything that is not done yet."""
        walks: dict[str, Callable[[str], None]] = {
            "entries": self._walk_entries,
            "pins": self._walk_pins,
            "blobs": lambda after: self._read_all("blobs", self._batches.blobs(after)),
            "fossils": lambda after: self._read_all("fossils", self._batches.fossils(after)),
            "rest": lambda _after: self._look_at_the_rest(),
            "repair": lambda _after: self._repair(),
        }
        self._set_aside()
        begin = self._notebook.get("phase") or _PHASES[0]
        for phase in _PHASES[_PHASES.index(begin) :]:
            after = json.loads(self._notebook.get("after") or '""') if phase == begin else ""
            self._settle(phase, after, now=True)
            try:
                walks[phase](after)
            except UnavailableError:
                raise
            except CasError as error:
                # A folder that cannot be listed. What was walked by then counts; the rest is not known to be sound.
                if phase in ("entries", "pins"):
                    self.counts["roots_unread"] += 1
                where = f"{self._backend.where} ({phase})"
                self._notebook.add_problem(Problem("unreadable", where, f"{error}; then run verify again"))

    def _settle(self, phase: str, after: str, *, now: bool = False) -> None:
        """Everything up to `after` is done."""
        self._after = after
        if not now and time.monotonic() - self._settled_at < _CHECKPOINT_S:
            return
        self._settled_at = time.monotonic()
        self._notebook.set("phase", phase)
        self._notebook.set("after", json.dumps(after))
        self._notebook.keep_counts(self.counts)
        self._notebook.checkpoint()

    # -- roots

    def _walk_entries(self, after: str) -> None:
        for stat in self._backend.listing(layout.RESULTS, after):
            self._entry(stat)
            self._progress(stat.size)
            self._settle("entries", stat.name)

    def _entry(self, stat: ObjectStat) -> None:
        if not is_entry_name(stat.name):
            self._notebook.add_problem(Problem("foreign", stat.name, "is no entry; it is left alone"))
            return
        try:
            data, read = self._backend.read(stat.name, codec.MAX_OBJECT)
        except NotFoundError:
            return  # a tombstone whose retention ended
        except UnavailableError:
            raise
        except CasError as error:
            self.counts["roots_unread"] += 1
            kind: Kind = "damaged" if isinstance(error, CorruptError) else "unreadable"
            self._notebook.add_problem(Problem(kind, stat.name, str(error)))
            return
        facts, problem = checks.check_entry(self._blobs, read, data)
        if facts is not None:
            self.counts["tombstones" if facts.ended else "entries"] += 1
            self._notebook.add_root(stat.name, facts.refs, live=not facts.ended)
        else:
            self.counts["entries"] += 1
        if facts is None or (problem is not None and problem.kind == "missing"):
            self.counts["roots_unread"] += 1  # what it refers to is not known, or not all of it
        if problem is not None and self._still_stands(read):
            self._notebook.add_problem(problem)

    def _still_stands(self, stat: ObjectStat) -> bool:
        standing = self._backend.stat(stat.name)
        return standing is not None and standing.validator == stat.validator

    def _walk_pins(self, after: str) -> None:
        for stat in self._backend.listing(layout.PINS, after):
            self._pin(stat)
            self._settle("pins", stat.name)
        self._notebook.index()

    def _pin(self, stat: ObjectStat) -> None:
        if not pins.is_pin_name(stat.name.removeprefix(layout.PINS)):
            self._notebook.add_problem(Problem("foreign", stat.name, "is no pin; it is left alone"))
            return
        try:
            pin = checks.read_pin(self._backend, stat.name)
        except NotFoundError:
            return  # unpinned meanwhile
        except CorruptError as error:
            self.counts["pins"] += 1
            self.counts["roots_unread"] += 1
            self._notebook.add_problem(Problem("damaged", stat.name, str(error)))
            return
        if pin.expires_ns is not None and pin.expires_ns < self._now_ns:
            self.counts["expired_pins"] += 1
            return
        self.counts["pins"] += 1
        refs, problem = checks.pin_refs(self._backend, self._blobs, stat.name, pin)
        self._notebook.add_root(stat.name, refs, live=True)
        if problem is not None and pin.dataset is not None:
            self.counts["roots_unread"] += 1
        if problem is not None and self._still_stands(stat):
            self._notebook.add_problem(problem)

    # -- blobs and fossils

    def _read_all(self, phase: str, batches: Iterator[Batch]) -> None:
        """Read what the batches name, on all cores, and note what came of it in their order."""
        workers = self._options.workers or os.cpu_count() or 1
        waiting: deque[tuple[Batch, Future[list[checks.Bytes]]]] = deque()
        with stopping.Threads(workers, "verify") as pool:
            try:
                for batch in batches:
                    waiting.append((batch, pool.submit(self._read, batch.items)))
                    while len(waiting) > 2 * workers:
                        self._done(phase, *waiting.popleft())
                while waiting:
                    self._done(phase, *waiting.popleft())
            finally:
                for _, future in waiting:
                    future.cancel()

    def _read(self, items: list[tuple[str, str, int]]) -> list[checks.Bytes]:
        return [checks.check_bytes(self._backend, name, digest) for name, digest, _ in items]

    def _done(self, phase: str, batch: Batch, future: Future[list[checks.Bytes]]) -> None:
        moving = False
        answers = stopping.result(future)
        for (name, digest, agreed), found in zip(batch.items, answers, strict=True):
            if not found.there:
                self._moved(digest)
                continue
            self.counts[f"{phase}_read"] += 1
            self.counts["bytes_read"] += found.read
            self._progress(found.read)
            if found.problem is not None:
                to_be_moved = found.problem.kind == "damaged" and not self._options.look_only
                self._notebook.add_problem(found.problem, to_be_moved=to_be_moved)
                moving = moving or to_be_moved
            elif phase == "blobs" and found.read != agreed:
                self._check_size(name, digest, found.read)
        self.counts += batch.counts
        for problem in batch.problems:
            self._notebook.add_problem(problem)
        if moving:
            # Durable first: whoever is killed after the move must still know what was found.
            self._settle(phase, batch.last or self._after, now=True)
            self._set_aside()
        elif batch.last:
            self._settle(phase, batch.last)

    def _set_aside(self) -> None:
        """Move what was found to be damaged, in this run or in the one that it goes on with."""
        for problem in self._notebook.to_be_moved():
            self._notebook.moved(problem, checks.set_aside(self._backend, self._blobs, problem))

    def _moved(self, digest: str) -> None:
        """A blob went between the listing and the reading: to the fossils, or it is lost."""
        needed = in_force(self._backend, *self._notebook.roots_of(digest))
        if needed and self._blobs.size_for_readers(digest) is None:
            why = "went while it was verified, and is referred to: repair it from another"
            self._notebook.add_problem(Problem("missing", layout.blob(digest), why, digest))

    def _check_size(self, name: str, digest: str, size: int) -> None:
        roots, count = self._notebook.roots_of(digest, not_of_size=size)
        if count:
            why = f"has {size} bytes and is sound; {count} entries or pins say another size, such as {roots[0]}"
            self._notebook.add_problem(Problem("mismatch", name, f"{why}: record those again", digest))

    # -- the rest

    def _look_at_the_rest(self) -> None:
        self._count("set_aside_before", layout.DAMAGED)
        self._count("temporaries", layout.TMP)
        for name in self._foreign():
            self._notebook.add_problem(Problem("foreign", name, "is none of a store's; it is left alone"))
        for name, what in self._backend.strays("", folders=True):
            match = _IRREGULAR.fullmatch(name)
            if match is not None:
                why = f"is {what} where a blob should be: remove it by hand"
                self._notebook.add_problem(Problem("irregular", name, why, match[2]))
            elif is_entry_name(name) or pins.is_pin_object(name):
                self.counts["roots_unread"] += 1
                why = f"is {what} where an entry or pin should be: put the file there; gc deletes nothing until then"
                self._notebook.add_problem(Problem("irregular", name, why))
            elif what != "a folder":
                self._notebook.add_problem(Problem("foreign", name, f"is {what}; it is left alone"))

    def _count(self, what: str, prefix: str) -> None:
        self.counts[what] = self.counts[f"{what}_bytes"] = 0
        for stat in self._backend.listing(prefix):
            if not stat.name.startswith(f"{layout.TMP}locks/") and not stat.name.endswith("/lock"):
                self.counts[what] += 1
                self.counts[f"{what}_bytes"] += stat.size

    def _foreign(self) -> Iterator[str]:
        """What lies beside the folders of a store, without walking through these."""
        after: str | None = ""
        while after is not None:
            begin, after = after, None
            for stat in self._backend.listing("", begin):
                folder = next((folder for folder in _KNOWN_FOLDERS if stat.name.startswith(folder)), None)
                if folder is not None:
                    after = folder + _LAST
                    break
                if stat.name not in _KNOWN_NAMES:
                    yield stat.name

    def _repair(self) -> None:
        if self._options.repair:
            repair = Repair(self._rooms, self._source, self._progress, self._options.workers)
            # What one thing is healed from may itself be healed later in the same round.
            before = -1
            while before != (before := self._notebook.healed_count()):
                self._heal_all(repair)
            self._backend.sweep()

    def _heal_all(self, repair: Repair) -> None:
        for group in self._notebook.unhealed(Repair.KINDS):
            for problem, how in repair.heal(group):
                if how is not None:
                    self._notebook.healed(problem, how)
            self._settle("repair", "", now=True)
