"""Finding out what a server honours: every promise is tried with fresh random names, and nothing of it remains."""

from __future__ import annotations

import hashlib
import secrets
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import botocore.exceptions as be
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import ReadOnlyCredentials

from oarbank_cas.backends.s3 import failures, stats
from oarbank_cas.backends.s3.capabilities import Capabilities, Order
from oarbank_cas.backends.s3.presign import presign
from oarbank_cas.backends.s3.retry import Retry
from oarbank_cas.backends.s3.wire import Wire
from oarbank_cas.errors import CasError, PermissionDeniedError, UnavailableError

if TYPE_CHECKING:
    from collections.abc import Callable

Answer = Literal["yes", "no", "unknown"]

_RACERS = 8
_LIFE_S = 60
_SILENT_S = 10
_TRIES = 3
_WHOLE_S = 90
"""Seconds after which no further check begins: who opens a store must not wait for a server that answers nothing."""

_ORDER = ("a-", "a/b", "ab")


@dataclass(frozen=True, slots=True)
class Finding:
    """The outcome of one check.

    Attributes:
        check: what was tried.
        answer: whether the server does it.
        detail: more, for people.
    """

    check: str
    answer: Answer
    detail: str = ""


class Probe:
    """One look at a server, through one store's place in it.

    It asks by a client of its own, which waits less, and tries less often, than one that has work to do.

    Args:
        wire: the bucket.

    Attributes:
        findings: the outcome of each check so far.
        clock_difference_s: seconds by which the server's clock is ahead; None where it is not known.
        server: what it calls itself.
    """

    def __init__(self, wire: Wire) -> None:
        retry = Retry(_TRIES, first_s=0.1, longest_s=1, deadline_s=_SILENT_S)
        self._wire = Wire(wire.place, wire.options, retry, read_s=_SILENT_S)
        self._client = self._wire.client
        self._all = f"tmp/probe-{secrets.token_hex(8)}/"
        self._folder = self._all
        self._until_s = time.monotonic() + _WHOLE_S
        self.findings: list[Finding] = []
        self.clock_difference_s: float | None = None
        self.server = "unknown"

    def run(self) -> Capabilities:
        """Try everything.

        Raises:
            UnavailableError, PermissionDeniedError: not even one object can be put, read, listed and removed.
        """
        try:
            self._basics()
            found: dict[str, bool] = {}
            for name, what, check in self._checks():
                found[name] = self._ask(what, check)
            order = self._order()
        finally:
            self._clean()
            self._wire.close()
        return Capabilities(server=self.server, listing_order=order, **found)

    @property
    def complete(self) -> bool:
        """Whether every check came to an answer: what could not be found out may be found the next time."""
        return all(finding.answer != "unknown" for finding in self.findings)

    def _checks(self) -> list[tuple[str, str, Callable[[], bool]]]:
        return [
            ("checksum_sha256", "refuses a wrong x-amz-checksum-sha256", self._checksum),
            ("checksum_alone", "refuses it where the algorithm is not named", self._checksum_alone),
            ("payload_hash", "refuses a wrong signed payload hash", self._payload_hash),
            ("signatures", "refuses a wrong signature", self._signatures),
            ("create_if_absent", f"creates only what is absent, one of {_RACERS} at once", self._create_if_absent),
            ("replace_if_match", "replaces only what is expected", self._replace_if_match),
            ("delete_if_match", "removes only what is expected", self._delete_if_match),
            ("delete_exact", "never removes what just replaced that", self._delete_exact),
            ("copy_if_absent", "copies only to what is absent", self._copy_if_absent),
            ("multipart", "takes an object in parts", self._multipart),
            ("complete_if_absent", "ends an upload in parts only where absent", self._complete_if_absent),
            ("batch_delete", "removes many by one request", self._batch_delete),
            ("expiring_delete", "refuses a late delete", self._expiring_delete),
            ("ranges", "gives a part of an object", self._ranges),
            ("versioned", "keeps old versions", self._versioned),
        ]

    def _ask(self, what: str, check: Callable[[], bool]) -> bool:
        """A check's answer. What cannot be found out counts as not honoured."""
        code = "no time was left"
        for turn in range(_TRIES):
            if time.monotonic() > self._until_s:
                break
            self._folder = f"{self._all}{len(self.findings)}-{turn}/"  # nothing of an earlier try is in the way
            try:
                honoured = check()
            except (*failures.CLIENT_ERRORS, CasError) as error:
                failure = failures.judge(error)
                code = failure.code
                if not failure.again and failure.status >= 400:
                    self.findings.append(Finding(what, "no", code))
                    return False
            else:
                self.findings.append(Finding(what, "yes" if honoured else "no"))
                return honoured
        self.findings.append(Finding(what, "unknown", code))
        return False

    # -- small steps

    def _name(self, what: str) -> dict[str, Any]:
        return {**self._wire.bucket, **self._wire.owner, "Key": self._wire.key(self._folder + what)}

    def _put(self, what: str, data: bytes, **more: Any) -> Any:  # noqa: ANN401 - the client's document
        return self._client.put_object(**self._name(what), **self._wire.stored, Body=data, **more)

    def _etag(self, what: str) -> str | None:
        try:
            said = self._client.head_object(**self._name(what))
        except be.ClientError as error:
            if failures.is_absent(error):
                return None
            raise
        return f'"{stats.etag_of(said["ETag"])}"'

    def _bytes(self, what: str) -> bytes:
        with self._client.get_object(**self._name(what))["Body"] as body:
            return bytes(body.read())

    @staticmethod
    def _refused(call: Callable[[], Any]) -> bool:
        """Whether the server says no. It saying yes is no proof that it did it."""
        try:
            call()
        except be.ClientError as error:
            failure = failures.judge(error)
            if failure.again and not 400 <= failure.status < 500:
                raise  # it has trouble of its own, and says nothing of the request
            return True
        return False

    # -- what nothing works without

    def _basics(self) -> None:
        steps: list[tuple[str, Callable[[], Any]]] = [
            ("may list", lambda: self._client.list_objects_v2(
                **self._wire.bucket, **self._wire.owner, Prefix=self._wire.place.prefix, MaxKeys=1)),
            ("may write", lambda: self._put("basic", b"basic")),
            ("may read", lambda: self._bytes("basic")),
            ("may remove", lambda: self._client.delete_object(**self._name("basic"))),
        ]  # fmt: skip
        failed: CasError | None = None
        for what, step in steps:
            try:
                said = self._wire.call(what, lambda _, step=step: step())  # type: ignore[misc]
            except (PermissionDeniedError, UnavailableError) as error:
                self.findings.append(Finding(what, "no", str(error)))
                if isinstance(error, UnavailableError):
                    raise
                failed = failed or error
                continue
            self.findings.append(Finding(what, "yes"))
            if isinstance(said, dict):
                self.server = said["ResponseMetadata"]["HTTPHeaders"].get("server", self.server)
        if failed is not None:
            raise failed

    # -- what is tried

    def _checksum(self) -> bool:
        wrong = stats.checksum_of(hashlib.sha256(b"other").digest())
        refused = self._refused(lambda: self._put("sum", b"bytes", ChecksumAlgorithm="SHA256", ChecksumSHA256=wrong))
        right = stats.checksum_of(hashlib.sha256(b"bytes").digest())
        self._put("sum-right", b"bytes", ChecksumAlgorithm="SHA256", ChecksumSHA256=right)
        return refused and self._etag("sum") is None and self._bytes("sum-right") == b"bytes"

    def _checksum_alone(self) -> bool:
        wrong = stats.checksum_of(hashlib.sha256(b"other").digest())
        refused = self._refused(lambda: self._put("sum-alone", b"bytes", ChecksumSHA256=wrong))
        return refused and self._etag("sum-alone") is None

    def _payload_hash(self) -> bool:
        name = self._folder + "hash"
        url = self._wire.url_of(name)
        request = AWSRequest("PUT", url, dict(self._wire.extra_headers), b"signed")
        request.context["client_config"] = self._client.meta.config
        S3SigV4Auth(self._wire.credentials(), "s3", self._wire.region).add_auth(request)
        status = self._wire.send("PUT", url, dict(request.headers.items()), b"others").status_code
        return 400 <= status < 500 and self._etag("hash") is None

    def _signatures(self) -> bool:
        self._put("signed", b"1")
        known = self._wire.credentials()
        wrong = ReadOnlyCredentials(known.access_key, secrets.token_hex(20), known.token)
        url = self._wire.url_of(self._folder + "signed")
        signed = presign("GET", url, wrong, self._wire.region, int(time.time()), _LIFE_S)
        return bool(self._wire.send("GET", signed, {}).status_code == 403)

    def _create_if_absent(self) -> bool:
        self._put("create", b"first", IfNoneMatch="*")
        if not self._refused(lambda: self._put("create", b"second", IfNoneMatch="*")):
            return False
        if self._bytes("create") != b"first":
            return False

        def run(number: int) -> int | None:
            try:
                self._put("race", b"%d" % number, IfNoneMatch="*")
            except failures.CLIENT_ERRORS:
                return None
            return number

        with ThreadPoolExecutor(_RACERS) as pool:
            winners = [number for number in pool.map(run, range(_RACERS)) if number is not None]
        return len(winners) == 1 and self._bytes("race") == b"%d" % winners[0]

    def _replace_if_match(self) -> bool:
        self._put("replace", b"first")
        etag = self._etag("replace")
        refused = self._refused(lambda: self._put("replace", b"wrong", IfMatch='"0123456789abcdef0123456789abcdef"'))
        if not refused or self._bytes("replace") != b"first":
            return False
        if self._refused(lambda: self._put("replace", b"second", IfMatch=etag)):
            return False
        absent = self._refused(lambda: self._put("replace-absent", b"wrong", IfMatch=etag))
        return absent and self._bytes("replace") == b"second" and self._etag("replace-absent") is None

    def _delete_if_match(self) -> bool:
        self._put("delete", b"first")
        etag = self._etag("delete")
        wrong = '"0123456789abcdef0123456789abcdef"'
        refused = self._refused(lambda: self._client.delete_object(**self._name("delete"), IfMatch=wrong))
        if not refused or self._etag("delete") is None:
            return False
        self._client.delete_object(**self._name("delete"), IfMatch=etag)
        return self._etag("delete") is None

    def _delete_exact(self) -> bool:
        wrong = '"0123456789abcdef0123456789abcdef"'
        if not self._refused(lambda: self._client.delete_object(**self._name("exact-gone"), IfMatch=wrong)):
            return False
        with ThreadPoolExecutor(2) as pool:
            for turn in range(_RACERS):
                what = f"exact-{turn}"
                self._put(what, b"first")
                etag = self._etag(what)
                replacing = pool.submit(self._refused, lambda: self._put(what, b"second", IfMatch=etag))  # noqa: B023
                removing = pool.submit(
                    self._refused,
                    lambda: self._client.delete_object(**self._name(what), IfMatch=etag),  # noqa: B023
                )
                if replacing.result() == removing.result():
                    return False
        return True

    def _copy(self, source: str, to: str, **more: Any) -> Any:  # noqa: ANN401 - the client's document
        place = {"Bucket": self._wire.place.bucket, "Key": self._wire.key(self._folder + source)}
        return self._client.copy_object(**self._name(to), **self._wire.stored, CopySource=place, **more)

    def _copy_if_absent(self) -> bool:
        self._put("from", b"from")
        self._put("to", b"to")
        refused = self._refused(lambda: self._copy("from", "to", IfNoneMatch="*"))
        self._copy("from", "fresh", IfNoneMatch="*")
        return refused and self._bytes("to") == b"to" and self._bytes("fresh") == b"from"

    def _in_parts(self, what: str, **more: str) -> None:
        upload = self._client.create_multipart_upload(**self._name(what), **self._wire.stored)["UploadId"]
        try:
            said = self._client.upload_part(**self._name(what), UploadId=upload, PartNumber=1, Body=b"part")
            parts = {"Parts": [{"PartNumber": 1, "ETag": said["ETag"]}]}
            self._client.complete_multipart_upload(**self._name(what), UploadId=upload, MultipartUpload=parts, **more)
        except be.ClientError:
            self._client.abort_multipart_upload(**self._name(what), UploadId=upload)
            raise

    def _multipart(self) -> bool:
        self._in_parts("parts")
        return self._bytes("parts") == b"part"

    def _complete_if_absent(self) -> bool:
        self._put("complete", b"first")
        refused = self._refused(lambda: self._in_parts("complete", IfNoneMatch="*"))
        self._in_parts("complete-fresh", IfNoneMatch="*")
        return refused and self._bytes("complete") == b"first" and self._bytes("complete-fresh") == b"part"

    def _batch_delete(self) -> bool:
        self._put("batch-1", b"1")
        self._put("batch-2", b"2")
        objects = [{"Key": self._name(what)["Key"]} for what in ("batch-1", "batch-2", "batch-absent")]
        said = self._client.delete_objects(
            **self._wire.bucket, **self._wire.owner, Delete={"Objects": objects, "Quiet": True}
        )
        return not said.get("Errors") and self._etag("batch-1") is None and self._etag("batch-2") is None

    def _expiring_delete(self) -> bool:
        self._put("late", b"late")
        said = self._client.head_object(**self._name("late"))
        made_s = stats.seconds_of(said["LastModified"])
        self.clock_difference_s = round(made_s - time.time(), 1)
        url = self._wire.url_of(self._folder + "late")

        def send(issued_s: int) -> int:
            headers = self._wire.extra_headers
            signed = presign(
                "DELETE", url, self._wire.credentials(), self._wire.region, issued_s, _LIFE_S, headers=headers
            )
            return int(self._wire.send("DELETE", signed, dict(headers)).status_code)

        if send(made_s - 2 * _LIFE_S) < 400 or self._etag("late") is None:
            return False
        return send(made_s - _LIFE_S // 2) < 300 and self._etag("late") is None

    def _ranges(self) -> bool:
        self._put("range", b"0123456789")
        with self._client.get_object(**self._name("range"), Range="bytes=2-4")["Body"] as body:
            return bytes(body.read()) == b"234"

    def _versioned(self) -> bool:
        if "VersionId" in self._put("version", b"1"):
            return True
        said = self._client.get_bucket_versioning(**self._wire.bucket)
        return bool(said.get("Status") == "Enabled")

    def _order(self) -> Order:
        try:
            order = self._wire.call("find the listing's order", lambda _: self._listing_order())
        except CasError as error:
            self.findings.append(Finding("lists by the order of bytes", "unknown", str(error)))
            return "unknown"
        self.findings.append(Finding("lists by the order of bytes", "yes" if order == "bytes" else "no", f"by {order}"))
        return order

    def _listing_order(self) -> Order:
        folder = self._folder + "order/"
        for name in _ORDER:
            self._put(f"order/{name}", b"")
        said = self._client.list_objects_v2(**self._wire.bucket, **self._wire.owner, Prefix=self._wire.key(folder))
        names = [found["Key"][len(self._wire.key(folder)) :] for found in said.get("Contents", ())]
        if names == sorted(_ORDER):
            return "bytes"
        return "folders" if names == ["a/b", "a-", "ab"] else "unknown"

    # -- the end

    def _clean(self) -> None:
        prefix = self._wire.key(self._all)
        asked = {**self._wire.bucket, **self._wire.owner}

        def remove() -> None:
            said = self._client.list_objects_v2(**asked, Prefix=prefix)
            for found in said.get("Contents", ()):
                self._client.delete_object(**asked, Key=found["Key"])

        try:
            self._wire.call(f"remove {prefix}", lambda _: remove())
        except CasError as error:
            self.findings.append(Finding("nothing remains", "no", str(error)))
