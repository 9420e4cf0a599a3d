"""Job keys, and the names around them: modules, stages, platforms and result classes."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from oarbank_cas.contracts.canonical import canonical_json, digest_of
from oarbank_cas.contracts.places import quoted
from oarbank_cas.errors import InvalidInputError

NAME_PATTERN: Final = "^[a-z][a-z0-9_]*$"
"""The name of an artifact, an input or a stage, as the JSON Schemas write it."""
PLATFORM_PATTERN: Final = "^[a-z][a-z0-9]*-[a-z0-9_]+$"
"""A platform token, as the JSON Schemas write it."""
MODULE_PATTERN: Final = r"^[a-z0-9]+(\.[a-z0-9][a-z0-9-]*)+$"
"""A module id, as the JSON Schemas write it."""
MAX_NAME: Final = 64
MAX_MODULE: Final = 128
MAX_COMPAT: Final = 256
ANY_CLASS: Final = "any"
"""The result class whose results stand in for each other on every platform."""

_NAME: Final = re.compile(r"[a-z][a-z0-9_]{0,63}")
_MODULE: Final = re.compile(r"[a-z0-9]+(?:\.[a-z0-9][a-z0-9-]*)+")
_PLATFORM: Final = re.compile(r"[a-z][a-z0-9]*-[a-z0-9_]+")
_CLASS: Final = re.compile(r"[a-z][a-z0-9_]*(?:-[a-z0-9_]+)?")
_KEY: Final = re.compile(r"([0-9a-f]{64})(?::([a-z][a-z0-9_]{0,63}))?")


class JobKey(NamedTuple):
    """A job key in its parts; `str()` puts them together again.

    Attributes:
        hex: the digest over what the job depends on.
        stage: the stage of a module with several, else None.
    """

    hex: str
    stage: str | None

    def __str__(self) -> str:
        return self.hex if self.stage is None else f"{self.hex}:{self.stage}"


def job_key(module: str, compat: str, inputs: object, stage: str | None = None) -> str:
    """Compute the key of a job: equal for jobs that must have the same result.

    Args:
        module: the module's id, such as `dev.codonic.align`.
        compat: the compatibility level the module declares: any text of 1 to 256 characters.
        inputs: the module's key inputs: what `canonical_json` takes.
        stage: the stage, for a module with several.

    Returns:
        64 hex digits, followed by `:<stage>` where there is one.

    Raises:
        InvalidInputError: a part is malformed; the place is a path such as `$.inputs.seed`.
    """
    document = key_document(module, compat, inputs)
    if stage is not None:
        check_name(stage, "stage")
    return str(JobKey(digest_of(document), stage))


def key_document(module: str, compat: str, inputs: object) -> bytes:
    """Write down what a job key is made of: canonical JSON, whose digest is the key's hex part.

    Args:
        module: as in `job_key`.
        compat: as in `job_key`.
        inputs: as in `job_key`.

    Raises:
        InvalidInputError: a part is malformed; the place is a path such as `$.inputs.seed`.
    """
    check_module(module, "$.module")
    if not isinstance(compat, str) or not 1 <= len(compat) <= MAX_COMPAT:
        raise InvalidInputError(f"must be a text of 1 to {MAX_COMPAT} characters, not {quoted(compat)}", "$.compat")
    return canonical_json({"module": module, "compat": compat, "inputs": inputs})


def parse_key(text: str, where: str = "job key") -> JobKey:
    """Take a job key apart.

    Args:
        text: the key, `hex` or `hex:stage`.
        where: its place, for the error.

    Returns:
        Its parts.

    Raises:
        InvalidInputError: the text is no job key.
    """
    match = _KEY.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        raise InvalidInputError(
            f"is no job key (64 lowercase hex digits, then :<stage> or nothing): {quoted(text)}", where
        )
    return JobKey(match[1], match[2])


def is_key(text: str) -> bool:
    """Say whether a text is a job key."""
    return _KEY.fullmatch(text) is not None


def check_name(text: str, where: str = "name") -> str:
    """Check the name of an artifact, an input or a stage, and return it.

    Raises:
        InvalidInputError: it does not follow `NAME_PATTERN` or is longer than `MAX_NAME`.
    """
    if not isinstance(text, str) or _NAME.fullmatch(text) is None:
        raise InvalidInputError(
            f"is no name (a lowercase letter, then at most 63 lowercase letters, digits or _): {quoted(text)}", where
        )
    return text


def check_module(text: str, where: str = "module") -> str:
    """Check a module id, such as `dev.codonic.align`, and return it.

    Raises:
        InvalidInputError: it does not follow `MODULE_PATTERN` or is longer than `MAX_MODULE`.
    """
    if not isinstance(text, str) or len(text) > MAX_MODULE or _MODULE.fullmatch(text) is None:
        raise InvalidInputError(
            f"is no module id (lowercase words joined by dots, at least two, at most {MAX_MODULE} characters): "
            f"{quoted(text)}",
            where,
        )
    return text


def check_platform(text: str, where: str = "platform") -> str:
    """Check a platform token, such as `linux-amd64`, and return it. Systems and architectures are open sets.

    Raises:
        InvalidInputError: it does not follow `PLATFORM_PATTERN` or is longer than `MAX_NAME`.
    """
    if not isinstance(text, str) or len(text) > MAX_NAME or _PLATFORM.fullmatch(text) is None:
        raise InvalidInputError(f"is no platform token (<os>-<arch>, such as linux-amd64): {quoted(text)}", where)
    return text


def check_class(text: str, where: str = "class") -> str:
    """Check a result class (`any`, an OS, an architecture or a platform token) and return it.

    Raises:
        InvalidInputError: it is malformed or longer than `MAX_NAME`.
    """
    if not isinstance(text, str) or len(text) > MAX_NAME or _CLASS.fullmatch(text) is None:
        raise InvalidInputError(
            f"is no result class (any, an OS, an architecture, or a token such as linux-amd64): {quoted(text)}",
            where,
        )
    return text


def class_covers(result_class: str, platform: str | None) -> bool:
    """Say whether a result made on a platform may stand in a class.

    Args:
        result_class: the class.
        platform: the platform token, or None where it is not known: then only `any` takes it.

    Returns:
        Whether the class is `any`, the token itself, its OS or its architecture.
    """
    if result_class == ANY_CLASS:
        return True
    return platform is not None and (result_class == platform or result_class in platform.split("-"))
