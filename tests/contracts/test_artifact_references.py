"""What a result envelope refers to."""

import pytest

from oarbank_cas.contracts.manifest import FileRef
from oarbank_cas.contracts.references import artifact_files, references
from oarbank_cas.errors import InvalidInputError

A, B, C = ("a" * 64, "b" * 64, "c" * 64)


def test_references_at_any_depth_under_the_artifacts():
    document = {
        "digest": C,
        "size": 1,
        "payload": {"digest": C, "size": 1},
        "artifacts": [
            {
                "name": "x",
                "files": [{"path": "a", "digest": A, "size": 0}, {"path": "b", "digest": A, "size": 0}],
                "thumbnail": {"more": [[{"digest": B, "size": 7, "small": {"digest": "d" * 64, "size": 2**60}}]]},
            }
        ],
    }
    assert references(document) == {A: 0, B: 7, "d" * 64: 2**60}


@pytest.mark.parametrize(
    "value",
    [
        {"digest": A},
        {"size": 1},
        {"digest": A, "size": None},
        {"digest": A, "size": True},
        {"digest": A, "size": -1},
        {"digest": A, "size": 1.0},
        {"digest": A, "size": "1"},
        {"digest": A.upper(), "size": 1},
        {"digest": A + "\n", "size": 1},
        {"digest": A[1:], "size": 1},
        {"digest": [A], "size": 1},
        {"digest": None, "size": 1},
        A,
    ],
)
def test_no_references(value):
    assert references({"artifacts": [{"name": "x", "files": [value], "extra": value}]}) == {}


@pytest.mark.parametrize("document", [{}, {"artifacts": None}, {"artifacts": []}, {"artifacts": 5}, {"artifacts": "x"}])
def test_no_artifacts(document):
    assert references(document) == {}


def test_two_sizes_of_one_digest():
    with pytest.raises(InvalidInputError, match=f"{A} two sizes, [12] and [12]"):
        references({"artifacts": [{"digest": A, "size": 1}, {"digest": A, "size": 2}]})


def test_depth_is_no_matter():
    value = {"digest": A, "size": 1}
    for _ in range(100_000):
        value = [value]
    try:
        assert references({"artifacts": value}) == {A: 1}
    finally:
        # Taken apart by hand: so deep a list is more than some interpreters free by themselves.
        while isinstance(value, list):
            value = value.pop()


def test_files_of_each_artifact_in_order():
    document = {
        "artifacts": [
            {
                "name": "y",
                "files": [{"path": "q", "digest": A, "size": 1}, {"path": "p", "digest": B, "size": 2, "n": 1}],
            },
            {"name": "x", "files": [{"path": "q", "digest": C, "size": 0}]},
        ]
    }
    assert artifact_files(document) == {"y": (FileRef("q", A, 1), FileRef("p", B, 2)), "x": (FileRef("q", C, 0),)}
    assert list(artifact_files(document)) == ["y", "x"]
    assert artifact_files({}) == {}


@pytest.mark.parametrize(
    ("artifacts", "place"),
    [
        ({}, "$.artifacts"),
        (None, "$.artifacts"),
        ([1], "$.artifacts[0]"),
        ([{"files": []}], "$.artifacts[0]"),
        ([{"name": 1, "files": []}], "$.artifacts[0]"),
        ([{"name": "x"}], "$.artifacts[0].files"),
        ([{"name": "x", "files": []}, {"name": "x", "files": []}], "$.artifacts[1]"),
        ([{"name": "x", "files": [1]}], "$.artifacts[0].files[0]"),
        ([{"name": "x", "files": [{"digest": A, "size": 1}]}], "$.artifacts[0].files[0]"),
        ([{"name": "x", "files": [{"path": "a", "local": "a"}]}], "$.artifacts[0].files[0]"),
        ([{"name": "x", "files": [{"path": "a", "digest": "A" * 64, "size": 1}]}], "$.artifacts[0].files[0]"),
        ([{"name": "x", "files": [{"path": "a", "digest": A}]}], "$.artifacts[0].files[0].size"),
        ([{"name": "x", "files": [{"path": "a", "digest": A, "size": True}]}], "$.artifacts[0].files[0].size"),
        ([{"name": "x", "files": [{"path": "a", "digest": A, "size": -1}]}], "$.artifacts[0].files[0].size"),
    ],
)
def test_artifacts_that_are_not_in_the_store(artifacts, place):
    with pytest.raises(InvalidInputError) as caught:
        artifact_files({"artifacts": artifacts})
    assert caught.value.where == place
