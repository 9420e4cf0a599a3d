"""Many calls to a storage from afar at once: answers in the order of the questions, no more than a window held."""

from __future__ import annotations

import itertools
from collections import deque
from typing import TYPE_CHECKING, TypeVar

from oarbank_cas import stopping

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from concurrent.futures import Future

_T = TypeVar("_T")
_R = TypeVar("_R")

_AHEAD = 4
"""Questions taken ahead for each that is under way."""


def in_order(work: Callable[[_T], _R], items: Iterable[_T], at_once: int, ahead: int = _AHEAD) -> Iterator[_R]:
    """Do something for each item, several at once; one answer each, in order.

    An error comes in its item's turn and ends it. Items are taken as answers are fetched, so that any number will do.

    Args:
        work: called from several threads where `at_once` is above 1.
        items: of any number.
        at_once: calls under way at once, at most.
        ahead: items taken for each call under way; so many answers may wait to be fetched.
    """
    if at_once <= 1:
        yield from map(work, items)
        return
    waiting = iter(items)
    window: deque[Future[_R]] = deque()
    with stopping.Threads(at_once, "batch") as pool:
        try:
            for item in itertools.islice(waiting, at_once * ahead):
                window.append(pool.submit(work, item))
            while window:
                answer = stopping.result(window.popleft())
                for item in itertools.islice(waiting, 1):
                    window.append(pool.submit(work, item))
                yield answer
        finally:
            for future in window:
                future.cancel()
