"""The bytes of an entry and of a tombstone: one line of JSON, a newline, and a body that is never touched. No I/O.

An entry's body is the envelope exactly as it was given; a tombstone's body is the whole object that it ended. The
header binds the body by size and SHA-256, and ends with a SHA-256 of itself. Header fields that this version does not
know are kept.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from oarbank_cas import layout
from oarbank_cas.contracts.canonical import is_digest
from oarbank_cas.contracts.key_inputs import MAX_KEY_INPUTS
from oarbank_cas.errors import CorruptError, InvalidInputError

if TYPE_CHECKING:
    from oarbank_cas.contracts.keys import JobKey

MAX_HEADER = 2**20
"""Bytes of a header line; more is damage."""

_ENDING_ROOM = 2**16
"""Bytes of `MAX_HEADER` that an entry leaves free, so that a tombstone can repeat its fields and say why it ended."""

MAX_ENVELOPE = 64 * 2**20
"""Bytes of an envelope."""

MAX_OBJECT = MAX_ENVELOPE + 4 * MAX_HEADER
"""Bytes of an entry or tombstone; a larger object is not read."""

Cause = Literal["invalidated", "expired", "withdrawn"]
"""Why an entry was ended: by a person or program; by retention; by its own writer, who could not vouch for it."""

_STRINGS = ("job_key", "class", "body_sha256")

_SEAL = b',"header_sha256":"'
_SEAL_BYTES = len(_SEAL) + 64 + len(b'"}')


@dataclass(frozen=True, slots=True)
class Entry:
    """A recorded result.

    Attributes:
        header: the header's fields (docs/formats.md).
        envelope: the envelope's bytes as given.
    """

    header: Mapping[str, Any]
    envelope: bytes

    @property
    def datasets(self) -> dict[str, str]:
        """Artifact name to dataset id."""
        found = self.header.get("datasets")
        return dict(found) if isinstance(found, dict) else {}


@dataclass(frozen=True, slots=True)
class Tombstone:
    """An ended entry.

    Attributes:
        header: the header's fields (docs/formats.md).
        ended: the whole object that it took the place of.
    """

    header: Mapping[str, Any]
    ended: bytes

    @property
    def cause(self) -> str:
        """A `Cause`, or another word of a newer version."""
        return str(self.header.get("cause", "ended"))

    @property
    def told(self) -> str:
        """When, by whom and why, in a few words."""
        header = self.header
        reason = header.get("reason")
        return f"ended {header.get('ended_at')} by {header.get('ended_by')}" + (f": {reason}" if reason else "")


def encode(header: Mapping[str, Any], body: bytes) -> bytes:
    """An entry's or tombstone's bytes.

    Args:
        header: its fields, without those that bind the body.
        body: the bytes that follow the header line.

    Raises:
        InvalidInputError: it would be too large to be read again.
    """
    bound = {
        "format": layout.FORMAT,
        **header,
        "body_size": len(body),
        "body_sha256": hashlib.sha256(body).hexdigest(),
    }
    bound.pop("header_sha256", None)  # of the header that these fields came from
    line = json.dumps(bound, separators=(",", ":")).encode()
    line = line[:-1] + _SEAL + hashlib.sha256(line).hexdigest().encode() + b'"}'
    most = MAX_HEADER - (_ENDING_ROOM if header.get("kind") == "entry" else 0)
    if len(line) > most:
        raise InvalidInputError(f"needs a header of {len(line)} bytes; there are at most {most}", "entry")
    if header.get("kind") == "entry" and len(body) > MAX_ENVELOPE:
        raise InvalidInputError(f"has {len(body)} bytes; at most {MAX_ENVELOPE} are recorded", "result envelope")
    return line + b"\n" + body


def decode_header(line: bytes) -> dict[str, Any]:
    """Read a header line, without the newline.

    Raises:
        CorruptError: it is none, or damaged.
    """
    seal = line[-_SEAL_BYTES:]
    if not seal.startswith(_SEAL):
        raise CorruptError("its header line does not end with its checksum")
    if hashlib.sha256(line[:-_SEAL_BYTES] + b"}").hexdigest().encode() + b'"}' != seal[len(_SEAL) :]:
        raise CorruptError("its header line does not have the checksum that it says")
    try:
        header = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise CorruptError("its header line is not JSON") from error
    if not isinstance(header, dict) or header.get("kind") not in ("entry", "tombstone"):
        raise CorruptError("its header line is none of an entry or a tombstone")
    if not all(isinstance(header.get(name), str) for name in _STRINGS):
        raise CorruptError("its header line lacks fields")
    if header.get("format") != layout.FORMAT:
        raise CorruptError(f"its format is {header.get('format')!r}, not {layout.FORMAT}")
    return header


def is_surely_entry(data: bytes) -> bool:
    """Whether damaged bytes were an entry, and cannot have been a tombstone: an ended result must not come back."""
    line = data.partition(b"\n")[0]
    return b'"kind":"entry"' in line and b'"ended_' not in line


def belongs(found: Entry | Tombstone, parts: JobKey, result_class: str) -> bool:
    """Whether an entry or tombstone says that it is of this key, stage and class."""
    header = found.header
    return (header["job_key"], header.get("stage"), header["class"]) == (str(parts), parts.stage, result_class)


def kept_inputs(header: Mapping[str, Any]) -> dict[str, int]:
    """The blob of key inputs that an entry names, with its size; empty where it names none.

    Its digest is the hex part of the job key. It is for people: an entry without it is no less a hit.
    """
    digest, size = header["job_key"].partition(":")[0], header.get("key_inputs")
    return {digest: size} if type(size) is int and 0 <= size <= MAX_KEY_INPUTS and is_digest(digest) else {}


def decode(data: bytes) -> Entry | Tombstone:
    """Read an entry or a tombstone.

    Raises:
        CorruptError: the header is damaged, or the body is not what the header says.
    """
    end = data.find(b"\n", 0, MAX_HEADER + 1)
    if end < 0:
        raise CorruptError("its header line has no end")
    header = decode_header(data[:end])
    body = data[end + 1 :]
    if header.get("body_size") != len(body):
        raise CorruptError(f"its header promises {header.get('body_size')} bytes, and {len(body)} follow")
    actual = hashlib.sha256(body).hexdigest()
    if actual != header["body_sha256"]:
        raise CorruptError(
            f"its bytes have the digest {actual}, its header says {header['body_sha256']}",
            expected=header["body_sha256"],
            actual=actual,
        )
    return Entry(header, body) if header["kind"] == "entry" else Tombstone(header, body)
