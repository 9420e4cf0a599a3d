"""Documents that are nearly right: valid ones with something changed, as bytes and as values; and rubbish."""

import json
import os

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

BUDGET = float(os.environ.get("OARBANK_CAS_TEST_BUDGET", "1"))


def budget(examples):
    """So many examples, times what was granted; the default run is the same every time."""
    return settings(
        deadline=None,
        database=None,
        max_examples=max(1, int(examples * BUDGET)),
        derandomize=BUDGET == 1,
        suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large],
    )


PATHS = st.sampled_from(
    [
        "data",
        "a",
        "a/b",
        "A",
        "../secret.txt",
        "/etc/passwd",
        "a/../../secret.txt",
        "..",
        ".",
        "",
        "a\\b",
        "con",
        "link",
        "link/secret.txt",
        "pipe",
        "tmp",
        "spec.json",
        "x" * 201,
        "a\x00b",
        "\ud800",
        "\u00e9",
        "~",
        "-rf",
        "a\n",
    ]
)
NUMBERS = st.one_of(
    st.integers(),
    st.floats(),
    st.sampled_from([0, -1, 1, 2**53, 2**53 + 1, -(2**63), 10**400, 1.5, 1e308, True, False, None]),
)
SCALARS = st.one_of(st.none(), st.booleans(), NUMBERS, st.text(max_size=5), PATHS)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(
            st.one_of(st.sampled_from(["local", "digest", "size", "path", "files", "name", "x"]), st.text(max_size=3)),
            inner,
            max_size=3,
        ),
    ),
    max_leaves=8,
)


def places(value, at=()):
    """The place of every value in a document."""
    yield at
    if isinstance(value, dict):
        for key, child in value.items():
            yield from places(child, (*at, key))
    elif isinstance(value, list):
        for index, child in enumerate(value):
            yield from places(child, (*at, index))


def put_at(value, at, new):
    if not at:
        return new
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[at[0]] = put_at(copy[at[0]], at[1:], new)
    return copy


@st.composite
def changed_values(draw, document, values=VALUES):
    """A document with up to three of its values replaced, removed or joined by another."""
    for _ in range(draw(st.integers(0, 3))):
        at = draw(st.sampled_from(list(places(document))))
        if draw(st.booleans()):
            document = put_at(document, at, draw(values))
        else:
            target = document
            for step in at:
                target = target[step]
            if isinstance(target, dict):
                key = draw(st.sampled_from(["local", "digest", "size", "path", "extra", *target]))
                document = put_at(document, at, target | {key: draw(values)})
            elif isinstance(target, list):
                document = put_at(document, at, [*target, *target, draw(values)])
    return document


BITS = st.sampled_from(
    [
        b"",
        b"\x00",
        b"\xff",
        b"\xef\xbb\xbf",
        b"{",
        b"}",
        b"[",
        b"]",
        b'"',
        b",",
        b":",
        b"\\",
        b"\\ud800",
        b"\\u0000",
        b"\r\n",
        b"NaN",
        b"-Infinity",
        b"1e400",
        b"-0",
        b"1.0",
        b"9" * 5000,
        b"[" * 500,
        b'{"a":' * 500,
        b'"local":"../x",',
        b'"digest":null,',
        b'"artifacts":[],',
        b"null",
        b"\xed\xa0\x80",
        b"\xf4\x90\x80\x80",
    ]
)


@st.composite
def changed_bytes(draw, data):
    """Bytes with up to four pieces put in, cut out or doubled."""
    for _ in range(draw(st.integers(0, 4))):
        start = draw(st.integers(0, len(data)))
        end = draw(st.integers(start, min(len(data), start + 30)))
        new = draw(st.one_of(BITS, st.binary(max_size=4), st.just(data[start:end] * 2)))
        data = data[:start] + new + data[end:]
    return data


def encoded(document):
    """A document as bytes; what has no UTF-8 stays an escape."""
    return json.dumps(document).encode()


def hostile(document, values=VALUES):
    """Anything that may stand where `document` is expected."""
    return st.one_of(
        changed_values(document, values).map(encoded),
        changed_bytes(encoded(document)),
        st.binary(max_size=200),
        st.sampled_from(
            [
                encoded(document).decode().encode("utf-16"),
                encoded(document).decode().encode("utf-32"),
                b"\xef\xbb\xbf" + encoded(document),
                encoded(document).replace(b" ", b"\r\n"),
                encoded(document) + b"\x00",
                encoded(document) * 2,
                b"[" * 100_000,
                b'{"a":' * 100_000,
                b"[" * 201 + b"]" * 201,
                b"9" * 100_000,
                b'"' + b"\\" * 99_999,
            ]
        ),
    )


def told(error, *words):
    """An error of the package says something."""
    assert str(error)
    for word in words:
        assert word in str(error)
