"""Real processes: writers that are killed, declarers that race, readers that watch."""

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from attempt_model import BUDGET, complete_lines, read_model

from oarbank_cas.attempt import Declaration, Journal, Pager, content, declarations, declare, follow, page, read
from oarbank_cas.attempt.lock import exclusive
from oarbank_cas.errors import BusyError, ConflictError

WORKER = Path(__file__).with_name("attempt_worker.py")


def start(*args):
    command = [sys.executable, str(WORKER), *map(str, args)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finish(process):
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    return out.split()


@pytest.mark.parametrize("durable", [0, 1])
def test_concurrent_writers_lose_nothing(tmp_path, durable):
    path = tmp_path / "j.jsonl"
    path.write_bytes(b'{"torn by someone"')
    workers = [start("append", path, writer, 0, 60, 3000, durable) for writer in range(4)]
    for worker in workers:
        assert finish(worker) == [str(number) for number in range(60)]
    got = [record.payload for record in read(path)]
    assert len(got) == 240
    for writer in range(4):
        assert [number for who, number, _ in got if who == writer] == list(range(60))


def check_after_kills(path, acknowledged):
    data = path.read_bytes()
    got = [json.loads(text) for _, text in read_model(data)]  # each complete line is a record
    assert [record.payload for record in read(path)] == got
    for writer, last in acknowledged.items():
        numbers = [number for who, number, _ in got if who == writer]
        assert numbers == sorted(set(numbers)), "twice, or out of order"
        missing = set(range(last + 1)) - set(numbers)
        assert not missing, f"acknowledged, then lost: {missing}"
    return got


@pytest.mark.long
def test_writers_killed_at_random_lose_nothing_that_was_acknowledged(tmp_path):
    path = tmp_path / "j.jsonl"
    dice = random.Random(5)
    acknowledged = dict.fromkeys(range(3), -1)
    until = time.monotonic() + 4 * BUDGET
    rounds = 0
    while time.monotonic() < until or rounds < 3:
        rounds += 1
        size = len(read_bytes(path))
        workers = {}
        for writer, last in acknowledged.items():
            # An unacknowledged record may have been kept: go on behind everything that is there.
            seen = [
                number
                for who, number, _ in (json.loads(text) for _, text in read_model(read_bytes(path)))
                if who == writer
            ]
            first = max([last, *seen]) + 1
            acknowledged[writer] = first - 1
            if writer < 2:
                workers[writer] = start("append", path, writer, first, 10**6, 200_000, dice.randint(0, 1))
            else:
                workers[writer] = start("write-slowly", path, writer, first, 10**6)
        wait_for_growth(path, size)
        time.sleep(dice.random() * 0.4)
        for writer in dice.sample(sorted(workers), len(workers)):
            time.sleep(dice.random() * 0.02)
            workers[writer].send_signal(signal.SIGKILL)
        for writer, worker in workers.items():
            out, err = worker.communicate(timeout=60)
            assert worker.returncode == -signal.SIGKILL, err
            lines = out.split("\n")[:-1]
            if lines:
                acknowledged[writer] = int(lines[-1])
        check_after_kills(path, acknowledged)
        if path.stat().st_size > 30_000_000:
            path.unlink()
            acknowledged = dict.fromkeys(range(3), -1)
    # The next writer is not kept out by the dead.
    Journal(path, lock_timeout_s=5).append([9, 0, ""])
    assert check_after_kills(path, acknowledged)[-1] == [9, 0, ""]


def wait_for_growth(path, size):
    """Until the first of the writers is at work: on a busy machine a process takes its time to start."""
    until = time.monotonic() + 30
    while len(read_bytes(path)) <= size:
        assert time.monotonic() < until, "no writer ever wrote"
        time.sleep(0.01)


def read_bytes(path):
    return path.read_bytes() if path.exists() else b""


class Writers:
    """Two writers of one journal, killed and started again every now and then: torn tails while readers look."""

    def __init__(self, path):
        self.path = path
        self.workers = {}
        self.deaths = {}
        self.base = 0
        self.life = 0.4
        self.dice = random.Random(11)

    def keep_going(self):
        for writer in range(2):
            if time.monotonic() < self.deaths.get(writer, 0):
                continue
            self.kill(writer)
            self.base += 1_000_000
            args = (self.path, writer, self.base, 10**6)
            self.workers[writer] = start("append", *args, 20_000, 0) if writer else start("write-slowly", *args)
            # Longer each time: on a busy machine the first ones die before they have written anything.
            self.life += 0.1
            self.deaths[writer] = time.monotonic() + self.life + self.dice.random()

    def kill(self, writer):
        if writer in self.workers:
            worker = self.workers.pop(writer)
            worker.kill()
            assert worker.communicate(timeout=60)[1] == ""


def check_page(found, offset, known):
    """A page fits what was seen before, and `known` grows by what it shows for the first time."""
    assert found.available >= len(known)
    assert found.next_offset == offset + len(found.records)
    for number, record in enumerate(found.records, offset):
        if number < len(known):
            assert record.payload[:2] == known[number]
        else:
            assert number == len(known)
            known.append(record.payload[:2])


@pytest.mark.long
def test_a_reader_beside_writers_sees_only_whole_and_ordered_records(tmp_path):
    """A minute with OARBANK_CAS_TEST_BUDGET=15; a few seconds by default."""
    path = tmp_path / "j.jsonl"
    path.touch()
    stop = time.monotonic() + 4 * BUDGET
    dice = random.Random(7)
    followed, failures = [], []
    over = threading.Event()

    def watch():
        try:
            records = follow(path, poll_s=0.001, stop=over.is_set)
            followed.extend(record.payload[:2] for record in records)
        except Exception as error:  # noqa: BLE001 - handed to the test's own thread
            failures.append(error)

    watcher = threading.Thread(target=watch)
    watcher.start()
    writers = Writers(path)
    fast = Pager(path)
    known, pages = [], 0

    def enough():
        return time.monotonic() > stop and pages > 20 and {0, 1} <= {writer for writer, _ in known}

    try:
        while not enough() and time.monotonic() < stop + 120 and path.stat().st_size < 1_000_000_000:
            writers.keep_going()
            offset = len(known) if dice.random() < 0.5 else dice.randint(0, len(known))
            check_page(page(path, offset, 500), offset, known)
            check_page(fast.page(offset, 500), offset, known)
            assert all(line.endswith(b"}") for line in complete_lines(content(path, "records")))
            pages += 1
    finally:
        for writer in range(2):
            writers.kill(writer)
        over.set()
    watcher.join(timeout=60 + 10 * BUDGET)
    assert not watcher.is_alive()
    assert not failures
    assert fast.rebuilds <= 1 + pages // 20, "an appended journal keeps its index"
    everything = [record.payload[:2] for record in read(path)]
    assert everything[: len(known)] == known
    assert everything[: len(followed)] == followed
    for writer in range(2):
        numbers = [number for who, number in everything if who == writer]
        assert numbers == sorted(set(numbers))
        assert numbers
    assert min(pages, len(known), len(followed)) > 20


def test_declarers_race_from_many_processes(tmp_path):
    workers = [start("declare", tmp_path, writer, 8) for writer in range(4)]
    results = [[line.split() for line in worker.communicate(timeout=60)[0].splitlines()] for worker in workers]
    assert [worker.returncode for worker in workers] == [0] * 4
    for number in range(8):
        assert sorted(result[number][0] for result in results) == ["0", "0", "0", "1"]
        assert [result[number][1] for result in results] == ["1"] * 4
        assert sorted(result[number][2] for result in results) == ["0", "0", "0", "1"]
    assert len(declarations(tmp_path)) == 8 + 4 * 8 + 8


def test_declarers_race_from_many_threads(tmp_path):
    outcomes = []

    def run(writer):
        for number in range(6):
            outcomes.append(("shared", declare(tmp_path, Declaration.json(f"s{number}", f"s{number}.json"))))
            try:
                outcomes.append(("fought", declare(tmp_path, Declaration.json("f", f"f{writer}.json"))))
            except ConflictError:
                outcomes.append(("fought", False))

    threads = [threading.Thread(target=run, args=(writer,)) for writer in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(added for kind, added in outcomes if kind == "shared") == 6
    assert len(outcomes) == 8 * 12
    assert len(declarations(tmp_path)) == 7


@pytest.mark.long
def test_declarers_killed_at_random_leave_a_file_that_is_trusted(tmp_path):
    until = time.monotonic() + 2 * BUDGET
    dice = random.Random(3)
    rounds = 0
    while time.monotonic() < until or rounds < 2:
        directory = tmp_path / str(rounds)
        directory.mkdir()
        rounds += 1
        workers = [start("declare", directory, writer, 1000) for writer in range(3)]
        wait_for_growth(directory / "artifacts.jsonl", 0)
        time.sleep(dice.random() * 0.2)
        for worker in workers:
            worker.kill()
        done = [worker.communicate(timeout=60)[0].splitlines() for worker in workers]
        names = {one.name for one in declarations(directory)}
        for writer, lines in enumerate(done):
            for number in range(len(lines)):
                assert {f"shared_{number}", f"own_{writer}_{number}", f"fought_{number}"} <= names
        assert declare(directory, Declaration.json("after", "after.json"))
        assert declarations(directory)[-1].name == "after"


def test_a_lock_is_exclusive_and_ends_with_its_holder(tmp_path):
    lock = tmp_path / "x.lock"
    holder = start("hold", lock)
    try:
        assert holder.stdout.readline() == "held\n"
        for timeout in (0, 0.05):
            with pytest.raises(BusyError, match=f"{timeout:g} s"), exclusive(lock, timeout_s=timeout):
                pass
        with pytest.raises(BusyError):
            Journal(tmp_path / "x.jsonl", lock_timeout_s=0).append(1)
        assert not (tmp_path / "x.jsonl").exists()
    finally:
        holder.kill()
        holder.communicate(timeout=60)
    with exclusive(lock, timeout_s=1):
        pass


def test_a_lock_excludes_threads_of_one_process(tmp_path):
    lock = tmp_path / "x.lock"
    with exclusive(lock, timeout_s=1), pytest.raises(BusyError), exclusive(lock, timeout_s=0):
        pass
    with exclusive(lock, timeout_s=0):
        pass


def test_a_lock_file_removed_under_a_waiter_is_not_trusted(tmp_path):
    lock = tmp_path / "x.lock"
    order = []

    def wait():
        with exclusive(lock, timeout_s=20):
            order.append("waiter")

    waiter = threading.Thread(target=wait)
    with exclusive(lock, timeout_s=1):
        waiter.start()
        time.sleep(0.1)  # it has the file open by now
        lock.unlink()
        second = exclusive(lock, timeout_s=1)
        second.__enter__()
    time.sleep(0.2)
    order.append("second")
    second.__exit__(None, None, None)
    waiter.join()
    assert order == ["second", "waiter"]


def test_a_forked_child_does_not_keep_the_lock(tmp_path):
    lock = tmp_path / "x.lock"
    reading, writing = os.pipe()
    with exclusive(lock, timeout_s=1):
        child = os.fork()
        if child == 0:
            os.close(writing)
            os.read(reading, 1)  # until the parent is done
            os._exit(0)
    os.close(reading)
    try:
        with exclusive(lock, timeout_s=0):
            pass
    finally:
        os.close(writing)
        os.waitpid(child, 0)


def test_a_lock_that_is_a_link_is_refused(tmp_path):
    from oarbank_cas.errors import InvalidInputError

    (tmp_path / "x.lock").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(InvalidInputError), exclusive(tmp_path / "x.lock", timeout_s=0):
        pass
    assert not (tmp_path / "elsewhere").exists()
