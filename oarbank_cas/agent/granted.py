"""The agent's end of grants: blobs put and got by plain HTTP, with no credential and no S3 client."""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import os
import secrets
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from typing import IO, Any
from urllib.parse import urlsplit

from oarbank_cas.contracts.canonical import check_digest
from oarbank_cas.errors import (
    ConflictError,
    CorruptError,
    InvalidInputError,
    NotFoundError,
    PermissionDeniedError,
    StorageIOError,
    UnavailableError,
)

_CHUNK = 2**20
_TRIES = 5
_TIMEOUT_S = 60
_MESSAGE = 4096
_AGAIN = frozenset({408, 409, 425, 429, 500, 502, 503, 504})


def upload(
    grant: Mapping[str, Any], path: str | os.PathLike[str], *, sleep: Callable[[float], None] = time.sleep
) -> bool:
    """Put a file by a put grant.

    Args:
        grant: as the coordinator gave it.
        path: the file; its bytes must be the grant's.
        sleep: waits between tries; tests give their own.

    Returns:
        False where the blob was there already.

    Raises:
        InvalidInputError: the grant is malformed, or the file has other bytes.
        PermissionDeniedError: the grant has expired, or is for something else.
        StorageIOError: the server refused the bytes.
        UnavailableError: no answer after several tries.
    """
    digest, url, headers = _checked(grant, "PUT")
    label = os.fspath(path)
    try:
        with open(path, "rb") as file:
            actual = _digest(file)
            if actual != digest:
                raise InvalidInputError(f"has the digest {actual}; the grant is for {digest}", label)
            size = file.tell()

            def send() -> int:
                file.seek(0)
                # The server checks the checksum that the URL was signed with: a file that changes now is refused.
                sent = {**headers, "Content-Length": str(size)}
                with _open("PUT", url, sent, file) as answer:
                    answer.read()
                return 200

            status = _tried(send, digest, sleep)
    except OSError as error:
        raise InvalidInputError(f"cannot be read: {error.strerror}", label) from error
    if status == 412:
        return False
    if status == 400:
        raise StorageIOError(f"the server refused the bytes of {label}: they changed on the way; upload again")
    _raise_for(status, digest)
    return True


def download(
    grant: Mapping[str, Any], path: str | os.PathLike[str], *, sleep: Callable[[float], None] = time.sleep
) -> int:
    """Get a blob by a get grant, into a file, in the place of what is there; how many bytes.

    Wrong or partial bytes never get that name.

    Args:
        grant: as the coordinator gave it.
        path: the file.
        sleep: waits between tries; tests give their own.

    Raises:
        NotFoundError: the blob went meanwhile.
        CorruptError: its bytes are wrong.
        ConflictError: the file cannot be made.
        InvalidInputError, PermissionDeniedError, UnavailableError: as `upload`.
    """
    digest, url, headers = _checked(grant, "GET")
    target = os.path.abspath(path)
    partial = os.path.join(os.path.dirname(target), f".oarbank-cas-{secrets.token_hex(8)}")
    found = ("", 0)
    try:
        with open(partial, "xb") as file:

            def receive() -> int:
                nonlocal found
                file.seek(0)
                file.truncate()
                state = hashlib.sha256()
                with _open("GET", url, headers, None) as answer:
                    while chunk := answer.read(_CHUNK):
                        state.update(chunk)
                        file.write(chunk)
                    if answer.length:
                        raise http.client.IncompleteRead(b"", answer.length)
                found = (state.hexdigest(), file.tell())
                return 200

            _raise_for(_tried(receive, digest, sleep), digest)
            if found[0] != digest:
                raise CorruptError(
                    f"blob {digest} came with the digest {found[0]}; get it again, and have the store verified",
                    expected=digest,
                    actual=found[0],
                )
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, target)
    except OSError as error:
        raise ConflictError(f"cannot create {target}: {error.strerror}") from error
    finally:
        with contextlib.suppress(OSError):
            os.unlink(partial)
    return found[1]


def digest_of(path: str | os.PathLike[str]) -> str:
    """The digest of a file: which grant it needs.

    Raises:
        InvalidInputError: it cannot be read.
    """
    try:
        with open(path, "rb") as file:
            return _digest(file)
    except OSError as error:
        raise InvalidInputError(f"cannot be read: {error.strerror}", os.fspath(path)) from error


def _digest(file: IO[bytes]) -> str:
    state = hashlib.sha256()
    while chunk := file.read(_CHUNK):
        state.update(chunk)
    return state.hexdigest()


def _checked(grant: Mapping[str, Any], method: str) -> tuple[str, str, dict[str, str]]:
    digest, url, headers = grant.get("digest"), grant.get("url"), grant.get("headers", {})
    if not isinstance(url, str) or not isinstance(headers, dict) or grant.get("method") != method:
        raise InvalidInputError(f"is no grant to {method}", "grant")
    if urlsplit(url).scheme not in ("http", "https"):
        raise InvalidInputError("has a URL that is not of HTTP", "grant")
    texts = {str(name): str(value) for name, value in headers.items()}
    if any(not text.isprintable() for text in (*texts, *texts.values(), url)):
        raise InvalidInputError("has headers that no request may carry", "grant")
    return check_digest(digest if isinstance(digest, str) else "", "digest"), url, texts


def _open(method: str, url: str, headers: dict[str, str], body: IO[bytes] | None) -> http.client.HTTPResponse:
    request = urllib.request.Request(url, data=body, headers=headers, method=method)  # noqa: S310 - checked above
    answer = urllib.request.urlopen(request, timeout=_TIMEOUT_S)  # noqa: S310 - checked above
    assert isinstance(answer, http.client.HTTPResponse)
    return answer


def _tried(send: Callable[[], int], digest: str, sleep: Callable[[float], None]) -> int:
    """The status of the answer, after a few tries where it may be another the next time."""
    said = ""
    for number in range(_TRIES):
        if number:
            sleep(min(10.0, 0.3 * 2**number) * (0.5 + secrets.randbelow(1000) / 2000))
        try:
            return send()
        except urllib.error.HTTPError as error:
            with error:
                if error.code not in _AGAIN:
                    return _status(error)
                said = f"HTTP {error.code}"
        except (urllib.error.URLError, http.client.HTTPException, ConnectionError, TimeoutError) as error:
            said = type(error).__name__
    raise UnavailableError(
        f"blob {digest}: no answer in {_TRIES} tries, last {said}: check the network, then try again"
    )


def _status(error: urllib.error.HTTPError) -> int:
    """What is meant by an answer: some servers say 400 where a grant is over."""
    said = b""
    with contextlib.suppress(OSError, http.client.HTTPException):
        said = error.read(_MESSAGE) if error.code == 400 else b""
    return 403 if b"<Code>AccessDenied<" in said else error.code


def _raise_for(status: int, digest: str) -> None:
    if status == 404:
        raise NotFoundError(f"blob {digest} is not in the store")
    if status in (401, 403):
        raise PermissionDeniedError(f"the grant for blob {digest} has expired or is refused: ask for a new one")
    if status >= 300:
        raise StorageIOError(f"blob {digest}: the server answered HTTP {status}")
