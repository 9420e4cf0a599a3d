"""A job of two stages on a store, from input to answer; and a second time, from the store alone.

Run it twice:

    python examples/sunspots/drive.py

This program plays two parts. The *coordinator* knows what is to be done, and asks the store whether it was done before.
The *agent* does it: mounts the inputs, starts the runner, publishes what the runner leaves. In the fleet these are two
programs on many machines, and the store is all that they share.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from oarbank_cas import CasError, Origin, Store, job_key

HERE = Path(__file__).resolve().parent
MODULE = "org.example.sunspots"
VERSION = "1.0.0"
COMPAT = "1"
"""Part of every job key. It is raised when a runner's numbers change, and then all old answers are misses."""

TIMEOUT_S = 300
ORIGIN = Origin(by="sunspots example", module_id=MODULE)


@dataclass(frozen=True)
class Job:
    """One stage with all that its result depends on.

    Attributes:
        stage: its name, which is the runner's name too.
        inputs: input name to dataset id. A dataset id names the content, so other content is another job.
        parameters: the payload of its spec.
    """

    stage: str
    inputs: Mapping[str, str]
    parameters: Mapping[str, Any]

    @property
    def key(self) -> str:
        """The job key."""
        return job_key(MODULE, COMPAT, {"inputs": self.inputs, "parameters": self.parameters}, self.stage)

    def spec(self) -> bytes:
        """The spec envelope for the runner."""
        spec = {
            "envelope": 1,
            "schema": "sunspots/spec@1",
            "module_id": MODULE,
            "module_version": VERSION,
            "job_key": self.key,
            "stage": self.stage,
            "inputs": {name: {"dataset": id_, "mount": f"inputs/{name}"} for name, id_ in self.inputs.items()},
            "timeout_s": TIMEOUT_S,
            "payload": self.parameters,
        }
        return json.dumps(spec, indent=1).encode()


@dataclass(frozen=True)
class Answer:
    """What is known of a job once it is done: its result's payload, artifact name to dataset id, and who did it."""

    payload: Mapping[str, Any]
    datasets: Mapping[str, str]
    computed: bool


def store_input(store: Store, path: Path) -> str:
    """Put the input file into the store, as an artifact of its own that jobs can mount.

    It is recorded as a result, under a key made of its digest: what no result refers to is garbage to a store. Both
    calls may be repeated: what is there stays and is not written again.

    Returns:
        The dataset id.
    """
    blob = store.put_file(path)
    envelope = {
        "schema": "sunspots/result@1",
        "module_version": VERSION,
        "artifacts": [
            {"name": "series", "files": [{"path": "series.csv", "digest": blob.digest, "size": blob.size}]},
        ],
        "payload": {},
    }
    key = job_key(MODULE, COMPAT, {"file": blob.digest}, "series")
    recorded = store.record(key, json.dumps(envelope).encode(), ORIGIN)
    say("input", f"{path.name}, {blob.size} bytes: {'stored' if recorded.recorded else 'in the store already'}")
    return recorded.datasets["series"]


def coordinate(store: Store, job: Job, work: Path | None) -> Answer:
    """The coordinator: take the answer from the store, or have the job done."""
    say(job.stage, f"key {job.key}")
    found = store.lookup(job.key)
    if found.envelope is not None:
        say("", "hit: the answer is in the store, nothing to do")
        return Answer(json.loads(found.envelope)["payload"], found.datasets, computed=False)
    say("", f"miss ({found.reason})")
    with work_directory(job, work) as directory:
        return do_the_job(store, job, Path(directory))


def do_the_job(store: Store, job: Job, workdir: Path) -> Answer:
    """The agent: inputs out of the store, the runner, its result into the store."""
    spec = job.spec()
    (workdir / "spec.json").write_bytes(spec)
    for mounted in store.stage(spec, workdir):
        say("", f"mounted inputs.{mounted.name}: {count(mounted.files, mounted.size)}, read-only")

    began = time.perf_counter()
    command = [sys.executable, str(HERE / f"{job.stage}.py"), "--spec", "spec.json", "--out", "result.json"]
    if subprocess.run(command, cwd=workdir, timeout=TIMEOUT_S, check=False).returncode != 0:
        raise SystemExit(f"the runner of {job.stage} failed; nothing is recorded")
    say("", f"computed in {time.perf_counter() - began:.2f} s")

    began = time.perf_counter()
    recorded, uploaded = store.publish(job.key, workdir, ORIGIN)
    said = f"published {count(uploaded.files, uploaded.size)}, in {time.perf_counter() - began:.2f} s"
    # Where someone else was faster their result stands, and everyone goes on with that one.
    say("", said if recorded.recorded else f"{said}; another result was recorded first and stands")
    return Answer(json.loads(recorded.envelope)["payload"], recorded.datasets, computed=True)


def work_directory(job: Job, work: Path | None) -> AbstractContextManager[str]:
    """A fresh work directory: below `work`, to stay there, or a temporary one."""
    if work is None:
        return tempfile.TemporaryDirectory(prefix=f"{job.stage}-")
    work.mkdir(parents=True, exist_ok=True)
    return nullcontext(tempfile.mkdtemp(prefix=f"{job.stage}-", dir=work))


def pipeline(store: Store, series: Path, resamples: int, seed: int, work: Path | None) -> list[Answer]:
    """Both stages, the second on the artifacts of the first."""
    resample = Job(
        "resample",
        {"series": store_input(store, series)},
        {"resamples": resamples, "block_years": 66, "seed": seed},
    )
    first = coordinate(store, resample, work)
    period = Job(
        "period",
        {name: first.datasets[name] for name in ("report", "ensemble")},
        {"use_at_most": 800, "from_years": "8.00", "to_years": "14.00", "step_years": "0.05", "level": "0.95"},
    )
    return [first, coordinate(store, period, work)]


def say(subject: str, text: str) -> None:
    """Tell what happens."""
    print(f"{subject:10}{text}", flush=True)


def count(files: int, size: int) -> str:
    """Files and their bytes, for people."""
    return f"{files} file{'s' if files != 1 else ''}, {size:,} bytes"


def main() -> None:
    """Run the pipeline and say what it found."""
    parser = argparse.ArgumentParser(
        description="Two stages on a store. Run it twice: the second time computes nothing"
    )
    parser.add_argument("--store", default=".oarbank-cas-example", help="the store [%(default)s]")
    parser.add_argument("--input", type=Path, default=HERE / "data" / "sunspots.csv", help="a csv of year and value")
    parser.add_argument("--resamples", type=int, default=12_000, help="bootstrap resamples [%(default)s]")
    parser.add_argument("--seed", type=int, default=1, help="of the resamples [%(default)s]")
    parser.add_argument("--work", type=Path, help="make the work directories here and keep them [temporary ones]")
    options = parser.parse_args()
    if options.resamples < 1:
        parser.error("--resamples must be at least 1")

    began = time.perf_counter()
    store, made = Store.init(options.store)
    with store:
        say("store", f"{options.store}{' (new)' if made else ''}")
        answers = pipeline(store, options.input, options.resamples, options.seed, options.work)
    answer = answers[-1].payload
    low, high = answer["interval_years"]
    say("answer", f"the sun's cycle takes {answer['period_years']} years")
    say("", f"95 % of {answer['resamples_used']} resamples are between {low} and {high} years")
    for warning in answer["warnings"]:
        say("warning", warning)
    computed = sum(each.computed for each in answers)
    summary = f"{computed} of {len(answers)} stages computed" if computed else "nothing was computed"
    say("done", f"{summary}, {time.perf_counter() - began:.2f} s in all")


if __name__ == "__main__":
    try:
        main()
    except CasError as error:
        print(f"drive.py: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
