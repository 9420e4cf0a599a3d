"""What a store says of itself in `oarbank-cas.json`: its format, its identity, and the spans that all clients share."""

from __future__ import annotations

import json
import uuid
from dataclasses import asdict, dataclass, fields
from typing import Any

from oarbank_cas import layout
from oarbank_cas.contracts.canonical import parse_json
from oarbank_cas.errors import CorruptError, InvalidInputError, UnsupportedError

MAX_BYTES = 64 * 1024
"""A larger descriptor is not read."""

SESSION_S = 6 * 3600
GRACE_S = 24 * 3600
SLACK_S = 300

_LEAST = {"session_s": 1, "grace_s": 1, "slack_s": 0}
_MOST = 10 * 366 * 86400


@dataclass(frozen=True, slots=True)
class Descriptor:
    """A store's descriptor.

    Attributes:
        id: the store's identity, a UUID in hex.
        epoch: counts restarts of the store's history (a restored backup, an adopted directory).
        created: when it was made, RFC 3339, UTC.
        session_s: seconds for which a writer may rely on a blob that it has seen.
        grace_s: seconds before gc looks at an unreferenced blob.
        slack_s: seconds by which listings and clocks may be off.
    """

    id: str
    epoch: int
    created: str
    session_s: int
    grace_s: int
    slack_s: int

    @property
    def session_ns(self) -> int:
        """The session in nanoseconds."""
        return self.session_s * 10**9

    def encode(self) -> bytes:
        """The document as stored."""
        return (json.dumps({"format": layout.FORMAT, **asdict(self)}, indent=2) + "\n").encode()


def new(session_s: int, grace_s: int, slack_s: int, created: str) -> Descriptor:
    """A descriptor for a store that is being made.

    Raises:
        InvalidInputError: a span is out of range.
    """
    for name, value in (("session_s", session_s), ("grace_s", grace_s), ("slack_s", slack_s)):
        if not _LEAST[name] <= value <= _MOST:
            why = f"{value} is not between {_LEAST[name]} seconds and ten years"
            raise InvalidInputError(why, f"--{name.replace('_', '-')}")
    return Descriptor(uuid.uuid4().hex, 1, created, session_s, grace_s, slack_s)


def decode(data: bytes, where: str) -> Descriptor:
    """Read a descriptor.

    Args:
        data: the object's bytes.
        where: the store, for messages.

    Raises:
        CorruptError: it is not a descriptor.
        UnsupportedError: its format is newer than this version knows.
    """
    place = f"{layout.DESCRIPTOR} in {where}"
    try:
        document = parse_json(data, where=place)
    except InvalidInputError as error:
        raise CorruptError(f"{error}; restore it from a backup") from error
    found = document.get("format") if isinstance(document, dict) else None
    if not isinstance(document, dict) or type(found) is not int or found < 1:
        raise CorruptError(f"{place} is no descriptor of a store: `format` is missing; restore it from a backup")
    if found > layout.FORMAT:
        raise UnsupportedError(
            f"{where} has layout format {found}; this version reads up to {layout.FORMAT}: use a newer oarbank-cas"
        )
    values: dict[str, Any] = {}
    for field in fields(Descriptor):
        value = document.get(field.name)
        kind = str if field.type == "str" else int
        in_range = not isinstance(value, int) or _LEAST.get(field.name, 0) <= value <= _MOST
        if type(value) is not kind or not in_range:
            raise CorruptError(f"{place}: `{field.name}` is missing or wrong; restore it from a backup")
        values[field.name] = value
    return Descriptor(**values)
