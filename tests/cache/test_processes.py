"""Many real processes at once, and processes that are killed at any moment."""

import hashlib
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from agent_kit import files_in, spec
from cache_kit import cached, check, program

from oarbank_cas import UnavailableError
from oarbank_cas.cache.cache import Cache

_STAGE = """
place = cache_kit.Place(arguments[0])
workdir, document, way = Path(arguments[1]), Path(arguments[2]).read_bytes(), arguments[3]
budget, delay = int(arguments[4]), float(arguments[5])
workdir.mkdir()
ready()
with place.open(budget, delay=delay) as store:
    store.stage(document, workdir, placement=way)
answer(sorted((path, len(data)) for path, data in agent_kit.files_in(workdir / "in").items()))
"""


def digest(data):
    return hashlib.sha256(data).hexdigest()


def prepared(place, files):
    document = spec({"a": (place.dataset(files), "in")})
    path = place.folder / f"spec{len(os.listdir(place.folder))}.json"
    path.write_bytes(document)
    return path


@pytest.mark.parametrize("way", ["auto", "hardlink"])
def test_each_blob_is_brought_once_by_eight_processes(place, tmp_path, race, way):
    files = {f"f{number}": os.urandom(1000 + number) for number in range(40)} | {"big": os.urandom(3 * 2**20)}
    document = prepared(place, files)
    told = race(
        program(_STAGE), *[(place.folder, tmp_path / f"w{number}", document, way, 2**40, 0.01) for number in range(8)]
    )
    assert told == [sorted([path, len(data)] for path, data in files.items())] * 8
    for number in range(8):
        assert files_in(tmp_path / f"w{number}/in") == files
    assert set(place.reads().values()) == {1}
    assert len(place.reads()) == 42
    check(place.cache)


def test_different_blobs_are_brought_side_by_side(place, race):
    """Two processes, two blobs, each of which waits until the other is on its way."""
    names = place.put(b"a" * 100, b"b" * 100)
    told = race(
        program(
            """
place = cache_kit.Place(arguments[0])
mine, other = arguments[1:3]
ready()
with place.open() as store:
    def fetch(digest, fd, label):
        Path(place.folder, digest).touch()
        deadline = time.monotonic() + 20
        while not Path(place.folder, other).exists():
            assert time.monotonic() < deadline, "never side by side"
            time.sleep(0.005)
        return store.reads.fetch(digest, fd, label)
    os.close(store.cache.fill(mine, 100, fetch))
answer(1)
"""
        ),
        (place.folder, *names),
        (place.folder, *reversed(names)),
    )
    assert told == [1, 1]


def start(text, *arguments):
    prologue = "import json\narguments = sys.argv[1:]\n"
    prologue += "def ready(): pass\ndef answer(value): print(json.dumps(value), flush=True)\n"
    return subprocess.Popen(
        [sys.executable, "-c", "import sys\n" + prologue + program(text), *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def end(child):
    child.kill()
    child.communicate()


def test_a_bringer_that_dies_is_replaced(place):
    """It dies half-way through a blob that another waits for."""
    data = os.urandom(4 * 2**20)
    (name,) = place.put(data)
    dying = start(
        """
place = cache_kit.Place(arguments[0])
with place.open() as store:
    def fetch(digest, fd, label):
        os.write(fd, b"half" * 2**18)
        answer("half-way")
        time.sleep(600)
    store.cache.fill(arguments[1], 4 * 2**20, fetch)
""",
        place.folder,
        name,
    )
    try:
        assert dying.stdout.readline() == '"half-way"\n'
        waiting = start(
            """
place = cache_kit.Place(arguments[0])
with place.open() as store:
    answer("starts")
    assert len(store.get_bytes(arguments[1])) == 4 * 2**20
    answer("has it")
""",
            place.folder,
            name,
        )
        try:
            assert waiting.stdout.readline() == '"starts"\n'
            time.sleep(0.5)
            assert waiting.poll() is None
            assert name not in cached(place.cache)
            os.kill(dying.pid, signal.SIGKILL)
            assert waiting.communicate(timeout=60)[0] == '"has it"\n'
            assert waiting.returncode == 0
        finally:
            end(waiting)
    finally:
        end(dying)
    assert cached(place.cache) == {name: data}
    check(place.cache)


def usage(path):
    """Bytes of blobs that stand, and of what is on its way, as the disk says."""
    size = 0
    for pattern in ("blobs/*/*", "partial/*"):
        for file in Path(path).glob(pattern):
            try:
                size += file.stat().st_size
            except FileNotFoundError:
                continue
    return size


def test_the_budget_holds_across_processes(place, tmp_path, race):
    size, budget = 50_000, 400_000
    specs = [prepared(place, {f"f{n}": random.Random(f"{s}-{n}").randbytes(size) for n in range(20)}) for s in range(3)]
    seen, stop = [], threading.Event()

    def watch():
        while not stop.is_set():
            seen.append(usage(place.cache))
            time.sleep(0.002)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        told = race(
            program(_STAGE),
            *[(place.folder, tmp_path / f"w{n}", specs[n % 3], "auto", budget, 0.002) for n in range(6)],
        )
    finally:
        stop.set()
        watcher.join()
    assert told == [[[f"f{n}", size] for n in sorted(range(20), key=str)]] * 6
    assert max(seen) <= budget + size
    assert max(seen) > budget / 2
    check(place.cache, budget)


def test_it_is_removed_under_the_feet_of_many(place, tmp_path, race):
    files = {f"f{number}": os.urandom(3000) for number in range(60)}
    document = prepared(place, files)
    stop = threading.Event()
    removed = []

    def remove():
        chance = random.Random(6)
        while not stop.is_set():
            time.sleep(chance.random() * 0.15)
            if chance.random() < 0.5:
                shutil.rmtree(place.cache, ignore_errors=True)
            else:
                what = chance.choice(["blobs", "partial", "live", "mounts", "index", "index-wal"])
                path = Path(place.cache, what)
                shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)
            removed.append(1)

    remover = threading.Thread(target=remove)
    remover.start()
    try:
        told = race(
            program(
                """
place, document = cache_kit.Place(arguments[0]), Path(arguments[2]).read_bytes()
ready()
for number in range(12):
    workdir = Path(f"{arguments[1]}-{number}")
    workdir.mkdir()
    with place.open(10**6) as store:
        store.stage(document, workdir, placement="hardlink" if number % 2 else "auto")
answer("done")
"""
            ),
            *[(place.folder, tmp_path / f"w{number}", document) for number in range(4)],
        )
    finally:
        stop.set()
        remover.join()
    assert told == ["done"] * 4
    assert len(removed) > 5
    for number in range(4):
        for again in range(12):
            assert files_in(tmp_path / f"w{number}-{again}/in") == files
    with place.open(10**6) as store:
        assert store.get_bytes(digest(files["f1"])) == files["f1"]
    check(place.cache, 10**6)


_BUSY = """
place, seed = cache_kit.Place(arguments[0]), arguments[1]
names = Path(place.folder, "names").read_text().split()
documents = [path.read_bytes() for path in sorted(place.folder.glob("spec*.json"))]
chance = random.Random(seed)
for number in range(10**6):
    with place.open(150_000, delay=0.0005) as store:
        for again in range(3):
            workdir = Path(place.folder, f"job-{seed}-{number}-{again}")
            workdir.mkdir()
            kind = chance.choice(["stage", "stage", "get", "trim", "check"])
            if kind == "get":
                store.get_bytes(chance.choice(names))
            elif kind == "trim":
                store.cache.room.trim(chance.randrange(150_000))
            else:
                way = chance.choice(["auto", "hardlink"])
                (mounted,) = store.stage(chance.choice(documents), workdir, placement=way)
                if kind == "check":
                    assert mounted.release() == []
"""


@pytest.mark.timeout(600)
def test_processes_that_are_killed_at_any_moment(place, budget):
    """Three work in one cache; one after the other is killed and replaced. What must hold holds throughout."""
    pieces = [random.Random(number).randbytes(1000 + 300 * number) for number in range(40)]
    (place.folder / "names").write_text("\n".join(place.put(*pieces)))
    for start_at in (0, 10, 25):
        prepared(place, {f"f{number}": data for number, data in enumerate(pieces[start_at : start_at + 15])})
    chance = random.Random(7)
    children = [start(_BUSY, place.folder, f"{number}") for number in range(3)]
    try:
        for kill in range(25 * budget):
            time.sleep(0.3 + chance.random() * 0.5 if kill < 3 else chance.random() * 0.7)
            number = chance.randrange(3)
            if children[number].poll() is not None:
                raise AssertionError(children[number].communicate()[1])
            children[number].kill()
            said = children[number].communicate()[1]
            assert said == "", said
            children[number] = start(_BUSY, place.folder, f"{kill}-{number}")
        for child in children:
            assert child.poll() is None, child.communicate()[1]
    finally:
        for child in children:
            end(child)
    for job in place.folder.glob("job-*/in"):  # each whole or not there
        assert len(files_in(job)) == 15
        for data in files_in(job).values():
            assert data in pieces
    check(place.cache, 150_000)
    Cache(place.cache, 150_000).close()


def test_a_forked_child_and_its_parent(place):
    """Neither takes the other's name, connection or holds away."""
    names = place.put(*[b"%d" % number * 1000 for number in range(4)])
    child = start(
        """
place, names = cache_kit.Place(arguments[0]), arguments[1:]
with place.open(2500) as store:
    with store.cache.holding(names[:1]):
        store.get_bytes(names[0])
        pid = os.fork()
        if pid == 0:
            store.get_bytes(names[1])
            with store.cache.holding(names[1:2]):
                store.get_bytes(names[2])
                assert names[1] in place.cached() and names[0] in place.cached()
            store.cache.close()
            os._exit(0)
        assert os.waitpid(pid, 0)[1] == 0
        store.get_bytes(names[2])
        store.get_bytes(names[3])
        assert names[0] in place.cached(), "its hold went with the child"
answer("done")
""",
        place.folder,
        *names,
    )
    out, err = child.communicate(timeout=60)
    assert out == '"done"\n', err
    check(place.cache, 2500)


def test_threads_of_one_process(place):
    files = {f"f{number}": os.urandom(2000) for number in range(30)}
    names = [digest(data) for data in files.values()]
    place.put(*files.values())
    wrong = []

    def read(store, seed):
        try:
            chance = random.Random(seed)
            wrong.extend(name for name in chance.sample(names, len(names)) if digest(store.get_bytes(name)) != name)
        except Exception as error:  # noqa: BLE001 - shown below
            wrong.append(error)

    with place.open() as store:
        threads = [threading.Thread(target=read, args=(store, seed)) for seed in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert wrong == []
        assert set(place.reads().values()) == {1}
    check(place.cache)


def test_waiting_for_another_can_be_ended(place):
    from oarbank_cas.errors import StoppedError
    from oarbank_cas.stopping import Stop

    (name,) = place.put(b"data" * 1000)
    bringing = start(
        """
place = cache_kit.Place(arguments[0])
with place.open() as store:
    def fetch(digest, fd, label):
        answer("at it")
        time.sleep(600)
    store.cache.fill(arguments[1], 4000, fetch)
""",
        place.folder,
        name,
    )
    try:
        assert bringing.stdout.readline() == '"at it"\n'
        with place.open() as store:
            with pytest.raises(StoppedError), Stop(deadline_s=0.3):
                store.get_bytes(name)
            assert bringing.poll() is None
    finally:
        end(bringing)
    with place.open() as store:
        assert store.get_bytes(name) == b"data" * 1000
    check(place.cache)


def test_a_blob_that_was_cut_goes_on(place):
    """What came before the store failed is kept, with its room, for whoever wants the blob next."""
    data = os.urandom(3 * 2**20)
    (name,) = place.put(data)
    with place.open(10 * 2**20) as store:

        def cut(digest, fd, label):
            os.write(fd, data[: 2 * 2**20])
            raise UnavailableError("the line is cut")

        with pytest.raises(UnavailableError):
            store.cache.fill(name, len(data), cut)
        assert Path(store.cache.folder.partial(name)).stat().st_size == 2 * 2**20
        assert cached(place.cache) == {}
        began = []

        def go_on(digest, fd, label):
            began.append(os.fstat(fd).st_size)
            return store.reads.fetch(digest, fd, label)

        os.close(store.cache.fill(name, len(data), go_on))
        assert began == [2 * 2**20]
        assert cached(place.cache) == {name: data}
    check(place.cache)


@pytest.mark.parametrize("theirs", [b"", b"half", b"wrong" * 800])
def test_the_file_of_another_bringer_never_gets_the_name(place, theirs):
    """The lock was removed with all else, and another has begun to bring the same at the same place."""
    data = b"data" * 1000
    (name,) = place.put(data)
    began = []
    with place.open() as store:

        def robbed(digest, fd, label):
            size = store.reads.fetch(digest, fd, label)
            if not began:
                shutil.rmtree(Path(label).parent)
                Path(label).parent.mkdir()
                Path(label).write_bytes(theirs)
            began.append(1)
            return size

        with os.fdopen(store.cache.fill(name, len(data), robbed), "rb") as file:
            assert file.read() == data
        assert len(began) == 2
        assert store.get_bytes(name) == data
    assert cached(place.cache) == {name: data}
    check(place.cache)


def test_no_two_write_to_one_file(place):
    """The lock file alone was removed while one is bringing. Who comes then must not write to what the first writes."""
    data = os.urandom(200_000)
    (name,) = place.put(data)
    other = []
    with place.open() as store, place.open() as second:

        def slowly(digest, fd, label):
            os.ftruncate(fd, 0)
            time.sleep(1)
            return second.reads.fetch(digest, fd, label)

        def first(digest, fd, label):
            size = store.reads.fetch(digest, fd, label)
            os.unlink(f"{label}.lock")
            other.append(threading.Thread(target=lambda: os.close(second.cache.fill(digest, len(data), slowly))))
            other[0].start()
            for _ in range(100):
                time.sleep(0.02)
                assert os.fstat(fd).st_size == len(data), "the other has emptied it"
            return size

        with os.fdopen(store.cache.fill(name, len(data), first), "rb") as file:
            assert file.read() == data
        other[0].join()
        assert store.get_bytes(name) == data
    assert cached(place.cache) == {name: data}
    check(place.cache)
