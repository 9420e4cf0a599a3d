"""What a worker declares: the artifacts of an attempt beside its results, and the rules for their names and files."""

from __future__ import annotations

import os
import re
import unicodedata
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from oarbank_cas.attempt.files import FileSource, reading, require_directory
from oarbank_cas.attempt.journal import Journal
from oarbank_cas.attempt.records import Record, encode_record, parse_object, payload_text
from oarbank_cas.attempt.scan import check_line, complete_end, pieces
from oarbank_cas.contracts.paths import check_portable_path
from oarbank_cas.errors import ConflictError, InvalidInputError, NotFoundError

DECLARATIONS: Final = "artifacts.jsonl"
"""The file of an attempt directory that holds its declarations: checked records of version 1."""

RESULTS: Final = "results"
"""The name of the built-in artifact: the result journal, `results.jsonl`."""

RESULTS_FILE: Final = "results.jsonl"
"""The file of the built-in artifact."""

FORMATS: Final = ("records", "json")
"""Artifact formats: a journal of checked records; one JSON document that is replaced atomically."""

MAX_DECLARATIONS: Final = 4096
"""Declarations of one attempt at most."""

MAX_DESCRIPTION: Final = 200
"""Bytes of a description at most, in UTF-8."""

MAX_FILE: Final = 16 * 1024 * 1024
"""Bytes of a declaration file at most; 4,096 declarations of the longest kind take less."""

RESERVED: Final = frozenset(
    {
        RESULTS_FILE,
        DECLARATIONS,
        "run.json",
        "resolved.json",
        "provenance.json",
        "manifest.json",
        "result.json",
        "spec.json",
        "control.json",
        "failure.json",
        "events.ndjson",
        "phase",
        "inputs",
        "tmp",
    }
)
"""Names of the runner and the SDK in an attempt directory; compared without regard to case."""

_VERSION: Final = 1
_MAX_TASK: Final = 2**53
_NAME: Final = re.compile(r"[a-z][a-z0-9_]{0,63}")


@dataclass(frozen=True, slots=True)
class Declaration:
    """A file that a worker declares in its attempt directory.

    Attributes:
        name: what readers ask for: `a` to `z` first, then also digits and `_`; 64 at most.
        file: the file's name in the attempt directory: a portable path without a directory.
        format: one of `FORMATS`.
        task_id: the task that it belongs to, or None.
        description: one line for people.
    """

    name: str
    file: str
    format: str
    task_id: int | None = None
    description: str = ""

    @classmethod
    def records(cls, name: str, file: str) -> Declaration:
        """A journal of checked records."""
        return cls(name, file, "records")

    @classmethod
    def json(cls, name: str, file: str) -> Declaration:
        """One JSON document."""
        return cls(name, file, "json")

    def task(self, n: int) -> Declaration:
        """The same with a task, an integer from 0 to 2^53."""
        return replace(self, task_id=n)

    def describe(self, text: str) -> Declaration:
        """The same with a description: one line of at most `MAX_DESCRIPTION` bytes."""
        return replace(self, description=text)

    def check(self) -> None:
        """Says what is wrong with this declaration alone.

        Raises:
            InvalidInputError: a rule is broken; `where` names the member.
        """
        if not isinstance(self.name, str) or _NAME.fullmatch(self.name) is None:
            raise InvalidInputError(
                f"{_shown(self.name)} is no artifact name; use a-z first, then a-z, 0-9 and _, 64 at most", "name"
            )
        if self.name == RESULTS:
            raise InvalidInputError(f"{RESULTS} is the built-in result journal; choose another name", "name")
        _check_file(self.file)
        if self.format not in FORMATS:
            raise InvalidInputError(
                f"{_shown(self.format)} is no artifact format; use {' or '.join(FORMATS)}", "format"
            )
        if self.task_id is not None and (
            isinstance(self.task_id, bool) or not isinstance(self.task_id, int) or not 0 <= self.task_id <= _MAX_TASK
        ):
            raise InvalidInputError(f"{_shown(self.task_id)} is no task; use an integer from 0 to 2^53", "task_id")
        self._check_description()

    def _check_description(self) -> None:
        if not isinstance(self.description, str):
            raise InvalidInputError("a description is text", "description")
        try:
            size = len(self.description.encode())
        except UnicodeEncodeError as error:
            raise InvalidInputError("the description holds half of a surrogate pair", "description") from error
        if size > MAX_DESCRIPTION:
            raise InvalidInputError(f"it takes {size} bytes; shorten it to {MAX_DESCRIPTION}", "description")
        if any(unicodedata.category(character) in {"Cc", "Zl", "Zp"} for character in self.description):
            raise InvalidInputError("it is one line of text, without control characters", "description")


RESULTS_ARTIFACT: Final = Declaration(RESULTS, RESULTS_FILE, "records")
"""The built-in artifact, in the form of a declaration."""


def _shown(value: object) -> str:
    text = ascii(value)
    return text if len(text) <= 100 else text[:100] + "..."


def _check_file(file: str) -> None:
    # A portable path, since that is what it becomes in a result's artifact; and of one segment.
    check_portable_path(file, "file")
    key = file_key(file)
    rules = (
        ("/" in file, "is a path; the file stands in the attempt directory itself"),
        (key.startswith("."), "starts with a dot"),
        (key.endswith((".lock", ".tmp")), "ends like a lock file or a temporary"),
        (key in RESERVED, "belongs to the runner"),
    )
    for broken, why in rules:
        if broken:
            raise InvalidInputError(f"{_shown(file)} {why}; choose another file name", "file")


def file_key(file: str) -> str:
    """What two spellings of a file name have in common on a filesystem that ignores case."""
    return file.casefold()


def declarations(directory: str | os.PathLike[str]) -> list[Declaration]:
    """The declarations of an attempt, in their order; none where there is no declaration file.

    Args:
        directory: the attempt directory.

    Raises:
        NotFoundError: there is no such directory.
        CorruptError: a line of the declaration file is not a checked record.
        InvalidInputError: a declaration breaks a rule, a name or file is declared twice, or the file is too large.
        CasError: the file cannot be read.
    """
    path = require_directory(directory) / DECLARATIONS
    try:
        with reading(path) as source:
            return _load(source).declared
    except NotFoundError:
        return []


class _Declared:
    """Declarations that may stand together."""

    def __init__(self) -> None:
        self.declared: list[Declaration] = []
        self._names: dict[str, Declaration] = {}
        self._files: dict[str, Declaration] = {}

    def standing(self, new: Declaration) -> Declaration | None:
        """The declaration whose name or file the new one would take."""
        return self._names.get(new.name) or self._files.get(file_key(new.file))

    def add(self, new: Declaration) -> None:
        """Adds a declaration whose name and file are free.

        Raises:
            InvalidInputError: there are `MAX_DECLARATIONS` already.
        """
        if len(self.declared) >= MAX_DECLARATIONS:
            raise InvalidInputError(f"an attempt has at most {MAX_DECLARATIONS} declarations; put more into one file")
        self.declared.append(new)
        self._names[new.name] = self._files[file_key(new.file)] = new


def _load(source: FileSource) -> _Declared:
    end = complete_end(source, source.size())
    if end > MAX_FILE:
        raise InvalidInputError(f"it has {end} bytes, and a declaration file at most {MAX_FILE}", source.name)
    loaded = _Declared()
    for piece in pieces(source, 0, end):
        for line in piece.lines(source):
            number = len(loaded.declared)
            record = check_line(source, line, number)
            try:
                new = _parse(record)
                if loaded.standing(new) is not None:
                    raise InvalidInputError(f"the name {new.name} or the file {_shown(new.file)} was declared before")
                loaded.add(new)
            except InvalidInputError as error:
                where = f"{source.name}: record {number}" + (f", {error.where}" if error.where else "")
                raise InvalidInputError(error.why, where) from error
    return loaded


def _parse(record: Record) -> Declaration:
    """The declaration of a record.

    Raises:
        InvalidInputError: it is none, or breaks a rule.
    """
    if record.schema_version != _VERSION:
        raise InvalidInputError(
            f"declarations are records of version {_VERSION}, not {record.schema_version}; read them with a newer "
            "version"
        )
    try:
        members = parse_object(record.payload_json)
    except (ValueError, RecursionError) as error:
        raise InvalidInputError(f"the declaration cannot be read: {error}") from error
    if members is None:
        raise InvalidInputError("a declaration is an object")
    missing = [key for key in ("name", "file", "format") if key not in members]
    if missing:
        raise InvalidInputError(f"the declaration lacks {', '.join(missing)}")
    declared = Declaration(
        members["name"],
        members["file"],
        members["format"],
        members.get("task_id"),
        members.get("description", ""),
    )
    declared.check()
    return declared


def _line(declaration: Declaration) -> bytes:
    members = {
        "name": declaration.name,
        "file": declaration.file,
        "format": declaration.format,
        "task_id": declaration.task_id,
        "description": declaration.description,
    }
    return encode_record(payload_text(members), _VERSION)


def declare(directory: str | os.PathLike[str], declaration: Declaration) -> bool:
    """Declares an artifact of an attempt, durably. Safe from many threads and processes at once.

    Declare before the first write to the file, so that it can be read while the job runs.

    Args:
        directory: the attempt directory.
        declaration: what to declare.

    Returns:
        True if it was added, False if the very same declaration stood already.

    Raises:
        InvalidInputError: the declaration breaks a rule, or there are `MAX_DECLARATIONS` already, or the declaration
            file breaks a rule (nothing is written to it then).
        ConflictError: the name or the file is declared as something else.
        CorruptError: the declaration file is damaged (nothing is written to it then).
        NotFoundError: there is no such directory.
        BusyError: another writer did not finish.
        CasError: writing failed.
    """
    declaration.check()
    path = require_directory(directory) / DECLARATIONS
    with Journal(path).locked() as writer:
        loaded = _load(writer.source)

        def keep(record: Record) -> bool:
            # A torn declaration that would break the rules is cut off: ended, it would spoil all the others.
            try:
                new = _parse(record)
                if loaded.standing(new) is not None:
                    return False
                loaded.add(new)
            except InvalidInputError:
                return False
            return True

        writer.end_torn_tail(keep)
        standing = loaded.standing(declaration)
        if standing is None:
            loaded.add(declaration)
            writer.write(_line(declaration))
        elif standing != declaration:
            raise ConflictError(_conflict(path, standing, declaration))
        # Also for a declaration that was found: whoever wrote it may not have lived to flush it.
        writer.settle()
        return standing is None


def _conflict(path: Path, standing: Declaration, new: Declaration) -> str:
    same = f"the name {new.name}" if standing.name == new.name else f"the file {_shown(new.file)}"
    return (
        f"{path}: {same} is declared already, as {standing.name}, file {_shown(standing.file)}, format "
        f"{standing.format}, task {standing.task_id}, description {_shown(standing.description)}; repeat exactly that, "
        "or choose another name and file"
    )
