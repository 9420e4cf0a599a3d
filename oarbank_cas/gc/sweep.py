"""The sweep: carries out a plan, in an order that may be broken off anywhere, and counts what it did.

Entries are ended first, durably. Blobs are condemned by renaming or by copying, whichever the storage can do (rules 8
and 9). Nothing here decides: the plan has.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from oarbank_cas import layout
from oarbank_cas.backends.base import ObjectStat
from oarbank_cas.errors import ConflictError, NotFoundError
from oarbank_cas.gc import rules
from oarbank_cas.gc.audit import write_ended
from oarbank_cas.gc.report import Table, age_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from oarbank_cas.backends.base import Backend
    from oarbank_cas.blobs import Blobs
    from oarbank_cas.gc.clocks import Surroundings
    from oarbank_cas.gc.ledger import Action, Ledger
    from oarbank_cas.results import Results

_TOUCHES = 3
"""Times that a fossil is touched again because another gc touched it between."""


class Sweep:
    """Carries out one run's plan.

    Args:
        backend: the store's storage.
        blobs: its blobs.
        results: its results.
        ledger: has the plan.
        around: gives nonces.
        by: who runs it, for tombstones.
        run: the run's id, for tombstones.
        tm_ns: the run's time.
        table: counts what is done.
        progress: called after each group.
    """

    def __init__(
        self,
        backend: Backend,
        blobs: Blobs,
        results: Results,
        ledger: Ledger,
        around: Surroundings,
        by: str,
        run: str,
        tm_ns: int,
        table: Table,
        progress: Callable[[str, int], None],
    ) -> None:
        self._backend = backend
        self._blobs = blobs
        self._results = results
        self._ledger = ledger
        self._around = around
        self._by = by
        self._run = run
        self._tm_ns = tm_ns
        self._table = table
        self._progress = progress
        self.refused = 0

    def run(self, stall_bound_s: int | None) -> None:
        """Do everything that is planned.

        Args:
            stall_bound_s: where the storage can neither rename nor refuse a late delete: seconds that an operator
                promises no request of this run to be held up for.
        """
        self.expire()
        for group in self._ledger.planned("finish"):
            self._finish(group)
        for group in self._ledger.planned("revive"):
            self._revive(group)
        for group in self._ledger.planned("condemn"):
            if self._backend.atomic_move:
                self._condemn_by_rename(group)
            else:
                self._condemn_by_copy(group, stall_bound_s)
            self._progress("condemn", len(group))
        for group in self._ledger.planned("purge"):
            self._purge(group)
        for group in self._ledger.planned("forget"):
            self._forget(group)

    def _count(self, row: str, done: Action, size: int | None = None) -> None:
        self._table.add(row, age_of(done.time_ns, self._tm_ns), done.size if size is None else size)

    # -- entries (rule 7)

    def expire(self) -> None:
        """End the entries that retention ends: a tombstone in the place of the very entry that was judged."""
        for group in self._ledger.planned("expire"):
            ended = []
            for action in group:
                stat = ObjectStat(action.name, action.size, action.time_ns, action.validator)
                if self._results.expire(stat, by=self._by, reason="retention", run=self._run) is not None:
                    ended.append(action.name)
                    module = self._ledger.module_of(action.name)
                    self._table.add("entries expired", age_of(action.time_ns, self._tm_ns), action.size, module)
            write_ended(self._backend, self._tm_ns, self._run, ended)
            self._progress("expire", len(group))

    def _forget(self, group: Sequence[Action]) -> None:
        for action in group:
            if self._backend.delete(action.name, action.validator):
                self._count("tombstones removed", action)
        self._progress("forget", len(group))

    # -- condemning (rules 1, 8, 9, 10)

    def _fossil(self, digest: str, life_s: int = 0) -> str:
        return layout.fossil(digest, rules.fossil_nonce(self._around.nonce(), life_s))

    def _condemn_by_rename(self, group: Sequence[Action]) -> None:
        moves = [(a.name, self._fossil(rules.blob_of(a.name) or "") + rules.MOVING, a.validator) for a in group]
        moved = self._backend.rename_many(moves)
        gone = [(action, to) for action, (_, to, _), done in zip(group, moves, moved, strict=True) if done]
        for name in self._settle([to for _, to in gone]):
            self._ledger.saw(name, None)
        for action, _ in gone:
            self._count("blobs condemned", action)

    def _settle(self, names: Sequence[str]) -> list[str]:
        """Touch what was moved aside and give it its final name; which those are. Another gc may be at it too."""
        settled: list[str] = []
        left = list(names)
        for _ in range(_TOUCHES):
            if not left:
                break
            touched = self._backend.touch_many(left)
            moves = [(stat.name, stat.name.removesuffix(rules.MOVING), stat.validator) for stat in touched if stat]
            done = self._backend.rename_many(moves)
            settled += [to for (_, to, _), moved in zip(moves, done, strict=True) if moved]
            left = [name for (name, _, _), moved in zip(moves, done, strict=True) if not moved]
        return settled

    def _condemn_by_copy(self, group: Sequence[Action], stall_bound_s: int | None) -> None:
        life_s = rules.DELETE_LIFE_S
        if not self._backend.expiring_delete:
            life_s = max(life_s, 2 * (stall_bound_s or 0))
        for action in group:
            digest = rules.blob_of(action.name) or ""
            standing = self._backend.stat(action.name)
            if standing is None or standing.validator != action.validator:
                continue  # gone, or brought in again since
            to = self._fossil(digest, life_s)
            try:
                copied = self._backend.copy(action.name, to)
            except NotFoundError:
                continue
            if copied is None:
                continue
            self._ledger.saw(to, None)
            if self._delete_copied(action.name, copied.time_ns, life_s):
                self._count("blobs condemned", action)
            else:
                self.refused += 1

    def _delete_copied(self, name: str, copied_ns: int, life_s: int) -> bool:
        """Remove what was copied, but only within `life_s` of the copy's time; else leave it."""
        if self._backend.expiring_delete:
            try:
                return self._backend.delete_expiring(name, copied_ns, life_s)
            except ConflictError:
                return False
        # Sent within the first half of its life, and by an operator's word held up for no longer than the second.
        return self._backend.now() - copied_ns < life_s * 10**9 // 2 and self._backend.delete(name)

    def _finish(self, group: Sequence[Action]) -> None:
        """Rule 8: give fossils their final names that a gc left half-renamed."""
        if self._backend.atomic_move:
            done = set(self._settle([action.name for action in group]))
        else:
            done = {name for action in group if (name := self._finish_by_copy(action)) is not None}
        for action in group:
            name = action.name.removesuffix(rules.MOVING)
            if name in done:
                self._ledger.saw(name, None)
                self._count("fossils finished", action)

    def _finish_by_copy(self, action: Action) -> str | None:
        name = action.name.removesuffix(rules.MOVING)
        try:
            made = self._backend.copy(action.name, name)
        except NotFoundError:
            return None
        self._backend.delete(action.name)
        return name if made else None

    # -- reviving and purging (rules 11, 12, 13)

    def _revive(self, group: Sequence[Action]) -> None:
        for action in group:
            if self._backend.stat(layout.blob(action.name)) is None:
                made = self._blobs.revive(action.name)
                if made is not None:
                    self._table.add("blobs revived", "under 1 day", made.size)
        self._progress("revive", len(group))

    def _purge(self, group: Sequence[Action]) -> None:
        self._backend.delete_many([action.name for action in group])
        for action in group:
            self._count("fossils purged", action)
        self._progress("purge", len(group))
