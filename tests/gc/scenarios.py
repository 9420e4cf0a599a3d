"""What the parties do: the situations in which a careless collector loses something."""

from __future__ import annotations

import functools
import hashlib
import json

from oarbank_cas import descriptor as descriptors
from oarbank_cas import entry as codec
from oarbank_cas import layout
from oarbank_cas.blobs import Blobs
from oarbank_cas.contracts.canonical import digest_of
from oarbank_cas.contracts.keys import parse_key
from oarbank_cas.contracts.manifest import FileRef, dataset_id, manifest_bytes
from oarbank_cas.contracts.recordable import check_recordable
from oarbank_cas.errors import CasError, NotFoundError
from oarbank_cas.gc.collect import Options, collect
from oarbank_cas.gc.retention import Policy
from oarbank_cas.intake import Intake
from oarbank_cas.lookups import Lookups
from oarbank_cas.pins import Pins
from oarbank_cas.results import Origin, Results

from .world import DAY, EPOCH, GRACE_S, SESSION_S, SETTLED, SLACK_S, Chooser, S, Violation, World, entry_name, wanted

X, Y = b"content of x", b"content of y"
KEY, OTHER = hashlib.sha256(b"job").hexdigest(), hashlib.sha256(b"other job").hexdigest()
DESCRIPTOR = descriptors.Descriptor("0" * 32, 1, "2027-01-15T08:00:00Z", SESSION_S, GRACE_S, SLACK_S)
OPTIONS = Options(anyway=True, allow_no_roots=True, yes_really=True)
KEEP_NOTHING = Policy(keep_days=0, tombstone_days=0)


@functools.cache
def envelope(contents, token):
    files = [{"path": f"f{i}", "digest": digest_of(c), "size": len(c)} for i, c in enumerate(contents)]
    document = {
        "schema": "demo/result@1",
        "envelope": 1,
        "protocol": 1,
        "module_version": "1.0.0",
        "payload": {"token": token},
        "artifacts": [{"name": "out", "files": files}],
    }
    return json.dumps(document).encode()


def manifest_of(contents):
    return manifest_bytes([FileRef(f"f{i}", digest_of(c), len(c)) for i, c in enumerate(contents)])


class Rooms:
    """What a party works with."""

    def __init__(self, party):
        self.party = party
        self.world = party.world
        self.backend = party.backend
        self.blobs = Blobs(party.backend, SESSION_S)
        self.lookups = Lookups(party.backend, self.blobs, SESSION_S)
        self.results = Results(party.backend, self.blobs, self.lookups, SESSION_S)
        self.pins = Pins(party.backend, self.blobs, self.lookups, self.results, SESSION_S)


# -- writers


def publish(key, contents, token, naps=(0,)):
    """An agent that uploads and records under one hold, some time later."""

    def party(party):
        rooms = Rooms(party)
        checked = check_recordable(envelope(contents, f"{key} {token}"), max_inline_kb=None)
        with Intake(rooms.backend, rooms.blobs) as intake:
            for content in contents:
                intake.add_bytes(content)
            rooms.results.require(intake, checked)
            hold = intake.commit()
        nap = party.world.chooser.pick(naps)
        if nap:
            party.sleep(nap)
        recorded = rooms.results.create(parse_key(key), "any", checked, Origin(by="agent"), hold)
        if recorded.recorded:
            party.world.promise(recorded)

    return party


def upload(contents):
    """An agent that uploads, manifests too, and leaves the recording to another."""

    def party(party):
        rooms = Rooms(party)
        with Intake(rooms.backend, rooms.blobs) as intake:
            for content in (*contents, manifest_of(contents)):
                intake.add_bytes(content)
            intake.commit()

    return party


def record(key, contents, token, naps=(0,)):
    """A coordinator that records what is in the store, some time after it heard of it."""

    def party(party):
        rooms = Rooms(party)
        nap = party.world.chooser.pick(naps)
        if nap:
            party.sleep(nap)
        recorded = rooms.results.record(key, envelope(contents, f"{key} {token}"), Origin(by="coordinator"))
        if recorded.recorded:
            party.world.promise(recorded)

    return party


def agent_and_coordinator(key, contents, token, naps):
    """One party for both, so that recording follows uploading: the agent's hold is not the coordinator's."""

    def party(party):
        upload(contents)(party)
        record(key, contents, token, naps)(party)

    return party


def invalidate(key, *then):
    def party(party):
        rooms = Rooms(party)
        rooms.results.invalidate(key, by="operator", reason="wrong")
        for each in then:
            each(party)

    return party


def undo(key):
    def party(party):
        rooms = Rooms(party)
        party.world.undone.add(key)
        if rooms.results.undo(key, by="operator"):
            found = party.world.memory._objects[entry_name(key, "any")][1]
            answer = rooms.lookups.judge(parse_key(key), "any", found, complete=False)
            if answer.hit:
                party.world.promised.add((entry_name(key, "any"), found))

    return party


def pin(name, target, needs):
    def party(party):
        rooms = Rooms(party)
        rooms.pins.pin(name, target, by="operator")
        party.world.pins[name] = frozenset(needs)
        party.world.check_all()

    return party


# -- readers


def read(key, times=2):
    """Look a result up, then read all of it: what is answered is right, and is there."""

    def party(party):
        rooms = Rooms(party)
        for _ in range(times):
            began = party.world.now
            answer = rooms.lookups.lookup(key)
            stands = party.world.memory._objects.get(entry_name(key, "any"))
            if answer.hit:
                _check_answer(party.world, key, answer, began)
                if stands is not None and stands[1].endswith(answer.envelope) and vouched(party.world, key, stands):
                    _read_all(rooms, key, stands)
            elif stands is not None:
                _check_miss(party.world, key, answer, stands, began)

    return party


def _check_miss(world, key, answer, stands, began):
    promised = (entry_name(key, "any"), stands[1]) in world.promised and stands[1] not in world.ended
    if promised and answer.reason in ("incomplete", "corrupt") and stands[0].time_ns + S < began:
        raise Violation(f"a live entry was answered as {answer.reason}")


def _check_answer(world, key, answer, began):
    token = json.loads(answer.envelope)["payload"]["token"]
    if not token.startswith(key):
        raise Violation(f"a lookup of {key[:8]} was answered with {token[:8]}'s envelope")
    for data, ended in world.ended.items():
        if ended < began and data.endswith(answer.envelope) and key not in world.undone:
            raise Violation("an ended entry was answered")


def _read_all(rooms, key, stands):
    world = rooms.world
    needs = wanted(stands[1])
    until = world.now + SESSION_S * S
    world.readers.append((until, needs))
    for digest in sorted(needs):
        try:
            rooms.blobs.get_bytes(digest)
        except NotFoundError as error:
            still = world.memory._objects.get(entry_name(key, "any"))
            if (still is not None and still[1] == stands[1]) or world.now <= until:
                raise Violation(f"a reader lost {digest[:8]}") from error


def vouched(world, key, stands):
    """Whether what stands is an entry that may be relied on."""
    found = codec.decode(stands[1])
    return isinstance(found, codec.Entry) and world.vouched(entry_name(key, "any"), *stands, found.header)


# -- gc


def gc(runs=2, policy=None, between=(SETTLED + 2 * S,), options=OPTIONS):
    """A gc that runs again and again, whatever became of the run before."""

    def party(party):
        for number in range(runs):
            if number:
                party.sleep(party.world.chooser.pick(between))
            try:
                report = collect(party.backend, DESCRIPTOR, policy, options, around=party.around())
                party.world.note(party, "gc", f"{report.exit_code} {report.doubts[:1]} {report.failed}")
                world = party.world
                expected = world.doubts_expected or world.remote_faults or world.late_root
                if report.doubts and not (expected or "answered late" in report.doubts[0].why):
                    raise Violation(f"gc doubts without a reason: {report.doubts[0]}")
            except CasError as error:
                party.world.note(party, "gc", f"fails: {error}")

    return party


# -- what stands before


def _direct(world):
    """A party's rooms without switch points, for what comes before and after."""

    class Direct:
        pass

    party = Direct()
    party.world, party.backend, party.name, party.wall_offset = world, world.memory, "prelude", 0
    return party


def direct_gc(world, policy=None):
    from .world import Around

    party = _direct(world)
    return collect(world.memory, DESCRIPTOR, policy, OPTIONS, around=Around(party))


def _put(world, *contents):
    with Intake(world.memory, Blobs(world.memory, SESSION_S)) as intake:
        for content in contents:
            intake.add_bytes(content)
        intake.commit()


def _record(world, key, contents, token):
    party = _direct(world)
    publish(key, contents, token)(party)


PAST = EPOCH - 10 * DAY


def _empty(world):
    pass


def _orphan(world):
    """x and y lie there, old, and nothing refers to them."""
    _put(world, X, Y, manifest_of((X,)))


def _fossil(world):
    """x was condemned just now."""
    _orphan(world)
    world.now = EPOCH - 10 * S
    direct_gc(world)


def _old_fossil(world):
    """x was condemned long ago, a completed run has seen it, and any run may purge it."""
    _orphan(world)
    world.now = EPOCH - 2 * SETTLED - 100 * S
    direct_gc(world)


def _half_renamed(world):
    """A gc died while it condemned x."""
    _orphan(world)
    objects = world.memory._objects
    name = layout.blob(digest_of(X))
    stat, data = objects.pop(name)
    moved = layout.fossil(digest_of(X), "f" * 16) + "~"
    from dataclasses import replace

    objects[moved] = (replace(stat, name=moved), data)


def _entry(world):
    """KEY is recorded and refers to x; a gc has cached it."""
    _record(world, KEY, (X,), "first")
    world.now = EPOCH - 3 * SETTLED
    direct_gc(world)


def _entry_on_old_fossil(world):
    """KEY was recorded by one who found x just before a gc condemned it, long ago: only a fossil is left."""
    _orphan(world)
    world.now = EPOCH - 3 * SETTLED
    direct_gc(world)
    objects = world.memory._objects
    fossil = next(name for name in objects if digest_of(X) in name and name.startswith(layout.FOSSILS))
    del fossil
    checked = check_recordable(envelope((X,), f"{KEY} first"), max_inline_kb=None)
    rooms = Rooms(_direct(world))
    rooms.results._confirm = lambda *_: None
    from oarbank_cas.intake import Hold

    rooms.results.create(parse_key(KEY), "any", checked, Origin(by="agent"), Hold(world.now - 5 * S, {}))


PRELUDES = {
    "empty": _empty,
    "orphan": _orphan,
    "fossil": _fossil,
    "old fossil": _old_fossil,
    "half renamed": _half_renamed,
    "entry": _entry,
    "entry on old fossil": _entry_on_old_fossil,
}


@functools.cache
def before(prelude, atomic_move):
    """The objects of a prelude."""
    world = World(Chooser(), atomic_move=atomic_move, now=PAST)
    import oarbank_cas.presence

    from . import world as module

    previous, module.CURRENT = module.CURRENT, world
    real, oarbank_cas.presence.time = oarbank_cas.presence.time, module.FakeTime()
    try:
        incoming = world.memory.incoming()
        incoming.write(DESCRIPTOR.encode())
        world.memory.commit([(layout.DESCRIPTOR, incoming)])
        PRELUDES[prelude](world)
    finally:
        module.CURRENT = previous
        oarbank_cas.presence.time = real
    return dict(world.memory._objects), world._nonces


X_DATASET = dataset_id(digest_of(manifest_of((X,))))
X_NEEDS = (digest_of(X), digest_of(manifest_of((X,))))
HOURS = (0, S, SESSION_S * S // 2, SESSION_S * S + S, 2 * SETTLED, DAY)
ANY_BETWEEN = (S, 30 * S, SETTLED + 2 * S, SETTLED + 70 * S, DAY)
ORPHANS = ("orphan", "fossil", "old fossil", "half renamed")


def dedup(world):
    """A writer that dedups against a blob that is being condemned."""
    world.add("writer", publish(KEY, (X,), "a"))
    world.add("gc", gc(2, between=ANY_BETWEEN))


def reupload(world):
    """Re-uploads between gc's copy and its delete, and two gc at it."""
    world.add("writer", publish(KEY, (X,), "a"))
    world.add("gc1", gc(2, between=ANY_BETWEEN))
    world.add("gc2", gc(2, between=ANY_BETWEEN))


def three_gcs(world):
    """Three overlapping runs, and a writer somewhere between."""
    world.add("writer", publish(KEY, (X, Y), "a"), after=world.chooser.pick(HOURS))
    for number in range(3):
        world.add(f"gc{number}", gc(2, between=ANY_BETWEEN))


def stalled_gc(world):
    """A gc that sleeps for a day somewhere, beside one that runs on time."""
    world.add("stalled", gc(1))
    world.add("writer", agent_and_coordinator(KEY, (X,), "a", (0,)))
    world.add("gc", gc(3))


def reading(world):
    """A reader while x is condemned, revived and condemned again."""
    world.add("reader", read(KEY, 3))
    world.add("gc1", gc(2, between=ANY_BETWEEN))
    world.add("gc2", gc(1))


def record_expiry(world):
    """A record, and a reader, against expiry."""
    world.add("gc", gc(3, KEEP_NOTHING, between=ANY_BETWEEN))
    world.add("writer", publish(KEY, (X,), "b"))
    world.add("reader", read(KEY, 2))


def pinning(world):
    """Pins of a blob, a dataset and a job key against mark and expiry."""
    kind = world.chooser.pick(("digest", "dataset", "key"))
    if kind == "digest":
        world.add("pinner", pin("keep", "blob:" + digest_of(X), X_NEEDS[:1]))
    elif kind == "dataset":
        world.add("pinner", pin("keep", X_DATASET, X_NEEDS))
    else:
        world.add("pinner", pin("keep", KEY, X_NEEDS))
    world.add("gc", gc(3, KEEP_NOTHING, between=ANY_BETWEEN))


def rerecord(world):
    """Invalidate, and record something else at once, against an expire that stalls and caches that are stale."""
    world.add("gc", gc(3, KEEP_NOTHING if world.chooser.pick((0, 1)) else None, between=ANY_BETWEEN))
    world.add("operator", invalidate(KEY, publish(KEY, (Y,), "second")))
    world.add("reader", read(KEY, 1))


def undoing(world):
    """Invalidate, and take it back some time later."""

    def operator(party):
        invalidate(KEY)(party)
        party.sleep(world.chooser.pick(HOURS))
        undo(KEY)(party)

    world.add("operator", operator)
    world.add("gc", gc(3, Policy(tombstone_days=0), between=ANY_BETWEEN))
    world.add("reader", read(KEY, 1))


def agent_coordinator(world):
    """An agent that holds, and a coordinator that records hours later."""
    world.add("agent", agent_and_coordinator(KEY, (X, Y), "a", HOURS))
    world.add("gc1", gc(3, between=ANY_BETWEEN))


def two_writers(world):
    """Two that record the same key with different files, and one that records what one of them did."""
    world.add("writer1", publish(KEY, (X,), "a"))
    world.add("writer2", publish(KEY, (X, Y), "b"))
    world.add("gc", gc(2, between=ANY_BETWEEN))
    world.add("reader", read(KEY, 1))


def blind_gc(world):
    """A gc that cannot read entries, beside a reader and one that can."""
    world.doubts_expected = True
    world.add("blind", gc(3)).blind = True
    world.add("reader", read(KEY, 2))
    world.add("gc", gc(2, between=ANY_BETWEEN))


def bad_gateway(world):
    """The gateway that serves one gc has a clock that is a day ahead; gc's own clocks are right, as rule 12 assumes."""
    world.doubts_expected = True
    ahead = world.add("ahead", gc(2, between=(S, SETTLED + 2 * S)))
    ahead.skew = DAY
    world.add("writer", agent_and_coordinator(KEY, (X,), "a", (0, S)))
    _clocks((ahead, world.add("gc", gc(2, between=ANY_BETWEEN))), (0, 0))


def _clocks(gcs, offsets):
    """Give gc's machines their clocks: rule 12 then rests on the store's clock alone."""
    for party, offset in zip(gcs, offsets, strict=True):
        party.wall_offset = offset


SLOW = (0, 30 * S, SESSION_S * S - 20 * S, SESSION_S * S - 2 * S)


def wrong_clocks(world):
    """The machines of two gc disagree by a day, and a writer takes its time."""
    first = world.add("gc1", gc(1), after=world.chooser.pick((0, S)))
    second = world.add("gc2", gc(2, between=(S, 30 * S)), after=world.chooser.pick((5 * S, 60 * S, SESSION_S * S)))
    _clocks((first, second), (-DAY, 0))
    world.add("writer", publish(KEY, (X,), "a", SLOW))


def tight(world):
    """Clocks of gateways differ as far as the slack allows, and a writer uses all of its session."""
    writer = world.add("writer", publish(KEY, (X,), "a", (SESSION_S * S - S,)))
    first = world.add("gc1", gc(1), after=S)
    second = world.add("gc2", gc(1), after=SESSION_S * S + world.chooser.pick((-4, -3, -2, -1, 0, 1)) * S)
    writer.skew, first.skew, second.skew = 0, -2 * S, 2 * S
    _clocks((first, second), (-DAY, 0))


def late_delete(world):
    """A delete that comes near the end of its life, and a writer that saw the blob just before."""
    first = world.add("gc1", gc(1))
    first.naps.append(("delete", "blobs/", 55 * S))
    second = world.add("gc2", gc(1), after=SETTLED + world.chooser.pick((2, 10, 20)) * S)
    _clocks((first, second), (-DAY, 0))
    world.add("writer", publish(KEY, (X,), "a", (SESSION_S * S - 2 * S,)), after=50 * S)


def overdue_delete(world):
    """A gc that stalls between its copy and its delete, until everything else has moved on."""
    first = world.add("gc1", gc(1))
    first.naps.append(("delete", "blobs/", 5 * SETTLED))
    world.add("gc2", gc(3, between=(SETTLED + 70 * S,)), after=S)
    world.add("writer", publish(KEY, (X,), "a", (0, 30 * S)), after=world.chooser.pick((4 * SETTLED, 5 * SETTLED - S)))


def revive_before_delete(world):
    """A delete on its way while a writer brings back what another gc condemned."""
    first = world.add("gc1", gc(1))
    first.naps.append(("delete", "blobs/", 40 * S))
    world.add("gc2", gc(1), after=2 * S)
    world.add("writer", record(KEY, (X,), "a"), after=world.chooser.pick((10, 20, 30)) * S)


def stalled_purge(world):
    """A gc that stalls before it purges, while the blob comes back and is condemned again."""
    first = world.add("gc1", gc(1))
    first.naps.append(("delete", "fossils/", 300 * S))
    world.add("gc2", gc(2, between=(60 * S,)), after=5 * S)
    world.add("writer", publish(KEY, (X,), "a", (60 * S, 90 * S)), after=world.chooser.pick((30, 50)) * S)


def stalled_mark(world):
    """A gc that stalls between its mark and its plan."""
    party = world.add("gc1", gc(1), after=60 * S)
    party.naps += [("list", "blobs/", 2 * SETTLED), ("stat", layout.POLICY, 2 * SETTLED)]
    party.wall_offset = DAY
    world.add("writer", publish(KEY, (X,), "a", (70 * S, 90 * S)))
    world.add("gc2", gc(1), after=S)


def ended_under_reader(world):
    """An operator ends an entry that a reader was just answered from, and gc comes along."""
    world.add("reader", read(KEY, 1))
    world.add("operator", invalidate(KEY))
    world.add("gc", gc(2, between=ANY_BETWEEN))


def expired_under_reader(world):
    """Retention ends an entry that a reader was just answered from."""
    world.add("reader", read(KEY, 1))
    world.add("gc", gc(2, KEEP_NOTHING, between=ANY_BETWEEN))


def one_gc(world):
    """One writer that relies on what is there, and one gc."""
    world.add("writer", record(KEY, (X,), "a"))
    world.add("gc", gc(1))


def one_gc_and_a_reader(world):
    """One reader and one gc."""
    world.add("reader", read(KEY, 1))
    world.add("gc", gc(1))


SCENARIOS = {
    "one gc": (one_gc, ORPHANS),
    "one gc and a reader": (one_gc_and_a_reader, ("entry on old fossil", "entry")),
    "wrong clocks": (wrong_clocks, ORPHANS),
    "tight": (tight, ("orphan",)),
    "late delete": (late_delete, ("orphan",)),
    "overdue delete": (overdue_delete, ("orphan",)),
    "revive before delete": (revive_before_delete, ("orphan", "fossil")),
    "stalled purge": (stalled_purge, ("old fossil",)),
    "stalled mark": (stalled_mark, ("orphan", "fossil")),
    "ended under a reader": (ended_under_reader, ("entry", "entry on old fossil")),
    "expired under a reader": (expired_under_reader, ("entry", "entry on old fossil")),
    "dedup": (dedup, ORPHANS),
    "reupload": (reupload, ORPHANS),
    "three gcs": (three_gcs, ORPHANS),
    "stalled gc": (stalled_gc, ORPHANS),
    "reading": (reading, ("entry on old fossil", "entry")),
    "record against expiry": (record_expiry, ("entry", "entry on old fossil")),
    "pinning": (pinning, ("entry", "entry on old fossil")),
    "invalidate and record": (rerecord, ("entry", "entry on old fossil")),
    "undo": (undoing, ("entry", "entry on old fossil")),
    "agent and coordinator": (agent_coordinator, ORPHANS),
    "blind gc": (blind_gc, ("entry", "entry on old fossil")),
    "bad gateway": (bad_gateway, ("orphan", "fossil", "old fossil")),
    "two writers": (two_writers, ("empty", *ORPHANS)),
}
