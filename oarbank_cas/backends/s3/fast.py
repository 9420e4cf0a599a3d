"""The fast engine: obstore, for heads, whole reads and small puts. Whatever it does not answer, boto3 asks again.

obstore's errors are texts, so that they cannot be judged: only what cannot be misread counts as an answer (absent; a
condition does not hold). Everything else is one try that failed, and the next ones are boto3's.

A call cannot be interrupted, so that it waits for a silent server for no longer than `_SILENT`.
"""

from __future__ import annotations

import os
import weakref
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import obstore
from obstore import exceptions as oe
from obstore.store import S3Store

from oarbank_cas.backends.s3 import failures, stats
from oarbank_cas.backends.s3.engine import NONCE, Got
from oarbank_cas.errors import UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from obstore import GetResult, ObjectMeta, PutMode
    from obstore.store import S3Config, S3Credential

    from oarbank_cas.backends.base import ObjectStat
    from oarbank_cas.backends.s3.spool import Spool
    from oarbank_cas.backends.s3.wire import Wire

_BORN = os.getpid()
"""The process that loaded obstore. Its threads do not live on in a forked child, where a call would never end."""

_CONNECT = timedelta(seconds=5)
_SILENT = timedelta(seconds=10)
_WHOLE = timedelta(minutes=10)
_CREDENTIAL = timedelta(minutes=10)
"""boto3 renews a credential that much ahead of its end."""

_CHUNK = 2**20
_ERRORS = (oe.BaseError, OSError, ValueError)


class FastEngine:
    """obstore.

    Args:
        wire: the bucket.

    Raises:
        UnsupportedError: obstore cannot reach this bucket as boto3 does.
    """

    name = f"obstore {obstore.__version__}"

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        problem = _problem(wire)
        if problem:
            raise UnsupportedError(f"obstore cannot be used: {problem}")
        try:
            self._store = S3Store(
                wire.place.bucket,
                config=_config(wire),
                client_options={
                    "allow_http": urlsplit(wire.endpoint).scheme == "http",
                    "allow_invalid_certificates": False,
                    "connect_timeout": _CONNECT,
                    "read_timeout": _SILENT,
                    "timeout": _WHOLE,
                    "user_agent": "oarbank-cas",
                },
                retry_config={"max_retries": 0},  # tried again above, where it is known what a lost answer means
                credential_provider=_credentials_of(wire),
            )
        except _ERRORS as error:
            raise UnsupportedError(f"obstore cannot be used ({type(error).__name__})") from None

    def usable(self) -> bool:
        """Whether this process can call it."""
        return os.getpid() == _BORN

    def head(self, name: str) -> ObjectStat | None:
        """See `Engine.head`."""
        try:
            return _stat(name, obstore.head(self._store, self._wire.key(name)))
        except FileNotFoundError:
            return None
        except _ERRORS:
            raise failures.EngineFailedError from None

    def get(self, name: str) -> Got | None:
        """See `Engine.get`."""
        try:
            result = obstore.get(self._store, self._wire.key(name))
            return Got(_stat(name, result.meta), _Body(result), result.attributes)
        except FileNotFoundError as error:
            if "NoSuchBucket" in str(error):
                raise failures.EngineFailedError from None  # for boto3 to say so
            return None
        except _ERRORS:
            raise failures.EngineFailedError from None

    def put(self, name: str, spool: Spool, condition: Mapping[str, str], nonce: str) -> bool:
        """See `Engine.put`. Only for bytes that wait in memory; it computes their checksum itself."""
        data = spool.whole()
        assert data is not None
        mode: PutMode = "create" if "IfNoneMatch" in condition else "overwrite"
        if "IfMatch" in condition:
            mode = {"e_tag": condition["IfMatch"]}
        attributes: dict[str, Any] = {NONCE: nonce}
        if self._wire.options.storage_class:
            attributes["Storage-Class"] = self._wire.options.storage_class
        try:
            obstore.put(self._store, self._wire.key(name), data, mode=mode, attributes=attributes, use_multipart=False)
        except (oe.AlreadyExistsError, oe.PreconditionError):
            return False
        except _ERRORS:
            raise failures.EngineFailedError from None
        return True


def _credentials_of(wire: Wire) -> Callable[[], S3Credential]:
    """What obstore asks for a credential. It must not keep the client alive, in a circle that nobody can see."""
    known = weakref.ref(wire)

    def credential() -> S3Credential:
        wire = known()
        if wire is None:
            raise failures.EngineFailedError
        found = wire.credentials()
        return {
            "access_key_id": found.access_key,
            "secret_access_key": found.secret_key,
            "token": found.token,
            "expires_at": datetime.now(UTC) + _CREDENTIAL,
        }

    return credential


class _Body:
    """See `engine.Body`."""

    def __init__(self, result: GetResult) -> None:
        self._result: GetResult | None = result
        self._stream: Iterator[Any] | None = None
        self._left = memoryview(b"")

    def read(self) -> bytes:
        assert self._result is not None
        try:
            return bytes(self._result.bytes())
        except _ERRORS:
            raise failures.EngineFailedError from None

    def readinto(self, buffer: memoryview, /) -> int:
        assert self._result is not None
        try:
            if self._stream is None:
                self._stream = iter(self._result.stream(min_chunk_size=_CHUNK))
            if not len(self._left):
                self._left = memoryview(next(self._stream, b""))
        except _ERRORS:
            raise failures.EngineFailedError from None
        count = min(len(buffer), len(self._left))
        buffer[:count] = self._left[:count]
        self._left = self._left[count:]
        return count

    def close(self) -> None:
        self._result = self._stream = None
        self._left = memoryview(b"")


def _problem(wire: Wire) -> str | None:
    """Why obstore would not do here what boto3 does, if so."""
    if wire.ca_bundle and urlsplit(wire.endpoint).scheme == "https":
        return "it would trust other certificates beside those of the CA bundle"
    if wire.place.bucket.endswith("--x-s3"):
        return "a directory bucket"
    odd = [name for name in os.environ if name.startswith(("AWS_SSE_", "AWS_SERVER_SIDE_ENCRYPTION"))]
    return f"it would obey {odd[0]}, which AWS's tools do not know" if odd and not wire.options.sse else None


def _config(wire: Wire) -> S3Config:
    """All settings that matter: what is not said here obstore takes from the environment, by rules of its own."""
    probe = urlsplit(wire.url_of("x"))
    virtual = not probe.path.startswith(f"{urlsplit(wire.endpoint).path.rstrip('/')}/{wire.place.bucket}/")
    endpoint = f"{probe.scheme}://{probe.netloc}" if virtual else wire.endpoint
    config: S3Config = {
        "endpoint": endpoint,
        "aws_endpoint_url_s3": endpoint,
        "virtual_hosted_style_request": virtual,
        "region": wire.region,
        "checksum_algorithm": "SHA256",
        "unsigned_payload": False,
        "skip_signature": False,
        "conditional_put": "etag",
        "s3_express": False,
        "request_payer": wire.options.requester_pays,
    }
    if wire.options.sse:
        config["server_side_encryption"] = wire.options.sse
    if wire.options.sse_kms_key_id:
        config["sse_kms_key_id"] = wire.options.sse_kms_key_id
    return config


def _stat(name: str, meta: ObjectMeta) -> ObjectStat:
    if not meta["e_tag"]:
        raise failures.EngineFailedError
    return stats.stat_of(name, meta["size"], meta["e_tag"], meta["last_modified"])
