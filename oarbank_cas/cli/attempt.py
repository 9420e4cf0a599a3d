"""The commands on the artifacts of one attempt: declare, list, cat, page, seal."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable
from itertools import islice
from typing import Any

import click

from oarbank_cas.attempt import FORMATS, AttemptView, Declaration, DirectoryAttempt, Record, Sealed, declare, sealed
from oarbank_cas.cli.session import Session, json_option, pass_session, whoami
from oarbank_cas.cli.values import Moment
from oarbank_cas.contracts.manifest import DATASET_PREFIX
from oarbank_cas.errors import InvalidInputError, NotFoundError, UnavailableError

_DEFAULT_LIMIT = 100


@click.group()
def attempt() -> None:
    """Declare, read and seal the artifacts of a job attempt."""


def _open(session: Session, target: str) -> AttemptView:
    """The one place that decides what an attempt's argument means."""
    if os.path.isdir(target):
        return DirectoryAttempt(target)
    from oarbank_cas.pins import is_pin_name

    if not target.startswith(DATASET_PREFIX) and not is_pin_name(target):
        return DirectoryAttempt(target)  # which says what is wrong with it
    try:
        return session.store().attempt(target)
    except (NotFoundError, UnavailableError) as error:
        raise type(error)(f"there is no directory {target} here, and {error}") from error


def _print(text: str) -> None:
    # Bytes, whatever encoding the terminal claims: JSON is UTF-8.
    click.echo(text.encode("utf-8", "backslashreplace"))


def _members(declaration: Declaration) -> dict[str, Any]:
    return {
        "name": declaration.name,
        "file": declaration.file,
        "format": declaration.format,
        "task_id": declaration.task_id,
        "description": declaration.description,
    }


def _one_line(record: Record) -> str:
    """A payload's text on one line; a raw line end in valid JSON can only stand between two tokens."""
    return record.payload_json.replace("\r", " ").replace("\n", " ")


def _for_people(record: Record) -> str:
    """The same with what could steer a terminal escaped, which in JSON strings means the same."""
    line = _one_line(record)
    if line.isprintable():
        return line
    return "".join(one if one.isprintable() or one == "\t" else _escaped(one) for one in line)


def _escaped(character: str) -> str:
    units = character.encode("utf-16-be")
    return "".join(f"\\u{units[at]:02x}{units[at + 1]:02x}" for at in range(0, len(units), 2))


def _record_json(number: int, record: Record) -> str:
    # The payload goes in as text: parsed and written again, its numbers would change their spelling.
    return f'{{"offset": {number}, "schema_version": {record.schema_version}, "payload": {_one_line(record)}}}'


@attempt.command("declare")
@click.argument("directory", metavar="DIR")
@click.option("--name", required=True, help="What readers ask for.")
@click.option("--file", "file", required=True, help="The file's name in DIR.")
@click.option("--format", "artifact_format", required=True, type=click.Choice(FORMATS), help="How the file is written.")
@click.option("--task", type=int, help="The task that it belongs to.")
@click.option("--description", default="", help="One line for people.")
@json_option
@pass_session
def declare_command(
    session: Session, directory: str, name: str, file: str, artifact_format: str, task: int | None, description: str
) -> None:
    """Declare an artifact of the attempt in DIR, before its file is first written."""
    declaration = Declaration(name, file, artifact_format, task, description)
    added = declare(directory, declaration)
    if session.as_json:
        session.document({"declared": added, **_members(declaration)})
    else:
        session.line(
            f"{name}: {'declared' if added else 'was declared already'}, file {file}, format {artifact_format}"
        )


@attempt.command("list")
@click.argument("target", metavar="DIR | PIN | art:DIGEST")
@json_option
@pass_session
def list_command(session: Session, target: str) -> None:
    """List the artifacts of an attempt; exit code 1 when problems were found."""
    listed, problems = _open(session, target).listing()
    if session.as_json:
        found = [{**_members(artifact), "size": size} for artifact, size in listed]
        session.document({"artifacts": found, "problems": problems})
    else:
        rows = [("NAME", "FORMAT", "SIZE", "TASK", "FILE", "DESCRIPTION")]
        for one, size in listed:
            task = "-" if one.task_id is None else str(one.task_id)
            rows.append((one.name, one.format, "-" if size is None else str(size), task, one.file, one.description))
        widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
        for row in rows:
            session.line("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    _say(session, problems)
    if problems:
        click.get_current_context().exit(1)


def _say(session: Session, problems: list[str]) -> None:
    if not session.as_json:
        for problem in problems:
            session.note(f"problem: {problem}")


@attempt.command("cat")
@click.argument("target", metavar="DIR | PIN | art:DIGEST")
@click.argument("name")
@json_option
@pass_session
def cat_command(session: Session, target: str, name: str) -> None:
    """Write the content of an artifact, at most 1 MiB; of a longer journal its first records."""
    found = _open(session, target).content(name)
    cut = found.size - len(found.data)
    if session.as_json:
        try:
            text = found.data.decode()
        except UnicodeDecodeError as error:
            raise InvalidInputError(
                f"its content is not UTF-8 ({error.reason}); use cat without --json", name
            ) from error
        session.document({"name": name, "size": found.size, "content": text})
        return
    click.echo(found.data, nl=False)
    if cut:
        session.note(f"{name}: {cut} of {found.size} bytes are not shown: use page for whole records behind them")


@attempt.command("page")
@click.argument("target", metavar="DIR | PIN | art:DIGEST")
@click.argument("name")
@click.option("--offset", type=click.IntRange(min=0), default=0, show_default=True, help="The first record, from 0.")
@click.option("--limit", type=click.IntRange(min=1), help="The most records: 100 unless told, without end to --follow.")
@click.option("--follow", "-f", is_flag=True, help="Wait for more records until interrupted, or until --limit.")
@json_option
@pass_session
def page_command(session: Session, target: str, name: str, offset: int, limit: int | None, follow: bool) -> None:
    """Write records of a records artifact, checked, one payload a line."""
    view = _open(session, target)
    if follow:
        most = None if limit is None else min(limit, sys.maxsize)
        _follow(islice(view.follow(name, offset), most), offset, session.as_json)
        return
    found = view.page(name, offset, _DEFAULT_LIMIT if limit is None else limit)
    if session.as_json:
        records = ", ".join(_record_json(number, record) for number, record in enumerate(found.records, offset))
        counts = f'"offset": {offset}, "next_offset": {found.next_offset}, "available": {found.available}'
        _print(f'{{{counts}, "records": [{records}]}}')
        return
    for record in found.records:
        _print(_for_people(record))
    more = f"; the next page: --offset {found.next_offset}" if found.next_offset < found.available else ""
    session.note(f"{name}: {len(found.records)} of {found.available} records from {offset}{more}")


def _follow(records: Iterable[Record], offset: int, as_json: bool) -> None:
    try:
        for number, record in enumerate(records, offset):
            _print(_record_json(number, record) if as_json else _for_people(record))
    except KeyboardInterrupt:
        # The usual way to end a follow: nothing went wrong.
        return


@attempt.command("seal")
@click.argument("directory", metavar="DIR")
@click.option("--publish", is_flag=True, help="Keep the attempt in the store, under a pin.")
@click.option("--pin", metavar="NAME", help="The pin's name.  [default: attempt-<digest of the dataset>]")
@click.option("--expires", type=Moment(), metavar="TIME", help="When the pin ends (2026-12-31).  [default: never]")
@click.option("--note", metavar="TEXT", help="Why it is kept, for people.")
@click.option("--by", metavar="WHO", help="Who publishes it.  [default: user@machine]")
@json_option
@pass_session
def seal_command(
    session: Session,
    directory: str,
    publish: bool,
    pin: str | None,
    expires: str | None,
    note: str | None,
    by: str | None,
) -> None:
    """Write what the manifest says of the artifacts of the attempt in DIR, as JSON.

    A problem of an artifact never fails the attempt: it is listed, and the exit code is 0. With --publish the files go
    into the store, and list, cat and page take the dataset, or the pin's name, in the place of DIR. The same attempt
    again is a no-op; another one under the pin's name is an error.

    \b
    Examples:
      oarbank-cas attempt seal attempts/7
      oarbank-cas attempt seal attempts/7 --publish --pin run-7 --expires 2027-01-01
    """
    path = DirectoryAttempt(directory).directory
    if not publish:
        given = {"--pin": pin, "--expires": expires, "--note": note, "--by": by}
        for option, value in given.items():
            if value is not None:
                raise click.UsageError(f"{option} is about --publish")
        found = sealed(path)
        _show_seal(session, found, {})
        return
    store = session.store()
    with session.progress("seal") as progress:
        done = store.publish_attempt(
            path, pin, note=note or "", by=by or whoami(), expires_at=expires, progress=progress
        )
    more = {
        "dataset": done.dataset,
        "pin": done.pin.name,
        "published": done.published,
        "expires_at": done.pin.expires_at,
        "files": [{"path": file.path, "digest": file.digest, "size": file.size} for file in done.files],
    }
    _show_seal(session, done.sealed, more)
    if not session.as_json:
        until = f" until {done.pin.expires_at}" if done.pin.expires_at else ""
        state = "published" if done.published else "published already"
        session.note(f"{state}: {done.dataset}, kept by the pin {done.pin.name}{until}")


def _show_seal(session: Session, found: Sealed, more: dict[str, Any]) -> None:
    click.echo(json.dumps({**found.to_json(), **more}, indent=None if session.as_json else 2))
    _say(session, found.problems)
