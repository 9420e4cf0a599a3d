"""Job keys and the names around them."""

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oarbank_cas.contracts.keys import (
    JobKey,
    check_class,
    check_module,
    check_name,
    check_platform,
    class_covers,
    job_key,
    parse_key,
)
from oarbank_cas.errors import InvalidInputError

HEX = "0f" * 32


def sha256(text):
    return hashlib.sha256(text.encode()).hexdigest()


@pytest.mark.parametrize(
    ("inputs", "written"),
    [
        ({}, "{}"),
        ({"b": [1, 2.50], "a": None}, '{"a":null,"b":[1,2.5]}'),
        ({"seed": 1000.0}, '{"seed":1000}'),
        ({"name": "Zoë"}, '{"name":"Zoë"}'),
        ([], "[]"),
        ("text", '"text"'),
    ],
)
def test_the_key_is_the_digest_of_the_canonical_json(inputs, written):
    expected = sha256('{"compat":"2","inputs":' + written + ',"module":"dev.codonic.align"}')
    assert job_key("dev.codonic.align", "2", inputs) == expected
    assert job_key("dev.codonic.align", "2", inputs, stage="map_reads") == expected + ":map_reads"


def test_every_part_counts():
    keys = {
        job_key("a.b", "1", {"x": 1}),
        job_key("a.c", "1", {"x": 1}),
        job_key("a.b", "2", {"x": 1}),
        job_key("a.b", "1", {"x": 2}),
        job_key("a.b", "1", {"x": 1}, "s"),
    }
    assert len(keys) == 5


@pytest.mark.parametrize(
    ("arguments", "place"),
    [
        (("align", "1", {}), "$.module"),
        (("a.b", "", {}), "$.compat"),
        (("a.b", "c" * 257, {}), "$.compat"),
        (("a.b", 1, {}), "$.compat"),
        (("a.b", None, {}), "$.compat"),
        (("a.b", "\ud800", {}), "$.compat"),
        (("a.b", "1", {"n": [2**53 + 1]}), "$.inputs.n[0]"),
        (("a.b", "1", {}, "Stage"), "stage"),
        (("a.b", "1", {}, ""), "stage"),
    ],
)
def test_a_malformed_part_is_named(arguments, place):
    with pytest.raises(InvalidInputError) as caught:
        job_key(*arguments)
    assert caught.value.where == place


@given(st.none() | st.from_regex(r"[a-z][a-z0-9_]{0,63}", fullmatch=True))
def test_keys_come_apart_and_together_again(stage):
    if stage is not None and not stage.isascii():
        return
    key = JobKey(HEX, stage)
    assert parse_key(str(key)) == key
    assert parse_key(job_key("a.b", "1", {}, stage)).stage == stage


@pytest.mark.parametrize(
    "text",
    ["", HEX[1:], HEX + "0", HEX.upper(), HEX + "\n", HEX + ":", HEX + ":s\n", HEX + ":S", HEX + ":1", HEX + ":a:b",
     HEX + ":" + "s" * 65, " " + HEX, "\u0661" * 64, HEX + ":s\u0661", None, 1, HEX.encode()],
)  # fmt: skip
def test_no_key(text):
    with pytest.raises(InvalidInputError, match=r"^job key: is no job key"):
        parse_key(text)


LIMITS = "a" * 64
GOOD = {
    check_name: ["a", "reads", "r2_d2", "a_", LIMITS],
    check_module: ["a.b", "dev.codonic.align", "0.1", "a.b-c.d-", "a." + "b" * 126],
    check_platform: ["linux-amd64", "darwin-arm64", "windows-x86_64", "os2-386", "a-" + "b" * 62],
    check_class: ["any", "linux", "arm64", "x86_64", "linux-amd64", "os2-386", LIMITS],
}
BAD = {
    check_name: ["", "A", "1a", "_a", "a-b", "a.b", "a\n", "é", "a\u0661", LIMITS + "a", None],
    check_module: ["", "a", "a.", ".a", "a..b", "A.b", "a.-b", "a-b.c", "a.b\n", "a_b.c", "\u0661.b", "a." + "b" * 127,
                   3],
    check_platform: ["", "linux", "linux-", "-amd64", "Linux-amd64", "linux-amd64-v2", "linux-amd64\n", "li_nux-a",
                     "a-" + "b" * 63, "linux-\u0661", None],
    check_class: ["", "Any", "any\n", "-any", "any-", "a-b-c", "386", "linux amd64", "a.b", "a\u0661",
                  LIMITS + "a", None],
}  # fmt: skip


@pytest.mark.parametrize(("check", "text"), [(check, text) for check, texts in GOOD.items() for text in texts])
def test_well_formed(check, text):
    assert check(text) == text


@pytest.mark.parametrize(("check", "text"), [(check, text) for check, texts in BAD.items() for text in texts])
def test_malformed(check, text):
    with pytest.raises(InvalidInputError, match=r"^there: is no "):
        check(text, "there")


@pytest.mark.parametrize(
    ("result_class", "platform", "covered"),
    [
        ("any", "linux-amd64", True),
        ("any", None, True),
        ("linux", "linux-amd64", True),
        ("amd64", "linux-amd64", True),
        ("linux-amd64", "linux-amd64", True),
        ("linux", None, False),
        ("darwin", "linux-amd64", False),
        ("arm64", "linux-amd64", False),
        ("linux-arm64", "linux-amd64", False),
        ("linu", "linux-amd64", False),
        ("x-amd64", "linux-amd64", False),
        ("x86_64", "windows-x86_64", True),
    ],
)
def test_which_classes_a_platform_may_answer(result_class, platform, covered):
    assert class_covers(result_class, platform) is covered
