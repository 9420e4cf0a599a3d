"""A store to look at through the filesystem, and ways to spoil what it holds."""

from __future__ import annotations

import os
import random
import tempfile
from pathlib import Path

from agent_kit import ORIGIN, digest, key, result, write_job

from oarbank_cas import Store, layout

BLOCK = 64 * 1024
"""A block in these tests: large files are some of it."""

KEY = key()
STAGED = f"{key(1)}:align"
LARGE = random.Random(7).randbytes(3 * BLOCK + 1000)

CONTENTS = {
    "out/a.txt": b"alpha",
    "out/empty": b"",
    "out/deep/b.bin": LARGE,
    "out/deep/er/c@1.5+x-y_z": b"odd",
    "out/deep0": b"sorts next to the folder",
    "log/run.log": b"one\ntwo\nthree",
}
"""Artifact and path to bytes."""


class Made:
    """A store on disk with one result under two keys, of which one has a stage."""

    def __init__(self, folder):
        self.url = str(folder)
        Store.init(self.url)[0].close()
        for job in (KEY, STAGED):
            self.publish(job, CONTENTS)
        with Store.open(self.url) as store:
            self.datasets = store.lookup(KEY).datasets

    def publish(self, job, contents, result_class="any", origin=ORIGIN):
        """Record files, named `artifact/path`, as the result of a job."""
        artifacts = {}
        for path in contents:
            artifacts.setdefault(path.partition("/")[0], {})[path.partition("/")[2]] = path
        with tempfile.TemporaryDirectory() as workdir, Store.open(self.url) as store:
            write_job(workdir, contents, result(artifacts))
            assert store.publish(job, workdir, origin, result_class).recorded.recorded

    def invalidate(self, job):
        with Store.open(self.url) as store:
            store.invalidate(job, by="tests", reason="to see")

    def blob(self, data):
        """Where a blob's file is."""
        return Path(self.url, layout.blob(digest(data)))

    def spoil(self, data, by):
        """Put other bytes in the place of a blob's."""
        path = self.blob(data)
        os.chmod(path, 0o644)
        path.write_bytes(by)
        os.chmod(path, 0o444)
