"""Stage one: describe a yearly series, and resample it.

Writes two artifacts. `report` is small and for people: a summary, the periodogram, warnings (an empty file where there
are none), and a plot as its thumbnail. `ensemble` is large and for the next stage: the series without its mean, and
thousands of moving-block bootstrap resamples of it.

Texts give numbers rounded well above a double's last digits, in which machines may differ.
"""

from __future__ import annotations

import csv
import json
import math
import random
import statistics
import sys
from array import array
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import NamedTuple

from runner_io import BadInputError, Document, from_doubles, serve, write_text

MIN_YEARS = 20
LIMIT = 1_000_000
PEAKS = 5


class Series(NamedTuple):
    """A yearly series, in the order of the file."""

    years: list[int]
    values: list[Decimal]


class Line(NamedTuple):
    """One line of a periodogram: a period in years, and its share of the variance."""

    period: float
    share: float


def read_series(path: Path) -> Series:
    """Read a file of two columns, year and value, under a header."""
    years: list[int] = []
    values: list[Decimal] = []
    with path.open(encoding="utf-8", errors="replace", newline="") as file:
        rows = csv.reader(file)
        next(rows, None)
        try:
            for year, value in filter(None, rows):
                years.append(int(year))
                values.append(Decimal(value))
        except (ValueError, InvalidOperation, csv.Error):
            raise BadInputError(f"{path.name}, line {rows.line_num}: is no year and number") from None
    if not all(value.is_finite() and abs(value) < LIMIT for value in values):
        raise BadInputError(f"{path.name}: there are numbers that are not between -{LIMIT} and {LIMIT}")
    if len(years) < MIN_YEARS:
        raise BadInputError(f"{path.name} has {len(years)} years; at least {MIN_YEARS} are needed")
    return Series(years, values)


def warnings_of(series: Series, block_years: int) -> list[str]:
    """What a reader of the results ought to know."""
    expected = range(series.years[0], series.years[0] + len(series.years))
    found = []
    if series.years != list(expected):
        found.append("the years do not follow each other without a gap; they are taken as if they did")
    if min(series.values) < 0:
        found.append("there are negative values")
    if 4 * block_years > len(series.years):
        found.append(f"blocks of {block_years} years are long for {len(series.years)} years: resamples differ little")
    return found


def summarize(series: Series) -> dict[str, str]:
    """Summary statistics, computed in decimals and written as decimal strings: they compare exactly."""
    largest = max(series.values)
    return {
        "years": str(len(series.years)),
        "first_year": str(series.years[0]),
        "last_year": str(series.years[-1]),
        "mean": f"{statistics.mean(series.values):.4f}",
        "median": f"{statistics.median(series.values):.4f}",
        "standard_deviation": f"{statistics.stdev(series.values):.4f}",
        "largest": str(largest),
        "year_of_largest": str(series.years[series.values.index(largest)]),
    }


def periodogram(centred: array[float]) -> list[Line]:
    """The shares of the variance at the periods n, n/2, n/3 ... years, the longest first."""
    n = len(centred)
    turn = [(math.cos(2 * math.pi * t / n), math.sin(2 * math.pi * t / n)) for t in range(n)]
    total = math.fsum(value * value for value in centred) * n / 2
    lines = []
    for k in range(1, (n - 1) // 2 + 1):
        along = math.fsum(value * turn[k * t % n][0] for t, value in enumerate(centred))
        across = math.fsum(value * turn[k * t % n][1] for t, value in enumerate(centred))
        lines.append(Line(n / k, (along * along + across * across) / total if total else 0.0))
    return lines


def peaks_of(lines: list[Line]) -> list[Line]:
    """The strongest local maxima of a periodogram, the strongest first."""
    inner = zip(lines, lines[1:], lines[2:], strict=False)
    tops = [here for before, here, after in inner if before.share < here.share >= after.share]
    return sorted(tops, key=lambda line: -line.share)[:PEAKS]


def as_csv(lines: list[Line]) -> str:
    """Lines of a periodogram as a text with a header."""
    return "period_years,share\n" + "".join(f"{line.period:.4f},{line.share:.6f}\n" for line in lines)


def resampled(centred: array[float], resamples: int, block_years: int, seed: int) -> array[float]:
    """Moving-block bootstrap: each resample is made of blocks of the series, drawn with replacement.

    Blocks keep what lies close together in time; only `random()` is used, whose sequence Python promises for a seed.
    """
    draw = random.Random(seed).random
    n = len(centred)
    blocks, starts = -(-n // block_years), n - block_years + 1
    ensemble = array("d")
    for _ in range(resamples):
        one = array("d")
        for _ in range(blocks):
            start = int(draw() * starts)
            one.extend(centred[start : start + block_years])
        ensemble.extend(one[:n])
    return ensemble


def plot(series: Series) -> str:
    """The series as a tiny SVG."""
    width, height, top = 320, 80, float(max(*series.values, Decimal(1)))
    step = width / (len(series.values) - 1)
    points = " ".join(
        f"{index * step:.1f},{height - height * float(value) / top:.1f}" for index, value in enumerate(series.values)
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}">\n'
        f'<polyline fill="none" stroke="#c60" points="{points}"/>\n</svg>\n'
    )


def compute(spec: Document) -> Document:
    """Do the stage's work."""
    wanted = spec["payload"]
    series = read_series(Path(spec["inputs"]["series"]["mount"], "series.csv"))
    block_years = min(wanted["block_years"], len(series.years))
    warnings = warnings_of(series, block_years)
    summary = summarize(series)
    mean = statistics.mean(series.values)
    centred = array("d", [float(value - mean) for value in series.values])
    lines = periodogram(centred)
    peaks = peaks_of(lines)

    write_text("out/summary.json", json.dumps(summary, indent=1) + "\n")
    write_text("out/spectrum/periodogram.csv", as_csv(lines))
    write_text("out/spectrum/peaks.csv", as_csv(peaks))
    write_text("out/warnings.txt", "".join(f"{warning}\n" for warning in warnings))
    write_text("out/plot.svg", plot(series))

    ensemble = resampled(centred, wanted["resamples"], block_years, wanted["seed"])
    layout = {"resamples": wanted["resamples"], "years": len(centred), "type": "little-endian double"}
    write_text("out/layout.json", json.dumps(layout, indent=1) + "\n")
    Path("out/observed.f64").write_bytes(from_doubles(centred))
    Path("out/resamples.f64").write_bytes(from_doubles(ensemble))

    return {
        "schema": "sunspots/result@1",
        "effective": {**wanted, "block_years": block_years},
        "artifacts": [
            {
                "name": "report",
                # No field of the contract: it is kept and its file uploaded all the same.
                "thumbnail": {"local": "out/plot.svg", "media_type": "image/svg+xml"},
                "files": [
                    {"path": "summary.json", "local": "out/summary.json"},
                    {"path": "spectrum/periodogram.csv", "local": "out/spectrum/periodogram.csv"},
                    {"path": "spectrum/peaks.csv", "local": "out/spectrum/peaks.csv"},
                    {"path": "warnings.txt", "local": "out/warnings.txt"},
                ],
            },
            {
                "name": "ensemble",
                "files": [
                    {"path": "layout.json", "local": "out/layout.json"},
                    {"path": "data/observed.f64", "local": "out/observed.f64"},
                    {"path": "data/resamples.f64", "local": "out/resamples.f64"},
                ],
            },
        ],
        "payload": {"summary": summary, "warnings": warnings},
    }


if __name__ == "__main__":
    sys.exit(serve("resample", compute))
