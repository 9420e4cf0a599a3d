"""Whoever watches a transfer is told of every byte, once, and first how many there are."""

from __future__ import annotations

import threading

import pytest

from oarbank_cas.intake import Intake
from oarbank_cas.progress import steps
from oarbank_cas.sources import PathSource


class Watcher:
    """An fsspec callback in all but its name; it bears no two threads at once."""

    def __init__(self):
        self.size = None
        self.seen = []
        self._free = threading.Lock()

    def set_size(self, size):
        assert self.seen == []
        self.size = size

    def relative_update(self, inc=1):
        assert self._free.acquire(blocking=False)
        self.seen.append(inc)
        self._free.release()


@pytest.fixture
def paths(tmp_path):
    found = [tmp_path / f"{number}" for number in range(30)]
    for number, path in enumerate(found):
        path.write_bytes(bytes([number]) * (number * 20_000))
    return found


def test_a_callback_is_told_the_size_first(store, paths):
    watcher = Watcher()
    with Intake(store.backend, store.blobs) as intake:
        intake.add_files([PathSource(str(path)) for path in paths], watcher)
    assert watcher.size == sum(watcher.seen) == sum(path.stat().st_size for path in paths)
    assert len(watcher.seen) == len(paths)


def test_fsspecs_own(store, paths):
    callbacks = pytest.importorskip("fsspec.callbacks")
    callback = callbacks.Callback()
    with Intake(store.backend, store.blobs) as intake:
        intake.add_files([PathSource(str(path)) for path in paths], callback)
    assert callback.size == callback.value == sum(path.stat().st_size for path in paths)


def test_a_function_is_called_as_it_is():
    def step(size):
        raise AssertionError(size)

    def total():
        raise AssertionError("nobody asks")

    assert steps(step, total) is step
    assert steps(None, total) is None
