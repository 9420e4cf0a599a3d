import json
import os
import stat as stat_bits
from pathlib import Path

import pytest
from agent_kit import digest, files_in, key, result, spec, tree, write_files, write_job

from oarbank_cas import Origin, Store, job_key
from oarbank_cas.backends.local import LocalBackend
from oarbank_cas.cli.app import cli

COMMANDS = (
    "init",
    "put",
    "get",
    "stat",
    "ls",
    "key",
    "publish",
    "record",
    "lookup",
    "stage",
    "fetch",
    "invalidate",
    "schema",
)


@pytest.mark.parametrize("command", COMMANDS)
def test_help_has_an_example_and_says_what_every_option_does(run, command):
    ran = run(command, "--help")
    assert ran.code == 0
    assert f"oarbank-cas {command} " in ran.text.split("Example")[1] or command == "init"
    for parameter in cli.get_command(None, command).params:
        if parameter.param_type_name == "option":
            assert parameter.help


def test_the_main_help(run):
    for arguments in (("--help",), ("-h",)):
        ran = run(*arguments)
        assert ran.code == 0
        assert "Examples:" in ran.text
        assert "69 no store" in ran.text
        for command in COMMANDS:
            assert f"\n  {command} " in ran.text
    assert run().code == 2
    assert run("--version").text == "oarbank-cas, version 0.1.0\n"


# -- init


def test_init(run, tmp_path):
    first = run("--store", tmp_path / "s", "--json", "init", "--session-s", "10", "--grace-s", "20", "--slack-s", "0")
    assert first.code == 0
    assert first.json == {
        "store": str(tmp_path / "s"),
        "id": first.json["id"],
        "made": True,
        "session_s": 10,
        "grace_s": 20,
        "slack_s": 0,
    }
    again = run("--store", tmp_path / "s", "--json", "init")
    assert (again.code, again.json) == (0, first.json | {"made": False})
    assert run("--store", tmp_path / "s", "init").text == f"there already: {tmp_path}/s (id {first.json['id']})\n"
    other = run("--store", tmp_path / "s", "init", "--grace-s", "21")
    assert other.code == 73
    assert "grace_s = 20, not 21" in other.said
    assert "copy" in other.said
    assert run("--store", tmp_path / "t", "init").text.startswith("made: ")


@pytest.mark.parametrize("arguments", [("--session-s", "0"), ("--slack-s", "-1"), ("--grace-s", str(10**12))])
def test_init_with_numbers_out_of_range_makes_nothing(run, tmp_path, arguments):
    ran = run("--store", tmp_path / "s", "init", *arguments)
    assert ran.code == 65
    assert arguments[0] in ran.said
    assert not (tmp_path / "s").exists()


def test_init_where_it_cannot_be(run, tmp_path):
    write_files(tmp_path, {"file": b"", "blobby/blobs/ab/x": b""})
    for place in ("file", "file/below", "blobby"):
        ran = run("--store", tmp_path / place, "init")
        assert ran.code == 73, ran
    assert files_in(tmp_path / "blobby") == {"blobs/ab/x": b""}


# -- put, get, stat


def test_put_and_get(run, store):
    write_files(".", {"one": b"1", "two": b"22"})
    ran = run("put", "one", "two", "one")
    assert ran.code == 0
    assert ran.text == f"{digest(b'1')}  1  one\n{digest(b'22')}  2  two\n{digest(b'1')}  1  one\n"
    assert run("get", digest(b"22")).out == b"22"
    assert run("get", digest(b"22"), "-o", "back").out == b""
    assert Path("back").read_bytes() == b"22"
    ran = run("--json", "get", digest(b"1"), "-o", "back")
    assert ran.json == {"digest": digest(b"1"), "size": 1, "path": "back"}
    assert Path("back").read_bytes() == b"1"
    write_files(".", {"three": b"333"})
    ran = run("--json", "put", "one", "three")
    assert ran.json == {
        "blobs": [
            {"digest": digest(b"1"), "size": 1, "path": "one", "new": False},
            {"digest": digest(b"333"), "size": 3, "path": "three", "new": True},
        ]
    }


def test_put_of_stdin(run, store):
    data = bytes(range(256)) * 100_000
    ran = run("put", "-", stdin=data)
    assert ran.text == f"{digest(data)}  {len(data)}  -\n"
    assert run("get", digest(data)).out == data
    assert run("--json", "put", "-").json["blobs"] == [{"digest": digest(b""), "size": 0, "path": None, "new": True}]
    ran = run("put", "-", "file")
    assert ran.code == 2
    assert "stands alone" in ran.said


def test_put_of_what_cannot_be_put_stores_nothing(run, store):
    write_files(".", {"one": b"1", "dir/x": b""})
    os.mkfifo("pipe")
    before = files_in(store / "blobs") if (store / "blobs").exists() else {}
    for bad, message in (
        ("none", "none: cannot be read: No such file"),
        ("dir", "dir: is a directory"),
        ("pipe", "pipe: is a pipe or a device"),
        ("/dev/null", "/dev/null: is a pipe or a device"),
    ):
        ran = run("put", "one", bad)
        assert ran.code == 65
        assert message in ran.said
    assert (files_in(store / "blobs") if (store / "blobs").exists() else {}) == before


def test_get_of_what_is_not_there(run, store):
    for arguments in ((), ("-o", "back")):
        ran = run("get", digest(b"none"), *arguments)
        assert (ran.code, ran.out) == (1, b"")
        assert digest(b"none") in ran.said
        assert str(store) in ran.said
        assert run("get", "nonsense", *arguments).code == 65
    assert tree(".") == {}


def test_get_of_wrong_bytes(run, store):
    write_files(".", {"one": b"right"})
    run("put", "one")
    blob = store / "blobs" / digest(b"right")[:2] / digest(b"right")
    blob.chmod(0o644)
    for arguments in ((), ("-o", "back")):
        blob.write_bytes(b"wrong")
        ran = run("get", digest(b"right"), *arguments)
        assert (ran.code, ran.out) == (65, b"")
        assert digest(b"right") in ran.said
        assert digest(b"wrong") in ran.said
        assert not blob.exists()
    assert tree(".") == {"one": b"right"}
    assert sorted(files_in(store / "damaged").values()) == [b"wrong", b"wrong"]


def test_get_of_a_large_blob_withholds_the_end_of_wrong_bytes(run, store):
    data = bytes(65 * 2**20)
    run("put", "-", stdin=data)
    assert run("get", digest(data)).out == data
    blob = store / "blobs" / digest(data)[:2] / digest(data)
    blob.chmod(0o644)
    with blob.open("r+b") as file:
        file.write(b"x")
    ran = run("get", digest(data))
    assert ran.code == 65
    assert len(ran.out) < len(data)


@pytest.mark.parametrize("command", ["get", "publish"])
def test_no_output_takes_the_place_of_what_is_no_file(run, store, workdir, command):
    run("put", workdir / "c")
    os.mkfifo("pipe")
    Path("dir").mkdir()
    Path("null").symlink_to("/dev/null")
    before = tree(".")
    for bad in ("pipe", "dir", "null", "/dev/null"):
        arguments = ("get", digest(b"c"), "-o", bad)
        if command == "publish":
            arguments = ("publish", "--upload-only", "--workdir", workdir, "--out", bad)
        ran = run(*arguments)
        assert ran.code == 73
        assert "is a directory: name a file" in ran.said or "is no regular file" in ran.said
    assert tree(".") == before
    assert stat_bits.S_ISCHR(os.stat("/dev/null").st_mode)


@pytest.mark.parametrize("command", ["get", "publish"])
def test_an_output_in_a_folder_that_is_not_there(run, store, workdir, command):
    run("put", workdir / "c")
    arguments = ("get", digest(b"c"), "-o", "no/back")
    if command == "publish":
        arguments = ("publish", "--upload-only", "--workdir", workdir, "--out", "no/back")
    ran = run(*arguments)
    assert ran.code == 73
    assert "cannot create" in ran.said
    assert tree(".") == {}


def test_get_to_stdout_and_json_do_not_go_together(run, store):
    ran = run("--json", "get", digest(b"x"))
    assert ran.code == 2
    assert "-o" in ran.json["error"]


def test_stat(run, store):
    write_files(".", {"one": b"1"})
    run("put", "one")
    there, absent = digest(b"1"), digest(b"none")
    ran = run("stat", there)
    assert ran.code == 0
    assert ran.text.startswith(f"{there}  1  ")
    ran = run("stat", there, absent)
    assert ran.code == 1
    assert ran.text.splitlines()[1] == f"{absent}  absent"
    ran = run("--json", "stat", absent, there)
    assert ran.code == 1
    age = ran.json["blobs"][1]["age_s"]
    assert isinstance(age, int)
    assert ran.json == {
        "blobs": [
            {"digest": absent, "present": False, "size": None, "age_s": None},
            {"digest": there, "present": True, "size": 1, "age_s": age},
        ]
    }
    assert run("stat", "nonsense").code == 65


# -- key


def test_key(run):
    inputs = {"b": [1, 2.0, "\u00e9"], "a": None}
    write_files(".", {"in.json": json.dumps(inputs).encode()})
    expected = job_key("org.example.align", "3", inputs, "prep")
    assert (
        run("key", "--module", "org.example.align", "--compat", "3", "--stage", "prep", "in.json").text
        == f"{expected}\n"
    )
    ran = run("--json", "key", "--module", "org.example.align", "--compat", "3", "-", stdin=json.dumps(inputs).encode())
    assert ran.json == {"job_key": job_key("org.example.align", "3", inputs)}


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        (b"", "line 1"),
        (b"{", "line 1"),
        (b'{"a":1,"a":2}', "twice"),
        (b'{"a":[1,{"b":NaN}]}', r"$.a[1].b"),
        (b"[1e400]", "$[0]"),
        (b"[9007199254740993]", "2^53"),
        (b'["\\ud800"]', "surrogate"),
        (b"\xff", "UTF-8"),
        (b"\xef\xbb\xbf{}", "byte order mark"),
        ("{}".encode("utf-16"), "UTF-8"),
        (b"[" * 1000 + b"]" * 1000, "nested"),
    ],
)
def test_key_of_what_has_none(run, inputs, message):
    ran = run("key", "--module", "org.example.align", "--compat", "3", "-", stdin=inputs)
    assert (ran.code, ran.out) == (65, b"")
    assert message in ran.said
    assert "stdin" in ran.said


def test_key_with_wrong_names(run):
    for arguments in (("--module", "nodots", "--compat", "1"), ("--module", "a.b", "--compat", "")):
        assert run("key", *arguments, "-", stdin=b"{}").code == 65
    assert run("key", "--module", "a.b", "-", stdin=b"{}").code == 2
    assert run("key", "--module", "a.b", "--compat", "1", "--stage", "No", "-", stdin=b"{}").code == 65


# -- publish, record, lookup


def test_publish_and_lookup(run, store, workdir):
    ran = run("publish", "--job-key", key(), "--workdir", workdir, "--by", "me", "--platform", "linux-amd64")
    assert ran.code == 0
    assert ran.text.splitlines()[0] == f"recorded  {key()}  any"
    assert ran.text.splitlines()[1].startswith("art:")
    assert ran.said == "3 files, 6 bytes; new: 3 files, 6 bytes\n"
    found = run("lookup", key())
    assert found.code == 0
    assert found.err == b""
    assert json.loads(found.out)["artifacts"][0]["files"][0]["digest"] == digest(b"alpha")
    assert run("lookup", key(), "--class", "linux").code == 1


def test_publish_as_json(run, store, workdir):
    arguments = ("--json", "publish", "--job-key", key(), "--workdir", workdir, "--by", "me", "--attempt", "a7")
    ran = run(*arguments)
    first = ran.json
    assert first == {
        "job_key": key(),
        "class": "any",
        "recorded": True,
        "exclusive": True,
        "datasets": {"out": first["datasets"]["out"]},
        "attempt": "a7",
        "by": "me",
        "envelope": run("lookup", key()).text,
        "files": 3,
        "size": 6,
        "new_files": 3,
        "new_size": 6,
    }
    assert ran.err == b""
    again = run(*arguments)
    assert again.code == 0
    assert again.json == first | {"recorded": False, "new_files": 0, "new_size": 0}


def test_a_lost_race_is_done(run, store, workdir, tmp_path):
    run("publish", "--job-key", key(), "--workdir", workdir, "--by", "first")
    write_job(tmp_path / "w2", {"a.txt": b"other"})
    ran = run("publish", "--job-key", key(), "--workdir", tmp_path / "w2", "--by", "second")
    assert ran.code == 0
    assert ran.text.startswith(f"stands  {key()}  any\n")
    assert "another result was recorded first, by first; it stands" in ran.said
    ran = run("-q", "publish", "--job-key", key(), "--workdir", tmp_path / "w2")
    assert ran.err == b""


@pytest.mark.parametrize("end", [b"", b"\n", b" \r\n\n"])
def test_an_envelope_comes_back_byte_for_byte(run, store, tmp_path, end):
    data = b'{"schema":"a/result@1","module_version":"1.0.0",\t"n":1.0,"z":"\xc3\xa9\\u00e9","payload":{}}' + end
    write_job(tmp_path / "w", {}, data)
    run("publish", "--job-key", key(), "--workdir", tmp_path / "w")
    assert run("lookup", key()).out == data
    assert run("--json", "lookup", key()).json["envelope"].encode() == data
    assert run("lookup", key(), key(1)).lines[0]["envelope"].encode() == data


def test_upload_only_then_record(run, store, workdir):
    printed = run("publish", "--upload-only", "--workdir", workdir)
    assert printed.code == 0
    assert run("lookup", key()).code == 1
    ran = run("publish", "--upload-only", "--workdir", workdir, "--out", "envelope.json")
    assert (ran.code, ran.out) == (0, b"")
    assert Path("envelope.json").read_bytes() == printed.out
    ran = run("--json", "publish", "--upload-only", "--workdir", workdir)
    assert ran.json == {
        "envelope": printed.text,
        "datasets": ran.json["datasets"],
        "path": None,
        "files": 3,
        "size": 6,
        "new_files": 0,
        "new_size": 0,
    }
    ran = run("--json", "record", "--job-key", key(), "envelope.json", "--by", "me", "--attempt", "a7")
    assert ran.code == 0
    assert ran.json == {
        "job_key": key(),
        "class": "any",
        "recorded": True,
        "exclusive": True,
        "datasets": ran.json["datasets"],
        "attempt": "a7",
        "by": "me",
        "envelope": printed.text,
    }
    ran = run("record", "--job-key", key(1), "-", stdin=printed.out)
    assert ran.text.startswith(f"recorded  {key(1)}  any\n")
    assert run("lookup", key(1)).out == run("lookup", key()).out == printed.out


def test_record_of_what_cannot_be_recorded(run, store, workdir):
    raw = (workdir / "result.json").read_bytes()
    ran = run("record", "--job-key", key(), "-", stdin=raw)
    assert ran.code == 65
    assert "upload it first" in ran.said
    absent = result({"out": [{"path": "x", "digest": digest(b"none"), "size": 4}]})
    ran = run("record", "--job-key", key(), "-", stdin=json.dumps(absent).encode())
    assert ran.code == 1
    assert digest(b"none") in ran.said
    run("put", workdir / "c")
    wrong = result({"out": [{"path": "x", "digest": digest(b"c"), "size": 4}]})
    ran = run("record", "--job-key", key(), "-", stdin=json.dumps(wrong).encode())
    assert ran.code == 65
    assert "1 bytes, not 4" in ran.said
    for bad in (b"", b"{}", b"[]"):
        assert run("record", "--job-key", key(), "-", stdin=bad).code == 65
    assert run("record", "--job-key", "short", "-", stdin=json.dumps(result()).encode()).code == 65
    assert run("lookup", key()).code == 1


def test_publish_needs_a_key_or_no_record(run, store, workdir):
    assert run("publish", "--workdir", workdir).code == 2
    assert run("publish", "--workdir", workdir, "--job-key", key(), "--out", "x").code == 2
    assert run("publish", "--job-key", key()).code == 2
    assert run("publish", "--job-key", key(), "--workdir", workdir, "--max-inline-kb", "-1").code == 2
    ran = run("publish", "--job-key", key(), "--workdir", workdir, "--max-inline-kb", "0")
    assert ran.code == 65
    assert "max_inline_kb" in ran.said
    ran = run("publish", "--job-key", key(), "--workdir", workdir, "--class", "linux", "--platform", "darwin-arm64")
    assert ran.code == 65


def test_publish_of_an_envelope_elsewhere(run, store, workdir, tmp_path):
    (workdir / "result.json").rename(tmp_path / "elsewhere.json")
    assert run("publish", "--job-key", key(), "--workdir", workdir).code == 65
    ran = run("publish", "--job-key", key(), "--workdir", workdir, "--result", tmp_path / "elsewhere.json")
    assert ran.code == 0


@pytest.mark.parametrize("exclusive", [True, False])
def test_whoever_records_is_told_where_both_of_two_may_win(run, store, workdir, monkeypatch, exclusive):
    monkeypatch.setattr(LocalBackend, "exclusive", exclusive)
    first = run("publish", "--job-key", key(), "--workdir", workdir)
    assert ("may have been told" in first.said) == (not exclusive)
    again = run("--json", "record", "--job-key", key(), "-", stdin=run("lookup", key()).out)
    assert again.json["exclusive"] is exclusive
    assert again.json["recorded"] is False
    assert ("may have been told" in again.said) == (not exclusive)


def test_a_miss_says_why(run, store, workdir):
    ran = run("lookup", key())
    assert (ran.code, ran.out) == (1, b"")
    assert ran.said == "miss (absent): no result is recorded for this key and class\n"
    assert run("-q", "lookup", key()).err == b""
    missing = {"status": "miss", "reason": "absent", "datasets": {}, "missing": [], "envelope": None}
    document = run("--json", "lookup", key()).json
    assert document == missing | {"job_key": key(), "class": "any", "detail": document["detail"]}


def test_an_incomplete_entry_is_a_miss(run, store, workdir):
    run("publish", "--job-key", key(), "--workdir", workdir)
    (store / "blobs" / digest(b"alpha")[:2] / digest(b"alpha")).unlink()
    ran = run("--json", "lookup", key())
    assert ran.code == 1
    assert (ran.json["status"], ran.json["reason"], ran.json["missing"]) == ("miss", "incomplete", [digest(b"alpha")])
    assert run("lookup", "--no-complete", key()).code == 0
    # What was lost is back: the entry that stood is whole again.
    assert run("publish", "--job-key", key(), "--workdir", workdir).text.startswith("stands")
    assert run("lookup", key()).code == 0


def test_a_damaged_entry_is_a_miss_and_does_not_block(run, store, workdir):
    run("publish", "--job-key", key(), "--workdir", workdir)
    entry = store / "results" / key()[:2] / key() / "_@any"
    entry.chmod(0o644)
    entry.write_bytes(entry.read_bytes()[:-1] + b"]")
    ran = run("lookup", key())
    assert (ran.code, ran.out) == (1, b"")
    assert "miss (corrupt)" in ran.said
    assert "record the result again" in ran.said
    assert run("publish", "--job-key", key(), "--workdir", workdir).text.startswith("recorded")
    assert run("lookup", key()).code == 0


@pytest.mark.parametrize("form", ["arguments", "stdin", "both"])
def test_lookup_of_several_keys(run, store, workdir, form):
    for number in (0, 2):
        run("publish", "--job-key", key(number), "--workdir", workdir)
    keys = [key(number) for number in (2, 1, 0, 2)]
    lines = "\n  ".join(["", *keys[1:], ""]).replace("\n", "\r\n").encode()
    arguments, stdin = {
        "arguments": (keys, b""),
        "stdin": (["-"], f"{keys[0]}\n".encode() + lines),
        "both": ([keys[0], "-"], lines),
    }[form]
    ran = run("lookup", *arguments, stdin=stdin)
    assert ran.code == 1
    assert [(line["job_key"], line["status"]) for line in ran.lines] == [
        (keys[0], "hit"),
        (keys[1], "miss"),
        (keys[2], "hit"),
        (keys[3], "hit"),
    ]
    assert ran.lines == run("--json", "lookup", *arguments, stdin=stdin).lines
    assert set(ran.lines[0]) == {
        "job_key",
        "class",
        "status",
        "reason",
        "detail",
        "datasets",
        "missing",
        "envelope",
    }
    assert run("lookup", keys[0], keys[2]).code == 0


def test_lookup_of_one_key_from_stdin_is_a_line(run, store, workdir):
    run("publish", "--job-key", key(), "--workdir", workdir)
    ran = run("lookup", "-", stdin=key().encode())
    assert (ran.code, len(ran.lines), ran.lines[0]["status"]) == (0, 1, "hit")
    assert run("lookup", "-").out == b""
    assert run("lookup").code == 2


@pytest.mark.parametrize("line", [b"nonsense", b"\xff\xfe", b"x" * 100_000, "k\u00e9y".encode()])
def test_a_malformed_key_among_several(run, store, workdir, line):
    run("publish", "--job-key", key(), "--workdir", workdir)
    ran = run("--json", "lookup", "-", stdin=key().encode() + b"\n" + line + b"\n" + key(1).encode())
    assert ran.code == 65
    assert (ran.lines[0]["job_key"], ran.lines[0]["status"]) == (key(), "hit")
    assert ran.lines[-1]["exit_code"] == 65
    assert "is no job key" in ran.said


def test_a_store_that_goes_away_among_several_keys(run, store, workdir, monkeypatch):
    run("publish", "--job-key", key(), "--workdir", workdir)
    real = Store.lookup_many

    def vanishing(self, keys, *arguments, **settings):
        def seen():
            for number, each in enumerate(keys):
                if number == 1:
                    store.rename(store.with_name("gone"))
                yield each

        return real(self, seen(), *arguments, **settings)

    monkeypatch.setattr(Store, "lookup_many", vanishing)
    ran = run("lookup", key(), key(1), key(2))
    assert ran.code == 69
    assert [line["status"] for line in ran.lines] == ["hit", "error", "error"]
    assert [line["reason"] for line in ran.lines] == [None, "UnavailableError", "UnavailableError"]
    assert "is its disk mounted?" in ran.said


# -- stage and fetch


@pytest.fixture
def dataset(run, store, workdir):
    ran = run("--json", "publish", "--job-key", key(), "--workdir", workdir)
    return ran.json["datasets"]["out"]


FILES = {"a.txt": b"alpha", "deep/b": b"", "c": b"c"}


@pytest.mark.parametrize("form", ["file", "stdin"])
def test_stage(run, dataset, form):
    document = spec({"reads": (dataset, "in/reads")}, [dataset], {dataset: "data"})
    write_files(".", {"spec.json": document})
    Path("w").mkdir()
    arguments = ("stage", "spec.json" if form == "file" else "-", "--workdir", "w")
    ran = run("--json", *arguments, stdin=document)
    assert ran.code == 0
    mounted = {"dataset": dataset, "files": 3, "size": 6}
    assert ran.json == {
        "mounts": [
            mounted | {"name": "reads", "mount": "in/reads", "placed": True},
            mounted | {"name": None, "mount": "data", "placed": True},
        ]
    }
    assert files_in("w") == {f"{mount}/{path}": data for mount in ("in/reads", "data") for path, data in FILES.items()}
    ran = run(*arguments, stdin=document)
    assert ran.text == (
        f"inputs.reads  {dataset}  in/reads  3 files, 6 bytes, there already\n"
        f"dataset  {dataset}  data  3 files, 6 bytes, there already\n"
    )


def test_stage_of_what_cannot_be_staged(run, dataset):
    Path("w").mkdir()
    for document, code in (
        (b"{}", 65),
        (spec({"a": (f"art:{digest(b'none')}", "in")}), 1),
        (spec(None, ["genome:1"], {"genome:1": "in"}), 65),
        (spec({"a": (dataset, "../in")}), 65),
    ):
        assert run("stage", "-", "--workdir", "w", stdin=document).code == code
    assert run("stage", "none.json", "--workdir", "w").code == 65
    assert run("stage", "-", "--workdir", "none", stdin=spec({"a": (dataset, "in")})).code == 65
    assert tree(".") == {"w": "directory"}
    write_files("w", {"in": b"mine"})
    ran = run("stage", "-", "--workdir", "w", stdin=spec({"a": (dataset, "in")}))
    assert ran.code == 73
    assert "in: a file stands at the mount; remove it" in ran.said


def test_fetch(run, dataset):
    assert run("fetch", key(), "-o", "all").text == "3 files, 6 bytes in all (3 written, 0 there already)\n"
    assert files_in("all") == {f"out/{path}": data for path, data in FILES.items()}
    for what, part in ((key(), "out"), (key(), "out/"), (dataset, None)):
        assert run("fetch", what, *([part] if part else []), "-o", "one").code == 0
        assert files_in("one") == FILES
    for what, part in ((key(), "out/deep/b"), (dataset, "deep/b")):
        assert run("fetch", what, part, "-o", "file").code == 0
        assert files_in("file") == {"b": b""}
    ran = run("--json", "fetch", dataset, "c")
    assert ran.json == {"output": ".", "written": 1, "files": [{"path": "c", "digest": digest(b"c"), "size": 1}]}
    assert Path("c").read_bytes() == b"c"
    assert run("--json", "fetch", dataset, "c").json["written"] == 0


def test_fetch_of_what_is_not_there(run, dataset):
    for arguments, code, message in (
        ((key(1),), 1, "miss (absent)"),
        ((key(), "--class", "linux"), 1, "miss (absent)"),
        ((key(), "other"), 1, "it has out"),
        ((key(), "out/none"), 1, "no file 'none'"),
        ((key(), "out/deep"), 65, "is a folder with 1 files"),
        ((dataset, "none"), 1, "no file"),
        ((dataset, "../x"), 1, "no file"),
        ((f"art:{digest(b'x')}",), 1, "not in the store"),
        (("art:nonsense",), 65, "is no dataset"),
        (("nonsense",), 65, "is no job key"),
    ):
        ran = run("fetch", *arguments)
        assert (ran.code, ran.out) == (code, b""), arguments
        assert message in ran.said
    assert tree(".") == {}


def test_fetch_overwrites_nothing(run, dataset):
    write_files(".", {"c": b"mine"})
    ran = run("fetch", dataset)
    assert ran.code == 73
    assert "c: another file stands there" in ran.said
    assert tree(".") == {"c": b"mine"}


def test_fetch_of_a_result_without_artifacts(run, store, tmp_path):
    write_job(tmp_path / "empty", {}, result())
    run("publish", "--job-key", key(), "--workdir", tmp_path / "empty")
    ran = run("fetch", key())
    assert ran.code == 1
    assert "has no artifacts" in ran.said


# -- invalidate


def test_invalidate_and_undo(run, dataset):
    before = run("lookup", key()).out
    assert run("invalidate", key()).code == 2
    ran = run("invalidate", key(), "--reason", "wrong genome", "--dry-run")
    assert (ran.code, ran.text) == (0, f"would be ended  {key()}  any\n")
    assert run("lookup", key()).code == 0
    ran = run("--json", "invalidate", key(), key(1), "--reason", "wrong genome", "--by", "me")
    assert ran.code == 0
    assert ran.json == {
        "entries": [
            {"job_key": key(), "class": "any", "changed": True},
            {"job_key": key(1), "class": "any", "changed": False},
        ],
        "dry_run": False,
    }
    ran = run("lookup", key())
    assert ran.code == 1
    assert "miss (invalidated)" in ran.said
    assert "by me: wrong genome" in ran.said
    assert run("invalidate", key(), "--reason", "again").code == 1
    assert run("invalidate", key(), "--reason", "again", "--dry-run").code == 1
    assert run("invalidate", key(), "--undo", "--dry-run").code == 0
    assert run("invalidate", key(), "--undo").text == f"brought back  {key()}  any\n"
    assert run("lookup", key()).out == before
    assert run("invalidate", key(), "--undo").code == 1
    assert run("invalidate", key(), "--undo", "--dry-run").code == 1
    assert run("invalidate", key(1), "--reason", "x", "--dry-run").code == 1


def test_a_record_after_invalidate_stands(run, dataset, workdir):
    run("invalidate", key(), "--reason", "x")
    assert run("publish", "--job-key", key(), "--workdir", workdir).text.startswith("recorded")
    assert run("invalidate", key(), "--undo").code == 1


def test_invalidate_by_host_module_and_time(run, store, workdir):
    for number, host in enumerate(("node17", "node18", "node17")):
        run(
            "publish",
            "--job-key",
            key(number),
            "--workdir",
            workdir,
            "--host",
            host,
            "--module-id",
            "org.example.align",
        )
    assert run("invalidate", "--host", "nobody", "--reason", "x").code == 1
    assert run("invalidate", "--host", "node17", "--until", "2020-01-01", "--reason", "x").code == 1
    assert run("invalidate", "--host", "node17", "--since", "never", "--reason", "x").code == 65
    ran = run(
        "--json", "invalidate", "--host", "node17", "--module", "align", "--since", "2020-01-01", "--reason", "ram"
    )
    assert sorted(entry["job_key"] for entry in ran.json["entries"]) == sorted([key(0), key(2)])
    assert [run("lookup", key(number)).code for number in range(3)] == [1, 0, 1]
    assert run("invalidate", "--module", "org.example.align", "--undo").code == 0
    assert [run("lookup", key(number)).code for number in range(3)] == [0, 0, 0]
    assert run("invalidate", key(), "--host", "x", "--reason", "x").code == 2
    assert run("invalidate", "--reason", "x").code == 2


# -- ls and schema


def test_ls(run, store, workdir):
    assert run("ls").out == b""
    assert run("--json", "ls").json == {"entries": []}
    assert run("--json", "ls", "blobs").json == {"blobs": []}
    run(
        "publish",
        "--job-key",
        f"{key()}:prep",
        "--workdir",
        workdir,
        "--host",
        "node17",
        "--by",
        "me",
        "--attempt",
        "a7",
    )
    (entry,) = run("--json", "ls").json["entries"]
    assert entry == {
        "job_key": f"{key()}:prep",
        "class": "any",
        "status": "recorded",
        "reason": None,
        "module": "align",
        "module_id": None,
        "schema": "align/result@1",
        "host": "node17",
        "platform": None,
        "attempt": "a7",
        "time": entry["time"],
        "by": "me",
        "size": entry["size"],
        "datasets": entry["datasets"],
    }
    assert run("ls").text == f"{key()}:prep  any  recorded  align  node17  {entry['time']}  me\n"
    assert run("ls", "--host", "node18").out == b""
    assert run("ls", "--since", "2020-01-01", "--module", "align").out != b""
    run("invalidate", f"{key()}:prep", "--reason", "bad", "--by", "you")
    (entry,) = run("--json", "ls", "entries").json["entries"]
    assert (entry["status"], entry["reason"], entry["by"]) == ("invalidated", "bad", "you")
    assert (entry["host"], entry["module"]) == ("node17", "align")
    blobs = run("--json", "ls", "blobs").json["blobs"]
    assert [set(blob) for blob in blobs] == [{"digest", "size", "time"}] * 4
    assert [blob["digest"] for blob in blobs] == sorted(blob["digest"] for blob in blobs)
    assert run("ls", "blobs").text.splitlines()[0].startswith(blobs[0]["digest"])
    assert run("ls", "blobs", "--host", "x").code == 2
    assert run("ls", "things").code == 2


def test_ls_shows_damage_and_goes_on(run, store, workdir):
    for number in range(3):
        run("publish", "--job-key", key(number), "--workdir", workdir)
    entry = store / "results" / key(1)[:2] / key(1) / "_@any"
    entry.chmod(0o644)
    entry.write_bytes(b"rubbish\n")
    listed = run("--json", "ls").json["entries"]
    assert sorted(each["status"] for each in listed) == ["corrupt", "recorded", "recorded"]
    assert len(run("ls").text.splitlines()) == 3


def test_ls_that_fails_on_the_way_is_still_one_document(run, store, workdir):
    for number in range(3):
        run("publish", "--job-key", key(number), "--workdir", workdir)
    last = max(os.listdir(store / "results"))
    (store / "results" / last).rename(store / "aside")
    (store / "results" / last).symlink_to("../aside")
    ran = run("--json", "ls")
    assert ran.code == 65
    assert ran.json["exit_code"] == 65
    assert isinstance(ran.json["entries"], list)
    assert "link to a directory" in ran.said


def test_what_could_steer_a_terminal_is_escaped(run, store, tmp_path):
    write_job(tmp_path / "w", {}, result(provenance={"host": "n\x1b[2J\n\u202eode"}))
    run("publish", "--job-key", key(), "--workdir", tmp_path / "w", "--by", "m\re")
    ran = run("ls")
    assert len(ran.text.splitlines()) == 1
    assert r"n\x1b[2J\n\u202eode" in ran.text
    assert r"m\re" in ran.text
    assert run("--json", "ls").json["entries"][0]["host"] == "n\x1b[2J\n\u202eode"


def test_schema(run):
    assert run("schema").text == "result-envelope-1\nspec-envelope-1\n"
    assert run("--json", "schema").json == {"schemas": ["result-envelope-1", "spec-envelope-1"]}
    for arguments in ((), ("--json",)):
        ran = run(*arguments, "schema", "spec-envelope-1")
        assert ran.json["$id"].endswith("/spec-envelope-1.schema.json")
    ran = run("schema", "nonsense")
    assert ran.code == 65
    assert "there are result-envelope-1, spec-envelope-1" in ran.said


# -- JSON on either side, and on errors


def test_json_after_the_command(run, store, workdir):
    assert run("stat", digest(b"x"), "--json").json["blobs"][0]["present"] is False
    assert run("publish", "--json", "--job-key", key(), "--workdir", workdir).json["recorded"] is True
    assert run("--json", "lookup", key(), "--json").json["status"] == "hit"
    assert run("ls", "--json").json["entries"]


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("get", digest(b"none"), "-o", "x"), 1),
        (("stat", "nonsense"), 65),
        (("stat",), 2),
        (("nonsense",), 2),
        (("publish", "--nonsense"), 2),
        (("key", "--module", "a.b", "--compat", "1", "none.json"), 65),
        (("--store", "none", "ls"), 69),
        (("--store", "ftp://host/x", "ls"), 69),
        (("--store", "file://elsewhere/x", "ls"), 65),
        (("fetch", key()), 1),
        (("--config", "none.toml", "ls"), 65),
    ],
)
@pytest.mark.parametrize("where", ["before", "after"])
def test_an_error_is_one_json_document(run, store, monkeypatch, arguments, code, where):
    if "--config" in arguments:
        monkeypatch.delenv("OARBANK_CAS_STORE")
    arguments = ("--json", *arguments) if where == "before" else (*arguments, "--json")
    ran = run(*arguments)
    assert ran.code == code
    assert set(ran.json) == {"error", "kind", "exit_code"}
    assert ran.json["exit_code"] == code
    assert ran.err != b""


def test_a_bug_is_not_a_miss(run, store, monkeypatch):
    def broken(*_, **__):
        raise ZeroDivisionError("oops")

    monkeypatch.setattr(Store, "lookup", broken)
    ran = run("--json", "lookup", key())
    assert ran.code == 70
    assert "oops" in ran.json["error"]
    assert "Traceback" in ran.said
    assert "this is a bug" in ran.said


def test_whoami_is_told_where_nobody_says_who(run, store, workdir, monkeypatch):
    def nobody():
        raise KeyError("no such user")

    monkeypatch.setattr("getpass.getuser", nobody)
    ran = run("--json", "publish", "--job-key", key(), "--workdir", workdir)
    assert ran.json["by"].startswith(f"{os.getuid()}@")


def test_a_class_is_looked_up_and_no_other(run, store, workdir):
    arguments = ("--job-key", key(), "--workdir", workdir, "--class", "linux-amd64", "--platform", "linux-amd64")
    run("publish", *arguments)
    assert run("lookup", key(), "--class", "linux-amd64").code == 0
    for other in ("linux", "amd64", "any"):
        assert run("lookup", key(), "--class", other).code == 1
    assert run("lookup", key(), "--class", "No Class").code == 65


def test_a_store_opened_by_a_program_and_the_command_line_agree(run, store, workdir):
    with Store.open(store) as opened:
        recorded, _ = opened.publish(key(), workdir, Origin("me"))
    assert run("lookup", key()).out == recorded.envelope


@pytest.mark.parametrize(
    "arguments",
    [
        ("--cache-bytes", "abc", "cache", "status"),
        ("--cache-bytes", "-5", "cache", "status"),
        ("--cache", "c", "cache", "trim", "--bytes", "much"),
        ("gc", "--max-bytes", "abc"),
        ("gc", "--max-bytes", "-1"),
        ("gc", "--keep-days", "-1"),
        ("gc", "--keep-newest", "1.5"),
        ("gc", "--keep-days", "nan"),
        ("pin", "name", "0" * 64, "--expires", "tomorrow"),
        ("verify", "--since", "yesterday"),
        ("attempt", "seal", ".", "--publish", "--expires", "soon"),
        ("--deadline-s", "nan", "ls"),
    ],
    ids=" ".join,
)
def test_a_wrong_value_of_an_option_is_a_wrong_command_line(run, arguments):
    ran = run(*arguments)
    assert ran.code == 2
    assert any(argument.encode() in ran.err for argument in (arguments[-1], arguments[1]))
