"""Payload upgrades: applied when reading, only on request, and never to what is stored."""

import copy

import pytest

from oarbank_cas.contracts.upgrades import Upgrades
from oarbank_cas.errors import InvalidInputError


def registry():
    upgrades = Upgrades()

    def second(payload):
        payload["score"] = str(payload["score"])
        payload["list"].append(2)
        return payload

    upgrades.register("align/result@1", second)
    upgrades.register("align/result@2", lambda payload: {"v3": payload})
    upgrades.register("align/result@9", lambda payload: {"v10": payload})
    return upgrades


DOCUMENT = {"new": 1, "schema": "align/result@1", "payload": {"score": 5, "list": [1]}, "artifacts": []}


def test_steps_lead_to_the_newest_version():
    assert registry().upgrade(DOCUMENT) == {
        "new": 1,
        "schema": "align/result@3",
        "payload": {"v3": {"score": "5", "list": [1, 2]}},
        "artifacts": [],
    }
    assert registry().upgrade({"schema": "align/result@9", "payload": {}})["schema"] == "align/result@10"


def test_the_document_is_not_changed():
    before = copy.deepcopy(DOCUMENT)
    registry().upgrade(DOCUMENT)
    assert before == DOCUMENT


@pytest.mark.parametrize("schema", ["align/result@3", "align/result@10", "other/result@1", "align/spec@1", None, 5, []])
def test_no_step_no_change(schema):
    document = {"schema": schema, "payload": {"a": 1}}
    upgraded = registry().upgrade(document)
    assert upgraded == document
    assert upgraded is not document
    assert registry().upgrade({"payload": {}}) == {"payload": {}}


def test_registries_know_nothing_of_each_other():
    registry()
    assert Upgrades().upgrade(DOCUMENT) == DOCUMENT


@pytest.mark.parametrize(
    "schema", ["align/result@1", "x", "a/spec@1", "a/result@0", "a/result@1\n", "a/result@" + "9" * 5000]
)
def test_bad_registrations(schema):
    with pytest.raises(InvalidInputError):
        registry().register(schema, dict)


@pytest.mark.parametrize("returned", [None, [], "x"])
def test_a_step_returns_a_payload(returned):
    upgrades = Upgrades()
    upgrades.register("a/result@1", lambda payload: returned)
    with pytest.raises(TypeError, match="a/result@1"):
        upgrades.upgrade({"schema": "a/result@1", "payload": {}})
