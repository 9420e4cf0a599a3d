"""What one S3 server was found to honour: measured by the probe, kept with the store, and what each lack leads to."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Literal

from oarbank_cas.errors import CorruptError

FORMAT = 1
MAX_BYTES = 64 * 1024

Order = Literal["bytes", "folders", "unknown"]


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a server honours. The defaults are the careful ones: what was not proven is not relied on.

    Attributes:
        server: what it calls itself.
        checksum_sha256: refuses a put whose `x-amz-checksum-sha256` is wrong.
        checksum_alone: refuses it also where the put does not name the algorithm, as obstore's does not.
        payload_hash: refuses a put whose signed payload hash is wrong.
        create_if_absent: `If-None-Match: *` on a put; of several at once exactly one wins.
        replace_if_match: `If-Match` on a put.
        delete_if_match: `If-Match` on a delete.
        delete_exact: such a delete and a replace of one object at the same moment are not both done, and a delete of
            what is gone is refused.
        copy_if_absent: `If-None-Match: *` on a copy.
        complete_if_absent: `If-None-Match: *` on the end of a multipart upload.
        batch_delete: removes many objects by one request.
        expiring_delete: refuses a presigned delete after its time.
        ranges: gives a part of an object.
        multipart: takes an object in parts.
        listing_order: names come by their bytes, or folder by folder.
        signatures: refuses a request that is signed wrongly.
        versioned: the bucket keeps what is deleted or replaced.
    """

    server: str = "unknown"
    checksum_sha256: bool = False
    checksum_alone: bool = False
    payload_hash: bool = False
    create_if_absent: bool = False
    replace_if_match: bool = False
    delete_if_match: bool = False
    delete_exact: bool = False
    copy_if_absent: bool = False
    complete_if_absent: bool = False
    batch_delete: bool = False
    expiring_delete: bool = False
    ranges: bool = False
    multipart: bool = False
    listing_order: Order = "unknown"
    signatures: bool = False
    versioned: bool = False

    @property
    def verified_puts(self) -> bool:
        """The server itself refuses wrong bytes."""
        return self.checksum_sha256 or self.payload_hash

    @property
    def verified_fast_puts(self) -> bool:
        """It refuses them also from the fast engine."""
        return self.checksum_alone or self.payload_hash

    def encode(self) -> bytes:
        """The document as it is stored."""
        return (json.dumps({"format": FORMAT, **asdict(self)}, indent=2) + "\n").encode()

    @classmethod
    def decode(cls, data: bytes, where: str) -> Capabilities:
        """Read a stored document. What a newer version added is left out; what is not there counts as not honoured.

        Args:
            data: the object's bytes.
            where: the store, for messages.

        Raises:
            CorruptError: it is none.
        """
        problem = f"capabilities.json in {where} cannot be read; run `oarbank-cas doctor` to make it anew"
        try:
            document = json.loads(data)
        except (ValueError, RecursionError) as error:
            raise CorruptError(problem) from error
        if not isinstance(document, dict) or type(document.get("format")) is not int:
            raise CorruptError(problem)
        values: dict[str, Any] = {}
        for field in fields(cls):
            value = document.get(field.name, field.default)
            if type(value) is not type(field.default):
                raise CorruptError(problem)
            values[field.name] = value
        if values["listing_order"] not in ("bytes", "folders"):
            values["listing_order"] = "unknown"
        return cls(**values)

    def without(self, **lacking: bool) -> Capabilities:
        """The same with some changed."""
        return replace(self, **lacking)  # type: ignore[arg-type]  # every changed field is a bool

    def consequences(self) -> list[str]:
        """What is lost on this server, and what is done instead; for people."""
        said = []
        if not self.verified_puts:
            said.append("the server checks no bytes: every put is read back once and compared")
        if not self.checksum_sha256:
            said.append(
                "put grants are not bound to their bytes: an agent could put others, which every reader refuses"
            )
        if not self.signatures:
            said.append("the server does not check signatures: anybody who reaches it may change the store")
        if not self.create_if_absent:
            said.append(
                "conditional creates are ignored: of two who record one key at once both may be told that they won; "
                "the result that stands is whole, and one of theirs"
            )
        if not self.replace_if_match:
            said.append("conditional replaces are not honoured: an entry is looked at, then replaced, in two steps")
        if not self.delete_if_match:
            said.append("conditional deletes are not honoured: an object is looked at, then removed, in two steps")
        elif not self.delete_exact:
            said.append(
                "conditional deletes are looked at, then done: a result that is recorded at the very moment in which "
                "gc takes away the ended one in its place may go with it, and is computed again"
            )
        if not self.expiring_delete:
            said.append("late deletes are not refused: gc condemns only with --stall-bound-s")
        if not self.batch_delete:
            said.append("no deletes of many at once: one by one, slower")
        if not self.multipart:
            said.append("no multipart uploads: an object has at most 5 GiB")
        if self.versioned:
            said.append("the bucket is versioned: nothing that gc removes frees space until old versions expire")
        return said
