"""The JSON Schemas: generated from the models, shipped as generated, and just what the contract's table says."""

import json

import jsonschema
import pytest

from oarbank_cas.contracts import schemas
from oarbank_cas.contracts.envelopes import parse_result, parse_spec
from oarbank_cas.errors import InvalidInputError

DIGEST = "^[0-9a-f]{64}$"
NAME = "^[a-z][a-z0-9_]*$"
SEMVER = r"^(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)(-[0-9A-Za-z.-]+)?(\+[0-9A-Za-z.-]+)?$"
REFERENCE = "^[a-z0-9][a-z0-9.-]*/(spec|result)@[1-9][0-9]*$"
DATASET = "^[A-Za-z0-9][A-Za-z0-9_.:+-]{0,127}$"
NONE = object()

# Each row: field, required, type, default, constraints. Types are written as in the table of the contract.
RESULT = {
    None: [
        ("artifacts", False, "array of Artifact", NONE, {}),
        ("effective", False, "object", NONE, {}),
        ("envelope", False, "const 1", 1, {}),
        ("module_version", True, "string", NONE, {"pattern": SEMVER}),
        ("payload", True, "object", NONE, {}),
        ("protocol", False, "integer", 1, {}),
        ("provenance", False, "Provenance", NONE, {}),
        ("schema", True, "string", NONE, {"pattern": REFERENCE}),
    ],
    "Artifact": [
        ("files", True, "array of ArtifactFile", NONE, {"minItems": 1}),
        ("name", True, "string", NONE, {"pattern": NAME, "maxLength": 64}),
    ],
    "ArtifactFile": [
        ("digest", False, "string | null", None, {"pattern": DIGEST}),
        ("local", False, "string | null", None, {}),
        ("path", True, "string", NONE, {}),
        ("size", False, "integer | null", None, {}),
    ],
    "Provenance": [
        ("argv", False, "map of string to array of string", NONE, {}),
        ("host", False, "string | null", None, {}),
        ("tool_versions", False, "map of string to string", NONE, {}),
    ],
}
SPEC = {
    None: [
        ("datasets", False, "array of string", NONE, {"items": {"pattern": DATASET}}),
        ("envelope", False, "const 1", 1, {}),
        ("inputs", False, "map of NAME to SpecInput", NONE, {"propertyNames": {"maxLength": 64}}),
        ("job_key", True, "string", NONE, {"pattern": "^[0-9a-f]{64}(:[a-z][a-z0-9_]{0,63})?$"}),
        ("module_id", True, "string", NONE, {"pattern": r"^[a-z0-9]+(\.[a-z0-9][a-z0-9-]*)+$", "maxLength": 128}),
        ("module_version", True, "string", NONE, {"pattern": SEMVER}),
        ("mounts", False, "map of DATASET to string", NONE, {}),
        ("payload", True, "object", NONE, {}),
        ("platform", False, "string | null", None, {"pattern": "^[a-z][a-z0-9]*-[a-z0-9_]+$", "maxLength": 64}),
        ("protocol", False, "integer", 1, {}),
        ("resources", False, "object", NONE, {}),
        ("schema", True, "string", NONE, {"pattern": REFERENCE}),
        ("stage", False, "string | null", None, {"pattern": NAME, "maxLength": 64}),
        ("timeout_s", False, "number | null", None, {}),
    ],
    "SpecInput": [
        ("dataset", True, "string", NONE, {"pattern": DATASET}),
        ("mount", True, "string", NONE, {}),
    ],
}
ROWS = [
    (name, model, *row)
    for name, table in (("result-envelope-1", RESULT), ("spec-envelope-1", SPEC))
    for model, rows in table.items()
    for row in rows
]


def described(schema):
    """The type of a schema in the table's words, and what is left of it: the constraints."""
    left = {key: value for key, value in schema.items() if key not in {"title", "description", "default"}}
    if "$ref" in left:
        return left.pop("$ref").rpartition("/")[2], left
    if "anyOf" in left:
        some, null = left.pop("anyOf")
        assert null == {"type": "null"}
        word, constraints = described(some)
        return f"{word} | null", {**constraints, **left}
    word = left.pop("type")
    if "const" in left:
        assert word == "integer"
        return f"const {left.pop('const')}", left
    if word == "array":
        items, constraints = described(left.pop("items"))
        return f"array of {items}", {**left, **({"items": constraints} if constraints else {})}
    if word == "object":
        return described_object(left)
    return word, left


def described_object(left):
    if "patternProperties" in left:
        ((pattern, values),) = left.pop("patternProperties").items()
        return f"map of { {NAME: 'NAME', DATASET: 'DATASET'}[pattern] } to {described(values)[0]}".replace(
            "  ", " "
        ), left
    values = left.pop("additionalProperties")
    if values is True:
        return "object", left
    word, constraints = described(values)
    assert not constraints
    return f"map of string to {word}", left


def part(name, model):
    schema = schemas.generate(name)
    return schema if model is None else schema["$defs"][model]


@pytest.mark.parametrize(("name", "model", "field", "required", "word", "default", "constraints"), ROWS)
def test_fields_are_those_of_the_contract(name, model, field, required, word, default, constraints):
    schema = part(name, model)
    assert (field in schema.get("required", [])) == required
    assert described(schema["properties"][field]) == (word, constraints)
    assert schema["properties"][field].get("default", NONE) == default


@pytest.mark.parametrize(("name", "table"), [("result-envelope-1", RESULT), ("spec-envelope-1", SPEC)])
def test_there_are_no_other_fields_and_models(name, table):
    assert set(schemas.generate(name)["$defs"]) == set(table) - {None}
    for model, rows in table.items():
        schema = part(name, model)
        assert set(schema["properties"]) == {row[0] for row in rows}
        assert schema["type"] == "object"


def test_names():
    assert schemas.NAMES == ("result-envelope-1", "spec-envelope-1")


@pytest.mark.parametrize("name", schemas.NAMES)
def test_identity_and_dialect(name):
    schema = schemas.generate(name)
    assert schema["$id"] == f"https://codonic.dev/oarbank/schemas/{name}.schema.json"
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    jsonschema.Draft202012Validator.check_schema(schema)


@pytest.mark.parametrize("name", schemas.NAMES)
def test_unknown_fields_are_allowed_everywhere(name):
    def closed(value):
        if isinstance(value, dict):
            return (
                value.get("additionalProperties") is False
                or "unevaluatedProperties" in value
                or any(map(closed, value.values()))
            )
        return isinstance(value, list) and any(map(closed, value))

    assert not closed(schemas.generate(name))


@pytest.mark.parametrize("name", schemas.NAMES)
def test_what_is_shipped_is_what_is_generated(name):
    assert json.loads(schemas.shipped(name)) == schemas.generate(name)
    assert json.loads(schemas.render(name)) == schemas.generate(name)
    assert schemas.shipped(name).endswith("}\n")


@pytest.mark.parametrize("function", [schemas.generate, schemas.shipped, schemas.render])
@pytest.mark.parametrize("name", ["", "result-envelope-2", "../contracts/keys"])
def test_other_names(function, name):
    with pytest.raises(InvalidInputError, match="result-envelope-1, spec-envelope-1"):
        function(name)


D = "0123456789abcdef" * 4
MINIMAL_RESULT = {"schema": "a/result@1", "module_version": "1.0.0", "payload": {}}
FILE = {"path": "a/b", "digest": D, "size": 3, "local": None, "new": 1}
FULL_RESULT = {
    **MINIMAL_RESULT,
    "envelope": 1,
    "protocol": 2,
    "effective": {"threads": 4},
    "provenance": {"argv": {"bwa": ["bwa", "mem"]}, "tool_versions": {"bwa": "0.7"}, "host": "n1", "new": 1},
    "artifacts": [{"name": "reads", "files": [FILE, {"path": "c", "local": "out/c"}], "thumbnail": {"local": "t.png"}}],
    "new": None,
}
MINIMAL_SPEC = {"schema": "a/spec@1", "module_id": "a.b", "module_version": "1.0.0", "job_key": D, "payload": {}}
FULL_SPEC = {
    **MINIMAL_SPEC,
    "stage": "s",
    "datasets": ["x:y"],
    "mounts": {"x:y": "data"},
    "inputs": {"reads": {"dataset": f"art:{D}", "mount": "inputs/reads"}},
    "resources": {"cpu": 1},
    "timeout_s": 1.5,
    "platform": "linux-amd64",
}


@pytest.mark.parametrize(
    ("name", "parse", "document"),
    [
        ("result-envelope-1", parse_result, MINIMAL_RESULT),
        ("result-envelope-1", parse_result, FULL_RESULT),
        ("spec-envelope-1", parse_spec, MINIMAL_SPEC),
        ("spec-envelope-1", parse_spec, FULL_SPEC),
    ],
)
def test_good_documents_pass_schema_and_model(name, parse, document):
    jsonschema.Draft202012Validator(schemas.generate(name)).validate(document)
    parse(json.dumps(document))


@pytest.mark.parametrize(
    ("name", "parse", "document"),
    [
        ("result-envelope-1", parse_result, document)
        for document in (
            {**MINIMAL_RESULT, "envelope": 2},
            {**MINIMAL_RESULT, "schema": "a/b@1"},
            {**MINIMAL_RESULT, "module_version": "1"},
            {**MINIMAL_RESULT, "payload": []},
            {**MINIMAL_RESULT, "artifacts": [{"name": "a", "files": []}]},
            {**MINIMAL_RESULT, "artifacts": [{"name": "a" * 65, "files": [FILE]}]},
            {**MINIMAL_RESULT, "artifacts": [{"name": "a", "files": [{**FILE, "digest": D[1:]}]}]},
            {**MINIMAL_RESULT, "artifacts": [{"name": "a", "files": [{**FILE, "size": "3"}]}]},
            {**MINIMAL_RESULT, "provenance": {"argv": {"a": "b"}}},
            {"schema": "a/result@1", "payload": {}},
        )
    ]
    + [
        ("spec-envelope-1", parse_spec, document)
        for document in (
            {**MINIMAL_SPEC, "module_id": "a"},
            {**MINIMAL_SPEC, "job_key": "x"},
            {**MINIMAL_SPEC, "platform": "linux"},
            {**MINIMAL_SPEC, "timeout_s": "1"},
            {**MINIMAL_SPEC, "inputs": {"a": {"dataset": "x"}}},
        )
    ],
)
def test_bad_documents_pass_neither(name, parse, document):
    assert not jsonschema.Draft202012Validator(schemas.generate(name)).is_valid(document)
    with pytest.raises(InvalidInputError):
        parse(json.dumps(document))
