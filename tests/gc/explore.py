"""Runs schedules: `python -m tests.gc.explore --schedules 1000000 --seed 1`; prints what was run and found.

A line comes every 10,000 schedules; broken off (Ctrl-C, SIGTERM) it says how many were run, all from the first seed on.
"""

# ruff: noqa: T201 - a program

from __future__ import annotations

import argparse
import signal
import sys
import time
from concurrent.futures import ProcessPoolExecutor

from oarbank_cas.backends.memory import MemoryBackend

from .scenarios import SCENARIOS, before, direct_gc
from .world import SETTLED, RandomChooser, S, Violation, World, fake_clocks

DRAIN_EVERY = 8


def build(chooser, scenario, prelude, atomic_move, *, trace=False, storage=MemoryBackend):
    """A world with its parties, ready to run."""
    objects, nonces = before(prelude, atomic_move)
    world = World(chooser, atomic_move=atomic_move, objects=objects, trace=trace, storage=storage)
    world._nonces = nonces
    for name, (_, data) in objects.items():
        if name.startswith("results/"):
            world.promised.add((name, data))
    SCENARIOS[scenario][0](world)
    return world


def drain(world):
    """Let gc finish, twice more: what was to be lost is lost by then."""
    for _ in range(3):
        world.now += SETTLED + 70 * S
        report = direct_gc(world)
        world.check_all()
    return report


def run_one(seed, scenario=None, prelude=None, atomic_move=None, *, trace=False, drained=None):
    """One random schedule. Raises `Violation`, with the world in it, where an invariant does not hold."""
    chooser = RandomChooser(seed)
    names = list(SCENARIOS)
    scenario = scenario or names[seed % len(names)]
    preludes = SCENARIOS[scenario][1]
    prelude = prelude or preludes[(seed // len(names)) % len(preludes)]
    if atomic_move is None:
        atomic_move = bool(seed // len(names) // len(preludes) % 2)
    world = build(chooser, scenario, prelude, atomic_move, trace=trace)
    try:
        world.run()
        if drained or (drained is None and seed % DRAIN_EVERY == 0):
            drain(world)
    except Violation as error:
        error.args = (f"{error} [seed {seed}, {scenario!r}, prelude {prelude!r}, atomic_move {atomic_move}]",)
        error.world = world
        raise
    return world


def run_many(first, count):
    """Schedules `first` to `first + count`: how many operations they had, and what was found."""
    found = []
    steps = 0
    with fake_clocks():
        for seed in range(first, first + count):
            try:
                steps += run_one(seed).steps
            except Violation as error:
                found.append((seed, str(error)))
                if len(found) > 20:
                    break
    return steps, found


def run_part(first, count):
    """The same, and the CPU seconds that it took."""
    began = time.process_time()
    return (count, *run_many(first, count), time.process_time() - began)


class Tally:
    """What was run so far, without a gap from the first seed on."""

    def __init__(self, options):
        self.options = options
        self.began = time.monotonic()
        self.schedules = self.changes = self.violations = 0
        self.cpu = 0.0

    def add(self, count, changes, found, cpu):
        before = self.schedules
        self.schedules += count
        self.changes += changes
        self.violations += len(found)
        self.cpu += cpu
        for _, told in found:
            print("VIOLATION", told, flush=True)
        if self.schedules // self.options.every > before // self.options.every:
            print(self, flush=True)

    def __str__(self):
        seconds = time.monotonic() - self.began
        each = 1000 * self.cpu / max(1, self.schedules)
        return (
            f"{self.schedules} of {self.options.schedules} schedules from seed {self.options.seed}, {self.changes} "
            f"changes to the store, {seconds:.0f} s, {each:.2f} ms of CPU each: {self.violations} violations"
        )


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--schedules", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=1, help="the first schedule's seed; each next has the next number")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--every", type=int, default=10_000, help="say how far it is every so many schedules")
    parser.add_argument("--show", type=int, help="run one seed, and print what happened")
    parser.add_argument(
        "--preemptions", type=int, help="instead: all schedules of the small scenarios with up to so many"
    )
    options = parser.parse_args(argv)
    if options.preemptions is not None:
        return count_out(options.preemptions)
    if options.show is not None:
        with fake_clocks():
            return show(options.show)
    step = 500
    starts = range(options.seed, options.seed + options.schedules, step)
    counts = [min(step, options.seed + options.schedules - start) for start in starts]
    tally = Tally(options)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    pool = ProcessPoolExecutor(options.jobs, initializer=signal.signal, initargs=(signal.SIGINT, signal.SIG_IGN))
    try:
        for part in pool.map(run_part, starts, counts):
            tally.add(*part)
    except KeyboardInterrupt:
        print("broken off after", tally, flush=True)
        return 130
    finally:
        pool.shutdown(cancel_futures=True)
    print(tally)
    return 1 if tally.violations else 0


def count_out(bound):
    from . import systematic

    for scenario in ("one gc", "one gc and a reader"):
        for prelude in SCENARIOS[scenario][1]:
            for atomic_move in (True, False):
                began = time.monotonic()
                count = systematic.run_all(scenario, prelude, atomic_move, bound)
                print(
                    f"{scenario}, {prelude}, {'rename' if atomic_move else 'copy'}: all {count} schedules with up to "
                    f"{bound} preemptions, {time.monotonic() - began:.0f} s: nothing lost",
                    flush=True,
                )
    return 0


def show(seed):
    try:
        world = run_one(seed, trace=True, drained=True)
    except Violation as error:
        print("\n".join(error.world.trace))
        print("VIOLATION", error)
        return 1
    print("\n".join(world.trace))
    return 0


if __name__ == "__main__":
    sys.exit(main())
