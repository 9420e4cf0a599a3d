"""Interleavings of the real code on the memory backend: nothing that somebody relies on is ever lost."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

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


@pytest.mark.skipif(os.name == "nt", reason="needs SIGTERM")
def test_the_explorer_tells_how_far_it_came():
    """Interrupted, it says how many were run, and nothing of what was not."""
    arguments = ["--schedules", "1000000", "--seed", "5", "--every", "500", "--jobs", "1"]
    with subprocess.Popen(
        [sys.executable, "-m", "tests.gc.explore", *arguments],
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
    ) as ran:
        first = ran.stdout.readline()
        ran.terminate()
        rest = ran.stdout.read().splitlines()
    assert first.startswith("500 of 1000000 schedules from seed 5, ")
    assert first.endswith(" 0 violations\n")
    assert rest[-1].startswith("broken off after ")
    assert int(rest[-1].split()[3]) % 500 == 0
    assert ran.returncode == 130
