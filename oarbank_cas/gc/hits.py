"""When entries were last hit: noted by clients at most once a day each, read and folded together by gc. Best effort.

`gc/hits/<day>/<client>` holds the object names of the entries that a client hit on that day (UTC), one a line.
`gc/hits/folded/<run>-<n>` holds lines `<day> <object name>`: what gc made of older days. The last hit of an entry
is the latest that any of them says.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
import threading
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from oarbank_cas import layout
from oarbank_cas.contracts.keys import parse_key
from oarbank_cas.errors import CasError, CorruptError, NotFoundError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from oarbank_cas.backends.base import Backend
    from oarbank_cas.gc.ledger import Ledger

FLUSH_S = 900.0
"""Seconds for which hits are kept in memory before they are written."""

MAX_NOTED = 200_000
"""Entries that one client notes a day; what comes after is not noted."""

_DAY_NS = 86400 * 10**9
_MAX_OBJECT = 256 * 2**20
_FOLDED = f"{layout.GC_HITS}folded/"
_FOLD_LINES = 10_000
_DAILY = re.compile(re.escape(layout.GC_HITS) + r"(\d{4}-\d\d-\d\d)/[^/]+")
_TRIES = 5


def _day_text(time_ns: int) -> str:
    return datetime.fromtimestamp(time_ns // 10**9, UTC).strftime("%Y-%m-%d")


def _day_end_ns(text: str) -> int | None:
    try:
        start = datetime.strptime(text, "%Y-%m-%d").replace(tzinfo=UTC)
    except ValueError:
        return None
    return int(start.timestamp()) * 10**9 + _DAY_NS - 1


def client_id() -> str:
    """Names this machine and user, and says nothing about them."""
    import getpass
    import socket

    try:
        user = getpass.getuser()
    except (OSError, KeyError):  # no such user in the system's list
        user = "unknown"
    return hashlib.sha256(f"{socket.gethostname()} {user}".encode()).hexdigest()[:16]


class HitRecorder:
    """Notes hits in memory, and writes them now and then, behind the caller's back. A lookup never waits for it.

    Args:
        backend: the store's storage.
        client: names the client in the store; this machine and user where None.
        clock: nanoseconds since 1970, by this machine.
    """

    def __init__(self, backend: Backend, client: str | None = None, clock: Callable[[], int] = time.time_ns) -> None:
        self._backend = backend
        self._client = client
        self._clock = clock
        self._lock = threading.Lock()  # held while writing
        self._names_lock = threading.Lock()  # held for an instant
        self._noted: dict[str, set[str]] = {}
        self._written: tuple[str, set[str]] = ("", set())
        self._flushed_at = time.monotonic()
        self._writing: threading.Thread | None = None

    def note(self, job_key: str, result_class: str) -> None:
        """Note a hit. Never raises, never waits for the storage."""
        parts = parse_key(job_key)
        name = layout.entry(parts.hex, parts.stage, result_class)
        day = _day_text(self._clock())
        with self._names_lock:
            if day == self._written[0] and name in self._written[1]:
                return
            noted = self._noted.setdefault(day, set())
            if len(noted) < MAX_NOTED:
                noted.add(name)
        if time.monotonic() - self._flushed_at > FLUSH_S and self._lock.acquire(blocking=False):
            self._flushed_at = time.monotonic()
            self._lock.release()
            thread = threading.Thread(target=self.flush, name="oarbank-cas-hits", daemon=True)
            self._writing = thread
            thread.start()

    def flush(self) -> None:
        """Write what was noted; what cannot be written is lost."""
        with self._lock:
            self._flushed_at = time.monotonic()
            with self._names_lock:
                days, self._noted = self._noted, {}
                for day, names in days.items():
                    written = self._written[1] if self._written[0] == day else set()
                    self._written = (day, written | names if len(written) < MAX_NOTED else written)
            for day, names in days.items():
                with contextlib.suppress(CasError):
                    self._write(day, names)

    def _write(self, day: str, names: set[str]) -> None:
        self._client = self._client or client_id()
        name = f"{layout.GC_HITS}{day}/{self._client}"
        for _ in range(_TRIES):
            try:
                data, stat = self._backend.read(name, _MAX_OBJECT)
            except NotFoundError:
                if self._backend.create(name, _lines(names)):
                    return
                continue
            standing = set(data.decode("utf-8", "replace").split())
            if names <= standing:
                return
            incoming = self._backend.incoming()
            incoming.write(_lines(standing | names))
            if self._backend.replace(name, incoming, stat.validator) is not None:
                return

    def close(self) -> None:
        """Write what was noted. Harmless when repeated."""
        self.flush()


def _lines(names: Iterable[str]) -> bytes:
    return "".join(f"{name}\n" for name in sorted(names)).encode()


# -- gc's side


def read_hits(backend: Backend, ledger: Ledger) -> list[str]:
    """Put every hit into the ledger; the names of the objects that were read.

    Raises:
        CorruptError: the objects changed all the time, or one is too large.
    """
    for _ in range(_TRIES):
        names = [stat.name for stat in backend.listing(layout.GC_HITS)]
        try:
            for name in names:
                ledger.add_hits(_hits_in(name, backend.read(name, _MAX_OBJECT)[0]))
        except NotFoundError:
            continue  # another gc folded it meanwhile: what it wrote instead was not listed yet
        return names
    raise CorruptError(f"the notes under {layout.GC_HITS} in {backend.where} change all the time; run gc again")


def _hits_in(name: str, data: bytes) -> Iterator[tuple[str, int]]:
    daily = _DAILY.fullmatch(name)
    for line in data.decode("utf-8", "replace").splitlines():
        day, entry = (daily[1], line) if daily else line.partition(" ")[::2]
        time_ns = _day_end_ns(day)
        if time_ns is not None and entry.startswith(layout.RESULTS):
            yield entry, time_ns


def fold(backend: Backend, ledger: Ledger, names: list[str], run: str, tm_ns: int) -> None:
    """Fold what was noted on days that are over into few objects; hits of entries that are gone are dropped.

    Args:
        backend: the store's storage.
        ledger: has the hits of `names`, and the entries.
        names: what `read_hits` read.
        run: the run's id.
        tm_ns: the run's time.
    """
    over = _day_text(tm_ns - 2 * _DAY_NS)
    old = [name for name in names if (daily := _DAILY.fullmatch(name)) and daily[1] <= over]
    if not old:
        return
    lines: list[str] = []
    parts = 0
    for entry, time_ns in ledger.live_hits():
        lines.append(f"{_day_text(time_ns)} {entry}\n")
        if len(lines) == _FOLD_LINES:
            backend.create(f"{_FOLDED}{run}-{parts:06d}", "".join(lines).encode())
            parts, lines = parts + 1, []
    if lines:
        backend.create(f"{_FOLDED}{run}-{parts:06d}", "".join(lines).encode())
    backend.delete_many(old + [name for name in names if name.startswith(_FOLDED)])
