"""Which object names under `results/` are those of entries; whatever else lies there is left alone."""

from __future__ import annotations

import re

_ENTRY = re.compile(r"results/([0-9a-f]{2})/\1[0-9a-f]{62}/(?:_|[a-z][a-z0-9_]{0,63})@[a-z][a-z0-9_]*(?:-[a-z0-9_]+)?")


def is_entry_name(name: str) -> bool:
    """Whether an object name is that of an entry or tombstone."""
    return _ENTRY.fullmatch(name) is not None
