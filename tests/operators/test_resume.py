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
    monkeypatch.setattr(checks, "check_bytes", lambda *a, **k: read.append(a[2]) or real(*a, **k))
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
