"""How long the command line takes to start, against importing click and pydantic alone."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

from contest import Contender, contest, parser, report, workplace

from oarbank_cas import Origin, Store


def main() -> None:
    """Measure `--help` and a lookup that hits."""
    arguments = parser(__doc__).parse_args()
    with workplace(arguments) as folder:
        store, _ = Store.init(folder / "store")
        key = "ab" * 32
        store.record(key, b'{"schema": "m/result@1", "module_version": "1.0.0", "payload": {}}', Origin("benchmark"))
        store.close()
        cas = [sys.executable, "-m", "oarbank_cas", "--store", str(folder / "store")]

        def timed(command: list[str]) -> Contender:
            def run(_: Path) -> float:
                began = time.perf_counter()
                subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
                return time.perf_counter() - began

            return run

        floor = "import click, pydantic"
        seconds = contest(
            {
                floor: timed([sys.executable, "-c", floor]),
                "--help": timed([*cas, "--help"]),
                "lookup KEY": timed([*cas, "lookup", key]),
            },
            folder,
            arguments.runs,
        )
        report("start of the command line", seconds, floor)


if __name__ == "__main__":
    main()
