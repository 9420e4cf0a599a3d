"""Lookups a second from one process, against a bare read, hash and JSON parse of the same entries."""

from __future__ import annotations

import hashlib
import json
import os
import random
import time
from pathlib import Path

from contest import contest, parser, report, workplace

from oarbank_cas import Origin, Store, layout


def fill(store: Store, entries: int) -> list[str]:
    """Record entries, each with an artifact of two files of its own; their keys."""
    keys = []
    for number in range(entries):
        key = hashlib.sha256(str(number).encode()).hexdigest()
        with store.intake() as intake:
            blobs = [intake.add_bytes(os.urandom(64)) for _ in range(2)]
            intake.commit()
        files = [{"path": f"f{n}", "digest": blob.digest, "size": blob.size} for n, blob in enumerate(blobs)]
        envelope = {
            "schema": "benchmark/result@1",
            "module_version": "1.0.0",
            "provenance": {"host": "node1", "tool_versions": {"tool": "1.2.3"}},
            "artifacts": [{"name": "out", "files": files}],
            "payload": {"score": str(number), "values": list(range(20))},
        }
        store.record(key, json.dumps(envelope).encode(), Origin("benchmark"))
        keys.append(key)
    random.Random(1).shuffle(keys)
    return keys


def main() -> None:
    """Measure the steady state: every key was looked up once before."""
    arguments = parser(__doc__).parse_args()
    entries = 10_000 if not arguments.quick else 100
    with workplace(arguments) as folder:
        store, _ = Store.init(folder / "store")
        keys = fill(store, entries)
        paths = [str(folder / "store" / layout.entry(key, None, "any")) for key in keys]

        def ours(_: Path) -> float:
            began = time.perf_counter()
            hits = sum(answer.hit for answer in store.lookup_many(keys))
            took = time.perf_counter() - began
            assert hits == len(keys)
            return took

        def bare(_fresh: Path) -> float:
            began = time.perf_counter()
            for path in paths:
                fd = os.open(path, os.O_RDONLY)
                data = os.read(fd, 1 << 20)
                os.close(fd)
                header, _, body = data.partition(b"\n")
                assert hashlib.sha256(body).hexdigest() == json.loads(header)["body_sha256"]
                json.loads(body)
            return time.perf_counter() - began

        began = time.perf_counter()
        assert all(answer.hit for answer in store.lookup_many(keys))
        first = time.perf_counter() - began
        seconds = contest({"bare read, hash, parse": bare, "lookup_many": ours}, folder, arguments.runs)
        report(f"lookup of {entries} recorded keys, steady state", seconds, "bare read, hash, parse")
        for name, taken in seconds.items():
            print(f"  {name:<34} {entries / sorted(taken)[len(taken) // 2]:,.0f} a second")
        print(f"  the first lookup of each key        {entries / first:,.0f} a second")
        store.close()


if __name__ == "__main__":
    main()
