"""Publishing a job against `cp -r` with `sync -f`, and against dvc-data where it is installed (extra `bench`)."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import time
from pathlib import Path

from contest import Contender, child, contest, parser, report, workplace

KEY = "ab" * 32

_LIBRARY = """
import json, sys, time
from oarbank_cas import Origin, ResultEnvelope, Store  # imports are not timed, nor are those of the peer
store, _ = Store.init(sys.argv[2])
began = time.perf_counter()
store.publish(sys.argv[3], sys.argv[1], Origin("benchmark"))
print(json.dumps({"seconds": time.perf_counter() - began}))
"""

_DVC_DATA = """
import json, sys, time
from dvc_data.hashfile.build import build
from dvc_data.hashfile.db import HashFileDB
from dvc_data.hashfile.transfer import transfer
from dvc_objects.fs.local import LocalFileSystem
fs = LocalFileSystem()
odb = HashFileDB(fs, sys.argv[2])
began = time.perf_counter()
staging, _, tree = build(odb, sys.argv[1], fs, "md5")
transfer(staging, odb, {tree.hash_info}, shallow=False)
print(json.dumps({"seconds": time.perf_counter() - began}))
"""


def make_job(folder: Path, files: int, size: int) -> None:
    """A finished job's work directory: random files, and their envelope."""
    (folder / "out").mkdir(parents=True)
    listed = []
    for number in range(files):
        name = f"f{number:05}"
        (folder / "out" / name).write_bytes(os.urandom(size))
        listed.append({"path": name, "local": f"out/{name}"})
    envelope = {
        "schema": "benchmark/result@1",
        "module_version": "1.0.0",
        "artifacts": [{"name": "out", "files": listed}],
        "payload": {},
    }
    (folder / "result.json").write_text(json.dumps(envelope))


def contenders(job: Path) -> dict[str, Contender]:
    """The floor, ours as a whole command and as a library call, and the peer."""

    def copy(fresh: Path) -> float:
        began = time.perf_counter()
        subprocess.run(["cp", "-r", str(job / "out"), str(fresh / "copy")], check=True)
        subprocess.run(["sync", "-f", str(fresh / "copy")], check=True)
        return time.perf_counter() - began

    def command(fresh: Path) -> float:
        cas = [sys.executable, "-m", "oarbank_cas", "-q", "--store", str(fresh / "store")]
        subprocess.run([*cas, "init"], check=True, stdout=subprocess.DEVNULL)
        began = time.perf_counter()
        publish = [*cas, "publish", "--job-key", KEY, "--workdir", str(job)]
        subprocess.run(publish, check=True, stdout=subprocess.DEVNULL)
        return time.perf_counter() - began

    found: dict[str, Contender] = {
        "cp -r; sync -f": copy,
        "oarbank-cas publish (command)": command,
        "oarbank-cas publish (library)": lambda fresh: child(_LIBRARY, str(job), str(fresh / "store"), KEY),
    }
    if importlib.util.find_spec("dvc_data"):
        found["dvc-data build, transfer (library)"] = lambda fresh: child(
            _DVC_DATA, str(job / "out"), str(fresh / "odb")
        )
    return found


def main() -> None:
    """Measure both shapes."""
    arguments = parser(__doc__).parse_args()
    shapes = [(10_000, 4096), (20, 64 * 2**20)] if not arguments.quick else [(50, 4096), (2, 2**20)]
    with workplace(arguments) as folder:
        for files, size in shapes:
            job = folder / f"job-{files}"
            make_job(job, files, size)
            os.sync()
            runs = arguments.runs if not arguments.quick else 1
            seconds = contest(contenders(job), folder, runs, keep=size < 2**20)
            report(f"publish {files} files of {size} bytes, durable on return", seconds, "cp -r; sync -f")


if __name__ == "__main__":
    main()
