"""Every object name of a store, format 1, in one place.

No name holds a `:`, differs from another only in case, or is a Windows device.
"""

from __future__ import annotations

FORMAT = 1
"""The layout's version. A store of a newer one is refused."""

DESCRIPTOR = "oarbank-cas.json"
CACHE_DESCRIPTOR = "oarbank-cas-cache.json"
"""What a local cache has in the place of a descriptor, so that nobody takes one for a store."""

BLOBS = "blobs/"
FOSSILS = "fossils/"
RESULTS = "results/"
PINS = "pins/"
TMP = "tmp/"
DAMAGED = "damaged/"
GC = "gc/"
POLICY = "policy.json"
CAPABILITIES = "capabilities.json"
GC_RUNS = "gc/runs/"
GC_RUNNING = "gc/running/"
GC_STATE = "gc/state/"
GC_HITS = "gc/hits/"
GC_EPOCHS = "gc/epochs/"
GC_PURGES = "gc/purges/"
GC_ENDED = "gc/ended/"
EXPLAIN = "explain/"
"""The index of key inputs: what `explain` finds similar jobs by. Safe to lose."""
EXPLAIN_NEW = "explain/1/new/"
EXPLAIN_ROWS = "explain/1/rows/"
EXPLAIN_MADE = "explain/1/made"


def blob(digest: str) -> str:
    """The bytes of blob `digest`."""
    return f"blobs/{digest[:2]}/{digest}"


def fossil_prefix(digest: str) -> str:
    """What the names of all fossils of `digest` start with, as a listing's prefix and the start of a name in it."""
    return f"fossils/{digest[:2]}/"


def fossil(digest: str, nonce: str) -> str:
    """A condemned incarnation of blob `digest`. `nonce` is never used twice."""
    return f"fossils/{digest[:2]}/{digest}.{nonce}"


def entry(key_hex: str, stage: str | None, result_class: str) -> str:
    """The entry, or its tombstone, of a job key and a result class."""
    return f"results/{key_hex[:2]}/{key_hex}/{stage or '_'}@{result_class}"


def pin(name: str) -> str:
    """A named root."""
    return f"pins/{name}"


def damaged(digest: str, nonce: str) -> str:
    """Bytes that failed their check, kept for people."""
    return f"damaged/{digest}.{nonce}"


def gc_ended(seconds: int, run: str, first: str, last: str) -> str:
    """Names of entries that a gc ended; `first` and `last` are beginnings of the job keys between which they lie."""
    return f"gc/ended/{seconds:012d}-{run}-{first}-{last}"


def key_inputs_new(module: str, key_hex: str, sketch: str) -> str:
    """A note that the key inputs of a job were kept; `module` is a module's tag, `sketch` in hex."""
    return f"explain/1/new/{module}/{key_hex[:2]}/{key_hex}.{sketch}"


def key_inputs_rows(module: str, sketches: str, keys: str) -> str:
    """Many such notes in one object; the last two are digests of its halves."""
    return f"explain/1/rows/{module}/{sketches}-{keys}"
