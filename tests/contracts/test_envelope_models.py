"""The envelopes: what is known is checked, what is unknown is kept, and a refusal says where."""

import json
import re

import pytest

from oarbank_cas.contracts.envelopes import (
    Artifact,
    ArtifactFile,
    Provenance,
    ResultEnvelope,
    SpecEnvelope,
    SpecInput,
    parse_result,
    parse_spec,
)
from oarbank_cas.errors import InvalidInputError

D = "0123456789abcdef" * 4


def result(**changes):
    document = {
        "schema": "align/result@2",
        "module_version": "1.2.3",
        "artifacts": [{"name": "reads", "files": [{"path": "a/b.bin", "local": "out/b.bin"}]}],
        "payload": {"score": "0.5"},
    }
    return {**document, **changes}


def spec(**changes):
    document = {
        "schema": "align/spec@2",
        "module_id": "dev.codonic.align",
        "module_version": "1.2.3",
        "job_key": D,
        "payload": {},
    }
    return {**document, **changes}


def files(*listed):
    return result(artifacts=[{"name": "reads", "files": list(listed)}])


def without(document, key):
    return {name: value for name, value in document.items() if name != key}


def refused(parse, document):
    with pytest.raises(InvalidInputError) as caught:
        parse(json.dumps(document), "doc")
    message = str(caught.value)
    assert "pydantic" not in message.lower()
    assert "http" not in message
    message.encode()
    return caught.value


def test_a_result_in_its_three_forms():
    text = json.dumps(result(), indent=1)
    parsed = parse_result(text.encode())
    assert parsed.text == text
    assert parsed.document == result()
    envelope = parsed.envelope
    assert isinstance(envelope, ResultEnvelope)
    assert envelope.schema_ == "align/result@2"
    assert envelope.artifacts[0].files[0].local == "out/b.bin"
    assert parse_result(text) == parsed


def test_defaults_of_a_result():
    envelope = parse_result(json.dumps(without(result(), "artifacts"))).envelope
    assert (envelope.envelope, envelope.protocol) == (1, 1)
    assert (envelope.artifacts, envelope.effective) == ([], {})
    assert envelope.provenance == Provenance()
    assert (envelope.provenance.argv, envelope.provenance.tool_versions, envelope.provenance.host) == ({}, {}, None)


def test_defaults_of_a_spec():
    envelope = parse_spec(json.dumps(spec())).envelope
    assert isinstance(envelope, SpecEnvelope)
    assert (envelope.envelope, envelope.protocol) == (1, 1)
    assert (envelope.stage, envelope.timeout_s, envelope.platform) == (None, None, None)
    assert (envelope.datasets, envelope.mounts, envelope.inputs, envelope.resources) == ([], {}, {}, {})


def test_models_are_made_in_python_too():
    envelope = ResultEnvelope(
        schema="m/result@1",
        module_version="0.1.0",
        artifacts=[Artifact(name="a", files=[ArtifactFile(path="p", digest=D, size=0)])],
        payload={},
    )
    assert ResultEnvelope.model_validate(envelope.model_dump(by_alias=True)) == envelope
    assert SpecInput(dataset=f"art:{D}", mount="inputs/a").mount == "inputs/a"


def test_unknown_fields_are_kept_at_every_level():
    document = result(
        new={"a": [1.5, None]},
        schema_="unknown too",
        provenance={"argv": {"bwa": ["bwa", "mem"]}, "gpu": "none"},
        artifacts=[{"name": "a", "files": [{"path": "p", "local": "p", "mode": 7}], "thumbnail": {"local": "t"}}],
    )
    envelope = parse_result(json.dumps(document)).envelope
    dumped = envelope.model_dump(by_alias=True, exclude_unset=True)
    assert dumped == document

    document = spec(new=1, inputs={"a": {"dataset": "x", "mount": "m", "new": [2]}})
    assert parse_spec(json.dumps(document)).envelope.model_dump(by_alias=True, exclude_unset=True) == document


def test_an_unknown_schema_field_is_no_schema():
    error = refused(parse_result, without(result(schema_="align/result@2"), "schema"))
    assert str(error) == "doc: $.schema: is required"


def test_long_integers_of_the_payload_pass():
    text = json.dumps(result()).replace('"0.5"', "12345678901234567890")
    assert parse_result(text).envelope.payload == {"score": 12345678901234567890}


def test_strictness_of_the_json_itself():
    with pytest.raises(InvalidInputError, match=r'^doc: \$\.payload: has the key "a" twice'):
        parse_result(json.dumps(result()).replace('"score": "0.5"', '"a": 1, "a": 2'), "doc")
    for data in (b"[]", b"1", b'"x"', b"null"):
        with pytest.raises(InvalidInputError, match="must be an object"):
            parse_result(data)


VERSIONS = ["0.0.0", "1.2.3", "10.20.30", "1.2.3-rc.1", "1.2.3+b-7", "1.2.3-a+b"]
REFERENCES = ["a/result@1", "0.b-c/result@10", "align/result@99999999999999999999"]


@pytest.mark.parametrize("version", VERSIONS)
def test_versions(version):
    assert parse_result(json.dumps(result(module_version=version))).envelope.module_version == version


@pytest.mark.parametrize("reference", REFERENCES)
def test_references(reference):
    assert parse_result(json.dumps(result(schema=reference))).envelope.schema_ == reference
    spec_reference = reference.replace("result", "spec")
    assert parse_spec(json.dumps(spec(schema=spec_reference))).envelope.schema_ == spec_reference


BAD_RESULTS = [
    # what is changed, the place, a part of the reason
    *[({"module_version": v}, "$.module_version", "semantic version")
      for v in ("1.2", "01.2.3", "1.2.3\n", "1.2.\u0663", "1.2.3\u0663", "v1.2.3", "1.2.3-", "1.2.3-\u0663", "")],
    ({"module_version": 1}, "$.module_version", "string"),
    *[({"schema": s}, "$.schema", "schema reference")
      for s in ("result@1", "a/result@0", "a/result@01", "A/result@1", "a/result@1\n", "a/other@1", "a/result@\u0661",
                "-a/result@1", "")],
    ({"schema": "align/spec@2"}, "$.schema", "must name a result"),
    ({"schema": None}, "$.schema", "string"),
    *[({"envelope": e}, "$.envelope", "must be 1") for e in (2, 0, True, 1.0, "1", None)],
    *[({"protocol": p}, "$.protocol", "integer") for p in ("1", True, 1.0, 1.5, None)],
    ({"effective": []}, "$.effective", "object"),
    ({"effective": None}, "$.effective", "object"),
    ({"payload": []}, "$.payload", "object"),
    ({"payload": "x"}, "$.payload", "object"),
    ({"artifacts": {}}, "$.artifacts", "list"),
    ({"artifacts": None}, "$.artifacts", "list"),
    ({"artifacts": [1]}, "$.artifacts[0]", "object"),
    ({"artifacts": [{"name": "a", "files": []}]}, "$.artifacts[0].files", "empty"),
    ({"artifacts": [{"name": "a"}]}, "$.artifacts[0].files", "required"),
    ({"artifacts": [{"files": [{"path": "a", "local": "a"}]}]}, "$.artifacts[0].name", "required"),
    ({"provenance": None}, "$.provenance", "object"),
    ({"provenance": {"host": 1}}, "$.provenance.host", "string"),
    ({"provenance": {"argv": {"bwa": "mem"}}}, "$.provenance.argv.bwa", "list"),
    ({"provenance": {"argv": {"b c": ["x", 1]}}}, '$.provenance.argv["b c"][1]', "string"),
    ({"provenance": {"tool_versions": {"bwa": 1}}}, "$.provenance.tool_versions.bwa", "string"),
]  # fmt: skip


@pytest.mark.parametrize(("changes", "place", "why"), BAD_RESULTS)
def test_bad_results(changes, place, why):
    error = refused(parse_result, result(**changes))
    assert error.where == f"doc: {place}"
    assert why in error.why


@pytest.mark.parametrize("name", ["a", "reads_2", "n" * 64])
def test_artifact_names(name):
    document = result(artifacts=[{"name": name, "files": [{"path": "p", "local": "p"}]}])
    assert parse_result(json.dumps(document)).envelope.artifacts[0].name == name


@pytest.mark.parametrize("name", ["", "A", "1a", "a-b", "a\n", "a.b", "n" * 65, "\u00e9"])
def test_bad_artifact_names(name):
    error = refused(parse_result, result(artifacts=[{"name": name, "files": [{"path": "p", "local": "p"}]}]))
    assert error.where == "doc: $.artifacts[0].name"


def test_artifact_names_are_unique():
    artifact = {"name": "a", "files": [{"path": "p", "local": "p"}]}
    error = refused(parse_result, result(artifacts=[artifact, artifact]))
    assert (error.where, error.why) == ("doc: $.artifacts", 'has two artifacts with the name "a"')


@pytest.mark.parametrize(
    "file",
    [
        {"path": "a", "local": "b"},
        {"path": "a", "local": "b", "digest": None, "size": None},
        {"path": "a", "local": "b", "digest": D},
        {"path": "a", "local": "b", "size": 3},
        {"path": "a", "local": "b", "digest": D, "size": 3},
        {"path": "a", "digest": D, "size": 0},
        {"path": "a", "local": None, "digest": D, "size": 2**53},
    ],
)
def test_files(file):
    assert parse_result(json.dumps(files(file))).envelope.artifacts[0].files[0].path == "a"


@pytest.mark.parametrize(
    ("file", "place", "why"),
    [
        ({"path": "a"}, "", "neither local nor digest"),
        ({"path": "a", "local": None, "digest": None}, "", "neither local nor digest"),
        ({"path": "a", "size": 1}, "", "neither local nor digest"),
        ({"path": "a", "digest": D}, "", "no size"),
        ({"local": "a"}, ".path", "required"),
        ({"path": 1, "local": "a"}, ".path", "string"),
        ({"path": "../a", "local": "a"}, ".path", "segment .."),
        ({"path": "a", "local": "/etc/passwd"}, ".local", "absolute"),
        ({"path": "a", "local": "a\n"}, ".local", "portable"),
        ({"path": "a", "local": ""}, ".local", "empty"),
        ({"path": "a", "local": 1}, ".local", "string"),
        ({"path": "a", "digest": D.upper(), "size": 1}, ".digest", "digest"),
        ({"path": "a", "digest": D + "\n", "size": 1}, ".digest", "digest"),
        ({"path": "a", "digest": 1, "size": 1}, ".digest", "string"),
        *[({"path": "a", "digest": D, "size": size}, ".size", "size") for size in (-1, 2**53 + 1, 10**30)],
        *[({"path": "a", "digest": D, "size": size}, ".size", "integer") for size in (True, "1", 1.0, 1.5)],
    ],
)
def test_bad_files(file, place, why):
    error = refused(parse_result, files({"path": "ok", "local": "ok"}, file))
    assert error.where == f"doc: $.artifacts[0].files[1]{place}"
    assert why in error.why


@pytest.mark.parametrize("paths", [["a", "a"], ["a", "A"], ["a", "A/b"], ["a/b", "c", "A"]])
def test_paths_of_an_artifact_stand_together(paths):
    error = refused(parse_result, files(*[{"path": path, "local": "x"} for path in paths]))
    assert error.where == "doc: $.artifacts[0].files"


def test_paths_of_two_artifacts_have_nothing_to_do_with_each_other():
    artifacts = [{"name": name, "files": [{"path": "a", "local": "a"}]} for name in ("x", "y")]
    parse_result(json.dumps(result(artifacts=artifacts)))


def test_the_first_few_of_many_problems_are_listed():
    error = refused(parse_result, files(*[{"path": f"p{i}"} for i in range(9)]))
    assert error.where == "doc"
    assert error.why.startswith("has 9 problems: $.artifacts[0].files[0] has neither local nor digest")
    assert "files[4]" in error.why
    assert "files[5]" not in error.why
    assert error.why.endswith("; and 4 more")
    assert "more" not in refused(parse_result, result(envelope=2, protocol="1")).why


REQUIRED_OF_A_RESULT = ["schema", "module_version", "payload"]
REQUIRED_OF_A_SPEC = ["schema", "module_id", "module_version", "job_key", "payload"]


@pytest.mark.parametrize(
    ("parse", "document", "field"),
    [(parse_result, result(), field) for field in REQUIRED_OF_A_RESULT]
    + [(parse_spec, spec(), field) for field in REQUIRED_OF_A_SPEC],
)
def test_required_fields(parse, document, field):
    parse(json.dumps(document))
    assert str(refused(parse, without(document, field))) == f"doc: $.{field}: is required"


def wants(**mounts):
    return {name: {"dataset": f"art:{D}", "mount": mount} for name, mount in mounts.items()}


@pytest.mark.parametrize(
    "changes",
    [
        {"job_key": D + ":map_reads", "stage": "map_reads"},
        {"stage": None, "timeout_s": None, "platform": None},
        {"timeout_s": 3600, "platform": "linux-amd64"},
        {"timeout_s": 0.5, "resources": {"cpu": 4, "pools": ["gpu"]}},
        {"datasets": ["genome:hg38+alt", f"art:{D}"], "mounts": {"genome:hg38+alt": "data/genome"}},
        {"inputs": wants(a="inputs/a", b="inputs/b")},
        # An input that the datasets list too, at the same place: once staged, it is there for both.
        {"datasets": [f"art:{D}"], "mounts": {f"art:{D}": "inputs/a"}, "inputs": wants(a="inputs/a")},
    ],
)
def test_specs(changes):
    document = spec(**changes)
    parsed = parse_spec(json.dumps(document))
    assert parsed.envelope.model_dump(by_alias=True, exclude_unset=True) == document


@pytest.mark.parametrize(
    ("changes", "place", "why"),
    [
        ({"schema": "align/result@2"}, "$.schema", "must name a spec"),
        ({"module_id": "align"}, "$.module_id", "module id"),
        ({"module_id": "a.b\n"}, "$.module_id", "module id"),
        ({"module_id": "a." + "b" * 127}, "$.module_id", "longer than 128"),
        ({"module_version": "1"}, "$.module_version", "semantic version"),
        ({"job_key": D[1:]}, "$.job_key", "job key"),
        ({"job_key": D + "\n"}, "$.job_key", "job key"),
        ({"job_key": D + ":S"}, "$.job_key", "job key"),
        ({"stage": "Map"}, "$.stage", "name"),
        ({"stage": "s" * 65}, "$.stage", "longer than 64"),
        ({"timeout_s": "60"}, "$.timeout_s", "number"),
        ({"timeout_s": True}, "$.timeout_s", "number"),
        ({"timeout_s": 10**400}, "$.timeout_s", "number"),
        ({"platform": "linux"}, "$.platform", "platform"),
        ({"platform": "linux-amd64\n"}, "$.platform", "platform"),
        ({"datasets": ["-x"]}, "$.datasets[0]", "dataset"),
        ({"datasets": ["x" * 129]}, "$.datasets[0]", "dataset"),
        ({"datasets": ["x/y"]}, "$.datasets[0]", "dataset"),
        ({"mounts": {"x y": "a"}}, '$.mounts["x y"]', "dataset"),
        ({"mounts": {"x": "../a"}}, "$.mounts.x", "portable"),
        ({"mounts": {"x": "Result.JSON/a"}}, "$.mounts.x", "reserved"),
        ({"inputs": {"A": {"dataset": "x", "mount": "a"}}}, "$.inputs.A", "name"),
        ({"inputs": {"a": {"dataset": "x"}}}, "$.inputs.a.mount", "required"),
        ({"inputs": {"a": {"mount": "x"}}}, "$.inputs.a.dataset", "required"),
        ({"inputs": {"a": {"dataset": "x", "mount": "tmp"}}}, "$.inputs.a.mount", "reserved"),
        ({"inputs": {"a": {"dataset": "x", "mount": "/a"}}}, "$.inputs.a.mount", "absolute"),
        ({"inputs": []}, "$.inputs", "object"),
        ({"resources": None}, "$.resources", "object"),
        ({"inputs": wants(a="in", b="IN")}, "$", "$.inputs.a"),
        ({"inputs": wants(a="in/x/y", b="in/x")}, "$", "overlap"),
        ({"mounts": {"p": "in/x", "q": "in"}}, "$", "$.mounts.q"),
        ({"mounts": {"p": "in/x"}, "inputs": wants(a="in/X")}, "$", "overlap"),
        ({"mounts": {f"art:{D}": "in"}, "inputs": wants(a="in", b="in")}, "$", "overlap"),
        ({"mounts": {f"art:{D}": "in"}, "inputs": wants(a="in", b="in/b")}, "$", "overlap"),
        ({"mounts": {f"art:{D}": "in"}, "inputs": wants(a="in/b")}, "$", "overlap"),
        ({"mounts": {f"art:{D}": "in"}, "inputs": wants(a="IN")}, "$", "overlap"),
    ],
)
def test_bad_specs(changes, place, why):
    error = refused(parse_spec, spec(**changes))
    assert error.where == f"doc: {place}"
    assert re.search(re.escape(why), error.why)
