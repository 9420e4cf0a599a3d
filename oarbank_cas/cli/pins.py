"""Commands about pins: what operators and coordinators keep alive by name."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import click

from oarbank_cas import layout
from oarbank_cas.cli.session import Session, complain, pass_session, whoami
from oarbank_cas.cli.tables import show_table
from oarbank_cas.cli.values import Moment
from oarbank_cas.errors import CorruptError, NotFoundError

if TYPE_CHECKING:
    from oarbank_cas.pins import Pin
    from oarbank_cas.store import Store


def pin_document(found: Pin) -> dict[str, Any]:
    """A pin as JSON; by this machine's clock where it may have expired, since telling the store's writes to it."""
    return {
        "name": found.name,
        "job_key": found.job_key,
        "class": found.result_class,
        "dataset": found.dataset,
        "digest": found.digest,
        "note": found.note,
        "by": found.by,
        "created_at": found.created_at,
        "expires_at": found.expires_at,
        "expired": found.is_expired(time.time_ns()),
    }


@click.command()
@click.argument("name")
@click.argument("target", metavar="KEY | art:DIGEST | [blob:]DIGEST")
@click.option("--class", "result_class", default="any", show_default=True, help="The result class of a key.")
@click.option("--note", default="", metavar="TEXT", help="Why, for people.")
@click.option(
    "--expires", type=Moment(), metavar="TIME", help="When it stops to keep anything (2026-12-31).  [default: never]"
)
@click.option("--by", metavar="WHO", help="Who pins it.  [default: user@machine]")
@pass_session
def pin(
    session: Session, name: str, target: str, result_class: str, note: str, expires: str | None, by: str | None
) -> None:
    """Keep a result, a dataset or a blob alive under a name, whatever gc and retention do.

    \b
    Examples:
      oarbank-cas pin paper-2026 $KEY --note "figure 3"
      oarbank-cas pin reference art:$DIGEST --expires 2027-01-01
    """
    store = session.store()
    made = store.pins.pin(name, target, result_class=result_class, note=note, by=by or whoami(), expires_at=expires)
    if session.as_json:
        session.document(pin_document(made))
    else:
        session.line(f"pinned  {made.name}  {made.target}")


@click.command()
@click.argument("name")
@pass_session
def unpin(session: Session, name: str) -> int:
    """Remove a pin. Ends with 1 if there is none of that name.

    \b
    Example:
      oarbank-cas unpin paper-2026
    """
    removed = session.store().pins.unpin(name)
    if session.as_json:
        session.document({"name": name, "removed": removed})
    elif removed:
        session.line(f"unpinned  {name}")
    else:
        session.note(f"there is no pin {name}")
    return 0 if removed else 1


@click.command()
@pass_session
def pins(session: Session) -> int:
    """List the pins. One that cannot be read is told, and makes the exit code 65.

    Expired ones are marked: they keep nothing, and stay until `unpin`.

    \b
    Example:
      oarbank-cas pins
    """
    return list_pins(session)


def list_pins(session: Session) -> int:
    """Print the pins; the exit code."""
    store = session.store(read_only=True)
    found, damaged = _read(store)
    if session.as_json:
        session.document({"pins": [pin_document(each) for each in found], "damaged": damaged})
    else:
        rows = [(each.name, each.target, _until(each), each.by or "-", each.note or "-") for each in found]
        show_table(session, "pins", ("name", "keeps", "until", "by", "note"), rows)
    for each in damaged:
        complain(each)
    return CorruptError.exit_code if damaged else 0


def _until(found: Pin) -> str:
    if found.expires_at is None:
        return "for ever"
    return f"{found.expires_at} (expired)" if found.is_expired(time.time_ns()) else found.expires_at


def _read(store: Store) -> tuple[list[Pin], list[str]]:
    from oarbank_cas.pins import is_pin_name

    found, damaged = [], []
    for stat in store.backend.listing(layout.PINS):
        name = stat.name.removeprefix(layout.PINS)
        if is_pin_name(name):
            try:
                found.append(store.pins.get(name))
            except NotFoundError:
                continue  # unpinned meanwhile
            except CorruptError as error:
                damaged.append(str(error))
    return found, damaged
