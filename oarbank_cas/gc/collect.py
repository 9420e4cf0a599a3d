"""One run of gc, from the first look at the store's clock to the record of what was done."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from oarbank_cas import descriptor as descriptors
from oarbank_cas import instants, layout
from oarbank_cas.backends.readonly import ReadOnlyBackend
from oarbank_cas.blobs import Blobs
from oarbank_cas.errors import CasError, CorruptError, NotFoundError, UnavailableError
from oarbank_cas.gc import audit, facts, guards, hits, retention, rules, state
from oarbank_cas.gc.clocks import Moment, Surroundings
from oarbank_cas.gc.ledger import Ledger
from oarbank_cas.gc.mark import Mark
from oarbank_cas.gc.meter import MeteredBackend
from oarbank_cas.gc.plan import Plan
from oarbank_cas.gc.report import Doubt, Report, age_of
from oarbank_cas.gc.retention import Policy
from oarbank_cas.gc.sweep import Sweep
from oarbank_cas.inputs.index import InputsIndex
from oarbank_cas.lookups import Lookups
from oarbank_cas.results import Results

if TYPE_CHECKING:
    from collections.abc import Iterator

    from oarbank_cas.backends.base import Backend
    from oarbank_cas.descriptor import Descriptor
    from oarbank_cas.gc.audit import Record
    from oarbank_cas.gc.mark import Cached

Progress = Callable[[str, int], None]
"""Called with the stage and how many objects more are done."""

_MAX_DOUBTS = 100
_TRIES = 5


@dataclass(frozen=True, slots=True)
class Options:
    """What an operator may say about a run.

    Attributes:
        dry_run: write nothing; say what would happen. Telling the store's time would touch it, so ages are then by
            this machine's clock, and what clocks say of each other is left to a real run.
        anyway: run beside another gc.
        allow_no_roots: delete even where the store has no roots at all.
        yes_really: end even more than half of the live entries, and condemn even more than half of the blobs.
        roots_confirmed: this store, restored or adopted, has all its roots: remembered for this epoch.
        stall_bound_s: where the storage can neither rename nor refuse a late delete: seconds for which no request of
            this run will be held up. None: nothing is condemned there.
    """

    dry_run: bool = False
    anyway: bool = False
    allow_no_roots: bool = False
    yes_really: bool = False
    roots_confirmed: bool = False
    stall_bound_s: int | None = None


def collect(
    backend: Backend,
    descriptor: Descriptor,
    policy: Policy | None = None,
    options: Options | None = None,
    *,
    by: str = "oarbank-cas gc",
    around: Surroundings | None = None,
    progress: Progress | None = None,
) -> Report:
    """Run gc over a store, or say what a run would do.

    Args:
        backend: the store's storage.
        descriptor: what the store says of itself; it is read again.
        policy: retention; what it leaves out is taken from the store's `policy.json`.
        options: what the operator says.
        by: who runs it.
        around: the machine; tests give their own.
        progress: for people who wait.

    Returns:
        What was found and done. Look at its `exit_code`: doubts, refusals and failures are in the report.

    Raises:
        BusyError: another gc is under way.
    """
    asked = options or Options()
    storage = MeteredBackend(ReadOnlyBackend(backend) if asked.dry_run else backend)
    with contextlib.closing(Ledger()) as ledger:
        run = _Run(storage, descriptor, asked, by, around or Surroundings(), ledger)
        return run.run(policy or Policy(), progress or (lambda _stage, _count: None))


class _Run:
    """The state of one run."""

    def __init__(
        self,
        backend: MeteredBackend,
        descriptor: Descriptor,
        options: Options,
        by: str,
        around: Surroundings,
        ledger: Ledger,
    ) -> None:
        self._backend = backend
        self._descriptor = descriptor
        self._options = options
        self._by = by
        self._around = around
        self._ledger = ledger
        self._id = around.nonce()
        self._journal = audit.Journal(backend, self._id, by, around)
        self._spans = rules.Spans(0, 0, 0)
        self._writers: dict[str, state.StateWriter] = {}
        self._base: Record | None = None
        self._hits: list[str] = []

    # -- the whole

    def run(self, policy: Policy, progress: Progress) -> Report:
        began = self._around.seconds()
        report = Report(self._id, self._backend.where, self._options.dry_run, "", policy.to_json())
        try:
            self._guarded(report, policy, progress)
        finally:
            self._journal.withdraw()
            report.requests = dict(sorted(self._backend.requests.items()))
            report.bytes_read = sum(self._backend.bytes_read.values())
            report.entry_bytes_read = self._backend.bytes_read["results"]
            report.seconds = self._around.seconds() - began
        return report

    def _guarded(self, report: Report, policy: Policy, progress: Progress) -> None:
        """Look, plan, and do it. Whatever goes wrong before the doing is a doubt; then, a failure."""
        stage = layout.DESCRIPTOR

        def note(where: str, count: int) -> None:
            self._journal.beat()
            progress(where, count)

        try:
            self._read_descriptor()
            stage = layout.GC_RUNNING
            if not self._options.dry_run:
                self._journal.announce(anyway=self._options.anyway)
            stage = layout.POLICY
            policy = policy.over(Policy.load(self._backend))
            report.policy = policy.to_json()
            stage = "the storage"
            moment, tm_ns = self._moments()
            report.started = instants.to_text(tm_ns)
        except CasError as error:
            if stage == layout.GC_RUNNING:
                raise
            report.doubts.append(_doubt(stage, error))
            return
        try:
            if self._options.dry_run:
                report.notes.append(
                    "a dry run does not touch the store: ages are by this machine's clock, and clocks were not compared"
                )
            self._look(report, policy, tm_ns, moment, note)
        except CasError as error:
            report.doubts.append(_doubt(self._backend.where, error))
        if not self._options.dry_run:
            self._act(report, tm_ns, moment, note)

    def _moments(self) -> tuple[Moment, int]:
        """One moment by gc's clocks and by the store's; again where something held this process up between them.

        The next run compares its clocks with these: two that were not read together would look like a jump.

        Raises:
            UnavailableError: something held it up every time.
        """
        if self._options.dry_run:
            moment = self._around.moment()
            return moment, moment.wall_ns
        for _ in range(_TRIES):
            moment = self._around.moment()
            tm_ns = self._backend.now()
            if self._around.moment().since(moment) < rules.JUMP_SLACK_S * 10**9 // 10:
                return moment, tm_ns
        raise UnavailableError(
            f"the store's clock was answered late, {_TRIES} times: the storage or this machine is too slow just now; "
            "run gc again"
        )

    def _read_descriptor(self) -> None:
        """Rule 15: spans are the larger of what was known and what stands."""
        data, _ = self._backend.read(layout.DESCRIPTOR, descriptors.MAX_BYTES)
        found = descriptors.decode(data, self._backend.where)
        known = self._descriptor
        if found.id != known.id:
            raise CorruptError(f"{self._backend.where} became another store while it was open; open it again")
        second = 10**9
        self._spans = rules.Spans(
            max(found.session_s, known.session_s) * second,
            max(found.slack_s, known.slack_s) * second,
            max(found.grace_s, known.grace_s) * second,
        )
        self._descriptor = found

    # -- looking

    def _look(self, report: Report, policy: Policy, tm_ns: int, moment: Moment, note: Progress) -> None:
        def doubt(what: str, error: CasError) -> None:
            if len(report.doubts) < _MAX_DOUBTS:
                report.doubts.append(_doubt(what, error))

        before = audit.earlier(self._backend, self._descriptor)
        self._base = next((record for record in before if record.completed), None)
        self._check_clocks(before, tm_ns, moment, doubt)
        self._confirm_roots(report)
        self._hits = hits.read_hits(self._backend, self._ledger)
        blobs = Blobs(self._backend, self._spans.session_ns // 10**9)
        mark = Mark(self._backend, blobs, self._ledger, self._spans, tm_ns, doubt)
        mark.read_pins()
        mark.read_entries(self._cached_entries(), self._writer("entries"), note)
        mark.check_strays()
        live, expired = self._retain(report, policy, tm_ns)
        plan = Plan(self._backend, blobs, self._ledger, self._spans, tm_ns, moment, report.plan, doubt)
        can = self._backend.atomic_move or self._backend.expiring_delete or self._options.stall_bound_s is not None
        if not can:
            report.notes.append(
                "nothing is condemned: the storage can neither rename nor refuse a late delete; give a bound on stalls"
            )
        plan.make(self._seen(), self._verified(), self._writer("manifests"), note, can_condemn=can)
        report.missing = plan.missing
        report.unknown = mark.unknown + plan.unknown
        if report.refused is None:
            sight = guards.Sight(plan.standing, mark.roots, self._ledger.count("condemn"), live, expired)
            report.refused = guards.refusal(
                sight, policy, allow_no_roots=self._options.allow_no_roots, yes_really=self._options.yes_really
            )

    def _check_clocks(
        self, before: list[Record], tm_ns: int, moment: Moment, doubt: Callable[[str, CasError], None]
    ) -> None:
        """Rule 12: a clock that jumped must not age anything."""
        if (
            before
            and not self._options.dry_run
            and tm_ns + self._spans.jump_ns < before[0].tm_ns
            # A run that began after this one may be done already.
            and self._backend.now() + self._spans.jump_ns < before[0].tm_ns
        ):
            doubt(
                "the store's clock",
                UnavailableError(
                    "it ran backwards since the last gc: set it right, and run gc again. If it was ahead then, and is "
                    f"right now, remove the records from the future in {layout.GC_RUNS} first"
                ),
            )
            return
        same = next((record for record in before if record.moment.host == moment.host), None)
        if same is None:
            return
        wall = moment.wall_ns - same.moment.wall_ns
        elapsed = wall if self._options.dry_run else tm_ns - same.tm_ns
        booted = moment.booted_since(same.moment)
        if rules.clock_jumped(elapsed, wall, self._spans) or (
            booted is not None and rules.clock_jumped(wall, booted, self._spans)
        ):
            doubt(
                "the clocks",
                UnavailableError(
                    f"since the last gc from here the store's clock says {elapsed // 10**9} s, this machine's "
                    f"{wall // 10**9} s"
                    + ("" if booted is None else f" and its uptime {booted // 10**9} s")
                    + ": one was set; look at them, then run gc again"
                ),
            )

    def _confirm_roots(self, report: Report) -> None:
        name = f"{layout.GC_EPOCHS}{self._descriptor.epoch}"
        confirmed = self._options.roots_confirmed or self._backend.stat(name) is not None
        if not rules.roots_are_known(self._descriptor.epoch, confirmed=confirmed):
            report.refused = (
                "this store was restored or adopted: say --roots-confirmed once all entries and pins that need its "
                "blobs are in it"
            )
        elif self._options.roots_confirmed and not self._options.dry_run and self._descriptor.epoch > 1:
            self._backend.create(name, (json.dumps({"by": self._by}) + "\n").encode())

    # -- what the last completed run left, and what this one leaves

    def _parts(self, kind: str) -> Iterator[bytes]:
        if self._base is not None:
            count = self._base.parts.get(kind, 0)
            yield from state.read_parts(self._backend, self._descriptor, self._base.run, kind, count)

    def _cached_entries(self) -> Iterator[Cached]:
        for body in self._parts("entries"):
            yield from facts.decode(body)

    def _verified(self) -> Iterator[tuple[str, str]]:
        for body in self._parts("manifests"):
            for line in body.decode().splitlines():
                digest, _, validator = line.partition(" ")
                yield digest, validator

    def _seen(self) -> Iterator[tuple[str, Moment]]:
        for body in self._parts("fossils"):
            for line in body.splitlines():
                name, moment = json.loads(line)
                first = Moment.from_json(moment)
                if first is not None:
                    yield name, first

    def _writer(self, kind: str) -> state.StateWriter | None:
        if self._options.dry_run:
            return None
        writer = state.StateWriter(self._backend, self._descriptor, self._id, kind)
        self._writers[kind] = writer
        return writer

    def _leave_state(self) -> None:
        writer = self._writer("fossils")
        now = json.dumps(self._around.moment().to_json())
        for name, first in self._ledger.seen():
            if writer is not None:
                writer.add(f'["{name}",{first or now}]\n'.encode())
        for each in self._writers.values():
            each.flush()

    # -- retention

    def _retain(self, report: Report, policy: Policy, tm_ns: int) -> tuple[int, int]:
        """Plan what becomes of entries; how many are live, and how many of them are to be ended."""
        if policy.asks:
            retention.decide(self._ledger, policy, tm_ns)
        live = expired = 0
        for entry in self._ledger.all_entries():
            row = "entries kept"
            live += not entry.ended
            if entry.ended:
                row = "tombstones kept"
                if rules.tombstone_may_go(
                    entry.time_ns, tm_ns, policy.tombstone_ns, pinned=entry.pinned, spans=self._spans
                ):
                    row = "tombstones removed"
                    self._ledger.plan("forget", entry.name, entry.validator, entry.size, entry.time_ns)
            elif entry.expire:
                row = "entries expired"
                expired += 1
                self._ledger.plan("expire", entry.name, entry.validator, entry.size, entry.time_ns)
            report.plan.add(row, age_of(entry.time_ns, tm_ns), entry.size, entry.module)
        return live, expired

    # -- acting

    def _act(self, report: Report, tm_ns: int, moment: Moment, note: Progress) -> None:
        if rules.doubts_stop(len(report.doubts)) or report.refused is not None:
            with contextlib.suppress(CasError):
                self._record(report, tm_ns, moment, completed=False)
            return
        try:
            if self._ledger.has_plan():
                self._record(report, tm_ns, moment, completed=False)
            session_s = self._spans.session_ns // 10**9
            blobs = Blobs(self._backend, session_s)
            results = Results(self._backend, blobs, Lookups(self._backend, blobs, session_s), session_s)
            who = (self._by, self._id)
            sweep = Sweep(self._backend, blobs, results, self._ledger, self._around, *who, tm_ns, report.done, note)
            sweep.run(self._options.stall_bound_s)
            self._count_kept(report)
            if sweep.refused:
                report.notes.append(f"{sweep.refused} deletes came too late and were refused: the next gc tries again")
            self._backend.sweep()
            hits.fold(self._backend, self._ledger, self._hits, self._id, tm_ns)
            self._leave_state()
            self._record(report, tm_ns, moment, completed=True)
            audit.clean(self._backend, self._id, tm_ns, self._base.run if self._base else None)
            self._tidy_index()
        except CasError as error:
            report.failed = _doubt(self._backend.where, error)
            with contextlib.suppress(CasError):
                self._record(report, tm_ns, moment, completed=False)

    def _tidy_index(self) -> None:
        """Have the index of key inputs forget what is recorded no more. Nothing rests on it: best effort."""

        def is_gone(key_hex: str) -> bool:
            prefix = f"{layout.RESULTS}{key_hex[:2]}/{key_hex}/"
            return self._ledger.plans("forget", prefix) and next(self._backend.listing(prefix), None) is None

        if self._ledger.count("forget"):
            with contextlib.suppress(CasError):
                InputsIndex(self._backend).drop(is_gone)

    def _count_kept(self, report: Report) -> None:
        """The rows of the plan that nothing is done for are as they were."""
        for row in report.plan.rows():
            if row["action"].endswith(" kept"):
                report.done.add(row["action"], row["age"], row["bytes"], row["module"], row["count"])

    def _record(self, report: Report, tm_ns: int, moment: Moment, *, completed: bool) -> None:
        document = {
            **report.to_json(),
            "format": layout.FORMAT,
            "store": self._descriptor.id,
            "epoch": self._descriptor.epoch,
            "by": self._by,
            "options": asdict(self._options),
            "tm_ns": tm_ns,
            "moment": moment.to_json(),
            "completed": completed,
            "state": {kind: writer.parts for kind, writer in self._writers.items()} if completed else {},
        }
        self._journal.write(tm_ns, document)


def _doubt(what: str, error: CasError) -> Doubt:
    code = CorruptError.exit_code if isinstance(error, NotFoundError) else error.exit_code
    return Doubt(what, str(error), code)
