"""The sunspots example, run for real: what it computes once, it does not compute again."""

import json
import shutil
import statistics
import subprocess
import sys
from array import array
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path

import pytest

from oarbank_cas import Store

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "sunspots"
SERIES = EXAMPLE / "data" / "sunspots.csv"
RESAMPLES, YEARS, BLOCK = 120, 309, 66


@dataclass
class Run:
    """A run of the driver, and the work directories that runners had in it."""

    code: int
    out: str
    err: str
    resample: list[Path]
    period: list[Path]

    @property
    def keys(self):
        return [line.split()[-1] for line in self.out.splitlines() if " key " in line]

    @property
    def answer(self):
        lines = self.out.splitlines()
        at = next(number for number, line in enumerate(lines) if line.startswith("answer"))
        return lines[at : at + 2]


def drive(store, work, *options, example=EXAMPLE, resamples=RESAMPLES):
    command = [sys.executable, example / "drive.py", "--store", store, "--work", work]
    sized = [] if resamples is None else ["--resamples", str(resamples)]
    done = subprocess.run([*command, *sized, *options], capture_output=True, text=True, cwd=store.parent, timeout=120)
    runs = {stage: sorted(work.glob(f"{stage}-*")) for stage in ("resample", "period")}
    return Run(done.returncode, done.stdout, done.stderr, **runs)


def snapshot(store):
    """Every blob and entry: which file it is, and since when."""
    return {
        path.relative_to(store): (path.stat().st_ino, path.stat().st_mtime_ns, path.stat().st_size)
        for room in ("blobs", "results")
        for path in (store / room).rglob("*")
        if path.is_file()
    }


def tree(folder):
    """What stands in a folder: the bytes of each file by its path."""
    return {str(path.relative_to(folder).as_posix()): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def first(tmp_path_factory):
    """A store after a first run, and that run. Tests change a copy of it."""
    folder = tmp_path_factory.mktemp("first")
    run = drive(folder / "store", folder / "work")
    assert run.code == 0, run.err
    return folder / "store", run


@pytest.fixture
def store(first, tmp_path):
    return Path(shutil.copytree(first[0], tmp_path / "store"))


@pytest.fixture
def without_runners(tmp_path):
    """The example with runners that only leave a trace."""
    copy = Path(shutil.copytree(EXAMPLE, tmp_path / "example", ignore=shutil.ignore_patterns("__pycache__")))
    for stage in ("resample", "period"):
        (copy / f"{stage}.py").write_text("open('started', 'w').close()\nraise SystemExit(3)\n")
    return copy


def changed(tmp_path, old, new):
    data = SERIES.read_bytes()
    assert data.count(old) == 1
    path = tmp_path / "other.csv"
    path.write_bytes(data.replace(old, new))
    return path


def test_the_first_run_computes_both_stages(first):
    _, run = first
    assert len(run.resample) == len(run.period) == 1
    assert "2 of 2 stages computed" in run.out
    assert run.err == ""


def test_stage_two_sees_what_stage_one_wrote(first):
    _, run = first
    (wrote,), (saw,) = run.resample, run.period
    artifacts = {each["name"]: each["files"] for each in json.loads((wrote / "result.json").read_bytes())["artifacts"]}
    assert artifacts.keys() == {"report", "ensemble"}
    for name, files in artifacts.items():
        expected = {file["path"]: (wrote / file["local"]).read_bytes() for file in files}
        assert tree(saw / "inputs" / name) == expected
    assert tree(saw / "inputs" / "report")["warnings.txt"] == b""
    assert "spectrum/periodogram.csv" in tree(saw / "inputs" / "report")
    assert len(tree(saw / "inputs" / "ensemble")["data/resamples.f64"]) == RESAMPLES * YEARS * 8


def test_mounted_files_are_regular_and_read_only(first):
    _, run = first
    for workdir in run.resample + run.period:
        files = [path for path in (workdir / "inputs").rglob("*") if not path.is_dir()]
        assert files
        for path in files:
            assert path.is_file()
            assert not path.is_symlink()
            assert path.stat().st_mode & 0o222 == 0


def test_stage_one_sees_the_input(first):
    assert tree(first[1].resample[0] / "inputs") == {"series/series.csv": SERIES.read_bytes()}


def test_the_second_run_starts_no_runner(first, store, without_runners, tmp_path):
    before = snapshot(store)
    again = drive(store, tmp_path / "work", example=without_runners)
    assert again.code == 0, again.err
    assert again.resample == again.period == []
    assert snapshot(store) == before
    assert "nothing was computed" in again.out
    assert again.answer == first[1].answer
    assert again.keys == first[1].keys


def test_a_runner_that_fails_leaves_no_result(store, without_runners, tmp_path):
    other = changed(tmp_path, b"1957,190.2", b"1957,190.3")
    for attempts in (1, 2):
        failed = drive(store, tmp_path / "work", "--input", other, example=without_runners)
        assert failed.code == 1
        assert "resample failed; nothing is recorded" in failed.err
        assert [(workdir / "started").exists() for workdir in failed.resample] == [True] * attempts
    sound = drive(store, tmp_path / "work2", "--input", other)
    assert sound.code == 0, sound.err
    assert len(sound.resample) == 1


def test_one_changed_byte_is_a_miss(first, store, tmp_path):
    other = changed(tmp_path, b"1957,190.2", b"1957,190.3")
    run = drive(store, tmp_path / "work", "--input", other)
    assert run.code == 0, run.err
    assert len(run.resample) == len(run.period) == 1
    assert not set(run.keys) & set(first[1].keys)
    old = drive(store, tmp_path / "old")
    assert old.resample == old.period == []
    assert old.answer == first[1].answer


def test_a_change_that_ends_at_stage_one(first, store, tmp_path):
    run = drive(store, tmp_path / "work", "--input", changed(tmp_path, b"YEAR", b"Year"))
    assert run.code == 0, run.err
    assert len(run.resample) == 1
    assert run.period == []
    assert run.keys[1] == first[1].keys[1]


def test_two_drivers_at_once(tmp_path):
    with ThreadPoolExecutor() as pool:
        runs = list(pool.map(lambda name: drive(tmp_path / "store", tmp_path / name), ("one", "two")))
    assert [run.code for run in runs] == [0, 0], [run.err for run in runs]
    assert runs[0].answer == runs[1].answer
    with Store.open(tmp_path / "store", read_only=True) as store:
        assert all(store.lookup(key).hit for key in runs[0].keys)


def test_another_parameter_is_a_miss(store, tmp_path):
    run = drive(store, tmp_path / "work", "--seed", "2")
    assert run.code == 0, run.err
    assert len(run.resample) == len(run.period) == 1


def test_the_stored_envelope_is_the_runners(first):
    folder, run = first
    with Store.open(folder, read_only=True) as store:
        for key, workdir in zip(run.keys, run.resample + run.period, strict=True):
            stored = json.loads(store.lookup(key).envelope)
            wrote = json.loads((workdir / "result.json").read_bytes())
            for artifact in wrote["artifacts"]:
                for item in [*artifact["files"], *filter(None, [artifact.get("thumbnail")])]:
                    data = (workdir / item.pop("local")).read_bytes()
                    blob = store.stat(store_digest(stored, artifact["name"], item))
                    assert store.get_bytes(blob.digest) == data
                    item |= {"digest": blob.digest, "size": len(data)}
            assert stored == wrote


def store_digest(stored, name, item):
    artifact = next(each for each in stored["artifacts"] if each["name"] == name)
    candidates = [*artifact["files"], *filter(None, [artifact.get("thumbnail")])]
    return next(each["digest"] for each in candidates if each.get("path") == item.get("path"))


def test_an_unknown_field_brings_its_file(first):
    folder, run = first
    with Store.open(folder, read_only=True) as store:
        report = json.loads(store.lookup(run.keys[0]).envelope)["artifacts"][0]
        assert report["thumbnail"]["media_type"] == "image/svg+xml"
        assert "local" not in report["thumbnail"]
        svg = store.get_bytes(report["thumbnail"]["digest"]).decode()
    assert svg.startswith("<svg")
    assert svg.count(",") >= YEARS


def test_the_numbers_are_right(first):
    _, run = first
    values = [Decimal(line.split(",")[1]) for line in SERIES.read_text().splitlines()[1:]]
    summary = json.loads((run.resample[0] / "result.json").read_bytes())["payload"]["summary"]
    assert summary["mean"] == f"{statistics.mean(values):.4f}" == "49.7521"
    assert (summary["largest"], summary["year_of_largest"]) == ("190.2", "1957")
    payload = json.loads((run.period[0] / "result.json").read_bytes())["payload"]
    assert (payload["period_years"], payload["strongest_line_years"]) == ("11.00", "11.0357")
    low, high = map(Decimal, payload["interval_years"])
    assert Decimal("9.00") < low < Decimal("11.00") < high < Decimal("13.00")


def test_resamples_are_made_of_blocks_of_the_series(first):
    out = first[1].resample[0] / "out"
    observed, ensemble = array("d"), array("d")
    observed.frombytes((out / "observed.f64").read_bytes())
    ensemble.frombytes((out / "resamples.f64").read_bytes())
    if sys.byteorder == "big":
        observed.byteswap()
        ensemble.byteswap()
    blocks = {observed[start : start + BLOCK].tobytes() for start in range(YEARS - BLOCK + 1)}
    rows = [ensemble[start : start + YEARS] for start in range(0, len(ensemble), YEARS)]
    assert len(rows) == RESAMPLES
    assert all(row[start : start + BLOCK].tobytes() in blocks for row in rows for start in range(0, 4 * BLOCK, BLOCK))
    assert len({row.tobytes() for row in rows}) == RESAMPLES


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (b"year,n\n1700,5\n1701,many\n", "line 3: is no year and number"),
        (b"year,n\n1700\n", "line 2: is no year and number"),
        (b"year,n\n1700,NaN\n", "not between"),
        (b"year,n\n1700,\xff\n", "is no year and number"),
        (b"year,n\n1700,5\n", "at least 20"),
        (b"", "at least 20"),
    ],
)
def test_an_input_that_is_no_series(text, why, tmp_path):
    (tmp_path / "bad.csv").write_bytes(text)
    run = drive(tmp_path / "store", tmp_path / "work", "--input", tmp_path / "bad.csv")
    assert run.code == 1
    assert why in run.err
    assert "Traceback" not in run.err
    with Store.open(tmp_path / "store", read_only=True) as store:
        assert store.lookup(run.keys[0]).reason == "absent"


def test_an_input_with_something_to_warn_of(tmp_path):
    rows = "".join(f"{year},{year % 11 - 3}\n" for year in range(1900, 1960) if year != 1930)
    (tmp_path / "short.csv").write_text("year,n\n" + rows)
    run = drive(tmp_path / "store", tmp_path / "work", "--input", tmp_path / "short.csv")
    assert run.code == 0, run.err
    warnings = (run.period[0] / "inputs" / "report" / "warnings.txt").read_text().splitlines()
    assert len(warnings) == 3
    assert all(f"warning   {warning}" in run.out.splitlines() for warning in warnings)


def test_an_input_that_is_not_there(tmp_path):
    run = drive(tmp_path / "store", tmp_path / "work", "--input", tmp_path / "none.csv")
    assert run.code == 65
    assert "none.csv" in run.err
    assert "Traceback" not in run.err


def test_the_default_run_makes_tens_of_megabytes_and_each_time_the_same(tmp_path):
    runs = [drive(tmp_path / name, tmp_path / f"work-{name}", resamples=None) for name in ("one", "two")]
    assert [run.code for run in runs] == [0, 0]
    assert runs[0].keys == runs[1].keys
    assert runs[0].answer == runs[1].answer
    assert (runs[0].resample[0] / "out" / "resamples.f64").stat().st_size == 12_000 * YEARS * 8
    digests = [{path.name for path in (tmp_path / name / "blobs").rglob("*")} for name in ("one", "two")]
    assert digests[0] == digests[1]
