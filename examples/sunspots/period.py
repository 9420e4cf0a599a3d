"""Stage two: the dominant period of the series, and how far it can be trusted.

Reads both artifacts of stage one where they are mounted. The period with the most power on a fine grid is found for the
observed series and for as many resamples as the spec allows; the interval holds the middle share of the latter.
"""

from __future__ import annotations

import csv
import json
import math
import sys
from array import array
from collections import Counter
from decimal import Decimal
from operator import mul
from pathlib import Path
from typing import NamedTuple

from runner_io import BadInputError, Document, serve, to_doubles, write_text


class Wave(NamedTuple):
    """A period of the grid, with its cosine and sine in each year."""

    period: Decimal
    cosine: array[float]
    sine: array[float]


def grid(first: Decimal, last: Decimal, step: Decimal, years: int) -> list[Wave]:
    """The periods from `first` to `last`, both included. They are decimals, so that they come out as they go in."""
    waves = []
    period = first
    while period <= last:
        angles = [2 * math.pi * year / float(period) for year in range(years)]
        waves.append(Wave(period, array("d", map(math.cos, angles)), array("d", map(math.sin, angles))))
        period += step
    return waves


def dominant(series: array[float], waves: list[Wave]) -> Decimal:
    """The period of the grid that has the most power in a series."""

    def power(wave: Wave) -> float:
        return float(sum(map(mul, series, wave.cosine)) ** 2 + sum(map(mul, series, wave.sine)) ** 2)

    return max(waves, key=power).period


def middle(values: list[Decimal], level: Decimal) -> tuple[Decimal, Decimal]:
    """The smallest and the largest of the middle share of the values."""
    ordered = sorted(values)
    outside = int((1 - level) / 2 * len(ordered))
    return ordered[outside], ordered[-1 - outside]


def compute(spec: Document) -> Document:
    """Do the stage's work."""
    wanted = spec["payload"]
    report = Path(spec["inputs"]["report"]["mount"])
    ensemble = Path(spec["inputs"]["ensemble"]["mount"])
    layout = json.loads((ensemble / "layout.json").read_bytes())
    years, count = layout["years"], layout["resamples"]
    row = years * 8
    resamples = ensemble / "data" / "resamples.f64"
    if resamples.stat().st_size != count * row or count < 1:
        raise BadInputError(f"{resamples.name} does not hold the {count} resamples of {years} years that it should")

    used = min(count, wanted["use_at_most"])
    waves = grid(Decimal(wanted["from_years"]), Decimal(wanted["to_years"]), Decimal(wanted["step_years"]), years)
    observed = dominant(to_doubles((ensemble / "data" / "observed.f64").read_bytes()), waves)
    with resamples.open("rb") as file:
        periods = [dominant(to_doubles(file.read(row)), waves) for _ in range(used)]
    low, high = middle(periods, Decimal(wanted["level"]))

    histogram = "".join(f"{period},{times}\n" for period, times in sorted(Counter(periods).items()))
    write_text("out/histogram.csv", "period_years,resamples\n" + histogram)
    with (report / "spectrum" / "peaks.csv").open(encoding="utf-8", newline="") as file:
        coarse = next(csv.DictReader(file), {"period_years": None})["period_years"]

    return {
        "schema": "sunspots/result@1",
        "effective": {**wanted, "use_at_most": used},
        "artifacts": [{"name": "histogram", "files": [{"path": "histogram.csv", "local": "out/histogram.csv"}]}],
        "payload": {
            # Numbers that must compare exactly across machines are decimal strings.
            "period_years": str(observed),
            "interval_years": [str(low), str(high)],
            "level": wanted["level"],
            "strongest_line_years": coarse,
            "resamples_used": used,
            "warnings": (report / "warnings.txt").read_text(encoding="utf-8").splitlines(),
        },
    }


if __name__ == "__main__":
    sys.exit(serve("period", compute))
