"""A store in a bucket against bare boto3 on the same server and the same objects: lookups, and what is missing.

Needs a bucket: `--store s3://bucket/prefix`, with credentials and endpoint from the environment. Without one it says so
and ends.
"""

from __future__ import annotations

import contextlib
import hashlib
import resource
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from contest import contest, parser, report, workplace
from lookup import fill

from oarbank_cas import Store, layout
from oarbank_cas.absent import absent
from oarbank_cas.backends.s3.backend import S3Backend


def digest(number: int) -> str:
    """One of as many digests as wanted."""
    return hashlib.sha256(str(number).encode()).hexdigest()


def lookups(store: Store, entries: int, folder: Path, runs: int) -> None:
    """`lookup_many` of hits, in the steady state, against as many boto3 gets on as many threads."""
    keys = fill(store, entries)
    backend = store.backend
    assert isinstance(backend, S3Backend)
    wire = backend.wire
    names = [wire.key(layout.entry(key, None, "any")) for key in keys]

    def ours(_: Path) -> float:
        began = time.perf_counter()
        assert all(answer.hit for answer in store.lookup_many(keys))
        return time.perf_counter() - began

    def bare(_: Path) -> float:
        def get(key: str) -> bytes:
            return bytes(wire.client.get_object(**wire.bucket, Key=key)["Body"].read())

        began = time.perf_counter()
        with ThreadPoolExecutor(backend.requests_at_once) as pool:
            assert all(pool.map(get, names))
        return time.perf_counter() - began

    assert all(answer.hit for answer in store.lookup_many(keys))
    seconds = contest({"bare boto3 threads": bare, "lookup_many": ours}, folder, runs)
    report(f"lookup of {entries} hits, steady state", seconds, "bare boto3 threads")


def missing(store: Store, blobs: int, asked: int, folder: Path, runs: int) -> None:
    """`missing` with 1 % present, against listing everything and asking for each."""
    for start in range(0, blobs, 1000):
        items = [
            (layout.blob(digest(number)), store.backend.incoming(0))
            for number in range(start, min(start + 1000, blobs))
        ]
        store.backend.create_many(items)
    wanted = [digest(number) for number in range(blobs - asked // 100, blobs - asked // 100 + asked)]

    def timed(list_cost: float | None) -> float:
        began = time.perf_counter()
        found = store.missing(wanted) if list_cost is None else list(absent(store.backend, wanted, list_cost))
        assert len(found) == asked - asked // 100
        return time.perf_counter() - began

    contenders = {
        "listing every shard": lambda _: timed(0.0),
        "asking for each": lambda _: timed(float("inf")),
        "missing": lambda _: timed(None),
    }
    seconds = contest(contenders, folder, runs)
    report(f"missing of {asked} digests in {blobs} blobs", seconds, "listing every shard")


def main() -> None:
    """Measure both."""
    options = parser(__doc__)
    options.add_argument("--store", help="s3://bucket/prefix, where nothing is")
    arguments = options.parse_args()
    if arguments.store is None:
        print("no --store s3://bucket/prefix: nothing was measured")
        return
    runs = 1 if arguments.quick else arguments.runs
    with workplace(arguments) as folder, contextlib.closing(Store.init(arguments.store)[0]) as store:
        lookups(store, 100 if arguments.quick else 10_000, folder, runs)
        missing(store, 500 if arguments.quick else 100_000, 200 if arguments.quick else 10_000, folder, runs)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (2**20 if sys.platform == "darwin" else 2**10)
    print(f"\npeak memory {peak:.0f} MiB")


if __name__ == "__main__":
    main()
