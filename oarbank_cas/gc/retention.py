"""Which entries are kept: a policy, where it comes from, and what it ends. Nothing ends unasked."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Self

from oarbank_cas import layout
from oarbank_cas.contracts.canonical import parse_json
from oarbank_cas.errors import InvalidInputError, NotFoundError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from oarbank_cas.backends.base import Backend
    from oarbank_cas.gc.ledger import Ledger

_DAY_NS = 86400 * 10**9
_MAX_BYTES = 64 * 1024
TOMBSTONE_DAYS = 30.0
"""Days that a tombstone stays, unless the policy says else."""


@dataclass(frozen=True, slots=True)
class Policy:
    """How long entries are kept. None leaves a rule out.

    An entry is kept where any of the first three keeps it, or where none of them is given, or where it is pinned. Then,
    while what is kept has more than `max_bytes`, the least recently hit goes, but never a pinned one.

    Attributes:
        keep_days: days since it was recorded.
        keep_hit_days: days since its last hit, or since it was recorded where it had none.
        keep_newest: so many of each module, newest first.
        max_bytes: bytes of all that entries and pins reach, what they share counted once.
        tombstone_days: days that a tombstone stays for diagnosis, and for `invalidate --undo`.
        dropped: names of rules that are not taken from the store's policy either.
    """

    keep_days: float | None = None
    keep_hit_days: float | None = None
    keep_newest: int | None = None
    max_bytes: int | None = None
    tombstone_days: float | None = None
    dropped: frozenset[str] = field(default=frozenset(), kw_only=True)

    def __post_init__(self) -> None:
        for name, type_name in _rules(self):
            value = getattr(self, name)
            kinds = (int,) if type_name.startswith("int") else (int, float)
            if value is not None and (
                isinstance(value, bool) or not isinstance(value, kinds) or not 0 <= value < 2**63
            ):
                raise InvalidInputError(f"is no number that a retention policy takes: {value!r}", name)

    @property
    def asks(self) -> bool:
        """Whether it can end any entry."""
        return (self.keep_days, self.keep_hit_days, self.keep_newest, self.max_bytes) != (None, None, None, None)

    @property
    def tombstone_ns(self) -> int:
        """Nanoseconds that a tombstone stays."""
        return int((TOMBSTONE_DAYS if self.tombstone_days is None else self.tombstone_days) * _DAY_NS)

    def to_json(self) -> dict[str, Any]:
        """As a JSON object: what `policy.json` holds."""
        found = {name: getattr(self, name) for name, _ in _rules(self)}
        return {name: value for name, value in found.items() if value is not None}

    def over(self, stored: Policy) -> Policy:
        """This policy, with the rules that it leaves out, and does not drop, taken from `stored`."""
        taken = {name: value for name, value in stored.to_json().items() if name not in self.dropped}
        return Policy(**(taken | self.to_json()))

    @classmethod
    def load(cls, backend: Backend) -> Self:
        """The policy that the store holds, `policy.json`; the empty one where there is none.

        Raises:
            InvalidInputError: it cannot be understood, so that nobody knows what may go.
        """
        try:
            data, _ = backend.read(layout.POLICY, _MAX_BYTES)
        except NotFoundError:
            return cls()
        where = f"{layout.POLICY} in {backend.where}"
        document: Any = parse_json(data, where=where)
        known = {name for name, _ in _rules(cls)}
        if not isinstance(document, dict) or not document.keys() <= known:
            raise InvalidInputError(f"must be an object with no other members than {', '.join(sorted(known))}", where)
        return cls(**document)

    def save(self, backend: Backend) -> None:
        """Make this the store's policy."""
        data = (json.dumps(self.to_json(), indent=2) + "\n").encode()
        standing = backend.stat(layout.POLICY)
        while True:
            incoming = backend.incoming(len(data))
            incoming.write(data)
            done = (
                backend.commit([(layout.POLICY, incoming)])[0]
                if standing is None
                else backend.replace(layout.POLICY, incoming, standing.validator)
            )
            if done is not None:
                return
            standing = backend.stat(layout.POLICY)


def _rules(policy: Policy | type[Policy]) -> list[tuple[str, str]]:
    """Name and type of every rule of a policy."""
    return [(each.name, str(each.type)) for each in fields(policy) if each.name != "dropped"]


def decide(ledger: Ledger, policy: Policy, tm_ns: int) -> None:
    """Note in the ledger which entries the policy ends.

    Args:
        ledger: has every entry, and what each reaches.
        policy: the rules.
        tm_ns: the run's time.
    """
    if (policy.keep_days, policy.keep_hit_days, policy.keep_newest) != (None, None, None):
        ledger.expire(list(_outlived(ledger, policy, tm_ns)))
    if policy.max_bytes is not None:
        ledger.expire(list(_beyond(ledger, policy.max_bytes)))


def _outlived(ledger: Ledger, policy: Policy, tm_ns: int) -> Iterator[int]:
    module, rank = None, 0
    for entry in ledger.entries("newest"):
        rank = rank + 1 if entry.module == module else 1
        module = entry.module
        kept = (
            entry.pinned
            or (policy.keep_newest is not None and rank <= policy.keep_newest)
            or _within(entry.recorded_ns, policy.keep_days, tm_ns)
            or _within(entry.used_ns, policy.keep_hit_days, tm_ns)
        )
        if not kept:
            yield entry.id


def _within(time_ns: int, days: float | None, tm_ns: int) -> bool:
    return days is not None and time_ns + days * _DAY_NS >= tm_ns


def _beyond(ledger: Ledger, max_bytes: int) -> Iterator[int]:
    """The least recently used entries, from the first on with which the bytes are too many. Pinned ones come before."""
    pinned = {entry.id for entry in ledger.entries("used") if entry.pinned}
    held, full = 0, False
    for number, size in ledger.marginal_bytes():
        held += size
        full = full or held > max_bytes
        if full and number is not None and number not in pinned:
            yield number
