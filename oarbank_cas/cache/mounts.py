"""Records of what was placed where, kept in the cache, out of the jobs' reach: what they changed shows against them."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import random
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, TypeAlias

from oarbank_cas.cache import folder as places
from oarbank_cas.errors import CacheError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from oarbank_cas.cache.folder import CacheFolder

Placed: TypeAlias = tuple[str, str, int, str, bool]
"""A file as it was placed: path in the mount, digest, size, how it looked (`look_of`), whether it is a hard link."""

_MAX_BYTES = 512 * 2**20
_MAX_HEADER = 64 * 1024
_LOOKED_AFTER = 32
"""Records that are looked after whenever one is written: so those whose mounts are gone never become many."""


@dataclass(frozen=True, slots=True)
class MountRecord:
    """What was placed at one mount.

    Attributes:
        workdir: the work directory's real path.
        mount: the mount below it.
        folder: which directory it was (device and inode), so that another in its place is told from it.
        name: the input's name, or None.
        dataset: the dataset's id, as the spec gives it.
        job_key: the job's key, as the spec gives it.
        files: what was placed.
    """

    workdir: str
    mount: str
    folder: str
    name: str | None
    dataset: str
    job_key: str
    files: list[Placed]

    @property
    def stands(self) -> bool:
        """Whether the mount is still there."""
        try:
            st = os.lstat(os.path.join(self.workdir, self.mount))
        except OSError:
            return False
        return folder_look(st) == self.folder


def look_of(st: os.stat_result) -> str:
    """What a placed file looks like from outside: any change of its bytes, but for a set-back clock, changes this."""
    return f"{st.st_ino:x}-{st.st_size:x}-{st.st_mtime_ns:x}-{st.st_ctime_ns:x}"


def inode_of(look: str) -> str:
    """The inode in what a file looked like."""
    return look.partition("-")[0]


def folder_look(st: os.stat_result) -> str:
    """What tells a directory from another in its place."""
    return f"{st.st_dev:x}-{st.st_ino:x}"


class MountRecords:
    """The mount records of one cache.

    Args:
        folder: the cache's directory.

    Raises:
        CacheError: from everything here, where the cache cannot be used.
    """

    def __init__(self, folder: CacheFolder) -> None:
        self._folder = folder

    def _path(self, workdir: str, mount: str) -> str:
        """One file a mount; those of one work directory have names that begin alike."""
        below = hashlib.sha256(os.fsencode(mount)).hexdigest()[:16]
        return self._folder.path(places.MOUNTS, f"{_prefix(workdir)}{below}.json")

    def write(self, record: MountRecord) -> None:
        """Keep a record, in the place of an older one of the same mount; some of those whose mounts are gone go."""
        try:
            self._folder.write_new(self._path(record.workdir, record.mount), _encoded(record))
            names = os.listdir(self._folder.path(places.MOUNTS))
        except OSError as error:
            self._folder.raise_for(error)
        for name in random.sample(names, min(len(names), _LOOKED_AFTER)):
            self._look_after(self._folder.path(places.MOUNTS, name))

    def _look_after(self, path: str) -> None:
        with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
            with open(path, "rb") as file:
                header = json.loads(file.readline(_MAX_HEADER))
            if not MountRecord(**header, files=[]).stands:
                os.unlink(path)

    def remove(self, record: MountRecord) -> None:
        """Forget a mount."""
        try:
            os.unlink(self._path(record.workdir, record.mount))
        except FileNotFoundError:
            pass
        except OSError as error:
            self._folder.raise_for(error)

    def of(self, workdir: str) -> list[MountRecord]:
        """The mounts of a work directory, given by its real path, that still stand."""
        return [record for record in self._read(_prefix(workdir)) if record.workdir == workdir and record.stands]

    def all(self) -> Iterator[MountRecord]:
        """All mounts that still stand; records of others are removed."""
        for record in self._read(""):
            if record.stands:
                yield record
            else:
                with contextlib.suppress(CacheError):
                    self.remove(record)

    def _read(self, prefix: str) -> Iterator[MountRecord]:
        try:
            names = sorted(os.listdir(self._folder.path(places.MOUNTS)))
        except FileNotFoundError:
            return
        except OSError as error:
            self._folder.raise_for(error)
        for name in names:
            if name.startswith(prefix) and name.endswith(".json"):
                record = _decoded(self._folder.path(places.MOUNTS, name))
                if record is not None:
                    yield record


def _prefix(workdir: str) -> str:
    return hashlib.sha256(os.fsencode(workdir)).hexdigest()[:24] + "-"


def _encoded(record: MountRecord) -> bytes:
    # Two lines, so that what the record is about can be read alone. Not by `asdict`, which copies every row thrice.
    header = {field.name: getattr(record, field.name) for field in fields(record) if field.name != "files"}
    return f"{json.dumps(header)}\n{json.dumps(record.files)}\n".encode()


def _decoded(path: str) -> MountRecord | None:
    """A record; None where it is none, or gone: then the files are hashed."""
    try:
        with open(path, "rb") as file:
            header = json.loads(file.readline(_MAX_HEADER))
            files = json.loads(file.read(_MAX_BYTES))
        return MountRecord(**header, files=[_placed(*row) for row in files])
    except (OSError, ValueError, TypeError, KeyError):
        return None


def _placed(path: str, digest: str, size: int, look: str, linked: bool) -> Placed:
    return path, digest, size, look, linked
