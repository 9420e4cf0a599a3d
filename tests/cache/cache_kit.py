"""A store whose reads are counted across processes, a cache before it, and what must always hold of a cache."""

import hashlib
import os
import re
import stat
import time
from collections import Counter
from pathlib import Path

from oarbank_cas import Store, layout
from oarbank_cas import descriptor as descriptors
from oarbank_cas.backends.local import LocalBackend
from oarbank_cas.cache import upkeep
from oarbank_cas.cache.cache import Cache

PROGRAM = """
import os, sys, time, signal, random, traceback
sys.path[:0] = {paths!r}
import cache_kit, agent_kit
from pathlib import Path
"""


def program(text):
    """A program for `race` that finds these helpers."""
    here = Path(__file__).parent
    return PROGRAM.format(paths=[str(here), str(here.parent / "agent")]) + text


class CountingBackend(LocalBackend):
    """A directory that notes in a file every blob that is read from it, and takes its time."""

    requests_at_once = 1

    def __init__(self, root, log, delay=0.0):
        super().__init__(root, layout.DESCRIPTOR)
        self._log = log
        self._delay = delay

    def _note(self, name):
        if name.startswith("blobs/"):
            fd = os.open(self._log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
            os.write(fd, f"{name[-64:]}\n".encode())
            os.close(fd)
            time.sleep(self._delay)

    def open(self, name, start=0):
        reader = super().open(name, start)
        self._note(name)
        return reader

    def clone(self, name, fd):
        return False


class Place:
    def __init__(self, folder):
        self.folder = Path(folder)
        self.url = str(self.folder / "store")
        self.cache = str(self.folder / "cache")
        self.log = str(self.folder / "reads")
        if not os.path.exists(self.url):
            Store.init(self.url)[0].close()

    def put(self, *contents):
        """Put blobs; their digests."""
        with Store.open(self.url) as store:
            return [store.put_bytes(data).digest for data in contents]

    def dataset(self, contents):
        from agent_kit import dataset_of

        with Store.open(self.url) as store:
            return dataset_of(store, contents)

    def open(self, budget=2**40, delay=0.0, cache=None):
        """The store, its reads counted, with the cache before it."""
        with Store.open(self.url) as store:
            descriptor = store.descriptor
        assert isinstance(descriptor, descriptors.Descriptor)
        return Store(CountingBackend(self.url, self.log, delay), descriptor, Cache(cache or self.cache, budget))

    def reads(self):
        """How often each blob was read from the store."""
        try:
            return Counter(Path(self.log).read_text().split())
        except FileNotFoundError:
            return Counter()

    def lose_store(self):
        """Take all blobs away from the store."""
        os.rename(f"{self.url}/blobs", f"{self.url}/blobs-away")
        os.mkdir(f"{self.url}/blobs")

    def cached(self):
        """Digest -> bytes of what is in the cache."""
        return cached(self.cache)


def cached(path):
    found = {}
    for file in Path(path, "blobs").glob("*/*"):
        found[file.name] = file.read_bytes()
    return found


def spoil(path, data=None, times=True):
    """Write to a file in place, whoever may; with `times`, set its times back to what they were."""
    before = os.stat(path)
    mode = stat.S_IMODE(before.st_mode)
    os.chmod(path, 0o600)
    with open(path, "r+b") as file:
        old = file.read()
        file.seek(0)
        file.write(bytes([old[0] ^ 1]) + old[1:] if data is None else data)
        file.truncate()
    os.chmod(path, mode)
    if times:
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def check(path, budget=None, quiet=True):
    """What must hold of a cache whenever nobody is at work in it.

    Every blob's bytes are right; what stands is counted, and nothing else is; nothing is left half-way once it is
    trimmed; the budget is kept.
    """
    cache = Cache(path, 2**40 if budget is None else budget)
    try:
        for digest, data in cached(path).items():
            assert hashlib.sha256(data).hexdigest() == digest, f"a wrong blob {digest}"
        with cache.index.reading() as sql:
            rows = dict(sql.execute("SELECT digest, size FROM blobs"))
            claims = dict(sql.execute("SELECT digest, size FROM claims"))
            (total,) = sql.execute("SELECT bytes FROM total").fetchone()
        assert total == sum(rows.values()) + sum(claims.values())
        files = {file.name: file.stat().st_size for file in Path(path, "blobs").glob("*/*")}
        assert set(files) <= set(rows) | set(claims), "a file that is not counted"
        if budget is not None:
            assert total <= budget
            assert sum(files.values()) <= budget
        if quiet:
            upkeep.trim(cache)
            assert os.listdir(Path(path, "partial")) == []
            assert os.listdir(Path(path, "live")) == []
            with cache.index.reading() as sql:
                assert sql.execute("SELECT count(*) FROM claims").fetchone() == (0,)
                assert sql.execute("SELECT count(*) FROM holds").fetchone() == (0,)
            assert not [name for name in os.listdir(path) if re.match(r"\.oarbank", name)]
        found = upkeep.verify(cache)
        assert found.wrong == []
        assert found.strays == []
    finally:
        cache.close()
