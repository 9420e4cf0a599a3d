"""The checked record: one line of JSON whose payload text is guarded by its SHA-256."""

from __future__ import annotations

import hashlib
import json
import re
from typing import Any, Final, NamedTuple

from oarbank_cas.errors import CorruptError, InvalidInputError

MAX_LINE: Final = 16 * 1024 * 1024
"""Bytes of one record's line at most, its newline included; a longer line is no record."""

MAX_VERSION: Final = 2**53
"""The highest record version: the largest integer that every JSON reader keeps exactly."""

_KEYS: Final = frozenset({"schema_version", "checksum", "payload_json"})
_ENCODER: Final = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))
_CHECKSUM: Final = re.compile(r"[0-9a-f]{64}")


class Record(NamedTuple):
    """A record whose checksum held.

    Attributes:
        schema_version: the record version that the line names.
        payload_json: the record as JSON text, character for character as it was written.
    """

    schema_version: int
    payload_json: str

    @property
    def payload(self) -> Any:  # noqa: ANN401 - any JSON value
        """The record as a Python value, parsed anew at each use.

        Raises:
            InvalidInputError: it holds an integer with more digits than Python converts.
        """
        try:
            return json.loads(self.payload_json)
        except ValueError as error:
            raise InvalidInputError(
                f"the payload is JSON that Python cannot hold: {error}; use payload_json"
            ) from error

    @property
    def size(self) -> int:
        """Bytes of the payload text in UTF-8."""
        return len(self.payload_json) if self.payload_json.isascii() else len(self.payload_json.encode())


def payload_text(payload: object) -> str:
    """The JSON text of a payload, on one line.

    Args:
        payload: dicts with string keys, lists, strings, numbers, booleans, None.

    Raises:
        InvalidInputError: it has no exact JSON form (NaN, another type, a key that is no string, a cycle).
    """
    try:
        text = _ENCODER.encode(payload)
        _require_string_keys(payload)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidInputError(f"this payload cannot be written as JSON: {error}") from error
    return text


def _require_string_keys(value: object) -> None:
    # json.dumps turns 1 and True into keys, which can collide with "1" and "true".
    if isinstance(value, dict):
        for key, inner in value.items():
            if not isinstance(key, str):
                raise TypeError(f"the key {key!r} is no string")
            _require_string_keys(inner)
    elif isinstance(value, (list, tuple)):
        for inner in value:
            _require_string_keys(inner)


def encode_record(payload_json: str, schema_version: int) -> bytes:
    r"""The line of a checked record, with its newline.

    Args:
        payload_json: the record as JSON text; kept as it is.
        schema_version: 0 to `MAX_VERSION`.

    Raises:
        InvalidInputError: the text is not JSON or not Unicode, the version is out of range, the line is too long.
    """
    if not _is_version(schema_version):
        raise InvalidInputError(f"a record version is an integer from 0 to {MAX_VERSION}, not {schema_version!r}")
    try:
        _check_json(payload_json)
        checksum = hashlib.sha256(payload_json.encode()).hexdigest()
    except (ValueError, RecursionError) as error:
        raise InvalidInputError(f"the payload is not JSON text: {_short(error)}") from error
    text = _ENCODER.encode(payload_json)
    line = f'{{"schema_version":{schema_version:d},"checksum":"{checksum}","payload_json":{text}}}\n'.encode()
    if len(line) > MAX_LINE:
        raise InvalidInputError(
            f"the record takes {len(line)} bytes, and a line at most {MAX_LINE}; write the data to a file of its own"
        )
    return line


def decode_record(line: bytes, where: str) -> Record:
    """The record of one line, checked.

    Args:
        line: the line, with or without its newline; a carriage return before it is white space.
        where: what messages call the line.

    Raises:
        CorruptError: it is not a checked record, or its checksum does not hold.
    """
    try:
        members = json.loads(
            line.decode(), object_pairs_hook=_no_twins, parse_constant=_no_constant, parse_float=_no_float
        )
    except (ValueError, RecursionError) as error:
        raise _bad(where, f"not a line of JSON: {_short(error)}") from error
    if not isinstance(members, dict) or members.keys() != _KEYS:
        raise _bad(
            where, "a checked record is an object of schema_version, checksum and payload_json, and nothing else"
        )
    version, checksum, text = members["schema_version"], members["checksum"], members["payload_json"]
    if not _is_version(version):
        raise _bad(where, f"schema_version is not an integer from 0 to {MAX_VERSION}")
    if not isinstance(checksum, str) or _CHECKSUM.fullmatch(checksum) is None:
        raise _bad(where, "checksum is not 64 lowercase hexadecimal digits")
    if not isinstance(text, str):
        raise _bad(where, "payload_json is not a string")
    try:
        actual = hashlib.sha256(text.encode()).hexdigest()
    except UnicodeEncodeError as error:
        raise _bad(where, "payload_json holds half of a surrogate pair, so it has no UTF-8 bytes to check") from error
    if actual != checksum:
        raise _bad(where, "the checksum does not match the payload", checksum, actual)
    try:
        _check_json(text)
    except (ValueError, RecursionError) as error:
        raise _bad(where, f"the checksum holds, but payload_json is not JSON text: {_short(error)}") from error
    return Record(version, text)


def _bad(where: str, why: str, expected: str | None = None, actual: str | None = None) -> CorruptError:
    digests = f" (it says {expected}, the payload has {actual})" if expected else ""
    advice = "move the file aside, or cut it before this record, and tell who writes it"
    return CorruptError(f"{where}: {why}{digests}; {advice}", expected=expected, actual=actual)


def _short(error: BaseException) -> str:
    text = "nested too deeply" if isinstance(error, RecursionError) else str(error)
    return text if len(text) <= 200 else text[:200] + "..."


def _is_version(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MAX_VERSION


def _no_twins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise ValueError("an object has the same key twice")
    return members


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _no_float(number: str) -> None:
    raise ValueError(f"{number[:40]} is not an integer")


def _check_json(text: str) -> None:
    # Numbers are only measured: Python refuses to convert very long integers, which JSON allows.
    json.loads(text, parse_int=len, parse_float=len, parse_constant=_no_constant)


def parse_object(text: str) -> dict[str, Any] | None:
    """The JSON object that a payload text holds, or None when it holds something else.

    Raises:
        ValueError: an object in it has the same key twice, or a number is too long.
    """
    value = json.loads(text, object_pairs_hook=_no_twins, parse_constant=_no_constant)
    return value if isinstance(value, dict) else None
