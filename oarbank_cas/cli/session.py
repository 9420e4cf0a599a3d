"""One run of the command line: its store, its way of printing, and the order in which both are let go."""

from __future__ import annotations

import getpass
import io
import json
import os
import select
import socket
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, BinaryIO

import click

from oarbank_cas import settings
from oarbank_cas.errors import CasError, InvalidInputError, PermissionDeniedError

if TYPE_CHECKING:
    from oarbank_cas.backends.s3.options import S3Options
    from oarbank_cas.cache.cache import Cache
    from oarbank_cas.cli.bar import Bar
    from oarbank_cas.store import Store


NAME = "oarbank-cas"


def shown(text: str) -> str:
    """A text from outside for people: on one line, what could steer a terminal or is no character escaped."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "backslashreplace").decode() for c in text)


def complain(message: str) -> None:
    """Say on stderr what went wrong."""
    click.echo(f"{NAME}: {shown(message)}".encode("utf-8", "backslashreplace"), err=True)


def error_document(message: str, kind: str, exit_code: int) -> str:
    """What went wrong, as JSON."""
    return json.dumps({"error": message, "kind": kind, "exit_code": exit_code})


@contextmanager
def _told(*, quiet: bool) -> Iterator[None]:
    """Tell people of what the cache logs, in the way of this command line."""
    import logging

    class Teller(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if not quiet:
                complain(record.getMessage())

    logger = logging.getLogger("oarbank_cas.cache")
    teller = Teller(logging.WARNING)
    logger.addHandler(teller)
    try:
        yield
    finally:
        logger.removeHandler(teller)


class Session:
    """What the global options said.

    Args:
        store: `--store`.
        config: `--config`.
        as_json: `--json`.
        verbosity: `-v` counts up, `-q` is -1.
        endpoint_url: `--endpoint-url`.
        cache: `--cache`.
        cache_bytes: `--cache-bytes`.
    """

    def __init__(
        self,
        store: str | None,
        config: str | None,
        as_json: bool,
        verbosity: int,
        endpoint_url: str | None = None,
        *,
        cache: str | None = None,
        cache_bytes: int | None = None,
    ) -> None:
        self._store_option = store
        self._config = config
        self._endpoint_url = endpoint_url
        self._cache = cache
        self._cache_bytes = cache_bytes
        self.as_json = as_json
        self.verbosity = verbosity
        self._stack = ExitStack()

    @property
    def url(self) -> str:
        """The store's URL."""
        return settings.store_url(self._store_option, self._config)

    def s3_for(self, url: str) -> S3Options | None:
        """Options of a bucket, where a URL names one."""
        return settings.s3_options(self._endpoint_url, self._config) if url[:5].lower() == "s3://" else None

    def store(self, *, read_only: bool = False) -> Store:
        """Open the store; it is closed when the command ends."""
        from oarbank_cas.store import Store

        url = self.url
        cache, cache_bytes = self._named_cache()
        if cache is not None:
            self._stack.enter_context(_told(quiet=self.verbosity < 0))
        return self._stack.enter_context(
            Store.open(url, read_only=read_only, s3=self.s3_for(url), cache=cache, cache_bytes=cache_bytes)
        )

    def cache(self) -> Cache | None:
        """This machine's cache, where one is named; it is closed when the command ends."""
        path, budget = self._named_cache()
        if path is None:
            return None
        from oarbank_cas.cache.cache import DEFAULT_BYTES, Cache

        found = Cache(path, DEFAULT_BYTES if budget is None else budget)
        self._stack.callback(found.close)
        return found

    def _named_cache(self) -> tuple[str | None, int | None]:
        try:
            return settings.cache(self._cache, self._cache_bytes, self._config)
        except InvalidInputError as error:
            # Naming the store is the way around a file that cannot be read, if nobody named that.
            if self._config or self._cache or self._cache_bytes is not None or not self._store_option:
                raise
            self.note(f"no cache is used: {error}")
            return None, None

    def close(self) -> None:
        """Close what was opened."""
        self._stack.close()

    # -- printing

    def line(self, text: str) -> None:
        """Print one line for people, in UTF-8 whatever the locale says."""
        click.echo(shown(text).encode("utf-8", "backslashreplace"))

    def document(self, document: Mapping[str, Any]) -> None:
        """Print one JSON document, on one line."""
        click.echo(json.dumps(document))

    def documents(self, name: str, items: Iterable[Mapping[str, Any]]) -> int:
        """Print one JSON document with a list of any length, as it comes; the exit code.

        An error on the way ends the list, and stands behind it: what was printed stays one document.
        """
        click.echo(f'{{"{name}": [', nl=False)
        try:
            for number, item in enumerate(items):
                click.echo(("," if number else "") + "\n" + json.dumps(item), nl=False)
        except CasError as error:
            click.echo("\n], " + error_document(str(error), type(error).__name__, error.exit_code)[1:])
            complain(str(error))
            return error.exit_code
        click.echo("\n]}")
        return 0

    def note(self, text: str) -> None:
        """Tell a person something, on stderr; not with `-q`."""
        if self.verbosity >= 0:
            click.echo(shown(text).encode("utf-8", "backslashreplace"), err=True)

    @contextmanager
    def progress(self, what: str) -> Iterator[Bar | None]:
        """A line on a terminal that counts files and bytes; None where nobody watches."""
        if self.as_json or self.verbosity < 0 or not sys.stderr.isatty():
            yield None
            return
        from oarbank_cas.cli.bar import Bar

        with Bar(what) as bar:
            yield bar


pass_session = click.make_pass_decorator(Session)
"""Gives a command the `Session` as its first argument."""


def _json_too(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    del param
    session = ctx.find_object(Session)
    if value and session is not None:
        session.as_json = True


json_option = click.option(
    "--json", "json_too", is_flag=True, expose_value=False, callback=_json_too, help="The same as before the command."
)
"""Lets a command take `--json` too, as it may stand before the command."""


def whoami() -> str:
    """`user@machine`, for entries and tombstones where nobody said who."""
    try:
        user = getpass.getuser()
    except (OSError, KeyError):  # no such user in this container
        user = str(os.getuid()) if hasattr(os, "getuid") else "unknown"
    return f"{user}@{socket.gethostname()}"


def read_input(path: str, max_bytes: int) -> bytes:
    """The bytes of a file, or of stdin for `-`; at most `max_bytes`.

    Raises:
        InvalidInputError: it cannot be read, or has more.
        PermissionDeniedError: it may not be read.
    """
    if path != "-":
        try:
            with open(path, "rb") as file:
                data = file.read(max_bytes + 1)
        except PermissionError as error:
            raise PermissionDeniedError(f"{path} cannot be read: {error.strerror}") from error
        except (OSError, ValueError) as error:
            raise InvalidInputError(f"cannot be read: {getattr(error, 'strerror', None) or error}", path) from error
    else:
        data = open_stdin().read(max_bytes + 1)
    if len(data) > max_bytes:
        raise InvalidInputError(f"has more than {max_bytes} bytes", "stdin" if path == "-" else path)
    return data


class _Patient(io.RawIOBase):
    """A descriptor that is waited for, also where another program has made it non-blocking."""

    def __init__(self, fd: int) -> None:
        super().__init__()
        self._fd = fd

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]
        while True:
            try:
                data = os.read(self._fd, len(buffer))
            except BlockingIOError:
                select.select([self._fd], [], [])
            else:
                buffer[: len(data)] = data
                return len(data)


def open_stdin() -> BinaryIO:
    """The bytes of stdin; their end is the end of the input, never a pause in it.

    Raises:
        InvalidInputError: stdin is closed.
    """
    if not sys.stdin.readable():
        raise InvalidInputError("is closed", "stdin")
    try:
        fd = sys.stdin.fileno()
    except io.UnsupportedOperation:  # whoever embeds the command line has put a stream of its own there
        return sys.stdin.buffer
    return io.BufferedReader(_Patient(fd), 2**20)
