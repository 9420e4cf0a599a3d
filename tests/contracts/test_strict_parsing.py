"""Strict JSON parsing: what readers could understand differently is refused, with the place."""

import contextlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oarbank_cas.contracts.canonical import MAX_DEPTH, MAX_NUMBER_LENGTH, canonical_json, parse_json
from oarbank_cas.errors import InvalidInputError

BOTH = pytest.mark.parametrize("big_integers", [False, True])


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e20", 1e20),
        ("9007199254740992", 2**53),
        ("-9007199254740992", -(2**53)),
        ("9007199254740993.0", 2.0**53),
        ("-0", 0),
        ("1e-400", 0.0),
        (' \t\r\n{"a" : [ ] }\n', {"a": []}),
        ('"\\ud83d\\ude00"', "\U0001f600"),
        ('"\\\\ud800"', "\\ud800"),
        ('{"a": {"a": 1}, "b": {"a": 1}}', {"a": {"a": 1}, "b": {"a": 1}}),
        ("[" * MAX_DEPTH + "]" * MAX_DEPTH, None),
        ("[" + ",".join(["[[]]"] * 500) + "]", [[[]]] * 500),
        ('"' + "[" * 1000 + '"', "[" * 1000),
        ("1" + "0" * (MAX_NUMBER_LENGTH - 6) + "e-994", 1.0),
    ],
)
@BOTH
def test_accepted(text, value, big_integers):
    parsed = parse_json(text.encode(), big_integers=big_integers)
    assert parsed == parse_json(text, big_integers=big_integers)
    if value is not None:
        assert parsed == value
        assert type(parsed) is type(value)


REFUSED = [
    # what, place, part of the reason
    (b"", "doc: line 1 column 1", "JSON"),
    (b"{", "doc: line 1 column 2", "JSON"),
    (b'{"a": 1,\n "b": }', "doc: line 2 column 7", "JSON"),
    (b"[1 2]", "doc: line 1 column 4", "JSON"),
    (b"[1,]", None, "JSON"),
    (b"{} {}", "doc: line 1 column 4", "JSON"),
    (b"01", "doc: line 1 column 2", "JSON"),
    (b"'a'", "doc: line 1 column 1", "JSON"),
    (b'"a\nb"', "doc: line 1 column 3", "JSON"),
    (b'"\\x"', "doc: line 1 column 2", "JSON"),
    ("[\u0661]".encode(), "doc: line 1 column 2", "JSON"),
    (b"\xef\xbb\xbf{}", "doc", "byte order mark"),
    (b'{"a": "\xff"}', "doc: byte 7", "UTF-8"),
    (b'"\xed\xa0\x80"', "doc: byte 1", "UTF-8"),
    ("{}".encode("utf-16"), "doc: byte 0", "UTF-8"),
    (b'{"a": 1, "a": 1}', "doc: $", 'key "a" twice'),
    (b'{"a": 1, "\\u0061": 1}', "doc: $", 'key "a" twice'),
    (b'{"x": [0, {"y": {"a": 1, "b": 2, "a": 3}}]}', "doc: $.x[1].y", 'key "a" twice'),
    (b"NaN", "doc: $", "NaN"),
    (b'{"a": [1, Infinity]}', "doc: $.a[1]", "Infinity"),
    (b'{"a": [1, -Infinity]}', "doc: $.a[1]", "-Infinity"),
    (b'{"a": 1e400}', "doc: $.a", "double"),
    (b'{"a": -1e400}', "doc: $.a", "double"),
    (b'["\\ud800"]', "doc: $[0]", "surrogate"),
    (b'["\\uDFFF"]', "doc: $[0]", "surrogate"),
    (b'["\\ude00\\ud83d"]', "doc: $[0]", "surrogate"),
    (b'{"a": {"\\udbff": 1}}', "doc: $.a", "surrogate"),
    (b"[" * (MAX_DEPTH + 1) + b"]" * (MAX_DEPTH + 1), None, "nested deeper"),
    (b'{"a":' * (MAX_DEPTH + 1) + b"1" + b"}" * (MAX_DEPTH + 1), None, "nested deeper"),
    (b"[" * 200_000, None, "nested deeper"),
    (b'{"a":' * 200_000, None, "nested deeper"),
    (b'{"a": ' + b"9" * 5000 + b"}", "doc: $.a", "more than 1000 characters"),
    (b'{"a": 1.' + b"0" * 5000 + b"}", "doc: $.a", "more than 1000 characters"),
]


@pytest.mark.parametrize(("data", "place", "why"), REFUSED, ids=lambda v: repr(v)[:30])
@BOTH
def test_refused(data, place, why, big_integers):
    with pytest.raises(InvalidInputError) as caught:
        parse_json(data, where="doc", big_integers=big_integers)
    assert why in caught.value.why
    assert caught.value.where.startswith("doc")
    assert len(caught.value.where) < 400
    if place is not None:
        assert caught.value.where == place


@pytest.mark.parametrize("text", ["9007199254740993", "-9007199254740993", "12345678901234567890", "9" * 999])
def test_integers_beyond_2_to_53_only_where_they_are_kept_as_written(text):
    with pytest.raises(InvalidInputError, match=r"^document: \$\.a\[0\]: is an integer beyond"):
        parse_json(f'{{"a": [{text}]}}')
    assert parse_json(f'{{"a": [{text}]}}', big_integers=True) == {"a": [int(text)]}


def test_lone_surrogates_in_a_text_and_not_in_an_escape():
    with pytest.raises(InvalidInputError, match="surrogate"):
        parse_json('"\ud800"')


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@given(JSON, st.booleans(), st.sampled_from([None, 1]))
def test_all_else_parses_as_the_standard_library_does(value, ascii_only, indent):
    text = json.dumps(value, ensure_ascii=ascii_only, indent=indent)
    try:
        text.encode()
        surrogates = any("\ud800" <= c <= "\udfff" for c in json.dumps(json.loads(text), ensure_ascii=False))
    except UnicodeEncodeError:
        surrogates = True
    if surrogates:
        with pytest.raises(InvalidInputError):
            parse_json(text)
    else:
        assert parse_json(text) == json.loads(text)
        assert canonical_json(parse_json(text)) == canonical_json(value)


@given(st.binary(max_size=50) | st.text('{}[]",:0123456789.eE+-\\u dDnulltruefalseNaI\n', max_size=50).map(str.encode))
def test_any_bytes_give_a_value_or_one_kind_of_error(data):
    with contextlib.suppress(InvalidInputError):
        canonical_json(parse_json(data))
