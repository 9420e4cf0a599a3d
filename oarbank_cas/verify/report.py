"""What a verification was asked for, and what it found."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Literal

from oarbank_cas.errors import InvalidInputError

MAX_PROBLEMS = 10_000
"""Problems that a report holds; more are counted."""

MAX_NAMED = 10
"""Roots that a problem names; more are counted."""

Kind = Literal["damaged", "missing", "mismatch", "misplaced", "irregular", "unreadable", "foreign", "orphan"]
"""What can be found:

- `damaged`: bytes are not those that the name or the header promises.
- `missing`: an entry or a pin needs it, and it is nowhere.
- `mismatch`: sound in itself, but an entry says another size of it, or its header names other datasets.
- `misplaced`: under a name where nobody looks for it.
- `irregular`: a link or a device where an object should be.
- `unreadable`: it could not be read, or not twice in the same way.
- `foreign`: none of a store's; it is left alone. Not a problem.
- `orphan`: a blob that nothing refers to; gc sees to it. Not a problem.
"""

NOTES = ("foreign", "orphan")
"""Kinds that are told, and are no problem."""

REDO = "invalidate it (`oarbank-cas invalidate`) or record its result again"
"""What to do about an entry that nothing heals."""


@dataclass(frozen=True, slots=True)
class Options:
    """What a verification is to do.

    Attributes:
        look_only: write nothing: damaged blobs stay where they are.
        repair: bring back what is damaged or missing, from what the store still has and from another store.
        sample: percent of the blobs whose bytes are read. Entries, pins and references are always checked, all of them.
        seed: with `sample`, chooses which; the store's date where None.
        since_ns: only read the bytes of blobs that came in at this moment or later, nanoseconds since 1970.
        list_orphans: list the blobs that nothing refers to; else they are counted.
        resume: a file on this machine for the state of the run: where it ended early, the same call goes on.
        workers: threads that read; one a core where None.
    """

    look_only: bool = False
    repair: bool = False
    sample: float = 100.0
    seed: str | None = None
    since_ns: int | None = None
    list_orphans: bool = False
    resume: str | None = None
    workers: int | None = None

    def __post_init__(self) -> None:
        if not 0 < self.sample <= 100:
            raise InvalidInputError(f"must be above 0 and at most 100 percent, not {self.sample}", "--sample")
        if self.look_only and self.repair:
            raise InvalidInputError("repairing writes: leave out one of the two", "--dry-run and --repair")


@dataclass(frozen=True, slots=True)
class Problem:
    """Something that was found.

    Attributes:
        kind: see `Kind`.
        name: the object's name.
        detail: what is wrong, and what to do.
        digest: of a blob, its digest.
        aside: it was moved to `damaged/`.
        healed: it was put right by this run.
        referenced_by: some of the entries and pins that need it.
        references: how many need it.
    """

    kind: Kind
    name: str
    detail: str
    digest: str | None = None
    aside: bool = False
    healed: bool = False
    referenced_by: tuple[str, ...] = ()
    references: int = 0

    def to_json(self) -> dict[str, Any]:
        """As a JSON object."""
        return {
            "kind": self.kind,
            "name": printable(self.name),
            "digest": self.digest,
            "detail": printable(self.detail),
            "set_aside": self.aside,
            "healed": self.healed,
            "referenced_by": [printable(name) for name in self.referenced_by],
            "references": self.references,
        }


COUNTS = (
    "blobs",
    "blob_bytes",
    "blobs_read",
    "bytes_read",
    "fossils",
    "fossils_read",
    "entries",
    "tombstones",
    "pins",
    "expired_pins",
    "orphans",
    "orphan_bytes",
    "roots_unread",
    "set_aside_before",
    "set_aside_before_bytes",
    "temporaries",
)
"""What is counted, in the order that people read it.

`roots_unread` counts what could not be read of entries and pins, or listed of their folders: where there is any, nobody
knows what else is referred to, and no orphan is told or counted.
"""


@dataclass(slots=True)
class Report:
    """What a verification found.

    Attributes:
        store: the store.
        started: the store's time, RFC 3339.
        options: what was asked for; the seed is filled in.
        counts: see `COUNTS`.
        by_kind: how many of each kind were found.
        healed: how many of them were put right.
        problems: the first `MAX_PROBLEMS` of them.
        resumed: an earlier run's work was gone on with.
        seconds: how long this run took.
    """

    store: str
    started: str
    options: Options
    counts: Counter[str] = field(default_factory=Counter)
    by_kind: dict[str, int] = field(default_factory=dict)
    healed: int = 0
    problems: list[Problem] = field(default_factory=list)
    resumed: bool = False
    seconds: float = 0.0

    @property
    def problem_count(self) -> int:
        """How many problems were found; what is only told does not count."""
        return sum(count for kind, count in self.by_kind.items() if kind not in NOTES)

    @property
    def sound(self) -> bool:
        """Whether nothing is wrong, or nothing any more."""
        return self.problem_count == self.healed

    @property
    def exit_code(self) -> int:
        """0 where nothing is wrong (any more), else 1."""
        return 0 if self.sound else 1

    def to_json(self) -> dict[str, Any]:
        """As a JSON object."""
        options = self.options
        return {
            "store": self.store,
            "started": self.started,
            "sound": self.sound,
            "sample": options.sample,
            "seed": options.seed if options.sample < 100 else None,
            "since_ns": options.since_ns,
            "dry_run": options.look_only,
            "repair": options.repair,
            "resumed": self.resumed,
            "counts": {name: self.counts[name] for name in COUNTS},
            "kinds": self.by_kind,
            "problem_count": self.problem_count,
            "healed": self.healed,
            "problems": [problem.to_json() for problem in self.problems],
            "seconds": round(self.seconds, 3),
        }


def printable(text: str) -> str:
    """A name as text: what is no character in it is escaped."""
    return text.encode("utf-8", "backslashreplace").decode()
