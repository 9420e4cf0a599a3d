"""Every interleaving of a small scenario with few preemptions: not sampled, counted out.

A party goes on until it is done, or until a preemption: another party takes over, or the party sleeps longer than a
session. All placements of up to so many preemptions are run, at every operation on anything but gc's own notes.
"""

from __future__ import annotations

from . import explore
from .world import SETTLED, Chooser, S, Violation, fake_clocks

SLEEP = "sleep"


class Script(Chooser):
    """Preempts at given steps."""

    def __init__(self, preemptions):
        self.preemptions = dict(preemptions)
        self.step = 0
        self.current = None
        self.choices = []  # for each step, what could have been chosen instead

    def next_party(self, runnable):
        current = self.current if self.current in runnable else runnable[0]
        if not current.at.startswith(("gc/", "oarbank-cas.json", "policy.json")):
            others = [party.name for party in runnable if party is not current]
            self.choices.append([*others, SLEEP])
            chosen = self.preemptions.get(self.step)
            self.step += 1
            if chosen == SLEEP:
                current.asleep_until = self.world.now + SETTLED + S
                self.current = current
                return current
            if chosen is not None:
                current = next((party for party in runnable if party.name == chosen), current)
        self.current = current
        return current


def run(scenario, prelude, atomic_move, preemptions):
    """One schedule; the script, which knows what else could have been chosen."""
    script = Script(preemptions)
    world = explore.build(script, scenario, prelude, atomic_move)
    try:
        world.run()
    except Violation as error:
        raise Violation(f"{error} [{scenario!r}, {prelude!r}, atomic_move {atomic_move}, {preemptions}]") from error
    return script


def run_all(scenario, prelude, atomic_move, bound):
    """All schedules with up to `bound` preemptions; how many they were."""
    count = 0
    with fake_clocks():
        waiting = [()]
        while waiting:
            preemptions = waiting.pop()
            script = run(scenario, prelude, atomic_move, preemptions)
            count += 1
            if len(preemptions) < bound:
                first = preemptions[-1][0] + 1 if preemptions else 0
                waiting += [
                    (*preemptions, (step, choice))
                    for step in range(first, len(script.choices))
                    for choice in script.choices[step]
                ]
    return count
