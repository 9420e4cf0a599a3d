"""Interleavings of the real code on the memory backend: nothing that somebody relies on is ever lost."""

from __future__ import annotations

import pytest

from . import explore

PARTS = 20
SCHEDULES = 20_000


@pytest.mark.parametrize("part", range(PARTS))
def test_random_schedules(part):
    each = SCHEDULES // PARTS
    _, found = explore.run_many(1 + part * each, each)
    assert not found, "\n".join(f"python -m tests.gc.explore --show {seed}: {told}" for seed, told in found)
