"""Many questions at once: in order, in a window, by whichever of asking and listing is cheaper."""

from __future__ import annotations

import hashlib
import random
import threading
import time

import pytest

from oarbank_cas import absent as absent_module
from oarbank_cas import layout
from oarbank_cas.absent import absent
from oarbank_cas.backends.memory import MemoryBackend
from oarbank_cas.batches import in_order
from oarbank_cas.blobs import Blobs
from oarbank_cas.errors import InvalidInputError


def digest(number):
    return hashlib.sha256(str(number).encode()).hexdigest()


class TestInOrder:
    @pytest.mark.parametrize("at_once", [1, 2, 7])
    def test_answers_come_in_order(self, at_once):
        chance = random.Random(1)

        def work(number):
            time.sleep(chance.random() / 1000)
            return number * 2

        assert list(in_order(work, range(200), at_once)) == [number * 2 for number in range(200)]
        assert list(in_order(work, [], at_once)) == []

    def test_no_more_than_a_window_is_taken(self):
        taken = []

        def items():
            for number in range(10_000):
                taken.append(number)
                yield number

        answers = in_order(lambda number: number, items(), 4)
        for expected in range(100):
            assert next(answers) == expected
            assert len(taken) <= expected + 4 * 4 + 2
        answers.close()
        assert len(taken) < 200

    def test_an_error_comes_in_its_turn(self):
        def work(number):
            if number == 5:
                raise ValueError("five")
            return number

        answers = in_order(work, range(100), 4)
        assert [next(answers) for _ in range(5)] == [0, 1, 2, 3, 4]
        with pytest.raises(ValueError, match="five"):
            next(answers)

    def test_they_are_under_way_at_once(self):
        together = threading.Barrier(3, timeout=20)
        assert list(in_order(lambda _: together.wait() >= 0, range(3), 3)) == [True] * 3


class Distant(MemoryBackend):
    """A storage that is best asked many things at once, and counts what it is asked."""

    def __init__(self):
        super().__init__(atomic_move=False)
        self.requests_at_once = 4
        self.asked = 0
        self.listed = 0

    def stat(self, name):
        self.asked += 1
        return super().stat(name)

    def listing(self, prefix, after=""):
        self.listed += 1
        return super().listing(prefix, after)


@pytest.fixture
def distant():
    backend = Distant()
    backend.commit([(layout.blob(digest(number)), backend.incoming()) for number in range(3000)])
    return backend


@pytest.mark.parametrize("cost", [0.0, 8.0, 1e9, float("inf")])
def test_the_answer_is_the_same_whatever_it_costs(distant, cost):
    wanted = [digest(number) for number in range(2990, 4000)]
    assert list(absent(distant, wanted, cost)) == [digest(number) for number in range(3000, 4000)]


@pytest.fixture
def clock(distant, monkeypatch):
    """Time that passes by what is asked of the storage: a question takes 1 s, a list what the test says."""

    class Clock:
        list_s = 4.0

        def perf_counter(self):
            return distant.asked + self.list_s * distant.listed

    made = Clock()
    monkeypatch.setattr(absent_module, "time", made)
    return made


def test_few_are_asked_for(distant, clock):
    assert list(absent(distant, [digest(1), digest("none")])) == [digest("none")]
    assert (distant.asked, distant.listed) == (2, 0)


def test_many_are_listed_where_that_is_found_to_be_cheaper(distant, clock):
    wanted = [digest(n) for n in range(6000)]
    assert list(absent(distant, wanted)) == wanted[3000:]
    assert distant.listed == 256
    assert distant.asked == 192


def test_many_are_asked_for_where_that_is_found_to_be_cheaper(distant, clock):
    clock.list_s = 100.0
    wanted = [digest(n) for n in range(6000)]
    assert list(absent(distant, wanted)) == wanted[3000:]
    assert distant.listed == 8
    assert 5500 < distant.asked < 6000, "what the lists told is not asked again"


def test_shards_of_many_pages_cost_more_than_their_first(distant, clock, monkeypatch):
    monkeypatch.setattr(absent_module, "_PAGE", 3)
    clock.list_s = 6.0  # and the questions for a shard take about 23 s
    wanted = [digest(n) for n in range(6000)]
    assert list(absent(distant, wanted)) == wanted[3000:]
    assert distant.listed < 30


def test_a_full_store_is_not_listed_for_a_few(distant):
    assert list(absent(distant, [digest(n) for n in range(64)], 1000.0)) == []
    assert distant.asked == 64


def test_missing_keeps_the_order_and_takes_each_once(distant):
    blobs = Blobs(distant, 3600)
    wanted = [digest("b"), digest(1), digest("a"), digest("b")]
    assert blobs.missing(iter(wanted)) == [digest("b"), digest("a")]
    with pytest.raises(InvalidInputError):
        blobs.missing(["no digest"])


def test_a_disk_is_asked_one_by_one():
    backend = MemoryBackend()
    assert list(absent(backend, [digest(n) for n in range(100)])) == [digest(n) for n in range(100)]
