"""What `explain` answers, and how that is written as JSON."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from oarbank_cas.contracts.difference import Difference

Answer = Literal[
    "hit",
    "invalidated",
    "expired",
    "withdrawn",
    "ended",
    "incomplete",
    "corrupt",
    "other-class",
    "other-stage",
    "never",
]
"""What became of the result of a key and class.

- `hit`: it is there, and can be used.
- `invalidated`, `expired`, `withdrawn`: it was ended, by somebody, by gc's retention, by its own writer; `ended`: in a
  way that this version does not know.
- `incomplete`: blobs of it are not there. `corrupt`: the entry is damaged.
- `other-class`: nothing is recorded in this class, and a hit is in another. `other-stage`: the same of a stage.
- `never`: nothing is known of it.
"""

Kept = Literal["kept", "gone", "none"]
"""Whether the store has the key's inputs: they are there; an entry names them and they are gone; nothing names them."""


@dataclass(frozen=True, slots=True)
class Standing:
    """An entry or tombstone of the key.

    Attributes:
        job_key: with its stage.
        result_class: its class.
        status: `hit`, or the reason why it is none.
        recorded_at: when it was recorded, where that can be read.
        recorded_by: by whom.
    """

    job_key: str
    result_class: str
    status: str
    recorded_at: str | None
    recorded_by: str | None

    def to_json(self) -> dict[str, Any]:
        """As a JSON object."""
        document = asdict(self)
        document["class"] = document.pop("result_class")
        return document


@dataclass(frozen=True, slots=True)
class Run:
    """The gc that ended an entry.

    Attributes:
        run: its id.
        started: the store's time of it.
        by: who ran it.
        policy: the retention policy that held; None, as the two before, where its record is gone.
    """

    run: str
    started: str | None = None
    by: str | None = None
    policy: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Ending:
    """How an entry ended.

    Attributes:
        at: when; None where only a gc's audit knows of it.
        by: who.
        reason: why.
        gc: the gc that did it, where one did.
    """

    at: str | None
    by: str | None
    reason: str | None
    gc: Run | None = None


@dataclass(frozen=True, slots=True)
class LostBlob:
    """A blob that an entry needs and that is not there.

    Attributes:
        digest: its digest.
        size: its bytes, where the envelope says so.
        last_seen: when it was surely there, for the last time that the store knows of; None where it knows of none.
        seen_by: what says so.
        why: what became of it, or `not known`.
    """

    digest: str
    size: int | None
    last_seen: str | None
    seen_by: str | None
    why: str


@dataclass(frozen=True, slots=True)
class Near:
    """A recorded result whose inputs are like those asked for.

    Attributes:
        job_key: with its stage.
        result_class: its class.
        recorded_at: when it was recorded.
        recorded_by: by whom.
        count: how many differences there are.
        differences: the first of them, from what is recorded to what was asked for.
    """

    job_key: str
    result_class: str
    recorded_at: str | None
    recorded_by: str | None
    count: int
    differences: tuple[Difference, ...]

    def to_json(self) -> dict[str, Any]:
        """As a JSON object."""
        return {
            "job_key": self.job_key,
            "class": self.result_class,
            "recorded_at": self.recorded_at,
            "recorded_by": self.recorded_by,
            "difference_count": self.count,
            "differences": [each.to_json() for each in self.differences],
        }


@dataclass(frozen=True, slots=True)
class Explanation:
    """The answer to why a job is a hit or a miss.

    Attributes:
        job_key: the key asked for.
        result_class: the class asked for.
        answer: what became of it.
        detail: the same for people.
        recorded_at: when the entry of this key and class was recorded, where there is or was one.
        recorded_by: by whom.
        ended: how it ended, if it did.
        missing: blobs of an incomplete entry, at most `traces.MAX_TRACED`.
        missing_count: how many there are.
        others: entries and tombstones of other classes and stages of the key.
        key_inputs: whether the store has the key's inputs.
        nearest: recorded results of the module that are like it, nearest first.
        searched: how many jobs of the module the nearest were looked for among; None where nobody looked.
    """

    job_key: str
    result_class: str
    answer: Answer
    detail: str
    recorded_at: str | None = None
    recorded_by: str | None = None
    ended: Ending | None = None
    missing: tuple[LostBlob, ...] = ()
    missing_count: int = 0
    others: tuple[Standing, ...] = ()
    key_inputs: Kept = "none"
    nearest: tuple[Near, ...] = field(default=())
    searched: int | None = None

    @property
    def hit(self) -> bool:
        """Whether the result can be used."""
        return self.answer == "hit"

    def to_json(self) -> dict[str, Any]:
        """As a JSON object."""
        return {
            "job_key": self.job_key,
            "class": self.result_class,
            "status": "hit" if self.hit else "miss",
            "answer": self.answer,
            "detail": self.detail,
            "recorded_at": self.recorded_at,
            "recorded_by": self.recorded_by,
            "ended": asdict(self.ended) if self.ended else None,
            "missing": [asdict(each) for each in self.missing],
            "missing_count": self.missing_count,
            "others": [each.to_json() for each in self.others],
            "key_inputs": self.key_inputs,
            "nearest": [each.to_json() for each in self.nearest],
            "searched": self.searched,
        }
