"""A deadline and a cancel end work at once, also where a server says nothing, and leave nothing behind."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import threading
import time

import pytest
import s3_kit
from proxy import Proxy

from oarbank_cas import Origin, Store, transfer
from oarbank_cas.backends.s3.options import S3Options
from oarbank_cas.errors import StoppedError
from oarbank_cas.stopping import Stop

KEY = "ab" * 32
PROMPT_S = 15
"""Far below the minute for which a silent server is waited for, far above what a busy machine takes."""


class Site:
    """A store behind a proxy, a finished job, and a folder to put things."""

    def __init__(self, proxy, folder):
        self.proxy, self.folder = proxy, folder
        place = s3_kit.fresh_place()
        options = S3Options(endpoint_url=proxy.endpoint)
        self.url = f"s3://{place.bucket}/{place.prefix}".rstrip("/")
        self.store, _ = Store.init(self.url, s3=options)
        self.work = folder / "w"
        (self.work / "out").mkdir(parents=True)
        files = {f"small{number}": os.urandom(1000) for number in range(20)}
        files["large"] = os.urandom(transfer.LARGE + 5)
        for name, data in files.items():
            (self.work / "out" / name).write_bytes(data)
        self.large = hashlib.sha256(files["large"]).hexdigest()
        listed = [{"path": name, "local": f"out/{name}"} for name in files]
        envelope = {"schema": "a.b/result@1", "module_version": "1.0.0", "payload": {}}
        envelope["artifacts"] = [{"name": "out", "files": listed}]
        (self.work / "result.json").write_text(json.dumps(envelope))

    def publish(self, key=KEY):
        return self.store.publish(key, self.work, Origin("tests"))

    def spec(self, dataset):
        spec = {"schema": "a.b/spec@1", "module_id": "a.b", "module_version": "1.0.0", "job_key": KEY, "payload": {}}
        return json.dumps(spec | {"inputs": {"x": {"dataset": dataset, "mount": "in/x"}}}).encode()

    def silent(self, after=0, at=lambda method, path: True):
        """From now on, and so many more requests, the server says nothing."""
        self.proxy.share, self.proxy.most, self.proxy.harms = 1, 10**6, ("silence",)
        begun = len(self.proxy.log)
        self.proxy.at = lambda method, path: at(method, path) and len(self.proxy.log) - begun >= after

    def speak(self):
        self.proxy.share = 0


@pytest.fixture(scope="module")
def shared_site(tmp_path_factory):
    with Proxy(s3_kit.server()["endpoint"], 1, share=0) as proxy:
        made = Site(proxy, tmp_path_factory.mktemp("site"))
        yield made
        made.speak()
        made.store.close()


@pytest.fixture
def site(shared_site):
    shared_site.speak()
    return shared_site


@pytest.fixture
def published(site, tmp_path):
    """A site with a published job, and an empty folder to put things."""
    site.dataset = site.publish().recorded.datasets["out"]
    site.target = tmp_path
    return site


WORKS = {
    "get_file": lambda site: site.store.get_file(site.large, site.target / "large"),
    "get_bytes": lambda site: site.store.get_bytes(site.large),
    "stage": lambda site: site.store.stage(site.spec(site.dataset), site.target),
    "lookup": lambda site: site.store.lookup(KEY),
    "lookup_many": lambda site: list(site.store.lookup_many([KEY] * 50)),
    "missing": lambda site: site.store.missing([f"{number:064x}" for number in range(50)]),
}
CUTS = [
    *((name, 0) for name in WORKS),
    ("get_file", 2),
    ("stage", 5),
    ("stage", 15),
    ("lookup_many", 20),
]
"""What is done, and after how many requests the server says nothing."""


@pytest.mark.parametrize(("name", "after"), CUTS)
@pytest.mark.parametrize("way", ["deadline", "cancel"])
def test_reading_ends_at_once(published, name, way, after):
    stop = Stop(1 if way == "deadline" else None)
    if way == "cancel":
        threading.Timer(0.5, stop.cancel).start()
    published.silent(after)
    began = time.monotonic()
    with pytest.raises(StoppedError, match="cancelled" if way == "cancel" else "within 1 s"), stop:
        WORKS[name](published)
    assert time.monotonic() - began < PROMPT_S
    assert [path for path in published.target.rglob("*") if path.is_file()] == []
    published.speak()
    WORKS[name](published)


@pytest.mark.parametrize("after", [0, 7, 20])
def test_publishing_ends_at_once_and_can_be_done_again(site, after, tmp_path):
    key = f"{after:064x}"
    data = os.urandom(transfer.LARGE)
    (site.work / "out" / "large").write_bytes(data)
    site.silent(after)
    began = time.monotonic()
    with pytest.raises(StoppedError), Stop(1.5):
        site.publish(key)
    assert time.monotonic() - began < PROMPT_S
    site.speak()
    assert site.store.lookup(key).status == "miss"
    assert site.publish(key).recorded.recorded
    assert site.store.get_bytes(hashlib.sha256(data).hexdigest()) == data


def test_what_is_done_in_time_is_done(published):
    with Stop(120):
        published.store.stage(published.spec(published.dataset), published.target)
    assert len(list((published.target / "in" / "x").iterdir())) == 21


def test_an_inner_stop_ends_with_the_outer(published):
    published.silent()
    with pytest.raises(StoppedError, match="within 1 s"), Stop(1), Stop(600):
        published.store.get_bytes(published.large)


def command(site, *arguments):
    store = [sys.executable, "-m", "oarbank_cas", "--store", site.url, "--endpoint-url", site.proxy.endpoint]
    return subprocess.Popen(
        [*store, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # A run of tests in the background may ignore interrupts, and hands that down.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


@pytest.mark.parametrize("after", [0, 4])
def test_a_command_with_a_deadline(published, after):
    published.silent(after)
    began = time.monotonic()
    with command(
        published, "--deadline-s", "3", "--json", "fetch", published.dataset, "-o", str(published.target)
    ) as run:
        out, err = run.communicate(timeout=60)
    assert time.monotonic() - began < PROMPT_S + 3
    assert (run.returncode, json.loads(out)["kind"]) == (75, "StoppedError")
    assert "not done within 3 s" in err
    assert [path for path in published.target.rglob("*") if path.is_file()] == []


@pytest.mark.skipif(os.name == "nt", reason="needs SIGINT")
def test_an_interrupted_command_waits_for_no_server(published):
    published.silent(8)
    begun = len(published.proxy.log)
    with command(published, "fetch", published.dataset, "-o", str(published.target)) as run:
        deadline = time.monotonic() + 60
        while len(published.proxy.log) < begun + 10 and time.monotonic() < deadline:
            time.sleep(0.05)
        time.sleep(0.5)
        began = time.monotonic()
        run.send_signal(signal.SIGINT)
        _, err = run.communicate(timeout=60)
    assert time.monotonic() - began < PROMPT_S
    assert run.returncode == 130
    assert "interrupted" in err
    assert "Traceback" not in err
    assert [path for path in published.target.rglob("*") if path.is_file()] == []
