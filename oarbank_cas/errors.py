"""The exception tree of the package, and the exit code that the command line ends with for each."""

from __future__ import annotations

from typing import ClassVar


class CasError(Exception):
    """Base of every error that this package raises on purpose.

    The message says what went wrong, where, and what to do next. `exit_code` is what the command line ends with (the
    numbers from 64 up follow BSD's sysexits.h).
    """

    exit_code: ClassVar[int] = 70


class NotFoundError(CasError):
    """What was asked for is not in the store: a blob, an entry, an artifact, a file."""

    exit_code = 1


class InvalidInputError(CasError):
    """Data from outside breaks a rule: a document, a path, a digest, a key.

    Args:
        why: what is wrong, as one sentence without the place.
        where: the place: a file, a JSON path such as `$.artifacts[0].name`, an option; or None.
    """

    exit_code = 65

    def __init__(self, why: str, where: str | None = None) -> None:
        super().__init__(f"{where}: {why}" if where else why)
        self.why = why
        self.where = where


class CorruptError(CasError):
    """Stored bytes are not what their name or header says.

    Args:
        message: what is damaged and what to do.
        expected: the digest that the name promises, if it is about a blob.
        actual: the digest of the bytes that were found, if they could be read whole.
    """

    exit_code = 65

    def __init__(self, message: str, *, expected: str | None = None, actual: str | None = None) -> None:
        super().__init__(message)
        self.expected = expected
        self.actual = actual


class ConflictError(CasError):
    """Something else already stands where this was to go."""

    exit_code = 73


class PermissionDeniedError(CasError):
    """The storage or the operating system refuses access."""

    exit_code = 77


class UnavailableError(CasError):
    """The store is missing or cannot be reached. Never to be read as "not there"."""

    exit_code = 69


class UnsupportedError(CasError):
    """The store, its storage or this version cannot do what was asked."""

    exit_code = 69


class StorageIOError(CasError):
    """Reading or writing failed on the way: disk full, an I/O error, a source that changed while it was read."""

    exit_code = 74


class BusyError(CasError):
    """Someone else is at it; try again later."""

    exit_code = 75


class StoppedError(CasError):
    """The work was cancelled, or its deadline passed, before it was done; raised by `Stop` at the end of its body."""

    exit_code = 75


class CacheError(CasError):
    """The local cache cannot be used. Reads that meet it go straight to the store; `cache` commands end with it."""

    exit_code = 74
