"""Reading: heads, whole objects, and streams that go on where a connection broke off, in the same incarnation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import botocore.exceptions as be

from oarbank_cas.backends.base import ObjectStat, Reader
from oarbank_cas.backends.s3 import failures, stats
from oarbank_cas.errors import CorruptError, NotFoundError, StorageIOError

if TYPE_CHECKING:
    from collections.abc import Callable

    from botocore.response import StreamingBody

    from oarbank_cas.backends.s3.retry import Attempt
    from oarbank_cas.backends.s3.wire import Wire

NONCE = "oarbank-put"
"""Metadata of what is put or copied: a number that tells one's own from another's, after an answer that was lost."""

_EAGER = 2**20
"""An object up to this size is read whole when it is opened: one that goes meanwhile is still read to its end."""


def head(wire: Wire, name: str) -> ObjectStat | None:
    """What S3 says of an object; None where it is absent (or its bucket is: a head cannot tell)."""

    def call(_: Attempt) -> ObjectStat | None:
        try:
            said = wire.client.head_object(**wire.bucket, **wire.owner, Key=wire.key(name))
        except be.ClientError as error:
            if failures.is_absent(error):
                return None
            raise
        return stats.stat_of(name, said["ContentLength"], said["ETag"], said["LastModified"])

    return wire.call(f"look for {name}", call)


def nonce(wire: Wire, name: str) -> str | None:
    """The number that the put of an object carried; empty where it has none, None where it is absent."""

    def call(_: Attempt) -> str | None:
        try:
            said = wire.client.head_object(**wire.bucket, **wire.owner, Key=wire.key(name))
        except be.ClientError as error:
            if failures.is_absent(error):
                return None
            raise
        return str((said.get("Metadata") or {}).get(NONCE, ""))

    return wire.call(f"look for {name}", call)


def whole(wire: Wire, name: str, max_bytes: int) -> tuple[bytes, ObjectStat] | None:
    """An object's bytes; None where it is absent.

    Raises:
        CorruptError: it has more than `max_bytes`.
    """

    def call(_: Attempt) -> tuple[bytes, ObjectStat] | None:
        said = _get(wire, name, {})
        if said is None:
            return None
        with said["Body"] as body:
            stat = stats.stat_of(name, said["ContentLength"], said["ETag"], said["LastModified"])
            if stat.size > max_bytes:
                raise CorruptError(f"{name} in {wire.where} has {stat.size} bytes; at most {max_bytes} are read")
            data = body.read()
        if len(data) != stat.size:
            raise failures.BrokenAnswerError
        return data, stat

    return wire.call(f"read {name}", call)


def _get(wire: Wire, name: str, more: dict[str, Any]) -> Any:  # noqa: ANN401 - the client's document
    try:
        return wire.client.get_object(**wire.bucket, **wire.owner, Key=wire.key(name), **more)
    except be.ClientError as error:
        if failures.is_absent(error):
            return None
        raise


class S3Reader(Reader):
    """An object as a stream.

    Args:
        wire: the bucket.
        name: the object.
        start: the first byte wanted.
        absent: called where the object is not there; raises.
    """

    def __init__(self, wire: Wire, name: str, start: int, absent: Callable[[str], None]) -> None:
        self._wire = wire
        self._name = name
        self._at = start
        self._body: StreamingBody | None = None
        self._held: memoryview | None = None
        self.metadata: dict[str, str] = {}
        found = wire.call(f"read {name}", lambda _: self._begin())
        if found is None:
            absent(name)
            raise NotFoundError(f"{name} is not in {wire.where}")
        self.stat = found

    def _begin(self) -> ObjectStat | None:
        try:
            said = _get(self._wire, self._name, {"Range": f"bytes={self._at}-"} if self._at else {})
        except be.ClientError as error:
            if not failures.is_no_range(error):
                raise
            stat = head(self._wire, self._name)  # it ends before
            self._held = memoryview(b"")
            return stat
        if said is None:
            return None
        size = _full_size(said, self._at)
        stat = stats.stat_of(self._name, size, said["ETag"], said["LastModified"])
        self._body = said["Body"]
        self.metadata = said.get("Metadata") or {}
        if size - self._at <= _EAGER:
            with said["Body"] as body:
                data = body.read()
            if len(data) != max(0, size - self._at):
                raise failures.BrokenAnswerError
            self._held, self._body = memoryview(data), None
        return stat

    def _resume(self) -> None:
        """Ask for the rest, of the very same incarnation."""

        def call(_: Attempt) -> None:
            more = {"Range": f"bytes={self._at}-", "IfMatch": stats.etag_in(self.stat.validator)}
            try:
                said = _get(self._wire, self._name, more)
            except be.ClientError as error:
                if not failures.is_lost(error):
                    raise
                said = None
            if said is None or _full_size(said, self._at) != self.stat.size:
                raise StorageIOError(
                    f"{self._name} in {self._wire.where} was replaced or removed while it was read, and the "
                    "connection broke: read it again"
                )
            self._body = said["Body"]

        self._wire.call(f"read on in {self._name}", call)

    def read(self, size: int) -> bytes:
        """See `Reader.read`."""
        if self._held is not None:
            chunk = bytes(self._held[:size])
            self._held = self._held[len(chunk) :]
            return chunk
        buffer = bytearray(min(size, self.stat.size - self._at))
        count = self.readinto(memoryview(buffer))
        return bytes(memoryview(buffer)[:count])

    def readinto(self, buffer: memoryview) -> int:
        """See `Reader.readinto`."""
        if self._held is not None:
            chunk = self._held[: len(buffer)]
            buffer[: len(chunk)] = chunk
            self._held = self._held[len(chunk) :]
            return len(chunk)
        left = self.stat.size - self._at
        if left <= 0 or not len(buffer):
            return 0
        view = buffer[: min(left, len(buffer))]

        def call(attempt: Attempt) -> int:
            if attempt.number > 1 or self._body is None:
                self._drop()
                self._resume()
            assert self._body is not None
            count = self._body.readinto(view)
            if not count:
                raise failures.BrokenAnswerError
            return int(count)

        count = self._wire.call(f"read {self._name}", call)
        self._at += count
        return count

    def _drop(self) -> None:
        if self._body is not None:
            body, self._body = self._body, None
            body.close()

    def close(self) -> None:
        """See `Reader.close`."""
        self._held = memoryview(b"") if self._held is not None else None
        self._drop()


def _full_size(said: Any, at: int) -> int:  # noqa: ANN401 - the client's document
    spread = said.get("ContentRange")
    if spread:
        return int(spread.rpartition("/")[2])
    if at:
        raise failures.BrokenAnswerError  # the whole object, where a part was asked for
    return int(said["ContentLength"])
