"""Killed with SIGKILL at random operations, in real processes on a real disk: nothing is lost, and again finishes."""

import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from operators_kit import disk_store, kinds, record

from oarbank_cas import layout

CHILD = Path(__file__).with_name("kill_child.py")

pytestmark = pytest.mark.skipif(os.name == "nt", reason="SIGKILL")


def child(*arguments):
    ran = subprocess.run(
        [sys.executable, str(CHILD), *map(str, arguments)], capture_output=True, text=True, timeout=120, check=False
    )
    assert ran.returncode in (0, -signal.SIGKILL), ran.stderr
    return ran


@pytest.fixture
def damaged(disk, other):
    """A store with damage of many kinds; another has all that it had."""
    for number in range(12, 24):
        record(disk.store, number)
        disk.jobs.append(number)
    disk.store.copy_to(other.store)

    def damage():
        for number in range(3, 15):
            name = layout.blob(disk.blob(number))
            disk.flip(name) if number % 2 else disk.remove(name)
        disk.write(disk.entry(20), disk.read(disk.entry(20))[:-3])
        disk.move(layout.blob(disk.blob(21)), "blobs/zz/" + disk.blob(21))
        if layout.blob(disk.blob(22)) in disk.names("blobs/"):  # else only its fossil was left, which will do
            disk.fossilise(disk.blob(22))
        disk.write(layout.blob(disk.blob(22)), b"wrong")

    disk.damage = damage
    return disk


def points(seed, most, count):
    return sorted(random.Random(seed).sample(range(1, most + 1), min(count, most)))


@pytest.mark.parametrize("when", ["before", "after"])
def test_repair(damaged, other, tmp_path, budget, when):
    damaged.damage()
    total = int(child("repair", damaged.root, other.root, 0, when).stdout.split()[0])
    damaged.check_whole()
    sound = {name: damaged.read(name) for name in damaged.names() if name.startswith(("blobs/", "results/"))}
    for at in points(when, total, 3 * budget):
        damaged.damage()
        ran = child("repair", damaged.root, other.root, at, when)
        assert ran.returncode == -signal.SIGKILL
        # What was sound before is sound after, whatever was under way.
        hurt = {layout.blob(damaged.blob(number)) for number in (*range(3, 15), 21, 22)} | {damaged.entry(20)}
        assert {name: damaged.read(name) for name in sound if name not in hurt} == {
            name: data for name, data in sound.items() if name not in hurt
        }
        report = damaged.store.verify()
        assert all(kind in ("missing", "damaged", "misplaced") for kind, _ in kinds(report))
        again = child("repair", damaged.root, other.root, 0, when)
        assert again.stdout.split()[1] == "0", again.stdout
        damaged.check_whole()
        assert damaged.store.verify().problem_count == 0


def test_repair_with_a_state_that_is_gone_on_with(damaged, other, tmp_path):
    state = tmp_path / "state"
    for at in (3, 17):
        damaged.damage()
        assert child("repair", damaged.root, other.root, at, "after", state).returncode == -signal.SIGKILL
        done = child("repair", damaged.root, other.root, 0, "after", state)
        assert done.returncode == 0
        # What was healed beyond the state's last checkpoint is looked at once more by the next run.
        child("repair", damaged.root, other.root, 0, "after")
        damaged.check_whole()
        assert not state.exists()


def test_plain_verify(damaged, other):
    damaged.damage()
    for at in points("verify", 12, 4):
        child("verify", damaged.root, other.root, at, "before")
    child("repair", damaged.root, other.root, 0, "before")
    damaged.check_whole()


@pytest.mark.parametrize("when", ["before", "after"])
def test_copy(damaged, tmp_path, budget, when):
    made = disk_store(tmp_path / "probe")
    total = int(child("copy", made.root, damaged.root, 0, when).stdout.split()[0])
    assert total > 30
    made.store.close()
    for at in points(f"copy {when}", total, 3 * budget):
        target = disk_store(tmp_path / f"target-{at}")
        assert child("copy", target.root, damaged.root, at, when).returncode == -signal.SIGKILL
        report = target.store.verify()
        assert (report.problems, report.exit_code) == ([], 0)  # never an entry without its files
        assert child("copy", target.root, damaged.root, 0, when).stdout.split()[1] == "0"
        assert target.contents("blobs/") == damaged.contents("blobs/")
        target.jobs = damaged.jobs
        target.check_whole()
        assert len(target.names("pins/")) == 3
        target.store.close()


def test_copy_killed_again_and_again_gets_there(damaged, tmp_path):
    target = disk_store(tmp_path / "target")
    for _ in range(10):
        ran = child("copy", target.root, damaged.root, 150, "after")
        if ran.returncode == 0:
            break
    assert ran.returncode == 0
    target.jobs = damaged.jobs
    target.check_whole()
    target.store.close()
