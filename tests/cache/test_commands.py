import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from agent_kit import key, spec
from cache_kit import cached, check, spoil

FILES = {"a.txt": b"alpha", "empty": b"", "deep/c": b"c" * 5000}


def digest(data):
    return hashlib.sha256(data).hexdigest()


@pytest.fixture
def command(place, tmp_path):
    """Runs a command with the store and its cache; exit code, what it printed, what it said."""

    def run(*arguments, cache=place.cache, config=None, **variables):
        options = ["--store", place.url]
        options += ["--cache", cache] if cache is not None else []
        options += ["--config", config] if config is not None else []
        environment = {name: text for name, text in os.environ.items() if not name.startswith("OARBANK")}
        done = subprocess.run(
            [sys.executable, "-m", "oarbank_cas", *options, *map(str, arguments)],
            capture_output=True,
            text=True,
            cwd=tmp_path,
            env=environment | variables,
        )
        assert "Traceback" not in done.stderr, done.stderr
        return done.returncode, done.stdout, done.stderr

    return run


@pytest.fixture
def document(place, tmp_path):
    path = tmp_path / "spec.json"
    path.write_bytes(spec({"reads": (place.dataset(FILES), "in")}))
    return path


def test_a_whole_job(place, command, document, tmp_path):
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
    assert command("stage", document, "--workdir", "one", "--placement", "hardlink")[0] == 0
    assert os.stat(tmp_path / "one/in/a.txt").st_nlink == 2
    assert command("stage", "--check", "one")[:2] == (0, "all inputs are as they were placed\n")
    spoil(tmp_path / "one/in/a.txt")
    code, out, _ = command("--json", "stage", "--check", "one")
    (said,) = json.loads(out)["changed"]
    assert code == 1
    assert (said["path"], said["what"], said["job_key"], said["spoilt_cache"]) == ("in/a.txt", "changed", key(), True)
    code, out, _ = command("stage", "--check", "one", document)
    assert code == 1
    assert f"changed  in/a.txt  inputs.reads  art:{said['dataset'][4:]}  by job {key()}" in out
    assert command("stage", document, "--workdir", "two")[0] == 0
    assert (tmp_path / "two/in/a.txt").read_bytes() == b"alpha"
    check(place.cache)


def test_check_without_a_cache(command, document, tmp_path):
    (tmp_path / "w").mkdir()
    assert command("stage", document, "--workdir", "w", cache=None)[0] == 0
    assert command("stage", "--check", "w", document, cache=None)[0] == 0
    spoil(tmp_path / "w/in/deep/c")
    assert command("stage", "--check", "w", document, cache=None)[0] == 1
    assert command("stage", "--check", "w", cache=None)[0] == 65
    for wrong in (
        ("stage",),
        ("stage", document),
        ("stage", "--workdir", "w"),
        ("stage", "--check", "w", "--workdir", "w"),
    ):
        assert command(*wrong, cache=None)[0] == 2


def test_status_trim_clear_verify(place, command, document, tmp_path):
    (tmp_path / "w").mkdir()
    (tmp_path / "l").mkdir()
    command("stage", document, "--workdir", "w")
    code, out, _ = command("cache", "status", "--workdir", "w", "--json")
    said = json.loads(out)
    assert code == 0
    assert (said["blobs"], said["size"]) == (4, sum(map(len, cached(place.cache).values())))
    assert (said["incoming"], said["held"], said["linked"], said["hardlink"]) == (0, 0, 0, True)
    assert [(each["workdir"], each["mount"], each["files"]) for each in said["mounts"]] == [
        (str(tmp_path / "w"), "in", 3)
    ]
    assert command("cache", "verify")[0] == 0
    spoil(Path(place.cache, "blobs", digest(FILES["deep/c"])[:2], digest(FILES["deep/c"])))
    Path(place.cache, "blobs", "mine").touch()
    code, out, _ = command("cache", "verify", "--json")
    assert code == 1
    assert json.loads(out)["wrong"] == [digest(FILES["deep/c"])]
    assert json.loads(out)["strays"] == ["blobs/mine"]
    Path(place.cache, "blobs", "mine").unlink()
    assert command("cache", "verify")[0] == 0
    command("stage", document, "--workdir", "l", "--placement", "hardlink")
    code, out, _ = command("cache", "trim", "--bytes", "5005", "--json")
    assert code == 0
    assert json.loads(out)["size"] == 5005
    assert set(cached(place.cache)) == {digest(data) for data in FILES.values()}
    code, out, _ = command("cache", "clear", "--json")
    assert json.loads(out)["removed"] == 1, "the empty one is not linked"
    subprocess.run(["rm", "-rf", tmp_path / "l"], check=True)
    assert json.loads(command("cache", "clear", "--json")[1])["removed"] == 2
    assert cached(place.cache) == {}
    assert command("cache", "status")[0] == 0
    check(place.cache)


def test_where_there_is_none(place, command, tmp_path):
    for part in ("status", "trim", "clear", "verify"):
        assert command("cache", part, cache=None)[0] == 2
        code, _, err = command("cache", part, cache="nowhere")
        assert (code, "there is no cache at" in err) == (74, True)
        code, out, _ = command("cache", part, "--json", cache=place.url)
        assert (code, json.loads(out)["kind"]) == (74, "CacheError")
    assert not (tmp_path / "nowhere").exists()
    assert command("cache", "trim", "--bytes", "many")[0] == 2


def test_it_is_named_by_option_variable_and_file(place, command, tmp_path):
    (name,) = place.put(b"data")
    (tmp_path / "conf").mkdir()
    config = tmp_path / "conf/oarbank-cas.toml"
    config.write_text('cache = "in-file"\ncache_bytes = "1M"\n')
    used = lambda: sorted(path.name for path in tmp_path.rglob("*") if (path / "oarbank-cas-cache.json").exists())  # noqa: E731
    command("get", name, cache=None)
    assert used() == []
    command("get", name, cache=None, config=str(config))
    assert used() == ["in-file"]
    assert (tmp_path / "conf/in-file").is_dir()
    command("get", name, cache=None, config=str(config), OARBANK_CAS_CACHE="in-variable")
    assert used() == ["in-file", "in-variable"]
    command("get", name, cache="in-option", config=str(config), OARBANK_CAS_CACHE="in-variable")
    assert used() == ["in-file", "in-option", "in-variable"]
    for off in (
        command("get", name, cache="", OARBANK_CAS_CACHE="off"),
        command("get", name, cache=None, OARBANK_CAS_CACHE=""),
    ):
        assert off[:2] == (0, "data")
    assert used() == ["in-file", "in-option", "in-variable"]
    code, out, _ = command("cache", "status", "--json", cache=None, config=str(config))
    assert (code, json.loads(out)["budget"]) == (0, 2**20)
    code, out, _ = command("cache", "status", "--json", cache=None, config=str(config), OARBANK_CAS_CACHE_BYTES="2M")
    assert json.loads(out)["budget"] == 2**21
    code, out, _ = command("--cache-bytes", "3", "cache", "status", "--json", cache=None, config=str(config))
    assert json.loads(out)["budget"] == 3
    for wrong in ('cache = ""', "cache = 7", "cache_bytes = -1", 'cache_bytes = "many"', "cache_bytes = true"):
        config.write_text(wrong)
        assert command("get", name, cache=None, config=str(config))[0] == 65


def test_trouble_is_told_once_and_ends_nothing(place, command):
    (name,) = place.put(b"data")
    Path(place.cache).write_text("a file")
    code, out, err = command("get", name)
    assert (code, out) == (0, "data")
    assert err.count("oarbank-cas: the cache is not used, reads go straight to the store:") == 1
    assert command("-q", "get", name) == (0, "data", "")


def test_doctor_tries_it(place, command):
    code, out, _ = command("doctor", "--json")
    said = json.loads(out)
    assert code == 0
    assert {check["check"] for check in said["checks"]} > {"cache: places by reflink", "cache: places by hardlink"}
    os.rename(place.cache, f"{place.cache}-away")
    Path(place.cache).touch()
    code, out, _ = command("doctor", "--json")
    assert code == 1
    assert "the cache cannot be used" in json.loads(out)["problems"][0]
