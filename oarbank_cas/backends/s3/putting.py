"""Putting: every put carries the checksum of its bytes, and what the server does not check is read back once."""

from __future__ import annotations

import contextlib
import hashlib
import secrets
from typing import TYPE_CHECKING

from oarbank_cas.backends.s3 import failures, multipart, reading, stats
from oarbank_cas.backends.s3.engine import NONCE
from oarbank_cas.errors import CasError, NotFoundError, StorageIOError

if TYPE_CHECKING:
    from collections.abc import Callable

    from oarbank_cas.backends.s3.capabilities import Capabilities
    from oarbank_cas.backends.s3.retry import Attempt
    from oarbank_cas.backends.s3.spool import Spool
    from oarbank_cas.backends.s3.wire import Wire

_CHUNK = 2**20
_PUTS = 3


class Putter:
    """Puts objects, under a condition or over whatever stands.

    Args:
        wire: the bucket.
        capabilities: what its server honours.
        multipart_above: bytes above which an object goes up in parts. Roots (entries, pins) stay below: the time of an
            object that came in parts may be that of its first.
        part_size: bytes of a part; more where there would be too many.
    """

    def __init__(self, wire: Wire, capabilities: Capabilities, multipart_above: int, part_size: int) -> None:
        self._wire = wire
        self._can = capabilities
        self._multipart_above = multipart_above
        self._part_size = part_size

    def part_size(self, size: int) -> int | None:
        """Bytes of a part of an object of `size` bytes; None where it goes up whole."""
        return multipart.part_size_of(size, self._part_size) if size > self._multipart_above else None

    def create(self, name: str, spool: Spool) -> bool:
        """Create `name` if it is absent; whether this call did. Never raises for a race that was lost."""
        return self._place(name, spool, {"IfNoneMatch": "*"}, lambda: reading.head(self._wire, name) is None)

    def replace(self, name: str, spool: Spool, etag: str) -> bool:
        """Put bytes in the place of those that `etag` names; whether they stood."""

        def stands() -> bool:
            standing = reading.head(self._wire, name)
            return standing is not None and stats.etag_in(standing.validator) == etag

        return self._place(name, spool, {"IfMatch": etag}, stands)

    def _place(self, name: str, spool: Spool, condition: dict[str, str], holds: Callable[[], bool]) -> bool:
        """Put under a condition, which is looked at first where the server does not; and read back what it trusts not.

        Whose bytes stand then is told by a number that the put carries: wrong ones under our own are damage, right ones
        under another's are a race that was lost.
        """
        creating = "IfNoneMatch" in condition
        conditional = self._conditional(spool, creating=creating)
        trusted = self._can.verified_puts and (conditional or spool.size > self._multipart_above)
        for _ in range(_PUTS):
            if not conditional and not holds():
                return False
            nonce = secrets.token_hex(8)
            if not self._put(name, spool, condition if conditional else {}, nonce, creating=creating):
                return False
            if trusted:
                return True
            ours, found_nonce, validator = self._read_back(name, spool)
            if ours:
                return True
            if found_nonce not in ("", nonce):
                return conditional  # another's: it came after ours, which a condition let stand
            if found_nonce == "" and not conditional:
                return False  # the server keeps no such number; bytes of a race that was lost are likelier than damage
            self._remove_damaged(name, validator)
        raise StorageIOError(
            f"{name} in {self._wire.where} was put {_PUTS} times, and read back with other bytes each time: the "
            "server, or something between, changes them; do not use it"
        )

    def _remove_damaged(self, name: str, validator: str) -> None:
        etag = stats.etag_in(validator) if self._can.delete_if_match else None
        condition = {"IfMatch": etag} if etag else {}
        key = self._wire.key(name)
        with contextlib.suppress(CasError):
            self._wire.call(
                f"remove {name}",
                lambda _: self._wire.client.delete_object(
                    **self._wire.bucket, **self._wire.owner, **condition, Key=key
                ),
            )

    def _conditional(self, spool: Spool, *, creating: bool) -> bool:
        if spool.size > self._multipart_above:
            return self._can.complete_if_absent
        return self._can.create_if_absent if creating else self._can.replace_if_match

    def _put(self, name: str, spool: Spool, condition: dict[str, str], nonce: str, *, creating: bool) -> bool:
        """Put; False where the condition does not hold. A retry that finds its own put has won."""
        if spool.size > self._multipart_above:

            def ours() -> bool:
                return self._is_own(name, spool, nonce, reading.nonce(self._wire, name))

            size = self._part_size
            return multipart.upload(self._wire, name, spool, condition, size, nonce, ours, creating=creating)
        fast = self._can.verified_fast_puts and spool.whole() is not None

        def call(attempt: Attempt) -> bool:
            engine = self._wire.engine(attempt) if fast else self._wire.boto3
            if engine.put(name, spool, condition, nonce):
                return True
            # Lost to itself, where the answer to an earlier try was lost, or the network sent this one twice.
            found = reading.nonce(self._wire, name)
            if self._is_own(name, spool, nonce, found):
                return True
            if "IfMatch" in condition:
                standing = reading.head(self._wire, name)
                undecided = standing is not None and stats.etag_in(standing.validator) == condition["IfMatch"]
            else:
                undecided = found is None
            if undecided:
                raise failures.BrokenAnswerError  # another's request was under way, and changed nothing after all
            return False

        return self._wire.call(f"put {name}", call)

    def _is_own(self, name: str, spool: Spool, nonce: str, found: str | None) -> bool:
        """Whether what stands was put by this call: by its number or, where the server keeps none, by its bytes."""
        return found == nonce or (found == "" and self._read_back(name, spool)[0])

    def _read_back(self, name: str, spool: Spool) -> tuple[bool, str, str]:
        """Whether the bytes stand there, the number that their put carried, and their validator."""
        try:
            with reading.S3Reader(self._wire, name, 0, lambda _: None) as reader:
                ours = reader.stat.size == spool.size
                state = hashlib.sha256()
                while ours and (chunk := reader.read(_CHUNK)):
                    state.update(chunk)
        except NotFoundError:
            return False, "", ""
        return ours and state.digest() == spool.sha256, reader.metadata.get(NONCE, ""), reader.stat.validator


def overwrite(wire: Wire, name: str, data: bytes) -> None:
    """Put a small object over whatever stands."""
    wire.call(
        f"put {name}",
        lambda _: wire.client.put_object(
            **wire.bucket,
            **wire.owner,
            **wire.stored,
            Key=wire.key(name),
            Body=data,
            ChecksumAlgorithm="SHA256",
            ChecksumSHA256=stats.checksum_of(hashlib.sha256(data).digest()),
        ),
    )
