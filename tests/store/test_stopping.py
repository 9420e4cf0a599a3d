"""A stop reaches whoever works under it, and nobody else."""

from __future__ import annotations

import threading
import time

import pytest

from oarbank_cas import stopping
from oarbank_cas.batches import in_order
from oarbank_cas.errors import CasError, StoppedError
from oarbank_cas.stopping import Stop, Stopping, Threads


def test_without_one_nothing_ends():
    stopping.check()
    assert not stopping.is_in_force()
    assert stopping.attend(threading.current_thread) is threading.current_thread()
    stopping.sleep(0)


def test_a_deadline_that_passed():
    with pytest.raises(StoppedError, match=r"within 0\.01 s"), Stop(0.01):  # noqa: PT012
        time.sleep(0.02)
        stopping.check()
    stopping.check()


def test_cancelled_from_another_thread():
    with pytest.raises(StoppedError, match="cancelled"), Stop() as stop:  # noqa: PT012
        threading.Timer(0.05, stop.cancel).start()
        stopping.sleep(60)


def test_what_is_done_before_the_deadline_looks_is_done():
    with Stop(0):
        pass


def test_it_is_no_exception_on_its_way_out():
    """Nobody on the way takes it for a fault, and goes on."""
    caught = []
    with pytest.raises(StoppedError), Stop(0):  # noqa: PT012
        try:
            stopping.check()
        except Exception as error:  # noqa: BLE001 - what is tested
            caught.append(error)
    assert caught == []
    assert not issubclass(Stopping, Exception)
    assert issubclass(StoppedError, CasError)


def test_the_outer_ends_the_inner_and_not_the_other_way_round():
    with Stop() as outer:
        with pytest.raises(StoppedError), Stop(0):
            stopping.check()
        stopping.check()
        outer.cancel()
        with pytest.raises(Stopping), Stop(60):
            stopping.check()
        assert stopping.is_in_force()
    assert not stopping.is_in_force()


def test_another_error_goes_by():
    with pytest.raises(ZeroDivisionError), Stop(60):
        raise ZeroDivisionError


def test_other_threads_are_not_meant():
    seen = []
    with Stop(0):
        thread = threading.Thread(target=lambda: seen.append(stopping.is_in_force()))
        thread.start()
        thread.join()
    assert seen == [False]


def test_threads_that_work_for_it_are():
    begun = threading.Event()

    def work():
        begun.set()
        stopping.sleep(60)

    with pytest.raises(StoppedError), Stop() as stop, Threads(2, "test") as pool:  # noqa: PT012
        futures = [pool.submit(work) for _ in range(50)]
        begun.wait(10)
        stop.cancel()
        stopping.results(futures)
    assert all(future.done() for future in futures)


@pytest.mark.parametrize("waits", [stopping.result, lambda future: stopping.results([future])])
def test_what_waits_for_a_future_ends_too(waits):
    with Threads(1, "test") as pool:
        going_on = threading.Event()
        future = pool.submit(going_on.wait, 60)
        with pytest.raises(StoppedError), Stop(0.05):
            waits(future)
        going_on.set()
    assert future.result()


def test_answers_and_errors_come_through():
    with Stop(60), Threads(2, "test") as pool:
        assert stopping.attend(divmod, 7, 2) == (3, 1)
        with pytest.raises(ZeroDivisionError):
            stopping.attend(divmod, 7, 0)
        assert stopping.result(pool.submit(divmod, 7, 2)) == (3, 1)
        with pytest.raises(ZeroDivisionError):
            stopping.results([pool.submit(divmod, 7, 2), pool.submit(divmod, 7, 0)])


def test_a_call_that_hangs_is_left_alone():
    going_on = threading.Event()
    with pytest.raises(StoppedError), Stop(0.05):
        stopping.attend(going_on.wait, 60)
    going_on.set()


def test_the_first_error_of_many_is_not_waited_for_the_others():
    going_on = threading.Event()
    pool = Threads(2, "test")
    slow = pool.submit(going_on.wait, 60)
    with pytest.raises(ZeroDivisionError):
        stopping.results([slow, pool.submit(divmod, 7, 0)])
    assert not slow.done()
    going_on.set()
    pool.shutdown()


@pytest.mark.parametrize("at_once", [2, 5])
def test_a_batch_ends(at_once):
    done = []

    def work(number):
        stopping.sleep(0.01)
        done.append(number)
        return number

    with pytest.raises(StoppedError), Stop(0.3):
        for _ in in_order(work, range(10**6), at_once):
            pass
    count = len(done)
    time.sleep(0.1)
    assert len(done) == count < 10**4


def test_an_interrupt_is_noticed_by_who_waits_for_it_and_raised_elsewhere():
    """Torn out of its waiting a thread might keep locks that its own threads need."""
    assert not stopping.interrupt()
    with pytest.raises(KeyboardInterrupt), Stop():  # noqa: PT012
        assert not stopping.interrupt()
        stopping.check()
    told = []
    with pytest.raises(KeyboardInterrupt), Stop() as stop, Threads(1, "test") as pool:  # noqa: PT012
        future = pool.submit(stopping.sleep, 60)
        threading.Timer(0.2, lambda: told.append((stop.interrupt(), stop.interrupt()))).start()
        stopping.result(future)
    assert told == [(True, False)]  # who insists gets it at once
    assert stop.interrupted
