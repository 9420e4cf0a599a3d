"""The engines of a bucket: the few things asked of it for every object, by boto3 here, or by a faster one beside it.

An engine asks once. What it raises is judged, and tried again, by whoever called: see `Wire.call`.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import quote

import botocore.exceptions as be
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.response import StreamingBody

from oarbank_cas.backends.s3 import failures, listed, stats

if TYPE_CHECKING:
    from collections.abc import Mapping

    from botocore.awsrequest import AWSResponse

    from oarbank_cas.backends.base import ObjectStat
    from oarbank_cas.backends.s3.spool import FilePart, Spool
    from oarbank_cas.backends.s3.wire import Wire

NONCE = "oarbank-put"
"""Metadata of what is put or copied: a number that tells one's own from another's, after an answer that was lost."""

_META = "x-amz-meta-"
_CONDITIONS = {"IfNoneMatch": "if-none-match", "IfMatch": "if-match"}
_NO_KEY = b"<Code>NoSuchKey</Code>"
_EMPTY = hashlib.sha256(b"").hexdigest()
_LARGE = 2**20


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

    Heads, whole reads and small puts, of which there are many, are requests made with botocore's signer and session
    alone: a third of a client call's work. Their answers count where they say that all is well, that the object is
    absent, or that a condition does not hold. Any other is left to the client, which asks again and knows what it
    means: a put too, since whoever is told that it lost looks whose it is.

    Args:
        wire: the bucket.
    """

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._base: str | None = None

    def head(self, name: str) -> ObjectStat | None:
        """See `Engine.head`."""
        answer = self._ask("HEAD", name)
        if answer.status_code == 404:
            return None
        said = _read_headers(answer) or self.document(name)
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
        answer = self._ask("GET", name)
        if answer.status_code == 404 and _NO_KEY in answer.content:
            return None
        said = _read_headers(answer)
        if said is not None:
            return Got(_stat(name, said), StreamingBody(answer.raw, said["ContentLength"]), _metadata(answer.headers))
        answer.raw.close()
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

    def page(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        """A page of a listing, in the client's words: what `list_objects_v2` is asked and answers.

        Most of the client's work is to read the answer, so this is done here where the answer is plain.
        """
        answer = self._ask("GET", "", query=listed.query(asked))
        said = listed.read(answer.content) if answer.status_code == 200 else None
        if said is not None:
            return said
        document: dict[str, Any] = self._wire.client.list_objects_v2(**asked)
        return document

    def put(self, name: str, spool: Spool, condition: Mapping[str, str], nonce: str) -> bool:
        """See `Engine.put`."""
        headers = {
            **self._wire.stored_headers(),
            **{_CONDITIONS[kind]: value for kind, value in condition.items()},
            _META + NONCE: nonce,
            "x-amz-sdk-checksum-algorithm": "SHA256",
            "x-amz-checksum-sha256": stats.checksum_of(spool.sha256),
        }
        if spool.size > _LARGE:
            headers["Expect"] = "100-continue"  # who will be refused need not send it all
        status = self._ask("PUT", name, headers, spool.part(0, spool.size), spool.sha256.hex()).status_code
        if status in (200, 412):
            return bool(status == 200)
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

    def _ask(
        self,
        method: str,
        name: str,
        headers: Mapping[str, str] | None = None,
        body: bytes | FilePart | None = None,
        payload: str = _EMPTY,
        query: str = "",
    ) -> AWSResponse:
        """Ask for an object or, with a query, the bucket."""
        if self._base is None:
            self._base = self._wire.url_of("x").removesuffix("x")
        if query:
            url = f"{self._base.removesuffix(quote(self._wire.place.prefix, safe='/~'))}?{query}"
        else:
            url = self._base + quote(name, safe="/~")
        told = {**self._wire.extra_headers, **(headers or {})}
        request = AWSRequest(method, url, told, body, stream_output=method == "GET" and not query)
        request.context["client_config"] = self._wire.client.meta.config
        _Signer(self._wire.credentials(), self._wire.region, payload).add_auth(request)
        answer = self._wire.session.send(request.prepare())
        if answer.status_code >= 500 or answer.status_code in (408, 429):  # which is not to be asked again at once
            answer.raw.close()
            raise be.ClientError({"ResponseMetadata": {"HTTPStatusCode": answer.status_code}}, method)
        return answer

    def _object(self, name: str) -> dict[str, Any]:
        return {**self._wire.bucket, **self._wire.owner, "Key": self._wire.key(name)}


class _Signer(S3SigV4Auth):  # type: ignore[misc]
    """Signs a request whose payload's digest is known already."""

    def __init__(self, credentials: object, region: str, payload: str) -> None:
        super().__init__(credentials, "s3", region)
        self._payload = payload

    def payload(self, request: AWSRequest) -> str:
        """The digest of the body, in hex; see `SigV4Auth.payload`."""
        del request
        return self._payload


def _read_headers(answer: AWSResponse) -> dict[str, Any] | None:
    """What a plain answer says of its object, in the client's words; None where that is not clear."""
    if answer.status_code != 200:
        return None
    try:
        return {
            "ContentLength": int(answer.headers["Content-Length"]),
            "ETag": answer.headers["ETag"],
            "LastModified": parsedate_to_datetime(answer.headers["Last-Modified"]),
        }
    except (KeyError, ValueError):
        return None


def _metadata(headers: Mapping[str, str]) -> dict[str, str]:
    return {name[len(_META) :].lower(): value for name, value in headers.items() if name.lower().startswith(_META)}


def _stat(name: str, said: Mapping[str, Any]) -> ObjectStat:
    return stats.stat_of(name, said["ContentLength"], said["ETag"], said["LastModified"])
