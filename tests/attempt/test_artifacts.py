import hashlib
import os
import threading
import time
from pathlib import Path

import pytest
from attempt_model import line_of, lines_of, quick
from hypothesis import given
from hypothesis import strategies as st

from oarbank_cas import attempt
from oarbank_cas.attempt import (
    INLINE_CAP,
    Declaration,
    artifacts,
    content,
    declare,
    digest_file,
    progress,
    read_content,
    sealed,
)
from oarbank_cas.attempt.view import DirectoryAttempt
from oarbank_cas.errors import InvalidInputError, NotFoundError, PermissionDeniedError, StorageIOError


@pytest.fixture
def job(tmp_path):
    declare(tmp_path, Declaration.records("eval", "eval.jsonl").task(4).describe("losses"))
    declare(tmp_path, Declaration.json("warm", "warm.json"))
    declare(tmp_path, Declaration.json("later", "later.json"))
    (tmp_path / "results.jsonl").write_bytes(lines_of([1, 2]))
    (tmp_path / "eval.jsonl").write_bytes(lines_of([3]) + b'{"torn')
    (tmp_path / "warm.json").write_bytes(b'{"w": 1.0}')
    (tmp_path / "undeclared.json").write_bytes(b"{}")
    return tmp_path


def sha(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_all(job):
    assert [one.name for one in attempt.all(job)] == ["results", "eval", "warm", "later"]
    assert attempt.all(job)[0] == Declaration("results", "results.jsonl", "records", None, "")
    served, error = attempt.all_or_results(job)
    assert (served, error) == (attempt.all_artifacts(job), None)


def test_progress_and_sealed(job):
    found = progress(job)
    assert found.problems == []
    assert found.artifact_index == {
        "results": {
            "format": "records",
            "size": (job / "results.jsonl").stat().st_size,
            "task": None,
            "description": "",
        },
        "eval": {"format": "records", "size": (job / "eval.jsonl").stat().st_size, "task": 4, "description": "losses"},
        "warm": {"format": "json", "size": 10, "task": None, "description": ""},
    }
    seal = sealed(job)
    assert seal.problems == []
    assert seal.artifacts == {"results": "results.jsonl", "eval": "eval.jsonl", "warm": "warm.json"}
    assert seal.artifact_index == {
        name: {**entry, "sha256": sha(job / seal.artifacts[name])} for name, entry in found.artifact_index.items()
    }
    assert seal.to_json() == {
        "artifacts": seal.artifacts,
        "runner": {"artifact_index": seal.artifact_index},
        "problems": [],
    }


def test_an_empty_attempt(tmp_path):
    assert sealed(tmp_path) == attempt.Sealed({}, {}, [])
    assert progress(tmp_path) == attempt.Progress({}, [])


@pytest.mark.parametrize("kind", ["link", "link to nothing", "directory", "fifo", "device"])
@pytest.mark.parametrize("file", ["warm.json", "results.jsonl"])
def test_what_is_no_regular_file_is_not_listed(job, kind, file):
    path = job / file
    path.unlink()
    if kind == "link":
        path.symlink_to(job / "undeclared.json")
    elif kind == "link to nothing":
        path.symlink_to(job / "nothing")
    elif kind == "directory":
        path.mkdir()
    elif kind == "fifo":
        os.mkfifo(path)
    else:
        try:
            os.mknod(path, 0o20666, os.makedev(1, 3))
        except PermissionError:
            pytest.skip("only root makes devices")
    name = {"warm.json": "warm", "results.jsonl": "results"}[file]
    for found in (progress(job), sealed(job)):
        assert sorted(found.artifact_index) == sorted({"eval", "warm", "results"} - {name})
        assert len(found.problems) == 1
        assert found.problems[0].startswith(f"{name} is not listed: ")
    for read in (lambda: content(path, "json"), lambda: content(path, "records"), lambda: digest_file(path)):
        with pytest.raises(InvalidInputError):
            read()


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads anything")
def test_what_cannot_be_read_is_not_listed(job):
    (job / "warm.json").chmod(0)
    assert "warm" in progress(job).artifact_index
    seal = sealed(job)
    assert sorted(seal.artifacts) == ["eval", "results"]
    assert "check its owner and mode" in seal.problems[0]


def test_an_unreadable_file_is_a_problem_and_no_failure(job, monkeypatch):
    real = artifacts.reading

    def refuse(path):
        if str(path).endswith("warm.json"):
            raise PermissionDeniedError("no")
        return real(path)

    monkeypatch.setattr(artifacts, "reading", refuse)
    seal = sealed(job)
    assert (sorted(seal.artifacts), seal.problems) == (["eval", "results"], ["warm is not listed: no"])


def test_a_file_that_vanishes_while_it_is_sealed(job, monkeypatch):
    real = artifacts._digests
    monkeypatch.setattr(artifacts, "_digests", lambda paths: ((job / "warm.json").unlink(), real(paths))[1])
    seal = sealed(job)
    assert sorted(seal.artifacts) == ["eval", "results"]
    assert len(seal.problems) == 1


@pytest.mark.parametrize("how", ["grow", "shrink", "edit"])
@pytest.mark.parametrize("times", [1, 99])
def test_a_file_that_changes_while_it_is_sealed_is_noticed(job, monkeypatch, how, times):
    path = job / "warm.json"
    path.write_bytes(b"x" * 3_000_000)
    left = [times]
    real = artifacts.FileSource.read_at

    def read_at(self, offset, size):
        data = real(self, offset, size)
        if self.name == str(path) and offset == 0 and left[0]:
            left[0] -= 1
            with path.open("r+b") as file:
                if how == "grow":
                    file.seek(0, os.SEEK_END)
                    file.write(b"more")
                elif how == "shrink":
                    file.truncate(path.stat().st_size - 10)
                else:
                    file.write(b"y")
        return data

    monkeypatch.setattr(artifacts.FileSource, "read_at", read_at)
    seal = sealed(job)
    if times == 1:  # it stands still at the second look
        assert seal.problems == []
        assert seal.artifact_index["warm"]["sha256"] == sha(path)
        assert seal.artifact_index["warm"]["size"] == path.stat().st_size
    else:
        assert "warm" not in seal.artifacts
        assert "changed while it was read" in seal.problems[0]
    assert sorted(set(seal.artifacts) - {"warm"}) == ["eval", "results"]


def test_each_file_is_hashed_once(job, monkeypatch):
    hashed = []
    real = artifacts.digest_file
    monkeypatch.setattr(artifacts, "digest_file", lambda path: (hashed.append(Path(path).name), real(path))[1])
    sealed(job)
    assert sorted(hashed) == ["eval.jsonl", "results.jsonl", "warm.json"]


def test_files_are_hashed_side_by_side(job, monkeypatch):
    monkeypatch.setattr(artifacts.os, "cpu_count", lambda: 3)
    together = threading.Barrier(3, timeout=20)
    real = artifacts.digest_file
    monkeypatch.setattr(artifacts, "digest_file", lambda path: (together.wait(), real(path))[1])
    assert len(sealed(job).artifacts) == 3


def test_sealing_goes_on_without_threads(job, monkeypatch):
    monkeypatch.setattr(
        threading.Thread, "start", lambda self: (_ for _ in ()).throw(RuntimeError("can't start new thread"))
    )
    assert len(sealed(job).artifacts) == 3


@quick(30)
@given(
    st.sampled_from([0, 1, 1000, 1024 * 1024 - 1, 1024 * 1024, 1024 * 1024 + 1, 2 * 1024 * 1024 + 7]),
    st.binary(min_size=1, max_size=9),
)
def test_digest_file(size, pattern):
    import tempfile

    data = (pattern * (size // len(pattern) + 1))[:size]
    with tempfile.NamedTemporaryFile() as file:
        file.write(data)
        file.flush()
        os.utime(file.name, (0, 0))
        assert digest_file(file.name) == (size, hashlib.sha256(data).hexdigest())


def test_a_file_written_a_moment_ago_is_left_for_a_tick(tmp_path, monkeypatch):
    """Else an edit within the same tick of the clock would leave the times as they were."""
    waits = []
    monkeypatch.setattr(artifacts.time, "sleep", waits.append)
    path = tmp_path / "x"
    path.write_bytes(b"x")
    status = path.stat()
    changed = max(status.st_mtime_ns, status.st_ctime_ns)
    for age_ns, waited in ((0, [0.02]), (15_000_000, [0.005]), (20_000_000, []), (10**12, [])):
        monkeypatch.setattr(artifacts.time, "time_ns", lambda age_ns=age_ns: changed + age_ns)
        waits.clear()
        assert digest_file(path).size == 1
        assert waits == pytest.approx(waited)


def test_digest_of_a_missing_file(tmp_path):
    with pytest.raises(NotFoundError):
        digest_file(tmp_path / "none")


@pytest.mark.parametrize("extra", [-1, 0, 1])
def test_a_document_at_the_cap(tmp_path, extra):
    path = tmp_path / "x.json"
    path.write_bytes(b"x" * (INLINE_CAP + extra))
    if extra <= 0:
        assert content(path, "json") == path.read_bytes()
    else:
        with pytest.raises(InvalidInputError, match="copy the file from the attempt directory, or fetch"):
            content(path, "json")


def test_documents_come_as_they_are(tmp_path):
    path = tmp_path / "x.json"
    for data in (b"", b"not json", b"\xff\x00", b'{"a": 1.0}'):
        path.write_bytes(data)
        assert content(path, "json") == data


def test_a_journal_is_cut_at_its_last_complete_record(tmp_path):
    path = tmp_path / "j.jsonl"
    whole = lines_of([1, 2])
    more = lines_of([3])
    for cut in range(len(more)):
        path.write_bytes(whole + more[:cut])
        assert content(path, "records") == whole
        assert read_content(path, "records").size == len(whole) + cut
    path.write_bytes(b"torn")
    assert content(path, "records") == b""
    path.write_bytes(b"")
    assert content(path, "records") == b""


@pytest.mark.parametrize("extra", [-1, 0, 1])
def test_a_journal_at_the_cap(tmp_path, extra):
    path = tmp_path / "j.jsonl"
    first = lines_of([1])
    rest = INLINE_CAP + extra - len(first)
    last = line_of('"' + "x" * (rest - len(line_of('""'))) + '"')
    data = first + last
    assert len(data) == INLINE_CAP + extra
    path.write_bytes(data + lines_of([2]))
    assert content(path, "records") == (data if extra <= 0 else first)
    path.write_bytes(last + b"x" * 10 + b"\n")
    path.write_bytes(b"x" * INLINE_CAP + b"\n" + first)
    with pytest.raises(InvalidInputError, match="page"):
        content(path, "records")


def test_content_of_other_formats_and_missing_files(tmp_path):
    for wrong in ("binary", "text", "", None):
        with pytest.raises(InvalidInputError, match="records or json"):
            content(tmp_path / "x", wrong)
    for right in ("records", "json"):
        with pytest.raises(NotFoundError):
            content(tmp_path / "x", right)


def test_a_document_replaced_atomically_is_never_mixed(tmp_path):
    path = tmp_path / "x.json"
    documents = [bytes([65 + n]) * 200_000 for n in range(5)]
    path.write_bytes(documents[0])
    stop = threading.Event()

    def replace():
        n = 0
        while not stop.is_set():
            n += 1
            (tmp_path / "new").write_bytes(documents[n % 5])
            (tmp_path / "new").replace(path)

    writer = threading.Thread(target=replace)
    writer.start()
    try:
        until = time.monotonic() + 0.5
        while time.monotonic() < until:
            assert content(path, "json") in documents
    finally:
        stop.set()
        writer.join()


def test_a_document_written_in_place_is_refused_while_it_changes(tmp_path, monkeypatch):
    path = tmp_path / "x.json"
    path.write_bytes(b"{}")
    real = artifacts.FileSource.read_at
    left = [1]

    def read_at(self, offset, size):
        data = real(self, offset, size)
        if left[0]:
            left[0] -= 1
            with path.open("ab") as file:
                file.write(b"x")
        return data

    monkeypatch.setattr(artifacts.FileSource, "read_at", read_at)
    assert content(path, "json") == b"{}x"
    left[0] = 99
    with pytest.raises(StorageIOError, match="replaced as a whole"):
        content(path, "json")


def test_a_view_of_a_directory(job):
    view = DirectoryAttempt(job)
    listed, problems = view.listing()
    assert problems == []
    assert [(one.name, size) for one, size in listed] == [
        ("results", (job / "results.jsonl").stat().st_size),
        ("eval", (job / "eval.jsonl").stat().st_size),
        ("warm", 10),
        ("later", None),
    ]
    assert view.content("warm").data == b'{"w": 1.0}'
    assert view.content("eval").data == lines_of([3])
    assert view.page("results", 1, 5).payloads == [2]
    with pytest.raises(InvalidInputError, match="cat"):
        view.page("warm", 0, 1)
    with pytest.raises(InvalidInputError, match="cat"):
        view.follow("warm", 0)
    with pytest.raises(NotFoundError, match="there are: results, eval, warm, later"):
        view.content("undeclared")
    with pytest.raises(NotFoundError, match=r"later\.json"):
        view.content("later")
    with pytest.raises(NotFoundError):
        DirectoryAttempt(job / "none")
    (job / "artifacts.jsonl").write_bytes(b"junk\n")
    assert view.page("results", 0, 5).available == 2
    from oarbank_cas.errors import CorruptError

    with pytest.raises(CorruptError):
        view.content("warm")


def test_importing_is_light():
    import subprocess
    import sys

    heavy = ("pydantic", "click", "rich", "fsspec", "asyncio", "concurrent.futures", "ctypes")
    code = f"import sys, oarbank_cas.attempt; print([one for one in {heavy} if one in sys.modules])"
    done = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
