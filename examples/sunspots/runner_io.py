"""What the two runners share: how a runner is started, and how it answers.

A runner is started in its work directory as `<runner> --spec spec.json --out result.json`. That is all it knows of the
world: its inputs stand where the spec says they are mounted, and its result lists the files that it wrote.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any

Document = dict[str, Any]


class BadInputError(Exception):
    """The job cannot be done with what it was given; the message says why."""


def serve(tool: str, compute: Callable[[Document], Document]) -> int:
    """Be a runner: read the spec, compute, write the result.

    Args:
        tool: the runner's name.
        compute: makes of the spec the result's `schema`, `effective`, `artifacts` and `payload`.

    Returns:
        The exit code: without a 0 there is no result.
    """
    parser = argparse.ArgumentParser(prog=tool)
    parser.add_argument("--spec", type=Path, required=True, help="the spec envelope to read")
    parser.add_argument("--out", type=Path, required=True, help="the result envelope to write")
    arguments = parser.parse_args()
    spec = json.loads(arguments.spec.read_bytes())
    try:
        computed = compute(spec)
    except BadInputError as error:
        print(f"{tool}: {error}", file=sys.stderr)
        return 1
    result = {
        "envelope": 1,
        "module_version": spec["module_version"],
        "protocol": 1,
        "provenance": {
            "argv": {tool: [Path(sys.argv[0]).name, *sys.argv[1:]]},
            "tool_versions": {"python": platform.python_version()},
            "host": platform.node(),
        },
        **computed,
    }
    # Whoever looks sees no result or the whole of it: it is renamed only when it is complete.
    partial = arguments.out.with_name(arguments.out.name + ".partial")
    partial.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8", newline="\n")
    os.replace(partial, arguments.out)
    return 0


def write_text(path: str, text: str) -> None:
    """Write a text file of the job, with the folders above it, alike on every system."""
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_text(text, encoding="utf-8", newline="\n")


def to_doubles(data: bytes) -> array[float]:
    """Read little-endian doubles, on any machine."""
    doubles = array("d")
    doubles.frombytes(data)
    if sys.byteorder == "big":
        doubles.byteswap()
    return doubles


def from_doubles(doubles: array[float]) -> bytes:
    """Write little-endian doubles, on any machine."""
    if sys.byteorder == "big":
        doubles = doubles[:]
        doubles.byteswap()
    return doubles.tobytes()
