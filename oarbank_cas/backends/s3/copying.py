"""Copies that the server makes itself, with a fresh time; above 5 GiB in parts, as S3 demands."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any

import botocore.exceptions as be

from oarbank_cas import stopping
from oarbank_cas.backends.s3 import failures, multipart, reading, stats
from oarbank_cas.backends.s3.engine import NONCE
from oarbank_cas.errors import NotFoundError

if TYPE_CHECKING:
    from oarbank_cas.backends.base import ObjectStat
    from oarbank_cas.backends.s3.capabilities import Capabilities
    from oarbank_cas.backends.s3.retry import Attempt
    from oarbank_cas.backends.s3.wire import Wire

ONE_REQUEST = 5 * 2**30
_PART = 2**30
_AT_ONCE = 8


def copy(wire: Wire, can: Capabilities, name: str, to: str, *, one_request: int = ONE_REQUEST) -> ObjectStat | None:
    """Create `to` with the bytes of `name`, if it is absent; None where it stands.

    Raises:
        NotFoundError: `name` is not there.
    """
    source = reading.head(wire, name)
    if source is None:
        raise NotFoundError(f"{name} is not in {wire.where}")
    if name == to:
        return None
    whole = source.size <= one_request
    conditional = can.copy_if_absent if whole else can.complete_if_absent
    if not conditional and reading.head(wire, to) is not None:
        return None
    condition = {"IfNoneMatch": "*"} if conditional else {}
    done = _whole(wire, source, to, condition) if whole else _parts(wire, source, to, condition)
    made = reading.head(wire, to) if done else None
    if done and made is None:
        raise NotFoundError(f"{to} in {wire.where} was taken away as soon as it was made")
    return made


def _source(wire: Wire, source: ObjectStat) -> dict[str, Any]:
    return {
        "CopySource": {"Bucket": wire.place.bucket, "Key": wire.key(source.name)},
        "CopySourceIfMatch": stats.etag_in(source.validator),
    }


def _whole(wire: Wire, source: ObjectStat, to: str, condition: dict[str, str]) -> bool:
    nonce = secrets.token_hex(8)

    def call(_: Attempt) -> bool:
        try:
            wire.client.copy_object(
                **wire.bucket,
                **wire.owner,
                **wire.stored,
                **condition,
                **_source(wire, source),
                Key=wire.key(to),
                Metadata={NONCE: nonce},
                MetadataDirective="REPLACE",
            )
        except be.ClientError as error:
            if failures.is_absent(error):
                raise NotFoundError(f"{source.name} is not in {wire.where}") from None
            if not failures.is_lost(error):
                raise
            found = reading.nonce(wire, to)
            if found == nonce:
                return True
            if found is None:
                raise NotFoundError(f"{source.name} in {wire.where} became another while it was copied") from None
            return False
        return True

    return wire.call(f"copy {source.name} to {to}", call)


def _parts(wire: Wire, source: ObjectStat, to: str, condition: dict[str, str]) -> bool:
    spans = [(start, min(start + _PART, source.size) - 1) for start in range(0, source.size, _PART)]

    def send(number: int, upload_id: str) -> dict[str, Any]:
        first, last = spans[number - 1]
        said = wire.call(
            f"copy part {number} of {source.name}",
            lambda _: wire.client.upload_part_copy(
                **wire.bucket,
                **wire.owner,
                **_source(wire, source),
                Key=wire.key(to),
                UploadId=upload_id,
                PartNumber=number,
                CopySourceRange=f"bytes={first}-{last}",
            ),
        )
        return {"PartNumber": number, "ETag": said["CopyPartResult"]["ETag"]}

    nonce = secrets.token_hex(8)
    with multipart.begun(wire, to, {"Metadata": {NONCE: nonce}}) as upload_id:
        with stopping.Threads(_AT_ONCE, "copy") as pool:
            parts = list(pool.map(lambda number: send(number, upload_id), range(1, len(spans) + 1)))
        return multipart.complete(wire, to, upload_id, parts, condition, lambda: reading.nonce(wire, to) == nonce)
