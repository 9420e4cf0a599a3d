"""Grants: what an agent without a credential can do with one, and what nobody can."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import urllib.error
import urllib.request

import pytest
import s3_kit

from oarbank_cas import (
    CorruptError,
    InvalidInputError,
    NotFoundError,
    PermissionDeniedError,
    Store,
    UnavailableError,
    UnsupportedError,
)
from oarbank_cas.agent.granted import download, upload

DATA = b"granted bytes " * 1000
DIGEST = hashlib.sha256(DATA).hexdigest()


@pytest.fixture
def path(tmp_path):
    (tmp_path / "file").write_bytes(DATA)
    return tmp_path / "file"


def test_there_and_back(store, path, tmp_path):
    (put,) = store.grant_put([DIGEST, DIGEST])
    assert upload(put.to_json(), path) is True
    assert put.headers["content-type"] == "application/octet-stream"
    assert store.get_bytes(DIGEST) == DATA
    if s3_kit.capabilities().create_if_absent:
        assert upload(put.to_json(), path) is False, "a grant creates, and never replaces"
    (get,) = store.grant_get([DIGEST])
    assert download(get.to_json(), tmp_path / "back") == len(DATA)
    assert (tmp_path / "back").read_bytes() == DATA
    assert sorted(os.listdir(tmp_path)) == ["back", "file"]


def test_other_bytes_are_refused_here_and_there(store, path, tmp_path):
    (put,) = store.grant_put([DIGEST])
    (tmp_path / "other").write_bytes(b"other bytes")
    with pytest.raises(InvalidInputError, match="grant is for"):
        upload(put.to_json(), tmp_path / "other")
    if not s3_kit.capabilities().checksum_sha256:
        pytest.skip("this server checks no checksums, which doctor says")
    request = urllib.request.Request(put.url, data=b"other bytes", headers=put.headers, method="PUT")
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(request)
    refused.value.close()
    assert refused.value.code == 400
    assert not store.has(DIGEST)


@pytest.mark.parametrize("change", ["x-amz-checksum-sha256", "if-none-match"])
def test_what_is_signed_cannot_be_left_out(store, path, change):
    if not s3_kit.capabilities().signatures:
        pytest.skip("this server checks no signatures, which doctor says")
    (put,) = store.grant_put([DIGEST])
    document = put.to_json()
    del document["headers"][change]
    # A server that refuses before it has read the body may leave no answer.
    with pytest.raises((PermissionDeniedError, UnavailableError)):
        upload(document, path, sleep=lambda _: None)
    assert not store.has(DIGEST)


def test_a_grant_is_for_one_blob_and_one_method(store, path, tmp_path):
    if not s3_kit.capabilities().signatures:
        pytest.skip("this server checks no signatures, which doctor says")
    (put,) = store.grant_put([DIGEST])
    other = hashlib.sha256(b"").hexdigest()
    (tmp_path / "empty").touch()
    moved = {**put.to_json(), "digest": other, "url": put.url.replace(DIGEST, other)}
    with pytest.raises(PermissionDeniedError):
        upload(moved, tmp_path / "empty")
    with pytest.raises(PermissionDeniedError):
        download({**put.to_json(), "method": "GET"}, tmp_path / "back")
    assert not (tmp_path / "back").exists()


def test_a_grant_ends(store, path, monkeypatch):
    if not s3_kit.capabilities().expiring_delete:
        pytest.skip("this server does not end signatures, which doctor says")
    now = store.backend.now() / 10**9
    monkeypatch.setattr("time.time", lambda: now - 3600)
    (put,) = store.grant_put([DIGEST], expires_s=60)
    monkeypatch.undo()
    with pytest.raises(PermissionDeniedError, match="expired"):
        upload(put.to_json(), path)


def test_what_is_absent_is_not_granted(store):
    with pytest.raises(NotFoundError):
        store.grant_get([DIGEST])
    with pytest.raises(InvalidInputError):
        store.grant_put(["no digest"])
    for span in (0, 8 * 86400):
        with pytest.raises(InvalidInputError):
            store.grant_put([DIGEST], expires_s=span)


def test_damaged_bytes_never_get_the_name(store, path, tmp_path):
    store.put_bytes(DATA)
    wire = store.backend.wire
    name = wire.key(f"blobs/{DIGEST[:2]}/{DIGEST}")
    s3_kit.plain().put_object(Bucket=wire.place.bucket, Key=name, Body=DATA[:-1] + b"!")
    (get,) = store.grant_get([DIGEST])
    with pytest.raises(CorruptError):
        download(get.to_json(), tmp_path / "back")
    assert sorted(os.listdir(tmp_path)) == ["file"]


def test_nobody_answers(path):
    waits = []
    grant = {"digest": DIGEST, "method": "PUT", "url": "http://127.0.0.1:9/x?X-Amz-Signature=hushhush", "headers": {}}
    with pytest.raises(UnavailableError) as failed:
        upload(grant, path, sleep=waits.append)
    assert len(waits) == 4
    assert "hushhush" not in str(failed.value)


@pytest.mark.parametrize(
    "change",
    [
        {"method": "GET"},
        {"url": "file:///etc/passwd"},
        {"url": None},
        {"digest": "../x"},
        {"headers": {"a": "b\r\nc: d"}},
    ],
)
def test_malformed_grants(path, change):
    grant = {"digest": DIGEST, "method": "PUT", "url": "http://127.0.0.1:9/x", "headers": {}}
    with pytest.raises(InvalidInputError):
        upload({**grant, **change}, path)


def test_a_grant_does_not_show_its_secret_by_chance(store):
    (put,) = store.grant_put([DIGEST])
    assert "X-Amz" not in repr(put)
    assert "X-Amz" in put.url


def test_a_directory_gives_none(tmp_path):
    with Store.init(tmp_path / "store")[0] as store, pytest.raises(UnsupportedError, match="bucket"):
        store.grant_put([DIGEST])


def test_the_commands(store, path, place, tmp_path):
    found = s3_kit.server()

    def run(*arguments, credentials=True):
        environment = {**os.environ, "OARBANK_CAS_STORE": place.url, "AWS_ENDPOINT_URL": found["endpoint"]}
        if not credentials:
            environment = {name: value for name, value in environment.items() if not name.startswith("AWS_")}
            environment["OARBANK_CAS_STORE"] = str(tmp_path / "none")
        done = subprocess.run(
            [sys.executable, "-m", "oarbank_cas", *arguments], env=environment, cwd=tmp_path, capture_output=True,
            text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout

    (tmp_path / "put.json").write_text(run("grant", "put", DIGEST))
    assert "uploaded" in run("grant", "upload", "put.json", "file", credentials=False)
    (tmp_path / "get.json").write_text(run("grant", "get", DIGEST))
    assert json.loads(run("--json", "grant", "download", "get.json", "-o", "back", credentials=False))["blobs"]
    assert (tmp_path / "back" / DIGEST).read_bytes() == DATA
