"""Plans that look like an operator's mistake, and the word that each needs. No part of what keeps a store safe."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from oarbank_cas.gc import rules

if TYPE_CHECKING:
    from oarbank_cas.gc.retention import Policy


class Sight(NamedTuple):
    """What a run is about to do, in numbers.

    Attributes:
        blobs: that stand.
        roots: entries, pins and young tombstones.
        condemned: blobs that would be condemned.
        live: entries that answer.
        ended: entries that would be ended.
    """

    blobs: int
    roots: int
    condemned: int
    live: int
    ended: int


def refusal(sight: Sight, policy: Policy, *, allow_no_roots: bool, yes_really: bool) -> str | None:
    """Why a plan is not carried out without an operator's word, and which; None where it is.

    Args:
        sight: what it would do.
        policy: the retention that led to it.
        allow_no_roots: the operator said so.
        yes_really: likewise.
    """
    told = []
    if rules.needs_allow_no_roots(sight.blobs, sight.roots) and not allow_no_roots:
        told.append(f"{sight.blobs} blobs and no entry or pin: is this the right store? Say --allow-no-roots if it is")
    elif rules.needs_yes_really(sight.blobs, sight.condemned) and not yes_really:
        told.append(
            f"{sight.condemned} of {sight.blobs} blobs would be condemned: say --yes-really if more than half is right"
        )
    if rules.needs_yes_really_to_end(sight.live, sight.ended) and not yes_really:
        asked = ", ".join(f"{name} {value}" for name, value in policy.to_json().items())
        told.append(
            f"{sight.ended} of {sight.live} entries would be ended ({asked}): say --yes-really if more than half is "
            "right"
        )
    return "; ".join(told) or None
