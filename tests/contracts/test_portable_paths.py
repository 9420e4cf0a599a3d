"""Portable paths, their uniqueness in an artifact, and mounts."""

import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oarbank_cas.contracts.paths import (
    RESERVED_MOUNTS,
    check_mount,
    check_mounts_disjoint,
    check_portable_path,
    check_unique,
)
from oarbank_cas.errors import InvalidInputError

DEVICES = ["CON", "PRN", "AUX", "NUL", *(f"{name}{n}" for name in ("COM", "LPT") for n in range(10))]


@pytest.mark.parametrize(
    "path",
    ["a", "A", "0", "_", "+", "@", "-", "a/b/c", "a.b", "a..b", "a.tar.gz", "-rf", "@x/+y", "s" * 100, "x/" * 99 + "x",
     "s" * 100 + "/" + "s" * 99, "console", "CONX", "com", "com10", "lpt", "lpt00", "aux-", "nul_", "a.con", "x/acon",
     "CONIN", "CONOUT"],
)  # fmt: skip
def test_portable(path):
    assert check_portable_path(path) == path


BAD = {
    "empty": ["", "a//b", "a/", "//a", "/"],
    "absolute": ["/a", "/"],
    "segment .": [".", "./a", "a/."],
    "segment ..": ["..", "../a", "a/../b", "a/.."],
    "dot": [".a", "a/.b", "a.", "a./b", "a...", "..."],
    "letters": [
        "a b",
        "a\\b",
        "C:",
        "a:b",
        "é",
        "a\n",
        "\n",
        "a\0",
        "a*",
        "a?",
        "~",
        "a\u0661",
        "a\u212a",
        "$",
        "a/b\n",
    ],
    "longer than 200": ["s" * 201, "x/" * 100 + "x", "s" * 100 + "/" + "s" * 100],
    "segment is longer than 100": ["s" * 101, "a/" + "s" * 101],
    "device": ["con.txt", "con.tar.gz", "x/nul", "nul/x", "Com0", "com0.x/y", "LPT9.a.b", "a/aux.c/b"],
    "no text": [None, 5, b"a"],
}


@pytest.mark.parametrize("path", [path for paths in BAD.values() for path in paths], ids=repr)
def test_not_portable(path):
    with pytest.raises(InvalidInputError, match=r"^here: is no portable path: "):
        check_portable_path(path, "here")


@pytest.mark.parametrize(
    ("word", "path"), [(word, paths[-1]) for word, paths in BAD.items() if word != "letters"] + [("ASCII", "é")]
)
def test_the_reason_is_given(word, path):
    with pytest.raises(InvalidInputError, match=re.escape(word) if path != "/" else "absolute"):
        check_portable_path(path)


@pytest.mark.parametrize("device", [*DEVICES, "CONIN$", "CONOUT$"])
def test_no_device_of_windows_in_any_case_with_any_extension_anywhere(device):
    for name in (device, device.lower(), device.title(), device.lower() + ".txt", device + ".tar.gz"):
        for path in (name, f"{name}/a", f"a/{name}", f"a/{name}/b"):
            with pytest.raises(InvalidInputError):
                check_portable_path(path)


def is_portable(text):
    """The rule again, one sentence of it at a time."""
    segments = text.split("/")
    return (
        len(text.encode("utf-8", "surrogatepass")) <= 200
        and all(re.fullmatch(r"[A-Za-z0-9_+@-][A-Za-z0-9._+@-]*", segment) for segment in segments)
        and all(len(segment) <= 100 and not segment.endswith(".") for segment in segments)
        and not any(segment.split(".")[0].upper() in DEVICES for segment in segments)
    )


NEARLY = st.lists(
    st.sampled_from([*DEVICES, "con", "nUl", "a", ".", "..", "x.", ".x", "CONIN$", "s" * 99, "+", "com", "é", "\n"])
    | st.text(max_size=3),
    min_size=1,
    max_size=8,
).flatmap(lambda parts: st.sampled_from(["/", "", "."]).map(lambda glue: glue.join(parts)))  # fmt: skip


@given(st.text(max_size=12) | NEARLY)
def test_agrees_with_the_rule(text):
    try:
        check_portable_path(text)
        accepted = True
    except InvalidInputError as error:
        accepted = False
        str(error).encode()
    assert accepted == is_portable(text)


def test_a_hostile_path_takes_no_time():
    start = time.perf_counter()
    for text in ("a." * 100_000, "/" * 1_000_000, "a/" * 99 + "..", "." * 200, "a" + "." * 199):
        with pytest.raises(InvalidInputError):
            check_portable_path(text)
    assert time.perf_counter() - start < 1


@pytest.mark.parametrize(
    "paths",
    [[], ["a"], ["a", "b"], ["a/b", "a/c"], ["a", "ab", "a-b/c", "a.b"], ["a/b", "a.b", "a+b"], ["x/a", "a/x"],
     ["a/b/c", "a/bc"]],
)  # fmt: skip
def test_unique(paths):
    check_unique(paths)


@pytest.mark.parametrize(
    ("paths", "why"),
    [
        (["a", "b", "a"], 'the same path twice: "a" and "a"'),
        (["x/Ab", "b", "X/aB"], 'differ only in case: "x/Ab" and "X/aB"'),
        (["a/b", "a"], 'directory of another: "a" and "a/b"'),
        (["a", "A/b"], 'directory of another: "a" and "A/b"'),
        (["a/b/c/d", "a-", "a.x", "a/b"], 'directory of another: "a/b" and "a/b/c/d"'),
        (["a/b", "A/B/c"], 'directory of another: "a/b" and "A/B/c"'),
        (["a", "a-x", "a.x", "a+", "A/x"], 'directory of another: "a" and "A/x"'),
    ],
)
def test_clashes(paths, why):
    with pytest.raises(InvalidInputError) as caught:
        check_unique(paths, "$.files")
    assert why in caught.value.why
    assert caught.value.where == "$.files"


PATHS = st.lists(
    st.lists(st.sampled_from(["a", "A", "b", "a-", "a.x", "B0"]), min_size=1, max_size=3).map("/".join), max_size=6
)


@given(PATHS)
def test_uniqueness_agrees_with_comparing_all_pairs(paths):
    folded = [path.lower() + "/" for path in paths]
    clash = any(i != j and b.startswith(a) for i, a in enumerate(folded) for j, b in enumerate(folded))
    try:
        check_unique(paths)
        assert not clash
    except InvalidInputError:
        assert clash


@pytest.mark.parametrize("mount", ["inputs", "inputs/reads", "a/tmp", "a/spec.json", "tmp2", "result.json.d", "phases"])
def test_mounts(mount):
    assert check_mount(mount) == mount


@pytest.mark.parametrize("name", sorted(RESERVED_MOUNTS))
def test_reserved_names_are_no_mounts(name):
    for mount in (name, name.upper(), name.title(), f"{name}/a", f"{name.upper()}/a/b"):
        with pytest.raises(InvalidInputError, match=r"^here: is reserved"):
            check_mount(mount, "here")


@pytest.mark.parametrize("mount", ["", "/a", "../a", "a/..", ".", "con", "a\n"])
def test_a_mount_is_a_portable_path(mount):
    with pytest.raises(InvalidInputError, match="portable"):
        check_mount(mount)


def test_reserved_names_are_those_of_the_work_directory():
    names = ["spec.json", "result.json", "control.json", "failure.json", "events.ndjson", "phase", "tmp"]
    assert sorted(names) == sorted(RESERVED_MOUNTS)


def test_mounts_do_not_overlap():
    check_mounts_disjoint({"x": "in/a", "y": "in/b", "z": "in/a-b"})
    for second in ("in/a", "IN/A", "in", "in/a/b", "In/A/b"):
        with pytest.raises(InvalidInputError, match="overlap") as caught:
            check_mounts_disjoint({"$.inputs.x": "in/a", "$.inputs.y": second})
        assert "$.inputs.x" in caught.value.why
        assert "$.inputs.y" in caught.value.why
