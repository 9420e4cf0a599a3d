"""Any arguments and any input: an exit code that means something, one JSON document, and nothing written outside."""

import io
import json
import os
import shutil
import sys
import threading

import pytest
from agent_kit import ORIGIN, digest, key, result, spec, tree, write_files, write_job
from hostile_documents import budget, hostile
from hypothesis import given
from hypothesis import strategies as st

from oarbank_cas import Store
from oarbank_cas.cli import main

pytestmark = pytest.mark.timeout(240)

CODES = {0, 1, 2, 65, 69, 73, 74, 75, 77}


@pytest.fixture
def here(fenced, monkeypatch):
    """A folder to stand in, with a store, a job and documents."""
    monkeypatch.setenv("HOME", str(fenced / "w/home"))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    monkeypatch.delenv("OARBANK_CAS_STORE", raising=False)
    (fenced / "w/here").mkdir(parents=True)
    monkeypatch.chdir(fenced / "w/here")
    write_job("job", {"a": b"a", "b/c": b"c"})
    with Store.init(".oarbank-cas")[0] as store:
        store.publish(key(), "job", ORIGIN)
    write_files(".", {"file": b"file", "empty": b"", "bad.toml": b"store = 7", "rubbish": bytes(range(256))})
    os.mkfifo("pipe")
    os.symlink("/dev/null", "null")
    os.symlink(fenced, "out")
    return fenced / "w/here"


def run(arguments, stdin=b""):
    with pytest.MonkeyPatch.context() as patch:
        out = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True)
        err = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", errors="backslashreplace", write_through=True)
        patch.setattr(sys, "argv", ["oarbank-cas", *arguments])
        patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin), encoding="utf-8"))
        patch.setattr(sys, "stdout", out)
        patch.setattr(sys, "stderr", err)
        with pytest.raises(SystemExit) as ended:
            main()
        return ended.value.code, out.buffer.getvalue(), err.buffer.getvalue()


FIRST = (
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
FLAGS = (
    "--class --compat --module --stage --job-key --workdir --result --platform --by --attempt --upload-only --host "
    "--max-inline-kb --module-id --since --until --reason --undo --dry-run --no-complete --session-s --json -v -q --"
)
# Nothing here leads out of the folder but by the links and dots that must not be followed where it matters.
WORDS = (
    "job file empty rubbish pipe null none - . any linux entries blobs 0 -1 2026-01-01 result-envelope-1 "
    "org.example.align align me job/result.json bad.toml"
)
WORD = st.one_of(
    st.sampled_from(
        [
            *FLAGS.split(),
            *WORDS.split(),
            key(),
            f"{key()}:prep",
            digest(b"a"),
            digest(b"none"),
            f"art:{digest(b'none')}",
        ]
    ),
    st.text(st.characters(exclude_characters="/\\.\x00", exclude_categories=("Cs",)), max_size=5),
    st.sampled_from([b"\xff", "-", "--", "--=", b"-\xff", "\n", "\x1b[2J", "k\u00e9y"]),
)
GLOBAL = st.sampled_from(["--json", "-v", "-q", "--config=bad.toml", "--store=.oarbank-cas", "--store="])
INPUT = st.sampled_from([b"", b"{}", b"\xff", key().encode()])


@budget(250)
@given(st.lists(GLOBAL, max_size=2), st.sampled_from(FIRST), st.lists(WORD, max_size=6), INPUT)
def test_any_arguments(here, options, command, words, stdin):
    code, out, err = run([*options, command, *map(os.fsdecode, words)], stdin)
    assert code in CODES, err
    assert b"Traceback" not in err
    if code not in (0, 1):
        assert err
    if "--json" in options and code in (2, 69):
        (line,) = out.splitlines()
        assert json.loads(line)["exit_code"] == code
    assert (here / "job/a").read_bytes() == b"a"


@budget(120)
@given(st.sampled_from(["publish", "record", "stage", "key", "lookup", "put"]), st.data())
def test_any_document(here, command, data):
    document = {
        "publish": result({"out": {"x": "a", "y": "b/c"}}),
        "record": result({"out": [{"path": "x", "digest": digest(b"a"), "size": 1}]}),
        "stage": json.loads(spec({"a": ("art:" + digest(b"none"), "in")})),
    }.get(command, {"a": [1, 2.5, "x"]})
    text = data.draw(hostile(document))
    shutil.rmtree("w2", ignore_errors=True)
    os.mkdir("w2")
    write_files("w2", {"a": b"a", "b/c": b"c", "result.json": text})
    arguments = {
        "publish": ["publish", "--job-key", key(1), "--workdir", "w2"],
        "record": ["record", "--job-key", key(2), "-"],
        "stage": ["stage", "-", "--workdir", "w2"],
        "key": ["key", "--module", "a.b", "--compat", "1", "-"],
        "lookup": ["lookup", "-"],
        "put": ["put", "-"],
    }[command]
    code, out, err = run(["--json", *arguments], text)
    assert code in CODES, err
    assert b"Traceback" not in err
    lines = out.splitlines()
    if command != "lookup":
        assert len(lines) == 1
    for line in lines:
        assert isinstance(json.loads(line), dict)


@pytest.mark.parametrize("command", ["publish", "record", "stage", "key"])
def test_documents_beyond_any_limit(here, command):
    os.mkdir("w2")
    with open("w2/result.json", "wb") as file:
        file.write(b"{" + b" " * 1000)
        file.truncate(64 * 2**20 + 1)
    arguments = {
        "publish": ["publish", "--job-key", key(1), "--workdir", "w2"],
        "record": ["record", "--job-key", key(2), "w2/result.json"],
        "stage": ["stage", "w2/result.json", "--workdir", "w2"],
        "key": ["key", "--module", "a.b", "--compat", "1", "w2/result.json"],
    }[command]
    code, _, err = run(arguments)
    assert code == 65
    assert b"has more than 67108864 bytes" in err


@pytest.mark.timeout(30)
@pytest.mark.parametrize("path", ["pipe", "null", ".", "/dev/zero", "out"])
@pytest.mark.parametrize("command", ["publish", "put"])
def test_files_that_are_none(here, command, path):
    arguments = {
        "publish": ["publish", "--job-key", key(1), "--workdir", "job", "--result", path],
        "put": ["put", path],
    }[command]
    code, out, err = run(arguments)
    assert (code, out) == (65, b"")
    assert f"{path}: is a ".encode() in err


READERS = {
    "record": ["record", "--job-key", key(2)],
    "stage": ["stage", "--workdir", "job"],
    "key": ["key", "--module", "a.b", "--compat", "1"],
}


@pytest.mark.timeout(30)
@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("null", "is not JSON"),
        (".", ".: cannot be read: Is a directory"),
        ("out", "out: cannot be read: Is a directory"),
        ("none", "none: cannot be read: No such file"),
        ("/dev/zero", "/dev/zero: has more than 67108864 bytes"),
        ("rubbish", "is not UTF-8"),
    ],
)
@pytest.mark.parametrize("command", READERS)
def test_documents_that_are_none(here, command, path, message):
    code, out, err = run([*READERS[command], path])
    assert (code, out) == (65, b"")
    assert message.encode() in err


@pytest.mark.timeout(30)
@pytest.mark.parametrize("command", READERS)
def test_a_document_may_come_through_a_pipe(here, command):
    document = {
        "record": result({"out": [{"path": "x", "digest": digest(b"a"), "size": 1}]}),
        "stage": json.loads(spec()),
        "key": {"seed": 1},
    }[command]

    def write():
        with open("pipe", "w") as pipe:
            json.dump(document, pipe)

    writer = threading.Thread(target=write)
    writer.start()
    code, _, err = run([*READERS[command], "pipe"])
    writer.join()
    assert code == 0, err


def test_a_tree_of_odd_things_is_left_alone(here):
    before = tree("job")
    for arguments in (["stat", "x"], ["ls"], ["lookup", key()], ["fetch", key(), "-o", "job"]):
        run(arguments)
    assert {path: tree("job")[path] for path in before} == before
