"""A verification that ends early goes on where it was, finds the same, and believes no file that is not its own."""

import sqlite3

import pytest
from operators_kit import kinds, record

from oarbank_cas import layout
from oarbank_cas.errors import ConflictError, InvalidInputError, UnavailableError
from oarbank_cas.verify import Options, checks
from oarbank_cas.verify import run as run_module
from oarbank_cas.verify.notebook import Notebook


@pytest.fixture
def state(tmp_path):
    return tmp_path / "verify.state"


@pytest.fixture
def eager(monkeypatch):
    """Checkpoints at every step, and small batches."""
    monkeypatch.setattr(run_module, "_CHECKPOINT_S", 0)
    monkeypatch.setattr("oarbank_cas.verify.batches._BATCH_ITEMS", 4)


class Stop(BaseException):
    pass


def break_off(monkeypatch, after):
    """Break off after so many blobs were read."""
    left = [after]
    real = checks.check_bytes

    def check(*args, **kwargs):
        if left[0] == 0:
            raise Stop
        left[0] -= 1
        return real(*args, **kwargs)

    monkeypatch.setattr(checks, "check_bytes", check)
    return lambda: monkeypatch.setattr(checks, "check_bytes", real)


@pytest.mark.parametrize("after", [0, 1, 5, 13, 30])
def test_goes_on(filled, state, eager, monkeypatch, after):
    names = [layout.blob(filled.blob(number)) for number in range(0, 12, 2)]
    for name in names:
        filled.flip(name)
    filled.remove(layout.blob(filled.blob(1)))
    whole = filled.store.verify(Options(look_only=True))
    options = Options(look_only=True, resume=str(state), workers=1)
    mend = break_off(monkeypatch, after)
    with pytest.raises(Stop):
        filled.store.verify(options)
    mend()
    assert state.exists()
    report = filled.store.verify(options)
    assert report.resumed
    assert kinds(report) == kinds(whole)
    assert {name: report.counts[name] for name in whole.counts} == dict(whole.counts)
    assert report.started < filled.store.verify(Options(look_only=True)).started
    assert not state.exists()
    assert not filled.store.verify(options).resumed


def test_less_is_read(filled, state, eager, monkeypatch):
    options = Options(look_only=True, resume=str(state), workers=1)
    mend = break_off(monkeypatch, 20)
    with pytest.raises(Stop):
        filled.store.verify(options)
    mend()
    read = []
    real = checks.check_bytes
    monkeypatch.setattr(checks, "check_bytes", lambda *a, **k: read.append(a[1]) or real(*a, **k))
    entries = []
    check_entry = checks.check_entry
    monkeypatch.setattr(checks, "check_entry", lambda *a: entries.append(a) or check_entry(*a))
    report = filled.store.verify(options)
    assert len(read) < report.counts["blobs_read"] - 10
    assert entries == []
    assert report.counts["entries"] == 12


def test_damage_that_was_found_before_is_still_told(filled, state, eager, monkeypatch):
    digests = sorted(filled.blob(number) for number in range(12))
    filled.flip(layout.blob(digests[0]))
    options = Options(resume=str(state), workers=1)
    mend = break_off(monkeypatch, 30)
    with pytest.raises(Stop):
        filled.store.verify(options)
    mend()
    assert layout.blob(digests[0]) not in filled.names()
    assert kinds(filled.store.verify(options)) == [("damaged", layout.blob(digests[0]))]


@pytest.mark.parametrize("number", [1, 2, 3])
@pytest.mark.parametrize("at", ["before the move", "between copy and removal", "after the move"])
def test_a_finding_is_durable_before_the_blob_is_moved(filled, state, monkeypatch, at, number):
    """Cut off around each of three moves: the list is that of an unbroken run, and nothing is aside twice."""
    monkeypatch.setattr("oarbank_cas.verify.batches._BATCH_ITEMS", 4)
    blobs = filled.names("blobs/")
    names = [blobs[0], blobs[20], blobs[-1]]
    for name in names:
        filled.flip(name)
    filled.write("blobs/zz/foreign", b"")
    filled.remove(layout.blob(filled.blob(1)))
    backend = filled.store.backend
    if backend.atomic_move and at.startswith("between"):
        pytest.skip("one step")
    method = "rename" if backend.atomic_move else "copy" if at.startswith("between") else "delete"
    real, calls = getattr(backend, method), []

    def cut(*args):
        calls.append(args)
        if len(calls) == number and at == "before the move":
            raise Stop
        answer = real(*args)
        if len(calls) == number:
            raise Stop
        return answer

    options = Options(resume=str(state), workers=1)
    with monkeypatch.context() as patch:
        patch.setattr(backend, method, cut)
        with pytest.raises(Stop):
            filled.store.verify(options)
    report = filled.store.verify(options)
    assert report.resumed
    missing = ("missing", layout.blob(filled.blob(1)))
    assert kinds(report) == sorted([*(("damaged", name) for name in names), missing, ("foreign", "blobs/zz/foreign")])
    assert all(problem.aside == (problem.kind == "damaged") for problem in report.problems)
    assert report.counts["blobs"] == report.counts["blobs_read"] == 12 * 3 + 2 - 1
    assert len(filled.names("damaged/")) == 3


@pytest.mark.parametrize("method", ["commit", "rename or delete", "replace"])
def test_what_was_healed_before_it_was_noted(filled, mirror, state, monkeypatch, method):
    """Cut off behind the act that healed: the next run finds it healed, and does nothing to it."""
    digest = filled.blob(5)
    filled.move(layout.blob(digest), f"blobs/zz/{digest}")
    filled.write(filled.entry(3), filled.read(filled.entry(3))[:-3])
    backend = filled.store.backend
    act = method.split(" or ")[0 if backend.atomic_move else -1]
    real, left = getattr(backend, act), [2 if method == "commit" else 1]

    def cut(*args):
        answer = real(*args)
        left[0] -= 1
        if left[0] == 0:
            raise Stop
        return answer

    options = Options(repair=True, resume=str(state), workers=1)
    with monkeypatch.context() as patch:
        patch.setattr(backend, act, cut)
        with pytest.raises(Stop):
            filled.store.verify(options, mirror.store)
    report = filled.store.verify(options, mirror.store)
    assert report.resumed
    assert kinds(report) == []
    assert [problem.kind for problem in report.problems].count("misplaced") == 1
    assert len(filled.names("damaged/")) == 2
    assert not state.exists()
    filled.check_whole()


def test_damage_that_another_met_first(filled, state, eager, monkeypatch):
    """Between the finding and the move a reader sets the blob aside, or brings it back: it is told all the same."""
    digest = filled.blob()
    sound = filled.read(layout.blob(digest))
    filled.flip(layout.blob(digest))
    real = checks.set_aside

    def late(*args):
        assert not filled.store.blobs.check(digest)
        filled.write(layout.blob(digest), sound)
        return real(*args)

    monkeypatch.setattr(checks, "set_aside", late)
    report = filled.store.verify(Options(resume=str(state)))
    assert [(problem.kind, problem.aside) for problem in report.problems] == [("damaged", True)]
    assert filled.read(layout.blob(digest)) == sound


def test_breaks_while_repairing(filled, mirror, state, eager, monkeypatch):
    for number in range(12):
        filled.flip(layout.blob(filled.blob(number)))
    options = Options(repair=True, resume=str(state), workers=1)
    from oarbank_cas.verify.repair import Repair

    real, calls = Repair._blob, []

    def blob(self, digest):
        calls.append(digest)
        if len(calls) == 5:
            raise UnavailableError("the network is gone")
        return real(self, digest)

    monkeypatch.setattr(Repair, "_blob", blob)
    with pytest.raises(UnavailableError):
        filled.store.verify(options, mirror.store)
    report = filled.store.verify(options, mirror.store)
    assert report.resumed
    assert (report.sound, report.healed) == (True, 12)
    filled.check_whole()


def test_files_of_others_are_left_alone(filled, state):
    options = Options(look_only=True, resume=str(state))
    for content in (b"my thesis", b"SQLite format 3\0" + b"\0" * 100):
        state.write_bytes(content)
        with pytest.raises(InvalidInputError, match="no state"):
            filled.store.verify(options)
        assert state.read_bytes() == content
    state.unlink()
    with sqlite3.connect(state) as db:
        db.execute("CREATE TABLE mine (x)")
    db.close()
    content = state.read_bytes()
    with pytest.raises(InvalidInputError):
        filled.store.verify(options)
    assert state.read_bytes() == content


def test_states_of_other_runs(filled, other, state):
    Notebook(str(state), {"store": "another"}).close()
    with pytest.raises(InvalidInputError, match="another store"):
        filled.store.verify(Options(resume=str(state)))
    assert state.exists()


def test_an_empty_file_will_do(filled, state):
    state.touch()
    assert filled.store.verify(Options(resume=str(state))).sound


def test_places_where_no_state_can_be_kept(filled, tmp_path):
    for path in (tmp_path / "no" / "folder", tmp_path):
        with pytest.raises(ConflictError):
            filled.store.verify(Options(resume=str(path)))


def test_two_at_once(filled, state):
    notebook = Notebook(str(state), {})
    with pytest.raises(ConflictError, match="in use"):
        filled.store.verify(Options(resume=str(state)))
    notebook.close()


def test_memory_stays_small_however_many_problems(filled, monkeypatch):
    monkeypatch.setattr("oarbank_cas.verify.notebook.MAX_PROBLEMS", 3)
    for number in range(12):
        filled.remove(layout.blob(filled.blob(number)))
    filled.write("foreign", b"")
    report = filled.store.verify()
    assert (len(report.problems), report.problem_count, report.by_kind["foreign"]) == (3, 12, 1)
    assert all(problem.kind == "missing" for problem in report.problems)
    for number in range(30, 33):
        record(filled.store, number)
