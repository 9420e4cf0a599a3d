"""Strict JSON in, canonical JSON and digests out: what is hashed here is hashed the same everywhere."""

from __future__ import annotations

import hashlib
import json
import math
import re
from typing import Final, NoReturn, TypeAlias, TypeGuard, Union

import rfc8785

from oarbank_cas.contracts.places import json_path, quoted, within
from oarbank_cas.errors import InvalidInputError

JsonValue: TypeAlias = Union[bool, int, float, str, list["JsonValue"], dict[str, "JsonValue"], None]  # noqa: UP007 - recursive

MAX_INTEGER: Final = 2**53
"""The largest magnitude up to which a double, and so every JSON reader, holds each integer exactly."""
MAX_DEPTH: Final = 200
"""How many arrays and objects may be nested in one another."""
MAX_NUMBER_LENGTH: Final = 1000
"""How many characters the literal of one number may have."""
DIGEST_PATTERN: Final = "^[0-9a-f]{64}$"
"""A digest, as the JSON Schemas write it."""

_DIGEST: Final = re.compile(r"[0-9a-f]{64}")
_SURROGATE_ESCAPE: Final = re.compile(r"\\u[dD][89a-fA-F]")
_TOO_DEEP: Final = f"is nested deeper than {MAX_DEPTH} levels"
_TOO_LARGE: Final = "is an integer beyond +-2^53; write it as a string"
_TOO_LONG: Final = f"is a number of more than {MAX_NUMBER_LENGTH} characters"
_LONE_SURROGATE: Final = "has a lone surrogate, which is no character"


def parse_json(data: bytes | str, *, where: str = "document", big_integers: bool = False) -> JsonValue:
    """Parse JSON that every reader understands in the same way, and refuse all other.

    Refused are bytes that are no UTF-8, a byte order mark, syntax errors, keys that stand twice in one object, NaN and
    infinities, floats that overflow, lone surrogates (as escapes too), integers beyond 2^53 in magnitude, number
    literals beyond `MAX_NUMBER_LENGTH` and nesting beyond `MAX_DEPTH`. A number written with a fraction or an exponent
    is a double.

    Args:
        data: the document.
        where: what the document is called in errors.
        big_integers: accept integers of any magnitude, for documents that are kept as written.

    Returns:
        The value.

    Raises:
        InvalidInputError: naming the document and the place in it.
    """
    text = _decode(data, where)
    hooks = _Hooks(big_integers=big_integers)
    decoder = json.JSONDecoder(
        object_pairs_hook=hooks.members,
        parse_int=hooks.integer,
        parse_float=hooks.double,
        parse_constant=hooks.constant,
    )
    try:
        value = decoder.decode(text)
    except json.JSONDecodeError as error:
        place = within(where, f"line {error.lineno} column {error.colno}")
        raise InvalidInputError(f"is not JSON: {error.msg}", place) from None
    except RecursionError:
        raise InvalidInputError(_TOO_DEEP, where) from None
    # The walk that knows the places is slow, so it is taken only where something may be wrong.
    if hooks.refused or _SURROGATE_ESCAPE.search(text) or _may_be_too_deep(text, value):
        _Preparation(where, big_integers=True).plain(value)
    parsed: JsonValue = value
    return parsed


def canonical_json(value: object, *, where: str | None = None) -> bytes:
    """Serialise a value as RFC 8785 canonical JSON.

    `1000` and `1000.0` give the same bytes, and so do all spellings of a string.

    Args:
        value: None, bool, int, float, str, list, tuple, or dict with string keys, of each other.
        where: what the value is called in errors.

    Returns:
        The canonical bytes.

    Raises:
        InvalidInputError: the value holds something that has no canonical form (another type, NaN, an infinity, an
            integer beyond 2^53 in magnitude, a lone surrogate) or is nested beyond `MAX_DEPTH`, itself included.
    """
    try:
        return rfc8785.dumps(_Preparation(where, big_integers=False).plain(value))
    except RecursionError:
        # Only when the caller's own stack is nearly used up: MAX_DEPTH is far below the interpreter's limit.
        raise InvalidInputError(_TOO_DEEP, where) from None


def digest_of(data: bytes | bytearray | memoryview) -> str:
    """Compute the digest of bytes: SHA-256 in 64 lowercase hex digits."""
    return hashlib.sha256(data).hexdigest()


def is_digest(value: object) -> TypeGuard[str]:
    """Say whether a value is a well-formed digest."""
    return isinstance(value, str) and _DIGEST.fullmatch(value) is not None


def check_digest(text: str, where: str | None = None) -> str:
    """Check that a text is a digest.

    Args:
        text: the text.
        where: its place, for the error.

    Returns:
        The text.

    Raises:
        InvalidInputError: it is anything but 64 lowercase hex digits.
    """
    if not is_digest(text):
        raise InvalidInputError(f"is no digest (64 lowercase hex digits): {quoted(text)}", where)
    return text


def _decode(data: bytes | str, where: str) -> str:
    if isinstance(data, str):
        text = data
        if not text.isascii():
            try:
                text.encode()
            except UnicodeEncodeError as error:
                raise InvalidInputError(_LONE_SURROGATE, within(where, f"character {error.start}")) from None
    else:
        try:
            text = str(data, "utf-8")
        except UnicodeDecodeError as error:
            raise InvalidInputError("is not UTF-8", within(where, f"byte {error.start}")) from None
    if text.startswith("\ufeff"):
        raise InvalidInputError("starts with a byte order mark; JSON has none", where)
    return text


def _may_be_too_deep(text: str, value: object) -> bool:
    if text.count("[") + text.count("{") <= MAX_DEPTH:
        return False
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [
            child
            for container in level
            for child in (container.values() if isinstance(container, dict) else container)  # type: ignore[attr-defined]
            if isinstance(child, (dict, list))
        ]
        if not level:
            return False
    return True


class _Refused:
    """Stands in the parsed value where something is refused: the parser knows why, a later walk finds the place."""

    __slots__ = ("why",)

    def __init__(self, why: str) -> None:
        self.why = why


class _Hooks:
    """What the C scanner of the standard library calls for objects and numbers."""

    __slots__ = ("_big_integers", "refused")

    def __init__(self, *, big_integers: bool) -> None:
        self._big_integers = big_integers
        self.refused = False

    def members(self, pairs: list[tuple[str, object]]) -> object:
        members = dict(pairs)
        if len(members) == len(pairs):
            return members
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        return self._refuse(f"has the key {quoted(twice)} twice")

    def integer(self, text: str) -> object:
        if len(text) > MAX_NUMBER_LENGTH:
            return self._refuse(_TOO_LONG)
        number = int(text)
        if not self._big_integers and abs(number) > MAX_INTEGER:
            return self._refuse(_TOO_LARGE)
        return number

    def double(self, text: str) -> object:
        if len(text) > MAX_NUMBER_LENGTH:
            return self._refuse(_TOO_LONG)
        number = float(text)
        return self._refuse("is a number beyond the range of a double") if math.isinf(number) else number

    def constant(self, text: str) -> object:
        return self._refuse(f"is {text}, which JSON does not have")

    def _refuse(self, why: str) -> _Refused:
        self.refused = True
        return _Refused(why)


class _Preparation:
    """Copies a value into what the serialiser takes, and refuses, with the place, what has no canonical form."""

    __slots__ = ("_big_integers", "_keys", "_where")

    def __init__(self, where: str | None, *, big_integers: bool) -> None:
        self._where = where
        self._big_integers = big_integers
        self._keys: list[str | int] = []

    def plain(self, value: object) -> JsonValue:
        if isinstance(value, str):
            self._check_text(value)
            return value
        if value is None or isinstance(value, bool):
            return value
        if isinstance(value, int):
            return self._integer(value)
        if isinstance(value, float):
            if not math.isfinite(value):
                self._refuse(f"is {value}, which JSON does not have")
            return value
        return self._container(value)

    def _container(self, value: object) -> JsonValue:
        if isinstance(value, _Refused):
            self._refuse(value.why)
        if not isinstance(value, (dict, list, tuple)):
            self._refuse(f"is of the type {type(value).__name__}, which JSON does not have")
        if len(self._keys) >= MAX_DEPTH:
            self._refuse(_TOO_DEEP)
        if isinstance(value, dict):
            for key in value:
                if not isinstance(key, str):
                    self._refuse(f"has a key that is no string but of the type {type(key).__name__}")
                self._check_text(key)
            return {key: self._child(key, child) for key, child in value.items()}
        return [self._child(index, child) for index, child in enumerate(value)]

    def _child(self, key: str | int, value: object) -> JsonValue:
        self._keys.append(key)
        prepared = self.plain(value)
        self._keys.pop()
        return prepared

    def _integer(self, value: int) -> int | float:
        if abs(value) < MAX_INTEGER or self._big_integers:
            return value
        if abs(value) > MAX_INTEGER:
            self._refuse(_TOO_LARGE)
        # The serialiser draws its line one below; the double of the same value has the same canonical form.
        return float(value)

    def _check_text(self, text: str) -> None:
        if not text.isascii():
            try:
                text.encode()
            except UnicodeEncodeError:
                self._refuse(f"{_LONE_SURROGATE}: {quoted(text)}")

    def _refuse(self, why: str) -> NoReturn:
        raise InvalidInputError(why, within(self._where, json_path(self._keys)))
