import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import click
import pytest
from attempt_model import line_of, lines_of
from click.testing import CliRunner

from oarbank_cas.attempt import INLINE_CAP, Declaration, append, declarations, declare
from oarbank_cas.cli.attempt import attempt
from oarbank_cas.cli.session import Session
from oarbank_cas.errors import CasError


@click.group()
@click.option("--json", "as_json", is_flag=True)
@click.pass_context
def root(ctx, as_json):
    ctx.obj = Session(None, None, as_json, 0)


root.add_command(attempt)


def run(*args):
    result = CliRunner().invoke(root, [str(arg) for arg in args])
    if result.exception is not None and not isinstance(result.exception, (CasError, SystemExit)):
        raise result.exception
    code = result.exception.exit_code if isinstance(result.exception, CasError) else result.exit_code
    return (
        code,
        result.stdout,
        result.stderr + (str(result.exception) if isinstance(result.exception, CasError) else ""),
    )


@pytest.fixture
def job(tmp_path):
    declare(tmp_path, Declaration.records("eval", "eval.jsonl").task(4).describe("losses"))
    declare(tmp_path, Declaration.json("warm", "warm.json"))
    (tmp_path / "results.jsonl").write_bytes(
        b"".join(line_of(text) for text in ("1.0", "1e3", '"\u009b\u202e"', "[1,\n 2]"))
    )
    (tmp_path / "warm.json").write_bytes(b'{"w": 1.0}')
    return tmp_path


def test_declare(tmp_path):
    words = [
        "attempt",
        "declare",
        tmp_path,
        "--name",
        "eval",
        "--file",
        "eval.jsonl",
        "--format",
        "records",
        "--task",
        "3",
        "--description",
        "é",
    ]
    assert run(*words) == (0, "eval: declared, file eval.jsonl, format records\n", "")
    assert run(*words)[:2] == (0, "eval: was declared already, file eval.jsonl, format records\n")
    code, out, err = run("--json", *words)
    assert (code, err) == (0, "")
    assert json.loads(out) == {
        "declared": False,
        "name": "eval",
        "file": "eval.jsonl",
        "format": "records",
        "task_id": 3,
        "description": "é",
    }
    assert declarations(tmp_path) == [Declaration("eval", "eval.jsonl", "records", 3, "é")]
    assert run(*words[:-1], "other")[0] == 73
    assert run(*[*words[:6], "other.jsonl", *words[7:]])[0] == 73  # the name is known with another file
    for changed, code in [
        (("--name", "Eval"), 65),
        (("--name", "results"), 65),
        (("--file", "a/b"), 65),
        (("--task", "-1"), 65),
        (("--task", "x"), 2),
        (("--format", "binary"), 2),
        (("--description", "a\nb"), 65),
        (("--description", "x" * 201), 65),
    ]:
        got = run("attempt", "declare", tmp_path, "--name", "b", "--file", "b", "--format", "json", *changed)
        assert got[0] == code, got
        assert got[2]
    assert run("attempt", "declare", tmp_path / "none", "--name", "b", "--file", "b", "--format", "json")[0] == 1
    assert run("attempt", "declare", tmp_path)[0] == 2


def test_a_reserved_file_is_refused(tmp_path):
    code, _, err = run("attempt", "declare", tmp_path, "--name", "b", "--file", "Spec.JSON", "--format", "json")
    assert code == 65
    assert "belongs to the runner" in err


def test_list(job):
    code, out, err = run("attempt", "list", job)
    assert (code, err) == (0, "")
    assert [line.split() for line in out.splitlines()] == [
        ["NAME", "FORMAT", "SIZE", "TASK", "FILE", "DESCRIPTION"],
        ["results", "records", str((job / "results.jsonl").stat().st_size), "-", "results.jsonl"],
        ["eval", "records", "-", "4", "eval.jsonl", "losses"],
        ["warm", "json", "10", "-", "warm.json"],
    ]
    code, out, err = run("--json", "attempt", "list", job)
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert found["problems"] == []
    assert found["artifacts"][1] == {
        "name": "eval",
        "file": "eval.jsonl",
        "format": "records",
        "task_id": 4,
        "description": "losses",
        "size": None,
    }
    assert found["artifacts"][2]["size"] == 10
    assert run("attempt", "list", job, "--json") == (code, out, err)  # the flag is taken behind the command too
    assert run("attempt", "list", job / "none")[0] == 1
    assert run("attempt", "list", job / "warm.json")[0] == 65


def test_list_serves_results_alone_and_says_why(job):
    (job / "artifacts.jsonl").write_bytes(b"junk\n")
    code, out, err = run("attempt", "list", job)
    assert code == 1
    assert [line.split()[0] for line in out.splitlines()] == ["NAME", "results"]
    assert "artifacts.jsonl" in err
    code, out, err = run("--json", "attempt", "list", job)
    assert (code, err, len(json.loads(out)["problems"])) == (1, "", 1)
    assert run("attempt", "cat", job, "warm")[0] == 65
    assert run("attempt", "page", job, "results")[0] == 0


def test_cat(job):
    assert run("attempt", "cat", job, "warm") == (0, '{"w": 1.0}', "")
    code, out, _ = run("--json", "attempt", "cat", job, "warm")
    assert (code, json.loads(out)) == (0, {"name": "warm", "size": 10, "content": '{"w": 1.0}'})
    for name in ("none", "eval", "../x"):
        code, out, err = run("attempt", "cat", job, name)
        assert (code, out) == (1, "")
        assert err
    (job / "warm.json").write_bytes(b"\xff")
    assert run("--json", "attempt", "cat", job, "warm")[0] == 65
    (job / "warm.json").write_bytes(b"x" * (INLINE_CAP + 1))
    code, out, err = run("attempt", "cat", job, "warm")
    assert (code, out) == (65, "")
    assert "copy the file" in err


def test_cat_says_what_is_left_off(job):
    line = line_of('"' + "x" * 600_000 + '"')
    (job / "eval.jsonl").write_bytes(line * 2)
    code, out, err = run("attempt", "cat", job, "eval")
    assert (code, out.encode()) == (0, line)
    assert f"{len(line)} of {2 * len(line)} bytes are not shown" in err


def test_page(job):
    code, out, err = run("attempt", "page", job, "results")
    assert code == 0
    assert out.splitlines() == ["1.0", "1e3", r'"\u009b\u202e"', "[1,  2]"]
    assert err == "results: 4 of 4 records from 0\n"
    code, out, err = run("attempt", "page", job, "results", "--offset", "1", "--limit", "2")
    assert len(out.splitlines()) == 2
    assert err == "results: 2 of 4 records from 1; the next page: --offset 3\n"
    code, out, err = run("--json", "attempt", "page", job, "results", "--offset", "1")
    assert (code, err, out.count("\n")) == (0, "", 1)
    assert '"payload": 1e3' in out  # as it was written
    assert json.loads(out) == {
        "offset": 1,
        "next_offset": 4,
        "available": 4,
        "records": [
            {"offset": n, "schema_version": 1, "payload": p} for n, p in ((1, 1000), (2, "\u009b\u202e"), (3, [1, 2]))
        ],
    }
    code, out, _ = run("--json", "attempt", "page", job, "results", "--offset", "9")
    assert json.loads(out) == {"offset": 9, "next_offset": 9, "available": 4, "records": []}
    for args, code in [
        (("results", "--offset", "-1"), 2),
        (("results", "--limit", "0"), 2),
        (("results", "--limit", "x"), 2),
        (("warm",), 65),
        (("eval",), 1),
        (("none",), 1),
    ]:
        assert run("attempt", "page", job, *args)[0] == code
    with (job / "results.jsonl").open("ab") as file:
        file.write(b"junk\n")
    code, out, err = run("attempt", "page", job, "results")
    assert (code, out) == (65, "")
    assert "record 4 " in err


def test_page_defaults_to_a_hundred(job):
    (job / "eval.jsonl").write_bytes(lines_of(range(150)))
    assert len(run("attempt", "page", job, "eval")[1].splitlines()) == 100
    assert len(run("attempt", "page", job, "eval", "--limit", "20000")[1].splitlines()) == 150


def test_seal(job):
    code, out, err = run("attempt", "seal", job)
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert found["artifacts"] == {"results": "results.jsonl", "warm": "warm.json"}
    assert sorted(found["runner"]["artifact_index"]["warm"]) == ["description", "format", "sha256", "size", "task"]
    assert json.loads(run("--json", "attempt", "seal", job)[1]) == found
    (job / "warm.json").unlink()
    assert "warm" in run("attempt", "list", job)[1]  # declared, and not there yet
    (job / "warm.json").mkdir()
    assert "warm" not in run("attempt", "list", job)[1]
    code, out, err = run("attempt", "seal", job)
    assert code == 0
    assert "problem: warm is not listed" in err
    assert len(json.loads(out)["problems"]) == 1
    code, out, err = run("--json", "attempt", "seal", job)
    assert (code, err, len(json.loads(out)["problems"])) == (0, "", 1)
    assert run("attempt", "seal", job / "none")[0] == 1


def interruptible():
    # Programs that a shell starts in the background ignore interrupts, and so do their children.
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def follow(job, *args, flags=(), **more):
    command = [sys.executable, "-m", "oarbank_cas", *flags, "attempt", "page", str(job), *map(str, args), "--follow"]
    return subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        encoding="utf-8",
        preexec_fn=interruptible if os.name == "posix" else None,
        **more,
    )


def test_follow_like_tail(job):
    process = follow(job, "eval", "--offset", "1")
    try:
        time.sleep(0.3)  # before the file is there
        for value in range(3):
            append(job / "eval.jsonl", [value])
        assert [process.stdout.readline() for _ in range(2)] == ["[1]\n", "[2]\n"]
        with (job / "eval.jsonl").open("ab") as file:
            file.write(line_of("[3]")[:-20])
        append(job / "eval.jsonl", "é")
        assert process.stdout.readline() == '"é"\n'
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=20)
        assert (process.returncode, out, err) == (0, "", "")
    finally:
        process.kill()
        process.communicate()


def test_follow_as_json_lines_until_a_limit_and_whatever_the_locale(job):
    environment = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONIOENCODING": "ascii"}
    process = follow(job, "results", "--limit", "3", "--offset", "1", flags=["--json"], env=environment)
    out, err = process.communicate(timeout=20)
    assert (process.returncode, err) == (0, "")
    assert [json.loads(line) for line in out.splitlines()] == [
        {"offset": n, "schema_version": 1, "payload": p} for n, p in ((1, 1000), (2, "\u009b\u202e"), (3, [1, 2]))
    ]


def wait_until_open(process, path):
    """Returns when the process has the file open; where that cannot be seen, when it must have."""
    until = time.monotonic() + (20 if os.path.isdir("/proc/self/fd") else 3)
    while time.monotonic() < until:
        for fd in Path(f"/proc/{process.pid}/fd").glob("*"):
            try:
                if fd.resolve() == path.resolve():
                    return
            except OSError:
                continue  # closed meanwhile
        time.sleep(0.02)


def test_numbers_beyond_any_file(job):
    huge = 10**30
    assert run("attempt", "page", job, "results", "--offset", huge, "--limit", huge)[0] == 0
    process = follow(job, "results", "--limit", huge, "--offset", huge)
    append(job / "results.jsonl", 1)
    wait_until_open(process, job / "results.jsonl")
    assert process.poll() is None
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=20)
    assert out == ""
    assert "Traceback" not in err


def test_follow_ends_with_an_error_when_records_go_away(job):
    process = follow(job, "results")
    try:
        assert process.stdout.readline() == "1.0\n"
        os.truncate(job / "results.jsonl", 10)
        _, err = process.communicate(timeout=20)
        assert process.returncode == 65
        assert "shrank" in err
        assert "Traceback" not in err
    finally:
        process.kill()
        process.communicate()


def test_follow_ends_when_nobody_reads(job):
    process = follow(job, "results")
    assert process.stdout.readline() == "1.0\n"
    process.stdout.close()
    until = time.monotonic() + 20
    while process.poll() is None and time.monotonic() < until:
        append(job / "results.jsonl", "x" * 1000, durable=False)
        time.sleep(0.02)
    err = process.stderr.read()
    process.kill()
    process.wait()
    process.stderr.close()
    assert "Traceback" not in err


def test_no_input_ends_with_a_traceback(job):
    odd = Path(os.fsdecode(os.fsencode(job) + b"/\xff"))
    odd.mkdir()
    (odd / "results.jsonl").mkdir()
    for flags in ([], ["--json"]):
        for args in (
            ["list", odd],
            ["seal", odd],
            ["cat", odd, "results"],
            ["page", odd, "results"],
            ["cat", odd, os.fsdecode(b"\xff")],
        ):
            command = [sys.executable, "-m", "oarbank_cas", *flags, "attempt", *map(str, args)]
            done = subprocess.run(command, capture_output=True, timeout=60, env={**os.environ, "LC_ALL": "C"})
            assert b"Traceback" not in done.stderr, done.stderr
            assert done.returncode in (0, 1, 65)
            if flags and done.stdout:
                json.loads(done.stdout)
