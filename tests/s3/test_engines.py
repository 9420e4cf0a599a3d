"""The engines: what each sends, when boto3 takes over from obstore, and which is chosen."""

from __future__ import annotations

import base64
import hashlib
import os
import socket
import subprocess
import sys

import pytest
import s3_kit
from botocore.httpsession import DEFAULT_CA_BUNDLE
from proxy import Proxy

from oarbank_cas import Store, UnavailableError, UnsupportedError
from oarbank_cas.backends.s3.backend import S3Backend
from oarbank_cas.backends.s3.options import Place, S3Options
from oarbank_cas.backends.s3.retry import Retry
from oarbank_cas.backends.s3.wire import Wire
from oarbank_cas.doctor import examine

ENGINES = ("boto3", "obstore")
DATA = b"some bytes"
NAME = "results/ab/_@any"


@pytest.fixture(params=ENGINES)
def engine(request):
    return request.param


@pytest.fixture
def proxy():
    with Proxy(s3_kit.server()["endpoint"], 1, share=0.0) as made:
        yield made


@pytest.fixture
def through(proxy, place):
    """Opens a backend whose requests the proxy sees; closes it."""
    opened = []

    def make(engine, can=None, **more):
        found = s3_kit.options(endpoint_url=proxy.endpoint, engine=engine, **more)
        opened.append(S3Backend(Wire(place, found, Retry(first_s=0.01)), can or s3_kit.capabilities()))
        return opened[-1]

    yield make
    for each in opened:
        each.close()


class TestWhatIsSent:
    def test_a_create_carries_both_sums_the_condition_and_its_number(self, engine, through, proxy, put):
        if not s3_kit.capabilities().create_if_absent:
            pytest.skip("this server ignores the condition, so that none is sent")
        assert put(through(engine), NAME, DATA) is not None
        ((_, path, headers),) = [sent for sent in proxy.sent if sent[0] == "PUT"]
        digest = hashlib.sha256(DATA)
        assert path.endswith("/results/ab/_%40any")
        assert headers["x-amz-checksum-sha256"] == base64.b64encode(digest.digest()).decode()
        assert headers["x-amz-content-sha256"] == digest.hexdigest()
        assert headers["if-none-match"] == "*"
        assert len(headers["x-amz-meta-oarbank-put"]) == 16
        signed = headers["authorization"].partition("SignedHeaders=")[2].partition(",")[0].split(";")
        assert {"if-none-match", "x-amz-checksum-sha256", "x-amz-content-sha256", "x-amz-meta-oarbank-put"} <= {*signed}

    def test_a_replace_names_what_it_replaces(self, engine, through, proxy, put):
        if not s3_kit.capabilities().replace_if_match:
            pytest.skip("this server ignores the condition, so that none is sent")
        backend = through(engine)
        stat = put(backend, NAME, DATA)
        incoming = backend.incoming(1)
        incoming.write(b"2")
        assert backend.replace(NAME, incoming, stat.validator) is not None
        assert [sent[2].get("if-match") for sent in proxy.sent if sent[0] == "PUT"][-1] == (
            f'"{hashlib.md5(DATA, usedforsecurity=False).hexdigest()}"'
        )

    def test_the_options(self, engine, through, proxy, put):
        backend = through(engine, requester_pays=True, storage_class="STANDARD")
        put(backend, NAME, DATA)
        backend.read(NAME, 100)
        assert {sent[0] for sent in proxy.sent} == {"PUT", "HEAD", "GET"}
        for method, _, headers in proxy.sent:
            assert headers["x-amz-request-payer"] == "requester"
            assert method != "PUT" or headers["x-amz-storage-class"] == "STANDARD"

    def test_encryption_is_asked_for(self, engine, through, proxy):
        backend = through(engine, sse="aws:kms", sse_kms_key_id="the-key")
        proxy.harms, proxy.share, proxy.most = ("error-403",), 1.0, 10**9  # this server has no keys
        proxy.at = lambda method, path: method == "PUT"
        incoming = backend.incoming(1)
        incoming.write(b"1")
        with pytest.raises(Exception, match="refused"):
            backend.commit([(NAME, incoming)])
        headers = next(sent for method, _, sent in proxy.sent if method == "PUT")
        assert headers["x-amz-server-side-encryption"] == "aws:kms"
        assert headers["x-amz-server-side-encryption-aws-kms-key-id"] == "the-key"

    def test_obstore_obeys_no_environment_of_its_own(self, through, proxy, put, monkeypatch):
        if not s3_kit.capabilities().verified_fast_puts:
            pytest.skip("this server checks no bytes of obstore's puts, so that they are boto3's")
        for name, value in {
            "AWS_ENDPOINT_URL_S3": "http://127.0.0.1:9", "AWS_ENDPOINT": "http://127.0.0.1:9",
            "AWS_UNSIGNED_PAYLOAD": "true", "AWS_SKIP_SIGNATURE": "true", "AWS_CHECKSUM_ALGORITHM": "crc64nvme",
            "AWS_CONDITIONAL_PUT": "disabled", "AWS_VIRTUAL_HOSTED_STYLE_REQUEST": "true", "AWS_S3_EXPRESS": "true",
        }.items():  # fmt: skip
            monkeypatch.setenv(name, value)
        backend = through("obstore")
        assert put(backend, NAME, DATA) is not None
        headers = next(sent for method, _, sent in proxy.sent if method == "PUT")
        assert headers["x-amz-content-sha256"] == hashlib.sha256(DATA).hexdigest()
        assert "x-amz-checksum-sha256" in headers
        assert "authorization" in headers
        assert {sent[2]["user-agent"] for sent in proxy.sent} == {"oarbank-cas"}, "boto3 had to help"

    def test_a_server_that_would_not_check_obstores_puts_gets_boto3s(self, through, proxy, put):
        can = s3_kit.capabilities().without(checksum_alone=False, payload_hash=False)
        put(through("obstore", can), NAME, DATA)
        first = next(headers for method, _, headers in proxy.sent if method == "PUT")
        assert first["x-amz-sdk-checksum-algorithm"] == "SHA256"


class TestBoto3TakesOver:
    def test_what_obstore_does_not_answer_boto3_asks_again(self, through, proxy, put):
        backend = through("obstore")
        put(backend, NAME, DATA)
        proxy.sent.clear()
        proxy.harms, proxy.share, proxy.most = ("error-503",), 1.0, 1
        assert backend.read(NAME, 100)[0] == DATA
        agents = [sent[2].get("user-agent", "") for sent in proxy.sent]
        assert agents[0] == "oarbank-cas"
        assert len(agents) == 2
        assert agents[1] != "oarbank-cas"

    def test_a_missing_bucket_is_told_from_a_missing_object(self, engine):
        with pytest.raises(UnavailableError, match="no such bucket"):
            Store.open("s3://no-such-bucket-at-all/x", s3=s3_kit.options(engine=engine))

    def test_a_forked_child(self, place):
        script = """
import os, sys
from oarbank_cas.backends.s3.backend import S3Backend
from oarbank_cas.backends.s3.capabilities import Capabilities
from oarbank_cas.backends.s3.options import Place, S3Options
from oarbank_cas.backends.s3.wire import Wire
def opened():
    return S3Backend(Wire(Place(sys.argv[1], sys.argv[2]), S3Options(sys.argv[3], engine="obstore")), Capabilities())
before = opened()
assert before.stat("x/a") is None
child = os.fork()
if child == 0:
    import signal
    signal.alarm(20)
    os._exit(7 if before.stat("x/a") is None and opened().stat("x/a") is None else 1)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
        command = [sys.executable, "-c", script, place.bucket, place.prefix, s3_kit.server()["endpoint"]]
        assert subprocess.run(command, check=False).returncode == 7


class TestWhichIsUsed:
    @pytest.fixture(autouse=True)
    def no_bundle(self, monkeypatch):
        monkeypatch.delenv("REQUESTS_CA_BUNDLE", raising=False)
        monkeypatch.delenv("AWS_CA_BUNDLE", raising=False)

    def engines_of(self, **more):
        wire = Wire(Place("bucket", ""), S3Options(region="eu-west-1", **more))
        try:
            return wire.engines
        finally:
            wire.close()

    def test_what_is_asked_for(self, s3):
        assert self.engines_of(engine="boto3") == "boto3"
        assert self.engines_of(engine="obstore").startswith("obstore")
        assert self.engines_of().startswith("obstore")

    def test_not_installed(self, s3, monkeypatch):
        monkeypatch.setitem(sys.modules, "oarbank_cas.backends.s3.fast", None)
        assert self.engines_of().startswith("boto3 (")
        with pytest.raises(UnsupportedError, match=r"oarbank-cas\[fast\]"):
            self.engines_of(engine="obstore")

    @pytest.mark.parametrize(
        ("variable", "said"), [("AWS_SERVER_SIDE_ENCRYPTION", "AWS_SERVER_SIDE"), ("AWS_CA_BUNDLE", "certificates")]
    )
    def test_what_obstore_would_do_otherwise_is_boto3s(self, s3, monkeypatch, variable, said):
        assert self.engines_of().startswith("obstore")
        monkeypatch.setenv(variable, DEFAULT_CA_BUNDLE)
        assert self.engines_of().startswith("boto3 (obstore cannot be used: ")
        with pytest.raises(UnsupportedError, match=said):
            self.engines_of(engine="obstore")

    def test_where_requests_go(self, s3):
        def config(**more):
            from oarbank_cas.backends.s3 import fast

            wire = Wire(Place("bucket", ""), S3Options(region="eu-west-1", engine="boto3", **more))
            try:
                found = fast._config(wire)
            finally:
                wire.close()
            return found["endpoint"], found["virtual_hosted_style_request"]

        assert config() == ("https://bucket.s3.eu-west-1.amazonaws.com", True)
        other = "https://s3.example.org"
        assert config(endpoint_url=other) == (other, False)
        assert config(endpoint_url=other, addressing_style="virtual") == ("https://bucket.s3.example.org", True)

    def test_doctor_says_it(self, engine, place):
        report = examine(place.url, s3_kit.options(engine=engine))
        assert report.engine.startswith(engine)
        assert report.to_json()["engine"] == report.engine

    def test_a_directory_has_none(self, tmp_path):
        Store.init(tmp_path / "store")[0].close()
        assert examine(os.fspath(tmp_path / "store")).engine is None


GROWING = """
import gc, sys, weakref
from oarbank_cas.backends.s3.backend import S3Backend
from oarbank_cas.backends.s3.capabilities import Capabilities
from oarbank_cas.backends.s3.options import Place, S3Options
from oarbank_cas.backends.s3.wire import Wire
wire = Wire(Place(sys.argv[1], "let-go/"), S3Options(endpoint_url=sys.argv[2], engine=sys.argv[3]))
backend = S3Backend(wire, Capabilities())
assert backend.stat("x") is None
backend.close()
known = weakref.ref(wire)
del wire, backend
gc.collect()
sys.exit(known() is not None)
"""


@pytest.mark.parametrize("engine", ["boto3", "obstore"])
def test_a_closed_store_is_let_go(engine):
    """A program that opens one after another must not grow: a client with its certificates is large."""
    arguments = [s3_kit.BUCKET, s3_kit.server()["endpoint"], engine]
    assert subprocess.run([sys.executable, "-c", GROWING, *arguments], timeout=60).returncode == 0


def test_puts_do_not_wait_for_acknowledgements(place):
    """Headers and body are two packets; without this option the second waits for 40 ms, each time."""
    wire = s3_kit.wire(place, engine="boto3")
    assert (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1) in wire.session._socket_options
    wire.close()
