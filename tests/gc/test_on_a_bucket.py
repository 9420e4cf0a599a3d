"""The schedules of copy and delete, thinned, on a real server: those that show a rule, and one of each scenario."""

from __future__ import annotations

import functools
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent.parent / "s3"))

import s3_kit

from oarbank_cas.backends.s3.backend import S3Backend
from oarbank_cas.backends.s3.putting import overwrite

from . import explore
from .lockstep import Lockstep
from .mutations import MUTATIONS
from .scenarios import SCENARIOS
from .world import RandomChooser, Violation, fake_clocks

SHOWING = {name: found for name, found in MUTATIONS.items() if not found.atomic_move}


@pytest.fixture
def replay():
    """Runs a schedule of both; how many of their answers were compared."""
    if not s3_kit.capabilities().expiring_delete:
        pytest.skip("this server refuses no late delete, so that gc would not run like this")
    made = []

    def run(seed, scenario, prelude):
        bucket = S3Backend(s3_kit.wire(), s3_kit.capabilities())
        made.append(bucket)
        storage = functools.partial(Lockstep, bucket)
        world = explore.build(RandomChooser(seed), scenario, prelude, False, storage=storage)
        world.memory.fill()
        with fake_clocks():
            world.run()
        world.memory.compare()
        return world.memory.steps

    yield run
    for bucket in made:
        bucket.close()


@pytest.mark.parametrize("name", SHOWING)
def test_the_schedule_that_shows_a_rule(name, replay):
    found = SHOWING[name]
    assert replay(found.seed, found.scenario, found.prelude) > 10


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_schedule_of_each_scenario(scenario, budget, replay):
    preludes = SCENARIOS[scenario][1]
    for seed in range(budget):
        assert replay(seed, scenario, preludes[seed % len(preludes)]) > 10


def _overwrites(backend, items):
    for name, spool in items:
        overwrite(backend.wire, name, bytes(spool.part(0, spool.size)))
    return [backend.stat(name) for name, _ in items]


def _any_time(backend, name, issued_ns, life_s):
    del issued_ns, life_s
    return backend.delete(name)


@pytest.mark.parametrize(
    ("method", "broken", "scenario"),
    [("commit", _overwrites, "two writers"), ("delete_expiring", _any_time, "late delete")],
)
def test_a_server_that_keeps_no_promise_is_found(method, broken, scenario, replay, monkeypatch):
    """The comparison sees what it is there for."""
    monkeypatch.setattr(S3Backend, method, broken)
    with pytest.raises(Violation, match="create" if method == "commit" else "late"):  # noqa: PT012 - one of them
        for seed in range(10):
            replay(seed, scenario, SCENARIOS[scenario][1][0])
