"""How far a transfer has come: told to plain functions, and to callbacks as fsspec has them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Protocol, TypeAlias


class Callback(Protocol):
    """What is told first how much there is, then how much more is done: `fsspec.callbacks.Callback` and its kin."""

    def set_size(self, size: int) -> None:
        """All bytes that are to come."""

    def relative_update(self, inc: int = 1) -> None:
        """So many more are done."""


Step: TypeAlias = Callable[[int], None]
"""Called with the bytes of each file that is done, from several threads."""

Progress: TypeAlias = Step | Callback
"""Who is told. A `Callback` is told the size first, and is called by one thread at a time."""


def steps(progress: Progress | None, total: Callable[[], int]) -> Step | None:
    """What to call with the bytes of each file that is done.

    Args:
        progress: who is told; None for nobody.
        total: gives all bytes that are to come; only called where that is asked for.
    """
    if progress is None:
        return None
    tell = getattr(progress, "relative_update", None)
    if tell is None:
        assert callable(progress)
        return progress
    progress.set_size(total())  # type: ignore[union-attr]
    lock = threading.Lock()

    def step(size: int) -> None:
        with lock:
            tell(size)

    return step
