"""Attempt journals against the plainest code: appending against write and fsync, paging line by line.

    python benchmarks/attempt_journal.py [--runs N] [--appends N] [--records N] [--folder DIR] [--quick]

The ways to append alternate within each round, so that all of them see the same disk; the medians of the rounds count.
The last part publishes a journal into a store on the same disk and reads pages of it there, in the same way.
"""

from __future__ import annotations

import hashlib
import json
import os
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from contest import parser, workplace

from oarbank_cas import Store
from oarbank_cas.attempt import Journal, Pager, page
from oarbank_cas.attempt.records import encode_record

PAYLOAD = {"epoch": 17, "step": 4096, "loss": 0.12345678, "note": "x" * 80}


def line() -> bytes:
    """The same record, made by hand."""
    text = json.dumps(PAYLOAD)
    checksum = hashlib.sha256(text.encode()).hexdigest()
    return (json.dumps({"schema_version": 1, "checksum": checksum, "payload_json": text}) + "\n").encode()


def plain(path: Path, appends: int, durable: bool) -> None:
    """Open once, then write (and flush) each record: no lock, no look at the tail."""
    with path.open("ab", buffering=0) as file:
        for _ in range(appends):
            file.write(line())
            if durable:
                os.fsync(file.fileno())


def journal(path: Path, appends: int, durable: bool) -> None:
    """The package: each append locks, looks at the tail, writes (and flushes)."""
    writer = Journal(path, durable=durable)
    for _ in range(appends):
        writer.append(PAYLOAD)


def journal_many(path: Path, appends: int, durable: bool) -> None:
    """The package, all records in one call."""
    Journal(path, durable=durable).append_many([PAYLOAD] * appends)


def seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def bench_append(directory: Path, rounds: int, appends: int) -> None:
    print(f"append, {appends} records a round, median of {rounds} rounds (lowest to highest), microseconds a record")
    for durable in (True, False):
        ways = {
            "plain write" + (" + fsync" if durable else ""): plain,
            "Journal.append": journal,
            "append_many": journal_many,
        }
        times: dict[str, list[float]] = {name: [] for name in ways}
        count = appends if durable else appends * 10
        for number in range(rounds):
            for name, way in ways.items():
                path = directory / f"append-{durable}-{number}-{name.split()[0]}.jsonl"
                times[name].append(seconds(partial(way, path, count, durable)) / count)
                path.unlink()
        base = statistics.median(next(iter(times.values())))
        for name, found in times.items():
            median = statistics.median(found)
            spread = f"({min(found) * 1e6:.1f} to {max(found) * 1e6:.1f})"
            kind = "durable    " if durable else "not durable"
            print(f"  {kind}  {name:20} {median * 1e6:10.1f}  {spread:24} ratio to plain {median / base:6.2f}")


def naive_page(path: Path, offset: int, limit: int) -> tuple[list[object], int]:
    """What one would write first: parse and check every line."""
    found, number = [], 0
    with path.open("rb") as file:
        for one in file:
            members = json.loads(one)
            text = members["payload_json"]
            if hashlib.sha256(text.encode()).hexdigest() != members["checksum"]:
                raise ValueError(number)
            if offset <= number < offset + limit:
                found.append(json.loads(text))
            number += 1
    return found, number


def counting_page(path: Path, offset: int, limit: int) -> tuple[list[object], int]:
    """The same, but only the page's lines are parsed."""
    found, number = [], 0
    with path.open("rb") as file:
        for one in file:
            if offset <= number < offset + limit:
                found.append(json.loads(json.loads(one)["payload_json"]))
            number += 1
    return found, number


def write_journal(path: Path, records: int) -> int:
    """A journal of `records` records, about; how many."""
    block_of = min(records, 10_000)
    block = b"".join(encode_record(json.dumps({"n": number, "note": "x" * 80}), 1) for number in range(block_of))
    with path.open("wb") as file:
        for _ in range(records // block_of):
            file.write(block)
    return records // block_of * block_of


def bench_page(directory: Path, records: int, rounds: int) -> None:
    path = directory / "page.jsonl"
    records = write_journal(path, records)
    size = path.stat().st_size
    print(f"page of 100 records in the middle of {records:,} ({size / 1e6:,.0f} MB), milliseconds")
    middle = records // 2
    ways: dict[str, Callable[[], object]] = {
        "line by line, all parsed": lambda: naive_page(path, middle, 100),
        "line by line, counted": lambda: counting_page(path, middle, 100),
        "page": lambda: page(path, middle, 100),
        "Pager, first page": lambda: Pager(path).page(middle, 100),
    }
    times: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(rounds):
        for name, way in ways.items():
            if name != "line by line, all parsed" or number == 0:  # the slowest: once is enough
                times[name].append(seconds(way))
    fast = Pager(path)
    fast.page(0, 1)
    time.sleep(2.1)  # until an untouched file can be told by its times
    fast.page(0, 1)
    times["Pager, later pages"] = [seconds(partial(fast.page, n * 7919 % records, 100)) for n in range(300)]
    grown = []
    for _ in range(100):
        Journal(path, durable=False).append(PAYLOAD)
        grown.append(seconds(lambda: fast.page(middle, 100)))
    times["Pager, after growth"] = grown
    base = statistics.median(times["line by line, counted"])
    for name, found in times.items():
        median = statistics.median(found)
        print(
            f"  {name:26} {median * 1e3:10.2f}  highest {max(found) * 1e3:9.2f}  counting / this: {base / median:8.1f}"
        )
    if fast.rebuilds:
        raise SystemExit("the index was rebuilt: these are not the figures of a pager that keeps its index")
    path.unlink()


def bench_published(directory: Path, records: int, rounds: int) -> None:
    attempt = directory / "attempt"
    attempt.mkdir()
    records = write_journal(attempt / "results.jsonl", records)
    print(f"a published attempt of {records:,} records, milliseconds")
    with Store.init(directory / "store")[0] as store:
        took = seconds(lambda: store.publish_attempt(attempt, "benchmark"))
        print(f"  {'publish':26} {took * 1e3:10.2f}")
        took = seconds(lambda: store.publish_attempt(attempt, "benchmark"))
        print(f"  {'publish again':26} {took * 1e3:10.2f}")
        ways: dict[str, Callable[[int], object]] = {
            "page of the directory": lambda offset: page(attempt / "results.jsonl", offset, 100),
            "page of the store": lambda offset: store.attempt("benchmark").page("results", offset, 100),
        }
        times: dict[str, list[float]] = {name: [] for name in ways}
        for number in range(rounds * 3):
            for name, way in ways.items():
                times[name].append(seconds(partial(way, number * 7919 % records)))
    for name, found in times.items():
        print(f"  {name:26} {statistics.median(found) * 1e3:10.2f}  highest {max(found) * 1e3:9.2f}")


def main() -> None:
    options = parser(__doc__.splitlines()[0] if __doc__ else None)
    options.add_argument("--appends", type=int, default=200)
    options.add_argument("--records", type=int, default=1_000_000)
    arguments = options.parse_args()
    runs, appends, records = arguments.runs, arguments.appends, arguments.records
    if arguments.quick:
        runs, appends, records = 1, 3, 2000
    with workplace(arguments) as directory:
        bench_append(directory, runs, appends)
        bench_page(directory, records, runs)
        bench_published(directory, records, runs)


if __name__ == "__main__":
    main()
