"""Giving new bytes their names on a disk: bytes flushed, then named, then the names flushed, once for a whole batch."""

from __future__ import annotations

import contextlib
import os
import sys
from typing import TYPE_CHECKING, TypeVar

from oarbank_cas.backends import oscalls
from oarbank_cas.backends.base import ObjectStat
from oarbank_cas.backends.local_files import object_stat
from oarbank_cas.backends.local_place import TRIES
from oarbank_cas.errors import StorageIOError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from oarbank_cas.backends.base import Namer
    from oarbank_cas.backends.local_files import LocalIncoming
    from oarbank_cas.backends.local_place import Place

_T = TypeVar("_T")


def create_all(
    place: Place,
    pieces: Sequence[tuple[str, LocalIncoming]],
    create_one: Callable[[Place, str, LocalIncoming, set[str]], _T],
    namer: Namer | None = None,
) -> list[_T]:
    """Create each name from its bytes, if it is absent; durable on return.

    Args:
        place: the store's directory.
        pieces: object names and their bytes, which are gone afterwards one way or the other.
        create_one: `create`, or `create_told` where more is to be known.
        namer: see `Backend.create_many`; with `create` only.
    """
    if not pieces:
        return []
    try:
        place.check_there()
        flush_bytes(place, [piece for _, piece in pieces])
        changed: set[str] = set()
        if namer is not None:
            _name_elsewhere(place, pieces, changed, namer)
        made = [create_one(place, name, piece, changed) for name, piece in pieces]
        place.flush_names({found for directory in changed for found in place.not_yet_durable(directory)})
    except OSError as error:
        place.raise_for(error, pieces[0][0])
    finally:
        for _, piece in pieces:
            piece.discard()
    return made


def _name_elsewhere(place: Place, pieces: Sequence[tuple[str, LocalIncoming]], changed: set[str], namer: Namer) -> None:
    """Have others give names to what other processes wrote. `create` does the rest, and tells what stands already."""
    adopted = [(piece, name) for name, piece in pieces if piece.adopted]
    for directory in {name.rpartition("/")[0] for _, name in adopted}:
        path = place.path(directory)
        changed.add(path)
        if not os.path.isdir(path):
            changed.update(place.make_parents(os.path.join(path, "-")))
    answers = namer([(piece.path, place.path(name)) for piece, name in adopted])
    for (piece, name), answer in zip(adopted, answers, strict=True):
        if answer is None and not piece.unnamed:
            # One that died may have been on its way to say so.
            piece.placed = not os.path.lexists(piece.path) and os.path.lexists(place.path(name))
        else:
            piece.placed = answer is True


def flush_bytes(place: Place, pieces: Sequence[LocalIncoming]) -> None:
    """Make the bytes of these temporaries durable."""
    for piece in pieces:
        piece.finish()
    if any(piece.unnamed for piece in pieces):
        place.flush_everything()
    else:
        place.flush_bytes([piece.path for piece in pieces])


def create(place: Place, name: str, piece: LocalIncoming, changed: set[str]) -> bool:
    """Give a temporary its name; False where that stands already.

    Args:
        place: the store's directory.
        name: the object's name.
        piece: its bytes, flushed.
        changed: gets the directories whose names are to be flushed, those of a name that stands too.
    """
    if piece.placed:
        return True
    path = place.path(name)
    changed.add(os.path.dirname(path))
    if piece.unnamed:
        if os.path.lexists(path):
            return False
        place.check_there()
        raise StorageIOError(
            f"{place.where}: a process that helped has not stored what it had written; look whether the disk is full, "
            "and run this again"
        )
    for _ in range(TRIES):
        try:
            oscalls.rename_new(piece.path, path)
        except FileNotFoundError:
            if not os.path.exists(piece.path):
                place.check_there()
                raise StorageIOError(f"{place.where}: a temporary file was removed; run this again") from None
            changed.update(place.make_parents(path))
        except FileExistsError:
            return False
        else:
            piece.placed = True
            if sys.platform == "win32":
                with contextlib.suppress(FileNotFoundError):
                    os.utime(path)
            return True
    raise StorageIOError(f"the directory of {path} cannot be made: is it a link to nowhere?")


def create_told(place: Place, name: str, piece: LocalIncoming, changed: set[str]) -> ObjectStat | None:
    """Like `create`; the new object's stat, or None where the name stands already."""
    inode = piece.inode()
    return stat_new(place, name, piece, inode) if create(place, name, piece, changed) else None


def stat_new(place: Place, name: str, piece: LocalIncoming, inode: int) -> ObjectStat:
    """What is to be known of an object that was just made from the temporary of this inode."""
    with contextlib.suppress(FileNotFoundError):
        st = os.lstat(place.path(name))
        if st.st_ino == inode:
            return object_stat(name, st)
    # Another took it away, or put its own there, since it was made.
    return ObjectStat(name, piece.size, place.own().clock(), f"gone-{inode:x}")
