"""Each rule taken away: small changes to the code under test, every one of which must lose something somewhere."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from unittest import mock

from oarbank_cas import layout
from oarbank_cas.blobs import Blobs
from oarbank_cas.gc import rules
from oarbank_cas.gc.collect import _Run
from oarbank_cas.gc.mark import Mark
from oarbank_cas.gc.plan import Plan
from oarbank_cas.gc.sweep import Sweep
from oarbank_cas.intake import Hold, Intake
from oarbank_cas.results import Results

from . import scenarios
from .world import World


@dataclass(frozen=True)
class Mutation:
    """A rule taken away.

    Attributes:
        rule: its number.
        told: what is changed.
        patches: (owner, attribute, value).
        scenario: where it shows.
        prelude: what stands before.
        atomic_move: how blobs are moved aside.
        seed: a schedule that finds it.
    """

    rule: int
    told: str
    patches: tuple
    scenario: str
    prelude: str
    atomic_move: bool
    seed: int = 0

    @contextlib.contextmanager
    def applied(self):
        scenarios.before.cache_clear()  # what stands before is made by the same code
        with contextlib.ExitStack() as stack:
            stack.callback(scenarios.before.cache_clear)
            for owner, name, value in self.patches:
                stack.enter_context(mock.patch.object(owner, name, value))
            yield


# -- writers


def _fossils_count(self, digest):
    return self._backend.stat(layout.blob(digest)) or next(self._fossils(digest), None)


_commit = Intake.commit


def _hold_from_the_end(self):
    hold = _commit(self)
    return Hold(self._backend.now(), hold.sizes)


def _trust_the_agent(self, intake, checked):
    pass


def _no_confirm(self, created, checked, hold, header):
    pass


def _in_place(self, name, data, instead_of):
    incoming = self._backend.incoming()
    incoming.write(data)
    if instead_of is None:
        return self._backend.commit([(name, incoming)])[0]
    standing = self._backend.stat(name)
    return self._backend.replace(name, incoming, standing.validator) if standing else None


def _expire_by_delete(self, stat, *, by, reason, run):
    return stat if self._backend.delete(stat.name, stat.validator) else None


_retain = _Run._retain


def _retain_and_unreach(self, report, policy, tm_ns):
    counted = _retain(self, report, policy, tm_ns)
    self._ledger.db.execute("DELETE FROM refs WHERE entry IN (SELECT id FROM entries WHERE expire = 1)")
    return counted


_revive = Blobs.revive


def _revive_and_drop(self, digest):
    made = _revive(self, digest)
    for fossil in list(self._fossils(digest)):
        self._backend.delete(fossil.name)
    return made


def _one_look(self, digest, look):
    found = look(layout.blob(digest))
    if found is None:
        for fossil in self._fossils(digest):
            found = look(fossil.name)
            if found is not None:
                break
    return found


# -- gc

_plan = Plan.__init__


def _late_tm(self, *args):
    _plan(self, *args)
    self._backend.stat(layout.POLICY)  # something to be held up at
    self._tm_ns = self._backend.now()


def _settle_untouched(self, names):
    settled = []
    for name in names:
        stat = self._backend.stat(name)
        if stat and self._backend.rename(name, name.removesuffix("~"), stat.validator):
            settled.append(name.removesuffix("~"))
    return settled


def _plain_delete(self, name, copied_ns, life_s):
    return self._backend.delete(name)


def _rule_13_gone(*, age_start_ns, seen_for_ns, reached, blob_time_ns, tm_ns, spans):
    old = rules.is_old(age_start_ns, tm_ns, spans)
    return old and seen_for_ns is not None and seen_for_ns > spans.settled_ns


def _rule_13_for_the_reached_only(*, age_start_ns, seen_for_ns, reached, blob_time_ns, tm_ns, spans):
    old = rules.is_old(age_start_ns, tm_ns, spans)
    seen = seen_for_ns is not None and seen_for_ns > spans.settled_ns
    return old and seen and (not reached or rules.is_old(blob_time_ns, tm_ns, spans))


def _unseen_is_fine(*, age_start_ns, seen_for_ns, reached, blob_time_ns, tm_ns, spans):
    if blob_time_ns is None:
        return rules.is_old(age_start_ns, tm_ns, spans) and not reached
    return rules.is_old(age_start_ns, tm_ns, spans) and rules.is_old(blob_time_ns, tm_ns, spans)


def _reach_does_not_matter(*, age_start_ns, seen_for_ns, reached, blob_time_ns, tm_ns, spans):
    return rules.is_old(age_start_ns, tm_ns, spans) and seen_for_ns is not None and seen_for_ns > spans.settled_ns


def _same_name(nonce, life_s):
    return "0" * 16 + (f"-{life_s}" if life_s else "")


MUTATIONS = {
    "fossil names are used again": Mutation(
        1,
        "every fossil of a blob gets the same name",
        ((rules, "fossil_nonce", _same_name),),
        "stalled purge",
        "old fossil",
        True,
        seed=8,
    ),
    "a writer relies on a fossil": Mutation(
        2,
        "a condemned blob counts as present for a writer",
        ((Blobs, "revive", _fossils_count),),
        "agent and coordinator",
        "old fossil",
        True,
        seed=185,
    ),
    "a hold begins when it ends": Mutation(
        2,
        "T0 is taken after the look",
        ((Intake, "commit", _hold_from_the_end),),
        "dedup",
        "orphan",
        True,
        seed=46,
    ),
    "an agent's hold is passed on": Mutation(
        3,
        "a coordinator records without holding anything",
        ((Results, "require", _trust_the_agent),),
        "agent and coordinator",
        "orphan",
        True,
        seed=2,
    ),
    "nobody looks at the time again": Mutation(
        3,
        "an entry that came late is not held anew",
        ((Results, "_confirm", _no_confirm),),
        "dedup",
        "orphan",
        True,
        seed=57,
    ),
    "entries are rewritten in place": Mutation(
        4,
        "an entry is replaced whatever stands",
        ((Results, "_create_or_replace", _in_place),),
        "invalidate and record",
        "entry",
        True,
        seed=11,
    ),
    "tm is taken after the mark": Mutation(
        5,
        "the run's time is not before its first listing",
        ((Plan, "__init__", _late_tm),),
        "stalled mark",
        "orphan",
        True,
        seed=2,
    ),
    "tombstones are no roots": Mutation(
        5,
        "what was ended is unreached at once",
        ((rules, "tombstone_is_root", lambda *_: False),),
        "ended under a reader",
        "entry on old fossil",
        True,
        seed=3,
    ),
    "pins are no roots": Mutation(
        5,
        "pins are not marked",
        ((rules, "pin_is_root", lambda *_: False),),
        "pinning",
        "entry",
        True,
    ),
    "manifests are not followed": Mutation(
        5,
        "a pinned dataset keeps its manifest alone",
        ((Mark, "_manifest", lambda *_: ()),),
        "pinning",
        "entry",
        True,
    ),
    "doubts are shrugged off": Mutation(
        6,
        "an unreadable entry does not stop a run",
        ((rules, "doubts_stop", lambda _: False),),
        "blind gc",
        "entry",
        True,
        seed=14,
    ),
    "references are cached by time": Mutation(
        6,
        "a cached entry counts while its time is the same",
        ((rules, "cache_key", lambda _, time: str(time)),),
        "invalidate and record",
        "entry",
        True,
        seed=3,
    ),
    "expiry leaves no tombstone": Mutation(
        7,
        "an expired entry is deleted",
        (
            (Results, "expire", _expire_by_delete),
            (_Run, "_retain", _retain_and_unreach),
            (World, "entries_may_go", True),
        ),
        "expired under a reader",
        "entry on old fossil",
        True,
        seed=1,
    ),
    "no touch after the rename": Mutation(
        8,
        "a fossil keeps the blob's old time",
        ((Sweep, "_settle", _settle_untouched),),
        "wrong clocks",
        "orphan",
        True,
        seed=6,
    ),
    "deletes do not expire": Mutation(
        9,
        "a copied blob is deleted by a plain delete",
        ((Sweep, "_delete_copied", _plain_delete),),
        "overdue delete",
        "orphan",
        False,
        seed=2,
    ),
    "a copied fossil's age starts at once": Mutation(
        10,
        "D is left out",
        ((rules.Fossil, "age_start_ns", lambda self, time: time),),
        "late delete",
        "orphan",
        False,
        seed=2,
    ),
    "reviving drops the fossils": Mutation(
        11,
        "what was brought back is no fossil any more",
        ((Blobs, "revive", _revive_and_drop),),
        "revive before delete",
        "orphan",
        False,
        seed=2,
    ),
    "no slack": Mutation(
        12,
        "s is left out",
        ((rules.Spans, "settled_ns", property(lambda self: self.session_ns)),),
        "tight",
        "orphan",
        True,
        seed=6,
    ),
    "no age": Mutation(
        12,
        "a fossil may go at once",
        ((rules.Spans, "settled_ns", property(lambda self: 0)),),
        "wrong clocks",
        "orphan",
        True,
        seed=6,
    ),
    "gc's own clocks are not asked": Mutation(
        12,
        "only the store's clock says how old a fossil is",
        ((rules, "may_purge", _unseen_is_fine),),
        "bad gateway",
        "orphan",
        True,
        seed=26,
    ),
    "a reached blob's fossils go at once": Mutation(
        13,
        "a fossil goes when its blob was revived a moment ago",
        ((rules, "may_purge", _rule_13_gone),),
        "reading",
        "entry on old fossil",
        True,
        seed=6,
    ),
    "an unreached blob's fossils go at once": Mutation(
        13,
        "a fossil goes when its blob was brought back a moment ago, for readers of what has been replaced since",
        ((rules, "may_purge", _rule_13_for_the_reached_only),),
        "invalidate and record",
        "entry on old fossil",
        True,
        seed=112602,
    ),
    "one look is enough": Mutation(
        14,
        "a reader never looks again",
        ((Blobs, "_search", _one_look),),
        "reading",
        "entry on old fossil",
        True,
        seed=119,
    ),
    "S shrinks": Mutation(
        15,
        "gc goes by a tenth of the session that writers have",
        ((rules.Spans, "settled_ns", property(lambda self: self.session_ns // 10)),),
        "wrong clocks",
        "orphan",
        True,
        seed=6,
    ),
}
