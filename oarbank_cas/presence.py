"""A short memory of what was seen present, so that lookups need not ask again: for lookups only, never for a writer."""

from __future__ import annotations

import sys
import threading
import time
from collections import OrderedDict

MAX_REMEMBERED = 200_000
"""Observations kept; the oldest go first."""

MAX_SPAN_S = 600.0
"""Seconds that an observation may serve at most, however long the session is."""


def _awake_or_asleep() -> float:
    """Seconds that also pass while the machine sleeps, where the system counts them."""
    if sys.platform == "linux":
        return time.clock_gettime(time.CLOCK_BOOTTIME)
    return time.monotonic()


class Presence:
    """What was seen, and when.

    Args:
        session_s: the store's session in seconds: an observation serves for a quarter of it at most.
    """

    def __init__(self, session_s: int) -> None:
        self._span = min(session_s / 4, MAX_SPAN_S)
        self._seen: OrderedDict[str, tuple[float, float]] = OrderedDict()
        self._lock = threading.Lock()

    @staticmethod
    def moment() -> tuple[float, float]:
        """Now, by two clocks that fail in different ways. Taken before the look that it stands for."""
        return _awake_or_asleep(), time.time()

    def seen(self, name: str) -> tuple[float, float] | None:
        """The moment of the look that found `name`, if that is recent enough."""
        seen = self._seen.get(name)
        if seen is None:
            return None
        now = self.moment()
        return seen if all(0 <= now[i] - seen[i] < self._span for i in (0, 1)) else None

    def forget(self) -> None:
        """Forget everything: something was taken away that should be missed at once."""
        with self._lock:
            self._seen.clear()

    def saw(self, name: str, moment: tuple[float, float]) -> None:
        """Remember that `name` was there, seen after `moment`."""
        with self._lock:
            self._seen[name] = moment
            self._seen.move_to_end(name)
            if len(self._seen) > MAX_REMEMBERED:
                self._seen.popitem(last=False)
