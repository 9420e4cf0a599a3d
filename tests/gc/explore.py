"""Runs schedules: `python -m tests.gc.explore --schedules 1000000 --seed 1`; prints what was run and found."""

# ruff: noqa: T201 - a program

from __future__ import annotations

import argparse
import sys
import time
from concurrent.futures import ProcessPoolExecutor

from .scenarios import SCENARIOS, before, direct_gc
from .world import SETTLED, RandomChooser, S, Violation, World, fake_clocks

DRAIN_EVERY = 8


def build(chooser, scenario, prelude, atomic_move, *, trace=False):
    """A world with its parties, ready to run."""
    objects, nonces = before(prelude, atomic_move)
    world = World(chooser, atomic_move=atomic_move, objects=objects, trace=trace)
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


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--schedules", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=1, help="the first schedule's seed; each next has the next number")
    parser.add_argument("--jobs", type=int, default=2)
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
    began = time.monotonic()
    step = 500
    starts = range(options.seed, options.seed + options.schedules, step)
    counts = [min(step, options.seed + options.schedules - start) for start in starts]
    changes, found = 0, []
    with ProcessPoolExecutor(options.jobs) as pool:
        for part, problems in pool.map(run_many, starts, counts):
            changes += part
            found += problems
            for problem in problems:
                print("VIOLATION", problem[1], flush=True)
    seconds = time.monotonic() - began
    print(
        f"{options.schedules} schedules from seed {options.seed}, {changes} changes to the store, {seconds:.0f} s "
        f"({options.schedules / seconds:.0f} a second): {len(found)} violations"
    )
    return 1 if found else 0


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
