"""What went wrong, in one place: S3's and the network's errors become the package's, without a word of a secret.

Messages are made here and never quote a server's or a client's text: those hold keys, strings to sign and URLs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import botocore.exceptions as be
import urllib3.exceptions as ue
from botocore.parsers import ResponseParserError

from oarbank_cas.errors import (
    CasError,
    NotFoundError,
    PermissionDeniedError,
    StorageIOError,
    UnavailableError,
    UnsupportedError,
)

if TYPE_CHECKING:
    from collections.abc import Mapping


class BrokenAnswerError(Exception):
    """An answer that came whole by HTTP's rules but cannot be right: too short, or of another size than it says."""


class EngineFailedError(Exception):
    """The fast engine has no answer, and no reason that could be judged: for boto3 to ask again."""


class BadBytesError(Exception):
    """The server kept, or was sent, other bytes than ours: worth another try."""


CLIENT_ERRORS = (
    be.BotoCoreError,
    be.ClientError,
    ResponseParserError,
    ue.HTTPError,
    ConnectionError,
    TimeoutError,
    BrokenAnswerError,
    EngineFailedError,
    BadBytesError,
)
"""What an S3 call raises of its own."""

_AGAIN = frozenset(
    {
        "InternalError", "OperationAborted", "RequestTimeout", "RequestTimeoutException", "ServiceUnavailable",
        "SlowDown", "SlowDownRead", "SlowDownWrite", "Throttling", "ThrottlingException", "ThrottledException",
        "TooManyRequestsException", "RequestThrottled", "BandwidthLimitExceeded", "PriorRequestNotComplete",
        "EC2ThrottledException", "BadDigest", "XAmzContentSHA256Mismatch", "XAmzContentChecksumMismatch",
        "IncompleteBody", "XMinioServerNotInitialized", "BadRequest408",
    }
)  # fmt: skip
"""Codes that may be right the next time. A wrong checksum is the network's fault: ours are computed from the bytes."""

_EXPIRED = frozenset({"ExpiredToken", "ExpiredTokenException", "TokenRefreshRequired", "RequestExpired"})
_UNKNOWN_KEY = frozenset({"InvalidAccessKeyId", "SignatureDoesNotMatch", "InvalidToken", "InvalidSecurity",
                          "UnrecognizedClientException", "AuthFailure"})  # fmt: skip
_REGION = frozenset({"PermanentRedirect", "AuthorizationHeaderMalformed", "IllegalLocationConstraintException",
                     "TemporaryRedirect", "BadEndpoint"})  # fmt: skip
_SKEW = frozenset({"RequestTimeTooSkewed", "RequestInTheFuture"})
_ABSENT = frozenset({"NoSuchKey", "NotFound", "404", "NoSuchVersion"})
_UNSUPPORTED = frozenset({"NotImplemented", "MethodNotAllowed", "XNotImplemented"})
_LOST = frozenset({"PreconditionFailed", "ConditionalRequestConflict", "ConcurrentModification", "412", "409"})


@dataclass(frozen=True, slots=True)
class Failure:
    """One failure, judged.

    Attributes:
        code: S3's code, or the kind of the client's error.
        status: the HTTP status, or 0 where none came.
        region: the bucket's region, where an answer said it.
        again: it may go well the next time.
        may_have_acted: the server may have done what was asked.
    """

    code: str
    status: int = 0
    region: str | None = None
    again: bool = False
    may_have_acted: bool = False


def judge(error: BaseException) -> Failure:
    """Say what an S3 client's error means."""
    if isinstance(error, be.ClientError):
        return _judge_answer(error.response)
    kind = type(error).__name__
    if isinstance(error, (be.ConnectTimeoutError, be.EndpointConnectionError)):
        return Failure(kind, again=True)
    if isinstance(error, BadBytesError):
        return Failure(kind, again=True, may_have_acted=True)
    if isinstance(error, be.HTTPClientError) and not isinstance(error, (be.SSLError, be.ProxyConnectionError)):
        return Failure(kind, again=True, may_have_acted=True)
    if isinstance(error, (be.IncompleteReadError, be.ResponseStreamingError, be.ChecksumError, ue.HTTPError)):
        return Failure(kind, again=True, may_have_acted=True)
    if isinstance(error, ResponseParserError):  # an answer that is no XML, or ends too early
        return Failure(kind, again=True, may_have_acted=True)
    if isinstance(error, (ConnectionError, TimeoutError, BrokenAnswerError, EngineFailedError)):
        return Failure(kind, again=True, may_have_acted=True)
    return Failure(kind)


def _judge_answer(response: Mapping[str, Any]) -> Failure:
    said = response.get("Error", {})
    meta = response.get("ResponseMetadata", {})
    status = int(meta.get("HTTPStatusCode") or 0)
    code = str(said.get("Code") or status)
    region = said.get("Region") or meta.get("HTTPHeaders", {}).get("x-amz-bucket-region")
    again = (code in _AGAIN or status in (408, 429) or status >= 500) and code not in _UNSUPPORTED and status != 501
    if 200 <= status < 300:
        again = True  # an error inside an answer that began well: a copy, or the end of an upload
    return Failure(code, status, region, again, may_have_acted=again and (status >= 500 or status < 300))


def is_absent(error: be.ClientError) -> bool:
    """Whether an answer says that the object is not there (and the bucket is not in question)."""
    failure = _judge_answer(error.response)
    return failure.code in _ABSENT or (failure.status == 404 and failure.code not in ("NoSuchBucket", "NoSuchUpload"))


def is_lost(error: be.ClientError) -> bool:
    """Whether an answer says that a condition does not hold: somebody else was first."""
    failure = _judge_answer(error.response)
    return failure.status in (409, 412) and (failure.code in _LOST or failure.status == 412)


def is_no_range(error: be.ClientError) -> bool:
    """Whether an answer says that the object has no byte that far."""
    return _judge_answer(error.response).status == 416


def translate(failure: Failure, what: str, where: str, tries: int, waited_s: float) -> CasError:
    """The package's error for a failure that stays.

    Args:
        failure: the last one.
        what: the operation and its object.
        where: the store.
        tries: how many.
        waited_s: seconds since the first.
    """
    said = f"{failure.code}, HTTP {failure.status}" if failure.status else failure.code
    place = f"{where}: {what}"
    for codes, kind, text in _MEANINGS:
        if failure.code in codes:
            hint = f"; the bucket is in {failure.region}" if failure.region and codes is _REGION else ""
            return kind(f"{place}: {text}{hint} ({said})")
    if failure.again or failure.status in (301, 307, 308):
        return UnavailableError(
            f"{place} failed {tries} times in {waited_s:.0f} s, last with {said}: check the endpoint and the network, "
            "then run this again"
        )
    if failure.status in (401, 403):
        return PermissionDeniedError(
            f"{place} is refused ({said}): the credential lacks a permission. Where it may not list the bucket, S3 "
            "answers 403 also for what is absent; `oarbank-cas doctor` says which permission is missing"
        )
    if failure.status == 404:
        return NotFoundError(f"{place}: it is not there ({said})")
    if failure.status in (405, 501):
        return UnsupportedError(f"{place}: the server cannot do this ({said})")
    return StorageIOError(f"{place} failed ({said}); `oarbank-cas doctor` may say why")


_MEANINGS: tuple[tuple[frozenset[str], type[CasError], str], ...] = (
    (
        frozenset({"NoSuchBucket", "InvalidBucketName"}),
        UnavailableError,
        "there is no such bucket at this endpoint: check the name, --endpoint-url and the account",
    ),
    (_EXPIRED, PermissionDeniedError, "the credential has expired: get a new one, then run this again"),
    (
        _UNKNOWN_KEY,
        PermissionDeniedError,
        "the server does not know the credential: check the profile and the endpoint it belongs to",
    ),
    (
        frozenset({"NoCredentialsError", "PartialCredentialsError", "CredentialRetrievalError"}),
        PermissionDeniedError,
        "there is no usable credential: set AWS_PROFILE or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or use a role",
    ),
    (
        frozenset({"TokenRetrievalError", "UnauthorizedSSOTokenError", "SSOTokenLoadError", "LoginTokenLoadError"}),
        PermissionDeniedError,
        "the sign-in has expired: sign in again (aws sso login)",
    ),
    (
        frozenset({"ProfileNotFound", "ConfigNotFound", "ConfigParseError"}),
        PermissionDeniedError,
        "the AWS profile cannot be read: check AWS_PROFILE or `s3.profile`",
    ),
    (_REGION, UnavailableError, "the region or the endpoint is wrong: set `s3.region` or AWS_REGION"),
    (
        frozenset({"NoRegionError", "InvalidRegionError"}),
        UnavailableError,
        "no region is set: set `s3.region` or AWS_REGION",
    ),
    (_SKEW, UnavailableError, "this machine's clock and the server's differ too much: set this clock"),
    (
        frozenset({"SSLError", "ProxyConnectionError"}),
        UnavailableError,
        "no trusted connection: check the endpoint's certificate, `s3.ca_bundle` and the proxy",
    ),
    (
        frozenset({"InvalidObjectState", "ObjectNotInActiveTierError"}),
        UnavailableError,
        "the object was moved to an archive class: restore it, and take the bucket's lifecycle rule away",
    ),
    (
        frozenset({"QuotaExceeded", "XMinioStorageFull", "InsufficientStorage", "EntityTooLarge"}),
        StorageIOError,
        "there is no room for it: free some, or raise the quota",
    ),
    (_UNSUPPORTED, UnsupportedError, "the server cannot do this"),
)
