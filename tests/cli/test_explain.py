"""`explain`, and `--key-inputs` of `publish` and `record`, as people type them."""

from __future__ import annotations

import json

import pytest
from agent_kit import write_job

from oarbank_cas import KeyInputs, Store


def document(a=0.5, stage=None, **more):
    return {
        "module": "org.example.align",
        "compat": "render3",
        "inputs": {"params": {"a": a}, **more},
        **({"stage": stage} if stage else {}),
    }


def key_of(given):
    return str(KeyInputs.parse(json.dumps(given).encode()).key)


@pytest.fixture
def publish(run, store, tmp_path):
    def call(given, *arguments):
        path = tmp_path / "inputs.json"
        path.write_text(json.dumps(given, indent=2))
        work = tmp_path / f"w-{key_of(given)}".replace(":", "-")
        write_job(work, {"a.txt": key_of(given).encode()})
        return run("publish", "--job-key", key_of(given), "--workdir", work, "--key-inputs", path, *arguments)

    return call


def test_help(run):
    ran = run("explain", "--help")
    assert ran.code == 0
    assert "oarbank-cas explain inputs.json" in ran.text
    assert "--key-inputs" in run("publish", "--help").text
    assert "--key-inputs" in run("record", "--help").text
    assert "\n  explain " in run("--help").text


def test_a_hit_by_file_by_key_and_by_stdin(run, publish, tmp_path):
    given = document(stage="mix")
    assert publish(given).code == 0
    (tmp_path / "q.json").write_text(json.dumps(given))
    for arguments, stdin in (
        ((tmp_path / "q.json",), b""),
        ((key_of(given),), b""),
        (("-",), json.dumps(given).encode()),
        (("-",), key_of(given).encode() + b"\n"),
    ):
        ran = run("--json", "explain", *arguments, stdin=stdin)
        assert ran.code == 0
        assert (ran.json["answer"], ran.json["status"], ran.json["job_key"]) == ("hit", "hit", key_of(given))
        assert ran.json["key_inputs"] == "kept"
    assert run("explain", key_of(given)).text.startswith(f"hit  {key_of(given)}  any\nrecorded ")


def test_never_shows_the_nearest(run, publish, tmp_path):
    publish(document(0.5))
    publish(document(0.5, extra=["x"]))
    (tmp_path / "q.json").write_text(json.dumps(document(0.25)))
    ran = run("explain", tmp_path / "q.json")
    assert ran.code == 1
    lines = ran.text.splitlines()
    assert lines[0] == f"never  {key_of(document(0.25))}  any"
    assert lines[2].startswith(f"near  {key_of(document(0.5))}  any  ")
    assert lines[2].endswith("  1 difference")
    assert lines[3] == "  inputs.params.a: 0.5 -> 0.25"
    assert lines[4].endswith("  2 differences")
    assert lines[5:] == ['  inputs.extra: ["x"] -> (absent)', "  inputs.params.a: 0.5 -> 0.25"]
    assert run("explain", tmp_path / "q.json", "--nearest", "1").text.count("near") == 1
    assert run("--json", "explain", tmp_path / "q.json").json["searched"] == 2
    # A key says nothing of what it is made of.
    ran = run("explain", key_of(document(0.25)))
    assert (ran.code, "give the key's inputs" in ran.said) == (1, True)


def test_what_was_ended_and_what_is_missing(run, publish, store):
    given = document()
    publish(given)
    publish(given, "--class", "linux")
    run("invalidate", key_of(given), "--reason", "bad lens", "--by", "ada")
    ran = run("explain", key_of(given))
    assert ran.code == 1
    assert "invalidated" in ran.text
    assert "by ada: bad lens" in ran.text
    assert f"also  {key_of(given)}  linux  hit" in ran.text
    with Store.open(store) as opened:
        digest = next(iter(json.loads(opened.lookup(key_of(given), "linux").envelope)["artifacts"]))["files"][0]
    run("purge", digest["digest"], "--reason", "a secret", "--by", "ada", "--yes")
    ran = run("explain", key_of(given), "--class", "linux")
    assert ran.code == 1
    assert f"missing  {digest['digest']}  last seen " in ran.text
    assert "by ada: a secret" in ran.text


def test_inputs_of_another_key_are_refused(run, store, tmp_path):
    (tmp_path / "inputs.json").write_text(json.dumps(document(0.5)))
    write_job(tmp_path / "w", {"a.txt": b"alpha"})
    other = key_of(document(0.25))
    ran = run("publish", "--job-key", other, "--workdir", tmp_path / "w", "--key-inputs", tmp_path / "inputs.json")
    assert ran.code == 65
    assert f"key inputs: give the job key {key_of(document(0.5))}, not" in ran.said
    assert not list((store / "blobs").rglob("*")) if (store / "blobs").exists() else True
    ran = run("record", "-", "--job-key", other, "--key-inputs", tmp_path / "inputs.json", stdin=b"{}")
    assert ran.code == 65


def test_record_keeps_them_too(run, store, tmp_path):
    given = document()
    (tmp_path / "inputs.json").write_text(json.dumps(given))
    write_job(tmp_path / "w", {"a.txt": b"alpha"})
    run("publish", "--upload-only", "--workdir", tmp_path / "w", "--out", tmp_path / "e.json")
    recorded = run("record", tmp_path / "e.json", "--job-key", key_of(given), "--key-inputs", tmp_path / "inputs.json")
    assert recorded.code == 0
    assert run("--json", "explain", key_of(given)).json["key_inputs"] == "kept"
    kept = json.loads(run("get", key_of(given)).out)
    assert kept == {name: given[name] for name in ("module", "compat", "inputs")}


@pytest.mark.parametrize(
    ("arguments", "stdin", "code"),
    [
        ((), b"", 2),
        (("nowhere.json",), b"", 65),
        (("-",), b"[1]", 65),
        (("-",), b"", 65),
        (("-",), b"\xff" * 2000, 65),
        (("-",), b'"' + b"x" * 2**20 + b'"', 65),
        (("0" * 64, "--class", "A"), b"", 65),
        (("0" * 64, "--nearest", "-1"), b"", 2),
    ],
)
def test_wrong_questions(run, store, arguments, stdin, code):
    ran = run("explain", *arguments, stdin=stdin)
    assert ran.code == code
    assert "Traceback" not in ran.said


def test_wrong_ways_to_give_them(run, store, tmp_path):
    (tmp_path / "inputs.json").write_text(json.dumps(document()))
    write_job(tmp_path / "w", {"a.txt": b"alpha"})
    upload = run("publish", "--upload-only", "--workdir", tmp_path / "w", "--key-inputs", tmp_path / "inputs.json")
    assert upload.code == 2
    assert run("record", "-", "--job-key", "0" * 64, "--key-inputs", "-").code == 2


def test_no_store(run, tmp_path):
    assert run("--store", tmp_path / "none", "explain", "0" * 64).code == 69


def test_reindex(run, publish, store, tmp_path):
    import shutil

    publish(document(0.5))
    publish(document(0.75))
    shutil.rmtree(store / "explain")
    publish(document(1))  # so that the index looks as if it were whole
    (tmp_path / "q.json").write_text(json.dumps(document(0.25)))
    assert run("--json", "explain", tmp_path / "q.json").json["searched"] == 1
    assert run("explain", "--reindex").code == 0
    ran = run("--json", "explain", "--reindex", tmp_path / "q.json")
    assert len(ran.json["nearest"]) == 3
