"""`manifest.json` of a published attempt: what was sealed, as bytes; and read back, from whoever wrote them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeGuard

from oarbank_cas.attempt.declarations import MAX_DECLARATIONS, RESULTS, RESULTS_ARTIFACT, Declaration, file_key
from oarbank_cas.attempt.survey import Mark, Survey
from oarbank_cas.contracts.canonical import MAX_INTEGER, check_digest, parse_json
from oarbank_cas.contracts.manifest import check_size
from oarbank_cas.contracts.places import quoted, within
from oarbank_cas.errors import InvalidInputError

if TYPE_CHECKING:
    from oarbank_cas.attempt.artifacts import Sealed

FILE: Final = "manifest.json"
"""Its name in the dataset; reserved in attempt directories, so that no artifact's file has it."""

MAX_BYTES: Final = 32 * 1024 * 1024
"""Bytes of it at most."""

_MAX_MARKS: Final = 4096


class Artifact(NamedTuple):
    """An artifact of a published attempt.

    Attributes:
        declaration: its name, file, format, task and description.
        size: bytes of its file.
        digest: the SHA-256 of its file.
        survey: of a journal, where one was published.
    """

    declaration: Declaration
    size: int
    digest: str
    survey: Survey | None


@dataclass(frozen=True, slots=True)
class Document:
    """What the file says.

    Attributes:
        artifacts: those whose files were there, in the order of their declarations.
        problems: what was found wrong when it was sealed.
    """

    artifacts: tuple[Artifact, ...]
    problems: tuple[str, ...]


def encode(sealed: Sealed, surveys: Mapping[str, Survey]) -> bytes:
    """The bytes of the file: the same for the same attempt.

    Args:
        sealed: what was sealed.
        surveys: artifact name to survey.

    Raises:
        InvalidInputError: it would be longer than `MAX_BYTES`.
    """
    journals = {name: {"records": found.records, "marks": found.marks} for name, found in surveys.items()}
    data = (json.dumps({**sealed.to_json(), "journals": journals}) + "\n").encode()
    if len(data) > MAX_BYTES:
        raise InvalidInputError(f"it would have {len(data)} bytes, and at most {MAX_BYTES} are read", FILE)
    return data


def decode(data: bytes, where: str) -> Document:
    """Read the file. Members that this version does not know are left alone.

    Args:
        data: its bytes, at most `MAX_BYTES`.
        where: what messages call it.

    Raises:
        InvalidInputError: saying what is wrong, and where.
    """
    document = _members(parse_json(data, where=where), where)
    files = _members(document.get("artifacts"), within(where, "$.artifacts"))
    runner = _members(document.get("runner"), within(where, "$.runner"))
    index = _members(runner.get("artifact_index"), within(where, "$.runner.artifact_index"))
    journals = _members(document.get("journals", {}), within(where, "$.journals"))
    if files.keys() != index.keys():
        raise InvalidInputError("artifacts and runner.artifact_index do not name the same artifacts", where)
    if len(files) > MAX_DECLARATIONS + 1:
        raise InvalidInputError(f"names more than {MAX_DECLARATIONS + 1} artifacts", where)
    artifacts = []
    taken: dict[str, str] = {}
    for name, file in files.items():
        place = within(where, f"artifact {quoted(name)}")
        found = _artifact(name, file, _members(index[name], place), journals.get(name), place)
        other = taken.setdefault(file_key(found.declaration.file), name)
        if other != name:
            raise InvalidInputError(f"has the same file as {quoted(other)}", place)
        artifacts.append(found)
    problems = document.get("problems")
    if not isinstance(problems, list) or not all(isinstance(problem, str) for problem in problems):
        raise InvalidInputError("must be a list of texts", within(where, "$.problems"))
    return Document(tuple(artifacts), tuple(problems))


def _members(value: object, place: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise InvalidInputError("must be an object; this is no published attempt's", place)
    return value


def _artifact(name: str, file: object, said: Mapping[str, Any], journal: object, place: str) -> Artifact:
    declaration = Declaration(name, file, said.get("format"), said.get("task"), said.get("description", ""))  # type: ignore[arg-type]
    try:
        if name != RESULTS:
            declaration.check()
        elif declaration != RESULTS_ARTIFACT:
            raise InvalidInputError(f"the built-in journal is {RESULTS_ARTIFACT.file}, and records")
        size = check_size(said.get("size"))
        digest = check_digest(said.get("sha256"))  # type: ignore[arg-type]
        survey = None
        if journal is not None and declaration.format == "records":
            survey = _survey(journal, size)
    except InvalidInputError as error:
        raise InvalidInputError(str(error), place) from error
    return Artifact(declaration, size, digest, survey)


def _survey(journal: object, size: int) -> Survey:
    members = journal if isinstance(journal, dict) else {}
    records, marks = members.get("records"), members.get("marks")
    if not _is_count(records) or not isinstance(marks, list) or len(marks) > _MAX_MARKS:
        raise InvalidInputError(f"a journal has records, a number, and at most {_MAX_MARKS} marks", "journals")
    found: list[Mark] = []
    last = Mark(0, 0)
    for mark in marks:
        if not isinstance(mark, list) or len(mark) != 2 or not all(map(_is_count, mark)):
            raise InvalidInputError("a mark is a byte and a number of records", "journals")
        new = Mark(*mark)
        if not last.byte < new.byte < size or not last.before <= new.before <= records:
            raise InvalidInputError("marks go up, and stay within the journal", "journals")
        found.append(new)
        last = new
    return Survey(records, tuple(found))


def _is_count(value: object) -> TypeGuard[int]:
    return type(value) is int and 0 <= value <= MAX_INTEGER
