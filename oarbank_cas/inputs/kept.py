"""The key inputs that a store keeps of a job."""

from __future__ import annotations

from typing import TYPE_CHECKING

from oarbank_cas.contracts.key_inputs import MAX_KEY_INPUTS, KeyInputs
from oarbank_cas.errors import CorruptError, NotFoundError

if TYPE_CHECKING:
    from oarbank_cas.blobs import Blobs


def kept(blobs: Blobs, key_hex: str, stage: str | None = None) -> KeyInputs | None:
    """The key inputs of a job, or None where the store does not have them.

    Args:
        blobs: the store's blobs.
        key_hex: the hex part of the job key, which is the digest of the document.
        stage: the stage that the answer is to name.
    """
    try:
        return KeyInputs.stored(blobs.get_bytes(key_hex, MAX_KEY_INPUTS), stage)
    except (NotFoundError, CorruptError):
        return None
