"""The command that asks whether jobs were already done."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from oarbank_cas.cli.session import Session, complain, open_stdin, pass_session

if TYPE_CHECKING:
    from oarbank_cas.lookups import Lookup

_MAX_LINE = 1024
"""Bytes of a line of stdin that are read at once: far more than a key has."""


def answer_document(answer: Lookup) -> dict[str, Any]:
    """A lookup's answer as JSON."""
    return {
        "job_key": answer.job_key,
        "class": answer.result_class,
        "status": answer.status,
        "reason": answer.reason,
        "detail": answer.detail,
        "datasets": answer.datasets,
        "missing": list(answer.missing),
        "envelope": answer.envelope.decode() if answer.envelope is not None else None,
    }


@click.command()
@click.argument("keys", nargs=-1, metavar="KEY... | -")
@click.option("--class", "result_class", default="any", show_default=True, help="The result class to look in.")
@click.option("--no-complete", is_flag=True, help="Do not look whether the result's files are there.")
@pass_session
def lookup(session: Session, keys: tuple[str, ...], result_class: str, no_complete: bool) -> int:
    """Look up results by job key.

    One key: a hit prints the envelope, byte for byte; a miss prints the reason on stderr and ends with 1. Several keys,
    or `-` for keys on stdin, one a line: a line of JSON each; 0 only if all are hits, 69 if a key could not be looked
    up.

    \b
    Examples:
      oarbank-cas lookup $KEY > result.json
      oarbank-cas lookup --class linux - < keys.txt
    """
    if not keys:
        raise click.UsageError("name a job key, several, or - for stdin")
    store = session.store()  # a hit is noted where that is allowed
    if len(keys) == 1 and keys[0] != "-":
        answer = store.lookup(keys[0], result_class, complete=not no_complete)
        if session.as_json:
            session.document(answer_document(answer))
        elif answer.envelope is not None:
            sys.stdout.buffer.write(answer.envelope)
        else:
            session.note(f"miss ({answer.reason}): {answer.detail}")
        return 0 if answer.hit else 1
    statuses = set()
    for answer in store.lookup_many(_keys(keys), result_class, complete=not no_complete):
        statuses.add(answer.status)
        click.echo(json.dumps(answer_document(answer)))
        if answer.error is not None:
            complain(str(answer.error))
    return 69 if "error" in statuses else 1 if "miss" in statuses else 0


def _keys(keys: tuple[str, ...]) -> Iterator[str]:
    for key in keys:
        if key == "-":
            yield from _lines()
        else:
            yield key


def _lines() -> Iterator[str]:
    stdin = open_stdin()
    while line := stdin.readline(_MAX_LINE):
        key = line.strip().decode("ascii", "backslashreplace")
        if key:
            yield key
