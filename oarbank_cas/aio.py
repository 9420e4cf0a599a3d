"""A store for asyncio programs: what a coordinator calls per job, as coroutines that never block its loop."""

from __future__ import annotations

import asyncio
import functools
import itertools
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Self, TypeVar

from oarbank_cas.contracts.keys import check_class
from oarbank_cas.errors import CasError
from oarbank_cas.results import MAX_INLINE_KB

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable

    from oarbank_cas.contracts.key_inputs import KeyInputs
    from oarbank_cas.lookups import Lookup
    from oarbank_cas.results import Origin, Recorded
    from oarbank_cas.store import Store

_T = TypeVar("_T")

_WINDOW = 256
"""Keys that one thread looks up before it hands the answers over."""


class AsyncStore:
    """The coroutines of a store; the work is done on threads of its own.

    Args:
        store: an open store; closing it stays its owner's affair.
        threads: how many calls are under way at once, at most.
    """

    def __init__(self, store: Store, threads: int = 8) -> None:
        self.store = store
        self._pool = ThreadPoolExecutor(max_workers=threads, thread_name_prefix="oarbank-cas-aio")

    async def _run(self, call: Callable[[], _T]) -> _T:
        return await asyncio.get_running_loop().run_in_executor(self._pool, call)

    async def lookup(self, key: str, result_class: str = "any", *, complete: bool = True) -> Lookup:
        """See `Store.lookup`."""
        return await self._run(lambda: self.store.lookup(key, result_class, complete=complete))

    async def lookup_many(
        self, keys: Iterable[str], result_class: str = "any", *, complete: bool = True
    ) -> AsyncIterator[Lookup]:
        """See `Store.lookup_many`. Answers come in the order of the keys; a bounded number is held in memory."""
        check_class(result_class)
        waiting = iter(keys)
        while window := list(itertools.islice(waiting, _WINDOW)):
            answers, error = await self._run(functools.partial(self._window, window, result_class, complete))
            for answer in answers:
                yield answer
            if error is not None:
                raise error

    def _window(self, keys: list[str], result_class: str, complete: bool) -> tuple[list[Lookup], CasError | None]:
        answers: list[Lookup] = []
        try:
            answers.extend(self.store.lookup_many(keys, result_class, complete=complete))
        except CasError as error:  # those before it are answers all the same
            return answers, error
        return answers, None

    async def record(
        self,
        key: str,
        envelope: bytes,
        origin: Origin,
        result_class: str = "any",
        *,
        max_inline_kb: int = MAX_INLINE_KB,
        key_inputs: KeyInputs | None = None,
    ) -> Recorded:
        """See `Store.record`."""
        return await self._run(
            lambda: self.store.record(
                key, envelope, origin, result_class, max_inline_kb=max_inline_kb, key_inputs=key_inputs
            )
        )

    async def missing(self, digests: Iterable[str]) -> list[str]:
        """See `Store.missing`."""
        wanted = list(digests)
        return await self._run(lambda: self.store.missing(wanted))

    def close(self) -> None:
        """Let the threads end, once their calls are done."""
        self._pool.shutdown(wait=True)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.get_running_loop().run_in_executor(None, self.close)
