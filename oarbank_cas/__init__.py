"""oarbank-cas: the content-addressed artifact store and result cache of the Oarbank job fleet.

The names below are the public surface. They are imported when first used, so that `import oarbank_cas` costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from oarbank_cas.agent.checking import ChangedInput
    from oarbank_cas.agent.publish import Published, Uploaded
    from oarbank_cas.agent.stage import Mounted
    from oarbank_cas.aio import AsyncStore
    from oarbank_cas.blobs import Blob, BlobReader
    from oarbank_cas.contracts.canonical import canonical_json
    from oarbank_cas.contracts.envelopes import ResultEnvelope, SpecEnvelope
    from oarbank_cas.contracts.key_inputs import KeyInputs
    from oarbank_cas.contracts.keys import job_key
    from oarbank_cas.contracts.manifest import FileRef
    from oarbank_cas.contracts.upgrades import Upgrades
    from oarbank_cas.errors import (
        BusyError,
        CacheError,
        CasError,
        ConflictError,
        CorruptError,
        InvalidInputError,
        NotFoundError,
        PermissionDeniedError,
        StoppedError,
        StorageIOError,
        UnavailableError,
        UnsupportedError,
    )
    from oarbank_cas.lookups import Lookup
    from oarbank_cas.results import Origin, Recorded
    from oarbank_cas.stopping import Stop
    from oarbank_cas.store import Store

__version__ = "0.1.0"

__all__ = [
    "AsyncStore",
    "Blob",
    "BlobReader",
    "BusyError",
    "CacheError",
    "CasError",
    "ChangedInput",
    "ConflictError",
    "CorruptError",
    "FileRef",
    "InvalidInputError",
    "KeyInputs",
    "Lookup",
    "Mounted",
    "NotFoundError",
    "Origin",
    "PermissionDeniedError",
    "Published",
    "Recorded",
    "ResultEnvelope",
    "SpecEnvelope",
    "Stop",
    "StoppedError",
    "StorageIOError",
    "Store",
    "UnavailableError",
    "UnsupportedError",
    "Upgrades",
    "Uploaded",
    "canonical_json",
    "job_key",
]

_HOMES = {
    "ChangedInput": "agent.checking",
    "Published": "agent.publish",
    "Uploaded": "agent.publish",
    "Mounted": "agent.stage",
    "AsyncStore": "aio",
    "Blob": "blobs",
    "BlobReader": "blobs",
    "canonical_json": "contracts.canonical",
    "ResultEnvelope": "contracts.envelopes",
    "SpecEnvelope": "contracts.envelopes",
    "KeyInputs": "contracts.key_inputs",
    "job_key": "contracts.keys",
    "FileRef": "contracts.manifest",
    "Upgrades": "contracts.upgrades",
    "Lookup": "lookups",
    "Origin": "results",
    "Recorded": "results",
    "Stop": "stopping",
    "Store": "store",
}


def __getattr__(name: str) -> Any:  # noqa: ANN401 - PEP 562
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES.get(name, 'errors')}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
