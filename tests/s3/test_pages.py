"""What pages of the documentation say of buckets: typed at a real server, and counted."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path

import pytest
import s3_kit
from proxy import Proxy

from oarbank_cas import Origin, Store, job_key

sys.path.append(str(Path(__file__).parents[1] / "docs"))

import pages

DOCS = pages.ROOT / "docs"
AWS = os.environ.get("OARBANK_CAS_TEST_AWS", "")
"""The program `aws`. Its package pins another botocore than this environment has, so that it needs one of its own."""

FILES = 7


@pytest.fixture
def known():
    """The environment of a machine that has a credential."""
    found = s3_kit.server()
    return {
        "AWS_ACCESS_KEY_ID": found["access"],
        "AWS_SECRET_ACCESS_KEY": found["secret"],
        "AWS_DEFAULT_REGION": "us-east-1",
    }


def test_a_fleet_is_set_up(place, known, tmp_path):
    if not (s3_kit.capabilities().verified_puts and s3_kit.capabilities().create_if_absent):
        pytest.skip("the page is about servers that honour what a store needs")
    text = (DOCS / "fleet.md").read_text(encoding="utf-8")
    for example, real in (("s3://BUCKET/cas", place.url), ("https://s3.example.org", s3_kit.server()["endpoint"])):
        assert example in text
        text = text.replace(example, real.rstrip("/"))
    assert pages.check(DOCS / "fleet.md", tmp_path, text, **known) == 4


def test_the_permissions_are_those_that_are_said():
    (policy,) = re.findall(r"```json\n(.*?)```", (DOCS / "fleet.md").read_text(encoding="utf-8"), re.DOTALL)
    granted = {action for statement in json.loads(policy)["Statement"] for action in statement["Action"]}
    needed = re.search(r"An agent or coordinator needs (.*?) below the prefix", (DOCS / "s3.md").read_text(), re.DOTALL)
    assert granted == set(re.findall(r"s3:\w+", needed[1]))


@pytest.mark.skipif(not AWS, reason="OARBANK_CAS_TEST_AWS names no aws")
def test_recovery_by_hand_in_a_bucket(place, known, tmp_path, monkeypatch):
    text = (DOCS / "recovery.md").read_text(encoding="utf-8")
    on_disk = re.search(r"```sh\nS=/tmp/cas\n.*?```\n", text, re.DOTALL)
    in_a_bucket = re.search(r"In a bucket:\n\n((?:    .*\n)+)", text)
    commands = re.sub(r"^    ", "", in_a_bucket[1], flags=re.MULTILINE)
    text = text.replace(on_disk[0], f"```sh\n{commands}```\n").replace("s3://bucket/cas", place.url.rstrip("/"))
    monkeypatch.setenv("PATH", os.pathsep.join([os.environ["PATH"], str(Path(AWS).parent)]))
    known |= {"AWS_ENDPOINT_URL": s3_kit.server()["endpoint"], "OARBANK_CAS_STORE": place.url}
    assert pages.check(DOCS / "recovery.md", tmp_path, text, **known) == 6


class TestRequests:
    """The table of docs/sizing.md, request by request."""

    @pytest.fixture
    def said(self):
        text = (DOCS / "sizing.md").read_text(encoding="utf-8")
        rows = re.findall(r"^\| ([^|]*) \| ([^|]*) \| ([^|]*) \|$", text, re.MULTILINE)[1:]
        found = {}
        for what, *numbers in rows:
            if set(what) != {"-"}:
                found[what] = tuple(self.number(text) for text in numbers)
        return found

    @staticmethod
    def number(text):
        """`2n + 5` for `FILES` files."""
        factor, n, rest = re.fullmatch(r"(\d*)(n?)(?: \+ )?(\d*)", text).groups()
        return (int(factor or 1) * FILES if n else int(factor)) + int(rest or 0)

    @pytest.fixture
    def counted(self, place):
        """A store, through a proxy; what was asked of it since the last time, as writes and reads."""
        if not (s3_kit.capabilities().verified_puts and s3_kit.capabilities().delete_exact):
            pytest.skip("the table is about servers that honour what a store needs")
        known = s3_kit.capabilities().encode()
        s3_kit.plain().put_object(Bucket=place.bucket, Key=place.prefix + "capabilities.json", Body=known)
        with Proxy(s3_kit.server()["endpoint"], 1, share=0.0) as proxy:
            s3 = s3_kit.options(endpoint_url=proxy.endpoint)
            Store.init(place.url, s3=s3)[0].close()

            def since():
                asked = [(method, "list-type" in path) for method, path, _ in proxy.log]
                proxy.log.clear()
                writes = sum(method in ("PUT", "POST") or listed for method, listed in asked)
                reads = sum(method in ("GET", "HEAD") and not listed for method, listed in asked)
                return writes, reads

            opened = []

            def fresh(**more):
                opened.append(Store.open(place.url, s3=s3, **more))
                return opened[-1]

            yield fresh, since
            for store in opened:
                store.close()

    def work(self, folder, name, marks):
        """A finished job's directory."""
        made = folder / name
        made.mkdir()
        for number in range(FILES):
            (made / f"{number}.txt").write_text(f"{marks} {number}")
        listed = [{"path": f"{number}.txt", "local": f"{number}.txt"} for number in range(FILES)]
        envelope = {"schema": "demo/result@1", "module_version": "1.0.0", "payload": {}}
        (made / "result.json").write_text(json.dumps(envelope | {"artifacts": [{"name": "out", "files": listed}]}))
        return made

    def test_they_are_as_many_as_the_table_says(self, said, counted, tmp_path):
        fresh, since = counted
        found = {}

        def count(what, call):
            since()
            answer = call()
            found[what] = since()
            return answer

        store = count("open a store", fresh)
        key, other = (job_key("org.example.demo", "1", {"n": n}) for n in (1, 2))
        count("look up: a miss", lambda: store.lookup(key))
        count("put one file: new", lambda: store.put_bytes(b"one"))
        count("put one file: known", lambda: store.put_bytes(b"one"))
        first, second = (self.work(tmp_path, name, "same") for name in ("first", "second"))
        count("publish: all files new", lambda: store.publish(key, first, Origin(by="me")))
        count("publish: all files known", lambda: store.publish(other, second, Origin(by="me")))
        count("publish: the same again", lambda: store.publish(key, first, Origin(by="me")))
        reader = fresh(cache=tmp_path / "cache")
        answer = count("look up: a hit, for the first time in this process", lambda: reader.lookup(key))
        count(
            "look up: a hit again, within ten minutes (a quarter of a session, if that is less)",
            lambda: reader.lookup(key),
        )
        dataset = answer.datasets["out"]
        spec = {"schema": "demo/spec@1", "module_id": "org.example.demo", "module_version": "1.0.0", "payload": {}}
        spec |= {"job_key": key, "inputs": {"calls": {"dataset": dataset, "mount": "in/calls"}}}
        for what, by in (
            ("stage: without a cache", fresh()),
            ("stage: the first time on a machine with a cache", reader),
            ("stage: all in this machine's cache", reader),
        ):
            workdir = tmp_path / what[7:]
            workdir.mkdir()
            count(what, lambda by=by, to=workdir: by.stage(json.dumps(spec).encode(), to))
        last = fresh()
        count(
            "fetch",
            lambda: last.fetch([(file.path, file) for file in last.files_of(dataset)], tmp_path / "fetched"),
        )
        count("end a result", lambda: store.invalidate(key, by="me", reason="wrong"))
        assert found == said

    def test_gc_asks_little_where_nothing_is_new(self, counted, tmp_path):
        fresh, since = counted
        store = fresh()
        for number in range(5):
            marks = f"job {number}"
            key = job_key("org.example.demo", "1", {"n": number})
            store.publish(key, self.work(tmp_path, marks, marks), Origin(by="me"))
        assert store.gc().exit_code == 0
        since()
        assert store.gc().exit_code == 0
        assert sum(since()) <= 45  # some thirty, and the lists
