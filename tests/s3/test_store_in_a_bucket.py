"""A store in a bucket does what one on disk does, by the same calls."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import time

import pytest
import s3_kit

from oarbank_cas import (
    CorruptError,
    InvalidInputError,
    Origin,
    PermissionDeniedError,
    Store,
    UnavailableError,
    UnsupportedError,
    job_key,
)
from oarbank_cas.gc.collect import Options as GcOptions

ORIGIN = Origin(by="tests", platform="linux-amd64")


def write_job(folder, files):
    os.makedirs(folder / "out", exist_ok=True)
    listed = []
    for path, data in files.items():
        (folder / "out" / path).write_bytes(data)
        listed.append({"path": path, "local": f"out/{path}"})
    document = {
        "schema": "align/result@1",
        "module_version": "1.0.0",
        "payload": {"variants": 1.0},
        "artifacts": [{"name": "calls", "files": listed}],
    }
    (folder / "result.json").write_text(json.dumps(document))


@pytest.fixture
def published(store, tmp_path):
    key = job_key("org.example.align", "1", {"reads": "sample-17"})
    write_job(tmp_path / "work", {"a.txt": b"first", "b.bin": bytes(range(256)) * 100})
    store.published = store.publish(key, tmp_path / "work", ORIGIN)
    store.key = key
    return store


def aged(store, seconds):
    """Wait until the store's own time has passed."""
    until = store.backend.now() + int(seconds * 10**9)
    while store.backend.now() < until:
        time.sleep(0.1)


class TestTheMainExample:
    def test_publish_lookup_stage_fetch(self, published, tmp_path, place, s3):
        with Store.open(place.url, read_only=True, s3=s3) as other:
            answer = other.lookup(published.key)
            assert answer.hit
            assert b'"payload": {"variants": 1.0}' in answer.envelope
            dataset = answer.datasets["calls"]
            spec = {
                "schema": "x/spec@1", "module_id": "org.example.next", "module_version": "1.0.0",
                "job_key": published.key, "payload": {}, "datasets": [dataset], "mounts": {dataset: "in/calls"},
            }  # fmt: skip
            (tmp_path / "next").mkdir()
            other.stage(json.dumps(spec).encode(), tmp_path / "next")
            assert (tmp_path / "next" / "in" / "calls" / "b.bin").read_bytes() == bytes(range(256)) * 100
            with pytest.raises(PermissionDeniedError):
                other.put_bytes(b"refused")

    def test_a_second_record_loses(self, published, tmp_path, place, s3):
        write_job(tmp_path / "again", {"a.txt": b"another"})
        with Store.open(place.url, s3=s3) as other:
            second = other.publish(published.key, tmp_path / "again", ORIGIN)
        assert not second.recorded.recorded
        assert b"another" not in second.recorded.envelope

    def test_ending_and_bringing_back(self, published):
        assert published.invalidate(published.key, by="tests", reason="wrong")
        assert published.lookup(published.key).reason == "invalidated"
        assert published.undo_invalidate(published.key, by="tests")
        assert published.lookup(published.key).hit

    def test_a_batch_of_lookups(self, published):
        keys = [published.key, "0" * 64, published.key]
        assert [answer.status for answer in published.lookup_many(keys)] == ["hit", "miss", "hit"]

    def test_damage_is_found_and_set_aside(self, published):
        digest = hashlib.sha256(b"first").hexdigest()
        wire = published.backend.wire
        s3_kit.plain().put_object(Bucket=wire.place.bucket, Key=wire.key(f"blobs/{digest[:2]}/{digest}"), Body=b"FIRST")
        with pytest.raises(CorruptError):
            published.get_bytes(digest)
        assert not published.has(digest)
        assert [stat.size for stat in published.backend.listing("damaged/")] == [5]
        assert published.verify().to_json()


class TestCollecting:
    def test_what_is_not_referred_to_goes_in_two_runs(self, published):
        if not published.backend.expiring_delete:
            pytest.skip("this server refuses no late delete, so that gc condemns nothing by itself, which doctor says")
        stray = published.put_bytes(b"nobody wants this").digest
        aged(published, 3)
        first = published.gc(options=GcOptions(allow_no_roots=True, yes_really=True))
        assert first.exit_code == 0, first.to_json()
        assert not published.has(stray)
        assert [stat for stat in published.backend.listing("fossils/") if stray in stat.name]
        assert published.lookup(published.key).hit
        assert published.get_bytes(stray) == b"nobody wants this", "a fossil can be read until it is purged"
        assert published.put_bytes(b"nobody wants this").digest == stray
        assert published.has(stray), "a fossil is revived by whoever wants it"

    def test_a_bare_copy_of_a_store_goes_there_and_back(self, published, tmp_path):
        with Store.init(tmp_path / "local")[0] as local:
            published.copy_to(local)
            assert local.lookup(published.key).hit
            assert local.get_bytes(hashlib.sha256(b"first").hexdigest()) == b"first"


class TestOpening:
    def test_nothing_but_init_makes_a_store(self, place, s3):
        with pytest.raises(UnavailableError, match="there is no store"):
            Store.open(place.url, s3=s3)
        assert s3_kit.keys(place) == []

    def test_init_twice_is_a_no_op(self, store, place, s3):
        again, made = Store.init(place.url, s3=s3)
        with again:
            assert not made
            assert again.descriptor == store.descriptor

    def test_capabilities_are_kept_with_the_store(self, store, place, s3):
        assert place.prefix + "capabilities.json" in s3_kit.keys(place)
        with Store.open(place.url, s3=s3) as other:
            assert other.backend.capabilities == store.backend.capabilities

    def test_a_store_without_them_is_probed_again(self, store, place, s3):
        found = store.backend.capabilities
        s3_kit.plain().delete_object(Bucket=place.bucket, Key=place.prefix + "capabilities.json")
        with Store.open(place.url, s3=s3) as other:
            assert other.backend.capabilities == found
        assert place.prefix + "capabilities.json" in s3_kit.keys(place)

    def test_a_missing_bucket_is_no_miss(self, s3):
        with pytest.raises(UnavailableError, match="no such bucket"):
            Store.open("s3://no-such-bucket-here/x", s3=s3)

    def test_a_store_that_goes_is_no_miss(self, store, place):
        for key in s3_kit.keys(place):
            s3_kit.plain().delete_object(Bucket=place.bucket, Key=key)
        with pytest.raises(UnavailableError, match="is not there"):
            store.lookup("0" * 64)

    @pytest.mark.parametrize(
        "url",
        [
            "s3://",
            "s3:///x",
            "s3://ab",
            "s3://bucket/x?endpoint=y",
            "s3://bucket/../x",
            "s3://bucket:9/x",
            "s3://b_/x y",
        ],
    )
    def test_urls_that_name_no_bucket(self, url):
        with pytest.raises(InvalidInputError):
            Store.open(url)

    def test_a_credential_in_a_url_is_refused_and_not_repeated(self):
        with pytest.raises(InvalidInputError) as refused:
            Store.open("s3://access:hushhush@bucket/x")
        assert "hushhush" not in str(refused.value)
        with pytest.raises(UnsupportedError) as refused:
            Store.open("ftp://user:hushhush@host/x")
        assert "hushhush" not in str(refused.value)


def test_the_command_line(tmp_path, place):
    found = s3_kit.server()
    environment = {**os.environ, "OARBANK_CAS_STORE": place.url, "AWS_ENDPOINT_URL": ""}
    (tmp_path / "oarbank-cas.toml").write_text(f'[s3]\nendpoint_url = "{found["endpoint"]}"\n')

    def run(*arguments, code=0):
        done = subprocess.run(
            [sys.executable, "-m", "oarbank_cas", *arguments], cwd=tmp_path, env=environment, capture_output=True,
            text=True, check=False,
        )  # fmt: skip
        assert done.returncode == code, done.stderr
        assert found["secret"] not in done.stdout + done.stderr
        return done.stdout

    run("init")
    write_job(tmp_path / "work", {"a.txt": b"first"})
    key = job_key("org.example.align", "1", {})
    said = json.loads(run("--json", "publish", "--job-key", key, "--workdir", "work"))
    can = s3_kit.capabilities()
    assert said["recorded"]
    assert said["exclusive"] == (can.create_if_absent and can.replace_if_match)
    assert '"variants": 1.0' in run("lookup", key)
    run("fetch", key, "calls/a.txt", "-o", "here")
    assert (tmp_path / "here" / "a.txt").read_bytes() == b"first"
    run("--endpoint-url", "http://127.0.0.1:1/?token=x", "lookup", key, code=65)
    run("--config", os.devnull, "--endpoint-url", found["endpoint"], "lookup", key)


def test_a_local_store_imports_no_client(tmp_path):
    program = (
        "import sys, oarbank_cas\nfrom oarbank_cas import Store\n"
        f"Store.init({str(tmp_path / 'store')!r})[0].close()\n"
        "print([name for name in ('boto3', 'botocore', 's3fs', 'aiohttp', 'obstore') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
