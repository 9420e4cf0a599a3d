"""The command line of published attempts: seal --publish, and list, cat, page and fetch of what it published."""

import json
import subprocess
import sys

import pytest
from attempt_model import line_of, lines_of
from click.testing import CliRunner
from publish_kit import dataset_of, numbered_lines

from oarbank_cas.attempt import INLINE_CAP, Declaration, declare
from oarbank_cas.cli.app import cli
from oarbank_cas.errors import CasError
from oarbank_cas.store import Store


def run(*args):
    result = CliRunner().invoke(cli, [str(arg) for arg in args])
    if isinstance(result.exception, CasError):
        return result.exception.exit_code, result.stdout, result.stderr + str(result.exception)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    code = result.return_value if isinstance(result.return_value, int) else result.exit_code
    return code, result.stdout, result.stderr


@pytest.fixture(autouse=True)
def store(tmp_path, monkeypatch):
    """A store named by the environment, and a folder of one's own."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("OARBANK_CAS_STORE", str(tmp_path / "store"))
    Store.init(tmp_path / "store")[0].close()
    return tmp_path / "store"


@pytest.fixture
def job(tmp_path):
    directory = tmp_path / "job"
    directory.mkdir()
    declare(directory, Declaration.records("eval", "eval.jsonl").task(4).describe("losses"))
    declare(directory, Declaration.json("warm", "warm.json"))
    (directory / "eval.jsonl").write_bytes(lines_of([3]))
    (directory / "results.jsonl").write_bytes(
        b"".join(line_of(text) for text in ("1.0", "1e3", '"\u009b"', "[1,\n 2]"))
    )
    (directory / "warm.json").write_bytes(b'{"w": 1.0}')
    return directory


def seal(job, *args):
    code, out, err = run("--json", "attempt", "seal", job, "--publish", *args)
    assert (code, err) == (0, "")
    return json.loads(out)


def test_seal_without_publish_is_as_it_was(job, store):
    code, out, err = run("attempt", "seal", job)
    assert (code, err) == (0, "")
    assert sorted(json.loads(out)) == ["artifacts", "problems", "runner"]
    assert not (store / "blobs").exists()
    assert run("--store", "/nowhere/at/all", "attempt", "seal", job)[:2] == (code, out)
    for option in ("--pin", "--expires", "--note", "--by"):
        code, _, err = run("attempt", "seal", job, option, "2030-01-01")
        assert code == 2
        assert f"{option} is about --publish" in err


def test_seal_and_publish(job):
    plain = json.loads(run("attempt", "seal", job)[1])
    found = seal(job, "--pin", "run-7", "--expires", "2099-01-01", "--note", "why", "--by", "me")
    assert {name: found.pop(name) for name in plain} == plain
    assert found["published"] is True
    assert found["pin"] == "run-7"
    assert found["expires_at"] == "2099-01-01T00:00:00.000000Z"
    assert found["dataset"].startswith("art:")
    assert [sorted(file) for file in found["files"]] == [["digest", "path", "size"]] * 4
    index = plain["runner"]["artifact_index"]
    for name, path in plain["artifacts"].items():
        (file,) = (file for file in found["files"] if file["path"] == path)
        assert (file["digest"], file["size"]) == (index[name]["sha256"], index[name]["size"])
    (pin,) = json.loads(run("--json", "pins")[1])["pins"]
    assert (pin["name"], pin["dataset"], pin["note"], pin["by"]) == ("run-7", found["dataset"], "why", "me")

    code, out, err = run("attempt", "seal", job, "--publish", "--pin", "run-7", "--expires", "2099-01-01")
    assert code == 0
    assert json.loads(out)["published"] is False
    assert err == (f"published already: {found['dataset']}, kept by the pin run-7 until 2099-01-01T00:00:00.000000Z\n")
    code, out, err = run("attempt", "seal", job, "--publish")
    name = "attempt-" + found["dataset"][4:]
    assert (code, json.loads(out)["pin"]) == (0, name)
    assert err == f"published: {found['dataset']}, kept by the pin {name}\n"
    assert run("-q", "attempt", "seal", job, "--publish")[2] == ""
    (pin,) = (pin for pin in json.loads(run("--json", "pins")[1])["pins"] if pin["name"] == name)
    assert "@" in pin["by"]


def test_seal_says_what_is_wrong(job, tmp_path):
    (job / "warm.json").unlink()
    (job / "warm.json").mkdir()
    code, out, err = run("attempt", "seal", job, "--publish")
    assert code == 0
    assert "problem: warm is not listed" in err
    assert len(json.loads(out)["problems"]) == 1
    seal(job, "--pin", "p")
    (job / "eval.jsonl").write_bytes(lines_of([4]))
    code, out, err = run("attempt", "seal", job, "--publish", "--pin", "p")
    assert (code, out) == (73, "")
    assert "unpin it first, or choose another name" in err
    for args, code in [
        (("--pin", "No Name"), 65),
        (("--expires", "soon"), 2),
        (("--expires", "2020-01-01"), 65),
    ]:
        assert run("attempt", "seal", job, "--publish", *args)[:2] == (code, "")
    assert run("attempt", "seal", job / "none", "--publish")[0] == 1
    assert run("attempt", "seal", job / "eval.jsonl", "--publish")[0] == 65
    assert run("--store", tmp_path / "none", "attempt", "seal", job, "--publish")[0] == 69
    (job / "results.jsonl").rename(job / "x")
    (job / "results.jsonl").symlink_to("x")
    code, out, err = run("attempt", "seal", job, "--publish")
    assert (code, out) == (65, "")
    assert "so nothing is" in err


@pytest.mark.parametrize("by", ["pin", "dataset"])
def test_list_cat_and_page_say_the_same(job, by):
    target = seal(job, "--pin", "run-7")[by]
    for words in (
        ("list",),
        ("cat", "warm"),
        ("cat", "eval"),
        ("cat", "results"),
        ("cat", "none"),
        ("page", "results"),
        ("page", "results", "--offset", 1, "--limit", 2),
        ("page", "results", "--offset", 9),
        ("page", "results", "--limit", 10**30),
        ("page", "warm"),
        ("page", "none"),
        ("page", "results", "--follow", "--limit", 4),
    ):
        command, *rest = words
        for flags in ([], ["--json"]):
            here = run(*flags, "attempt", command, job, *rest)
            there = run(*flags, "attempt", command, target, *rest)
            assert there[:2] == here[:2], words
            if here[0] == 0:
                assert there == here


def test_follow_ends(job):
    seal(job, "--pin", "run-7")
    code, out, err = run("attempt", "page", "run-7", "results", "--follow", "--offset", 1)
    assert (code, len(out.splitlines()), err) == (0, 3, "")
    done = subprocess.run(
        [sys.executable, "-m", "oarbank_cas", "--json", "attempt", "page", "run-7", "results", "-f"],
        capture_output=True,
        timeout=60,
        check=True,
    )
    assert [json.loads(line)["payload"] for line in done.stdout.splitlines()] == [1.0, 1000.0, "\u009b", [1, 2]]


def test_list_shows_the_problems_that_were_published(job):
    (job / "artifacts.jsonl").write_bytes(b"junk\n")
    code, _, err = run("attempt", "seal", job, "--publish", "--pin", "p")
    assert code == 0
    assert "problem: no declaration of artifacts.jsonl is served" in err
    code, out, err = run("attempt", "list", "p")
    assert (code, [line.split()[0] for line in out.splitlines()]) == (1, ["NAME", "results"])
    assert "no declaration of artifacts.jsonl is served" in err
    assert run("attempt", "page", "p", "results")[0] == 0


def test_a_directory_wins(job, tmp_path):
    dataset = seal(job, "--pin", "run-7")["dataset"]
    here = tmp_path / "here"
    for name in ("run-7", dataset):
        assert "warm" in run("attempt", "list", name)[1]
        (here / name).mkdir()
        assert "warm" not in run("attempt", "list", name)[1]
        (here / name).rmdir()
        (here / name).write_bytes(b"a file does not")
        assert "warm" in run("attempt", "list", name)[1]
        code, _, err = run("attempt", "list", f"./{name}")
        assert code == 65
        assert "not a directory" in err


def test_what_is_neither(job, tmp_path, store):
    code, _, err = run("attempt", "list", "nix")
    assert code == 1
    assert "there is no directory nix here, and no attempt is published under the name nix" in err
    assert run("attempt", "list", "art:" + "0" * 64)[0] == 1
    assert run("attempt", "list", "art:x")[0] == 65
    assert run("attempt", "list", "No Pin")[0] == 1
    code, _, err = run("--store", tmp_path / "none", "attempt", "list", "nix")
    assert code == 69
    assert "there is no directory nix here, and there is no store" in err
    assert run("--store", tmp_path / "none", "attempt", "list", job)[0] == 0  # no store is needed
    with Store.open(store) as opened:
        dataset = dataset_of(opened, {"a.txt": b"a"})
        hostile = dataset_of(opened, {"manifest.json": b'{"artifacts": {"\x1b": "x"}}'})
        opened.pins.pin("blob", "blob:" + opened.put_bytes(b"x").digest)
    for target in (dataset, hostile, "blob"):
        code, out, err = run("attempt", "list", target)
        assert (code, out) == (65, "")
        assert "\x1b" not in err


def test_unpinned_it_is_no_more(job):
    seal(job, "--pin", "run-7")
    assert run("unpin", "run-7")[0] == 0
    assert run("attempt", "cat", "run-7", "warm")[0] == 1


def test_cat_of_what_is_long(job):
    (job / "results.jsonl").write_bytes(numbered_lines(12_000))
    (job / "warm.json").write_bytes(b"x" * (INLINE_CAP + 1))
    dataset = seal(job, "--pin", "p")["dataset"]
    code, out, err = run("attempt", "cat", "p", "results")
    assert (code, err) == (0, run("attempt", "cat", job, "results")[2])
    assert out == run("attempt", "cat", job, "results")[1]
    code, out, err = run("attempt", "cat", "p", "warm")
    assert (code, out) == (65, "")
    assert f"oarbank-cas fetch {dataset} warm.json" in err


def test_fetch_by_name(job, tmp_path):
    found = seal(job)
    assert run("fetch", found["dataset"], "eval.jsonl", "-o", tmp_path / "one")[0] == 0
    assert (tmp_path / "one" / "eval.jsonl").read_bytes() == (job / "eval.jsonl").read_bytes()
    assert run("fetch", found["dataset"], "-o", tmp_path / "all")[0] == 0
    assert sorted(path.name for path in (tmp_path / "all").iterdir()) == [
        "eval.jsonl",
        "manifest.json",
        "results.jsonl",
        "warm.json",
    ]
    document = json.loads((tmp_path / "all" / "manifest.json").read_bytes())
    assert {name: document[name] for name in ("artifacts", "runner", "problems")} == {
        name: found[name] for name in ("artifacts", "runner", "problems")
    }
    assert run("fetch", found["dataset"], "none", "-o", tmp_path / "x")[0] == 1


def test_damage_ends_with_65(job, store):
    found = seal(job, "--pin", "p")
    (file,) = (file for file in found["files"] if file["path"] == "eval.jsonl")
    path = store / "blobs" / file["digest"][:2] / file["digest"]
    path.chmod(0o644)
    data = path.read_bytes()
    path.write_bytes(data.replace(b"3", b"4", 1) if b'"3"' in data else data[:-10] + b"x" + data[-9:])
    code, out, err = run("attempt", "page", "p", "eval")
    assert (code, out) == (65, "")
    assert "set aside" in err
    assert run("attempt", "page", "p", "eval")[0] == 1
    assert run("attempt", "cat", "p", "warm")[0] == 0


def test_the_group_is_listed_and_takes_json_anywhere(job):
    assert "attempt " in run("--help")[1]
    assert "seal " in run("attempt", "--help")[1]
    seal(job, "--pin", "p")
    outs = {
        run(*words)[1]
        for words in (
            ("--json", "attempt", "list", "p"),
            ("attempt", "--json", "list", "p"),
            ("attempt", "list", "--json", "p"),
            ("attempt", "list", "p", "--json"),
        )
    }
    assert len(outs) == 1
    json.loads(outs.pop())
