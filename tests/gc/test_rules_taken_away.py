"""Each rule, taken away, loses something: the schedule that shows it is found again."""

from __future__ import annotations

import pytest

from . import explore
from .mutations import MUTATIONS
from .world import Violation, fake_clocks

BUDGET = 1500
"""Schedules that are tried where the recorded seed does not show it any more."""


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_rule_taken_away_loses_something(name):
    mutation = MUTATIONS[name]

    def breaks(seed):
        try:
            explore.run_one(seed, mutation.scenario, mutation.prelude, mutation.atomic_move, drained=False)
        except Violation as error:
            return "doubts" not in str(error)
        return False

    with fake_clocks():
        with mutation.applied():
            found = next((seed for seed in (mutation.seed, *range(BUDGET)) if breaks(seed)), None)
        assert found is not None, f"nothing is lost without rule {mutation.rule} ({mutation.told})"
        assert not breaks(found), "the same schedule breaks with the rule in place"


def test_every_rule_that_can_be_taken_away_is():
    assert {mutation.rule for mutation in MUTATIONS.values()} == set(range(1, 16))
