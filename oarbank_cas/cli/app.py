"""The main command: its global options, its families of commands, and how errors end a run."""

from __future__ import annotations

import contextlib
import importlib
import os
import signal
import sys
import traceback
from collections.abc import Iterator
from typing import Any, NoReturn

import click

from oarbank_cas import __version__, stopping
from oarbank_cas.cli.completing import complete_paths
from oarbank_cas.cli.session import NAME, Session, complain, error_document, json_option
from oarbank_cas.cli.values import Seconds, Size
from oarbank_cas.errors import CasError, StoppedError

_HOMES = {
    "init": "stores",
    "put": "blobs",
    "get": "blobs",
    "stat": "blobs",
    "ls": "listing",
    "key": "jobs",
    "publish": "jobs",
    "record": "jobs",
    "lookup": "lookup",
    "explain": "explain",
    "invalidate": "ending",
    "stage": "mounts",
    "fetch": "mounts",
    "cache": "cache",
    "attempt": "attempt",
    "pin": "pins",
    "unpin": "pins",
    "pins": "pins",
    "gc": "gc",
    "verify": "verify",
    "stats": "stats",
    "doctor": "doctor",
    "copy": "copying",
    "purge": "purge",
    "grant": "grant",
    "schema": "stores",
}
"""Command to the module of this package that has it, under the same name; in the order in which help lists them."""

_INTERRUPTED = 130
_PIPE_CLOSED = 141
_BUG = 70
_IO_ERROR = 74
_NO_PERMISSION = 77


class _UnreadError(Exception):
    """Nobody reads stdout any more. Click would end with 1 then, which means "no" here."""


@contextlib.contextmanager
def _noticing_unread() -> Iterator[None]:
    try:
        yield
    except BrokenPipeError as error:
        raise _UnreadError from error


class _Commands(click.Group):
    """A group whose commands are imported when they are named, and each of which takes `--json` too."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        del ctx
        return list(_HOMES)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        del ctx
        home = _HOMES.get(cmd_name)
        if home is None:
            return None
        command = getattr(importlib.import_module(f"oarbank_cas.cli.{home}"), cmd_name)
        assert isinstance(command, click.Command)
        if not any(param.name == "json_too" for param in command.params):
            json_option(command)
        complete_paths(command)
        return command

    def make_context(
        self,
        info_name: str | None,
        args: list[str],
        parent: click.Context | None = None,
        **extra: Any,  # noqa: ANN401 - as in click
    ) -> click.Context:
        with _noticing_unread():
            return super().make_context(info_name, args, parent, **extra)

    def invoke(self, ctx: click.Context) -> Any:  # noqa: ANN401 - as in click
        with _noticing_unread():
            return super().invoke(ctx)


@click.group(
    cls=_Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Exit codes: 0 yes or done; 1 no (a miss, absent); 2 usage; 65 invalid or corrupt data; 69 no store, or out "
    "of reach; 70 a bug; 73 cannot create; 74 I/O error; 75 try again later; 77 permission.",
)
@click.option(
    "--store",
    metavar="URL",
    help="The store: a directory, or s3://BUCKET/PREFIX. Else OARBANK_CAS_STORE, a configuration file, ./.oarbank-cas.",
)
@click.option("--config", metavar="FILE", help="Read this configuration file, not ./oarbank-cas.toml or the user's.")
@click.option("--endpoint-url", metavar="URL", help="The S3 server of an s3:// store, where it is not AWS.")
@click.option("--cache", metavar="DIR", help="A local cache for what is read. Else OARBANK_CAS_CACHE; none by default.")
@click.option("--cache-bytes", type=Size(), metavar="SIZE", help="What the cache may hold (500M, 2T).  [default: 20G]")
@click.option(
    "--deadline-s",
    type=Seconds(),
    metavar="N",
    help="End what is not done within N seconds, with 75. Run again, uploads and large downloads go on.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON on stdout, and nothing else there.")
@click.option("-v", "--verbose", count=True, help="Say more, on stderr.")
@click.option("-q", "--quiet", is_flag=True, help="Say nothing but errors, on stderr.")
@click.version_option(__version__, prog_name=NAME)
@click.pass_context
def cli(
    ctx: click.Context,
    store: str | None,
    config: str | None,
    endpoint_url: str | None,
    cache: str | None,
    cache_bytes: int | None,
    deadline_s: float | None,
    as_json: bool,
    verbose: int,
    quiet: bool,
) -> None:
    """Keep job results and their files by content, and answer whether a job was already done.

    \b
    Examples:
      oarbank-cas --store /data/cas init
      oarbank-cas --store /data/cas publish --job-key $KEY --workdir work
      oarbank-cas --store /data/cas lookup $KEY
    """
    verbosity = -1 if quiet else verbose
    session = Session(store, config, as_json, verbosity, endpoint_url, cache=cache, cache_bytes=cache_bytes)
    ctx.obj = session
    ctx.with_resource(stopping.Stop(deadline_s))
    ctx.call_on_close(session.close)


complete_paths(cli)


def main() -> NoReturn:
    """Run the command line and exit."""
    _open_closed_streams()
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _interrupted)
    try:
        code = _run()
        sys.stdout.flush()
    except (_UnreadError, BrokenPipeError):
        code = _PIPE_CLOSED
        _forget_stdout()
    except OSError as error:
        with contextlib.suppress(OSError):
            complain(f"output: {error.strerror or error}")
        code = _IO_ERROR
        _forget_stdout()
    sys.exit(code)


def _run() -> int:
    try:
        code = cli.main(prog_name=NAME, standalone_mode=False)
    except CasError as error:
        return _failed(str(error), type(error).__name__, error.exit_code)
    except click.ClickException as error:
        error.show()
        return _failed(error.format_message(), type(error).__name__, error.exit_code, told=True)
    except stopping.Stopping as error:
        return _failed(str(error), StoppedError.__name__, StoppedError.exit_code)
    except (click.Abort, KeyboardInterrupt):
        return _failed("interrupted", "KeyboardInterrupt", _INTERRUPTED)
    except (_UnreadError, BrokenPipeError):
        raise
    except OSError as error:
        if error.filename is None:
            raise  # of stdout, most likely, where no document can be printed either
        code = _NO_PERMISSION if isinstance(error, PermissionError) else _IO_ERROR
        return _failed(f"{error.filename}: {error.strerror or error}", type(error).__name__, code)
    except Exception as error:  # noqa: BLE001 - the interpreter would end with 1, which means "no" here
        traceback.print_exc()
        return _failed(f"this is a bug, please report it: {error!r}", type(error).__name__, _BUG)
    return code if isinstance(code, int) else 0


def _interrupted(signum: int, frame: object) -> None:
    """Have requests that are under way left alone too: a server may say nothing for a minute."""
    del signum, frame
    if not stopping.interrupt():
        raise KeyboardInterrupt


def _failed(message: str, kind: str, code: int, *, told: bool = False) -> int:
    if not told:
        complain(message)
    options = sys.argv[1:]
    if "--" in options:
        options = options[: options.index("--")]
    if "--json" in options:
        click.echo(error_document(message, kind, code))
    return code


def _open_closed_streams() -> None:
    """Lead streams that the caller closed nowhere, so that no file of the store gets their numbers."""
    for name in ("stdin", "stdout", "stderr"):  # stdin too is not to be read: what is not there is not empty
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115 - open to the end


def _forget_stdout() -> None:
    """Lead stdout nowhere: the interpreter's own flush at exit must not fail again, and change the exit code."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
