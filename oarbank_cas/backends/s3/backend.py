"""The S3 backend: the port's methods, put together from the modules beside it."""

from __future__ import annotations

import contextlib
import secrets
import threading
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, NoReturn, TypeVar

import botocore.exceptions as be

from oarbank_cas import stopping
from oarbank_cas.backends.base import Backend, FileIncoming, Incoming, ObjectStat, Reader
from oarbank_cas.backends.s3 import copying, failures, listing, multipart, reading, stats
from oarbank_cas.backends.s3.presign import presign
from oarbank_cas.backends.s3.putting import Putter, overwrite
from oarbank_cas.backends.s3.spool import SMALL, Budget, FileSpool, Spool
from oarbank_cas.errors import CasError, ConflictError, NotFoundError, UnavailableError, UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from oarbank_cas.backends.base import Namer
    from oarbank_cas.backends.s3.capabilities import Capabilities
    from oarbank_cas.backends.s3.retry import Attempt
    from oarbank_cas.backends.s3.wire import Wire

_T = TypeVar("_T")
_R = TypeVar("_R")

MULTIPART_ABOVE = 128 * 2**20
PART_SIZE = 64 * 2**20
_BATCH = 1000
_TRIES = 100
_TRUSTED_S = 10.0
"""Seconds for which a look at the sentinel vouches that what is absent is absent, and not the whole store."""

_TEMPORARY_S = 86400
_UPLOAD_S = 7 * 86400
"""Seconds after which an upload that was never ended counts as abandoned."""

_TMP = "tmp/"


class S3Backend(Backend):
    """A bucket, or a part of one.

    Two incarnations of a name that hold the same bytes and were made in the same second share a validator: S3 tells
    them by no more than ETag and time.

    Args:
        wire: the bucket's client; closed with the backend.
        capabilities: what its server honours.
        sentinel: an object that every store has. Where something is absent and so is this, the store is missing.
        multipart_above: bytes above which an object goes up in parts.
        part_size: bytes of a part.
    """

    atomic_move = False
    group_commit = True
    exact_identity = False

    def __init__(
        self,
        wire: Wire,
        capabilities: Capabilities,
        sentinel: str | None = None,
        *,
        multipart_above: int = MULTIPART_ABOVE,
        part_size: int = PART_SIZE,
    ) -> None:
        self.where = wire.where
        self.wire = wire
        self.capabilities = capabilities
        self.expiring_delete = capabilities.expiring_delete
        self.exclusive = (
            capabilities.create_if_absent and capabilities.replace_if_match and capabilities.delete_if_match
        )
        self.exact_delete = capabilities.delete_if_match and capabilities.delete_exact
        self.requests_at_once = wire.options.max_requests
        self._sentinel = sentinel
        self._putter = Putter(wire, capabilities, multipart_above, part_size)
        self._budget = Budget()
        self._lock = threading.Lock()
        self._pool: stopping.Threads | None = None
        self._vouched = float("-inf")
        self._clock_name = f"{_TMP}clock-{secrets.token_hex(8)}"
        self._clock_made = False

    # -- many at once

    def _each(self, work: Callable[[_T], _R], items: Sequence[_T]) -> list[_R]:
        """Do something for each item, many at once; the first error ends it."""
        if len(items) < 2:
            return [work(item) for item in items]
        with self._lock:
            if self._pool is None:
                self._pool = stopping.Threads(self.wire.options.max_requests, "s3")
            pool = self._pool
        futures = [pool.submit(work, item) for item in items]
        try:
            stopping.results(futures)
            return [future.result() for future in futures]
        except BaseException:
            for future in futures:
                future.cancel()
            for future in futures:  # what is under way still uses the items
                with contextlib.suppress(BaseException):
                    future.result()
            raise

    # -- absence

    def _absent(self, name: str) -> None:
        """Raise where not only `name` is absent but the store.

        Raises:
            UnavailableError: the bucket or the store in it is missing.
        """
        if self._sentinel is None or name == self._sentinel or time.monotonic() - self._vouched < _TRUSTED_S:
            return
        if reading.whole(self.wire, self._sentinel, 2**20) is None:
            raise UnavailableError(f"the store {self.where} is not there: {self._sentinel} is missing in its bucket")
        self._vouched = time.monotonic()

    def _raise_absent(self, name: str) -> NoReturn:
        self._absent(name)
        raise NotFoundError(f"{name} is not in {self.where}")

    # -- reading

    def now(self) -> int:
        """See `Backend.now`.

        The time of an object that is written for this: what makes the times is asked, not a gateway's own clock.
        """
        self._clock_made = True
        overwrite(self.wire, self._clock_name, b"")
        made = reading.head(self.wire, self._clock_name)
        if made is None:
            raise UnavailableError(f"{self.where}: {self._clock_name} is gone as soon as it is written; run this again")
        return made.time_ns

    def stat(self, name: str) -> ObjectStat | None:
        """See `Backend.stat`."""
        found = reading.head(self.wire, name)
        if found is None:
            self._absent(name)
        return found

    def read(self, name: str, max_bytes: int) -> tuple[bytes, ObjectStat]:
        """See `Backend.read`."""
        found = reading.whole(self.wire, name, max_bytes)
        if found is None:
            self._raise_absent(name)
        return found

    def open(self, name: str, start: int = 0) -> Reader:
        """See `Backend.open`. Above 1 MiB a reader whose connection breaks needs its incarnation to stand still."""
        return reading.S3Reader(self.wire, name, start, self._absent)

    def read_range(self, name: str, start: int, length: int) -> bytes:
        """See `Backend.read_range`."""
        if length <= 0:
            return b""
        found = reading.part(self.wire, name, start, length)
        if found is None:
            self._raise_absent(name)
        return found

    def listing(self, prefix: str, after: str = "") -> Iterator[ObjectStat]:
        """See `Backend.listing`."""
        return listing.listing(self.wire, self.capabilities.listing_order, prefix, after)

    # -- writing

    def incoming(self, size_hint: int | None = None) -> Incoming:
        """See `Backend.incoming`."""
        return Spool(self._budget, size_hint)

    def incoming_file(self, fd: int, size: int, check: Callable[[int], None]) -> FileIncoming | None:
        """See `Backend.incoming_file`."""
        return FileSpool(fd, self._putter.part_size(size), check) if size > SMALL else None

    def commit(self, items: Sequence[tuple[str, Incoming]]) -> list[ObjectStat | None]:
        """See `Backend.commit`."""
        created = self.create_many(items)
        return self._each(
            lambda item: self._stat_new(item[0][0], item[0][1].size) if item[1] else None,
            list(zip(items, created, strict=True)),
        )

    def create(self, name: str, data: bytes) -> bool:
        """See `Backend.create`; what `commit` tells of the object would be one more request."""
        incoming = self.incoming(len(data))
        incoming.write(data)
        return self.create_many([(name, incoming)])[0]

    def create_many(self, items: Sequence[tuple[str, Incoming]], namer: Namer | None = None) -> list[bool]:
        """See `Backend.create_many`."""
        del namer
        first: dict[str, int] = {}
        for index, (name, _) in enumerate(items):
            first.setdefault(name, index)

        def create(item: tuple[int, tuple[str, Incoming]]) -> bool:
            index, (name, incoming) = item
            try:
                # The second of one name in one call loses by the order of the call, not by that of its threads.
                return first[name] == index and self._putter.create(name, _spool(incoming))
            finally:
                incoming.discard()

        return self._each(create, list(enumerate(items)))

    def _stat_new(self, name: str, size: int) -> ObjectStat:
        found = reading.head(self.wire, name)
        if found is not None:
            return found
        return ObjectStat(name, size, self.now(), "gone")  # another took it away since it was made

    def replace(self, name: str, incoming: Incoming, expected: str) -> ObjectStat | None:
        """See `Backend.replace`."""
        try:
            standing = self.stat(name)
            etag = stats.etag_in(expected)
            if standing is None or standing.validator != expected or etag is None:
                return None
            size = incoming.size
            if not self._putter.replace(name, _spool(incoming), etag):
                return None
        finally:
            incoming.discard()
        return self._stat_new(name, size)

    def delete(self, name: str, expected: str | None = None) -> bool:
        """See `Backend.delete`."""
        for _ in range(_TRIES):
            standing = self.stat(name)
            if standing is None or expected not in (None, standing.validator):
                return False
            if self._delete(name, stats.etag_in(standing.validator)):
                return True
        raise UnavailableError(f"{name} in {self.where} changes all the time; try again later")

    def _delete(self, name: str, etag: str | None) -> bool:
        condition = {"IfMatch": etag} if etag and self.capabilities.delete_if_match else {}

        def call(attempt: Attempt) -> bool:
            try:
                self.wire.client.delete_object(
                    **self.wire.bucket,
                    **self.wire.owner,
                    **condition,
                    Key=self.wire.key(name),
                )
            except be.ClientError as error:
                absent = failures.is_absent(error)
                if not absent and not failures.is_lost(error):
                    raise
                if not absent and not condition:
                    raise failures.BrokenAnswerError from None  # another's request was under way: nothing was removed
                # Gone after an answer was lost: by us, or by one who wanted the same.
                return attempt.may_have_acted and reading.head(self.wire, name) is None
            return True

        return self.wire.call(f"remove {name}", call)

    def delete_many(self, names: Sequence[str]) -> None:
        """See `Backend.delete_many`."""
        if not self.capabilities.batch_delete:
            self._each(lambda name: self._delete(name, None), names)
            return
        for start in range(0, len(names), _BATCH):
            self._delete_batch(names[start : start + _BATCH])

    def _delete_batch(self, names: Sequence[str]) -> None:
        objects = [{"Key": self.wire.key(name)} for name in names]

        def call(_: Attempt) -> list[str]:
            said = self.wire.client.delete_objects(
                **self.wire.bucket,
                **self.wire.owner,
                Delete={"Objects": objects, "Quiet": True},
            )
            cut = len(self.wire.place.prefix)
            return [found["Key"][cut:] for found in said.get("Errors", ()) if found.get("Code") != "NoSuchKey"]

        try:
            left: Sequence[str] = self.wire.call(f"remove {len(names)} objects", call)
        except (UnsupportedError, CasError) as error:
            if isinstance(error, UnavailableError):
                raise
            left = names  # such as a server that wants another checksum
        self._each(lambda name: self._delete(name, None), left)

    def delete_expiring(self, name: str, issued_ns: int, life_s: int) -> bool:
        """See `Backend.delete_expiring`: a request that is signed with a date, and a span after it."""
        if not self.expiring_delete:
            return super().delete_expiring(name, issued_ns, life_s)
        if self.stat(name) is None:
            return False
        url = presign(
            "DELETE",
            self.wire.url_of(name),
            self.wire.credentials(),
            self.wire.region,
            issued_ns // stats.SECOND,
            life_s,
            headers=self.wire.extra_headers,
        )

        def call(_: Attempt) -> int:
            answer = self.wire.send("DELETE", url, dict(self.wire.extra_headers))
            if answer.status_code >= 500 or answer.status_code in (408, 429):
                raise be.ClientError(
                    {"ResponseMetadata": {"HTTPStatusCode": answer.status_code}},
                    "DeleteObject",
                )
            return int(answer.status_code)

        status = self.wire.call(f"remove {name}", call)
        if status in (200, 204, 404):
            return True
        if self.now() < issued_ns + life_s * stats.SECOND:
            raise failures.translate(failures.Failure("AccessDenied", status), f"remove {name}", self.where, 1, 0)
        raise ConflictError(f"{self.where} refused to remove {name} (HTTP {status}): the request's time was over")

    def grant_create(self, name: str, sha256: bytes, life_s: int) -> tuple[str, dict[str, str]]:
        """See `Backend.grant_create`. Where the server ignores checksums other bytes can be put: `doctor` says so."""
        headers = {
            **self.wire.stored_headers(),
            "content-type": "application/octet-stream",  # a client's own, unsigned, is refused by some servers
            "if-none-match": "*",
            "x-amz-checksum-sha256": stats.checksum_of(sha256),
            "x-amz-sdk-checksum-algorithm": "SHA256",
        }
        return self._granted("PUT", name, headers, life_s)

    def grant_read(self, name: str, life_s: int) -> tuple[str, dict[str, str]]:
        """See `Backend.grant_read`."""
        return self._granted("GET", name, {}, life_s)

    def _granted(self, method: str, name: str, more: dict[str, str], life_s: int) -> tuple[str, dict[str, str]]:
        headers = {**more, **self.wire.extra_headers}
        known, region = self.wire.credentials(), self.wire.region
        url = presign(method, self.wire.url_of(name), known, region, int(time.time()), life_s, headers=headers)
        return url, headers

    def copy(self, name: str, to: str) -> ObjectStat | None:
        """See `Backend.copy`."""
        try:
            return copying.copy(self.wire, self.capabilities, name, to)
        except NotFoundError:
            self._absent(name)
            raise

    def rename(self, name: str, to: str, expected: str) -> bool:
        """Refused."""
        del to, expected
        raise UnsupportedError(f"{self.where} cannot rename {name}: copy and delete instead")

    def touch(self, name: str) -> ObjectStat | None:
        """Refused."""
        raise UnsupportedError(f"{self.where} cannot touch {name}: copy and delete instead")

    def flush(self, names: Iterable[str]) -> None:
        """See `Backend.flush`: what S3 has answered is durable."""

    # -- the end

    def sweep(self) -> int:
        """See `Backend.sweep`: temporaries a day old, and uploads that nobody ended within a week."""
        now_ns = self.now()
        old = [found.name for found in self.listing(_TMP) if found.time_ns + _TEMPORARY_S * stats.SECOND < now_ns]
        self.delete_many(old)
        swept = len(old)
        before = datetime.fromtimestamp(now_ns // stats.SECOND - _UPLOAD_S, UTC)
        with contextlib.suppress(UnsupportedError):
            for key, upload_id in multipart.abandoned(self.wire, before):
                multipart.abort(self.wire, key, upload_id)
                swept += 1
        return swept

    def close(self) -> None:
        """See `Backend.close`."""
        with self._lock:
            pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown(wait=True)
        if self._clock_made:
            self._clock_made = False
            with contextlib.suppress(CasError):
                self._delete(self._clock_name, None)
        self.wire.close()


def _spool(incoming: Incoming) -> Spool:
    assert isinstance(incoming, Spool)
    return incoming
