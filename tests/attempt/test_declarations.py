import json
import os
from pathlib import Path

import pytest
from attempt_model import line_of, quick
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from oarbank_cas import attempt
from oarbank_cas.attempt import Declaration, declarations, declare
from oarbank_cas.attempt import declarations as declarations_function
from oarbank_cas.errors import CasError, ConflictError, CorruptError, InvalidInputError, NotFoundError


def test_the_constants():
    assert attempt.DECLARATIONS == "artifacts.jsonl"
    assert attempt.FORMATS == ("records", "json")
    assert attempt.INLINE_CAP == 1_048_576
    assert attempt.MAX_DECLARATIONS == 4096
    assert attempt.MAX_DESCRIPTION == 200
    assert attempt.MAX_PAGE == 10_000
    assert attempt.RESULTS == "results"
    assert {
        "results.jsonl",
        "artifacts.jsonl",
        "run.json",
        "resolved.json",
        "provenance.json",
        "manifest.json",
        "result.json",
        "spec.json",
        "control.json",
        "failure.json",
        "events.ndjson",
        "phase",
        "inputs",
    } <= set(attempt.RESERVED)
    assert attempt.all is attempt.all_artifacts
    assert set(attempt.__all__) <= set(dir(attempt))


def test_building():
    one = Declaration.records("eval", "eval.jsonl").task(3).describe("losses")
    assert one == Declaration("eval", "eval.jsonl", "records", 3, "losses")
    assert Declaration.json("warm_start", "warm.json") == Declaration("warm_start", "warm.json", "json", None, "")
    assert one.check() is None


@pytest.mark.parametrize("name", ["a", "a0_", "a" * 64, "result", "results2", "json", "records"])
def test_good_names(name):
    Declaration.json(name, "f.json").check()


@pytest.mark.parametrize(
    "name",
    [
        "",
        "A",
        "é",
        "0a",
        "_a",
        "a-b",
        "a.b",
        "a b",
        "a" * 65,
        "results",
        "a\n",
        "\n",
        "a\0",
        "\u0430",
        "a\u0663",
        None,
        1,
        b"a",
        ["a"],
    ],
)
def test_bad_names(name):
    with pytest.raises(InvalidInputError) as caught:
        Declaration(name, "f.json", "json").check()
    assert caught.value.where == "name"


@pytest.mark.parametrize(
    "file",
    [
        "eval.jsonl",
        "a",
        "A.JSON",
        "results2.jsonl",
        "lock",
        "tmp.json",
        "x.lock.json",
        "spec.jsonl",
        "a.b.c",
        "_x",
        "0",
        "a" * 100,
    ],
)
def test_good_files(file):
    Declaration.json("a", file).check()


@pytest.mark.parametrize(
    "file",
    [
        "",
        ".",
        "..",
        ".x",
        ".x.json",
        "/",
        "/x",
        "a/b",
        "a/",
        "../x",
        "a\\b",
        "..\\x",
        "c:",
        "c:x",
        "x:stream",
        "a\0",
        "a\n",
        "a\x1b",
        "x ",
        "x.",
        " x",
        "x.lock",
        "x.LOCK",
        "X.Tmp",
        "x.tmp",
        "a.jsonl.lock",
        "con",
        "CON",
        "con.json",
        "NUL.txt",
        "com1",
        "lpt9.x",
        "aux",
        "prn.jsonl",
        "conin$",
        "results.jsonl",
        "Results.jsonl",
        "RESULTS.JSONL",
        "artifacts.jsonl",
        "Artifacts.JSONL",
        "artifacts.lock",
        "run.json",
        "RUN.json",
        "resolved.json",
        "provenance.json",
        "manifest.json",
        "Manifest.json",
        "result.json",
        "spec.json",
        "\u017fpec.json",
        "control.json",
        "failure.json",
        "events.ndjson",
        "phase",
        "PHASE",
        "inputs",
        "Inputs",
        "tmp",
        "a" * 101,
        "é.json",
        "e\u0301.json",
        "\ud800",
        "x\u2028y",
        "*",
        "a?b",
        None,
        3,
        b"x",
        ["x"],
    ],
)
def test_bad_files(file):
    with pytest.raises(InvalidInputError) as caught:
        Declaration("a", file, "json").check()
    assert caught.value.where == "file"


@pytest.mark.parametrize("artifact_format", ["binary", "text", "", "JSON", "Records", None, 1, ["json"]])
def test_bad_formats(artifact_format):
    with pytest.raises(InvalidInputError, match="records or json") as caught:
        Declaration("a", "f", artifact_format).check()
    assert caught.value.where == "format"


@pytest.mark.parametrize("task", [-1, 2**53 + 1, True, False, 1.0, "1", [1]])
def test_bad_tasks(task):
    with pytest.raises(InvalidInputError) as caught:
        Declaration.json("a", "f").task(task).check()
    assert caught.value.where == "task_id"


def test_tasks_at_the_ends():
    Declaration.json("a", "f").task(0).check()
    Declaration.json("a", "f").task(2**53).check()


@pytest.mark.parametrize(
    "text",
    [
        "a\nb",
        "a\r",
        "a\x85b",
        "a\u2028b",
        "a\u2029b",
        "\x0b",
        "\x0c",
        "\x1b[31m",
        "\0",
        "\x9b",
        "\t",
        "\ud800",
        None,
        1,
        b"x",
    ],
)
def test_bad_descriptions(text):
    with pytest.raises(InvalidInputError) as caught:
        Declaration.json("a", "f").describe(text).check()
    assert caught.value.where == "description"


def test_a_description_is_measured_in_bytes():
    for text, bad in (("x" * 200, "x" * 201), ("é" * 100, "é" * 100 + "x"), ("😀" * 50, "😀" * 51)):
        Declaration.json("a", "f").describe(text).check()
        with pytest.raises(InvalidInputError, match="bytes"):
            Declaration.json("a", "f").describe(bad).check()


def test_declare_and_again(tmp_path):
    one = Declaration.records("eval", "eval.jsonl").task(2).describe('a "quoted" é')
    assert declarations(tmp_path) == []
    assert declare(tmp_path, one) is True
    first = (tmp_path / "artifacts.jsonl").read_bytes()
    assert declare(str(tmp_path), one) is False
    assert (tmp_path / "artifacts.jsonl").read_bytes() == first
    assert declarations(tmp_path) == [one]
    for other in [
        Declaration.json("eval", "eval.jsonl").task(2).describe('a "quoted" é'),
        one.task(3),
        one.describe(""),
        Declaration.records("eval", "other.jsonl"),
        Declaration.records("other", "eval.jsonl"),
        Declaration.records("other", "EVAL.jsonl"),
    ]:
        with pytest.raises(ConflictError, match="declared already"):
            declare(tmp_path, other)
    assert (tmp_path / "artifacts.jsonl").read_bytes() == first


def test_the_written_line_is_pinned(tmp_path):
    declare(tmp_path, Declaration.records("eval", "eval.jsonl"))
    line = json.loads((tmp_path / "artifacts.jsonl").read_bytes())
    assert line["schema_version"] == 1
    assert (
        line["payload_json"] == '{"name":"eval","file":"eval.jsonl","format":"records","task_id":null,"description":""}'
    )


def test_a_repeated_declaration_is_flushed_too(tmp_path, monkeypatch):
    """Whoever wrote it may have died before it was on the disk."""
    from oarbank_cas.attempt import journal

    one = Declaration.json("a", "a.json")
    declare(tmp_path, one)
    flushed = []
    monkeypatch.setattr(journal, "flush_file", lambda fd, path: flushed.append("file"))
    monkeypatch.setattr(journal, "flush_directory", lambda path: flushed.append("directory"))
    assert declare(tmp_path, one) is False
    assert flushed == ["file", "directory"]


def members(**changes):
    found = {"name": "a", "file": "a.json", "format": "json", "task_id": None, "description": ""} | changes
    return {key: value for key, value in found.items() if value is not ...}


def declared(*all_members, version=1):
    return b"".join(line_of(json.dumps(one), version) for one in all_members)


@pytest.mark.parametrize(
    "data",
    [
        declared(members()),
        declared(members(task_id=...)),
        declared(members(description=...)),
        declared(members(task_id=..., description=...)),
        declared(members(unit="seconds")),
        b"\n\r\n" + declared(members()) + b"  \n",
        declared(members()).replace(b"\n", b"\r\n"),
        declared(members()) + b'{"torn',
        declared(members()) + declared(members(name="b", file="b"))[:-1],
        declared(members()) + b"\x00" * 1000,
    ],
)
def test_files_of_other_writers(tmp_path, data):
    (tmp_path / "artifacts.jsonl").write_bytes(data)
    assert declarations(tmp_path) == [Declaration.json("a", "a.json")]


BROKEN = {
    "junk": (b"junk\n", CorruptError),
    "nul": (b"\x00" * 300 + b"\n", CorruptError),
    "invalid utf-8": (declared(members()).replace(b"json", b"js\xff"), CorruptError),
    "wrong checksum": (line_of(json.dumps(members()), checksum="0" * 64), CorruptError),
    "duplicate outer key": (declared(members()).replace(b"{", b'{"schema_version": 1, ', 1), CorruptError),
    "duplicate inner key": (line_of('{"name":"a","name":"b","file":"f","format":"json"}'), InvalidInputError),
    "version 0": (declared(members(), version=0), InvalidInputError),
    "version 2": (declared(members(), version=2), InvalidInputError),
    "no object": (line_of("[]"), InvalidInputError),
    "deep": (line_of('{"a":' * 900 + "1" + "}" * 900), InvalidInputError),
    "no name": (declared(members(name=...)), InvalidInputError),
    "no file": (declared(members(file=...)), InvalidInputError),
    "no format": (declared(members(format=...)), InvalidInputError),
    "bad name": (declared(members(name="A")), InvalidInputError),
    "null name": (declared(members(name=None)), InvalidInputError),
    "bad file": (declared(members(file="../a")), InvalidInputError),
    "reserved file": (declared(members(file="Spec.json")), InvalidInputError),
    "bad format": (declared(members(format="binary")), InvalidInputError),
    "list format": (declared(members(format=["json"])), InvalidInputError),
    "bad task": (declared(members(task_id="1")), InvalidInputError),
    "float task": (declared(members(task_id=1.0)), InvalidInputError),
    "null description": (declared(members(description=None)), InvalidInputError),
    "two lines": (declared(members(description="a\nb")), InvalidInputError),
    "name twice": (declared(members(), members(file="b.json")), InvalidInputError),
    "file twice": (declared(members(), members(name="b")), InvalidInputError),
    "file twins": (declared(members(), members(name="b", file="A.JSON")), InvalidInputError),
    "the same twice": (declared(members(), members()), InvalidInputError),
    "built in": (declared(members(name="results", file="r.jsonl")), InvalidInputError),
    "5,000": (declared(*(members(name=f"n{i}", file=f"f{i}") for i in range(5000))), InvalidInputError),
    "4,097": (declared(*(members(name=f"n{i}", file=f"f{i}") for i in range(4097))), InvalidInputError),
    "too large": (declared(members()) + (b" " * 1023 + b"\n") * 16 * 1024, InvalidInputError),
    "100 MB line": (None, InvalidInputError),
}


@pytest.mark.parametrize("case", BROKEN)
def test_broken_files_are_not_trusted_and_not_written_to(tmp_path, case):
    data, error = BROKEN[case]
    path = tmp_path / "artifacts.jsonl"
    if data is None:
        with path.open("wb") as file:
            file.truncate(100_000_000)
            file.seek(100_000_000)
            file.write(b"\n")
    else:
        path.write_bytes(data + b'{"torn')
    before = path.stat()
    (tmp_path / "results.jsonl").write_bytes(line_of("1"))
    (tmp_path / "a.json").write_bytes(b"{}")
    with pytest.raises(error) as caught:
        declarations(tmp_path)
    assert str(path) in str(caught.value)
    assert len(str(caught.value)) < 700
    with pytest.raises(error):
        attempt.all_artifacts(tmp_path)
    with pytest.raises(error):
        declare(tmp_path, Declaration.json("new", "new.json"))
    assert (path.stat().st_size, path.stat().st_mtime_ns) == (before.st_size, before.st_mtime_ns)
    served, why = attempt.all_or_results(tmp_path)
    assert [one.name for one in served] == ["results"]
    assert type(why) is error
    assert list(attempt.progress(tmp_path).artifact_index) == ["results"]
    assert len(attempt.progress(tmp_path).problems) == 1
    seal = attempt.sealed(tmp_path)
    assert seal.artifacts == {"results": "results.jsonl"}
    assert len(seal.problems) == 1


def test_as_many_as_allowed_and_no_more(tmp_path):
    path = tmp_path / "artifacts.jsonl"
    path.write_bytes(declared(*(members(name=f"n{i}", file=f"f{i}") for i in range(4095))))
    assert declare(tmp_path, Declaration.json("last", "last.json"))
    before = path.read_bytes()
    assert len(declarations(tmp_path)) == 4096
    assert declare(tmp_path, Declaration.json("last", "last.json")) is False
    with pytest.raises(InvalidInputError, match="4096"):
        declare(tmp_path, Declaration.json("more", "more.json"))
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    ("tail", "kept"),
    [
        (declared(members(name="b", file="b"))[:-1], True),
        (declared(members(name="b", file="b"))[:-2], False),
        (declared(members())[:-1], False),  # whole, but it would be the second of its name
        (declared(members(name="b", file="A.json"))[:-1], False),
        (declared(members(name="b", file="../b"))[:-1], False),
        (declared(members(name="b", file="b"), version=2)[:-1], False),
        (b"\x00" * 5000, False),
        (b" ", False),
    ],
)
def test_a_torn_tail_is_ended_before_a_declaration(tmp_path, tail, kept):
    path = tmp_path / "artifacts.jsonl"
    path.write_bytes(declared(members()) + tail)
    assert declare(tmp_path, Declaration.json("c", "c"))
    assert [one.name for one in declarations(tmp_path)] == (["a", "b", "c"] if kept else ["a", "c"])


def test_the_declaration_in_the_torn_tail_counts(tmp_path):
    (tmp_path / "artifacts.jsonl").write_bytes(declared(members())[:-1])
    assert declare(tmp_path, Declaration.json("a", "a.json")) is False
    (tmp_path / "artifacts.jsonl").write_bytes(declared(members())[:-1])
    with pytest.raises(ConflictError):
        declare(tmp_path, Declaration.records("a", "a.json"))


@pytest.mark.parametrize("cut", [0, 1, 60, 150])
def test_a_torn_tail_of_the_4097th_is_cut(tmp_path, cut):
    path = tmp_path / "artifacts.jsonl"
    full = declared(*(members(name=f"n{i}", file=f"f{i}") for i in range(4096)))
    path.write_bytes(full + declared(members())[: -1 - cut])
    assert declare(tmp_path, Declaration.json("n5", "f5")) is False
    assert path.read_bytes() == full


@pytest.mark.parametrize("kind", ["link", "directory", "fifo"])
def test_a_declaration_file_that_is_none(tmp_path, kind):
    path = tmp_path / "artifacts.jsonl"
    if kind == "link":
        (tmp_path / "elsewhere").write_bytes(declared(members()))
        path.symlink_to(tmp_path / "elsewhere")
    elif kind == "directory":
        path.mkdir()
    else:
        os.mkfifo(path)
    with pytest.raises(InvalidInputError):
        declarations(tmp_path)
    with pytest.raises(InvalidInputError):
        declare(tmp_path, Declaration.json("b", "b"))
    assert attempt.all_or_results(tmp_path)[1] is not None


def test_directories_that_are_none(tmp_path):
    (tmp_path / "file").touch()
    for directory, error in [
        (tmp_path / "none", NotFoundError),
        (tmp_path / "file", InvalidInputError),
        ("x\0", InvalidInputError),
    ]:
        with pytest.raises(error):
            declarations(directory)
        with pytest.raises(error):
            declare(directory, Declaration.json("b", "b"))
        assert type(attempt.all_or_results(directory)[1]) is error
        assert attempt.sealed(directory).problems
        assert attempt.progress(directory).problems
    assert not (tmp_path / "none").exists()


def test_a_bad_declaration_touches_nothing(tmp_path):
    with pytest.raises(InvalidInputError):
        declare(tmp_path, Declaration("a", "../a", "json"))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_directory_that_may_not_be_written(tmp_path):
    from oarbank_cas.errors import PermissionDeniedError

    tmp_path.chmod(0o555)
    with pytest.raises(PermissionDeniedError):
        declare(tmp_path, Declaration.json("b", "b"))


def test_new_files_obey_the_umask(tmp_path):
    before = os.umask(0o027)
    try:
        declare(tmp_path, Declaration.json("b", "b"))
    finally:
        os.umask(before)
    assert {path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == {0o640}


class DeclareMachine(RuleBasedStateMachine):
    """`declare` and `declarations` beside a list."""

    def __init__(self):
        super().__init__()
        import tempfile

        self.directory = tempfile.TemporaryDirectory()
        self.model = []

    def teardown(self):
        self.directory.cleanup()

    @rule(
        name=st.sampled_from(["a", "b", "c", "results", "A"]),
        file=st.sampled_from(["a", "A", "b", "c", "spec.json", "x.tmp", "d/e"]),
        kind=st.sampled_from(["records", "json", "text"]),
        task=st.sampled_from([None, 1, -1]),
        text=st.sampled_from(["", "x", "x\ny"]),
    )
    def declare(self, name, file, kind, task, text):
        new = Declaration(name, file, kind, task, text)
        bad = (
            name in {"results", "A"}
            or file in {"spec.json", "x.tmp", "d/e"}
            or kind == "text"
            or task == -1
            or "\n" in text
        )
        if bad:
            expected = InvalidInputError
        elif new in self.model:
            expected = False
        elif any(one.name == name or one.file.lower() == file.lower() for one in self.model):
            expected = ConflictError
        else:
            expected = True
            self.model.append(new)
        try:
            got = declare(self.directory.name, new)
        except CasError as error:
            got = type(error)
        assert got is expected

    @rule(cut=st.integers(1, 200))
    def tear(self, cut):
        with Path(self.directory.name, "artifacts.jsonl").open("ab") as file:
            file.write(declared(members(name="zz", file="zz"))[: -1 - cut])

    @invariant()
    def same(self):
        assert declarations_function(self.directory.name) == self.model
        assert [one.name for one in attempt.all(self.directory.name)] == ["results", *(one.name for one in self.model)]


TestDeclareMachine = DeclareMachine.TestCase
TestDeclareMachine.settings = quick(25)


@quick(100)
@given(
    st.binary(max_size=400)
    | st.lists(st.sampled_from([declared(members()), declared(members(name="b", file="b")), b"\n", b"{", b"x\n"])).map(
        b"".join
    )
)
def test_fuzz(data):
    import tempfile

    with tempfile.TemporaryDirectory() as directory:
        Path(directory, "artifacts.jsonl").write_bytes(data)
        served, error = attempt.all_or_results(directory)
        assert served[0].name == "results"
        assert error is None or len(served) == 1
        attempt.sealed(directory)
        before = Path(directory, "artifacts.jsonl").read_bytes()
        try:
            declare(directory, Declaration.json("zz", "zz"))
        except CasError:
            assert error is not None
            assert Path(directory, "artifacts.jsonl").read_bytes() == before
        else:
            assert error is None
            assert declarations(directory)[: len(served) - 1] == served[1:]
