import hashlib
import json

import pytest
from attempt_model import BadError, line_of, model_outcome, outcome, quick, record_of
from hypothesis import given
from hypothesis import strategies as st

from oarbank_cas.attempt import records
from oarbank_cas.attempt.records import MAX_LINE, decode_record, encode_record, payload_text
from oarbank_cas.errors import CorruptError, InvalidInputError

values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), inner, max_size=4)
    ),
    max_leaves=12,
)


@quick(200)
@given(values, st.integers(0, 2**53))
def test_what_is_encoded_is_decoded_and_the_model_agrees(value, version):
    line = encode_record(payload_text(value), version)
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    record = decode_record(line, "here")
    assert record.payload == value
    assert record.schema_version == version
    assert record_of(line) == (version, record.payload_json)
    assert record.size == len(record.payload_json.encode())


def test_the_written_bytes_are_pinned():
    assert (
        encode_record('{"a":"é"}', 1)
        == (
            '{"schema_version":1,"checksum":"' + hashlib.sha256('{"a":"é"}'.encode()).hexdigest() + '",'
            '"payload_json":"{\\"a\\":\\"é\\"}"}\n'
        ).encode()
    )


GOOD = line_of('{"a": 1}')
CHECKSUM = hashlib.sha256(b'{"a": 1}').hexdigest()


def made(version="1", checksum=f'"{CHECKSUM}"', payload=r'"{\"a\": 1}"', extra=""):
    return f'{{"schema_version": {version}, "checksum": {checksum}, "payload_json": {payload}{extra}}}\n'.encode()


@pytest.mark.parametrize(
    "line",
    [
        GOOD,
        made(),
        GOOD[:-1],
        GOOD[:-1] + b"\r\n",
        b"  \t" + GOOD,
        made("0"),
        made("9007199254740992"),
        line_of("1" * 5000),
        line_of('"\\ud800"'),
        line_of('{"a":1,"a":2}'),
        line_of("[\n1,\r\n2]"),
        f'{{"payload_json": "1", "checksum": "{hashlib.sha256(b"1").hexdigest()}", "schema_version": 7}}'.encode(),
    ],
)
def test_accepted(line):
    assert decode_record(line, "here").payload_json
    if b"1111" not in line:  # the model converts numbers
        assert tuple(decode_record(line, "here")) == record_of(line)


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (b"\n", "JSON"),
        (b"{}\n", "checked record"),
        (b"[]\n", "checked record"),
        (b"1\n", "checked record"),
        (b'"x"\n', "checked record"),
        (b"null\n", "checked record"),
        (b"\xef\xbb\xbf" + GOOD, "JSON"),
        (b"\x00" * 100 + b"\n", "JSON"),
        (GOOD[:40] + b"\x00" + GOOD[40:], "JSON"),
        (GOOD[:-3] + b"\xff" + GOOD[-3:], "JSON"),
        (GOOD[:-1] + GOOD, "JSON"),
        (GOOD[:-1] + b"x\n", "JSON"),
        (GOOD.decode().encode("utf-16"), "JSON"),
        (b"[" * 100_000 + b"\n", "deeply"),
        (b'{"a":' * 100_000 + b"\n", "deeply"),
        (made("1.0"), "integer"),
        (made("1e0"), "integer"),
        (made("true"), "schema_version"),
        (made("null"), "schema_version"),
        (made('"1"'), "schema_version"),
        (made("-1"), "schema_version"),
        (made("9007199254740993"), "schema_version"),
        (made("9" * 5000), "JSON"),
        (made("NaN"), "NaN"),
        (made("[1]"), "schema_version"),
        (made('{"a": 1, "a": 2}'), "twice"),
        (made(checksum=f'"{CHECKSUM.upper()}"'), "lowercase"),
        (made(checksum=f'"{CHECKSUM[:-1]}"'), "64"),
        (made(checksum=f'"{CHECKSUM}\\n"'), "64"),
        (made(checksum="null"), "64"),
        (made(checksum='"' + "0" * 64 + '"'), "does not match"),
        (made(payload="null"), "string"),
        (made(payload='{"a": 1}'), "string"),
        (made(payload='"\\ud800"'), "surrogate"),
        (made(extra=', "more": 1'), "nothing else"),
        (made(extra=', "checksum": "0"'), "twice"),
        (made(extra=f', "checksum": "{CHECKSUM}"'), "twice"),
        (line_of("{"), "not JSON"),
        (line_of(""), "not JSON"),
        (line_of("NaN"), "not JSON"),
        (line_of("[-Infinity]"), "not JSON"),
        (line_of("[" * 100_000), "deeply"),
        (line_of('"\t"'), "not JSON"),
    ],
)
def test_refused(line, why):
    with pytest.raises(CorruptError, match=why) as caught:
        decode_record(line, "results.jsonl: record 7")
    assert str(caught.value).startswith("results.jsonl: record 7: ")
    assert len(str(caught.value)) < 600
    with pytest.raises(BadError):
        record_of(line)


def test_a_wrong_checksum_names_both():
    with pytest.raises(CorruptError) as caught:
        decode_record(made(checksum='"' + "0" * 64 + '"'), "here")
    assert (caught.value.expected, caught.value.actual) == ("0" * 64, CHECKSUM)


def test_every_bit_flip_is_refused_or_changes_nothing_that_counts():
    for bit in range(len(GOOD[:-1]) * 8):
        line = bytearray(GOOD)
        line[bit // 8] ^= 1 << (bit % 8)
        got = outcome(decode_record, bytes(line), "here")
        assert got is BadError or (got.payload_json == '{"a": 1}' and line[bit // 8] in b"0123456789 "), line


@quick(400)
@given(
    st.binary(max_size=200)
    | st.builds(lambda n, junk: GOOD[:n] + junk + GOOD[n:], st.integers(0, 130), st.binary(max_size=3))
)
def test_fuzz(line):
    got = outcome(decode_record, line, "here")
    assert (got if got is BadError else tuple(got)) == model_outcome(record_of, line)


@pytest.mark.parametrize(
    "payload",
    [float("nan"), float("inf"), {1: 2}, [{"a": {True: 1}}], {None: 1}, b"x", {1, 2}, object()],
)
def test_payloads_without_a_json_form(payload):
    with pytest.raises(InvalidInputError):
        payload_text(payload)


def test_an_integer_that_python_will_not_write():
    with pytest.raises(InvalidInputError, match="digit"):
        payload_text(10**5000)


def test_a_cycle_and_a_deep_payload():
    cycle = []
    cycle.append(cycle)
    deep = []
    for _ in range(100_000):
        deep = [deep]
    for payload in (cycle, deep):
        with pytest.raises(InvalidInputError):
            payload_text(payload)
    while deep:  # taken apart by hand: its destructor would recurse
        deep = deep[0]


def test_encode_refuses_what_decode_would():
    for text in ("{", "", "NaN", '"\ud800"'):
        with pytest.raises(InvalidInputError):
            encode_record(text, 1)
    for version in (-1, 2**53 + 1, True, 1.0, "1", None):
        with pytest.raises(InvalidInputError, match="version"):
            encode_record("1", version)


def test_the_longest_line(monkeypatch):
    monkeypatch.setattr(records, "MAX_LINE", 1000)
    fit = 1000 - len(encode_record('""', 1))
    assert len(encode_record('"' + "x" * fit + '"', 1)) == 1000
    with pytest.raises(InvalidInputError, match="1001 bytes"):
        encode_record('"' + "x" * (fit + 1) + '"', 1)
    assert MAX_LINE == 16 * 1024 * 1024


def test_a_payload_that_python_cannot_hold_is_still_served_as_text():
    record = decode_record(line_of("1" * 5000), "here")
    assert record.payload_json == "1" * 5000
    with pytest.raises(InvalidInputError, match="payload_json"):
        _ = record.payload
    assert json.loads(decode_record(line_of("[1.0, 1e3]"), "here").payload_json) == [1, 1000]
