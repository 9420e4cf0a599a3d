"""The difference of two documents: complete, minimal where it says so, and readable."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oarbank_cas.contracts.canonical import canonical_json
from oarbank_cas.contracts.difference import ABSENT, Difference, differences, same

SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 3),
    st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from(["", "a", "b", "true", "a b"]),
)
DOCUMENTS = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from("abcd"), inner, max_size=4),
    max_leaves=20,
)


def canonical(value):
    return json.loads(canonical_json(value))


def applied(document, found):
    """The second document, made of the first and the differences."""
    document = json.loads(json.dumps(document))
    removals = [each for each in found if each.after is ABSENT]
    others = [each for each in found if each.after is not ABSENT]
    # Changes first: they move nothing. Then what goes, from behind; then what comes, from the front.
    changes = [each for each in others if each.before is not ABSENT]
    additions = [each for each in others if each.before is ABSENT]
    for each in changes + list(reversed(removals)) + additions:
        if not each.path:
            return each.after
        inner = document
        for step in each.path[:-1]:
            inner = inner[step]
        last = each.path[-1]
        if each.after is ABSENT:
            assert same(inner.pop(last), each.before)
        elif each.before is ABSENT and isinstance(inner, list):
            inner.insert(last, each.after)
        else:
            assert (last in inner) == (each.before is not ABSENT) or isinstance(inner, list)
            inner[last] = each.after
    return document


@given(DOCUMENTS, DOCUMENTS)
@settings(max_examples=500, deadline=None)
def test_it_leads_from_one_to_the_other(before, after):
    before, after = canonical(before), canonical(after)
    found = list(differences(before, after))
    assert same(applied(before, found), after)
    assert (not found) == same(before, after)
    assert len(list(differences(after, before))) == len(found)
    assert len({(each.path, each.before is ABSENT) for each in found}) == len(found)


@given(DOCUMENTS)
@settings(deadline=None)
def test_nothing_differs_from_itself(document):
    assert list(differences(canonical(document), canonical(document))) == []


@given(DOCUMENTS, st.data())
@settings(max_examples=200, deadline=None)
def test_one_changed_value_is_one_difference(document, data):
    document = canonical({"root": document, "x": [1, {"y": 2}]})
    changed = json.loads(json.dumps(document))
    places = []

    def walk(value, path):
        items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
        for key, child in items:
            if not isinstance(child, (dict, list)):
                places.append((value, key, (*path, key)))
            walk(child, (*path, key))

    walk(changed, ())
    holder, key, path = data.draw(st.sampled_from(places))
    before, holder[key] = holder[key], "something new"
    assert list(differences(document, changed)) == [Difference(path, before, "something new")]


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        ({"params": {"a": 0.5}}, {"params": {"a": 0.25}}, ["params.a: 0.5 -> 0.25"]),
        ("render3", "render4", [": render3 -> render4"]),
        ({"a": True}, {"a": 1}, ["a: true -> 1"]),
        ({"a": "true"}, {"a": True}, ['a: "true" -> true']),
        ({"a": "1"}, {"a": 1}, ['a: "1" -> 1']),
        ({"odd name": 1}, {}, ['["odd name"]: 1 -> (absent)']),
        ({}, {"a": {"b": [1]}}, ['a: (absent) -> {"b": [1]}']),
        ({"f": ["a", "b", "c"]}, {"f": ["b", "c"]}, ["f[0]: a -> (absent)"]),
        ({"f": ["b", "c"]}, {"f": ["b", "a", "c"]}, ["f[1]: (absent) -> a"]),
        ({"f": [{"p": 1, "q": 2}]}, {"f": [{"p": 1, "q": 3}, 4]}, ["f[0].q: 2 -> 3", "f[1]: (absent) -> 4"]),
        ({"a": "\x1b[31m"}, {"a": "é"}, ['a: "\\u001b[31m" -> "\\u00e9"']),
        ({"a": None}, {"a": "null"}, ['a: null -> "null"']),
        ([], {}, [": [] -> {}"]),
    ],
)
def test_it_is_readable(before, after, told):
    assert [str(each) for each in differences(before, after)] == told


def test_a_long_value_is_cut_for_people_and_whole_for_programs():
    (found,) = differences({"a": "x" * 1000}, {})
    assert str(found) == "a: " + "x" * 100 + "... -> (absent)"
    assert found.to_json()["before"] == "x" * 1000
    assert "after" not in found.to_json()
