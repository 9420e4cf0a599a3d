"""How much memory and reading gc takes on a large local store.

    python benchmarks/gc_scale.py /some/empty/directory --blobs 1000000 --entries 200000

makes a store of that size (not through the package: a million flushes would measure the disk), runs gc on it, changes
one per cent of the entries, and runs gc again. Each run has a process of its own, whose peak memory is measured.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator

from oarbank_cas import descriptor as descriptors
from oarbank_cas import entry as codec
from oarbank_cas import layout
from oarbank_cas.backends.local import LocalBackend
from oarbank_cas.contracts.canonical import digest_of
from oarbank_cas.contracts.manifest import FileRef, dataset_id, manifest_bytes
from oarbank_cas.gc.collect import Options, collect
from oarbank_cas.gc.retention import Policy


def write(root: str, name: str, data: bytes) -> None:
    """Write an object, unflushed."""
    path = os.path.join(root, name)
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    except FileNotFoundError:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    os.write(fd, data)
    os.close(fd)


def envelope(files: list[FileRef], number: int) -> bytes:
    """A result envelope of a usual size."""
    document = {
        "schema": f"dev.example.mod{number % 50}/result@1",
        "envelope": 1,
        "protocol": 1,
        "module_version": "1.0.0",
        "payload": {"number": number, "note": "x" * 1200},
        "artifacts": [{"name": "out", "files": [{"path": f.path, "digest": f.digest, "size": f.size} for f in files]}],
    }
    return json.dumps(document).encode()


def contents(number: int, generation: int, count: int) -> Iterator[bytes]:
    """The files of one result."""
    for index in range(count):
        yield f"{generation} {number} {index}".encode().ljust(64)


def write_entry(root: str, number: int, generation: int, files: int) -> int:
    """Write one entry and all that it refers to; bytes of the entry."""
    refs = []
    for index, data in enumerate(contents(number, generation, files)):
        digest = digest_of(data)
        write(root, layout.blob(digest), data)
        refs.append(FileRef(f"part/{index}.bin", digest, len(data)))
    manifest = manifest_bytes(refs)
    write(root, layout.blob(digest_of(manifest)), manifest)
    key = hashlib.sha256(str(number).encode()).hexdigest()
    header = {
        "recorded_at": "2026-01-02T03:04:05.000000Z",
        "recorded_by": "benchmark",
        "host": None,
        "platform": None,
        "module_id": None,
        "schema": f"dev.example.mod{number % 50}/result@1",
        "datasets": {"out": dataset_id(digest_of(manifest))},
        "kind": "entry",
        "job_key": key,
        "stage": None,
        "class": "any",
        "attempt": f"{generation}-{number}",
        "held_since_ns": 0,
    }
    data = codec.encode(header, envelope(refs, number))
    write(root, layout.entry(key, None, "any"), data)
    return len(data)


def generate(root: str, blobs: int, entries: int) -> None:
    """Make the store."""
    began = time.monotonic()
    write(root, layout.DESCRIPTOR, descriptors.new(3600, 86400, 300, "2026-01-02T03:04:05Z").encode())
    files = max(blobs // entries - 1, 1)
    total = sum(write_entry(root, number, 0, files) for number in range(entries))
    orphans = blobs - entries * (files + 1)
    for number in range(orphans):
        data = f"orphan {number}".encode()
        write(root, layout.blob(digest_of(data)), data)
    print(
        f"made {blobs} blobs, {entries} entries ({total / 1e6:.0f} MB) in {time.monotonic() - began:.0f} s", flush=True
    )


def run(root: str) -> None:
    """One gc in this process; prints what it took."""
    backend = LocalBackend(root, layout.DESCRIPTOR)
    data, _ = backend.read(layout.DESCRIPTOR, descriptors.MAX_BYTES)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    policy = Policy(max_bytes=2**60, keep_newest=10**6)
    report = collect(backend, descriptors.decode(data, root), policy, Options(anyway=True))
    backend.close()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    totals = {name: count["count"] for name, count in report.done.totals().items() if count["count"]}
    print(
        json.dumps(
            {
                "exit": report.exit_code,
                "seconds": round(report.seconds, 1),
                "peak_mib": round(peak / 1024, 1),
                "peak_before_mib": round(before / 1024, 1),
                "entry_bytes_read": report.entry_bytes_read,
                "bytes_read": report.bytes_read,
                "requests": report.requests,
                "totals": totals,
                "doubts": [doubt.why for doubt in report.doubts],
                "refused": report.refused,
            }
        ),
        flush=True,
    )


def main() -> None:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", nargs="?", help="where the store is, or is made; else a temporary one")
    parser.add_argument("--folder", help="where a temporary one is made")
    parser.add_argument("--quick", action="store_true", help="tiny sizes: shows that it runs, measures nothing")
    parser.add_argument("--blobs", type=int, default=1_000_000)
    parser.add_argument("--entries", type=int, default=200_000)
    parser.add_argument("--run", action="store_true", help="only run gc")
    options = parser.parse_args()
    if options.quick:
        options.blobs, options.entries = 2000, 400
    if options.directory is None:
        with tempfile.TemporaryDirectory(dir=options.folder) as folder:
            measure(folder, options.blobs, options.entries)
    elif options.run:
        run(options.directory)
    else:
        measure(options.directory, options.blobs, options.entries)


def measure(directory: str, blobs: int, entries: int) -> None:
    """Make a store where there is none, and run gc on it twice."""
    if not os.path.exists(os.path.join(directory, layout.DESCRIPTOR)):
        generate(directory, blobs, entries)
    again = [sys.executable, __file__, directory, "--run"]
    first = json.loads(subprocess.run(again, check=True, capture_output=True, text=True).stdout)
    print("first run: ", json.dumps(first), flush=True)
    files = max(blobs // entries - 1, 1)
    generation = int(time.time())
    for number in range(0, entries, 100):
        write_entry(directory, number, generation, files)
    second = json.loads(subprocess.run(again, check=True, capture_output=True, text=True).stdout)
    print("second run:", json.dumps(second), flush=True)
    share = second["entry_bytes_read"] / max(first["entry_bytes_read"], 1)
    print(
        f"peak {max(first['peak_mib'], second['peak_mib'])} MiB; the second run read {share:.2%} of the entries' bytes"
    )


if __name__ == "__main__":
    main()
