"""An artifact's files seen as folders: what stands at a path, what a folder holds. Pure: it knows the list only."""

from __future__ import annotations

from bisect import bisect_left
from operator import attrgetter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from oarbank_cas.contracts.manifest import FileRef

_path = attrgetter("path")


class FileTree:
    """The folders of an artifact, found by bisection: a list of any length is neither copied nor indexed.

    Args:
        files: the files, sorted by path, as `parse_manifest` gives them.
    """

    def __init__(self, files: Sequence[FileRef]) -> None:
        self._files = files

    def file(self, path: str) -> FileRef | None:
        """The file at a path; None where there is none."""
        index = bisect_left(self._files, path, key=_path)
        return self._files[index] if index < len(self._files) and self._files[index].path == path else None

    def has_folder(self, path: str) -> bool:
        """Whether there is a file below a path; the empty one is the artifact itself."""
        return not path or self._first(f"{path}/") < self._after(path)

    def children(self, path: str) -> Iterator[tuple[str, FileRef | None]]:
        """What a folder holds, in order: names, and the file or, for a folder, None.

        Args:
            path: the folder; empty for the artifact itself.
        """
        prefix = f"{path}/" if path else ""
        index = self._first(prefix)
        end = self._after(path) if path else len(self._files)
        while index < end:
            name, slash, _ = self._files[index].path[len(prefix) :].partition("/")
            if slash:
                yield name, None
                index = self._after(prefix + name)
            else:
                yield name, self._files[index]
                index += 1

    def _first(self, prefix: str) -> int:
        return bisect_left(self._files, prefix, key=_path)

    def _after(self, folder: str) -> int:
        return bisect_left(self._files, f"{folder}0", key=_path)  # in ASCII a 0 follows the slash
