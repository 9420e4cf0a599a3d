"""Verification beside writers, readers and gc; and beside itself."""

import random
import threading
import time
from contextlib import contextmanager, suppress

import pytest
from operators_kit import disk_store, envelope, key, record

from oarbank_cas import NotFoundError, Origin, Store, layout
from oarbank_cas.errors import StorageIOError
from oarbank_cas.gc.collect import Options as GcOptions
from oarbank_cas.verify import Options

SESSION_S = 2


@contextmanager
def beside(*functions):
    """Threads that do something again and again; what they raise, the test raises."""
    over = threading.Event()
    errors = []

    def again(function):
        try:
            while not over.is_set():
                function()
        except BaseException as error:  # noqa: BLE001 - the test raises it
            errors.append(error)

    threads = [threading.Thread(target=again, args=(function,)) for function in functions]
    for thread in threads:
        thread.start()
    try:
        yield errors
    finally:
        over.set()
        for thread in threads:
            thread.join()
    assert errors == []


@pytest.fixture
def busy(tmp_path):
    made = disk_store(tmp_path / "busy", session_s=SESSION_S, grace_s=1, slack_s=0)
    yield made
    made.store.close()


def write_and_end(root):
    store = Store.open(root)
    rng = random.Random(1)

    def step():
        number = rng.randrange(30)
        if store.lookup(key(number)).hit:
            store.invalidate(key(number), by="t", reason="t")
            return
        files = {f"f{n}": b"%d" % n * 500 for n in rng.sample(range(40), 5)}
        with store.intake() as intake:
            for data in files.values():
                intake.add_bytes(data)
            intake.commit()
        store.record(key(number), envelope(files), Origin("t"))

    return step


def read(root):
    store = Store.open(root)

    def step():
        for number in range(30):
            began = time.time()
            found = store.lookup(key(number))
            if found.hit:
                try:
                    store.files_of(found.datasets["out"])
                except NotFoundError:
                    assert time.time() - began > SESSION_S

    return step


def collect(root):
    store = Store.open(root)
    return lambda: store.gc(options=GcOptions(anyway=True, yes_really=True, allow_no_roots=True))


@pytest.mark.timeout(300)
def test_a_sound_store_stays_sound_and_is_said_to_be(busy, budget):
    root = busy.root
    runs = 0
    with beside(write_and_end(root), read(root), collect(root)) as errors:
        until = time.time() + 4 * budget
        while time.time() < until and not errors:
            report = busy.store.verify(Options(repair=runs % 2 == 1))
            assert report.problems == []
            runs += 1
    assert runs > 2
    assert busy.names("damaged/") == []
    assert busy.store.verify().problems == []


def test_readers_of_a_damaged_blob_that_is_set_aside(disk):
    """Each sees right bytes, or is told that they are wrong or gone; never wrong ones."""
    from oarbank_cas import CorruptError

    name = layout.blob(disk.blob())
    sound = disk.read(name)

    def reader():
        with suppress(CorruptError, NotFoundError, StorageIOError):
            assert disk.store.get_bytes(disk.blob()) == sound

    with beside(reader, reader):
        for _ in range(8):
            with suppress(FileNotFoundError):  # a reader set it aside just now
                disk.flip(name)
            disk.store.verify()
            if name not in disk.names("blobs/"):
                disk.store.put_bytes(sound)
    disk.store.put_bytes(sound)
    disk.check_whole()


def test_verifying_beside_itself(disk):
    for number in range(3, 9):
        disk.flip(layout.blob(disk.blob(number)))
    reports = []

    def once():
        with Store.open(disk.root) as store:
            reports.append(store.verify())

    threads = [threading.Thread(target=once) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(reports) == 4
    assert len(disk.names("damaged/")) == 6
    assert all(problem.kind in ("damaged", "missing") for report in reports for problem in report.problems)
    assert {problem.digest for report in reports for problem in report.problems} == {
        disk.blob(number) for number in range(3, 9)
    }


def test_repairing_beside_a_writer_that_brings_the_same(disk, tmp_path):
    other = disk_store(tmp_path / "o")
    disk.store.copy_to(other.store)
    store = Store.open(disk.root)

    def again():
        for number in range(3, 9):
            # Recorded already; or damaged, and set aside, between putting and recording.
            with suppress(AssertionError, NotFoundError, StorageIOError):
                record(store, number)

    with beside(again):
        for _ in range(4):
            for number in range(3, 9):
                name = layout.blob(disk.blob(number))
                with suppress(FileNotFoundError):  # set aside, and not yet brought again
                    disk.flip(name)
            disk.store.verify(Options(repair=True), other.store)
    disk.store.verify(Options(repair=True), other.store)
    disk.check_whole()
    other.store.close()


def test_copying_beside_writers_and_gc(busy, other, budget):
    root = busy.root
    with beside(write_and_end(root), collect(root)) as errors:
        until = time.time() + 2 * budget
        while time.time() < until and not errors:
            report = busy.store.copy_to(other.store)
            # What was ended, or recorded anew, since it was copied.
            assert {problem["kind"] for problem in report.problems} <= {"differs", "missing"}
    assert other.store.verify().problems == []
