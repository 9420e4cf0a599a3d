"""gc, again and again, against a store under load: 8 processes write, 2 fetch, and nothing may be lost.

    python tests/operators/soak.py --minutes 10

Each writer has job keys of its own, and files that it draws from a pool that all share, so that what one lets go of
another picks up while gc condemns it. Writers record, invalidate, record again, upload without recording, and pin.
Fetchers read whatever is recorded. An operator runs gc (now and then two at once), verify, stats and copy by the
command line. At the end every result that was recorded and not ended must be a hit, with every byte.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import multiprocessing
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from oarbank_cas import NotFoundError, Origin, StorageIOError, Store
from oarbank_cas.errors import CasError

WRITERS = 8
FETCHERS = 2
SESSION_S = 3
POOL = 150


def digest_of(data):
    return hashlib.sha256(data).hexdigest()


def pooled(number):
    rng = random.Random(number)
    return rng.randbytes(rng.choice((20, 900, 30_000)))


def key_of(writer, number):
    return digest_of(f"writer {writer} job {number}".encode())


def envelope(files):
    listed = [{"path": path, "digest": digest_of(data), "size": len(data)} for path, data in files.items()]
    artifacts = [{"name": "out", "files": listed}]
    document = {"schema": "soak/result@1", "module_version": "1.0.0", "payload": {}, "artifacts": artifacts}
    return json.dumps(document).encode()


class Writer:
    """One process that writes."""

    def __init__(self, url, number, until, answers):
        self.store = Store.open(url)
        self.number = number
        self.until = until
        self.answers = answers
        self.rng = random.Random(f"{time.time()} {number}")
        self.expected = {}
        self.pins = {}
        self.did = Counter()
        self.wrong = []
        self.serial = 0

    def run(self):
        while time.time() < self.until and not self.wrong:
            act = self.rng.choices((self.record, self.end, self.upload, self.check, self.pin), (10, 4, 2, 3, 1))[0]
            try:
                act()
            except StorageIOError as error:
                # Slower than a session, as a loaded machine may be: it said so, and nothing was recorded.
                self.did[f"refused: {str(error)[:60]}"] += 1
            except CasError as error:
                self.wrong.append(f"{act.__name__}: {type(error).__name__}: {error}")
        self.answers.put(
            {
                "kind": "writer",
                "did": dict(self.did),
                "wrong": self.wrong,
                "expected": {key: sorted(files) for key, files in self.expected.items()},
                "pins": self.pins,
            }
        )

    def files(self):
        picks = self.rng.sample(range(POOL), self.rng.randint(1, 5))
        files = {f"pool-{pick}": pooled(pick) for pick in picks}
        if self.rng.random() < 0.5:
            self.serial += 1
            files["own"] = f"{self.number} {self.serial}".encode()
        return files

    def record(self):
        files = self.files()
        key = key_of(self.number, self.rng.randrange(60))
        if key in self.expected:
            return
        with self.store.intake() as intake:
            for data in files.values():
                intake.add_bytes(data)
            intake.commit()
        try:
            done = self.store.record(key, envelope(files), Origin(f"writer {self.number}"))
        except NotFoundError:
            # Its own hold does not carry over to a record that comes later than gc's grace: uploaded again next time.
            self.did["upload was collected before it was recorded"] += 1
            return
        if not done.recorded:
            self.wrong.append(f"{key} was recorded by somebody else")
        self.expected[key] = [digest_of(data) for data in files.values()]
        self.did["recorded"] += 1

    def end(self):
        if len(self.expected) < 10:
            return
        key = self.rng.choice(sorted(self.expected))
        if key in self.pins.values():
            return
        del self.expected[key]
        if not self.store.invalidate(key, by="soak", reason="soak"):
            self.wrong.append(f"{key} was there, and could not be ended")
        self.did["ended"] += 1

    def upload(self):
        self.store.put_bytes(self.rng.randbytes(500))
        self.did["uploaded only"] += 1

    def pin(self):
        if not self.expected or len(self.pins) > 3:
            return
        key = self.rng.choice(sorted(self.expected))
        name = f"soak-{self.number}-{len(self.pins)}"
        self.store.pins.pin(name, key)
        self.pins[name] = key
        self.did["pinned"] += 1

    def check(self):
        if not self.expected:
            return
        key = self.rng.choice(sorted(self.expected))
        check(self.store, key, self.expected[key], self.wrong)
        self.did["checked"] += 1


def check(store, key, digests, wrong):
    found = store.lookup(key)
    if not found.hit:
        wrong.append(f"{key} is a miss: {found.reason}: {found.detail}")
        return
    for digest in digests:
        try:
            store.get_bytes(digest)
        except CasError as error:
            wrong.append(f"{key} is a hit, and {error}")


def write(url, number, until, answers):
    Writer(url, number, until, answers).run()


def fetch(url, number, until, answers):
    """Fetch whatever is recorded, as a person would."""
    store = Store.open(url)
    rng = random.Random(f"{time.time()} {number}")
    did, wrong = Counter(), []
    while time.time() < until and not wrong:
        keys = [each.header["job_key"] for each in store.results.listing() if each.header.get("kind") == "entry"]
        for key in rng.sample(keys, min(len(keys), 10)):
            began = time.time()
            try:
                found = store.lookup(key)
                if not found.hit:
                    did["ended meanwhile"] += 1
                    if found.reason not in ("invalidated", "absent"):
                        wrong.append(f"{key}: {found.reason}: {found.detail}")
                    continue
                folder = tempfile.mkdtemp(prefix="oarbank-soak-")
                try:
                    files = [(file.path, file) for file in store.files_of(found.datasets["out"])]
                    store.fetch(files, folder)
                    did["fetched"] += len(files)
                finally:
                    shutil.rmtree(folder, ignore_errors=True)
            except CasError as error:
                # A hit is good for a session.
                if time.time() - began < SESSION_S:
                    wrong.append(f"fetching {key}: {error}")
                else:
                    did["slower than a session"] += 1
    answers.put({"kind": "fetcher", "did": dict(did), "wrong": wrong})


def operate(url, until, answers):
    """gc again and again, and now and then something else, by the command line."""
    rng = random.Random()
    did, wrong = Counter(), []
    mirror = f"{url}-mirror"
    Store.init(mirror)[0].close()

    def run(*arguments):
        command = [sys.executable, "-m", "oarbank_cas", "--json", "--store", url, *arguments]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    def ended(child, name, allowed):
        out, err = child.communicate()
        did[name] += 1
        if child.returncode not in allowed:
            wrong.append(f"{name} ended with {child.returncode}: {err.decode()[-2000:]} {out.decode()[-2000:]}")
        return json.loads(out) if out else {}

    def gc(*more):
        return run("gc", "--yes-really", "--allow-no-roots", "--tombstone-days", "0.0001", *more)

    while time.time() < until and not wrong:
        beside = gc("--anyway") if rng.random() < 0.3 else None
        report = ended(gc("--anyway"), "gc", (0,))
        if beside is not None:
            ended(beside, "gc beside it", (0,))
        for row, total in report.get("done", {}).get("totals", {}).items():
            if not row.endswith(" kept"):
                did[row] += total["count"]
        chance = rng.random()
        if chance < 0.1:
            verified = ended(run("verify"), "verify", (0,))
            did["bytes verified"] += verified.get("counts", {}).get("bytes_read", 0)
        elif chance < 0.2:
            ended(run("stats"), "stats", (0,))
        elif chance < 0.3:
            ended(run("copy", "--to", mirror, "--all"), "copy", (0, 1))
    answers.put({"kind": "operator", "did": dict(did), "wrong": wrong})


def soak(folder, seconds):
    """Run the load; what was done, and what went wrong."""
    url = str(Path(folder) / "store")
    store, _ = Store.init(url, session_s=SESSION_S, grace_s=1, slack_s=1)
    context = multiprocessing.get_context("fork")
    answers = context.Queue()
    until = time.time() + seconds
    jobs = [(write, (url, number, until, answers)) for number in range(WRITERS)]
    jobs += [(fetch, (url, number, until, answers)) for number in range(FETCHERS)]
    jobs += [(operate, (url, until, answers))]
    children = [context.Process(target=function, args=arguments) for function, arguments in jobs]
    for child in children:
        child.start()
    found = [answers.get(timeout=seconds + 300) for _ in children]
    for child in children:
        child.join()
    did, wrong = Counter(), []
    for each in found:
        for name, count in each["did"].items():
            did[f"{each['kind']}: {name}"] += count
        wrong += each["wrong"]
    store = Store.open(url)
    for each in found:
        for key, digests in each.get("expected", {}).items():
            check(store, key, digests, wrong)
            did["at the end: results checked"] += 1
    report = store.verify()
    wrong += [f"{problem.kind} {problem.name}: {problem.detail}" for problem in report.problems]
    did["at the end: blobs verified"] = report.counts["blobs_read"]
    mirror = Store.open(f"{url}-mirror").verify()
    wrong += [f"mirror: {problem.kind} {problem.name}: {problem.detail}" for problem in mirror.problems]
    return {"seconds": seconds, "did": dict(sorted(did.items())), "wrong": wrong}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--folder", help="where the store is made, and stays; else a temporary one")
    asked = parser.parse_args()
    with contextlib.ExitStack() as stack:
        folder = asked.folder or stack.enter_context(tempfile.TemporaryDirectory(prefix="oarbank-soak-"))
        summary = soak(folder, asked.minutes * 60)
    sys.stdout.write(json.dumps(summary, indent=1) + "\n")
    return 1 if summary["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
