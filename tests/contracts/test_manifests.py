"""Manifests: one list of files, one sequence of bytes, one name; and nothing hostile passes."""

import hashlib
import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oarbank_cas.contracts import manifest as module
from oarbank_cas.contracts.canonical import canonical_json
from oarbank_cas.contracts.manifest import (
    FileRef,
    check_dataset_id,
    check_size,
    dataset_id,
    is_artifact_dataset,
    manifest_bytes,
    parse_dataset,
    parse_manifest,
)
from oarbank_cas.errors import InvalidInputError

A, B = "a" * 64, "b" * 64


def test_the_bytes_of_a_manifest():
    files = [FileRef("b/x", B, 2), FileRef("b-x", A, 0), FileRef("A", A, 0)]
    text = (
        f'{{"files":[{{"digest":"{A}","path":"A","size":0}},{{"digest":"{A}","path":"b-x","size":0}},'
        f'{{"digest":"{B}","path":"b/x","size":2}}]}}'
    )
    assert manifest_bytes(files) == text.encode()
    assert parse_manifest(text.encode()) == (files[2], files[1], files[0])


DIGESTS = st.binary(max_size=3).map(lambda data: hashlib.sha256(data).hexdigest())
NAMES = st.text("ab.+@_-XYZ0", min_size=1, max_size=4).filter(lambda s: not s.startswith(".") and not s.endswith("."))
ONE_FOLDER = st.lists(NAMES, min_size=1, max_size=8, unique_by=str.casefold)
FILES = ONE_FOLDER.flatmap(
    lambda names: st.tuples(
        *[st.builds(FileRef, st.just(f"d{len(n)}/{n}"), DIGESTS, st.integers(0, 2**53)) for n in names]
    )
)  # fmt: skip


@given(FILES, st.randoms(use_true_random=False))
def test_is_the_canonical_json_of_the_files_by_path_in_whatever_order_they_come(files, random):
    ordered = sorted(files, key=lambda file: file.path.encode("utf-16-be"))
    expected = canonical_json({"files": [file._asdict() for file in ordered]})
    shuffled = list(files)
    random.shuffle(shuffled)
    assert manifest_bytes(iter(shuffled)) == expected
    assert parse_manifest(expected) == tuple(ordered)


NEVER = re.compile("(?!)")


@given(FILES, st.data())
def test_a_manifest_is_read_alike_with_and_without_the_short_way(files, data):
    """Any bytes near a manifest: moved, doubled, cut out or changed."""
    text = bytearray(manifest_bytes(files))
    for _ in range(data.draw(st.integers(0, 3))):
        start = data.draw(st.integers(0, len(text)))
        end = min(len(text), start + data.draw(st.integers(0, 90)))
        there = data.draw(st.integers(0, len(text)))
        piece = data.draw(
            st.one_of(st.just(bytes(text[start:end])), st.sampled_from([b"0", b'"', b"\\", b"\xc3\xa9", b" "]))
        )
        text[start:end] = b""
        text[there:there] = piece

    def read(pattern):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(module, "_PLAIN", pattern)
            try:
                return parse_manifest(bytes(text))
            except InvalidInputError as error:
                return str(error)

    assert read(module._PLAIN) == read(NEVER)


def entry(path="p", digest=A, size=1, **more):
    return {"digest": digest, "path": path, "size": size, **more}


HOSTILE = [
    ([entry(path)], "[0]")
    for path in ("../a", "/a", "a/../b", "a//b", "", ".", "a\n", "con", "x/NUL.txt", "a\\b", "C:x", "\u00e9", 'a"b',
                 None, 1, [])
] + [
    ([entry(digest=digest)], "[0]") for digest in (A.upper(), A[1:], A + "0", A + "\n", None, 5)
] + [
    ([entry(size=size)], "[0]") for size in (-1, True, None, "1", 1.5, 2**53 + 2)
] + [
    ([entry("a"), entry("a")], ""),
    ([entry("A"), entry("a")], ""),
    ([entry("A"), entry("a/b")], ""),
    ([entry("a"), entry("a/b")], ""),
    ([entry(), 1], "[1]"),
    ([entry(mode=7)], "[0]"),
    ([{"path": "p", "digest": A}], "[0]"),
    ([], ""),
    ({}, ""),
    (None, ""),
]  # fmt: skip


@pytest.mark.parametrize(("files", "place"), HOSTILE)
def test_hostile_files(files, place):
    data = json.dumps({"files": files}, separators=(",", ":"), ensure_ascii=False).encode()
    with pytest.raises(InvalidInputError) as caught:
        parse_manifest(data, "m")
    assert caught.value.where.startswith("m: $.files" + place)
    assert "canonical" not in caught.value.why
    str(caught.value).encode()


GOOD = manifest_bytes([FileRef("a", A, 10), FileRef("b", B, 0)])


@pytest.mark.parametrize(
    "data",
    [
        GOOD + b"\n",
        b" " + GOOD,
        GOOD.replace(b":10", b": 10"),
        GOOD.replace(b":10", b":10.0"),
        GOOD.replace(b":10", b":1e1"),
        GOOD.replace(b":0}", b":-0}"),
        GOOD.replace(b'"a"', b'"\\u0061"'),
        GOOD.replace(b'"path":"a","size":10', b'"size":10,"path":"a"'),
        GOOD.replace(b'"path":"a"', b'"path":"c"'),
        GOOD.replace(b'"size":10', b'"size":10,"size":10'),
        GOOD[:-1],
        GOOD[:-1] + b',"files":[]}',
        GOOD[:-1] + b',"more":1}',
        b"",
        b"[]",
        b"{}",
        b"null",
        b"\xff",
        b"[" * 100_000,
    ],
)
def test_not_canonical_or_no_manifest(data):
    assert parse_manifest(GOOD)
    with pytest.raises(InvalidInputError, match=r"^m\b"):
        parse_manifest(data, "m")


@pytest.mark.parametrize(
    "files",
    [
        [],
        [FileRef("../a", A, 1)],
        [FileRef('a","size":1},{"x', A, 1)],
        [FileRef("a", A.upper(), 1)],
        [FileRef("a", A, -1)],
        [FileRef("a", A, True)],
        [FileRef("a", A, 2**53 + 1)],
        [FileRef("a", A, 1), FileRef("A", A, 1)],
        [FileRef("a", A, 1), FileRef("a/b", A, 1)],
    ],
)
def test_no_manifest_is_made_of_bad_files(files):
    with pytest.raises(InvalidInputError, match=r"^artifact"):
        manifest_bytes(files)


def test_the_size_of_a_manifest_is_limited(monkeypatch):
    monkeypatch.setattr(module, "MAX_MANIFEST_BYTES", len(GOOD))
    assert parse_manifest(GOOD)
    monkeypatch.setattr(module, "MAX_MANIFEST_BYTES", len(GOOD) - 1)
    with pytest.raises(InvalidInputError, match="larger than"):
        parse_manifest(GOOD)
    with pytest.raises(InvalidInputError, match="larger than"):
        manifest_bytes([FileRef("a", A, 10), FileRef("b", B, 0)])


def test_datasets():
    assert dataset_id(A) == f"art:{A}"
    assert parse_dataset(f"art:{A}") == A
    assert is_artifact_dataset(f"art:{A}")
    with pytest.raises(InvalidInputError):
        dataset_id("art:" + A)


@pytest.mark.parametrize(
    "text", ["", A, "art:", f"art:{A}\n", f"ART:{A}", f"art:{A.upper()}", f"art:{A}0", "genome:hg38", None]
)
def test_no_dataset_of_a_store(text):
    assert not (isinstance(text, str) and is_artifact_dataset(text))
    with pytest.raises(InvalidInputError, match=r"^d: "):
        parse_dataset(text, "d")


@pytest.mark.parametrize("text", ["a", "0", "genome:hg38", f"art:{A}", "A_.:+-", "x" * 128])
def test_dataset_ids(text):
    assert check_dataset_id(text) == text


@pytest.mark.parametrize("text", ["", "-a", ":a", "a/b", "a b", "a\n", "\u00e9", "a\u0661", "x" * 129, None])
def test_no_dataset_ids(text):
    with pytest.raises(InvalidInputError, match=r"^d: "):
        check_dataset_id(text, "d")


def test_sizes():
    assert check_size(0) == 0
    assert check_size(2**53) == 2**53
    for size in (-1, 2**53 + 1, True, 1.0, "1", None, 10**5000):
        with pytest.raises(InvalidInputError, match=r"^s: is no size"):
            check_size(size, "s")
