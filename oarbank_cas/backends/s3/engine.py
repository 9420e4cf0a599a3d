"""The engines of a bucket: the few things asked of it for every object, by boto3 here, or by a faster one beside it.

An engine asks once. What it raises is judged, and tried again, by whoever called: see `Wire.call`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import botocore.exceptions as be

from oarbank_cas.backends.s3 import failures, stats

if TYPE_CHECKING:
    from collections.abc import Mapping

    from oarbank_cas.backends.base import ObjectStat
    from oarbank_cas.backends.s3.spool import Spool
    from oarbank_cas.backends.s3.wire import Wire

NONCE = "oarbank-put"
"""Metadata of what is put or copied: a number that tells one's own from another's, after an answer that was lost."""


class Body(Protocol):
    """An object's bytes as they come."""

    def read(self) -> bytes:
        """All of them."""

    def readinto(self, buffer: memoryview, /) -> int:
        """The next ones; how many came, 0 at the end."""

    def close(self) -> None:
        """Let the connection go."""


@dataclass(frozen=True, slots=True)
class Got:
    """An object that is being read.

    Attributes:
        stat: what is known of it.
        body: its bytes; whoever got it closes it.
        metadata: what was put with it.
    """

    stat: ObjectStat
    body: Body
    metadata: Mapping[str, str]


class Engine(Protocol):
    """What every engine does. Safe to use from many threads."""

    def head(self, name: str) -> ObjectStat | None:
        """What is known of an object; None where it is absent."""

    def get(self, name: str) -> Got | None:
        """A whole object; None where it is absent."""

    def put(self, name: str, spool: Spool, condition: Mapping[str, str], nonce: str) -> bool:
        """Put an object under `IfNoneMatch` or `IfMatch`, with its checksum and a number.

        Returns:
            False where the condition does not hold, or where the server cannot tell while another puts.
        """


class Boto3Engine:
    """boto3.

    Args:
        wire: the bucket.
    """

    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    def head(self, name: str) -> ObjectStat | None:
        """See `Engine.head`."""
        said = self.document(name)
        return None if said is None else _stat(name, said)

    def document(self, name: str) -> dict[str, Any] | None:
        """Everything that S3 says of an object; None where it is absent."""
        try:
            said: dict[str, Any] = self._wire.client.head_object(**self._object(name))
        except be.ClientError as error:
            if failures.is_absent(error):
                return None
            raise
        return said

    def get(self, name: str) -> Got | None:
        """See `Engine.get`."""
        said = self.answer(name, {})
        return None if said is None else Got(_stat(name, said), said["Body"], said.get("Metadata") or {})

    def answer(self, name: str, more: dict[str, Any]) -> dict[str, Any] | None:
        """The answer to a get, such as of a range; None where the object is absent."""
        try:
            said: dict[str, Any] = self._wire.client.get_object(**self._object(name), **more)
        except be.ClientError as error:
            if failures.is_absent(error):
                return None
            raise
        return said

    def put(self, name: str, spool: Spool, condition: Mapping[str, str], nonce: str) -> bool:
        """See `Engine.put`."""
        try:
            self._wire.client.put_object(
                **self._object(name),
                **self._wire.stored,
                **condition,
                Metadata={NONCE: nonce},
                Body=spool.part(0, spool.size),
                ContentLength=spool.size,
                # Both: Ceph ignores the value where the algorithm is not named.
                ChecksumAlgorithm="SHA256",
                ChecksumSHA256=stats.checksum_of(spool.sha256),
            )
        except be.ClientError as error:
            if not failures.is_lost(error) and not ("IfMatch" in condition and failures.is_absent(error)):
                raise
            return False
        return True

    def _object(self, name: str) -> dict[str, Any]:
        return {**self._wire.bucket, **self._wire.owner, "Key": self._wire.key(name)}


def _stat(name: str, said: Mapping[str, Any]) -> ObjectStat:
    return stats.stat_of(name, said["ContentLength"], said["ETag"], said["LastModified"])
