"""Copying between stores: only what is missing, every byte checked on its way, roots last.

An entry is recorded anew at the target, under the target's own hold and time (rules 2 and 3 of docs/gc.md): its
envelope's bytes and its header's fields are kept. What stands at the target stays. Killed anywhere, the same copy goes
on where it ended: blobs that came are there, and an entry or a pin comes only after everything that it needs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from oarbank_cas.contracts.keys import check_class
from oarbank_cas.copying.copier import Copier, Progress, key_of
from oarbank_cas.copying.report import Options, Report
from oarbank_cas.errors import InvalidInputError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from oarbank_cas.rooms import Rooms

__all__ = ["Copier", "Options", "Report", "copy", "key_of"]


def copy(
    source: Rooms,
    target: Rooms,
    wanted: Sequence[str] | None,
    options: Options | None = None,
    progress: Progress | None = None,
) -> Report:
    """Copy from one store to another.

    Args:
        source: where it is.
        target: where it is to be.
        wanted: job keys, datasets `art:<digest>`, and blobs (`blob:<digest>`, or a digest that is no recorded key);
            None for everything: blobs, entries and pins.
        options: how.
        progress: for people who wait.

    Raises:
        InvalidInputError: a name of what is wanted is malformed, or both are one store.
        UnavailableError: a store is out of reach.
    """
    asked = options or Options()
    check_class(asked.result_class)
    if source.backend.where == target.backend.where:
        raise InvalidInputError("is named as both stores", source.backend.where)
    copier = Copier(source, target, asked, progress)
    if wanted is None:
        copier.everything()
    else:
        for name, do in [(name, copier.named(name)) for name in wanted]:
            copier.guarded(name, do)
    return copier.report
