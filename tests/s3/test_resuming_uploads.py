"""An upload in parts that was cut goes on with what the server holds, mixes no bytes, and leaves nothing behind."""

from __future__ import annotations

import functools
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from datetime import UTC, datetime, timedelta

import pytest
import s3_kit
from proxy import Proxy

from oarbank_cas.backends.s3 import multipart
from oarbank_cas.backends.s3.backend import S3Backend
from oarbank_cas.errors import PermissionDeniedError, UnavailableError

PART = multipart.LEAST_PART
PARTS = 5
DATA = os.urandom(PART * (PARTS - 1) + 4321)


class Network:
    """A server behind a proxy, and how its parts are asked for."""

    def __init__(self, proxy, place):
        self.proxy, self.place = proxy, place

    def backend(self, **how):
        wire = s3_kit.wire(self.place, endpoint_url=self.proxy.endpoint, engine="boto3", **how)
        return S3Backend(wire, s3_kit.capabilities(), multipart_above=PART, part_size=PART)

    def parts_sent(self):
        return [path for method, path, _ in self.proxy.log if method == "PUT" and "partNumber" in path]

    def unfinished(self):
        return s3_kit.left_behind(self.backend().wire)


@functools.cache
def says_when_begun():
    """Whether the server says when an upload was begun; where it does not, none is gone on with."""
    s3, asked = s3_kit.plain(), {"Bucket": s3_kit.BUCKET, "Key": s3_kit.fresh_place().prefix + "begun"}
    upload = s3.create_multipart_upload(**asked)["UploadId"]
    try:
        listed = s3.list_multipart_uploads(Bucket=s3_kit.BUCKET, Prefix=asked["Key"]).get("Uploads", ())
        return any(datetime.now(UTC) - each["Initiated"] < timedelta(minutes=30) for each in listed)
    finally:
        s3.abort_multipart_upload(**asked, UploadId=upload)


@pytest.fixture
def network():
    if not says_when_begun():
        pytest.skip("this server does not say when an upload was begun, so that all parts are sent again")
    with Proxy(s3_kit.server()["endpoint"], 1, share=0) as proxy:
        yield Network(proxy, s3_kit.fresh_place())


def put(backend, data=DATA, name="blobs/aa/big"):
    incoming = backend.incoming(len(data))
    incoming.write(data)
    return backend.commit([(name, incoming)])[0]


def check(network, data=DATA, name="blobs/aa/big"):
    assert network.backend().read(name, 2**30)[0] == data
    assert network.unfinished() == []


def cut(network, after, data=DATA):
    """Put, with a network that is gone after so many parts."""
    network.proxy.at = lambda method, path: method == "PUT" and len(network.parts_sent()) >= after
    network.proxy.share, network.proxy.most, network.proxy.harms = 1, 10**6, ("reset-before",)
    with pytest.raises(UnavailableError):
        put(network.backend(), data)
    network.proxy.share = 0
    network.proxy.log.clear()


def test_what_the_server_holds_is_not_sent_again(network):
    cut(network, 3)
    assert len(network.unfinished()) == 1
    assert put(network.backend()) is not None
    assert len(network.parts_sent()) <= PARTS - 2  # the last is sent in any case, and may be one of the three
    check(network)


def test_other_bytes_under_the_name_are_all_sent(network):
    """Whatever an upload of the name holds: only parts with these bytes count."""
    cut(network, 3, DATA[:PART] + os.urandom(len(DATA) - PART))
    put(network.backend())
    assert len(network.parts_sent()) >= PARTS - 1  # more, where the server takes no part twice
    check(network)


def test_an_upload_that_is_cut_otherwise_is_left_alone(network):
    cut(network, 2, DATA + bytes(PART * 2))
    backend = network.backend()
    backend._putter._part_size = PART + 1
    put(backend)
    assert len(network.parts_sent()) == PARTS
    assert network.backend().read("blobs/aa/big", 2**30)[0] == DATA
    assert len(network.unfinished()) == 1  # whoever began it may yet go on with it
    for key, upload_id in multipart.abandoned(backend.wire, datetime.now(UTC) + timedelta(hours=1)):
        multipart.abort(backend.wire, key, upload_id)  # as gc does, in time
    check(network)


def test_an_old_upload_is_left_alone(network, monkeypatch):
    """An object is dated by the beginning of its upload, and must not look much older than its name."""
    cut(network, 3)
    monkeypatch.setattr(multipart, "RESUMED_WITHIN", timedelta(seconds=-5))
    put(network.backend())
    assert len(network.parts_sent()) == PARTS
    assert network.backend().read("blobs/aa/big", 2**30)[0] == DATA


def test_who_may_not_list_uploads_still_puts(network):
    cut(network, 3)
    network.proxy.at = lambda method, path: method == "GET" and "uploads" in path
    network.proxy.share, network.proxy.most, network.proxy.harms = 1, 10**6, ("error-403",)
    put(network.backend())
    assert len(network.parts_sent()) == PARTS
    assert network.backend().read("blobs/aa/big", 2**30)[0] == DATA


def test_a_refused_upload_is_aborted(network):
    network.proxy.at = lambda method, path: method == "PUT" and len(network.parts_sent()) >= 2
    network.proxy.share, network.proxy.most, network.proxy.harms = 1, 10**6, ("error-403",)
    with pytest.raises(PermissionDeniedError):
        put(network.backend())
    network.proxy.share = 0
    assert network.unfinished() == []


def test_two_who_go_on_with_one_upload(network):
    """Both say that it stands; nobody fails because the other was faster."""
    cut(network, 2)
    done, errors = [], []

    def run():
        try:
            done.append(put(network.backend()))
        except Exception as error:  # noqa: BLE001 - told to the test
            errors.append(error)

    threads = [threading.Thread(target=run) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert len(done) == 3
    check(network)


def test_somebody_ends_the_upload_that_is_gone_on_with(network, monkeypatch):
    cut(network, 2)
    held = multipart._held

    def held_then_gone(wire, name, upload_id):
        found = held(wire, name, upload_id)
        multipart.abort(wire, wire.key(name), upload_id)
        return found

    monkeypatch.setattr(multipart, "_held", held_then_gone)
    assert put(network.backend()) is not None
    check(network)


@pytest.mark.skipif(os.name == "nt", reason="needs SIGKILL")
def test_a_killed_upload_is_gone_on_with(network):
    program = textwrap.dedent(
        """
        import sys
        from oarbank_cas.backends.s3.backend import S3Backend
        from oarbank_cas.backends.s3.capabilities import Capabilities
        from oarbank_cas.backends.s3.options import Place, S3Options
        from oarbank_cas.backends.s3.wire import Wire
        endpoint, bucket, prefix, file, part = sys.argv[1:]
        wire = Wire(Place(bucket, prefix), S3Options(endpoint_url=endpoint, engine="boto3"))
        backend = S3Backend(wire, Capabilities(), multipart_above=int(part), part_size=int(part))
        data = open(file, "rb").read()
        incoming = backend.incoming(len(data))
        incoming.write(data)
        backend.commit([("blobs/aa/big", incoming)])
        """
    )
    network.proxy.at = lambda method, path: len(network.parts_sent()) > 3
    network.proxy.share, network.proxy.most, network.proxy.harms = 1, 10**6, ("silence",)
    folder = s3_kit.Path(s3_kit.tempfile.mkdtemp(prefix="oarbank-cas-tests-"))
    try:
        (folder / "data").write_bytes(DATA)
        command = [sys.executable, "-c", program, network.proxy.endpoint, network.place.bucket, network.place.prefix]
        with subprocess.Popen([*command, str(folder / "data"), str(PART)]) as process:
            deadline = time.monotonic() + 60
            while len(network.parts_sent()) <= 3 and time.monotonic() < deadline:
                time.sleep(0.02)
            time.sleep(0.3)
            process.send_signal(signal.SIGKILL)
    finally:
        (folder / "data").unlink()
        folder.rmdir()
    network.proxy.share = 0
    network.proxy.log.clear()
    assert len(network.unfinished()) == 1
    put(network.backend())
    assert 1 <= len(network.parts_sent()) < PARTS
    check(network)
