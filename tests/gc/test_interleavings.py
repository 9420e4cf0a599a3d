"""Interleavings of the real code on the memory backend: nothing that somebody relies on is ever lost."""

from __future__ import annotations

import pytest

from . import explore, systematic

PARTS = 20
SCHEDULES = 20_000


@pytest.mark.parametrize("part", range(PARTS))
def test_random_schedules(part):
    each = SCHEDULES // PARTS
    _, found = explore.run_many(1 + part * each, each)
    assert not found, "\n".join(f"python -m tests.gc.explore --show {seed}: {told}" for seed, told in found)


@pytest.mark.parametrize("atomic_move", [True, False])
@pytest.mark.parametrize(
    ("scenario", "prelude"),
    [
        ("one gc", "orphan"),
        ("one gc", "old fossil"),
        ("one gc", "half renamed"),
        ("one gc and a reader", "entry on old fossil"),
    ],
)
def test_all_schedules_with_two_preemptions(scenario, prelude, atomic_move):
    assert systematic.run_all(scenario, prelude, atomic_move, bound=2) > 300
