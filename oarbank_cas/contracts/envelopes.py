"""The envelopes around specs and results, as models that check what is known and keep what is not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Final, Generic, Literal, Self, TypeAlias, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    FiniteFloat,
    StringConstraints,
    ValidationError,
    model_validator,
)
from pydantic_core import ErrorDetails, PydanticCustomError

from oarbank_cas.contracts.canonical import DIGEST_PATTERN, JsonValue, parse_json
from oarbank_cas.contracts.keys import (
    MAX_MODULE,
    MAX_NAME,
    MODULE_PATTERN,
    NAME_PATTERN,
    PLATFORM_PATTERN,
)
from oarbank_cas.contracts.manifest import DATASET_PATTERN, check_size
from oarbank_cas.contracts.paths import check_mount, check_mounts_disjoint, check_portable_path, check_unique
from oarbank_cas.contracts.places import json_path, quoted, step, within
from oarbank_cas.errors import InvalidInputError

SEMVER_PATTERN: Final = r"^(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)(-[0-9A-Za-z.-]+)?(\+[0-9A-Za-z.-]+)?$"
SCHEMA_PATTERN: Final = "^[a-z0-9][a-z0-9.-]*/(spec|result)@[1-9][0-9]*$"
KEY_PATTERN: Final = "^[0-9a-f]{64}(:[a-z][a-z0-9_]{0,63})?$"

_PROBLEMS_SHOWN: Final = 5
_PROBLEM: Final = "oarbank_rule"


def _broken(why: str) -> PydanticCustomError:
    return PydanticCustomError(_PROBLEM, "{why}", {"why": why})


_Value = TypeVar("_Value")


def _rule(check: Callable[[_Value], object]) -> AfterValidator:
    """Make a validator of a check that raises InvalidInputError."""

    def validate(value: _Value) -> _Value:
        try:
            check(value)
        except InvalidInputError as error:
            raise _broken(error.why) from None
        return value

    return AfterValidator(validate)


def _check_ascii(text: str) -> None:
    # The pattern's \d is any Unicode digit to the engine that matches it.
    if not text.isascii():
        raise InvalidInputError(f"is no semantic version: {quoted(text)}")


def _check_result_reference(text: str) -> None:
    if "/result@" not in text:
        raise InvalidInputError(f"must name a result (<module>/result@N), not {quoted(text)}")


def _check_spec_reference(text: str) -> None:
    if "/spec@" not in text:
        raise InvalidInputError(f"must name a spec (<module>/spec@N), not {quoted(text)}")


def _check_integer(value: object) -> object:
    # Literal[1] alone takes True and 1.0 for 1.
    if type(value) is not int:
        raise _broken("must be 1")
    return value


def _check_file_paths(files: list[ArtifactFile]) -> None:
    check_unique([file.path for file in files])


def _check_artifact_names(artifacts: list[Artifact]) -> None:
    seen: set[str] = set()
    for artifact in artifacts:
        if artifact.name in seen:
            raise InvalidInputError(f"has two artifacts with the name {quoted(artifact.name)}")
        seen.add(artifact.name)


_EnvelopeVersion: TypeAlias = Annotated[Literal[1], BeforeValidator(_check_integer)]
_Semver: TypeAlias = Annotated[str, StringConstraints(pattern=SEMVER_PATTERN), _rule(_check_ascii)]
_Reference: TypeAlias = Annotated[str, StringConstraints(pattern=SCHEMA_PATTERN)]
_Name: TypeAlias = Annotated[str, StringConstraints(pattern=NAME_PATTERN, max_length=MAX_NAME)]
_Digest: TypeAlias = Annotated[str, StringConstraints(pattern=DIGEST_PATTERN)]
_Size: TypeAlias = Annotated[int, _rule(check_size)]
_Path: TypeAlias = Annotated[str, _rule(check_portable_path)]
_Mount: TypeAlias = Annotated[str, _rule(check_mount)]
_DatasetId: TypeAlias = Annotated[str, StringConstraints(pattern=DATASET_PATTERN)]


class _Model(BaseModel):
    # Values are taken as they are written ("1" is no 1), and unknown fields stay.
    model_config = ConfigDict(extra="allow", strict=True, populate_by_name=True)


class ArtifactFile(_Model):
    """One file of an artifact: still in the work directory (`local`), or in the store (`digest` and `size`)."""

    path: Annotated[_Path, Field(description="Where consumers see the file, below their mount: a portable path.")]
    local: Annotated[
        _Path | None,
        Field(description="The source in the work directory, a portable path, until the agent has uploaded it."),
    ] = None
    digest: Annotated[_Digest | None, Field(description="The SHA-256 of the bytes.")] = None
    size: Annotated[_Size | None, Field(description="The number of bytes.")] = None

    @model_validator(mode="after")
    def _has_content(self) -> Self:
        if self.local is None:
            if self.digest is None:
                raise _broken("has neither local nor digest; one of them says where the bytes are")
            if self.size is None:
                raise _broken("has a digest but no size")
        return self


class Artifact(_Model):
    """A named list of files that a job puts out."""

    name: Annotated[_Name, Field(description="The name under which later stages ask for it.")]
    files: Annotated[
        list[ArtifactFile], Field(min_length=1, description="Its files, with unique paths."), _rule(_check_file_paths)
    ]


class Provenance(_Model):
    """What made a result."""

    argv: Annotated[
        dict[str, list[str]], Field(default_factory=dict, description="The command line of each tool that ran.")
    ]
    tool_versions: Annotated[dict[str, str], Field(default_factory=dict, description="The version of each tool.")]
    host: Annotated[str | None, Field(description="The machine that it ran on.")] = None


class ResultEnvelope(_Model):
    """What a runner writes when its job has succeeded."""

    envelope: Annotated[_EnvelopeVersion, Field(description="The version of the envelope itself.")] = 1
    schema_: Annotated[
        _Reference,
        Field(alias="schema", description="The payload's version, <module>/result@N."),
        _rule(_check_result_reference),
    ]
    module_version: Annotated[_Semver, Field(description="The version of the module that made the result.")]
    protocol: Annotated[int, Field(description="The major version of the runner protocol in use.")] = 1
    effective: Annotated[
        dict[str, Any], Field(default_factory=dict, description="The parameters that the runner really went by.")
    ]
    provenance: Annotated[Provenance, Field(default_factory=Provenance, description="What made the result.")]
    artifacts: Annotated[
        list[Artifact],
        Field(default_factory=list, description="The files of the result, by artifact."),
        _rule(_check_artifact_names),
    ]
    payload: Annotated[dict[str, Any], Field(description="The module's own result.")]


class SpecInput(_Model):
    """An artifact of an earlier stage, and where a job wants it."""

    dataset: Annotated[_DatasetId, Field(description="The id of the artifact's content.")]
    mount: Annotated[_Mount, Field(description="The directory inside the work directory, a portable path.")]


class SpecEnvelope(_Model):
    """What a coordinator asks of one stage of a job."""

    envelope: Annotated[_EnvelopeVersion, Field(description="The version of the envelope itself.")] = 1
    schema_: Annotated[
        _Reference,
        Field(alias="schema", description="The payload's version, <module>/spec@N."),
        _rule(_check_spec_reference),
    ]
    module_id: Annotated[
        str,
        StringConstraints(pattern=MODULE_PATTERN, max_length=MAX_MODULE),
        Field(description="The module that built the spec."),
    ]
    module_version: Annotated[_Semver, Field(description="The version of that module.")]
    job_key: Annotated[
        str, StringConstraints(pattern=KEY_PATTERN), Field(description="The content key that the result is kept under.")
    ]
    stage: Annotated[_Name | None, Field(description="The stage to run, in a module with several.")] = None
    protocol: Annotated[int, Field(description="The major version of the runner protocol to use.")] = 1
    datasets: Annotated[list[_DatasetId], Field(default_factory=list, description="The datasets that the job needs.")]
    mounts: Annotated[
        dict[_DatasetId, _Mount],
        Field(default_factory=dict, description="Where each dataset goes in the work directory."),
    ]
    inputs: Annotated[
        dict[_Name, SpecInput], Field(default_factory=dict, description="Artifacts of earlier stages, by input name.")
    ]
    resources: Annotated[dict[str, Any], Field(default_factory=dict, description="What the job reserves on its node.")]
    timeout_s: Annotated[
        FiniteFloat | None, Field(description="How many seconds of wall-clock time the attempt may take.")
    ] = None
    platform: Annotated[
        Annotated[str, StringConstraints(pattern=PLATFORM_PATTERN, max_length=MAX_NAME)] | None,
        Field(description="The platform token of the node that the spec was made for."),
    ] = None
    payload: Annotated[dict[str, Any], Field(description="The module's own spec.")]

    @model_validator(mode="after")
    def _mounts_are_disjoint(self) -> Self:
        places = {f"$.mounts{step(dataset)}": mount for dataset, mount in self.mounts.items()}
        for name, wanted in self.inputs.items():
            # An input may also be listed as the dataset that it is: the same content at the same place is no clash.
            if self.mounts.get(wanted.dataset) != wanted.mount:
                places[f"$.inputs{step(name)}"] = wanted.mount
        shared = {f"$.inputs{step(name)}": wanted.mount for name, wanted in self.inputs.items()}
        for mounts in (places, shared):
            try:
                check_mounts_disjoint(mounts)
            except InvalidInputError as error:
                raise _broken(error.why) from None
        return self


EnvelopeT = TypeVar("EnvelopeT", ResultEnvelope, SpecEnvelope)


@dataclass(frozen=True, slots=True)
class Parsed(Generic[EnvelopeT]):
    """An envelope in its three forms.

    Attributes:
        text: the document as written.
        document: its plain value.
        envelope: the model.
    """

    text: str
    document: dict[str, JsonValue]
    envelope: EnvelopeT


def parse_result(data: bytes | str, where: str = "result envelope") -> Parsed[ResultEnvelope]:
    """Parse and check a result envelope.

    Args:
        data: the document, as the runner wrote it.
        where: what it is called in errors.

    Returns:
        The envelope in its three forms.

    Raises:
        InvalidInputError: the document is no JSON or breaks the contract; the first few problems are listed.
    """
    return _parse(ResultEnvelope, data, where)


def parse_spec(data: bytes | str, where: str = "spec envelope") -> Parsed[SpecEnvelope]:
    """Parse and check a spec envelope.

    Args:
        data: the document, as the coordinator wrote it.
        where: what it is called in errors.

    Returns:
        The envelope in its three forms.

    Raises:
        InvalidInputError: the document is no JSON or breaks the contract; the first few problems are listed.
    """
    return _parse(SpecEnvelope, data, where)


def _parse(model: type[EnvelopeT], data: bytes | str, where: str) -> Parsed[EnvelopeT]:
    document = parse_json(data, where=where, big_integers=True)
    if not isinstance(document, dict):
        raise InvalidInputError("must be an object", where)
    if "schema" not in document:
        # The model alone would take an unknown field of a document that happens to be called schema_ for it.
        raise InvalidInputError("is required", within(where, "$.schema"))
    try:
        envelope = model.model_validate(document)
    except ValidationError as error:
        raise _explained(error, where) from None
    return Parsed(data if isinstance(data, str) else str(data, "utf-8"), document, envelope)


_MESSAGES: Final = {
    "missing": "is required",
    "string_type": "must be a string",
    "int_type": "must be an integer",
    "float_type": "must be a number",
    "dict_type": "must be an object",
    "model_type": "must be an object",
    "model_attributes_type": "must be an object",
    "list_type": "must be a list",
    "too_short": "must not be empty",
    "literal_error": "must be 1",
}
_PATTERNS: Final = {
    SEMVER_PATTERN: "is no semantic version (such as 1.2.3)",
    SCHEMA_PATTERN: "is no schema reference (<module>/result@N or <module>/spec@N)",
    NAME_PATTERN: "is no name (a lowercase letter, then lowercase letters, digits or _)",
    DIGEST_PATTERN: "is no digest (64 lowercase hex digits)",
    DATASET_PATTERN: "is no dataset id (a letter or digit, then at most 127 letters, digits or _ . : + -)",
    MODULE_PATTERN: "is no module id (lowercase words joined by dots, at least two)",
    KEY_PATTERN: "is no job key (64 lowercase hex digits, then :<stage> or nothing)",
    PLATFORM_PATTERN: "is no platform token (<os>-<arch>, such as linux-amd64)",
}


def _explained(error: ValidationError, where: str) -> InvalidInputError:
    """Say in one error, in the contract's words, what a model found wrong."""
    details = error.errors(include_url=False)
    problems = [(_place(detail), _why(detail)) for detail in details[:_PROBLEMS_SHOWN]]
    if len(details) == 1:
        place, why = problems[0]
        return InvalidInputError(why, within(where, place))
    listed = "; ".join(f"{place} {why}" for place, why in problems)
    more = f"; and {len(details) - _PROBLEMS_SHOWN} more" if len(details) > _PROBLEMS_SHOWN else ""
    return InvalidInputError(f"has {len(details)} problems: {listed}{more}", where)


def _place(detail: ErrorDetails) -> str:
    keys = list(detail["loc"])
    # A wrong key is reported behind the key itself.
    if keys and keys[-1] == "[key]":
        keys.pop()
    return json_path(keys)


def _why(detail: ErrorDetails) -> str:
    kind, context = detail["type"], detail.get("ctx", {})
    if kind == _PROBLEM:
        return str(context["why"])
    if kind == "string_pattern_mismatch":
        return f"{_PATTERNS[context['pattern']]}: {quoted(detail['input'])}"
    if kind == "string_too_long":
        return f"is longer than {context['max_length']} characters"
    return _MESSAGES.get(kind, "has a value that is not allowed here")
