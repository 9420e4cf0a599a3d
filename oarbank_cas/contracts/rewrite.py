"""Changing `local` into `digest` and `size` in a result envelope, and not one other byte of it."""

from __future__ import annotations

import json
import json.decoder
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, NoReturn

from oarbank_cas.contracts.canonical import MAX_DEPTH, check_digest, is_digest
from oarbank_cas.contracts.manifest import check_size
from oarbank_cas.contracts.paths import check_portable_path
from oarbank_cas.contracts.places import quoted, step, within
from oarbank_cas.errors import InvalidInputError

# The C scanner's own functions; the standard library has them, the type stubs do not. Both return where they stopped.
_scan_string: Callable[[str, int], tuple[str, int]] = json.decoder.scanstring  # type: ignore[attr-defined]
_SPACE: Final = re.compile(r"[ \t\n\r]*")
_COLON: Final = re.compile(r"[ \t\n\r]*:[ \t\n\r]*")
_NEXT: Final = re.compile(r"[ \t\n\r]*([,\]}])[ \t\n\r]*")
# A whole key without escapes, with its colon: what nearly every member starts with.
_PLAIN_KEY: Final = re.compile(r'"([^"\\\x00-\x1f]*)"[ \t\n\r]*:[ \t\n\r]*')
# A whole file as nearly every runner writes it, in one step; anything else is read member by member.
_PLAIN_FILE: Final = re.compile(
    r'\{[ \t\n\r]*"path"[ \t\n\r]*:[ \t\n\r]*"[^"\\\x00-\x1f]*"([ \t\n\r]*,[ \t\n\r]*)'
    r'"local"([ \t\n\r]*:[ \t\n\r]*)"([^"\\\x00-\x1f]*)"[ \t\n\r]*\}'
)
_SCALAR: Final = re.compile(r"null|true|false|-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_SIZE: Final = re.compile(r"-?[0-9]{1,17}")


def _refuse_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is not JSON")


# Jumps over values of no interest at the speed of C; a number of any length must not stop it.
_skipper = json.JSONDecoder(parse_int=len, parse_float=len, parse_constant=_refuse_constant)
_scan_value: Callable[[str, int], tuple[object, int]] = _skipper.scan_once  # type: ignore[attr-defined]


class Upload(NamedTuple):
    """A file of the work directory that a result envelope names.

    Attributes:
        local: the path inside the work directory.
        digest: the digest that the envelope claims already, if it does.
        size: the size that the envelope claims already, if it does.
        where: the JSON path of the object that names the file.
    """

    local: str
    digest: str | None
    size: int | None
    where: str


class _Member(NamedTuple):
    """Where a member stands, and what its value is; `value` is the text of a scalar that is no string."""

    start: int
    key_end: int
    value_start: int
    end: int
    value: str
    is_string: bool


class _Target(NamedTuple):
    """What is to change in one object."""

    local: _Member
    digest: _Member | None
    size: _Member | None
    colon: str
    before: tuple[int, int] | None
    after: tuple[int, int] | None


@dataclass(frozen=True, slots=True)
class Scan:
    """What a look through a result envelope found.

    Attributes:
        text: the envelope.
        uploads: the files to upload, in the order in which the text names them.
        payload: start and end of the payload's value in the text, or None where there is none.
    """

    text: str
    uploads: tuple[Upload, ...]
    payload: tuple[int, int] | None
    _targets: tuple[_Target, ...]


def find_uploads(text: str, where: str = "result envelope") -> Scan:
    """Find every object with a string `local` under the artifacts of a result envelope, in unknown fields too.

    Args:
        text: the envelope, as `parse_result` has accepted it.
        where: what it is called in errors.

    Returns:
        The files to upload, and what `replace_locals` needs to know.

    Raises:
        InvalidInputError: the text is no JSON object, a `local` is no portable path, or the `digest` or `size` beside
            it is malformed.
    """
    return _Scanner(text, where).scan()


def payload_size(scan: Scan) -> int:
    """Measure the payload as it is written, in bytes of UTF-8; 0 where there is none."""
    if scan.payload is None:
        return 0
    start, end = scan.payload
    return len(scan.text[start:end].encode())


def replace_locals(scan: Scan, results: Sequence[tuple[str, int]], where: str = "result envelope") -> str:
    """Put what was uploaded in the place of each `local`.

    `digest` and `size` that are null are filled in where they stand; what is missing takes the place of `local`.

    Args:
        scan: what `find_uploads` found.
        results: digest and size of each of its uploads, in the same order.
        where: what the envelope is called in errors.

    Returns:
        The new text.

    Raises:
        InvalidInputError: an envelope claims another digest or size than the upload had.
        ValueError: the number of results is not that of the uploads.
    """
    text = scan.text
    edits: list[tuple[int, int, str]] = []
    for upload, target, (digest, size) in zip(scan.uploads, scan._targets, results, strict=True):  # noqa: SLF001
        check_digest(digest)
        check_size(size)
        if upload.digest is not None and upload.digest != digest:
            why = f"claims the digest {upload.digest}, but {quoted(upload.local)} has {digest}"
            raise InvalidInputError(why, within(where, upload.where))
        if upload.size is not None and upload.size != size:
            why = f"claims the size {upload.size}, but {quoted(upload.local)} has {size} bytes"
            raise InvalidInputError(why, within(where, upload.where))
        _edit(text, target, {"digest": f'"{digest}"', "size": str(size)}, edits)
    # An object's own members may stand around those of an object inside it.
    edits.sort()
    pieces: list[str] = []
    done = 0
    for start, end, new in edits:
        pieces += (text[done:start], new)
        done = end
    pieces.append(text[done:])
    return "".join(pieces)


def _edit(text: str, target: _Target, values: dict[str, str], edits: list[tuple[int, int, str]]) -> None:
    missing = []
    for name, member in (("digest", target.digest), ("size", target.size)):
        if member is None:
            missing.append(f'"{name}"{target.colon}{values[name]}')
        elif member.value == "null" and not member.is_string:
            edits.append((member.value_start, member.end, values[name]))
    local = target.local
    if missing:
        between = target.after or target.before
        separator = text[slice(*between)] if between else ", " if target.colon.endswith(" ") else ","
        edits.append((local.start, local.end, separator.join(missing)))
    elif target.after:
        edits.append((local.start, target.after[1], ""))
    elif target.before:
        edits.append((target.before[0], local.end, ""))


class _Scanner:
    """Reads a text once, remembering where things stand."""

    def __init__(self, text: str, where: str) -> None:
        self._text = text
        self._where = where
        self._payload: tuple[int, int] | None = None
        self._found: list[tuple[Upload, _Target]] = []

    def scan(self) -> Scan:
        try:
            start = self._after(_SPACE, 0)
            if self._text[start : start + 1] != "{":
                raise InvalidInputError("must be an object", self._where)
            end = self._after(_SPACE, self._envelope(start))
        except RecursionError:
            raise InvalidInputError(f"is nested deeper than {MAX_DEPTH} levels", self._where) from None
        except json.JSONDecodeError as error:
            raise InvalidInputError(
                f"is not JSON: {error.msg}", within(self._where, f"character {error.pos}")
            ) from None
        if end != len(self._text):
            self._syntax(end)
        # Objects are found when they end; an upload belongs where its local stands.
        self._found.sort(key=lambda found: found[1].local.start)
        uploads = tuple([upload for upload, _ in self._found])
        return Scan(self._text, uploads, self._payload, tuple([target for _, target in self._found]))

    def _envelope(self, start: int) -> int:
        position = self._after(_SPACE, start + 1)
        if self._text[position : position + 1] == "}":
            return position + 1
        seen: set[str] = set()
        while True:
            key, _, value_start = self._key(position, seen, "$")
            if key == "artifacts":
                end = self._value(value_start, "$.artifacts", 2)
            else:
                end = self._skip(value_start)
                if key == "payload":
                    self._payload = (value_start, end)
            closes, _, position = self._next(end, "}")
            if closes:
                return position

    def _value(self, start: int, path: str, depth: int) -> int:
        """Look through a value under the artifacts; return where it ends."""
        first = self._text[start : start + 1]
        if first == "{":
            return self._object(start, path, depth)
        if first == "[":
            return self._array(start, path, depth)
        if first == '"':
            return _scan_string(self._text, start + 1)[1]
        match = _SCALAR.match(self._text, start)
        if match is None:
            self._syntax(start)
        return match.end()

    def _array(self, start: int, path: str, depth: int) -> int:
        self._check_depth(depth)
        position = self._after(_SPACE, start + 1)
        if self._text[position : position + 1] == "]":
            return position + 1
        index = 0
        while True:
            plain = _PLAIN_FILE.match(self._text, position)
            if plain is not None:
                self._check_depth(depth + 1)
                end = self._plain_file(plain, f"{path}[{index}]")
            else:
                end = self._value(position, f"{path}[{index}]", depth + 1)
            closes, _, position = self._next(end, "]")
            if closes:
                return position
            index += 1

    def _object(self, start: int, path: str, depth: int) -> int:
        self._check_depth(depth)
        text = self._text
        position = self._after(_SPACE, start + 1)
        if text[position : position + 1] == "}":
            return position + 1
        seen: set[str] = set()
        known: dict[str, _Member] = {}
        before = local_before = local_after = None
        while True:
            key, key_end, value_start = self._key(position, seen, path)
            first = text[value_start : value_start + 1]
            if key in {"local", "digest", "size"} and first not in {"{", "["}:
                member = self._member(position, key_end, value_start)
                known[key] = member
                end = member.end
            elif first == '"':
                end = _scan_string(text, value_start + 1)[1]
            else:
                end = self._value(value_start, path + step(key), depth + 1)
            closes, following, after = self._next(end, "}")
            gap = None if closes else (following, after)
            if key == "local":
                local_before, local_after = before, gap
            if closes:
                break
            before, position = gap, after
        if "local" in known and known["local"].is_string:
            self._upload(path, seen, known, (local_before, local_after))
        return after

    def _plain_file(self, match: re.Match[str], path: str) -> int:
        gap, local = match.span(1), match[3]
        check_portable_path(local, f"{within(self._where, path)}.local")
        member = _Member(gap[1], match.start(2), match.end(2), match.end(3) + 1, local, is_string=True)
        self._found.append((Upload(local, None, None, path), _Target(member, None, None, match[2], gap, None)))
        return match.end()

    def _member(self, start: int, key_end: int, value_start: int) -> _Member:
        if self._text[value_start : value_start + 1] == '"':
            value, end = _scan_string(self._text, value_start + 1)
            return _Member(start, key_end, value_start, end, value, is_string=True)
        match = _SCALAR.match(self._text, value_start)
        if match is None:
            self._syntax(value_start)
        return _Member(start, key_end, value_start, match.end(), match[0], is_string=False)

    def _upload(
        self,
        path: str,
        seen: set[str],
        known: dict[str, _Member],
        gaps: tuple[tuple[int, int] | None, tuple[int, int] | None],
    ) -> None:
        local, digest, size = known["local"], known.get("digest"), known.get("size")
        place = within(self._where, path)
        check_portable_path(local.value, f"{place}.local")
        digest_text = size_number = None
        # A digest or size that is an array or object is among the keys seen, but not among the scalars.
        if "digest" in seen and not (digest and digest.value == "null" and not digest.is_string):
            if digest is None or not digest.is_string or not is_digest(digest.value):
                raise InvalidInputError("must be a digest (64 lowercase hex digits) or null", f"{place}.digest")
            digest_text = digest.value
        if "size" in seen and not (size and size.value == "null" and not size.is_string):
            if size is None or size.is_string or _SIZE.fullmatch(size.value) is None:
                raise InvalidInputError("must be an integer from 0 to 2^53 or null", f"{place}.size")
            size_number = check_size(int(size.value), f"{place}.size")
        colon = self._text[local.key_end : local.value_start]
        target = _Target(local, digest, size, colon, *gaps)
        self._found.append((Upload(local.value, digest_text, size_number, path), target))

    def _key(self, position: int, seen: set[str], path: str) -> tuple[str, int, int]:
        """Read a key and its colon; return it, where it ends, and where its value starts."""
        match = _PLAIN_KEY.match(self._text, position)
        if match is not None:
            key, end, value_start = match[1], match.end(1) + 1, match.end()
        else:
            if self._text[position : position + 1] != '"':
                self._syntax(position)
            key, end = _scan_string(self._text, position + 1)
            value_start = self._after(_COLON, end)
        if key in seen:
            raise InvalidInputError(f"has the key {quoted(key)} twice", within(self._where, path))
        seen.add(key)
        return key, end, value_start

    def _next(self, position: int, closing: str) -> tuple[bool, int, int]:
        """Read what follows a value: whether it is the closing bracket, where the gap starts, and where it ends."""
        match = _NEXT.match(self._text, position)
        if match is None:
            self._syntax(position)
        if match[1] == ",":
            return False, position, match.end()
        if match[1] != closing:
            self._syntax(match.start(1))
        return True, position, match.end(1)

    def _skip(self, start: int) -> int:
        try:
            return _scan_value(self._text, start)[1]
        except (StopIteration, ValueError):
            self._syntax(start)

    def _after(self, pattern: re.Pattern[str], position: int) -> int:
        match = pattern.match(self._text, position)
        if match is None:
            self._syntax(position)
        return match.end()

    def _check_depth(self, depth: int) -> None:
        if depth > MAX_DEPTH:
            raise InvalidInputError(f"is nested deeper than {MAX_DEPTH} levels", self._where)

    def _syntax(self, position: int) -> NoReturn:
        raise InvalidInputError("is not JSON", within(self._where, f"character {position}"))
