"""Large objects in parts: each part with its checksum, visible only complete, gone on with where it was cut.

An upload that a killed client, or one without a network, has left is found by the next who puts the same object: parts
that the server holds with the right checksum are not sent again. What nobody goes on with, gc aborts.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any

import botocore.exceptions as be

from oarbank_cas import stopping
from oarbank_cas.backends.s3 import failures, reading
from oarbank_cas.backends.s3.engine import NONCE
from oarbank_cas.errors import CasError, StorageIOError, UnavailableError, UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from oarbank_cas.backends.s3.retry import Attempt
    from oarbank_cas.backends.s3.spool import FilePart, Spool
    from oarbank_cas.backends.s3.wire import Wire

MOST_PARTS = 10_000
LEAST_PART = 5 * 2**20
_AT_ONCE = 4
_TRIES = 3

RESUMED_WITHIN = timedelta(hours=1)
"""How old an upload is gone on with at most: S3 dates an object by the beginning of its upload, and an object must not
look much older than its name (docs/s3.md)."""


def part_size_of(size: int, part_size: int) -> int:
    """Bytes of each part but the last of an object of `size` bytes, where `part_size` are wanted."""
    return max(part_size, LEAST_PART, -(-size // MOST_PARTS))


def upload(
    wire: Wire,
    name: str,
    spool: Spool,
    condition: dict[str, str],
    part_size: int,
    nonce: str,
    is_own: Callable[[], bool],
    *,
    creating: bool,
) -> bool:
    """Upload a large object; False where the condition does not hold.

    Args:
        wire: the bucket.
        name: the object.
        spool: its bytes.
        condition: `IfNoneMatch` or `IfMatch`, or nothing.
        part_size: bytes of a part; more where there would be too many.
        nonce: a number that tells this put from others.
        is_own: whether what stands under the name was put by this call.
        creating: nothing is to be replaced, so that an upload which another has left may be gone on with.

    Raises:
        StorageIOError: what stands afterwards is not of the right size.
    """
    size = part_size_of(spool.size, part_size)
    spans = [(start, min(size, spool.size - start)) for start in range(0, spool.size, size)]
    for _ in range(_TRIES):
        left = _unfinished(wire, name) if creating else None
        held = _held(wire, name, left) if left is not None else {}
        if left is None or not _fits(held, spans):
            left = begin(wire, name, {"ChecksumAlgorithm": "SHA256", "Metadata": {NONCE: nonce}})
            held = {}
        try:
            done = _finish(wire, name, spool, spans, left, held, condition, is_own)
        except _GoneError:  # another went on with it too, and ended it one way or the other
            if creating and reading.head(wire, name) is not None:
                return False
            continue
        except UnsupportedError:
            if not held:
                raise
            continue  # some servers take no part twice, as rclone: that upload is aborted now, and another begun
        standing = reading.head(wire, name) if done else None
        if standing is not None and standing.size != spool.size:
            raise StorageIOError(f"{name} in {wire.where} has {standing.size} bytes after {spool.size} were put")
        return done
    raise UnavailableError(f"{name} cannot be put into {wire.where}: others end its uploads; try again later")


def _finish(
    wire: Wire,
    name: str,
    spool: Spool,
    spans: list[tuple[int, int]],
    upload_id: str,
    held: dict[int, dict[str, Any]],
    condition: dict[str, str],
    is_own: Callable[[], bool],
) -> bool:
    """Send what parts an upload still lacks, and end it."""

    def send(number: int) -> tuple[str, str, bool]:
        start, length = spans[number - 1]
        checksum = base64.b64encode(spool.checksum(start, length)).decode()
        # The last part is always sent: the answer says whether the server wants checksums at the end, lists do not.
        known = held.get(number) if number < len(spans) else None
        if known is None or not _has_bytes(known, spool, start, length, checksum):

            def put(_: Attempt) -> dict[str, Any]:
                return _put_part(wire, name, upload_id, number, spool.part(start, length), length, checksum)

            known = wire.call(f"put part {number} of {name}", put)
        return known["ETag"], checksum, bool(known.get("ChecksumSHA256"))

    with aborted_when_refused(wire, name, upload_id):
        with stopping.Threads(_AT_ONCE, "part") as pool:
            sending = [pool.submit(send, number) for number in range(1, len(spans) + 1)]
            stopping.results(sending)
            sent = [part.result() for part in sending]
        parts: list[dict[str, Any]] = [
            {"PartNumber": number, "ETag": etag} | ({"ChecksumSHA256": checksum} if sent[-1][2] else {})
            for number, (etag, checksum, _) in enumerate(sent, 1)
        ]
        return complete(wire, name, upload_id, parts, condition, is_own)


def _put_part(
    wire: Wire, name: str, upload_id: str, number: int, body: bytes | FilePart, length: int, checksum: str
) -> dict[str, Any]:
    try:
        said: dict[str, Any] = wire.client.upload_part(
            **wire.bucket,
            **wire.owner,
            Key=wire.key(name),
            UploadId=upload_id,
            PartNumber=number,
            Body=body,
            ContentLength=length,
            ChecksumAlgorithm="SHA256",
            ChecksumSHA256=checksum,
        )
    except be.ClientError as error:
        if _is_gone(error):
            raise _GoneError(f"{name} in {wire.where}: the upload was ended by another; run this again") from error
        raise
    return said


def _unfinished(wire: Wire, name: str) -> str | None:
    """An upload of this very object that was begun and not ended, the newest."""
    key = wire.key(name)
    try:
        page = wire.call(
            "list uploads", lambda _: wire.client.list_multipart_uploads(**wire.bucket, **wire.owner, Prefix=key)
        )
    except CasError:
        return None  # who may put need not be allowed to list uploads
    oldest = _said_at(page) - RESUMED_WITHIN
    found = [each for each in page.get("Uploads", ()) if each["Key"] == key and each["Initiated"] >= oldest]
    return str(max(found, key=lambda each: each["Initiated"])["UploadId"]) if found else None


def _said_at(page: dict[str, Any]) -> datetime:
    """The server's time of an answer, or this machine's where it does not say."""
    said = page.get("ResponseMetadata", {}).get("HTTPHeaders", {}).get("date")
    with contextlib.suppress(TypeError, ValueError):
        found = parsedate_to_datetime(said)
        if found.tzinfo is not None:
            return found
    return datetime.now(UTC)


def _held(wire: Wire, name: str, upload_id: str) -> dict[int, dict[str, Any]]:
    """The parts of an upload that the server holds, by their numbers; none where it does not say."""
    asked: dict[str, Any] = {**wire.bucket, **wire.owner, "Key": wire.key(name), "UploadId": upload_id}
    held: dict[int, dict[str, Any]] = {}
    while True:
        try:
            page = wire.call("list parts", lambda _: wire.client.list_parts(**asked))
        except CasError:
            return {}
        held |= {part["PartNumber"]: part for part in page.get("Parts", ())}
        following = page.get("NextPartNumberMarker")
        if not page.get("IsTruncated") or not following or following == asked.get("PartNumberMarker"):
            return held
        asked["PartNumberMarker"] = following


def _fits(held: dict[int, dict[str, Any]], spans: list[tuple[int, int]]) -> bool:
    """Whether the parts that the server holds are cut as these are."""
    return all(number <= len(spans) and part.get("Size") == spans[number - 1][1] for number, part in held.items())


def _has_bytes(part: dict[str, Any], spool: Spool, start: int, length: int, checksum: str) -> bool:
    """Whether a part that the server holds has the bytes that are to be sent, by what it says of them itself."""
    said = part.get("ChecksumSHA256")
    if said:
        return bool(said == checksum)
    md5 = hashlib.md5(usedforsecurity=False)
    for chunk in spool.chunks(start, length):
        md5.update(chunk)
    return str(part.get("ETag", "")).strip('"') == md5.hexdigest()


class _GoneError(StorageIOError):
    """An upload that was gone on with has ended under it."""


def _is_gone(error: be.ClientError) -> bool:
    # A part is invalid where another has sent it again, and its ETag is another.
    return error.response.get("Error", {}).get("Code") in ("NoSuchUpload", "InvalidPart")


def begin(wire: Wire, name: str, more: dict[str, Any]) -> str:
    """Begin an upload; its id."""
    said = wire.call(
        f"begin {name}",
        lambda _: wire.client.create_multipart_upload(
            **wire.bucket, **wire.owner, **wire.stored, **more, Key=wire.key(name)
        ),
    )
    return str(said["UploadId"])


@contextlib.contextmanager
def aborted_when_refused(wire: Wire, name: str, upload_id: str) -> Iterator[None]:
    """Abort an upload where the work on it fails, unless another try may go on with it."""
    try:
        yield
    except (UnavailableError, stopping.Stopping, KeyboardInterrupt, _GoneError):
        raise
    except BaseException:
        with contextlib.suppress(CasError):
            abort(wire, wire.key(name), upload_id)
        raise


@contextlib.contextmanager
def begun(wire: Wire, name: str, more: dict[str, Any]) -> Iterator[str]:
    """An upload that is aborted where the work on it fails; its id."""
    upload_id = begin(wire, name, more)
    try:
        yield upload_id
    except BaseException:
        with contextlib.suppress(CasError):
            abort(wire, wire.key(name), upload_id)
        raise


def complete(
    wire: Wire,
    name: str,
    upload_id: str,
    parts: list[dict[str, Any]],
    condition: dict[str, str],
    is_own: Callable[[], bool],
) -> bool:
    """End an upload, which makes the object visible; False where the condition does not hold."""

    def call(_: Attempt) -> bool:
        try:
            wire.client.complete_multipart_upload(
                **wire.bucket,
                **wire.owner,
                **condition,
                Key=wire.key(name),
                UploadId=upload_id,
                MultipartUpload={"Parts": parts},
            )
        except be.ClientError as error:
            gone = _is_gone(error)
            if not failures.is_lost(error) and not gone:
                raise
            if is_own():
                return True
            if gone:
                raise _GoneError(f"{name} in {wire.where}: the upload was ended by another; run this again") from error
            return False
        return True

    done = wire.call(f"complete {name}", call)
    if not done:
        with contextlib.suppress(CasError):
            abort(wire, wire.key(name), upload_id)
    return done


def abort(wire: Wire, key: str, upload_id: str) -> None:
    """Throw an upload's parts away; one that is gone already is fine."""

    def call(_: Attempt) -> None:
        try:
            wire.client.abort_multipart_upload(**wire.bucket, **wire.owner, Key=key, UploadId=upload_id)
        except be.ClientError as error:
            if error.response.get("ResponseMetadata", {}).get("HTTPStatusCode") != 404:
                raise

    wire.call("abort an upload", call)


def abandoned(wire: Wire, before: datetime) -> Iterator[tuple[str, str]]:
    """Uploads below the store's prefix that were begun before a moment: key and id."""
    asked: dict[str, Any] = {**wire.bucket, **wire.owner, "Prefix": wire.place.prefix}
    while True:
        page = wire.call("list uploads", lambda _: wire.client.list_multipart_uploads(**asked))  # noqa: B023
        for found in page.get("Uploads", ()):
            # Some servers list those of the whole bucket whatever the prefix.
            if found["Key"].startswith(wire.place.prefix) and found["Initiated"] < before:
                yield found["Key"], found["UploadId"]
        following = {"KeyMarker": page.get("NextKeyMarker"), "UploadIdMarker": page.get("NextUploadIdMarker") or ""}
        if not page.get("IsTruncated") or not following["KeyMarker"] or following.items() <= asked.items():
            return
        asked |= following
