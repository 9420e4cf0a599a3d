"""A store's descriptor is read back as it was written, and anything else is refused with a reason."""

from __future__ import annotations

import json

import pytest

from oarbank_cas import descriptor as descriptors
from oarbank_cas.errors import CorruptError, InvalidInputError, UnsupportedError

MADE = descriptors.new(3600, 7200, 0, "2026-01-01T00:00:00.000000Z")


def changed(**changes):
    document = {**json.loads(MADE.encode()), **changes}
    return json.dumps({name: value for name, value in document.items() if value is not ...}).encode()


def test_it_is_read_as_it_was_written():
    assert descriptors.decode(MADE.encode(), "here") == MADE
    assert len(MADE.encode()) < descriptors.MAX_BYTES
    assert MADE.session_ns == 3600 * 10**9
    assert MADE.epoch == 1


def test_each_store_is_itself():
    assert descriptors.new(1, 1, 0, "").id != descriptors.new(1, 1, 0, "").id


def test_fields_of_the_future_do_no_harm():
    assert descriptors.decode(changed(shards=16, note={"a": [1]}), "here") == MADE


@pytest.mark.parametrize(
    ("spans", "option"),
    [((0, 1, 0), "--session-s"), ((1, 0, 0), "--grace-s"), ((1, 1, -1), "--slack-s"), ((10**10, 1, 0), "--session-s")],
)
def test_spans_out_of_range_are_refused(spans, option):
    with pytest.raises(InvalidInputError) as caught:
        descriptors.new(*spans, "")
    assert caught.value.where == option


def test_a_newer_format_is_refused_clearly():
    with pytest.raises(UnsupportedError, match="layout format 2"):
        descriptors.decode(changed(format=2, session_s=..., id=["new"]), "here")


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"[]",
        b"{}",
        b"null",
        b"\xff",
        b"[" * 100_000,
        MADE.encode()[:-10],
        MADE.encode().replace(b'"id"', b'"epoch": 7, "id"'),
        changed(format="1"),
        changed(format=0),
        changed(format=True),
        changed(id=7),
        changed(id=...),
        changed(session_s="3600"),
        changed(session_s=3600.0),
        changed(session_s=True),
        changed(session_s=-1),
        changed(slack_s=None),
        changed(epoch=...),
    ],
)
def test_what_is_no_descriptor_is_damage(data):
    with pytest.raises(CorruptError, match=r"oarbank-cas\.json in here"):
        descriptors.decode(data, "here")
