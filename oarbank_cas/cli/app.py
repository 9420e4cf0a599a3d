"""The main command: its global options, its families of commands, and how errors end a run."""

from __future__ import annotations

import importlib
import json
import os
import sys
from typing import NoReturn

import click

from oarbank_cas import __version__
from oarbank_cas.cli.session import Session
from oarbank_cas.errors import CasError

NAME = "oarbank-cas"

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
    "invalidate": "ending",
    "stage": "mounts",
    "fetch": "mounts",
    "schema": "stores",
}
"""Command to the module of this package that has it, under the same name; in the order in which help lists them."""

_INTERRUPTED = 130
_PIPE_CLOSED = 141
_IO_ERROR = 74


class _Commands(click.Group):
    """A group whose commands are imported when they are named."""

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
        return command


@click.group(
    cls=_Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Exit codes: 0 yes or done; 1 no (a miss, absent); 2 usage; 65 invalid or corrupt data; 69 no store, or out "
    "of reach; 73 cannot create; 74 I/O error; 75 try again later; 77 permission.",
)
@click.option(
    "--store",
    metavar="URL",
    help="The store: a directory. Else OARBANK_CAS_STORE, a configuration file, ./.oarbank-cas.",
)
@click.option("--config", metavar="FILE", help="Read this configuration file, not ./oarbank-cas.toml or the user's.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON on stdout, and nothing else there.")
@click.option("-v", "--verbose", count=True, help="Say more, on stderr.")
@click.option("-q", "--quiet", is_flag=True, help="Say nothing but errors, on stderr.")
@click.version_option(__version__, prog_name=NAME)
@click.pass_context
def cli(ctx: click.Context, store: str | None, config: str | None, as_json: bool, verbose: int, quiet: bool) -> None:
    """Keep job results and their files by content, and answer whether a job was already done.

    \b
    Examples:
      oarbank-cas --store /data/cas init
      oarbank-cas --store /data/cas publish --job-key $KEY --workdir work
      oarbank-cas --store /data/cas lookup $KEY
    """
    session = Session(store, config, as_json, -1 if quiet else verbose)
    ctx.obj = session
    ctx.call_on_close(session.close)


def main() -> NoReturn:
    """Run the command line and exit."""
    try:
        code = cli.main(prog_name=NAME, standalone_mode=False)
        sys.stdout.flush()
    except CasError as error:
        sys.exit(_fail(error))
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        click.echo(f"{NAME}: interrupted", err=True)
        sys.exit(_INTERRUPTED)
    except BrokenPipeError:
        # Nobody reads on; the interpreter's own flush at exit must not complain either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(_PIPE_CLOSED)
    except OSError as error:
        click.echo(f"{NAME}: {error.filename or 'output'}: {error.strerror or error}", err=True)
        sys.exit(_IO_ERROR)
    sys.exit(code if isinstance(code, int) else 0)


def _fail(error: CasError) -> int:
    click.echo(f"{NAME}: {error}", err=True)
    if "--json" in sys.argv[1:]:
        click.echo(json.dumps({"error": str(error), "kind": type(error).__name__, "exit_code": error.exit_code}))
    return error.exit_code
