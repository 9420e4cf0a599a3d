"""Which of many blobs are absent, and how large the others are: by asking for each, or by listing their shards.

One list tells of up to a thousand blobs. What is cheaper depends on how full the shards are, and on the server, the
network and the client: some servers list a thousand objects in the time of ten questions, others of two hundred. So a
few of both are timed, and their answers used. One shard is as full as another: digests spread evenly.
"""

from __future__ import annotations

import itertools
import time
from typing import TYPE_CHECKING

from oarbank_cas import layout
from oarbank_cas.batches import in_order

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from oarbank_cas.backends.base import Backend

FEW = 256
"""Up to this many are asked for, without a look at lists."""

_WARMING = 64
_QUESTIONS = 128
_LISTS = 8
"""How many of each are timed, several at once as all the others will be; before them, some that open connections."""

WINDOW = 65_536
"""Digests that are held at once."""

_PAGE = 1000


def absent(backend: Backend, digests: Iterable[str], list_cost: float | None = None) -> Iterator[str]:
    """Those of `digests` that are absent, in the order given.

    Args:
        backend: the store's storage.
        digests: well-formed, each once.
        list_cost: what listing a shard costs, where asking for one blob costs 1. None finds it out; infinity never
            lists, 0 always does.
    """
    waiting = iter(digests)
    while window := list(itertools.islice(waiting, WINDOW)):
        found = present(backend, window, list_cost)
        yield from (digest for digest in window if digest not in found)


def present(backend: Backend, digests: Sequence[str], list_cost: float | None = None) -> dict[str, int]:
    """Those of `digests` that are there, each with its size in bytes. All are held in memory.

    Args:
        backend: the store's storage.
        digests: well-formed, each once.
        list_cost: as in `absent`.
    """
    found: dict[str, int] = {}
    left = digests
    if backend.requests_at_once > 1 and (list_cost is not None or len(digests) > FEW):
        left = _list_where_cheaper(backend, digests, list_cost, found)
    _ask(backend, left, found)
    return found


def _ask(backend: Backend, digests: Sequence[str], found: dict[str, int]) -> None:
    stats = in_order(lambda digest: backend.stat(layout.blob(digest)), digests, backend.requests_at_once)
    found |= {digest: stat.size for digest, stat in zip(digests, stats, strict=True) if stat is not None}


def _list_where_cheaper(
    backend: Backend, digests: Sequence[str], list_cost: float | None, found: dict[str, int]
) -> list[str]:
    """List the shards for which that is cheaper; the digests that are still to be asked for."""
    asked = digests[: _WARMING + _QUESTIONS] if list_cost is None else []
    shards: dict[str, list[str]] = {}
    for digest in digests[len(asked) :]:
        shards.setdefault(digest[:2], []).append(digest)
    if list_cost is None:
        _ask(backend, asked[:_WARMING], found)
        began = time.perf_counter()
        _ask(backend, asked[_WARMING:], found)
        question_s = (time.perf_counter() - began) / _QUESTIONS
        tried = sorted(shards, key=lambda shard: len(shards[shard]))[-_LISTS:]
        began = time.perf_counter()
        ended = _list(backend, shards, tried, found, _PAGE)
        list_cost = (time.perf_counter() - began) / len(tried) / question_s
        if ended != len(tried):
            list_cost *= 5  # a first page says no more of a shard than that it has several
    worth = sorted(shard for shard, names in shards.items() if len(names) > list_cost)
    _list(backend, shards, worth, found)
    return [digest for names in shards.values() for digest in names]


def _list(
    backend: Backend,
    shards: dict[str, list[str]],
    which: Sequence[str],
    found: dict[str, int],
    most: int | None = None,
) -> int:
    """Answer for shards by listing each, at most `most` objects of it; how many came to their end, and are done."""
    lists = in_order(lambda shard: _listed(backend, shard, shards[shard], most), which, backend.requests_at_once)
    ended = 0
    for shard, sizes in zip(which, lists, strict=True):
        if sizes is not None:
            found |= sizes
            del shards[shard]
            ended += 1
    return ended


def _listed(backend: Backend, shard: str, digests: list[str], most: int | None) -> dict[str, int] | None:
    """The sizes of those that a shard has; None where it has more than `most` objects."""
    wanted = set(digests)
    prefix = layout.blob(shard + "0" * 62)[: -len("0" * 64)]
    first, last = min(wanted), max(wanted)
    found = {}
    # The name before the first: a listing begins after what it is given.
    for number, stat in enumerate(backend.listing(prefix, after=prefix + first[:-1]), 1):
        name = stat.name[len(prefix) :]
        if name > last:
            break
        if name in wanted:
            found[name] = stat.size
        if number == most:
            return None
    return found
