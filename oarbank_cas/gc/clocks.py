"""The clocks of the machine that gc runs on, and what passed between two runs by them (rule 12)."""

from __future__ import annotations

import secrets
import socket
import sys
import time
from dataclasses import dataclass
from typing import Any, Self

_BOOT_ID = "/proc/sys/kernel/random/boot_id"


@dataclass(frozen=True, slots=True)
class Moment:
    """One moment by gc's clocks.

    Attributes:
        host: the machine's name.
        wall_ns: its clock, nanoseconds since 1970.
        boot_id: names the machine's present uptime, where the system tells; else None.
        boot_ns: nanoseconds since boot, sleep included; None as `boot_id`.
    """

    host: str
    wall_ns: int
    boot_id: str | None = None
    boot_ns: int | None = None

    def since(self, earlier: Moment) -> int:
        """Nanoseconds that passed since `earlier`: the least that any clock says which both moments have."""
        passed = self.wall_ns - earlier.wall_ns
        booted = self.booted_since(earlier)
        return passed if booted is None else min(passed, booted)

    def booted_since(self, earlier: Moment) -> int | None:
        """Nanoseconds that passed by the clock that nobody sets; None where the machine or its uptime is another."""
        if self.boot_id is None or self.boot_id != earlier.boot_id or None in (self.boot_ns, earlier.boot_ns):
            return None
        assert self.boot_ns is not None
        assert earlier.boot_ns is not None
        return self.boot_ns - earlier.boot_ns

    def to_json(self) -> dict[str, Any]:
        """As a JSON object."""
        return {"host": self.host, "wall_ns": self.wall_ns, "boot_id": self.boot_id, "boot_ns": self.boot_ns}

    @classmethod
    def from_json(cls, value: object) -> Self | None:
        """From `to_json`'s object; None where it is none."""
        if (
            not isinstance(value, dict)
            or type(value.get("wall_ns")) is not int
            or not isinstance(value.get("host"), str)
        ):
            return None
        boot_id, boot_ns = value.get("boot_id"), value.get("boot_ns")
        known = isinstance(boot_id, str) and type(boot_ns) is int
        return cls(value["host"], value["wall_ns"], boot_id if known else None, boot_ns if known else None)


class Surroundings:
    """What a run takes from the machine that it runs on: its clocks, and chance. Tests give their own."""

    def moment(self) -> Moment:
        """Now."""
        boot_id = None
        boot_ns = None
        if sys.platform == "linux":
            try:
                with open(_BOOT_ID, encoding="ascii") as file:
                    boot_id = file.read().strip()
                boot_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
            except OSError:
                boot_id = None
        return Moment(socket.gethostname() or "host", time.time_ns(), boot_id, boot_ns)

    def nonce(self) -> str:
        """16 hex digits that were never used before."""
        return secrets.token_hex(8)

    def seconds(self) -> float:
        """A clock that only runs forward, to say how long something took."""
        return time.monotonic()
