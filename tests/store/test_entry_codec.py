"""An entry's bytes: what went in comes out, and nothing else ever does."""

from __future__ import annotations

import hashlib
import json
import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oarbank_cas import entry as codec
from oarbank_cas.contracts.keys import parse_key
from oarbank_cas.entry import Entry, Tombstone
from oarbank_cas.errors import CorruptError, InvalidInputError

KEY = "0f" * 32 + ":map_reads"
PARTS = parse_key(KEY)
CLASS = "linux"
FIELDS = {"kind": "entry", "job_key": KEY, "stage": "map_reads", "class": CLASS, "datasets": {}}
ENVELOPE = b'{"payload": {"a": 1.0}}\n\nand \x00 bytes\xff'

values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=20),
    lambda children: st.lists(children, max_size=3) | st.dictionaries(st.text(max_size=10), children, max_size=3),
    max_leaves=5,
)


@given(
    body=st.binary(max_size=300) | st.just(b"\n\n{}\n"),
    unknown=st.dictionaries(st.text(min_size=1).map(lambda name: "x_" + name), values, max_size=4),
    kind=st.sampled_from(["entry", "tombstone"]),
)
@settings(deadline=None)
def test_what_is_encoded_is_decoded(body, unknown, kind):
    found = codec.decode(codec.encode({**FIELDS, **unknown, "kind": kind}, body))
    assert isinstance(found, Entry if kind == "entry" else Tombstone)
    assert (found.envelope if kind == "entry" else found.ended) == body
    assert {name: found.header[name] for name in unknown} == unknown
    assert codec.belongs(found, PARTS, CLASS)
    assert found.header["body_size"] == len(body)
    assert found.header["body_sha256"] == hashlib.sha256(body).hexdigest()


def test_the_header_is_one_line_and_the_envelope_follows_untouched():
    data = codec.encode({**FIELDS, "note": "two\nlines\r\u2028"}, ENVELOPE)
    line, _, body = data.partition(b"\n")
    assert body == ENVELOPE
    assert json.loads(line)["note"] == "two\nlines\r\u2028"


def judged(data):
    """What may be made of an object: an envelope for the key and class, or nothing."""
    try:
        found = codec.decode(data)
    except CorruptError:
        return None
    return found.envelope if isinstance(found, Entry) and codec.belongs(found, PARTS, CLASS) else None


@pytest.mark.parametrize("flip", [1, 0x20, 0x80, 0xFF])
def test_no_flipped_byte_yields_another_envelope(flip):
    data = codec.encode(FIELDS, ENVELOPE)
    for place in range(len(data)):
        damaged = bytearray(data)
        damaged[place] ^= flip
        assert judged(bytes(damaged)) in (None, ENVELOPE)
        if place > data.index(b"\n"):
            assert judged(bytes(damaged)) is None


def test_every_flipped_bit_is_damage():
    data = codec.encode({**FIELDS, "datasets": {"calls": "art:" + "ab" * 32}}, ENVELOPE)
    for bit in range(len(data) * 8):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises(CorruptError):
            codec.decode(bytes(flipped))


def test_the_last_member_of_a_header_is_the_digest_of_the_rest():
    line = codec.encode(FIELDS, ENVELOPE).partition(b"\n")[0]
    rest, _, last = line.rpartition(b',"header_sha256":')
    assert last == b'"' + hashlib.sha256(rest + b"}").hexdigest().encode() + b'"}'


def test_fields_of_a_header_that_was_read_can_be_written_again():
    header = codec.decode(codec.encode(FIELDS, ENVELOPE)).header
    assert codec.encode(header, ENVELOPE) == codec.encode(FIELDS, ENVELOPE)


def test_another_format_is_no_entry_of_this_one():
    with pytest.raises(CorruptError):
        codec.decode(codec.encode({**FIELDS, "format": 2}, ENVELOPE))


def test_every_truncation_and_every_addition_is_damage():
    data = codec.encode(FIELDS, ENVELOPE)
    for length in range(len(data)):
        with pytest.raises(CorruptError):
            codec.decode(data[:length])
    for more in (b"\0", b"\n", b" ", ENVELOPE, data):
        for damaged in (data + more, more + data):
            assert judged(damaged) in (None, ENVELOPE)
        with pytest.raises(CorruptError):
            codec.decode(data + more)


@given(st.binary(max_size=400))
@settings(deadline=None)
def test_any_bytes_are_an_entry_or_damage(data):
    assert judged(data) is None


def line(**changes):
    header = {**FIELDS, "body_size": len(ENVELOPE), "body_sha256": hashlib.sha256(ENVELOPE).hexdigest(), **changes}
    return json.dumps({name: value for name, value in header.items() if value is not ...}).encode()


HOSTILE = {
    "nothing": b"",
    "no newline": line().replace(b"\n", b" ") * 2,
    "no JSON": b"entry\n" + ENVELOPE,
    "a list": b"[]\n" + ENVELOPE,
    "a number": b"7\n" + ENVELOPE,
    "deep": b"[" * 200_000 + b"\n" + ENVELOPE,
    "deep in an object": b'{"kind":' * 100_000 + b"\n" + ENVELOPE,
    "a long number": b'{"kind":' + b"9" * 10_000 + b"}\n",
    "no UTF-8": b'{"kind":"entry\xff"}\n' + ENVELOPE,
    "no end for ten megabytes": b" " * 10_000_000 + line() + b"\n" + ENVELOPE,
    "another kind": line(kind="pin") + b"\n" + ENVELOPE,
    "no kind": line(kind=...) + b"\n" + ENVELOPE,
    "a kind of lists": line(kind=["entry"]) + b"\n" + ENVELOPE,
    "no key": line(job_key=...) + b"\n" + ENVELOPE,
    "a key that is a number": line(job_key=7) + b"\n" + ENVELOPE,
    "a class that is null": line(**{"class": None}) + b"\n" + ENVELOPE,
    "no digest": line(body_sha256=...) + b"\n" + ENVELOPE,
    "a digest that is a list": line(body_sha256=[]) + b"\n" + ENVELOPE,
    "a digest in capitals": line(body_sha256=hashlib.sha256(ENVELOPE).hexdigest().upper()) + b"\n" + ENVELOPE,
    "no size": line(body_size=...) + b"\n" + ENVELOPE,
    "ten gigabytes promised": line(body_size=10 * 2**30) + b"\n" + ENVELOPE,
    "a negative size": line(body_size=-1) + b"\n" + ENVELOPE,
    "a size in words": line(body_size=str(len(ENVELOPE))) + b"\n" + ENVELOPE,
    "another body": line() + b"\n" + ENVELOPE[:-1] + b"?",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_bytes_are_damage(name):
    with pytest.raises(CorruptError):
        codec.decode(HOSTILE[name])


def test_what_could_not_be_read_again_is_not_written():
    with pytest.raises(InvalidInputError, match="header"):
        codec.encode({**FIELDS, "host": "h" * codec.MAX_HEADER}, b"")
    largest = codec.encode({**FIELDS, "host": "h" * (codec.MAX_HEADER - 70_000)}, b"")
    assert codec.decode(largest).header["host"]


def test_too_large_an_envelope_is_not_written(monkeypatch):
    monkeypatch.setattr(codec, "MAX_ENVELOPE", 100)
    assert codec.decode(codec.encode(FIELDS, os.urandom(100)))
    with pytest.raises(InvalidInputError, match="101 bytes"):
        codec.encode(FIELDS, os.urandom(101))
    assert codec.decode(codec.encode({**FIELDS, "kind": "tombstone"}, os.urandom(101)))
