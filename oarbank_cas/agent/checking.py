"""The end of a job: which of its inputs it changed, and cached blobs that it spoilt by that.

Where the cache has a record of how each file looked when it was placed, one that still looks so is as it was. All
others are hashed. Whatever the job did is found; only its own copy is affected, or, with hard links, the cached blob,
which is dropped then and brought anew by the next who wants it.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
from collections import defaultdict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from oarbank_cas.agent.workdir import Folder
from oarbank_cas.cache.mounts import MountRecord, MountRecords, folder_look, inode_of, look_of
from oarbank_cas.errors import CasError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from oarbank_cas.cache.mounts import Placed
    from oarbank_cas.cache.reads import CachedBlobs
    from oarbank_cas.contracts.manifest import FileRef

_SAME = "same"


@dataclass(frozen=True, slots=True)
class ChangedInput:
    """An input that is not what was placed.

    Attributes:
        path: the file below the work directory, `/`-separated.
        digest: what was placed there.
        what: `changed`, `missing`, `unreadable`, or `replaced` by something that is no file.
        name: the input's name; None for one of the spec's own datasets.
        dataset: the dataset that it belongs to.
        workdir: the work directory.
        job_key: the key of the job that did it, where it is known.
        spoilt_cache: the cached blob was spoilt by that, and is dropped.
        also_mounted: other mounts that share the spoilt file, as paths: their jobs have seen it, or did it.
    """

    path: str
    digest: str
    what: str
    name: str | None
    dataset: str
    workdir: str
    job_key: str | None
    spoilt_cache: bool = False
    also_mounted: tuple[str, ...] = ()


class Checker:
    """Checks the mounts of work directories.

    Args:
        blobs: the blobs of a store with a cache, or None: then every file is hashed.
    """

    def __init__(self, blobs: CachedBlobs | None) -> None:
        self._blobs = blobs
        self._records = MountRecords(blobs.cache.folder) if blobs is not None else None

    def recorded(self, workdir: str | os.PathLike[str]) -> list[MountRecord]:
        """What is recorded to have been placed in a work directory, and still stands."""
        found: list[MountRecord] = []
        if self._blobs is not None and self._records is not None and not self._blobs.resting:
            with self._blobs.sparing():
                found = self._records.of(os.path.realpath(workdir))
        return found

    def check(
        self, workdir: str | os.PathLike[str], record: MountRecord, files: Sequence[FileRef] | None = None
    ) -> list[ChangedInput]:
        """What has become of the files of one mount.

        Args:
            workdir: the work directory.
            record: what was placed there. Where it names no files, all are hashed.
            files: what is to stand there; what the record says, where None.
        """
        rows = {row[0]: row for row in record.files}
        wanted = [(f.path, f.digest, f.size) for f in files] if files is not None else [row[:3] for row in record.files]
        by_folder: dict[str, list[tuple[str, str, int]]] = defaultdict(list)
        for item in wanted:
            by_folder[item[0].rpartition("/")[0]].append(item)
        changed: list[ChangedInput] = []
        with Folder(workdir) as root:
            for below, group in by_folder.items():
                with _folder(root, f"{record.mount}/{below}".rstrip("/")) as folder:
                    for path, digest, size in group:
                        row = rows.get(path)
                        row = row if row is not None and row[1] == digest else None
                        what = _became(folder, path.rpartition("/")[2], digest, size, row)
                        if what is not None:
                            changed += self._reported(record, path, digest, what, row)
        return changed

    def _reported(
        self, record: MountRecord, path: str, digest: str, what: str, row: Placed | None
    ) -> list[ChangedInput]:
        spoilt = row is not None and row[4] and self._spoilt(digest)
        if what == _SAME:
            return []
        return [
            ChangedInput(
                f"{record.mount}/{path}",
                digest,
                what,
                record.name,
                record.dataset,
                record.workdir,
                record.job_key or None,
                spoilt,
                self._also_mounted(record, row) if spoilt and row is not None else (),
            )
        ]

    def _spoilt(self, digest: str) -> bool:
        """Look after the cached blob that a file was linked to; whether it was wrong, and was dropped."""
        assert self._blobs is not None
        with self._blobs.sparing():
            if self._blobs.cache.rows([digest]):
                return not self._blobs.cache.examine(digest)
        return False

    def _also_mounted(self, record: MountRecord, row: Placed) -> tuple[str, ...]:
        """The paths of other mounts' links to the file that was linked as `row` says."""
        assert self._blobs is not None
        assert self._records is not None
        found: list[str] = []
        with self._blobs.sparing():
            for other in self._records.all():
                if (other.workdir, other.mount) != (record.workdir, record.mount):
                    found += [
                        os.path.join(other.workdir, other.mount, theirs[0])
                        for theirs in other.files
                        if theirs[4] and theirs[1] == row[1] and inode_of(theirs[3]) == inode_of(row[3])
                    ]
        return tuple(found)

    def forget(self, record: MountRecord) -> None:
        """Forget a mount that nobody uses any more."""
        if self._blobs is not None and self._records is not None and not self._blobs.resting:
            with self._blobs.sparing():
                self._records.remove(record)

    def remember(self, record: MountRecord, placed: list[Placed]) -> None:
        """Keep what was just placed. Without it the files are hashed when they are checked."""
        if self._blobs is None or self._records is None or self._blobs.resting or not placed:
            return
        try:
            look = folder_look(os.lstat(os.path.join(record.workdir, record.mount)))
        except OSError:
            return
        with self._blobs.sparing():
            self._records.write(replace(record, folder=look, files=placed))


@contextlib.contextmanager
def _folder(root: Folder, path: str) -> Iterator[Folder | None]:
    """A folder below another; None where it is gone, or something else stands in its way."""
    try:
        folder = root.walk(path.split("/"))
    except CasError:
        yield None
        return
    with folder:
        yield folder


def _became(folder: Folder | None, name: str, digest: str, size: int, row: Placed | None) -> str | None:
    """None where a file surely is what was placed; `_SAME` where it was hashed, and is; else what it has become."""
    found = folder.lstat(name) if folder is not None else None
    if folder is None or found is None:
        return "missing"
    if not stat.S_ISREG(found.st_mode):
        return "replaced"
    if row is not None and row[3] == look_of(found):
        return None
    if found.st_size != size:
        return "changed"
    try:
        with os.fdopen(folder.open_file(name), "rb", buffering=0) as opened:
            return _SAME if hashlib.file_digest(opened, "sha256").hexdigest() == digest else "changed"
    except (CasError, OSError):
        return "unreadable"
