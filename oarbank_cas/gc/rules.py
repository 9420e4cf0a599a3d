"""The rules of garbage collection: what a run may do, decided from what it knows. No I/O, no clock, no state.

All times are the store's own, in nanoseconds since 1970, but where a rule says "gc's clocks". S is the session, s the
slack, D the life of a delete, tm the store's time before a run's first listing. docs/gc.md has the proof.

1.  A fossil's name is never used twice (`fossil_nonce` says how it is built), so a purge by name is a purge of the very
    incarnation that was judged.
2.  A writer relies on a blob only from T0, the store's time before it found or put the blob, until T0 + S (`Intake`).
3.  A root is created only by one who holds all that it reaches; created later than T0 + S it is held anew or withdrawn
    (`Results`, `Pins`).
4.  Entries are never rewritten: ended or superseded by identity only.
5.  Roots are entries, pins (`pin_is_root`) and young tombstones (`tombstone_is_root`), and all that they reach.
6.  Any doubt stops deletion (`doubts_stop`); what was cached counts by name and strong validator only.
7.  What retention ends gets a tombstone, which is a root for S + s.
8.  A blob is condemned by renaming it to a name with a trailing `~`, touching it, and renaming it to its final name.
    A `~` name has no age (`Fossil.age_start_ns`).
9.  Or by a copy, and a delete that the storage refuses later than D after the copy's time.
10. A fossil's age starts at its own time, plus D where it was copied (`Fossil.age_start_ns`).
11. Reviving copies, and keeps the fossil.
12. A fossil is purged only when it is old by the store's clock, and old by gc's clocks since a completed run saw it,
    and unreached (`may_purge`).
13. Where the blob itself stands, its fossils go only when it is old, and then a reached one's too (`may_purge`).
14. A reader looks for the blob, then for its fossils, and again where that took longer than S (`Blobs`).
15. S never shrinks; a new epoch waits for the word that all roots are there (`roots_are_known`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

DELETE_LIFE_S = 60
"""D: seconds for which the delete that follows a copy may live."""

JUMP_SLACK_S = 60
"""Seconds, above s, by which two clocks may drift apart between two runs before one counts as jumped."""

MOVING = "~"
"""The end of a fossil's name that is not final yet."""

_FOSSIL = re.compile(r"fossils/([0-9a-f]{2})/(\1[0-9a-f]{62})\.([0-9a-z]{1,40})(?:-([0-9]{1,7}))?(~?)")
_BLOB = re.compile(r"blobs/([0-9a-f]{2})/(\1[0-9a-f]{62})")


@dataclass(frozen=True, slots=True)
class Spans:
    """The spans of a store, in nanoseconds.

    Attributes:
        session_ns: S.
        slack_ns: s.
        grace_ns: how old an unreached blob must be to be worth condemning.
    """

    session_ns: int
    slack_ns: int
    grace_ns: int

    @property
    def settled_ns(self) -> int:
        """S + s: after this span whoever relied on something has either made a root of it or given up."""
        return self.session_ns + self.slack_ns

    @property
    def jump_ns(self) -> int:
        """How far two clocks may drift apart between two runs."""
        return self.slack_ns + JUMP_SLACK_S * 10**9


@dataclass(frozen=True, slots=True)
class Fossil:
    """What a fossil's name says.

    Attributes:
        digest: the blob that it was.
        life_s: seconds after its time in which the delete of the blob that it was copied from may still arrive; 0 for
            one that was renamed.
        moving: its name is not final: it has no age.
    """

    digest: str
    life_s: int
    moving: bool

    def age_start_ns(self, time_ns: int) -> int | None:
        """Rules 8 and 10: from when on the blob it was certainly stood no longer; None where that is not known."""
        return None if self.moving else time_ns + self.life_s * 10**9


def fossil_of(name: str) -> Fossil | None:
    """What the object name of a fossil says; None for a name that is none."""
    match = _FOSSIL.fullmatch(name)
    return Fossil(match[2], int(match[4] or 0), match[5] == MOVING) if match else None


def fossil_nonce(nonce: str, life_s: int) -> str:
    """The part of a fossil's name after the digest: unique by `nonce`, and saying how long a delete may live."""
    return f"{nonce}-{life_s}" if life_s else nonce


def blob_of(name: str) -> str | None:
    """The digest in the object name of a blob; None for a name that is none."""
    match = _BLOB.fullmatch(name)
    return match[2] if match else None


def tombstone_is_root(time_ns: int, tm_ns: int, spans: Spans) -> bool:
    """Rule 5: whoever was answered by an entry has a session's time to read what it names."""
    return time_ns + spans.settled_ns >= tm_ns


def pin_is_root(expires_ns: int | None, tm_ns: int, spans: Spans) -> bool:
    """Rule 5: a pin is a root until it expires, and a slack longer."""
    return expires_ns is None or expires_ns + spans.slack_ns >= tm_ns


def worth_condemning(time_ns: int, tm_ns: int, spans: Spans) -> bool:
    """Whether an unreached blob has lain for the grace period. A matter of thrift: safety does not rest on it."""
    return time_ns + spans.grace_ns < tm_ns


def is_old(start_ns: int | None, tm_ns: int, spans: Spans) -> bool:
    """Whether S + s have passed between a moment and tm; never where the moment is not known."""
    return start_ns is not None and start_ns + spans.settled_ns < tm_ns


def may_purge(
    *,
    age_start_ns: int | None,
    seen_for_ns: int | None,
    reached: bool,
    blob_time_ns: int | None,
    tm_ns: int,
    spans: Spans,
) -> bool:
    """Rules 12 and 13.

    Args:
        age_start_ns: see `Fossil.age_start_ns`.
        seen_for_ns: what passed, by gc's clocks, since a completed run first saw it; None where none has.
        reached: this run's mark reaches its digest.
        blob_time_ns: the time of the blob under its own name; None where it does not stand.
        tm_ns: this run's.
        spans: the store's.
    """
    if not is_old(age_start_ns, tm_ns, spans):
        return False
    if seen_for_ns is None or seen_for_ns <= spans.settled_ns:
        return False
    if blob_time_ns is None:
        return not reached
    # Also where nothing reaches it now: a reader of an entry that was replaced may be between its two looks.
    return is_old(blob_time_ns, tm_ns, spans)


def tombstone_may_go(time_ns: int, tm_ns: int, keep_ns: int, *, pinned: bool, spans: Spans) -> bool:
    """Whether a tombstone's retention has ended; never before it stops to be a root, nor while its key is pinned."""
    return not pinned and time_ns + max(keep_ns, spans.settled_ns) < tm_ns


def clock_jumped(elapsed_ns: int, other_elapsed_ns: int, spans: Spans) -> bool:
    """Whether two clocks disagree about what passed between two runs, by more than drift explains."""
    return abs(elapsed_ns - other_elapsed_ns) > spans.jump_ns


def listing_is_short(time_ns: int, tm_ns: int, spans: Spans) -> bool:
    """Rule 6: whether an object that a listing left out, and that stands, must have stood when the listing began."""
    return time_ns + spans.slack_ns < tm_ns


def needs_allow_no_roots(blobs: int, roots: int) -> bool:
    """Whether a store looks as if its roots were elsewhere, or lost."""
    return blobs > 0 and roots == 0


def needs_yes_really(blobs: int, condemned: int) -> bool:
    """Whether a plan would condemn more than half of the blobs."""
    return condemned * 2 > blobs


def needs_yes_really_to_end(live: int, expired: int) -> bool:
    """Whether a policy would end more than half of the entries that are live."""
    return expired * 2 > live


def roots_are_known(epoch: int, *, confirmed: bool) -> bool:
    """Rule 15: after a restore or an adoption an operator says that all roots are in this store."""
    return epoch <= 1 or confirmed


def cache_key(validator: str, time_ns: int) -> str:
    """Rule 6: what, beside its name, an object must still have for what was read of it to count."""
    del time_ns  # two incarnations of a name can share it
    return validator


def doubts_stop(doubts: int) -> bool:
    """Rule 6: with any doubt nothing is expired, condemned or purged."""
    return doubts > 0
