"""The recorded results of a module whose inputs are most like given ones. The index proposes, the documents decide."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from oarbank_cas import layout
from oarbank_cas.batches import in_order
from oarbank_cas.contracts.difference import Difference, differences
from oarbank_cas.copying import key_of
from oarbank_cas.explain.answers import Near
from oarbank_cas.explain.traces import text
from oarbank_cas.gc.names import is_entry_name
from oarbank_cas.inputs.index import InputsIndex
from oarbank_cas.inputs.kept import kept

if TYPE_CHECKING:
    from collections.abc import Iterator

    from oarbank_cas.backends.base import Backend
    from oarbank_cas.blobs import Blobs
    from oarbank_cas.contracts.key_inputs import KeyInputs
    from oarbank_cas.contracts.keys import JobKey
    from oarbank_cas.lookups import Lookups
    from oarbank_cas.progress import Step

EXAMINED = 32
"""Keys that the index is asked for, and documents that are compared."""

AGAIN = 256
"""Keys that it is asked for where so many of those have ended that there are not enough."""

MAX_ENTRIES = 50
"""Entries and tombstones of one key that are looked at."""

MAX_DIFFERENCES = 20
"""Differences of one result that are told; more are counted."""


def names_of(backend: Backend, key_hex: str) -> Iterator[str]:
    """The object names of the entries and tombstones of a key's stages and classes, `MAX_ENTRIES` at most."""
    prefix = f"{layout.RESULTS}{key_hex[:2]}/{key_hex}/"
    names = (stat.name for stat in backend.listing(prefix) if is_entry_name(stat.name))
    return itertools.islice(names, MAX_ENTRIES)


def nearest(
    backend: Backend,
    blobs: Blobs,
    lookups: Lookups,
    wanted: KeyInputs,
    result_class: str,
    most: int,
    progress: Step | None = None,
) -> tuple[tuple[Near, ...], int]:
    """Find them: those with the fewest differences, the latest first among equals.

    Args:
        backend: the store's storage.
        blobs: its blobs.
        lookups: lookups of it that note no hits.
        wanted: the inputs asked for.
        result_class: the class asked for; another counts as a difference, as does another stage.
        most: how many are wanted.
        progress: called with the bytes of each document, where the index has to be made again.

    Returns:
        The results, and how many jobs the index knows of the module.
    """
    for proposed in (EXAMINED, AGAIN):
        alike = InputsIndex(backend).alike(wanted, proposed, progress)
        examined = in_order(
            lambda key: _examine(backend, blobs, lookups, key, wanted, result_class),
            alike.keys,
            backend.requests_at_once,
            ahead=1,
        )
        found = list(itertools.islice((near for near in examined if near is not None), EXAMINED))
        if len(found) >= most or len(alike.keys) < proposed:
            break
    found.sort(key=lambda near: (near.recorded_at or "", near.job_key, near.result_class), reverse=True)
    found.sort(key=lambda near: near.count)
    return tuple(found[:most]), alike.rows


def _examine(
    backend: Backend, blobs: Blobs, lookups: Lookups, key_hex: str, wanted: KeyInputs, result_class: str
) -> Near | None:
    """The entry of a key that is nearest; None where none stands, or its inputs are gone."""
    standing = [key_of(name) for name in names_of(backend, key_hex)]
    if not standing:
        return None
    inputs = kept(blobs, key_hex)
    if inputs is None or inputs.module != wanted.module:
        return None
    apart = 0
    shown: list[Difference] = []
    for each in differences(inputs.document, wanted.document):
        apart += 1
        if len(shown) < MAX_DIFFERENCES:
            shown.append(each)
    near = []
    for parts, in_class in standing:
        found = lookups.lookup(str(parts), in_class, complete=False)
        if found.hit:
            beside = _beside(parts, in_class, wanted, result_class)
            at, by = text(found.header.get("recorded_at")), text(found.header.get("recorded_by"))
            told = (*beside, *shown)[:MAX_DIFFERENCES]
            near.append(Near(str(parts), in_class, at, by, apart + len(beside), told))
    return min(near, key=lambda each: each.count, default=None)


def _beside(parts: JobKey, in_class: str, wanted: KeyInputs, result_class: str) -> list[Difference]:
    """How a result differs beside its inputs."""
    pairs = {"stage": (parts.stage, wanted.stage), "class": (in_class, result_class)}
    return [Difference((name,), before, after) for name, (before, after) in pairs.items() if before != after]
