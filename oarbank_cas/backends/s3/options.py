"""What a user may say about a bucket: its URL, and the options that AWS's own settings do not cover. No client here."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlsplit

from oarbank_cas.errors import InvalidInputError

if TYPE_CHECKING:
    from collections.abc import Mapping

Addressing = Literal["auto", "path", "virtual"]
EngineChoice = Literal["auto", "boto3", "obstore"]

_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,253}[A-Za-z0-9]")
_PREFIX = re.compile(r"[A-Za-z0-9!_.*'()-]+(/[A-Za-z0-9!_.*'()-]+)*")
_ARCHIVES = frozenset({"GLACIER", "DEEP_ARCHIVE"})
_CHOICES = {
    "addressing_style": ("auto", "path", "virtual"),
    "engine": ("auto", "boto3", "obstore"),
    "sse": ("AES256", "aws:kms", "aws:kms:dsse"),
}
MOST_REQUESTS = 256


@dataclass(frozen=True, slots=True)
class S3Options:
    """Options of a bucket. None leaves a choice to AWS's own settings: environment, shared files, instance roles.

    Attributes:
        endpoint_url: the server, where it is not AWS.
        region: its region.
        profile: a profile of the shared configuration files.
        addressing_style: `path` for `host/bucket/key`, `virtual` for `bucket.host/key`.
        sse: server-side encryption: `AES256`, `aws:kms` or `aws:kms:dsse`.
        sse_kms_key_id: the KMS key; the bucket's where None.
        storage_class: of what is put. Classes that must be restored before they are read are refused.
        requester_pays: this account pays for requests.
        ca_bundle: a file of certificates to trust, where the server's is not signed by a public authority.
        max_requests: requests under way at once, at most.
        engine: `obstore` (the extra `fast`) or `boto3`; `auto` takes obstore where it is installed and can reach the
            bucket as boto3 does.
    """

    endpoint_url: str | None = None
    region: str | None = None
    profile: str | None = None
    addressing_style: Addressing = "auto"
    sse: str | None = None
    sse_kms_key_id: str | None = None
    storage_class: str | None = None
    requester_pays: bool = False
    ca_bundle: str | None = None
    max_requests: int = 16
    engine: EngineChoice = "auto"

    def __post_init__(self) -> None:
        if self.endpoint_url is not None:
            check_endpoint(self.endpoint_url)
        if self.storage_class in _ARCHIVES:
            raise InvalidInputError(
                f"{self.storage_class} must be restored before it is read, so that nothing could be fetched; use "
                "STANDARD, STANDARD_IA, INTELLIGENT_TIERING or GLACIER_IR",
                "s3.storage_class",
            )
        if self.sse_kms_key_id is not None and not (self.sse or "").startswith("aws:kms"):
            raise InvalidInputError('needs `sse = "aws:kms"`', "s3.sse_kms_key_id")
        if self.engine not in _CHOICES["engine"]:
            raise InvalidInputError(f"must be one of {', '.join(_CHOICES['engine'])}", "s3.engine")
        if not 1 <= self.max_requests <= MOST_REQUESTS:
            raise InvalidInputError(f"must be from 1 to {MOST_REQUESTS}", "s3.max_requests")

    @classmethod
    def from_document(cls, document: Mapping[str, object], where: str) -> S3Options:
        """Read the `[s3]` section of a configuration file.

        Args:
            document: the section.
            where: the file, for messages.

        Raises:
            InvalidInputError: it says what is not understood.
        """
        kinds = {field.name: (bool if "bool" in str(field.type) else int if field.type == "int" else str)
                 for field in fields(cls)}  # fmt: skip
        values: dict[str, Any] = {}
        for name, value in document.items():
            if name not in kinds:
                secret = "; credentials belong in AWS's own files or environment" if "key" in name else ""
                raise InvalidInputError(f"sets `s3.{name}`, which is unknown; known: {', '.join(kinds)}{secret}", where)
            if type(value) is not kinds[name]:
                raise InvalidInputError(f"`s3.{name}` must be of type {kinds[name].__name__}", where)
            if value not in _CHOICES.get(name, (value,)):
                raise InvalidInputError(f"`s3.{name}` must be one of {', '.join(_CHOICES[name])}", where)
            values[name] = os.path.expanduser(str(value)) if name == "ca_bundle" else value
        try:
            return cls(**values)
        except InvalidInputError as error:
            raise InvalidInputError(f"{error}", where) from error


@dataclass(frozen=True, slots=True)
class Place:
    """Where in S3 a store is.

    Attributes:
        bucket: the bucket.
        prefix: what the store's names start with: empty, or ending with `/`.
    """

    bucket: str
    prefix: str

    @property
    def url(self) -> str:
        """As the user writes it."""
        return f"s3://{self.bucket}/{self.prefix}".rstrip("/")


def parse_url(url: str) -> Place:
    """Read an `s3://bucket/prefix` URL.

    Raises:
        InvalidInputError: it is none, or holds more than a bucket and a prefix.
    """
    parts = urlsplit(url)
    shown = f"s3://{parts.hostname or ''}{parts.path}"  # never what may be a credential
    if "@" in parts.netloc:
        raise InvalidInputError(
            "holds a credential: leave it out, and use AWS's own files, environment or roles", shown
        )
    if parts.query or parts.fragment or ":" in parts.netloc:
        raise InvalidInputError(
            "is s3://BUCKET/PREFIX and no more: the endpoint goes to --endpoint-url, options to a settings file",
            shown,
        )
    prefix = parts.path.strip("/")
    if _BUCKET.fullmatch(parts.netloc) is None:
        raise InvalidInputError("names no bucket (3 letters, digits, dots and hyphens at least)", shown)
    if prefix and (_PREFIX.fullmatch(prefix) is None or {".", ".."} & set(prefix.split("/"))):
        raise InvalidInputError("has a prefix of other characters than letters, digits and !_.*'()-", shown)
    return Place(parts.netloc, f"{prefix}/" if prefix else "")


def check_endpoint(url: str) -> None:
    """Check an endpoint's URL.

    Raises:
        InvalidInputError: it is none, or holds a credential.
    """
    try:
        parts = urlsplit(url)
        bad = parts.scheme not in ("http", "https") or not parts.hostname or (parts.port or 1) < 0
    except ValueError:
        raise InvalidInputError("is no URL such as https://s3.example.org", "the endpoint") from None
    if "@" in parts.netloc or parts.query or parts.fragment:
        raise InvalidInputError("holds a credential or a query: leave them out", "the endpoint's URL")
    if bad:
        raise InvalidInputError("is no URL such as https://s3.example.org", "the endpoint")
