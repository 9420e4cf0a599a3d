"""A page of a listing as S3 writes it (`ListObjectsV2`), read into the client's words, at a fraction of its work."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote_plus
from xml.etree import ElementTree

if TYPE_CHECKING:
    from collections.abc import Mapping

_NAMES = {
    "Prefix": "prefix",
    "Delimiter": "delimiter",
    "MaxKeys": "max-keys",
    "StartAfter": "start-after",
    "ContinuationToken": "continuation-token",
}
_ELSEWHERE = frozenset({"Bucket", "RequestPayer"})
"""What is asked in another way than by the query."""


def query(asked: Mapping[str, Any]) -> str:
    """The query that asks for a page, in the order in which it is signed.

    Args:
        asked: parameters of `list_objects_v2`.
    """
    told = {_NAMES[name]: str(value) for name, value in asked.items() if name not in _ELSEWHERE}
    told |= {"list-type": "2", "encoding-type": "url"}
    return "&".join(f"{name}={quote(told[name], safe='-_.~')}" for name in sorted(told))


def read(document: bytes) -> dict[str, Any] | None:
    """What a page says, as `list_objects_v2` answers; None where it is anything but a plain page."""
    try:
        root = ElementTree.fromstring(document)  # noqa: S314 - as botocore reads it; expat bounds what entities make
        space = root.tag.removesuffix("ListBucketResult")
        if space == root.tag:
            return None
        encoded = root.findtext(f"{space}EncodingType") == "url"

        def name(text: str | None) -> str:
            return unquote_plus(text or "") if encoded else text or ""

        key, size, etag, moment = (f"{space}{each}" for each in ("Key", "Size", "ETag", "LastModified"))
        return {
            "Contents": [
                {
                    "Key": name(each.findtext(key)),
                    "Size": int(each.findtext(size) or ""),
                    "ETag": each.findtext(etag) or "",
                    "LastModified": _moment(each.findtext(moment) or ""),
                }
                for each in root.iterfind(f"{space}Contents")
            ],
            "CommonPrefixes": [
                {"Prefix": name(each.findtext(f"{space}Prefix"))} for each in root.iterfind(f"{space}CommonPrefixes")
            ],
            "IsTruncated": {"true": True, "false": False}[root.findtext(f"{space}IsTruncated") or ""],
            "NextContinuationToken": root.findtext(f"{space}NextContinuationToken"),
        }
    except (ElementTree.ParseError, ValueError, KeyError):
        return None


def _moment(text: str) -> datetime:
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        raise ValueError("a time without a zone")
    return moment
