"""The command line: commands that parse, call the library and print. One module per family of commands."""

from oarbank_cas.cli.app import main

__all__ = ["main"]
