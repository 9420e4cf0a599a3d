"""What stands below a folder of a store's directory, in the order of whole names, as object stores sort them."""

from __future__ import annotations

import os
import stat as stat_bits
from typing import TYPE_CHECKING

from oarbank_cas.backends.local_files import object_stat
from oarbank_cas.errors import CorruptError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from oarbank_cas.backends.base import ObjectStat
    from oarbank_cas.backends.local_place import Place


def objects(place: Place, prefix: str, after: str) -> Iterator[ObjectStat]:
    """The objects whose names start with `prefix` and sort after `after`; see `Backend.listing`."""
    try:
        with os.scandir(place.path(prefix)) as scan:
            names = [_listed(place, prefix, found) for found in scan]
    except FileNotFoundError:
        return  # never made, or removed since its parent was listed
    except OSError as error:
        place.raise_for(error, prefix)
    for name in sorted(names):
        if name.endswith("/"):
            if name > after or after.startswith(name):
                yield from objects(place, name, after)
        elif name > after:
            try:
                st = os.lstat(place.path(name))
            except FileNotFoundError:
                continue
            except OSError as error:
                place.raise_for(error, name)
            if stat_bits.S_ISREG(st.st_mode):
                yield object_stat(name, st)


def _listed(place: Place, prefix: str, found: os.DirEntry[str]) -> str:
    if found.is_dir(follow_symlinks=False):
        return f"{prefix}{found.name}/"
    if found.is_symlink() and found.is_dir():
        # Names below it can be read: leaving them out would be a listing that comes back short.
        raise CorruptError(f"{prefix}{found.name} in {place.where} is a link to a directory; replace it by one")
    return prefix + found.name


def strays(place: Place, prefix: str, *, folders: bool) -> Iterator[tuple[str, str]]:
    """What is below `prefix` and is no object; see `Backend.strays`."""
    inner: list[str] = []
    try:
        with os.scandir(place.path(prefix)) as scan:
            for found in scan:
                if found.is_dir(follow_symlinks=False):
                    inner.append(f"{prefix}{found.name}/")
                    if folders:
                        yield f"{prefix}{found.name}", "a folder"
                elif not found.is_file(follow_symlinks=False):
                    yield f"{prefix}{found.name}", "a symbolic link" if found.is_symlink() else "no regular file"
    except (FileNotFoundError, NotADirectoryError):
        place.check_there()
        return
    except OSError as error:
        place.raise_for(error, prefix)
    for folder in inner:
        yield from strays(place, folder, folders=folders)
