"""Options of a bucket; and what is said when something is wrong with it, without a word of a secret."""

from __future__ import annotations

import botocore.exceptions as be
import pytest
import s3_kit
import urllib3.exceptions as ue
from botocore.parsers import ResponseParserError

from oarbank_cas import CasError, InvalidInputError, PermissionDeniedError, Store, UnavailableError
from oarbank_cas.backends.s3 import failures
from oarbank_cas.backends.s3.options import Place, S3Options, check_endpoint, parse_url
from oarbank_cas.backends.s3.putting import overwrite
from oarbank_cas.backends.s3.retry import Attempt, Retry
from oarbank_cas.errors import NotFoundError, StorageIOError, UnsupportedError

SECRET = "hushhush"


def answer(code, status, **headers):
    said = {"Code": code, "Message": f"the secret is {SECRET}", "StringToSign": SECRET}
    return be.ClientError({"Error": said, "ResponseMetadata": {"HTTPStatusCode": status, "HTTPHeaders": headers}}, "X")


class Clock:
    def __init__(self):
        self.now = 0.0
        self.waits = []

    def sleep(self, seconds):
        self.waits.append(seconds)
        self.now += seconds

    def retry(self, **more):
        return Retry(sleep=self.sleep, seconds=lambda: self.now, chance=lambda: 1.0, **more)


def always(error):
    def call(_):
        raise error

    return call


class TestRetrying:
    @pytest.mark.parametrize(
        "error",
        [
            answer("SlowDown", 503), answer("TooManyRequestsException", 429), answer("InternalError", 500),
            answer("InternalError", 200), answer("RequestTimeout", 400), answer("", 502), answer("BadDigest", 400),
            be.ReadTimeoutError(endpoint_url=f"http://{SECRET}"), be.ConnectionClosedError(endpoint_url="x"),
            be.EndpointConnectionError(endpoint_url=f"http://{SECRET}"), be.ConnectTimeoutError(endpoint_url="x"),
            be.IncompleteReadError(actual_bytes=1, expected_bytes=2), be.ResponseStreamingError(error="x"),
            ResponseParserError("x"), ue.ProtocolError("x"), ConnectionResetError(), failures.BrokenAnswerError(),
        ],
    )  # fmt: skip
    def test_what_may_go_well_the_next_time_is_tried_again(self, error):
        clock = Clock()
        with pytest.raises(UnavailableError, match="failed 5 times") as failed:
            clock.retry(tries=5).run("read x/a", "s3://bucket", always(error))
        assert len(clock.waits) == 4
        assert clock.waits == sorted(clock.waits)
        assert SECRET not in str(failed.value)
        assert "x/a" in str(failed.value)

    def test_a_deadline_ends_it(self):
        clock = Clock()
        with pytest.raises(UnavailableError):
            clock.retry(tries=1000).run("read", "s3://bucket", always(answer("SlowDown", 503)))
        assert 100 < clock.now <= 121
        assert max(clock.waits) <= 10

    def test_an_answer_ends_it(self):
        seen = []

        def call(attempt: Attempt):
            seen.append((attempt.number, attempt.may_have_acted))
            if attempt.number == 1:
                raise be.EndpointConnectionError(endpoint_url="x")  # it was never sent
            if attempt.number == 2:
                raise ConnectionResetError
            return "answer"

        assert Clock().retry().run("read", "s3://bucket", call) == "answer"
        assert seen == [(1, False), (2, False), (3, True)]

    @pytest.mark.parametrize(
        ("error", "kind", "said"),
        [
            (answer("NoSuchBucket", 404), UnavailableError, "no such bucket"),
            (answer("ExpiredToken", 400), PermissionDeniedError, "expired"),
            (answer("InvalidAccessKeyId", 403), PermissionDeniedError, "does not know the credential"),
            (answer("SignatureDoesNotMatch", 403), PermissionDeniedError, "does not know the credential"),
            (answer("AccessDenied", 403), PermissionDeniedError, "permission"),
            (answer("403", 403), PermissionDeniedError, "403 also for what is absent"),
            (answer("PermanentRedirect", 301, **{"x-amz-bucket-region": "eu-west-9"}), UnavailableError, "eu-west-9"),
            (answer("AuthorizationHeaderMalformed", 400), UnavailableError, "region"),
            (answer("301", 301), UnavailableError, "endpoint"),
            (answer("RequestTimeTooSkewed", 403), UnavailableError, "clock"),
            (answer("InvalidObjectState", 403), UnavailableError, "archive"),
            (answer("NotImplemented", 501), UnsupportedError, "cannot do this"),
            (answer("EntityTooLarge", 400), StorageIOError, "room"),
            (answer("InvalidArgument", 400), StorageIOError, "doctor"),
            (answer("NoSuchUpload", 404), NotFoundError, "not there"),
            (be.NoCredentialsError(), PermissionDeniedError, "AWS_PROFILE"),
            (be.UnauthorizedSSOTokenError(), PermissionDeniedError, "sign in again"),
            (be.SSLError(endpoint_url="x", error="y"), UnavailableError, "certificate"),
        ],
    )
    def test_what_will_not_change_is_said_at_once(self, error, kind, said):
        clock = Clock()
        with pytest.raises(kind, match=said) as failed:
            clock.retry().run("read x/a", "s3://bucket", always(error))
        assert clock.waits == []
        assert SECRET not in str(failed.value)
        assert failed.value.__cause__ is None

    def test_answers_that_are_no_errors(self):
        assert failures.is_lost(answer("PreconditionFailed", 412))
        assert failures.is_lost(answer("ConditionalRequestConflict", 409))
        assert not failures.is_lost(answer("OperationAborted", 409))
        assert not failures.is_lost(answer("AccessDenied", 403))
        assert failures.is_absent(answer("NoSuchKey", 404))
        assert failures.is_absent(answer("404", 404))
        assert not failures.is_absent(answer("NoSuchBucket", 404))
        assert failures.is_no_range(answer("InvalidRange", 416))


class TestOptions:
    def test_all_of_them(self):
        section = {
            "endpoint_url": "https://s3.example.org", "region": "eu-central-1", "profile": "p",
            "addressing_style": "virtual", "sse": "aws:kms", "sse_kms_key_id": "k", "storage_class": "STANDARD_IA",
            "requester_pays": True, "ca_bundle": "/c.pem", "max_requests": 4, "engine": "boto3",
        }  # fmt: skip
        found = S3Options.from_document(section, "file")
        assert {name: getattr(found, name) for name in section} == section
        assert S3Options.from_document({}, "file") == S3Options()

    @pytest.mark.parametrize(
        ("section", "said"),
        [
            ({"endpoint": "x"}, "unknown"),
            ({"secret_key": "x"}, "credentials belong"),
            ({"region": 1}, "type str"),
            ({"requester_pays": "yes"}, "type bool"),
            ({"max_requests": True}, "type int"),
            ({"max_requests": 0}, "from 1"),
            ({"max_requests": 9999}, "from 1"),
            ({"addressing_style": "other"}, "one of"),
            ({"sse": "other"}, "one of"),
            ({"engine": "other"}, "one of"),
            ({"sse_kms_key_id": "k"}, "needs"),
            ({"storage_class": "GLACIER"}, "restored"),
            ({"storage_class": "DEEP_ARCHIVE"}, "restored"),
            ({"endpoint_url": "s3.example.org"}, "no URL"),
            ({"endpoint_url": f"https://user:{SECRET}@s3.example.org"}, "credential"),
            ({"endpoint_url": f"https://s3.example.org/?key={SECRET}"}, "credential"),
        ],
    )
    def test_what_is_wrong_is_said_with_the_file(self, section, said):
        with pytest.raises(InvalidInputError, match=said) as failed:
            S3Options.from_document(section, "the-file.toml")
        assert "the-file.toml" in str(failed.value)
        assert SECRET not in str(failed.value)

    @pytest.mark.parametrize("url", ["", "http://", "ftp://host", "http://host:x", "http://[::1", "https://h#f"])
    def test_endpoints_that_are_none(self, url):
        with pytest.raises(InvalidInputError):
            check_endpoint(url)

    def test_urls(self):
        assert parse_url("s3://bucket") == Place("bucket", "")
        assert parse_url("S3://bucket/a/b/") == Place("bucket", "a/b/")
        assert Place("bucket", "a/b/").url == "s3://bucket/a/b"

    def test_they_are_sent(self, place):
        wire = s3_kit.wire(place, sse="aws:kms", sse_kms_key_id="key", storage_class="STANDARD_IA", requester_pays=True)
        sent = {}

        def refuse(request, **_):
            sent.update(dict(request.headers.items()))
            raise answer("AccessDenied", 403)

        wire.client.meta.events.register("before-send.s3.PutObject", refuse)
        with pytest.raises(CasError):
            overwrite(wire, "x", b"")
        lower = {name.lower(): value for name, value in sent.items()}
        text = {name: value.decode() if isinstance(value, bytes) else value for name, value in lower.items()}
        assert text["x-amz-server-side-encryption"] == "aws:kms"
        assert text["x-amz-server-side-encryption-aws-kms-key-id"] == "key"
        assert text["x-amz-storage-class"] == "STANDARD_IA"
        assert text["x-amz-request-payer"] == "requester"
        assert text["x-amz-checksum-sha256"]
        assert len(text["x-amz-content-sha256"]) == 64, "the payload's hash is signed too"
        assert wire.stored_headers()["x-amz-storage-class"] == "STANDARD_IA"
        wire.close()

    def test_servers_that_are_not_aws_are_addressed_by_path(self, place, monkeypatch):
        def url_of(**more):
            wire = s3_kit.Wire(Place("bucket", ""), S3Options(region="eu-west-1", **more))
            try:
                return wire.url_of("k")
            finally:
                wire.close()

        assert url_of() == "https://bucket.s3.eu-west-1.amazonaws.com/k"
        assert url_of(endpoint_url="https://s3.example.org") == "https://s3.example.org/bucket/k"
        virtual = url_of(endpoint_url="https://s3.example.org", addressing_style="virtual")
        assert virtual == "https://bucket.s3.example.org/k"
        monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "https://s3.example.org")
        assert url_of() == "https://s3.example.org/bucket/k"


def test_a_wrong_secret_names_no_secret(store, place, s3, monkeypatch):
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    if not s3_kit.capabilities().signatures:
        pytest.skip("this server checks no signatures")
    with pytest.raises(PermissionDeniedError) as failed:
        Store.open(place.url, s3=s3)
    assert SECRET not in str(failed.value)


def test_no_credential(place, s3, monkeypatch):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    with pytest.raises(PermissionDeniedError, match="no usable credential"):
        Store.open(place.url, s3=s3)


def test_a_missing_profile(place):
    with pytest.raises(PermissionDeniedError, match="profile"):
        Store.open(place.url, s3=S3Options(profile="none-such"))
