"""The filesystem over a store in a bucket: what docs/filesystem.md shows, as a program of its own runs it."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import fsspec
import pytest
import s3_kit

from oarbank_cas import CorruptError, Origin, UnavailableError, layout
from oarbank_cas.filesystem import StoreFileSystem

KEY = "0f" * 32
BLOCK = 64 * 1024
DATA = os.urandom(5 * BLOCK)


@pytest.fixture(autouse=True)
def _no_instance_outlives_its_test():
    yield
    StoreFileSystem.clear_instance_cache()


@pytest.fixture
def published(store, tmp_path):
    """A result with two files in the bucket; its artifact's dataset."""
    (tmp_path / "w").mkdir()
    (tmp_path / "w" / "a").write_bytes(b"alpha")
    (tmp_path / "w" / "b").write_bytes(DATA)
    (tmp_path / "w" / "result.json").write_text(
        '{"schema": "tests/result@1", "module_version": "1.0.0", "payload": {}, "artifacts": [{"name": "out", "files":'
        ' [{"path": "deep/a", "local": "a"}, {"path": "b", "local": "b"}]}]}'
    )
    return store.publish(KEY, tmp_path / "w", Origin(by="tests")).recorded.datasets["out"]


@pytest.fixture
def options(place):
    return {"store": place.url, "s3": {"endpoint_url": s3_kit.server()["endpoint"], "engine": s3_kit.ENGINE}}


def spoil(place, data, by):
    name = layout.blob(hashlib.sha256(data).hexdigest())
    s3_kit.plain().put_object(Bucket=place.bucket, Key=place.prefix + name, Body=by)


def test_reading(published, options, tmp_path):
    fs = fsspec.filesystem("oarbank-cas", **options)
    for base in (f"dataset/{published}", f"result/{KEY}/out"):
        assert fs.find(base) == [f"{base}/b", f"{base}/deep/a"]
        assert fs.cat(base, recursive=True, on_error="omit") == {f"{base}/b": DATA, f"{base}/deep/a": b"alpha"}
        assert fs.cat_ranges([f"{base}/b"] * 20, list(range(20)), [BLOCK] * 20) == [DATA[n:BLOCK] for n in range(20)]
        with fs.open(f"{base}/b", block_size=BLOCK) as file:
            file.seek(-7, 2)
            assert file.read() == DATA[-7:]
            file.seek(BLOCK + 1)
            assert file.read(2 * BLOCK) == DATA[BLOCK + 1 : 3 * BLOCK + 1]
    cached = fsspec.filesystem("oarbank-cas", cache=str(tmp_path / "cache"), **options)
    assert cached.cat_file(f"result/{KEY}/out/b", 5, 9) == DATA[5:9]
    with pytest.raises(FileNotFoundError, match=r"miss \(absent\)"):
        fs.open(f"result/{KEY}:other/out/b")


def test_damage(published, options, place):
    fs = fsspec.filesystem("oarbank-cas", **options)
    spoil(place, DATA, b"x" + DATA[1:])
    with fs.open(f"dataset/{published}/b", block_size=BLOCK) as file, pytest.raises(CorruptError):
        list(iter(lambda: file.read(1000), b""))
    assert any(key.startswith(f"{place.prefix}damaged/") for key in s3_kit.keys(place))
    with pytest.raises(FileNotFoundError):
        fs.info(f"dataset/{published}/b")


def test_a_bucket_that_cannot_be_reached_is_no_absent_file(published, place):
    fs = fsspec.filesystem("oarbank-cas", store=place.url, s3={"endpoint_url": "http://127.0.0.1:9"})
    with pytest.raises(UnavailableError):
        fs.exists(f"result/{KEY}/out/b")


def test_a_chained_bucket(published, options, place):
    pytest.importorskip("s3fs", reason="fsspec itself reads the chained URL, by s3fs")
    with fsspec.open(f"oarbank-cas://result/{KEY}/out/deep/a::{place.url}", s3=options["s3"]) as file:
        assert file.read() == b"alpha"


PAGE = Path(__file__).parent.parent.parent / "docs" / "filesystem.md"


def test_pandas_on_a_parquet_artifact(store, place, tmp_path):
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    (tmp_path / "w").mkdir()
    frame = pandas.DataFrame({"cycle": range(1, 25), "length": [10.5 + n % 3 for n in range(24)]})
    frame.to_parquet(tmp_path / "w" / "cycles.parquet")
    (tmp_path / "w" / "result.json").write_text(
        '{"schema": "tests/result@1", "module_version": "1.0.0", "payload": {}, "artifacts": [{"name": "table",'
        ' "files": [{"path": "cycles.parquet", "local": "cycles.parquet"}]}]}'
    )
    store.publish(KEY, tmp_path / "w", Origin(by="tests"))
    (program,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=120, cwd=tmp_path,
        env=os.environ | {
            "KEY": KEY, "OARBANK_CAS_STORE": place.url, "AWS_ENDPOINT_URL": s3_kit.server()["endpoint"],
        },
    )  # fmt: skip
    assert (ran.stdout, ran.stderr) == (f"24 11.5\n{list(range(3, 25, 3))}\n", "")
    # The process wrote at its end that the result was used.
    assert any(key.startswith(f"{place.prefix}gc/hits/") for key in s3_kit.keys(place))


def test_open_beyond_a_fork(published, options, tmp_path):
    program = (
        "import fsspec, json, os, sys, warnings\nwarnings.simplefilter('ignore')\n"
        "fs = fsspec.filesystem('oarbank-cas', **json.loads(sys.argv[1]))\n"
        "path = sys.argv[2]\nfile = fs.open(path, block_size=65536)\nfirst = file.read(9)\npid = os.fork()\n"
        "assert len(first + file.read()) == file.size == len(fs.cat_file(path))\n"
        "if pid: print(os.waitpid(pid, 0)[1])\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program, json.dumps(options), f"dataset/{published}/b"],
        capture_output=True, text=True, timeout=60, cwd=tmp_path,
    )  # fmt: skip
    assert (ran.stdout, ran.stderr) == ("0\n", "")
