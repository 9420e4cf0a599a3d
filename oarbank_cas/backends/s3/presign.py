"""Requests signed in their URL (AWS Signature Version 4): for those without a credential, or for a given moment."""

from __future__ import annotations

import hashlib
import hmac
from datetime import UTC, datetime
from typing import TYPE_CHECKING
from urllib.parse import quote, urlsplit

if TYPE_CHECKING:
    from collections.abc import Mapping

    from botocore.credentials import ReadOnlyCredentials

LONGEST_S = 7 * 86400
"""Seconds that a signature may live, by S3's rules."""


def presign(
    method: str,
    url: str,
    credentials: ReadOnlyCredentials,
    region: str,
    issued_s: int,
    life_s: int,
    *,
    headers: Mapping[str, str] | None = None,
    query: Mapping[str, str] | None = None,
) -> str:
    """Sign a request, body aside, into its URL. From `issued_s + life_s` on the server refuses it, by its own clock.

    Args:
        method: of HTTP.
        url: the object's, percent-encoded.
        credentials: who signs.
        region: that it is signed for.
        issued_s: the date that it bears, in seconds since 1970.
        life_s: seconds that it lives from then.
        headers: that whoever sends it must send too, with these very values.
        query: further parameters.
    """
    parts = urlsplit(url)
    date = datetime.fromtimestamp(issued_s, UTC).strftime("%Y%m%dT%H%M%SZ")
    scope = f"{date[:8]}/{region}/s3/aws4_request"
    signed = {"host": parts.netloc, **{name.lower(): value.strip() for name, value in (headers or {}).items()}}
    asked = {
        **(query or {}),
        "X-Amz-Algorithm": "AWS4-HMAC-SHA256",
        "X-Amz-Credential": f"{credentials.access_key}/{scope}",
        "X-Amz-Date": date,
        "X-Amz-Expires": str(life_s),
        "X-Amz-SignedHeaders": ";".join(sorted(signed)),
    }
    if credentials.token:
        asked["X-Amz-Security-Token"] = credentials.token
    line = "&".join(f"{quote(name, safe='-_.~')}={quote(asked[name], safe='-_.~')}" for name in sorted(asked))
    canonical = "\n".join(
        [
            method,
            parts.path or "/",
            line,
            *(f"{name}:{signed[name]}" for name in sorted(signed)),
            "",
            asked["X-Amz-SignedHeaders"],
            "UNSIGNED-PAYLOAD",
        ]
    )
    digest = hashlib.sha256(canonical.encode()).hexdigest()
    key = f"AWS4{credentials.secret_key}".encode()
    for part in scope.split("/"):
        key = hmac.digest(key, part.encode(), "sha256")
    signature = hmac.new(key, f"AWS4-HMAC-SHA256\n{date}\n{scope}\n{digest}".encode(), "sha256").hexdigest()
    return f"{parts.scheme}://{parts.netloc}{parts.path or '/'}?{line}&X-Amz-Signature={signature}"
