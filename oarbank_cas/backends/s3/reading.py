"""Reading: heads, whole objects, and streams that go on where a connection broke off, in the same incarnation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import botocore.exceptions as be

from oarbank_cas import stopping
from oarbank_cas.backends.base import ObjectStat, Reader
from oarbank_cas.backends.s3 import failures, stats
from oarbank_cas.backends.s3.engine import NONCE, Got
from oarbank_cas.errors import CorruptError, NotFoundError, StorageIOError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from oarbank_cas.backends.s3.engine import Body
    from oarbank_cas.backends.s3.retry import Attempt
    from oarbank_cas.backends.s3.wire import Wire

_EAGER = 2**20
"""An object up to this size is read whole when it is opened: one that goes meanwhile is still read to its end."""


def head(wire: Wire, name: str) -> ObjectStat | None:
    """What S3 says of an object; None where it is absent (or its bucket is: a head cannot tell)."""
    return wire.call(f"look for {name}", lambda attempt: wire.engine(attempt).head(name))


def nonce(wire: Wire, name: str) -> str | None:
    """The number that the put of an object carried; empty where it has none, None where it is absent."""
    said = wire.call(f"look for {name}", lambda _: wire.boto3.document(name))
    return None if said is None else str((said.get("Metadata") or {}).get(NONCE, ""))


def whole(wire: Wire, name: str, max_bytes: int) -> tuple[bytes, ObjectStat] | None:
    """An object's bytes; None where it is absent.

    Raises:
        CorruptError: it has more than `max_bytes`.
    """

    def call(attempt: Attempt) -> tuple[bytes, ObjectStat] | None:
        got = wire.engine(attempt).get(name)
        if got is None:
            return None
        if got.stat.size > max_bytes:
            got.body.close()
            raise CorruptError(f"{name} in {wire.where} has {got.stat.size} bytes; at most {max_bytes} are read")
        return _read_whole(got), got.stat

    return wire.call(f"read {name}", call)


def _read_whole(got: Got) -> bytes:
    try:
        data = got.body.read()
    finally:
        got.body.close()
    if len(data) != got.stat.size:
        raise failures.BrokenAnswerError
    return data


def part(wire: Wire, name: str, start: int, length: int) -> bytes | None:
    """Some of an object's bytes, fewer where it ends before; None where it is absent."""

    def call(_: Attempt) -> bytes | None:
        try:
            said = wire.boto3.answer(name, {"Range": f"bytes={start}-{start + length - 1}"})
        except be.ClientError as error:
            if not failures.is_no_range(error):
                raise
            return b""
        if said is None:
            return None
        with said["Body"] as body:
            data: bytes = body.read()
        if len(data) != max(0, min(length, _full_size(said) - start)):
            raise failures.BrokenAnswerError
        return data

    return wire.call(f"read {name}", call)


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
        self._body: Body | None = None
        self._held: memoryview | None = None
        self.metadata: Mapping[str, str] = {}
        found = wire.call(f"read {name}", self._begin)
        if found is None:
            absent(name)
            raise NotFoundError(f"{name} is not in {wire.where}")
        self.stat = found

    def _begin(self, attempt: Attempt) -> ObjectStat | None:
        if self._at:
            return self._begin_within()
        got = self._wire.engine(attempt).get(self._name)
        if got is None:
            return None
        self.metadata = got.metadata
        if got.stat.size <= _EAGER:
            self._held = memoryview(_read_whole(got))
        else:
            self._body = got.body
        return got.stat

    def _begin_within(self) -> ObjectStat | None:
        try:
            said = self._wire.boto3.answer(self._name, {"Range": f"bytes={self._at}-"})
        except be.ClientError as error:
            if not failures.is_no_range(error):
                raise
            stat = head(self._wire, self._name)  # it ends before
            self._held = memoryview(b"")
            return stat
        if said is None:
            return None
        stat = stats.stat_of(self._name, _full_size(said), said["ETag"], said["LastModified"])
        self._body = said["Body"]
        if stat.size - self._at <= _EAGER:
            with said["Body"] as body:
                data = body.read()
            if len(data) != max(0, stat.size - self._at):
                raise failures.BrokenAnswerError
            self._held, self._body = memoryview(data), None
        return stat

    def _resume(self) -> None:
        """Ask for the rest, of the very same incarnation."""

        def call(_: Attempt) -> None:
            more = {"Range": f"bytes={self._at}-", "IfMatch": stats.etag_in(self.stat.validator)}
            try:
                said = self._wire.boto3.answer(self._name, more)
            except be.ClientError as error:
                if not failures.is_lost(error):
                    raise
                said = None
            if said is None or _full_size(said) != self.stat.size:
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
        # A read that is not waited for any more must not write into what may be another's by then.
        target = memoryview(bytearray(len(view))) if stopping.is_in_force() else view

        def call(attempt: Attempt) -> int:
            if attempt.number > 1 or self._body is None:
                self._drop()
                self._resume()
            assert self._body is not None
            count = self._body.readinto(target)
            if not count:
                raise failures.BrokenAnswerError
            return int(count)

        count = self._wire.call(f"read {self._name}", call)
        if target is not view:
            view[:count] = target[:count]
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


def _full_size(said: Mapping[str, Any]) -> int:
    """The size of an object, in the answer that brings a part of it."""
    spread = said.get("ContentRange")
    if not spread:
        if said["ContentLength"]:
            raise failures.BrokenAnswerError  # the whole object
        return 0
    return int(spread.rpartition("/")[2])
