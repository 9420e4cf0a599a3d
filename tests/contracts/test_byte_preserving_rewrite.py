"""Replacing `local` by what was uploaded changes nothing else in the envelope, not one byte of it."""

import hashlib
import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oarbank_cas.contracts import recordable, rewrite
from oarbank_cas.contracts.canonical import MAX_DEPTH, parse_json
from oarbank_cas.contracts.envelopes import parse_result
from oarbank_cas.contracts.rewrite import Upload, find_uploads, payload_size, replace_locals
from oarbank_cas.errors import InvalidInputError

A, B = "a" * 64, "b" * 64


def uploaded(local):
    """What the upload of a file gives, in these tests."""
    return hashlib.sha256(local.encode()).hexdigest(), len(local) * 1000


def rewritten(text):
    scan = find_uploads(text)
    return replace_locals(scan, [uploaded(upload.local) for upload in scan.uploads])


def in_file(file, **rest):
    head = "".join(f'"{key}": {value}, ' for key, value in rest.items())
    return f'{{{head}"artifacts": [{{"name": "a", "files": [{file}]}}]}}'


DX, SX = uploaded("x")

CASES = [
    # nothing there yet: both take the place of local, with its colon and the separator around
    ('{"local": "x"}', f'{{"digest": "{DX}", "size": {SX}}}'),
    ('{"local":"x"}', f'{{"digest":"{DX}","size":{SX}}}'),
    ('{ "local" :\n"x" }', f'{{ "digest" :\n"{DX}","size" :\n{SX} }}'),
    ('{"path":"p","local":"x"}', f'{{"path":"p","digest":"{DX}","size":{SX}}}'),
    ('{"path": "p", "local": "x"}', f'{{"path": "p", "digest": "{DX}", "size": {SX}}}'),
    ('{"local": "x",\n  "path": "p"\n}', f'{{"digest": "{DX}",\n  "size": {SX},\n  "path": "p"\n}}'),
    ('{"path": "p" ,\t"local": "x"}', f'{{"path": "p" ,\t"digest": "{DX}" ,\t"size": {SX}}}'),
    ('{"loc\\u0061l": "x"}', f'{{"digest": "{DX}", "size": {SX}}}'),
    ('{"local": "\\u0078"}', f'{{"digest": "{DX}", "size": {SX}}}'),
    # one is there
    ('{"local": "x", "digest": null}', f'{{"size": {SX}, "digest": "{DX}"}}'),
    ('{"size" : null ,"local": "x"}', f'{{"size" : {SX} ,"digest": "{DX}"}}'),
    (f'{{"digest":"{DX}","local":"x"}}', f'{{"digest":"{DX}","size":{SX}}}'),
    # both are there: local goes, with one comma
    ('{"local": "x", "digest": null, "size": null}', f'{{"digest": "{DX}", "size": {SX}}}'),
    ('{"digest": null, "local": "x" ,  "size": null}', f'{{"digest": "{DX}", "size": {SX}}}'),
    ('{"digest": null, "size": null , "local": "x" }', f'{{"digest": "{DX}", "size": {SX} }}'),
    ('{ "local": "x", "d\\u0069gest":null,"size":null}', f'{{ "d\\u0069gest":"{DX}","size":{SX}}}'),
    (f'{{"local": "x", "digest": "{DX}", "size": {SX}, "n": 1}}', f'{{"digest": "{DX}", "size": {SX}, "n": 1}}'),
    # what is claimed rightly keeps its spelling
    (
        f'{{"digest": "\\u{ord(DX[0]):04x}{DX[1:]}", "local": "x"}}',
        f'{{"digest": "\\u{ord(DX[0]):04x}{DX[1:]}", "size": {SX}}}',
    ),
    # all else stays
    ('{"local": null}', '{"local": null}'),
    ('{"local": 5}', '{"local": 5}'),
    ('{"local": {"local": "x"}}', f'{{"local": {{"digest": "{DX}", "size": {SX}}}}}'),
    ('{"local": ["local", "x"]}', '{"local": ["local", "x"]}'),
    ('{"digest": null, "size": null}', '{"digest": null, "size": null}'),
    ("{}", "{}"),
    ("[ ]", "[ ]"),
    (
        '{"n": 1.0, "m": [1e3, 12345678901234567890, -0, 1E+2], "local": "x", "s": "\\u00e9\\/é"}',
        f'{{"n": 1.0, "m": [1e3, 12345678901234567890, -0, 1E+2], "digest": "{DX}", "size": {SX}, "s": "\\u00e9\\/é"}}',
    ),
]


@pytest.mark.parametrize(("file", "expected"), CASES)
def test_one_object(file, expected):
    text = in_file(file, payload='{"local": "not looked at", "n": 1.0}', new="null")
    assert rewritten(text) == in_file(expected, payload='{"local": "not looked at", "n": 1.0}', new="null")
    parse_json(rewritten(text), big_integers=True)


@pytest.mark.parametrize(
    "text",
    ["{}", ' { "payload" : {} }\n', '{"artifacts": []}', '{"artifacts": null}', '{"artifacts": "local"}',
     '{"local": "x"}', '{"payload": {"artifacts": [{"local": "x"}]}}', '{"artifacts": 1.50}',
     '{"a": {"artifacts": {"local": "x"}}}'],
)  # fmt: skip
def test_nothing_to_do(text):
    assert find_uploads(text).uploads == ()
    assert rewritten(text) == text


def test_uploads_in_the_order_of_the_text_with_their_places():
    text = f"""{{"artifacts": [
        {{"name": "a", "thumbnail": {{"of": {{"local": "in"}}, "local": "out", "size": 7}},
          "files": [{{"local": "f0"}}, {{"local": "f1", "digest": "{A}", "odd key": [0, {{"local": "deep"}}]}}]}},
        {{"local": "second"}}]}}"""
    assert find_uploads(text).uploads == (
        Upload("in", None, None, "$.artifacts[0].thumbnail.of"),
        Upload("out", None, 7, "$.artifacts[0].thumbnail"),
        Upload("f0", None, None, "$.artifacts[0].files[0]"),
        Upload("f1", A, None, "$.artifacts[0].files[1]"),
        Upload("deep", None, None, '$.artifacts[0].files[1]["odd key"][1]'),
        Upload("second", None, None, "$.artifacts[1]"),
    )


def test_objects_inside_one_another():
    text = (
        '{"artifacts": {"digest": null, "a": {"local": "x", "size": null, "digest": null}, "local": "x", "size": null}}'
    )
    inner = f'{{"size": {SX}, "digest": "{DX}"}}'
    assert rewritten(text) == f'{{"artifacts": {{"digest": "{DX}", "a": {inner}, "size": {SX}}}}}'
    text = (
        '{"artifacts": {"digest": null, "size": null, "a": {"size": null, "digest": null, "local": "x"}, "local": "x"}}'
    )
    assert rewritten(text) == f'{{"artifacts": {{"digest": "{DX}", "size": {SX}, "a": {inner}}}}}'


def test_a_size_of_minus_zero_stays_as_it_is_spelled():
    text = in_file('{"size": -0, "local": "empty"}')
    assert replace_locals(find_uploads(text), [(A, 0)]) == in_file(f'{{"size": -0, "digest": "{A}"}}')


@pytest.mark.parametrize(
    ("claim", "why"),
    [(f'"digest": "{A}"', "digest"), ('"size": 1', "size"), (f'"digest": "{DX}", "size": 999', "size")],
)
def test_a_claim_that_the_upload_does_not_bear_out(claim, why):
    scan = find_uploads(in_file(f'{{"path": "p", {claim}, "local": "x"}}'))
    with pytest.raises(InvalidInputError, match=f"claims the {why} ") as caught:
        replace_locals(scan, [(DX, SX)], "doc")
    assert caught.value.where == "doc: $.artifacts[0].files[0]"


@pytest.mark.parametrize(
    ("members", "place"),
    [
        *[(f'"local": "x", "digest": {value}', ".digest")
          for value in ("5", '"x"', "{}", "[]", "true", f'"{A.upper()}"', '"null"', '{"digest": null}')],
        *[(f'"size": {value}, "local": "x"', ".size")
          for value in ("-1", "1.0", "1e3", '"1"', "{}", "[null]", "true", '"null"', "9007199254740993", "9" * 5000)],
        *[(f'"local": "{value}"', ".local") for value in ("", "/etc/passwd", "../x", "a/../b", "a\\n", "con", "a//b")],
    ],
)  # fmt: skip
def test_malformed_neighbours_and_paths(members, place):
    with pytest.raises(InvalidInputError) as caught:
        find_uploads(in_file("{" + members + "}"), "doc")
    assert caught.value.where == f"doc: $.artifacts[0].files[0]{place}"


@pytest.mark.parametrize("results", [[], [(A, 1)] * 2])
def test_one_result_for_each_upload(results):
    with pytest.raises(ValueError, match="argument 3"):
        replace_locals(find_uploads(in_file('{"local": "x"}')), results)


@pytest.mark.parametrize("result", [("x", 1), (A, -1), (A, True), (A.upper(), 1), ('","', 1)])
def test_results_are_checked(result):
    with pytest.raises(InvalidInputError):
        replace_locals(find_uploads(in_file('{"local": "x"}')), [result])


BROKEN = [
    "",
    " ",
    "[]",
    "1",
    '"x"',
    "{",
    '{"a"',
    '{"a":',
    '{"a": 1',
    '{"a": 1,',
    '{"a": 1,}',
    "{,}",
    '{"a" 1}',
    "{a: 1}",
    "{} {}",
    '{"a": NaN}',
    '{"a": [Infinity]}',
    '{"a": tru}',
    '{"a": 1]',
    '{"a": 1, "a": 2}',
    '{"artifacts": [], "artifacts": []}',
    '{"payload": 1, "p\\u0061yload": 2}',
    '{"artifacts": [1,]}',
    '{"artifacts": [1 2]}',
    '{"artifacts": [}',
    '{"artifacts": [1}',
    '{"artifacts": {"a": 1]}',
    '{"artifacts": [NaN]}',
    '{"artifacts": [tru]}',
    '{"artifacts": [01]}',
    '{"artifacts": [1.]}',
    '{"artifacts": [+1]}',
    '{"artifacts": ["\n"]}',
    '{"artifacts": ["\\x"]}',
    '{"artifacts": ["x]}',
    '{"artifacts": [-]}',
    '{"artifacts": {"local": "x", "local": "y"}}',
    '{"artifacts": {"local": "x", "digest": null, "d\\u0069gest": null}}',
    '{"artifacts": {"a": 1, "a": 2}}',
    '{"artifacts": {"local": }}',
    '{"artifacts": {"local": "x"',
    '{"artifacts": {"digest": nul}}',
    '{"artifacts": {"a\n": 1}}',
    '{"artifacts": [\u0661]}',
    "\ufeff{}",
    '{"artifacts":\u00a0[]}',
]


@pytest.mark.parametrize("text", BROKEN)
def test_broken_documents(text):
    with pytest.raises(InvalidInputError, match=r"^doc\b"):
        find_uploads(text, "doc")


@pytest.mark.parametrize("opening", ["[", '{"a":', '{"a b":', "[[", '[{"local":'])
@pytest.mark.parametrize("field", ["artifacts", "payload"])
def test_too_deep(opening, field):
    for depth in (MAX_DEPTH * 5, 100_000):
        with pytest.raises(InvalidInputError):
            find_uploads(f'{{"{field}": ' + opening * depth)


def test_as_deep_as_the_parser_allows():
    levels = MAX_DEPTH - 2
    text = '{"artifacts": ' + "[" * levels + '{"local": "x"}' + "]" * levels + "}"
    parse_json(text)
    assert rewritten(text) == text.replace('"local": "x"', f'"digest": "{DX}", "size": {SX}')
    with pytest.raises(InvalidInputError, match="nested deeper"):
        find_uploads('{"artifacts": ' + "[" * (levels + 1) + "{}" + "]" * (levels + 1) + "}")


@pytest.mark.parametrize(
    ("payload", "size"),
    [("{}", 2), ('{ "a" : 1.0 }', 13), ('"é"', 4), ("null", 4), ("[1,\n 2]", 7), ("9" * 6000, 6000)],
)
def test_the_size_of_the_payload_as_written(payload, size):
    for text in (f'{{"payload": {payload} }}', f'{{"artifacts": [], "payload" :\n{payload},"x": {{"payload": 1}}}}'):
        scan = find_uploads(text)
        assert payload_size(scan) == size
        assert scan.text[slice(*scan.payload)] == payload


def test_no_payload():
    assert find_uploads("{}").payload is None
    assert payload_size(find_uploads("{}")) == 0


class Writer:
    """Writes a random envelope twice, as the runner would and as the agent should leave it.

    It knows objects as lists of members and of the gaps between them, and nothing of places in a text.
    """

    def __init__(self, random):
        self.random = random
        self.locals = 0

    def space(self):
        return self.random.choice(["", "", " ", "\n  ", "\t", " \r\n"])

    def key(self, name):
        if name.isascii() and self.random.random() < 0.15:
            at = self.random.randrange(len(name))
            name = name[:at] + f"\\u{ord(name[at]):04x}" + name[at + 1 :]
        return f'"{name}"'

    def scalar(self):
        return self.random.choice(
            ["1.0", "1e3", "-0", "12345678901234567890", "1E-2", "0.10", "true", "false", "null", '""', '"local"',
             '"é\\u00e9"', '"\\"local\\": \\"x\\""', '"\\\\"', '"{[,]}"', "[ ]", "{\n}"]
        )  # fmt: skip

    def value(self, depth):
        """Return the text before and after."""
        kind = self.random.random()
        if depth <= 0 or kind < 0.3:
            return (text := self.scalar()), text
        if kind < 0.5:
            items = [self.value(depth - 1) for _ in range(self.random.randrange(1, 4))]
            gaps = [f"{self.space()},{self.space()}" for _ in items[1:]]
            start, end = "[" + self.space(), self.space() + "]"
            return tuple(start + woven([item[i] for item in items], gaps) + end for i in (0, 1))
        return self.object(depth, upload=kind < 0.8)

    def object(self, depth, *, upload, names=("path", "näme", "x", "files", "loca", "thumbnail")):
        members = [
            (self.key(name), self.colon(), *self.value(depth - 1))
            for name in self.random.sample(names, self.random.randrange(1, 4))
        ]
        if upload:
            return self.upload(members)
        return self.woven(members, self.gaps(members), members, None)

    def upload(self, members):
        local = f"out/f{self.locals}x"
        self.locals += 1
        digest, size = (json.dumps(value) for value in uploaded(local))
        missing = []
        for name, result in (("digest", digest), ("size", size)):
            there = self.random.choice([None, None, "null", result])
            if there is None:
                missing.append((name, result))
            else:
                members.append((self.key(name), self.colon(), there, result))
        colon = self.colon()
        spelling = self.random.choice([json.dumps(local), json.dumps(local).replace("/", "\\/")])
        members.append((self.key("local"), colon, spelling, None))
        self.random.shuffle(members)
        gaps = self.gaps(members)
        after, new_gaps = list(members), list(gaps)
        at = next(i for i, member in enumerate(members) if member[3] is None)
        if missing:
            between = gaps[at] if at < len(gaps) else gaps[at - 1] if gaps else ", " if colon.endswith(" ") else ","
            after[at : at + 1] = [(f'"{name}"', colon, None, result) for name, result in missing]
            new_gaps[at:at] = [between] * (len(missing) - 1)
        else:
            del after[at]
            del new_gaps[at if at < len(gaps) else at - 1]
        return self.woven(members, gaps, after, new_gaps)

    def colon(self):
        return f"{self.space()}:{self.space()}"

    def gaps(self, members):
        return [f"{self.space()},{self.space()}" for _ in members[1:]]

    def woven(self, members, gaps, after, new_gaps):
        start, end = "{" + self.space(), self.space() + "}"
        before = woven([key + colon + old for key, colon, old, _ in members], gaps)
        later = woven([key + colon + new for key, colon, _, new in after], gaps if new_gaps is None else new_gaps)
        return start + before + end, start + later + end

    def envelope(self):
        artifacts = self.value(4)
        payload = self.scalar()
        members = [
            ('"schema"', self.colon(), '"a/result@1"', '"a/result@1"'),
            (self.key("payload"), self.colon(), payload, payload),
            (self.key("artifacts"), self.colon(), *artifacts),
        ]
        self.random.shuffle(members)
        before, after = self.woven(members, self.gaps(members), members, None)
        start, end = self.space(), self.space()
        return start + before + end, start + after + end, payload


def woven(items, gaps):
    pieces = [items[0]]
    for gap, item in zip(gaps, items[1:], strict=True):
        pieces += [gap, item]
    return "".join(pieces)


def spelled(text):
    """Parse, keeping the spelling of numbers."""
    return json.loads(text, parse_int=lambda n: ("number", n), parse_float=lambda n: ("number", n))


def transformed(value):
    """The same on parsed values: key order aside."""
    if isinstance(value, list):
        return [transformed(item) for item in value]
    if not isinstance(value, dict):
        return value
    new = {key: transformed(item) for key, item in value.items()}
    if isinstance(value.get("local"), str):
        digest, size = uploaded(new.pop("local"))
        new |= {"digest": digest, "size": ("number", str(size))}
    return new


@given(st.randoms(use_true_random=False))
def test_every_other_byte_of_any_envelope_stays(random):
    writer = Writer(random)
    before, after, payload = writer.envelope()
    scan = find_uploads(before)
    assert payload_size(scan) == len(payload.encode())
    assert len(scan.uploads) == writer.locals
    places = [before.replace("\\/", "//").index(upload.local.partition("/")[2]) for upload in scan.uploads]
    assert places == sorted(places)
    new = rewritten(before)
    assert new == after
    # The same again without the writer's word for it.
    document = spelled(before)
    assert spelled(new) == document | {"artifacts": transformed(document["artifacts"])}
    parse_json(new, big_integers=True)
    assert find_uploads(new).uploads == ()
    assert rewritten(new) == new


@given(st.text('{}[]",:0123456789.eE+-\\u localdigestsizenulltrue\n', max_size=40))
def test_any_text_gives_a_scan_or_one_kind_of_error(inner):
    text = f'{{"artifacts": {inner}}}'
    try:
        scan = find_uploads(text)
    except InvalidInputError:
        return
    assert json.loads(text) is not None
    assert replace_locals(scan, [(A, 1) for _ in scan.uploads]) is not None


PLAIN = [
    '{{"path": "{}", "local": "{}"}}',
    '{{ "path" :\n"{}" ,\t"local":"{}" }}',
    '{{"path":"{}","local":"{}"}}',
    '{{"local": "{1}", "path": "{0}"}}',
    '{{"path": "{}", "local": "{}", "size": null}}',
    '{{"path": "{}", "p\\u0061th": "again", "local": "{}"}}',
    '{{"path": "{}", "local": {{"local": "{}"}}}}',
    '{{"path": "{}\\n", "local": "a{}"}}',
    '{{"path": "{}", "local": "sp ace/{}"}}',
    '["{}", "{}"]',
]


@given(st.lists(st.tuples(st.sampled_from(PLAIN), st.sampled_from(["a", "b/c", "../d", "e\\u0066", ""])), max_size=8))
def test_a_plain_file_is_read_as_any_other_object(files):
    """The short way for what nearly every runner writes finds and refuses what the long way does."""
    text = '{"artifacts": [{"files": [' + ", ".join(form.format("p", name) for form, name in files) + "]}]}"
    outcomes = []
    for pattern in (rewrite._PLAIN_FILE, re.compile("(?!)")):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(rewrite, "_PLAIN_FILE", pattern)
            try:
                outcomes.append(find_uploads(text, "doc"))
            except InvalidInputError as error:
                outcomes.append(str(error))
    assert outcomes[0] == outcomes[1]


FILES = st.lists(
    st.fixed_dictionaries(
        {"local": st.sampled_from(["a", "b/c", "d"])},
        optional={"digest": st.none(), "size": st.none(), "thumbnail": st.just({"local": "t", "size": None})},
    ),
    min_size=1,
    max_size=5,
)


@given(FILES, st.fixed_dictionaries({}, optional={"note": st.just({"local": "n"}), "local": st.just("of an artifact")}))
def test_what_was_checked_before_is_recordable_after(files, more):
    """Replacing every `local` leaves an envelope that recording accepts, and takes for the same."""
    listed = [{"path": f"p{index}", **file} for index, file in enumerate(files)]
    more = {name: value for name, value in more.items() if name != "local"} | (
        {"local": "of/an/artifact"} if "local" in more else {}
    )
    artifacts = [{"name": "out", "files": listed, **more}]
    text = json.dumps({"schema": "a.b/result@1", "module_version": "1.0.0", "payload": {}, "artifacts": artifacts})
    scan = find_uploads(parse_result(text).text)
    envelope = replace_locals(scan, [uploaded(upload.local) for upload in scan.uploads]).encode()
    assert recordable.rewritten(envelope) == recordable.check_recordable(envelope, max_inline_kb=None)
