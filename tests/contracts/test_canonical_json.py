"""Canonical JSON: one value, one sequence of bytes; and what has no canonical form is refused with its place."""

import hashlib
import json
import struct
from collections import OrderedDict
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oarbank_cas.contracts.canonical import MAX_DEPTH, canonical_json, check_digest, digest_of, is_digest, parse_json
from oarbank_cas.errors import InvalidInputError

# The numbers of RFC 8785, appendix B: the bits of a double, and its canonical form.
RFC_NUMBERS = [
    ("0000000000000000", "0"),
    ("8000000000000000", "0"),
    ("0000000000000001", "5e-324"),
    ("8000000000000001", "-5e-324"),
    ("7fefffffffffffff", "1.7976931348623157e+308"),
    ("ffefffffffffffff", "-1.7976931348623157e+308"),
    ("4340000000000000", "9007199254740992"),
    ("c340000000000000", "-9007199254740992"),
    ("4430000000000000", "295147905179352830000"),
    ("44b52d02c7e14af5", "9.999999999999997e+22"),
    ("44b52d02c7e14af6", "1e+23"),
    ("44b52d02c7e14af7", "1.0000000000000001e+23"),
    ("444b1ae4d6e2ef4e", "999999999999999700000"),
    ("444b1ae4d6e2ef4f", "999999999999999900000"),
    ("444b1ae4d6e2ef50", "1e+21"),
    ("3eb0c6f7a0b5ed8c", "9.999999999999997e-7"),
    ("3eb0c6f7a0b5ed8d", "0.000001"),
    ("41b3de4355555553", "333333333.3333332"),
    ("41b3de4355555554", "333333333.33333325"),
    ("41b3de4355555555", "333333333.3333333"),
    ("41b3de4355555556", "333333333.3333334"),
    ("41b3de4355555557", "333333333.33333343"),
    ("becbf647612f3696", "-0.0000033333333333333333"),
    ("43143ff3c1cb0959", "1424953923781206.2"),
]


@pytest.mark.parametrize(("bits", "text"), RFC_NUMBERS)
def test_numbers_of_the_rfc(bits, text):
    (number,) = struct.unpack(">d", bytes.fromhex(bits))
    assert canonical_json(number) == text.encode()


def test_keys_are_sorted_by_utf16_units():
    names = ["\u20ac", "\r", "\ufb33", "1", "\U0001f600", "\u0080", "\u00f6"]
    ordered = list(json.loads(canonical_json(dict.fromkeys(names, 0))))
    assert ordered == ["\r", "1", "\u0080", "\u00f6", "\u20ac", "\U0001f600", "\ufb33"]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "null"),
        (True, "true"),
        (False, "false"),
        (1000, "1000"),
        (1000.0, "1000"),
        (-0.0, "0"),
        (1e20, "100000000000000000000"),
        (2**53, "9007199254740992"),
        (-(2**53), "-9007199254740992"),
        (2**53 - 1, "9007199254740991"),
        ((1, [2]), "[1,[2]]"),
        (OrderedDict(b=1, a=[]), '{"a":[],"b":1}'),
        ('"\\\b\f\n\r\t\x00\x1f/\x7f\u2028', '"\\"\\\\\\b\\f\\n\\r\\t\\u0000\\u001f/\x7f\u2028"'),
        ("\U0001f600", '"\U0001f600"'),
    ],
)
def test_forms(value, text):
    assert canonical_json(value) == text.encode()


def naive(value):
    """The rules of RFC 8785 again, written for clarity from the ECMAScript text."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, str):
        return '"' + "".join(map(naive_character, value)) + '"'
    if isinstance(value, (int, float)):
        return naive_number(float(value))
    if isinstance(value, list):
        return "[" + ",".join(map(naive, value)) + "]"
    keys = sorted(value, key=lambda key: [int.from_bytes(p, "big") for p in utf16_units(key)])
    return "{" + ",".join(f"{naive(key)}:{naive(value[key])}" for key in keys) + "}"


def utf16_units(text):
    data = text.encode("utf-16-be")
    return [data[i : i + 2] for i in range(0, len(data), 2)]


def naive_character(c):
    short = {"\b": "\\b", "\t": "\\t", "\n": "\\n", "\f": "\\f", "\r": "\\r", '"': '\\"', "\\": "\\\\"}
    return short.get(c) or (f"\\u{ord(c):04x}" if ord(c) < 32 else c)


def naive_number(number):
    if number == 0:
        return "0"
    sign, digits, exponent = Decimal(repr(number)).normalize().as_tuple()
    s = "".join(map(str, digits))
    k, n = len(s), len(s) + exponent
    if k <= n <= 21:
        body = s + "0" * (n - k)
    elif 0 < n <= 21:
        body = s[:n] + "." + s[n:]
    elif -6 < n <= 0:
        body = "0." + "0" * -n + s
    else:
        body = s[0] + ("." + s[1:] if k > 1 else "") + f"e{n - 1:+d}"
    return "-" * sign + body


SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"]))
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=5)
        | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"]), max_size=5), inner, max_size=5)
    ),
    max_leaves=30,
)


@given(VALUES)
def test_agrees_with_the_naive_model(value):
    assert canonical_json(value) == naive(value).encode()


@given(VALUES)
def test_is_strict_json_of_the_same_value_in_its_final_form(value):
    data = canonical_json(value)
    parse_json(data, big_integers=True)
    # A large double is written without a fraction, so all numbers are read as the doubles that they are.
    again = json.loads(data, parse_int=float)
    assert again == value
    assert canonical_json(again) == data


@given(st.dictionaries(st.text(max_size=3).filter(str.isascii), st.integers(-9, 9)))
def test_the_order_of_members_is_of_no_consequence(members):
    assert canonical_json(dict(reversed(members.items()))) == canonical_json(members)


DEEPEST = MAX_DEPTH


def nested(depth):
    value = 0
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("value", "place", "why"),
    [
        (float("nan"), "$", "nan"),
        ({"a": [1, float("inf")]}, "$.a[1]", "inf"),
        ({"a": {"b c": -float("inf")}}, '$.a["b c"]', "-inf"),
        ({"n": 2**53 + 1}, "$.n", "2^53"),
        ([0, -(2**53) - 1], "$[1]", "2^53"),
        ([10**5000], "$[0]", "2^53"),
        ({1: 2}, "$", "int"),
        ({"a": {None: 2}}, "$.a", "NoneType"),
        ({"a": "x\ud800"}, "$.a", "surrogate"),
        ({"a": {"\udfff": 1}}, "$.a", "surrogate"),
        (["\ud83d\ude00"], "$[0]", "surrogate"),
        ({"a": b"x"}, "$.a", "bytes"),
        ({"a": {1, 2}}, "$.a", "set"),
        ([Decimal(1)], "$[0]", "Decimal"),
    ],
)
def test_refused_with_the_place(value, place, why):
    with pytest.raises(InvalidInputError) as caught:
        canonical_json(value)
    assert caught.value.where == place
    assert why in caught.value.why
    str(caught.value).encode()


def test_the_name_of_the_document_goes_before_the_place():
    with pytest.raises(InvalidInputError) as caught:
        canonical_json({"a": float("nan")}, where="inputs.json")
    assert caught.value.where == "inputs.json: $.a"


def test_depth_is_limited_and_cycles_end():
    assert canonical_json(nested(DEEPEST)) == b"[" * DEEPEST + b"0" + b"]" * DEEPEST
    for value in (nested(DEEPEST + 1), nested(100_000)):
        with pytest.raises(InvalidInputError, match="nested deeper than 200"):
            canonical_json(value)
    cycle = {}
    cycle["again"] = cycle
    with pytest.raises(InvalidInputError, match="nested"):
        canonical_json(cycle)


def test_the_value_is_not_changed():
    value = {"a": [2**53, (1,)]}
    canonical_json(value)
    assert value == {"a": [2**53, (1,)]}
    assert type(value["a"][0]) is int


def test_digest_of_bytes():
    assert digest_of(b"") == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
    assert digest_of(memoryview(b"abc")) == hashlib.sha256(b"abc").hexdigest()


GOOD = "0123456789abcdef" * 4


@pytest.mark.parametrize(
    "text",
    [
        "",
        GOOD[:-1],
        GOOD + "0",
        GOOD.upper(),
        GOOD + "\n",
        GOOD[:-1] + "\n",
        "\u0661" * 64,
        GOOD[:-1] + "g",
        None,
        5,
        b"a" * 64,
    ],
)
def test_no_digest(text):
    assert not is_digest(text)
    with pytest.raises(InvalidInputError, match=r"here: is no digest"):
        check_digest(text, "here")


def test_a_digest():
    assert is_digest(GOOD)
    assert check_digest(GOOD) == GOOD
