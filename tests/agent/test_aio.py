import asyncio
import itertools
import json
import threading

import pytest
from agent_kit import ORIGIN, digest, key, memory_store, result, write_job

from oarbank_cas import AsyncStore, InvalidInputError, NotFoundError, UnavailableError
from oarbank_cas.aio import _WINDOW
from oarbank_cas.backends.memory import MemoryBackend


@pytest.fixture
def backend(recorded):
    return recorded(MemoryBackend())


@pytest.fixture
def store(backend, workdir):
    store = memory_store(backend)
    write_job(workdir, {"x": b"x"})
    for number in range(3):
        store.publish(key(number), workdir, ORIGIN)
    return store


def run(coroutine):
    return asyncio.run(asyncio.wait_for(coroutine, 60))


CALLS = {
    "lookup": lambda many: many.lookup(key()),
    "record": lambda many: many.record(key(9), many.store.lookup(key()).envelope, ORIGIN),
    "missing": lambda many: many.missing([digest(b"x"), digest(b"none")]),
    "lookup_many": lambda many: collect(many.lookup_many([key(), key(9)])),
}


async def collect(answers):
    return [answer async for answer in answers]


@pytest.mark.parametrize("name", CALLS)
def test_a_slow_store_does_not_stop_the_loop(store, backend, name):
    """The storage answers only after the loop has gone round many times, which it could not if it waited."""

    async def main():
        async with AsyncStore(store) as many:
            call = CALLS[name](many)  # prepared first: only the coroutine itself is under test
            reached, released = threading.Event(), threading.Event()

            def slow(*_):
                reached.set()
                assert released.wait(60)

            backend.hooks.update(read=slow, stat=slow, now=slow)
            waiting = asyncio.ensure_future(call)
            while not reached.is_set():
                await asyncio.sleep(0)
            for _ in range(1000):
                await asyncio.sleep(0)
            assert not waiting.done()
            released.set()
            return await waiting

    answer = run(main())
    backend.hooks.clear()
    if name == "lookup":
        assert answer.hit
    elif name == "record":
        assert answer.recorded
        assert store.lookup(key(9)).hit
    elif name == "missing":
        assert answer == [digest(b"none")]
    else:
        assert [each.status for each in answer] == ["hit", "miss"]


def test_lookups_run_side_by_side_up_to_the_number_of_threads(store, backend):
    async def main():
        async with AsyncStore(store, threads=3) as many:
            together = threading.Barrier(3)  # breaks unless three are under way at once
            backend.hooks["read"] = lambda *_: together.wait(30)
            return await asyncio.gather(*(many.lookup(key(number)) for number in range(3)))

    assert all(answer.hit for answer in run(main()))


def test_keys_are_taken_as_needed_and_answers_are_in_order(store):
    taken = []

    def keys():
        for number in itertools.count():
            taken.append(number)
            yield key(number % 4)

    async def main():
        async with AsyncStore(store) as many:
            answers = many.lookup_many(keys())
            first = [await anext(answers) for _ in range(_WINDOW + 1)]
            await answers.aclose()
            return first

    first = run(main())
    assert len(taken) <= 2 * _WINDOW
    assert [answer.job_key for answer in first] == [key(number % 4) for number in range(_WINDOW + 1)]
    assert [answer.hit for answer in first[:4]] == [True, True, True, False]


def test_errors_come_through(store, backend, workdir):
    async def main():
        async with AsyncStore(store) as many:
            with pytest.raises(InvalidInputError):
                await many.lookup("nonsense")
            with pytest.raises(InvalidInputError):
                await many.lookup(key(), "BAD")
            with pytest.raises(InvalidInputError):
                await collect(many.lookup_many([key()], "BAD"))
            with pytest.raises(InvalidInputError):
                await many.missing(["nonsense"])
            with pytest.raises(InvalidInputError):
                await many.record(key(8), b"{}", ORIGIN)
            gone = json.dumps(result({"out": [{"path": "x", "digest": digest(b"none"), "size": 1}]})).encode()
            with pytest.raises(NotFoundError):
                await many.record(key(8), gone, ORIGIN)

            def out_of_reach(*_):
                raise UnavailableError("the network is gone")

            backend.hooks.update(read=out_of_reach, stat=out_of_reach)
            with pytest.raises(UnavailableError):
                await many.lookup(key())
            with pytest.raises(UnavailableError):
                await many.missing([digest(b"x")])
            answers = await collect(many.lookup_many([key(), key(1)]))
            assert [(each.status, each.reason) for each in answers] == [("error", "UnavailableError")] * 2
            backend.hooks.clear()
            assert (await many.lookup(key())).hit

    run(main())


def test_answers_before_a_malformed_key_are_not_lost(store):
    async def main():
        async with AsyncStore(store) as many:
            answers = many.lookup_many([key(), key(1), "nonsense", key(2)])
            seen = [(await anext(answers)).job_key, (await anext(answers)).job_key]
            with pytest.raises(InvalidInputError, match="nonsense"):
                await anext(answers)
        return seen

    assert run(main()) == [key(), key(1)]


def test_a_cancelled_call_frees_its_caller(store, backend):
    released = threading.Event()
    backend.hooks["read"] = lambda *_: released.wait(60)

    async def main():
        many = AsyncStore(store)
        waiting = asyncio.ensure_future(many.lookup(key()))
        await asyncio.sleep(0.01)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        released.set()
        many.close()

    run(main())


def test_the_loser_of_a_record_is_told(store):
    async def main():
        async with AsyncStore(store) as many:
            envelope = (await many.lookup(key())).envelope
            done = await asyncio.gather(*(many.record(key(7), envelope, ORIGIN) for _ in range(5)))
            return sorted(each.recorded for each in done)

    assert run(main()) == [False] * 4 + [True]
