"""The one file lock: whole files, one descriptor at a time, given back by unlock, close and death."""

from __future__ import annotations

import os
import subprocess
import sys
import threading

import pytest

from oarbank_cas import filelock


@pytest.fixture
def opened(tmp_path):
    """Opens the lock file anew at each call."""
    fds = []

    def call(flags=os.O_RDWR | os.O_CREAT):
        fds.append(os.open(tmp_path / "lock", flags, 0o666))
        return fds[-1]

    yield call
    for fd in fds:
        try:
            os.close(fd)
        except OSError:
            continue


@pytest.mark.parametrize("give_back", [filelock.unlock, os.close])
def test_one_descriptor_at_a_time(opened, give_back):
    first, second = opened(), opened()
    assert filelock.try_lock(first)
    assert not filelock.try_lock(second)
    give_back(first)
    assert filelock.try_lock(second)


def test_what_cannot_be_locked_is_not_taken_for_held(opened):
    fd = opened()
    os.close(fd)
    for call in (filelock.try_lock, filelock.lock, filelock.unlock):
        with pytest.raises(OSError, match="descriptor"):
            call(fd)


def test_lock_waits(opened):
    first, second = opened(), opened()
    filelock.lock(first)
    waiter = threading.Thread(target=filelock.lock, args=(second,))
    waiter.start()
    waiter.join(timeout=0.2)
    assert waiter.is_alive()
    filelock.unlock(first)
    waiter.join(timeout=20)
    assert not waiter.is_alive()
    assert not filelock.try_lock(first)


def test_a_file_open_for_reading_can_be_locked(opened):
    opened()
    first, second = opened(os.O_RDONLY), opened()
    assert filelock.try_lock(first)
    assert not filelock.try_lock(second)


def test_a_holder_that_dies_gives_it_back(opened, tmp_path):
    code = (
        "import os, sys, time; from oarbank_cas import filelock\n"
        "fd = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)\n"
        "assert filelock.try_lock(fd); print('held', flush=True); time.sleep(600)"
    )
    holder = subprocess.Popen([sys.executable, "-c", code, tmp_path / "lock"], stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout.readline() == "held\n"
        fd = opened()
        assert not filelock.try_lock(fd)
        holder.kill()
        holder.wait(timeout=20)
        filelock.lock(fd)
    finally:
        holder.kill()
        holder.communicate()
