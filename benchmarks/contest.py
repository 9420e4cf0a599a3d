"""Contenders timed in turn, in one run, on the same data: medians, and ratios pair by pair."""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

Contender = Callable[[Path], float]
"""Does the work once, in an empty folder, and gives the seconds that it took."""


def contest(
    contenders: Mapping[str, Contender], folder: Path, runs: int, *, keep: bool = False
) -> dict[str, list[float]]:
    """Time the contenders in turn, A B C, B C A, ..., after one round that is not counted.

    Each comes first, second and so on: whoever follows one that filled the disk is slowed by what that left behind.

    Args:
        contenders: name to contender.
        folder: where each gets a fresh, empty folder; the file system is flushed after each run.
        runs: rounds that count.
        keep: remove what they made only at the end. ext4 is slow to give out inodes that were freed a moment ago, so
            that removing many small files after one run slows the next one, whosever it is.

    Returns:
        Name to seconds of each round.
    """
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    with ExitStack() as kept:
        for round_number in range(runs + 1):
            first = round_number % len(contenders)
            turns = list(contenders.items())
            for name, contender in turns[first:] + turns[:first]:
                with ExitStack() as own:
                    holder = kept if keep else own
                    took = contender(Path(holder.enter_context(tempfile.TemporaryDirectory(dir=folder))))
                if hasattr(os, "sync"):
                    os.sync()
                if round_number:
                    seconds[name].append(took)
    return seconds


def report(title: str, seconds: Mapping[str, list[float]], floor: str, what: str = "s") -> None:
    """Print each contender's median, range, and the median of its ratios to the floor."""
    print(f"\n{title} ({len(seconds[floor])} runs each, in turn)")
    for name, taken in seconds.items():
        ratios = [a / b for a, b in zip(taken, seconds[floor], strict=True)]
        print(
            f"  {name:<34} median {statistics.median(taken):8.3f} {what}   min {min(taken):8.3f} max {max(taken):8.3f}"
            f"   ratio to {floor}: {statistics.median(ratios):.2f}"
        )


def child(script: str, *arguments: str) -> float:
    """Run a Python script that prints the seconds of its measured part as JSON; those seconds."""
    done = subprocess.run([sys.executable, "-c", script, *arguments], check=True, stdout=subprocess.PIPE)
    return float(json.loads(done.stdout)["seconds"])


@contextmanager
def workplace(arguments: argparse.Namespace) -> Iterator[Path]:
    """A temporary folder for data and stores, below `--folder`."""
    with tempfile.TemporaryDirectory(prefix="oarbank-cas-benchmark-", dir=arguments.folder) as folder:
        yield Path(folder)


def parser(description: str | None) -> argparse.ArgumentParser:
    """The options that all benchmarks share."""
    found = argparse.ArgumentParser(description=description)
    found.add_argument("--runs", type=int, default=7, help="rounds that count (default 7)")
    found.add_argument("--folder", default=None, help="where to work: the disk that is measured (default: temporary)")
    found.add_argument("--quick", action="store_true", help="tiny sizes: shows that it runs, measures nothing")
    return found
