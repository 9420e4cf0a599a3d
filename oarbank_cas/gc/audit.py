"""gc's own records in the store: which runs are under way, and what each run was to do and did.

`gc/running/<run>` stands while a run works; it is advice for people, and no lock. `gc/runs/<seconds>-<run>.json` says
who ran, when by which clocks, under which policy, what was planned and what was done; it stays for 90 days, and the
last completed one leads to what the next run can build on. `gc/ended/` names the entries that each run ended, for as
long: their tombstones may go earlier.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from oarbank_cas import layout
from oarbank_cas.errors import BusyError, CasError, CorruptError, NotFoundError
from oarbank_cas.gc.clocks import Moment

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from oarbank_cas.backends.base import Backend
    from oarbank_cas.descriptor import Descriptor
    from oarbank_cas.gc.clocks import Surroundings

KEEP_DAYS = 90
"""Days that the record of a run stays."""

STALE_S = 600
"""Seconds after which the record of a running gc that does not renew it counts for nothing."""

BEAT_S = 60.0
"""Seconds after which a running gc renews its record."""

_LOOK_BACK = 50
"""Records that are looked at for the last completed run."""

_MAX_RECORD = 16 * 2**20
_S_NS = 10**9
_BEGINNING = 8
_ENDED = re.compile(re.escape(layout.GC_ENDED) + r"\d{12,}-([0-9a-z]+)-([0-9a-f]{8})-([0-9a-f]{8})")


@dataclass(frozen=True, slots=True)
class Record:
    """The record of an earlier run, as far as a later one needs it.

    Attributes:
        run: its id.
        store: the store's id.
        epoch: the store's epoch.
        tm_ns: the run's time, by the store's clock.
        moment: the same moment, by gc's clocks.
        completed: it did all that it had planned, without a doubt.
        parts: how many parts each stream under `gc/state/` has.
    """

    run: str
    store: str
    epoch: int
    tm_ns: int
    moment: Moment
    completed: bool
    parts: dict[str, int]


def _read(backend: Backend, name: str) -> Record | None:
    try:
        document = json.loads(backend.read(name, _MAX_RECORD)[0])
        moment = Moment.from_json(document["moment"])
        parts = {str(kind): int(count) for kind, count in document.get("state", {}).items()}
        if moment is None:
            return None
        return Record(
            str(document["run"]),
            str(document["store"]),
            int(document["epoch"]),
            int(document["tm_ns"]),
            moment,
            document.get("completed") is True,
            parts,
        )
    except (NotFoundError, CorruptError, ValueError, KeyError, TypeError, AttributeError):
        return None  # a record that cannot be read is none: it only costs time


def earlier(backend: Backend, descriptor: Descriptor) -> list[Record]:
    """The records of the last runs in this epoch of the store, the latest first."""
    names = [stat.name for stat in backend.listing(layout.GC_RUNS)]
    found: list[Record] = []
    for name in reversed(names[-_LOOK_BACK:]):
        record = _read(backend, name)
        if record is not None and (record.store, record.epoch) == (descriptor.id, descriptor.epoch):
            found.append(record)
            if record.completed:
                break
    return found


class Journal:
    """The records of one run.

    Args:
        backend: the store's storage.
        run: the run's id.
        by: who runs it.
        around: the machine.
    """

    def __init__(self, backend: Backend, run: str, by: str, around: Surroundings) -> None:
        self._backend = backend
        self._run = run
        self._by = by
        self._around = around
        self._record: str | None = None
        self._beaten = around.seconds()
        self._announced = False

    # -- who is at it

    def announce(self, *, anyway: bool) -> None:
        """Say that this run is under way.

        Raises:
            BusyError: another is, and `anyway` is False.
        """
        own = f"{layout.GC_RUNNING}{self._run}"
        self._backend.create(own, self._running())
        self._announced = True
        mine = self._backend.stat(own)
        if mine is None:
            return
        for name, time_ns, told in list(self._others(mine.time_ns)):
            if not anyway and (time_ns, name) < (mine.time_ns, own):
                self.withdraw()
                raise BusyError(
                    f"another gc of {self._backend.where} is under way ({told}): wait for it, or use --anyway"
                )

    def _running(self) -> bytes:
        moment = self._around.moment()
        return (json.dumps({"by": self._by, "host": moment.host, "pid": os.getpid()}) + "\n").encode()

    def _others(self, now_ns: int) -> Iterator[tuple[str, int, str]]:
        for stat in self._backend.listing(layout.GC_RUNNING):
            if stat.name == f"{layout.GC_RUNNING}{self._run}":
                continue
            try:
                document = json.loads(self._backend.read(stat.name, _MAX_RECORD)[0])
                by, host, pid = str(document["by"]), str(document["host"]), int(document["pid"])
            except (NotFoundError, CorruptError, ValueError, KeyError, TypeError):
                by, host, pid = "somebody", "", 0
            if abs(now_ns - stat.time_ns) > STALE_S * _S_NS or self._is_dead(host, pid):
                self._backend.delete(stat.name, stat.validator)
            else:
                yield stat.name, stat.time_ns, f"{by} on {host}, process {pid}"

    def _is_dead(self, host: str, pid: int) -> bool:
        if host != self._around.moment().host or pid in (0, os.getpid()) or os.name == "nt":
            return False
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        except OSError:
            return False
        return False

    def beat(self) -> None:
        """Renew the record of the running gc now and then; best effort."""
        if not self._announced or self._around.seconds() - self._beaten < BEAT_S:
            return
        self._beaten = self._around.seconds()
        own = f"{layout.GC_RUNNING}{self._run}"
        with contextlib.suppress(CasError):
            standing = self._backend.stat(own)
            incoming = self._backend.incoming()
            incoming.write(self._running())
            if standing is None:
                self._backend.commit([(own, incoming)])
            else:
                self._backend.replace(own, incoming, standing.validator)

    def withdraw(self) -> None:
        """Say that this run is over; best effort."""
        if self._announced:
            self._announced = False
            with contextlib.suppress(CasError):
                self._backend.delete(f"{layout.GC_RUNNING}{self._run}")

    # -- what was done

    def write(self, tm_ns: int, document: dict[str, Any]) -> None:
        """Write the record of the run, or write it anew."""
        data = (json.dumps(document) + "\n").encode()
        name = f"{layout.GC_RUNS}{tm_ns // _S_NS:012d}-{self._run}.json"
        if self._record is None:
            incoming = self._backend.incoming(len(data))
            incoming.write(data)
            made = self._backend.commit([(name, incoming)])[0]
        else:
            incoming = self._backend.incoming(len(data))
            incoming.write(data)
            made = self._backend.replace(name, incoming, self._record)
        self._record = made.validator if made else None


def write_ended(backend: Backend, tm_ns: int, run: str, names: Sequence[str]) -> None:
    """Note which entries a run ended.

    Args:
        backend: the store's storage.
        tm_ns: the run's time.
        run: its id.
        names: their object names, in order.
    """
    if names:
        first, last = (name.split("/")[2][:_BEGINNING] for name in (names[0], names[-1]))
        data = "".join(f"{name}\n" for name in names).encode()
        backend.create(layout.gc_ended(tm_ns // _S_NS, run, first, last), data)


def who_ended(backend: Backend, name: str) -> str | None:
    """The run that was the last to end an entry, by the entry's object name; None where that is not known (any more).

    Raises:
        UnavailableError: the store is out of reach.
    """
    beginning = name.split("/")[2][:_BEGINNING]
    parts = []
    for stat in backend.listing(layout.GC_ENDED):
        match = _ENDED.fullmatch(stat.name)
        if match is not None and match[2] <= beginning <= match[3]:
            parts.append((stat.name, match[1]))
    for part, run in reversed(parts):
        with contextlib.suppress(NotFoundError, CorruptError):
            if name in backend.read(part, _MAX_RECORD)[0].decode("ascii", "replace").splitlines():
                return run
    return None


def run_record(backend: Backend, run: str) -> dict[str, Any] | None:
    """The whole record of a run; None where it is gone or cannot be read.

    Raises:
        UnavailableError: the store is out of reach.
    """
    for stat in backend.listing(layout.GC_RUNS):
        if stat.name.endswith(f"-{run}.json"):
            try:
                document = json.loads(backend.read(stat.name, _MAX_RECORD)[0])
            except (NotFoundError, CorruptError, ValueError, RecursionError):
                return None
            return document if isinstance(document, dict) else None
    return None


def clean(backend: Backend, run: str, tm_ns: int, base: str | None) -> None:
    """Remove records older than 90 days, and what runs left that no later run builds on.

    Args:
        backend: the store's storage.
        run: the run that has just completed.
        tm_ns: its time.
        base: the run that it was built on.
    """
    oldest = tm_ns - KEEP_DAYS * 86400 * _S_NS
    for prefix in (layout.GC_RUNS, layout.GC_ENDED):
        backend.delete_many([stat.name for stat in backend.listing(prefix) if stat.time_ns < oldest])
    running = {stat.name.removeprefix(layout.GC_RUNNING) for stat in backend.listing(layout.GC_RUNNING)}
    left: list[str] = []
    for stat in backend.listing(layout.GC_STATE):
        owner = stat.name.removeprefix(layout.GC_STATE).partition("/")[0]
        if owner not in running | {run} and (owner == base or stat.time_ns + 86400 * _S_NS < tm_ns):
            left.append(stat.name)
    backend.delete_many(left)
