"""Large objects in parts: each part with its checksum, visible only complete, aborted when it fails."""

from __future__ import annotations

import base64
import contextlib
import hashlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import botocore.exceptions as be

from oarbank_cas.backends.s3 import failures, reading
from oarbank_cas.backends.s3.engine import NONCE
from oarbank_cas.backends.s3.spool import FilePart
from oarbank_cas.errors import CasError, StorageIOError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import datetime

    from oarbank_cas.backends.s3.retry import Attempt
    from oarbank_cas.backends.s3.spool import Spool
    from oarbank_cas.backends.s3.wire import Wire

MOST_PARTS = 10_000
LEAST_PART = 5 * 2**20
_AT_ONCE = 4
_CHUNK = 2**20


def upload(
    wire: Wire,
    name: str,
    spool: Spool,
    condition: dict[str, str],
    part_size: int,
    nonce: str,
    is_own: Callable[[], bool],
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

    Raises:
        StorageIOError: what stands afterwards is not of the right size.
    """
    size = max(part_size, LEAST_PART, -(-spool.size // MOST_PARTS))
    spans = [(start, min(size, spool.size - start)) for start in range(0, spool.size, size)]

    def send(number: int, upload_id: str) -> dict[str, Any]:
        start, length = spans[number - 1]
        checksum = _checksum(spool, start, length)
        said = wire.call(
            f"put part {number} of {name}",
            lambda _: wire.client.upload_part(
                **wire.bucket,
                **wire.owner,
                Key=wire.key(name),
                UploadId=upload_id,
                PartNumber=number,
                Body=spool.part(start, length),
                ContentLength=length,
                ChecksumAlgorithm="SHA256",
                ChecksumSHA256=checksum,
            ),
        )
        part = {"PartNumber": number, "ETag": said["ETag"]}
        return {**part, "ChecksumSHA256": checksum} if said.get("ChecksumSHA256") else part

    with begun(wire, name, {"ChecksumAlgorithm": "SHA256", "Metadata": {NONCE: nonce}}) as upload_id:
        with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="oarbank-cas-part") as pool:
            parts = list(pool.map(lambda number: send(number, upload_id), range(1, len(spans) + 1)))
        done = complete(wire, name, upload_id, parts, condition, is_own)
    if done:
        standing = reading.head(wire, name)
        if standing is not None and standing.size != spool.size:
            raise StorageIOError(f"{name} in {wire.where} has {standing.size} bytes after {spool.size} were put")
    return done


@contextlib.contextmanager
def begun(wire: Wire, name: str, more: dict[str, Any]) -> Iterator[str]:
    """An upload that is aborted where the work on it fails; its id."""
    said = wire.call(
        f"begin {name}",
        lambda _: wire.client.create_multipart_upload(
            **wire.bucket, **wire.owner, **wire.stored, **more, Key=wire.key(name)
        ),
    )
    upload_id = said["UploadId"]
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
            gone = error.response.get("Error", {}).get("Code") == "NoSuchUpload"
            if not failures.is_lost(error) and not gone:
                raise
            if is_own():
                return True
            if gone:
                raise
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


def _checksum(spool: Spool, start: int, length: int) -> str:
    body = spool.part(start, length)
    if not isinstance(body, FilePart):
        return base64.b64encode(hashlib.sha256(body).digest()).decode()
    state = hashlib.sha256()
    while chunk := body.read(_CHUNK):
        state.update(chunk)
    return base64.b64encode(state.digest()).decode()
