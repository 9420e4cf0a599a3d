"""Stores of every kind, for questions about their results."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

# The helpers beside this file, and those of buckets, are imported by name.
sys.path += [str(Path(__file__).parent), str(Path(__file__).parent.parent / "s3")]

from explain_kit import Bench, in_memory

from oarbank_cas import Store


@pytest.fixture(params=["memory", "disk", "bucket"])
def bench(request, tmp_path):
    """An empty store with short spans, in memory, on disk, and in a real server's bucket."""
    spans = {"session_s": 1, "grace_s": 1, "slack_s": 0}
    if request.param == "memory":
        store = in_memory(**spans)
    elif request.param == "disk":
        store, _ = Store.init(tmp_path / "store", **spans)
    else:
        import s3_kit

        place = s3_kit.fresh_place()
        known = s3_kit.capabilities().encode()
        s3_kit.plain().put_object(Bucket=place.bucket, Key=place.prefix + "capabilities.json", Body=known)
        store, _ = Store.init(place.url, **spans, s3=s3_kit.options())
    with store:
        yield Bench(store)


@pytest.fixture
def memory():
    """An empty store in memory."""
    with in_memory(session_s=3600, grace_s=3600, slack_s=0) as store:
        yield Bench(store)
