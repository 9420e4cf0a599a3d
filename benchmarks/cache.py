"""Staging out of a warm cache against `cp`, and many processes that want the same at once."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path

from contest import Contender, child, contest, parser, report, workplace

from oarbank_cas import Store

KEY = "ab" * 32

_STAGE = """
import json, sys, time
from oarbank_cas import Store
import oarbank_cas.agent.stage, oarbank_cas.cache.cache, oarbank_cas.cache.reads, oarbank_cas.contracts.envelopes
url, cache, spec, workdir, placement = sys.argv[1:]
with Store.open(url, cache=cache, cache_bytes=2**40) as store:
    began = time.perf_counter()
    store.stage(open(spec, "rb").read(), workdir, placement=placement)
    seconds = time.perf_counter() - began
print(json.dumps({"seconds": seconds}))
"""

_MANY = """
import json, re, sys
sys.path.insert(0, sys.argv[5])
from cache import counting_store
store = counting_store(*sys.argv[1:3])
print("ready", flush=True)
sys.stdin.readline()
with store:
    store.stage(open(sys.argv[3], "rb").read(), sys.argv[4])
peak = re.search(r"VmHWM:\\s+([0-9]+)", open("/proc/self/status").read())  # getrusage counts its parent's, too
print(json.dumps(int(peak[1]) * 1024), flush=True)
"""


def make_dataset(folder: Path, files: int, size: int) -> Path:
    """A store with a dataset of random files, and a spec that wants it; the spec's path."""
    folder.mkdir()
    listed = []
    with Store.init(folder / "store")[0] as store, store.intake() as intake:
        for number in range(files):
            blob = intake.add_bytes(os.urandom(size))
            listed.append({"digest": blob.digest, "path": f"f{number:05}", "size": size})
        manifest = json.dumps({"files": listed}, separators=(",", ":"), sort_keys=True).encode()
        intake.add_bytes(manifest)
        intake.commit()
    spec = {
        "schema": "benchmark/spec@1",
        "module_id": "org.example.benchmark",
        "module_version": "1.0.0",
        "job_key": KEY,
        "payload": {},
        "inputs": {"data": {"dataset": f"art:{hashlib.sha256(manifest).hexdigest()}", "mount": "in"}},
    }
    (folder / "spec.json").write_text(json.dumps(spec))
    return folder / "spec.json"


def contenders(spec: Path, placement: str, floor: list[str]) -> dict[str, Contender]:
    """`cp` of a tree that is staged already, and a warm stage of the same, as a library call."""
    folder = spec.parent
    tree = folder / "tree"
    if not tree.exists():
        tree.mkdir()
        child(_STAGE, str(folder / "store"), str(folder / "cache"), str(spec), str(tree), "auto")

    def copy(fresh: Path) -> float:
        began = time.perf_counter()
        subprocess.run([*floor, str(tree / "in"), str(fresh / "in")], check=True)
        return time.perf_counter() - began

    def stage(fresh: Path) -> float:
        return child(_STAGE, str(folder / "store"), str(folder / "cache"), str(spec), str(fresh), placement)

    return {" ".join(floor): copy, f"stage, warm, {placement}": stage}


def counting_store(url: str, cache: str) -> Store:
    """A store whose reads of blobs are noted in the file `reads` beside it, before a cache."""
    from oarbank_cas import layout
    from oarbank_cas.backends.base import Reader
    from oarbank_cas.backends.local import LocalBackend
    from oarbank_cas.cache.cache import Cache

    class Counting(LocalBackend):
        def open(self, name: str, start: int = 0) -> Reader:
            reader = super().open(name, start)
            if name.startswith(layout.BLOBS):
                with open(f"{url}/../reads", "ab", buffering=0) as log:
                    log.write(f"{name} {reader.stat.size}\n".encode())
            return reader

    with Store.open(url) as store:
        return Store(Counting(url, layout.DESCRIPTOR), store.descriptor, Cache(cache, 2**40))


def many_at_once(spec: Path, processes: int) -> None:
    """Stage the same in many processes at once, from a cold cache; what was read from the store, and peak memory."""
    folder = spec.parent
    (folder / "reads").unlink(missing_ok=True)
    here = str(Path(__file__).parent)
    children = []
    for number in range(processes):
        (folder / f"w{number}").mkdir()
        arguments = [str(folder / "store"), str(folder / "cold"), str(spec), str(folder / f"w{number}"), here]
        children.append(
            subprocess.Popen(
                [sys.executable, "-c", _MANY, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
        )
    for one in children:
        assert one.stdout is not None
        one.stdout.readline()
    began = time.perf_counter()
    for one in children:
        assert one.stdin is not None
        one.stdin.write("go\n")
        one.stdin.flush()
    peaks = [int(json.loads(one.communicate()[0])) for one in children]
    seconds = time.perf_counter() - began
    lines = (folder / "reads").read_text().split("\n")[:-1]
    read = sum(int(line.split()[1]) for line in lines)
    blobs = list((folder / "cold" / "blobs").glob("*/*"))
    distinct = sum(path.stat().st_size for path in blobs)
    print(f"\n{processes} processes stage the same {distinct:,} bytes at once, from a cold cache, in {seconds:.1f} s")
    print(f"  read from the store: {read:,} bytes in {len(lines)} reads of {len(blobs)} blobs")
    print(f"  peak memory of a process: {max(peaks) / 2**20:.0f} MiB")


def main() -> None:
    """Measure the shapes."""
    arguments = parser(__doc__).parse_args()
    quick = arguments.quick
    runs = 1 if quick else arguments.runs
    with workplace(arguments) as folder:
        files, size = (50, 4096) if quick else (10_000, 4096)
        spec = make_dataset(folder / "small", files, size)
        os.sync()
        for placement, floor in (("auto", ["cp", "-r"]), ("hardlink", ["cp", "-rl"])):
            seconds = contest(contenders(spec, placement, floor), folder, runs, keep=True)
            report(f"stage {files} files of {size} bytes, {placement}", seconds, " ".join(floor))
        files, size = (2, 2**20) if quick else (10, 256 * 2**20)
        spec = make_dataset(folder / "large", files, size)
        os.sync()
        floor = ["cp", "--reflink=auto", "-r"]
        seconds = contest(contenders(spec, "auto", floor), folder, runs)
        report(f"stage {files} files of {size} bytes, auto", seconds, " ".join(floor))
        spec = make_dataset(folder / "many", 4, size)
        many_at_once(spec, 4 if quick else 16)


if __name__ == "__main__":
    main()
