"""Which of many blobs are absent, and how large the others are: by asking for each, or by listing their shards.

One list tells of up to a thousand blobs and takes the server as long as a few questions. What is cheaper depends on how
full the shards are, which one of them tells of all: digests spread evenly.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from oarbank_cas import layout
from oarbank_cas.batches import in_order

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from oarbank_cas.backends.base import Backend

LIST_COST = 8.0
"""What a list of a thousand objects costs, where asking for one costs 1. Measured: docs/s3.md."""

_FEW = 32
"""Up to this many are asked for, without a look at the store's size."""

_WINDOW = 65_536
"""Digests that are held at once."""

_SAMPLE = 1000
_PAGE = 1000


def absent(backend: Backend, digests: Iterable[str], list_cost: float = LIST_COST) -> Iterator[str]:
    """Those of `digests` that are absent, in the order given.

    Args:
        backend: the store's storage.
        digests: well-formed, each once.
        list_cost: as `LIST_COST`; infinity never lists, 0 always does.
    """
    waiting = iter(digests)
    while window := list(itertools.islice(waiting, _WINDOW)):
        found = present(backend, window, list_cost)
        yield from (digest for digest in window if digest not in found)


def present(backend: Backend, digests: Sequence[str], list_cost: float = LIST_COST) -> dict[str, int]:
    """Those of `digests` that are there, each with its size in bytes. All are held in memory.

    Args:
        backend: the store's storage.
        digests: well-formed, each once.
        list_cost: as in `absent`.
    """
    shards: dict[str, list[str]] = {}
    for digest in digests:
        shards.setdefault(digest[:2], []).append(digest)
    listed = _worth_listing(backend, shards, len(digests), list_cost) if backend.requests_at_once > 1 else set()
    found: dict[str, int] = {}
    for sizes in in_order(
        lambda shard: _listed(backend, shard, shards[shard]), sorted(listed), backend.requests_at_once
    ):
        found |= sizes
    asked = [digest for shard, names in shards.items() if shard not in listed for digest in names]
    stats = in_order(lambda digest: backend.stat(layout.blob(digest)), asked, backend.requests_at_once)
    found |= {digest: stat.size for digest, stat in zip(asked, stats, strict=True) if stat is not None}
    return found


def _worth_listing(backend: Backend, shards: dict[str, list[str]], count: int, list_cost: float) -> set[str]:
    """The shards that are cheaper to list than to ask for their digests one by one."""
    if count <= _FEW and list_cost > 0:
        return set()
    fullest = max(shards, key=lambda shard: len(shards[shard]))
    size = sum(1 for _ in itertools.islice(backend.listing(_prefix(fullest)), _SAMPLE))
    # A sample that is cut off says no more than that the shard is large.
    pages = 1 + size // _PAGE * 4
    cost = pages * (1 + list_cost * min(size, _PAGE) / _PAGE) if list_cost else 0
    return {shard for shard, names in shards.items() if len(names) > cost}


def _prefix(shard: str) -> str:
    return layout.blob(shard + "0" * 62)[: -len("0" * 64)]


def _listed(backend: Backend, shard: str, digests: list[str]) -> dict[str, int]:
    wanted = set(digests)
    prefix = _prefix(shard)
    first, last = min(wanted), max(wanted)
    # The name before the first: a listing begins after what it is given.
    found = {}
    for stat in backend.listing(prefix, after=prefix + first[:-1]):
        name = stat.name[len(prefix) :]
        if name > last:
            break
        if name in wanted:
            found[name] = stat.size
    return found
