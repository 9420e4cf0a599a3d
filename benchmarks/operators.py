"""Time and peak memory of verify, stats and copy on a large local store, each in a process of its own.

python benchmarks/operators.py --folder /some/disk --blobs 1000000 --entries 200000
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import resource
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from contest import parser, workplace
from gc_scale import generate

from oarbank_cas import Store
from oarbank_cas.verify import Options

MIB = 2**20


def large_files(store: Store, count: int, size: int) -> None:
    """Put blobs whose bytes are the work."""
    for _ in range(count):
        store.put_bytes(os.urandom(size))


def bare(root: str) -> float:
    """The floor: read and hash every file below `blobs/`, with as many threads as cores; seconds."""

    def read(folder: str) -> None:
        for name in os.listdir(folder):
            with open(os.path.join(folder, name), "rb") as file:
                assert hashlib.file_digest(file, "sha256").hexdigest() == name

    began = time.perf_counter()
    blobs = os.path.join(root, "blobs")
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(read, [os.path.join(blobs, shard) for shard in os.listdir(blobs)]))
    return time.perf_counter() - began


def one(what: str, root: str) -> None:
    """Do one thing in this process, and print what it took."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began = time.perf_counter()
    told: dict[str, object] = {}
    with Store.open(root) as store:
        if what == "bare":
            bare(root)
        elif what == "verify":
            report = store.verify(Options(look_only=True))
            assert report.sound
            told = {"blobs": report.counts["blobs_read"], "mib": report.counts["bytes_read"] // MIB}
        elif what == "stats":
            told = {"blobs": store.stats(with_gc=False).blobs.count}
        else:
            with Store.init(f"{root}-copy")[0] as target:
                told = {"blobs": store.copy_to(target).counts["blobs copied" if what == "copy" else "blobs there"]}
    took = time.perf_counter() - began
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(json.dumps({"seconds": round(took, 2), "peak_mib": peak // 1024, "began_mib": before // 1024, **told}))


def measure(title: str, root: Path, *whats: str) -> None:
    """Each of them, in a fresh process."""
    print(f"\n{title}")
    for what in whats:
        command = [sys.executable, __file__, "--one", what, "--folder", str(root)]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
        print(f"  {what:<12} {done.stdout.strip()}", flush=True)


def main() -> None:
    """Make the stores, and measure."""
    options: argparse.ArgumentParser = parser(__doc__)
    options.add_argument("--blobs", type=int, default=100_000)
    options.add_argument("--entries", type=int, default=20_000)
    options.add_argument("--no-copy", action="store_true", help="leave copy out")
    options.add_argument("--one", help=argparse.SUPPRESS)
    arguments = options.parse_args()
    if arguments.one:
        one(arguments.one, arguments.folder)
        return
    blobs, entries = (1000, 200) if arguments.quick else (arguments.blobs, arguments.entries)
    with workplace(arguments) as folder:
        many = folder / "many"
        many.mkdir()
        generate(str(many), blobs, entries)
        copies = () if arguments.no_copy else ("copy", "copy again")
        measure(f"{blobs} small blobs, {entries} entries", many, "bare", "verify", "stats", *copies)
        with Store.init(folder / "large")[0] as store:
            large_files(store, 2 if arguments.quick else 32, 32 * MIB)
        measure("large blobs, 32 MiB each", folder / "large", "bare", "verify", "bare", "verify")


if __name__ == "__main__":
    main()
