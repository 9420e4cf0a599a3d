"""Verify and repair, killed at every operation in turn, on a real disk: nothing sound is lost, and again finishes."""

from __future__ import annotations

import os
import shutil
import signal

import pytest

from oarbank_cas import layout
from oarbank_cas.backends.local import LocalBackend
from oarbank_cas.contracts.canonical import digest_of
from oarbank_cas.contracts.keys import parse_key
from oarbank_cas.contracts.manifest import dataset_id
from oarbank_cas.contracts.recordable import check_recordable
from oarbank_cas.gc.collect import collect
from oarbank_cas.intake import Intake
from oarbank_cas.results import Origin
from oarbank_cas.store import Store
from oarbank_cas.verify import Options

from .scenarios import envelope, manifest_of

pytestmark = pytest.mark.skipif(os.name == "nt", reason="needs SIGKILL and fork")

SHARED = b"the same for every job"
JOBS = {digest_of(f"job {number}".encode()): (f"own {number}".encode() * 9, SHARED) for number in range(8)}
KEYS = list(JOBS)
OWN = [digest_of(contents[0]) for contents in JOBS.values()]
EVERY = 7
"""By default one of so many operations is the last."""


def entry(number):
    return layout.entry(KEYS[number], None, "any")


def write(root, name, data):
    """Other bytes, in a file of its own."""
    path = os.path.join(root, name)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    if os.path.lexists(path):
        os.unlink(path)
    with open(path, "wb") as file:
        file.write(data)


def move(root, name, to):
    os.makedirs(os.path.dirname(os.path.join(root, to)), exist_ok=True)
    os.rename(os.path.join(root, name), os.path.join(root, to))


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    root = str(tmp_path_factory.mktemp("source") / "store")
    with Store.init(root)[0] as store:
        for key, contents in JOBS.items():
            checked = check_recordable(envelope(contents, key), max_inline_kb=None)
            with Intake(store.backend, store.blobs) as intake:
                for content in (*contents, manifest_of(contents)):
                    intake.add_bytes(content)
                hold = intake.commit()
            assert store.results.create(parse_key(key), "any", checked, Origin(by="agent"), hold).recorded
        store.pins.pin("kept", dataset_id(digest_of(manifest_of(JOBS[KEYS[6]]))))
    return root


@pytest.fixture(scope="module")
def damaged(tmp_path_factory, source):
    """Damage of every kind that can be healed; the eighth job is sound."""
    root = str(tmp_path_factory.mktemp("damaged") / "store")
    shutil.copytree(source, root)
    write(root, layout.blob(OWN[0]), b"wrong bytes")
    os.unlink(os.path.join(root, layout.blob(OWN[1])))
    with open(os.path.join(root, entry(2)), "rb") as file:
        write(root, entry(2), file.read()[:-3])
    move(root, layout.blob(OWN[3]), f"blobs/zz/{OWN[3]}")
    write(root, layout.fossil(OWN[4], "0" * 16), b"a spare that is damaged")
    move(root, layout.blob(OWN[5]), layout.fossil(OWN[5], "1" * 16))
    write(root, layout.blob(OWN[5]), b"damaged, and its fossil is sound")
    os.unlink(os.path.join(root, layout.blob(digest_of(manifest_of(JOBS[KEYS[6]])))))
    return root


def clone(damaged, tmp_path, number):
    root = str(tmp_path / f"store{number}")
    shutil.copytree(damaged, root, copy_function=os.link)
    return root


def sound(root):
    """Names of objects that were never hurt, and their bytes."""
    found = {}
    for folder in ("blobs", "results", "pins"):
        for base, _, names in os.walk(os.path.join(root, folder)):
            for name in names:
                path = os.path.join(base, name)
                with open(path, "rb") as file:
                    found[os.path.relpath(path, root)] = file.read()
    hurt = {layout.blob(OWN[0]), layout.blob(OWN[5]), entry(2), f"blobs/zz/{OWN[3]}"}
    return {name: data for name, data in found.items() if name not in hurt}


def check_whole(root):
    """All that is ever to be there is there, nothing is wrong, and gc has nothing against it."""
    with Store.open(root) as store:
        report = store.verify(Options(look_only=True))
        assert report.problem_count == 0, report.problems
        for key, contents in JOBS.items():
            assert store.lookup(key).hit
            for content in contents:
                assert store.get_bytes(digest_of(content)) == content
        report = collect(store.backend, store.descriptor)
        assert (report.exit_code, report.missing) == (0, 0), report.to_json()
    left = [name for name in os.listdir(os.path.join(root, "tmp")) if name != "locks"]
    assert not left, left


def check_killed(root, before, damaged_names):
    """Nothing sound was touched, no answer is wrong, and what verify finds is what was wrong from the beginning."""
    after = sound(root)
    assert {name: after.get(name) for name in before} == before
    with Store.open(root, read_only=True) as store:
        assert store.lookup(KEYS[7]).hit
        for key, contents in JOBS.items():
            answer = store.lookup(key)
            if answer.hit:
                assert answer.envelope == envelope(contents, key)
        for problem in store.verify(Options(look_only=True)).problems:
            assert problem.kind in ("damaged", "missing", "misplaced"), problem
            assert problem.name in damaged_names, problem


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("what", ["verify", "verify --resume", "repair", "repair --resume"])
def test_killed_at_every_operation(what, source, damaged, children, tmp_path, budget):
    """By default at one of seven; with a budget of 2 before and after each."""
    call = f"{what} from {source}"
    before = sound(damaged)
    root = clone(damaged, tmp_path, 0)
    code, unbroken = children.run(root, call)
    assert code == 0, unbroken
    repaired = what.startswith("repair")
    assert unbroken["exit"] == (not repaired)
    assert {kind for kind, *_ in unbroken["found"]} == {"damaged", "missing", "misplaced"}
    names = {name for _, name, _, _ in unbroken["found"]} | {layout.blob(OWN[5]), layout.blob(OWN[0])}
    if repaired:
        check_whole(root)
    operations = unbroken["operations"]
    assert operations > 40
    offset = {"verify": 1, "verify --resume": 3, "repair": 5, "repair --resume": 7}[what]
    numbers = range(1, operations + 1) if budget > 1 else range(offset, operations + 1, EVERY)
    for number in numbers:
        for when in ("before", "after") if budget > 1 else (("after", "before")[number % 2],):
            root = clone(damaged, tmp_path, f"{number}{when}")
            code, said = children.run(root, call, number, when)
            assert code == -signal.SIGKILL, (number, when, code, said)
            check_killed(root, before, names)
            code, again = children.run(root, call)
            assert code == 0, (number, when, again)
            if "resume" in what:
                assert again["found"] == unbroken["found"], (number, when)
                assert not os.path.exists(f"{root}.state")
            else:
                assert again["exit"] == (not repaired), (number, when, again)
            if not repaired:
                code, again = children.run(root, f"repair from {source}")
                assert (code, again["exit"]) == (0, 0), (number, when, again)
            check_whole(root)
            shutil.rmtree(root)


def test_operations_are_counted_in_one_process_alone(damaged, tmp_path):
    """The matrix is no better than its hook: what the backend can do is what is counted."""
    from . import crash_child

    abstract = set(LocalBackend.__mro__[1].__abstractmethods__)
    assert abstract <= {*crash_child.OPERATIONS, "listing", "close"}
