"""What a run of gc found, would do, and did: one table for the dry and the real run."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

AGES = ((1, "under 1 day"), (7, "1 to 7 days"), (30, "7 to 30 days"), (90, "30 to 90 days"), (365, "90 days to 1 year"))
"""Age classes: below so many days, and their name."""

OLDEST = "over 1 year"

ACTIONS = (
    "entries kept",
    "entries expired",
    "tombstones kept",
    "tombstones removed",
    "blobs kept",
    "blobs condemned",
    "blobs revived",
    "fossils kept",
    "fossils finished",
    "fossils purged",
)
"""The rows of the table, in the order that people read them."""

PLANNED = {
    "entries kept": "would keep entries",
    "entries expired": "would end entries",
    "tombstones kept": "would keep tombstones",
    "tombstones removed": "would remove tombstones",
    "blobs kept": "would keep blobs",
    "blobs condemned": "would condemn blobs",
    "blobs revived": "would revive blobs",
    "fossils kept": "would keep condemned blobs",
    "fossils finished": "would finish condemning blobs",
    "fossils purged": "would remove condemned blobs for good",
}
"""The same rows of a plan that was not carried out, for people."""

_DAY_NS = 86400 * 10**9


def age_of(time_ns: int, tm_ns: int) -> str:
    """The age class of something made at `time_ns`, in a run of `tm_ns`."""
    days = (tm_ns - time_ns) / _DAY_NS
    return next((name for below, name in AGES if days < below), OLDEST)


@dataclass(frozen=True, slots=True)
class Doubt:
    """Something that could not be read or believed: a reason to delete nothing.

    Attributes:
        what: the object, or the clock.
        why: what is wrong, and what to do.
        exit_code: what the command line ends with because of it.
    """

    what: str
    why: str
    exit_code: int


class Table:
    """Counts and bytes by action, module and age.

    Args:
        rows: as `rows` gives them.
    """

    def __init__(self) -> None:
        self._counts: Counter[tuple[str, str | None, str]] = Counter()
        self._bytes: Counter[tuple[str, str | None, str]] = Counter()

    def add(self, action: str, age: str, size: int, module: str | None = None, count: int = 1) -> None:
        """Count something."""
        key = (action, module, age)
        self._counts[key] += count
        self._bytes[key] += size

    def count(self, action: str) -> int:
        """How many of one action."""
        return sum(count for key, count in self._counts.items() if key[0] == action)

    def bytes(self, action: str) -> int:
        """How many bytes of one action."""
        return sum(size for key, size in self._bytes.items() if key[0] == action)

    def totals(self) -> dict[str, dict[str, int]]:
        """Count and bytes of every action."""
        found = {action: {"count": 0, "bytes": 0} for action in ACTIONS}
        for (action, _, _), count in self._counts.items():
            found[action]["count"] += count
        for (action, _, _), size in self._bytes.items():
            found[action]["bytes"] += size
        return found

    def rows(self) -> list[dict[str, Any]]:
        """One object for each action, module and age."""
        order = {name: index for index, name in enumerate([name for _, name in AGES] + [OLDEST])}
        keys = sorted(self._counts, key=lambda key: (ACTIONS.index(key[0]), key[1] or "", order.get(key[2], 99)))
        return [
            {"action": key[0], "module": key[1], "age": key[2], "count": self._counts[key], "bytes": self._bytes[key]}
            for key in keys
        ]

    def to_json(self) -> dict[str, Any]:
        """As a JSON object."""
        return {"totals": self.totals(), "rows": self.rows()}


@dataclass(slots=True)
class Report:
    """What became of a run.

    Attributes:
        run: its id.
        store: the store.
        dry_run: nothing was written.
        started: the store's time of it, RFC 3339.
        policy: the retention policy that held.
        plan: what was to be done.
        done: what was done; empty where nothing was, as in a dry run.
        missing: blobs that live entries or pins name and that are not there.
        doubts: what could not be read or believed. Nothing is deleted where there is any.
        refused: why the plan was not carried out, where an option is needed.
        failed: what ended the run half-way; the next one finishes.
        notes: what an operator should know and need not act on.
        unknown: objects that are none of a store's; they are left alone.
        requests: how often the storage was asked, by operation.
        entry_bytes_read: bytes of entries that were read.
        bytes_read: bytes of anything that was read.
        seconds: how long it took.
    """

    run: str
    store: str
    dry_run: bool
    started: str
    policy: dict[str, Any]
    plan: Table = field(default_factory=Table)
    done: Table = field(default_factory=Table)
    missing: int = 0
    doubts: list[Doubt] = field(default_factory=list)
    refused: str | None = None
    failed: Doubt | None = None
    notes: list[str] = field(default_factory=list)
    unknown: int = 0
    requests: dict[str, int] = field(default_factory=dict)
    entry_bytes_read: int = 0
    bytes_read: int = 0
    seconds: float = 0.0

    @property
    def exit_code(self) -> int:
        """0 where all was done (or, dry, could be); else what the command line ends with."""
        if self.failed is not None:
            return self.failed.exit_code
        if self.doubts:
            return self.doubts[0].exit_code
        return 1 if self.refused else 0

    @property
    def freed_bytes(self) -> int:
        """Bytes that this run purged, or, dry, would."""
        return (self.plan if self.dry_run else self.done).bytes("fossils purged")

    def to_json(self) -> dict[str, Any]:
        """As a JSON object."""
        return {
            "run": self.run,
            "store": self.store,
            "dry_run": self.dry_run,
            "started": self.started,
            "policy": self.policy,
            "plan": self.plan.to_json(),
            "done": self.done.to_json(),
            "missing": self.missing,
            "doubts": [{"what": doubt.what, "why": doubt.why} for doubt in self.doubts],
            "refused": self.refused,
            "failed": {"what": self.failed.what, "why": self.failed.why} if self.failed else None,
            "notes": self.notes,
            "unknown": self.unknown,
            "requests": self.requests,
            "entry_bytes_read": self.entry_bytes_read,
            "bytes_read": self.bytes_read,
            "seconds": round(self.seconds, 3),
            "exit_code": self.exit_code,
        }
