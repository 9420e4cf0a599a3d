"""From a store's URL to its storage: a directory, or a bucket whose client is imported only here, when one is named."""

from __future__ import annotations

import contextlib
import os
import re
from typing import TYPE_CHECKING

from oarbank_cas import layout
from oarbank_cas.backends.local import LocalBackend
from oarbank_cas.errors import (
    CasError,
    ConflictError,
    InvalidInputError,
    PermissionDeniedError,
    UnavailableError,
    UnsupportedError,
)

if TYPE_CHECKING:
    from oarbank_cas.backends.base import Backend
    from oarbank_cas.backends.s3.capabilities import Capabilities
    from oarbank_cas.backends.s3.options import S3Options
    from oarbank_cas.backends.s3.wire import Wire

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):")  # one letter alone is a Windows drive


def open_backend(url: str | os.PathLike[str], s3: S3Options | None = None, *, read_only: bool = False) -> Backend:
    """The storage of a store that is there.

    Args:
        url: a directory's path, a `file:` URL, or `s3://bucket/prefix`.
        s3: options of a bucket.
        read_only: nothing will be written.

    Raises:
        UnsupportedError: the URL is of another kind of storage.
        InvalidInputError: it names nothing of its kind.
        UnavailableError: the bucket is missing, or out of reach.
    """
    if not is_s3(url):
        return LocalBackend(directory_of(url), layout.DESCRIPTOR)
    from oarbank_cas.backends.s3.backend import S3Backend

    wire = s3_wire(url, s3)
    return S3Backend(wire, _capabilities(wire, probing=not read_only, existing=True), layout.DESCRIPTOR)


def new_backend(url: str | os.PathLike[str], s3: S3Options | None = None) -> Backend:
    """The storage of a store that is to be made, or is there already. A directory is made; a bucket must be there.

    Raises:
        ConflictError, PermissionDeniedError: the directory cannot be made.
        UnavailableError: the bucket is missing, or out of reach.
    """
    if is_s3(url):
        from oarbank_cas.backends.s3.backend import S3Backend

        wire = s3_wire(url, s3)
        return S3Backend(wire, _capabilities(wire, probing=True, existing=False))
    path = directory_of(url)
    try:
        os.makedirs(path, exist_ok=True)
    except PermissionError as error:
        raise PermissionDeniedError(f"cannot make the directory {path}: {error.strerror}") from error
    except OSError as error:
        raise ConflictError(f"cannot make the directory {path}: {error.strerror}") from error
    return LocalBackend(path)


def is_s3(url: str | os.PathLike[str]) -> bool:
    """Whether a URL names a bucket."""
    return os.fspath(url)[:5].lower() == "s3://"


def s3_wire(url: str | os.PathLike[str], s3: S3Options | None) -> Wire:
    """The client of the bucket that a URL names.

    Raises:
        UnsupportedError: the S3 client is not installed.
    """
    from oarbank_cas.backends.s3.options import S3Options, parse_url

    place = parse_url(os.fspath(url))
    try:
        from oarbank_cas.backends.s3.wire import Wire
    except ImportError as error:
        raise UnsupportedError(f"{place.url} needs boto3: pip install boto3 ({error.name} is missing)") from error
    return Wire(place, s3 or S3Options())


def _capabilities(wire: Wire, *, probing: bool, existing: bool) -> Capabilities:
    """What the store's server honours, as the store says it; found out where it does not say.

    Who may not find it out relies on nothing.
    """
    from oarbank_cas.backends.s3 import reading
    from oarbank_cas.backends.s3.capabilities import MAX_BYTES, Capabilities

    kept = reading.whole(wire, layout.CAPABILITIES, MAX_BYTES)
    if kept is not None:
        return Capabilities.decode(kept[0], wire.where)
    if not probing or (existing and reading.head(wire, layout.DESCRIPTOR) is None):
        return Capabilities()  # where there is no store, nothing is left behind
    from oarbank_cas.backends.s3.probe import Probe

    probe = Probe(wire)
    try:
        found = probe.run()
    except PermissionDeniedError:
        return Capabilities()
    if probe.complete:  # else the next client tries again
        with contextlib.suppress(CasError):
            keep_capabilities(wire, found)
    return found


def keep_capabilities(wire: Wire, found: Capabilities) -> None:
    """Keep with the store what its server was found to honour."""
    from oarbank_cas.backends.s3.putting import overwrite

    overwrite(wire, layout.CAPABILITIES, found.encode())


def directory_of(url: str | os.PathLike[str]) -> str:
    """The directory that a store's URL names.

    Raises:
        UnsupportedError: the URL is of another kind of storage.
        InvalidInputError: it names no directory.
    """
    text = os.fspath(url)
    if not text or "\0" in text:
        raise InvalidInputError("is no path of a directory", f"store {text!r}")
    match = _SCHEME.match(text)
    if match is None:
        return text
    if match[1].lower() != "file":
        # What stands between the scheme and the path may hold a password.
        shown = re.sub(r"//[^/@]*@", "//", text)
        raise UnsupportedError(
            f"{shown}: this version opens directories, by a path or a file: URL (a path with a colon: ./{shown}), and "
            "s3://bucket/prefix"
        )
    from urllib.parse import urlsplit
    from urllib.request import url2pathname

    parts = urlsplit(text)
    if parts.netloc not in ("", "localhost") or parts.query or parts.fragment:
        raise InvalidInputError(
            "names no directory of this machine: write file:///path, with ? and # as %3F and %23", text
        )
    path = url2pathname(parts.path)
    if not os.path.isabs(path) or "\0" in path:
        raise InvalidInputError("names no directory: write file:///path", text)
    return path


def missing(where: str, error: CasError) -> UnavailableError:
    """What is said where there is no store."""
    why = f" ({error})" if isinstance(error, UnavailableError) and where.startswith("s3://") else ""
    return UnavailableError(f"there is no store at {where}: check --store, or make one with `oarbank-cas init`{why}")
