"""What a copy was asked for, and what became of it."""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

MAX_PROBLEMS = 10_000
"""Problems that a report holds; more are counted."""

COUNTS = (
    "blobs copied",
    "bytes copied",
    "blobs there",
    "entries copied",
    "entries there",
    "tombstones copied",
    "tombstones there",
    "tombstones left out",
    "pins copied",
    "pins there",
    "pins expired",
)
"""What is counted, in the order that people read it."""


@dataclass(frozen=True, slots=True)
class Options:
    """What a copy is to do.

    Attributes:
        result_class: the class of the job keys that are named.
        tombstones: copy tombstones too, where the target has nothing under their name.
        replace_ended: copy entries that were ended at the target.
        dry_run: write nothing; say what would be copied.
        workers: threads; twice the cores where None.
    """

    result_class: str = "any"
    tombstones: bool = False
    replace_ended: bool = False
    dry_run: bool = False
    workers: int | None = None


@dataclass(slots=True)
class Report:
    """What was copied, and what was not.

    Attributes:
        source: the store that was copied from.
        target: the store that was copied to.
        dry_run: nothing was written.
        counts: see `COUNTS`.
        problems: what could not be copied, or stands at the target and differs; the first `MAX_PROBLEMS`.
        problem_count: how many there are.
    """

    source: str
    target: str
    dry_run: bool
    counts: Counter[str] = field(default_factory=Counter)
    problems: list[dict[str, str]] = field(default_factory=list)
    problem_count: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, what: str, count: int = 1) -> None:
        """Count something."""
        with self.lock:
            self.counts[what] += count

    def problem(self, kind: str, name: str, why: str) -> None:
        """Note something that could not be copied."""
        with self.lock:
            self.problem_count += 1
            if len(self.problems) < MAX_PROBLEMS:
                self.problems.append({"kind": kind, "name": name, "detail": why})

    @property
    def exit_code(self) -> int:
        """0 where the target has all that was asked for, else 1."""
        return 1 if self.problem_count else 0

    def to_json(self) -> dict[str, Any]:
        """As a JSON object."""
        return {
            "source": self.source,
            "target": self.target,
            "dry_run": self.dry_run,
            "counts": {name.replace(" ", "_"): self.counts[name] for name in COUNTS},
            "problem_count": self.problem_count,
            "problems": self.problems,
        }
