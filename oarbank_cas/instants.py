"""Moments as documents write them: RFC 3339, in UTC, to the microsecond; inside, nanoseconds since 1970."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from oarbank_cas.errors import InvalidInputError

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def to_text(time_ns: int) -> str:
    """Nanoseconds since 1970 as `2026-01-02T03:04:05.678901Z`."""
    moment = _EPOCH + timedelta(microseconds=time_ns // 1000)
    return moment.isoformat(timespec="microseconds").replace("+00:00", "Z")


def from_text(text: str, where: str = "time") -> int:
    """An RFC 3339 moment, or a date (its first moment, UTC), in nanoseconds since 1970.

    Raises:
        InvalidInputError: it is neither.
    """
    try:
        moment = datetime.fromisoformat(text)
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=UTC)
        return (moment - _EPOCH) // timedelta(microseconds=1) * 1000
    except (ValueError, OverflowError) as error:
        raise InvalidInputError(f"{text!r} is no time: write 2026-01-31, or 2026-01-31T12:00:00Z", where) from error
