"""What S3 says of an object, as a backend says it: sizes, times in whole seconds, validators, checksums."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING

from oarbank_cas.backends.base import ObjectStat

if TYPE_CHECKING:
    from datetime import datetime

SECOND = 10**9


def etag_of(text: str) -> str:
    """An ETag without its quotes: listings and copies leave them out on some servers."""
    return text.strip('"')


def seconds_of(moment: datetime) -> int:
    """Whole seconds since 1970. A head gives no more, so that listings and copies must not either."""
    return int(moment.timestamp() // 1)


def stat_of(name: str, size: int, etag: str, moment: datetime) -> ObjectStat:
    """An object's stat.

    An ETag names the bytes (or their encryption); the second tells most incarnations of the same bytes apart.
    """
    seconds = seconds_of(moment)
    return ObjectStat(name, size, seconds * SECOND, f"{etag_of(etag)}@{seconds:x}")


def checksum_of(sha256: bytes) -> str:
    """A SHA-256 as S3 spells it."""
    return base64.b64encode(sha256).decode()


def etag_in(validator: str) -> str | None:
    """The quoted ETag of a validator, for a condition; None where it is none of ours."""
    etag, at, _ = validator.rpartition("@")
    return f'"{etag}"' if at and etag and '"' not in etag else None
