"""Grants: signed URLs by which an agent without a credential may put, or get, one blob each, for a while.

A put grant is bound to its digest: the checksum of the bytes is signed with it, so that a server which checks checksums
stores these bytes or none; and it only creates. Whoever holds a grant can use it: hand it on as a secret.
"""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

from oarbank_cas import layout
from oarbank_cas.contracts.canonical import check_digest
from oarbank_cas.errors import InvalidInputError, NotFoundError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from oarbank_cas.backends.base import Backend
    from oarbank_cas.blobs import Blobs

LONGEST_S = 7 * 86400
"""Seconds that a grant may live: as long as S3 takes a signature."""

EXPIRES_S = 3600


@dataclass(frozen=True, slots=True)
class Grant:
    """What an agent needs to put or get one blob.

    Attributes:
        digest: the blob.
        method: `PUT` or `GET`.
        url: where to; it holds the signature.
        headers: that the request must carry.
        expires_at: seconds since 1970.
    """

    digest: str
    method: Literal["PUT", "GET"]
    url: str
    headers: dict[str, str]
    expires_at: int

    def to_json(self) -> dict[str, Any]:
        """The grant as a document."""
        return asdict(self)

    def __repr__(self) -> str:
        return f"Grant({self.method} {self.digest})"  # tracebacks and logs must not hold the signature


def grant_put(backend: Backend, digests: Iterable[str], expires_s: int = EXPIRES_S) -> list[Grant]:
    """Let somebody put blobs; one grant each.

    Args:
        backend: the store's storage.
        digests: the blobs.
        expires_s: seconds for which the grants live.

    Raises:
        InvalidInputError: a digest is malformed, or the span out of range.
        UnsupportedError: the storage has no such thing.
    """
    expires_at = _expiry(expires_s)
    return [
        Grant(digest, "PUT", *backend.grant_create(layout.blob(digest), bytes.fromhex(digest), expires_s), expires_at)
        for digest in dict.fromkeys(check_digest(digest, "digest") for digest in digests)
    ]


def grant_get(backend: Backend, blobs: Blobs, digests: Iterable[str], expires_s: int = EXPIRES_S) -> list[Grant]:
    """Let somebody get blobs; one grant each. A condemned one is brought back first.

    Args:
        backend: the store's storage.
        blobs: its blobs.
        digests: the blobs.
        expires_s: seconds for which the grants live.

    Raises:
        NotFoundError: a blob is absent.
        InvalidInputError, UnsupportedError: as `grant_put`.
    """
    expires_at = _expiry(expires_s)
    granted = []
    for digest in dict.fromkeys(check_digest(digest, "digest") for digest in digests):
        signed = backend.grant_read(layout.blob(digest), expires_s)
        if not blobs.has(digest) and blobs.revive(digest) is None:
            raise NotFoundError(f"blob {digest} is not in the store {backend.where}")
        granted.append(Grant(digest, "GET", *signed, expires_at))
    return granted


def _expiry(expires_s: int) -> int:
    if not 1 <= expires_s <= LONGEST_S:
        raise InvalidInputError(f"{expires_s} is not between 1 and {LONGEST_S} seconds", "expires_s")
    return int(time.time()) + expires_s
