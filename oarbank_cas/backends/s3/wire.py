"""One bucket's clients: how they are made, what every request carries, and that every call is tried again."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

import boto3
from botocore import awsrequest, httpsession
from botocore.config import Config
from botocore.utils import get_environ_proxies

from oarbank_cas.backends.s3 import failures
from oarbank_cas.backends.s3.engine import Boto3Engine, Engine
from oarbank_cas.backends.s3.retry import Attempt, Retry
from oarbank_cas.errors import PermissionDeniedError, UnsupportedError

if TYPE_CHECKING:
    from botocore.credentials import ReadOnlyCredentials

    from oarbank_cas.backends.s3.fast import FastEngine
    from oarbank_cas.backends.s3.options import Place, S3Options

_T = TypeVar("_T")

_HEADERS = {
    "ServerSideEncryption": "x-amz-server-side-encryption",
    "SSEKMSKeyId": "x-amz-server-side-encryption-aws-kms-key-id",
    "StorageClass": "x-amz-storage-class",
}
_CONNECT_S = 5
_READ_S = 60
_DEFAULT_REGION = "us-east-1"
"""For servers that are not AWS and care for no region."""


class Wire:
    """A bucket's client. Safe to use from many threads.

    Args:
        place: the bucket and the store's prefix in it.
        options: the user's.
        retry: how calls are tried again.
        read_s: seconds for which a server may say nothing.
    """

    def __init__(
        self, place: Place, options: S3Options, retry: Retry | None = None, *, read_s: float = _READ_S
    ) -> None:
        self.place = place
        self._read_s = read_s
        self.options = options
        self.retry = retry or Retry()
        self.where = place.url
        try:
            session = boto3.session.Session(profile_name=options.profile, region_name=options.region)
            made: dict[str, Any] = {
                "endpoint_url": options.endpoint_url,
                "region_name": session.region_name or _DEFAULT_REGION,
                "verify": options.ca_bundle,
            }
            style: str = options.addressing_style
            self.client: Any = session.client("s3", **made, config=_config(options, style, read_s))
            if style == "auto" and _is_aws(self.client) and "." not in place.bucket:
                # Left to itself the client signs URLs for AWS's global name, and not for the bucket's region.
                self.client.close()
                self.client = session.client("s3", **made, config=_config(options, "virtual", read_s))
            self._credentials = session.get_credentials()
            botocore_session: Any = session._session  # noqa: SLF001 - the only place that knows it
            told = options.ca_bundle or botocore_session.get_config_variable("ca_bundle")
            self.ca_bundle: str | None = told or os.environ.get("REQUESTS_CA_BUNDLE")
        except failures.CLIENT_ERRORS as error:
            raise failures.translate(failures.judge(error), "the client", self.where, 1, 0) from None
        except ValueError:
            raise failures.translate(failures.Failure("BadEndpoint"), "the endpoint", self.where, 1, 0) from None
        self.bucket: dict[str, Any] = {"Bucket": place.bucket}
        self.owner: dict[str, Any] = {"RequestPayer": "requester"} if options.requester_pays else {}
        self.extra_headers = {"x-amz-request-payer": "requester"} if options.requester_pays else {}
        self.stored = _stored(options)
        self._raw: httpsession.URLLib3Session | None = None
        self._lock = threading.Lock()
        self.boto3 = Boto3Engine(self)
        self._fast: FastEngine | None = None
        self.engines = "boto3"
        """Which engines are used, for people."""
        if options.engine != "boto3":
            try:
                self._fast = _fast(self)
                self.engines = f"{self._fast.name} where it can, else boto3"
            except UnsupportedError as error:
                if options.engine == "obstore":
                    raise
                self.engines = f"boto3 ({error})"

    @property
    def is_fast(self) -> bool:
        """Whether there is a faster engine than boto3."""
        return self._fast is not None

    def engine(self, attempt: Attempt) -> Engine:
        """The engine for a try: the fast one goes first, and what it does not answer is boto3's."""
        if self._fast is not None and attempt.number == 1 and self._fast.usable():
            return self._fast
        return self.boto3

    def key(self, name: str) -> str:
        """The key of one of the store's objects."""
        return self.place.prefix + name

    def url_of(self, name: str) -> str:
        """Where an object is, unsigned."""
        signed: str = self.client.generate_presigned_url("get_object", Params={**self.bucket, "Key": self.key(name)})
        return signed.partition("?")[0]

    def call(self, what: str, call: Callable[[Attempt], _T]) -> _T:
        """Call until it answers; see `Retry.run`."""
        return self.retry.run(what, self.where, call)

    @property
    def region(self) -> str:
        """The region that requests are signed for."""
        return str(self.client.meta.region_name)

    @property
    def endpoint(self) -> str:
        """Where requests go."""
        return str(self.client.meta.endpoint_url)

    def credentials(self) -> ReadOnlyCredentials:
        """The credential as it is now; a role's changes.

        Raises:
            PermissionDeniedError: there is none.
        """
        found = self._credentials.get_frozen_credentials() if self._credentials is not None else None
        if found is None or not found.access_key or not found.secret_key:
            failure = failures.Failure("NoCredentialsError")
            error = failures.translate(failure, "the credential", self.where, 1, 0)
            assert isinstance(error, PermissionDeniedError)
            raise error
        return found

    def stored_headers(self) -> dict[str, str]:
        """What `stored` says, as headers of HTTP."""
        return {_HEADERS[name]: value for name, value in self.stored.items()}

    def send(self, method: str, url: str, headers: dict[str, str], body: bytes | None = None) -> awsrequest.AWSResponse:
        """Send a request that is signed already, once; its answer, whatever that says."""
        return self.session.send(awsrequest.AWSRequest(method, url, headers, body).prepare())

    @property
    def session(self) -> httpsession.URLLib3Session:
        """Connections for requests that are signed already."""
        if self._raw is None:
            with self._lock:
                self._raw = self._raw or httpsession.URLLib3Session(
                    verify=self.ca_bundle or True,
                    proxies=get_environ_proxies(self.endpoint),
                    timeout=(_CONNECT_S, self._read_s),
                    max_pool_connections=self.options.max_requests + 8,
                    # As the client's own: else each put waits a 25th of a second for an acknowledgement of its headers.
                    socket_options=[(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)],
                )
        return self._raw

    def close(self) -> None:
        """Let connections go."""
        self.client.close()
        if self._raw is not None:
            self._raw.close()


def _config(options: S3Options, style: str, read_s: float) -> Config:
    return Config(
        connect_timeout=_CONNECT_S,
        read_timeout=read_s,
        max_pool_connections=options.max_requests + 8,
        signature_version="s3v4",
        retries={"total_max_attempts": 1},  # tried again here, where it is known what a lost answer means
        # By default the client adds trailers that several servers do not understand; one keeps them in the object.
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
        # By itself the client addresses buckets by path wherever an endpoint is named.
        s3={"payload_signing_enabled": True, **({"addressing_style": style} if style != "auto" else {})},
        user_agent_extra="oarbank-cas",
    )


def _fast(wire: Wire) -> FastEngine:
    """The fast engine.

    Raises:
        UnsupportedError: it is not installed, or cannot reach the bucket as boto3 does.
    """
    try:
        from oarbank_cas.backends.s3.fast import FastEngine
    except ImportError as error:
        raise UnsupportedError(f"for obstore: pip install 'oarbank-cas[fast]'; {error.name} is missing") from error
    try:
        return FastEngine(wire)
    except failures.CLIENT_ERRORS as error:
        # What is wrong with a credential is said where it is first needed.
        raise UnsupportedError(f"obstore cannot be used ({failures.judge(error).code})") from None


def _is_aws(client: Any) -> bool:  # noqa: ANN401 - the client
    return (urlsplit(client.meta.endpoint_url).hostname or "").endswith((".amazonaws.com", ".amazonaws.com.cn"))


def _stored(options: S3Options) -> dict[str, Any]:
    """What every request that makes an object says of how it is to be kept."""
    said: dict[str, Any] = {}
    if options.sse:
        said["ServerSideEncryption"] = options.sse
    if options.sse_kms_key_id:
        said["SSEKMSKeyId"] = options.sse_kms_key_id
    if options.storage_class:
        said["StorageClass"] = options.storage_class
    return said
