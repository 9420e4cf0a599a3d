"""A cached blob's bytes on their way into a file: shared blocks, copies inside the kernel, reads and writes; links.

What a pair of file systems cannot do is found out once and remembered for as long as the process lives.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
from typing import Literal, TypeAlias, get_args

from oarbank_cas.backends import oscalls
from oarbank_cas.transfer import write_all

Placement: TypeAlias = Literal["auto", "reflink", "copy", "hardlink"]
"""How files are placed: `auto` and `reflink` share blocks, `hardlink` links, where that works; else all copy."""

PLACEMENTS: tuple[Placement, ...] = get_args(Placement)

_SMALL = 64 * 1024
_PIECE = 64 * 2**20
_CHUNK = 2**20
_NOT_HERE = frozenset({errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EPERM})
_NO_LINK_HERE = frozenset({errno.EXDEV, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP})
_NO_LINK = _NO_LINK_HERE | {errno.EMLINK, errno.EPERM, errno.EACCES}


class Carrier:
    """Brings bytes from one file to another, the cheapest way that works."""

    def __init__(self) -> None:
        self._cannot: set[tuple[str, int, int]] = set()

    def carry(self, source: int, target: int, size: int, device: int, placement: Placement = "auto") -> str:
        """Give the empty file `target` the `size` bytes of `source`, from its beginning; `reflink` or `copy`.

        Args:
            source: a descriptor.
            target: a descriptor.
            size: bytes.
            device: that of `source`.
            placement: how.

        Raises:
            OSError: reading or writing failed, or there was less to read.
        """
        if size == 0:
            return "copy"
        if placement != "copy":
            pair = ("reflink", device, os.fstat(target).st_dev)
            if pair not in self._cannot:
                if oscalls.share_blocks(source, target):
                    return "reflink"
                self._cannot.add(pair)
        if size > _SMALL:
            _copy_inside(source, target, size)
        else:
            _copy_through(source, target, 0, size)
        return "copy"

    def link(self, source: str, name: str, folder: int | None, device: int, target_device: int) -> bool:
        """Give a file another name, in the folder `folder` where that is a descriptor; False where it cannot be.

        Raises:
            OSError: for another reason than that it cannot be.
        """
        pair = ("link", device, target_device)
        if pair in self._cannot:
            return False
        try:
            os.link(source, name, dst_dir_fd=folder, follow_symlinks=False)
        except NotImplementedError:
            return False
        except OSError as error:
            if error.errno in _NO_LINK_HERE:
                self._cannot.add(pair)
            if error.errno in _NO_LINK:
                return False
            raise
        return True


def abilities(source: str, target: str) -> dict[str, bool]:
    """What works from one folder to another, tried with files of a moment: `reflink`, `hardlink`.

    Raises:
        OSError: no file can be made there.
    """
    name = f".oarbank-cas-{secrets.token_hex(8)}"
    one, two, three = os.path.join(source, name), os.path.join(target, f"{name}-r"), os.path.join(target, f"{name}-l")
    try:
        with open(one, "x+b", buffering=0) as given, open(two, "x+b", buffering=0) as taken:
            given.write(bytes(4096))
            shared = oscalls.share_blocks(given.fileno(), taken.fileno())
        try:
            os.link(one, three)
        except (OSError, NotImplementedError):
            linked = False
        else:
            linked = True
    finally:
        for path in (one, two, three):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
    return {"reflink": shared, "hardlink": linked}


def _copy_inside(source: int, target: int, size: int) -> None:
    done = 0
    if hasattr(os, "copy_file_range"):
        while done < size:
            try:
                count = os.copy_file_range(source, target, min(size - done, _PIECE), done, done)
            except OSError as error:
                if error.errno in _NOT_HERE:
                    break
                raise
            if count == 0:
                break
            done += count
    _copy_through(source, target, done, size)


def _copy_through(source: int, target: int, done: int, size: int) -> None:
    if done:
        os.lseek(target, done, os.SEEK_SET)
    os.lseek(source, done, os.SEEK_SET)
    while done < size:
        chunk = os.read(source, min(_CHUNK, size - done))
        if not chunk:
            raise OSError(errno.EIO, "the cached copy ends too soon")
        write_all(target, chunk)
        done += len(chunk)
