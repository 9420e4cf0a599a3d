"""One attempt as its readers see it: its artifacts by name, wherever their bytes are kept."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Protocol

from oarbank_cas.attempt.artifacts import Content, Listed, all_or_results, listing, read_content
from oarbank_cas.attempt.declarations import Declaration
from oarbank_cas.attempt.files import require_directory
from oarbank_cas.attempt.journal import follow, page
from oarbank_cas.attempt.records import Record
from oarbank_cas.attempt.scan import Page
from oarbank_cas.errors import InvalidInputError, NotFoundError

__all__ = ["AttemptView", "DirectoryAttempt", "Listed"]


class AttemptView(Protocol):
    """What list, cat and page need of an attempt."""

    def listing(self) -> tuple[list[Listed], list[str]]:
        """Every artifact with its size, and the problems found."""
        ...

    def content(self, name: str) -> Content:
        """The content of an artifact, at most `INLINE_CAP` bytes."""
        ...

    def page(self, name: str, offset: int, limit: int) -> Page:
        """Records `offset` to `offset + limit` of a records artifact."""
        ...

    def follow(self, name: str, offset: int) -> Iterator[Record]:
        """The records of a records artifact from `offset` on, and those still to come."""
        ...


class DirectoryAttempt:
    """An attempt in its directory, running or ended.

    Args:
        directory: the attempt directory.

    Raises:
        NotFoundError: there is no such directory.
        InvalidInputError: it is no directory.
    """

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self.directory: Path = require_directory(directory)

    def listing(self) -> tuple[list[Listed], list[str]]:
        """Every artifact with its size now (None without a file), and the problems found."""
        return listing(self.directory)

    def find(self, name: str) -> Declaration:
        """The artifact of a name.

        Raises:
            NotFoundError: it is not declared.
            CasError: the declarations cannot be trusted, and it is not `results`.
        """
        artifacts, error = all_or_results(self.directory)
        for artifact in artifacts:
            if artifact.name == name:
                return artifact
        if error is not None:
            raise error
        raise not_declared(os.fspath(self.directory), name, [artifact.name for artifact in artifacts])

    def content(self, name: str) -> Content:
        """The content of an artifact, at most `INLINE_CAP` bytes.

        Raises:
            NotFoundError: it is not declared, or its file is not there yet.
            CasError: as `attempt.content`.
        """
        artifact = self.find(name)
        return read_content(self.directory / artifact.file, artifact.format)

    def page(self, name: str, offset: int, limit: int) -> Page:
        """Records `offset` to `offset + limit` of a records artifact.

        Raises:
            NotFoundError: it is not declared, or its file is not there yet.
            InvalidInputError: it is no records artifact, or offset or limit is out of range.
            CasError: as `attempt.page`.
        """
        return page(self._journal(name), offset, limit)

    def follow(self, name: str, offset: int) -> Iterator[Record]:
        """The records of a records artifact from `offset` on, waiting for more and for the file itself.

        Raises:
            NotFoundError: it is not declared.
            InvalidInputError: it is no records artifact.
            CasError: as `attempt.follow`.
        """
        return follow(self._journal(name), offset)

    def _journal(self, name: str) -> Path:
        artifact = self.find(name)
        if artifact.format != "records":
            raise not_a_journal(artifact)
        return self.directory / artifact.file


def not_declared(where: str, name: str, names: Collection[str]) -> NotFoundError:
    """The error for an artifact that an attempt does not have."""
    known = ", ".join(list(names)[:20]) + (", ..." if len(names) > 20 else "")
    return NotFoundError(f"{where}: no artifact {name!a} is declared; there are: {known}")


def not_a_journal(artifact: Declaration) -> InvalidInputError:
    """The error for pages of a document."""
    return InvalidInputError(f"it is a {artifact.format} artifact, which has no pages; read it with cat", artifact.name)
