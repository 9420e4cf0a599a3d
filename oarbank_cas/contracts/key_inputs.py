"""What a job key was computed from, as a document: given by people, checked against a key, kept as a blob.

The canonical bytes of module, compatibility level and key inputs are a blob whose digest is the hex part of the key. So
the document needs no other proof, and the stages and classes of one key share it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Final, Self

from oarbank_cas.contracts.canonical import digest_of, parse_json
from oarbank_cas.contracts.keys import JobKey, check_name, key_document
from oarbank_cas.contracts.places import quoted, within
from oarbank_cas.errors import CorruptError, InvalidInputError

MAX_KEY_INPUTS: Final = 2**20
"""Bytes of a document of key inputs, as given and as kept."""

_PARTS: Final = ("module", "compat", "inputs")


@dataclass(frozen=True, slots=True)
class KeyInputs:
    """What one job key is made of. Made by `of`, `parse` or `stored`.

    Attributes:
        module: the module's id.
        stage: the stage, or None.
        canonical: the canonical JSON of module, compat and inputs; its digest is the key's hex part.
    """

    module: str
    stage: str | None
    canonical: bytes

    @classmethod
    def of(cls, module: str, compat: str, inputs: object, stage: str | None = None) -> Self:
        """Key inputs from their parts, as `job_key` takes them.

        Raises:
            InvalidInputError: a part is malformed, or they are larger than `MAX_KEY_INPUTS`.
        """
        canonical = key_document(module, compat, inputs)
        if stage is not None:
            check_name(stage, "stage")
        if len(canonical) > MAX_KEY_INPUTS:
            raise InvalidInputError(f"have {len(canonical)} bytes; at most {MAX_KEY_INPUTS} are kept", "key inputs")
        return cls(module, stage, canonical)

    @classmethod
    def parse(cls, data: bytes, where: str = "key inputs") -> Self:
        """Read a document `{"module", "compat", "inputs"}`, with a `stage` where there is one, in any spelling.

        Args:
            data: its bytes.
            where: what it is called in errors.

        Raises:
            InvalidInputError: it is too large, no strict JSON, has another member, or a part is malformed.
        """
        if len(data) > MAX_KEY_INPUTS:
            raise InvalidInputError(f"has {len(data)} bytes; at most {MAX_KEY_INPUTS} are taken", where)
        document = parse_json(data, where=where)
        if not isinstance(document, dict):
            raise InvalidInputError('must be an object with "module", "compat" and "inputs"', where)
        missing = [name for name in _PARTS if name not in document]
        if missing:
            raise InvalidInputError(f"has no {quoted(missing[0])}", where)
        unknown = sorted(document.keys() - {*_PARTS, "stage"})
        if unknown:
            raise InvalidInputError(
                f"has the member {quoted(unknown[0])}, which no key is made of: module, compat, inputs and stage are",
                where,
            )
        parts: Any = document  # `of` looks at each of them
        try:
            return cls.of(parts["module"], parts["compat"], parts["inputs"], parts.get("stage"))
        except InvalidInputError as error:
            raise InvalidInputError(error.why, within(where, error.where or "$")) from None

    @classmethod
    def stored(cls, data: bytes, stage: str | None = None) -> Self:
        """Key inputs as they are kept, whose digest the caller has checked.

        Raises:
            CorruptError: these bytes are none: something else has this digest.
        """
        try:
            document = json.loads(data)
        except (ValueError, RecursionError) as error:
            raise CorruptError(f"blob {digest_of(data)} is no document of key inputs") from error
        if (
            not isinstance(document, dict)
            or document.keys() != set(_PARTS)
            or not all(isinstance(document[name], str) for name in ("module", "compat"))
        ):
            raise CorruptError(f"blob {digest_of(data)} is no document of key inputs")
        return cls(document["module"], stage, data)

    @property
    def key(self) -> JobKey:
        """The job key that they give."""
        return JobKey(digest_of(self.canonical), self.stage)

    @property
    def document(self) -> dict[str, Any]:
        """Module, compat and inputs, as values; read from the canonical bytes, so that equal means equal."""
        document: dict[str, Any] = json.loads(self.canonical)
        return document

    def check_gives(self, key: str) -> None:
        """Check that these are the inputs of a key.

        Raises:
            InvalidInputError: they give another, which is said.
        """
        if str(self.key) != key:
            raise InvalidInputError(f"give the job key {self.key}, not {quoted(key)}", "key inputs")
