"""A world for tests: parties that run the real code, one storage operation at a time, in an order that a chooser picks.

Each party is a greenlet. Every operation of its backend is a switch point: the party hands over to the scheduler, which
decides who goes on, whether time passes, whether a party sleeps or dies, and, where the storage is remote, whether an
answer is lost or a request arrives late. All parties work on one `MemoryBackend`, whose clock is the world's.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import random
import time as real_time
from types import SimpleNamespace

import greenlet

import oarbank_cas.presence
from oarbank_cas import entry as codec
from oarbank_cas import instants, layout
from oarbank_cas.backends.base import Backend
from oarbank_cas.backends.memory import MemoryBackend, _bytes_of
from oarbank_cas.errors import CasError, CorruptError, InvalidInputError, UnavailableError
from oarbank_cas.gc import rules
from oarbank_cas.gc.clocks import Moment, Surroundings
from oarbank_cas.lookups import wanted as entry_needs

S = 10**9
SESSION_S, SLACK_S, GRACE_S = 100, 20, 1
SETTLED = (SESSION_S + SLACK_S) * S
DAY = 86400 * S
EPOCH = 1_800_000_000 * S
PAGE = 3


class Violation(BaseException):
    """An invariant does not hold. No `Exception`, so that nothing under test swallows it."""


class Chooser:
    """Decides everything that is left to chance. This one: the first party goes on until it is done, nothing fails."""

    faults = False
    world: World

    def next_party(self, runnable):
        return runnable[0]

    def tick(self):
        return S // 10

    def fault(self, party, op):
        return None

    def skew(self):
        return 0

    def host_offset(self):
        return 0

    def pick(self, options):
        return options[0]


class RandomChooser(Chooser):
    """Seeded chance."""

    def __init__(self, seed):
        self.rng = rng = random.Random(seed)
        self.random = rng.random
        self.sticky = rng.choice((0.5, 0.8, 0.93, 0.97))
        self.sleepy = rng.choice((0.0, 0.01, 0.03, 0.08))
        self.deadly = rng.choice((0.0, 0.0, 0.0, 0.004))
        self.flaky = rng.choice((0.0, 0.0, 0.02, 0.06))
        self.faults = self.flaky > 0
        self.ticks = rng.choice(((0,), (S // 10,), (0, S // 2, S), (S, 5 * S)))
        self.current = None

    def next_party(self, runnable):
        current = self.current
        if current in runnable and self.random() < self.sticky:
            chosen = current
        else:
            chosen = runnable[int(self.random() * len(runnable))]
        if self.sleepy and self.random() < self.sleepy:
            chosen.asleep_until = self.world.now + self.rng.choice(NAPS)
            chosen.suspended += 1
        elif self.deadly and self.random() < self.deadly:
            chosen.dead = True
        self.current = chosen
        return chosen

    def tick(self):
        ticks = self.ticks
        return ticks[0] if len(ticks) == 1 else ticks[int(self.random() * len(ticks))]

    def fault(self, party, op):
        return ("lost", "late")[self.random() < 0.5] if self.random() < self.flaky else None

    def skew(self):
        return self.rng.choice((0, 0, -2 * S, 2 * S))

    def host_offset(self):
        return self.rng.choice((0, 0, 0, DAY, -DAY, 3600 * S))

    def pick(self, options):
        return self.rng.choice(options)


NAPS = (
    S,
    rules.DELETE_LIFE_S * S + S,
    SESSION_S * S // 2,
    SESSION_S * S - S,
    SESSION_S * S + S,
    SETTLED + S,
    SETTLED + rules.DELETE_LIFE_S * S - 10 * S,
    2 * SETTLED,
    DAY,
)


class Party:
    """One actor: a writer, a reader, a gc."""

    def __init__(self, world, name, function, starts_at):
        self.world = world
        self.name = name
        self.asleep_until = starts_at
        self.dead = False
        self.suspended = 0
        self.at = ""  # the name that its next operation is about
        self.blind = False
        self.naps = []  # (operation, start of a name, for how long): where it surely sleeps, once
        self.skew = world.chooser.skew()
        self.wall_offset = world.chooser.host_offset()
        self.backend = PartyBackend(world, self)
        self.greenlet = greenlet.greenlet(lambda: self._main(function))

    def _main(self, function):
        try:
            function(self)
        except (CorruptError, InvalidInputError) as error:
            raise Violation(f"{self.name} found something damaged or wrong: {error!r}") from error
        except CasError as error:
            self.world.note(self, "gives up", repr(error)[:160])

    def sleep(self, span):
        """Do nothing for a while."""
        self.asleep_until = self.world.now + span
        self.world.hub.switch()

    def around(self):
        return Around(self)


class Around(Surroundings):
    """The machine of a party: its clock may be wrong, but it is one clock."""

    def __init__(self, party):
        self._party = party

    def moment(self):
        return Moment(self._party.name, self._party.world.now + self._party.wall_offset)

    def nonce(self):
        return self._party.world.nonce()

    def seconds(self):
        return self._party.world.now / S


class PartyBackend(Backend):
    """A party's way to the storage: every operation is a switch point."""

    def __init__(self, world, party):
        memory = world.memory
        self._world = world
        self._party = party
        self._memory = memory
        self.where = memory.where
        self.atomic_move = memory.atomic_move
        self.group_commit = memory.group_commit
        self.expiring_delete = memory.expiring_delete

    def _point(self, op, name=""):
        world = self._world
        if world.over or self._party.dead:
            raise greenlet.GreenletExit
        self._party.at = name
        for nap in self._party.naps:
            if nap[0] == op and name.startswith(nap[1]):
                self._party.naps.remove(nap)
                self._party.asleep_until = world.now + nap[2]
                break
        world.hub.switch()
        if world.over or self._party.dead:
            raise greenlet.GreenletExit
        if world.trace is not None:
            world.note(self._party, op, name)

    def _change(self, op, name, act):
        """Something that changes the store: its answer may be lost, or it may arrive later than its sender thinks."""
        self._point(op, name)
        world = self._world
        world.steps += 1
        if world.remote_faults:
            fault = world.chooser.fault(self._party, op)
            if fault == "lost":
                with contextlib.suppress(CasError):
                    world.act(self._party, act)
                raise UnavailableError(f"the answer to {op} {name} was lost")
            if fault == "late":
                world.note(self._party, "late", f"{op} {name}")
                world.late.append((self._party, act))
                raise UnavailableError(f"no answer to {op} {name}")
        return world.act(self._party, act)

    def now(self):
        self._point("now")
        self._world.skew = self._party.skew
        try:
            return self._memory.now()
        finally:
            self._world.skew = 0

    def stat(self, name):
        self._point("stat", name)
        return self._memory.stat(name)

    def read(self, name, max_bytes):
        self._point("read", name)
        if self._party.blind and name.startswith(layout.RESULTS):
            raise CorruptError(f"{name} cannot be read here")
        return self._memory.read(name, max_bytes)

    def open(self, name, start=0):
        self._point("open", name)
        return self._memory.open(name, start)

    def incoming(self, size_hint=None):
        return self._memory.incoming(size_hint)

    def commit(self, items):
        return [self._create(name, _bytes_of(incoming)) for name, incoming in items]

    def _create(self, name, data):
        return self._change("create", name, lambda: self._world.rooted(self._memory._create(name, data), data))

    def replace(self, name, incoming, expected):
        data = _bytes_of(incoming)

        def act():
            self._world.check_replace(name, data, expected)
            again = self._memory.incoming()
            again.write(data)
            return self._world.rooted(self._memory.replace(name, again, expected), data)

        return self._change("replace", name, act)

    def delete(self, name, expected=None):
        return self._change("delete", name, lambda: self._world.removing(name, self._memory.delete, name, expected))

    def delete_expiring(self, name, issued_ns, life_s):
        return self._change(
            "delete", name, lambda: self._world.removing(name, self._memory.delete_expiring, name, issued_ns, life_s)
        )

    def copy(self, name, to):
        return self._change("copy", f"{name} -> {to}", lambda: self._memory.copy(name, to))

    def rename(self, name, to, expected):
        return self._change("rename", f"{name} -> {to}", lambda: self._memory.rename(name, to, expected))

    def touch(self, name):
        return self._change("touch", name, lambda: self._memory.touch(name))

    def listing(self, prefix, after=""):
        objects = self._memory._objects
        while True:
            self._point("list", prefix)
            names = sorted(name for name in objects if name.startswith(prefix) and name > after)[:PAGE]
            page = [objects[name][0] for name in names]
            yield from page
            if len(page) < PAGE:
                return
            after = page[-1].name

    def flush(self, names):
        pass

    def sweep(self):
        return 0

    def close(self):
        pass


class World:
    """The store, the clock, the parties, and what was promised to whom."""

    entries_may_go = False

    def __init__(self, chooser, *, atomic_move, objects=None, now=EPOCH, trace=False, storage=MemoryBackend):
        self.chooser = chooser
        chooser.world = self
        self.now = now
        self.skew = 0
        self.memory = storage(atomic_move=atomic_move, clock=lambda: self.now + self.skew, granularity_ns=S)
        self.memory.where = "the store"
        if objects:
            self.memory._objects.update(objects)
            self.memory._serial = itertools.count(100_000)
        self.remote_faults = chooser.faults and not atomic_move
        self.parties = []
        self.late = []
        self.over = False
        self.steps = 0
        self.trace = [] if trace else None
        self.ended = {}  # entry's bytes -> when it was ended
        self.promised = set()  # (object name, bytes) of entries that a caller was told to stand
        self.doubts_expected = False
        self.late_root = False
        self.undone = set()  # keys whose ended entries may come back
        self.pins = {}  # name -> digests that its maker was told to be kept
        self.readers = []  # (until, digests): readers who were answered, and may read for a session
        self._nonces = 0
        self.current = None

    # -- parties

    def add(self, name, function, after=0):
        party = Party(self, name, function, self.now + after)
        self.parties.append(party)
        return party

    def nonce(self):
        self._nonces += 1
        return f"{self._nonces:016x}"

    def note(self, party, what, told=""):
        if self.trace is not None:
            self.trace.append(f"{(self.now - EPOCH) / S:10.1f} {party.name:10} {what} {told}")

    def act(self, party, function):
        self.skew = party.skew
        try:
            return function()
        finally:
            self.skew = 0

    def run(self):
        """Until every party is done or dead, and every late request has arrived."""
        global CURRENT
        CURRENT = self
        self.hub = greenlet.getcurrent()
        chooser = self.chooser
        alive = list(self.parties)
        try:
            while alive:
                runnable = [party for party in alive if party.asleep_until <= self.now]
                if not runnable:
                    self.now = min(party.asleep_until for party in alive)
                    continue
                party = chooser.next_party(runnable)
                if self.late and chooser.pick((0, 0, 0, 1)):
                    self._arrive(self.late.pop(0))
                if party.dead:
                    alive.remove(party)
                    self.note(party, "dies")
                    continue
                if party.asleep_until > self.now:
                    self.note(party, "sleeps", f"{(party.asleep_until - self.now) / S:.0f} s")
                    continue
                self.now += chooser.tick()
                self.current = party
                party.greenlet.switch()
                if party.greenlet.dead:
                    alive.remove(party)
            while self.late:
                self._arrive(self.late.pop(0))
            self.check_all()
        finally:
            self._stop()

    def _arrive(self, request):
        party, act = request
        self.note(party, "a late request arrives")
        with contextlib.suppress(CasError):
            self.act(party, act)

    def _stop(self):
        self.over = True
        for party in self.parties:
            if not party.greenlet.dead:
                with contextlib.suppress(CasError, greenlet.GreenletExit):
                    party.greenlet.throw(greenlet.GreenletExit)

    # -- what must hold

    def copies(self, digest):
        """Whether anything of a blob is there."""
        objects = self.memory._objects
        if layout.blob(digest) in objects:
            return True
        start = f"{layout.fossil_prefix(digest)}{digest}."
        return any(name.startswith(start) for name in objects)

    def live(self):
        """(name, stat, bytes, wanted digests) of every live entry that somebody may rely on.

        One that came later than its maker's session and that nobody vouches for (its maker died, or was never told) is
        protected only from the next mark on.
        """
        for name, (stat, data) in self.memory._objects.items():
            if name.startswith(layout.RESULTS):
                found = codec.decode(data)
                if isinstance(found, codec.Entry) and self.vouched(name, stat, data, found.header):
                    yield name, stat, data, wanted(data)

    def vouched(self, name, stat, data, header):
        return (name, data) in self.promised or stat.time_ns - header["held_since_ns"] <= SESSION_S * S

    def rooted(self, stat, data):
        """Note a root that came later than its maker's session: until the maker looks again it may reach nothing."""
        if stat is not None and stat.name.startswith((layout.RESULTS, layout.PINS)):
            said = json.loads(data if stat.name.startswith(layout.PINS) else data.partition(b"\n")[0])
            held = instants.from_text(said["held_since"]) if "held_since" in said else said.get("held_since_ns")
            self.late_root = self.late_root or (held is not None and stat.time_ns - held > SESSION_S * S)
        return stat

    def removing(self, name, remove, *args):
        """Do a removal, and look whether anybody needed what it removed."""
        objects = self.memory._objects
        before = objects.get(name)
        done = remove(*args)
        if done and before is not None and name not in objects:
            if name.startswith(layout.RESULTS) and isinstance(codec.decode(before[1]), codec.Entry):
                self.ended[before[1]] = self.now
                if not self.entries_may_go:
                    raise Violation(f"the live entry {name} was deleted")
            if name.startswith((layout.FOSSILS, layout.BLOBS)):
                digest = name.rpartition("/")[2][:64]
                if not self.copies(digest):
                    self.check_lost(digest)
        return done

    def check_lost(self, digest):
        for name, _, _, needs in self.live():
            if digest in needs:
                raise Violation(f"the last copy of {digest[:8]} went, and {name[-20:]} needs it")
        for name, needs in self.pins.items():
            if layout.pin(name) in self.memory._objects and digest in needs:
                raise Violation(f"the last copy of {digest[:8]} went, and the pin {name} keeps it")
        for until, needs in self.readers:
            if digest in needs and self.now <= until:
                raise Violation(f"the last copy of {digest[:8]} went while a reader was to read it")

    def check_replace(self, name, data, expected):
        found = self.memory._objects.get(name)
        if found is None or found[0].validator != expected or not name.startswith(layout.RESULTS):
            return
        old, new = codec.decode(found[1]), codec.decode(data)
        if isinstance(new, codec.Tombstone):
            if new.ended != found[1]:
                raise Violation(f"a tombstone of {name} names another entry than it ended")
            self.ended[found[1]] = self.now
        elif isinstance(old, codec.Entry) and all(map(self.copies, wanted(found[1]))):
            raise Violation(f"the usable entry {name} was replaced by another")

    def check_all(self):
        """Everything that somebody may rely on is there."""
        for name, _, _, needs in self.live():
            for digest in needs:
                if not self.copies(digest):
                    raise Violation(f"{digest[:8]} is gone, and the live entry {name[-20:]} needs it")
        for name, needs in self.pins.items():
            if layout.pin(name) in self.memory._objects:
                for digest in needs:
                    if not self.copies(digest):
                        raise Violation(f"{digest[:8]} is gone, and the pin {name} keeps it")

    def promise(self, recorded):
        """A caller was told that its entry stands."""
        name = entry_name(recorded.job_key, recorded.result_class)
        found = self.memory._objects.get(name)
        if found is None:
            if any(data.endswith(recorded.envelope) for data in self.ended):
                return  # ended since, and its tombstone's time is over
            raise Violation(f"{name} was recorded and is gone")
        try:
            standing = codec.decode(found[1])
        except CorruptError as error:
            raise Violation(f"{name} was recorded and is damaged") from error
        if isinstance(standing, codec.Entry) and standing.envelope == recorded.envelope:
            self.promised.add((name, found[1]))
            for digest in wanted(found[1]):
                if not self.copies(digest):
                    raise Violation(f"{name} was recorded, and {digest[:8]} of it is gone")


_WANTED = {}


def wanted(data):
    """The digests that an entry's bytes need."""
    found = _WANTED.get(data)
    if found is None:
        if len(_WANTED) > 5000:
            _WANTED.clear()
        found = _WANTED[data] = frozenset(entry_needs(codec.decode(data)))
    return found


def entry_name(key, result_class):
    hex_part, _, stage = key.partition(":")
    return layout.entry(hex_part, stage or None, result_class)


CURRENT: World | None = None


class FakeTime(SimpleNamespace):
    """The `time` module as the party that runs sees it: its clock may be wrong."""

    CLOCK_BOOTTIME = 7

    @staticmethod
    def time():
        party = CURRENT.current
        return (CURRENT.now + (party.wall_offset if party else 0)) / S

    @staticmethod
    def monotonic():
        return 0.0

    @staticmethod
    def clock_gettime(_clock):
        return CURRENT.now / S

    perf_counter = real_time.perf_counter


@contextlib.contextmanager
def fake_clocks():
    """Have the code under test see the world's clocks."""
    real = oarbank_cas.presence.time
    oarbank_cas.presence.time = FakeTime()
    try:
        yield
    finally:
        oarbank_cas.presence.time = real
