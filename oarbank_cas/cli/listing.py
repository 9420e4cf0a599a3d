"""The command that lists what a store holds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from oarbank_cas import instants, layout
from oarbank_cas.cli.pins import list_pins
from oarbank_cas.cli.session import Session, pass_session

if TYPE_CHECKING:
    from collections.abc import Callable

    from oarbank_cas.results import ListedEntry
    from oarbank_cas.store import Store


@dataclass(frozen=True, slots=True)
class EntryFilter:
    """Which entries a command is about; what is None does not filter.

    Attributes:
        module: the part before `/` of the envelope's schema, or the module's full id.
        host: the machine that the job ran on.
        since_ns: recorded at this moment or later, nanoseconds since 1970.
        until_ns: recorded before this moment.
    """

    module: str | None
    host: str | None
    since_ns: int | None
    until_ns: int | None

    @property
    def filters(self) -> bool:
        """Whether anything was asked for."""
        return (self.module, self.host, self.since_ns, self.until_ns) != (None, None, None, None)

    def takes(self, listed: ListedEntry) -> bool:
        """Whether an entry is one of those."""
        header = listed.header
        if self.module is not None and self.module not in (header.get("module_id"), module_of(header)):
            return False
        if self.host is not None and self.host != header.get("host"):
            return False
        if self.since_ns is None and self.until_ns is None:
            return True
        recorded = header.get("recorded_at")
        moment = instants.from_text(recorded) if isinstance(recorded, str) else listed.time_ns
        return (self.since_ns is None or moment >= self.since_ns) and (self.until_ns is None or moment < self.until_ns)


def module_of(header: Mapping[str, Any]) -> str:
    """The short module name of an entry: the part before `/` of its schema."""
    schema = header.get("schema")
    return schema.partition("/")[0] if isinstance(schema, str) else ""


def entry_filter_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--module`, `--host`, `--since` and `--until` to a command."""
    for option, text in (
        ("--until", "Recorded before this date or time."),
        ("--since", "Recorded at or after this date or time (2026-01-31, 2026-01-31T12:00:00Z)."),
        ("--host", "Of jobs that ran on this machine."),
        ("--module", "Of this module: the part before / of the schema, or the full id."),
    ):
        command = click.option(option, metavar="TEXT", help=text)(command)
    return command


def entry_filter(module: str | None, host: str | None, since: str | None, until: str | None) -> EntryFilter:
    """The filter that the options of `entry_filter_options` say.

    Raises:
        InvalidInputError: a time cannot be read.
    """
    return EntryFilter(
        module,
        host,
        instants.from_text(since, "--since") if since else None,
        instants.from_text(until, "--until") if until else None,
    )


@click.command()
@click.argument("what", type=click.Choice(["entries", "blobs", "pins"]), default="entries")
@entry_filter_options
@pass_session
def ls(session: Session, what: str, module: str | None, host: str | None, since: str | None, until: str | None) -> int:
    """List entries (the default), blobs or pins, in the order of their names.

    \b
    Examples:
      oarbank-cas ls --module align --since 2026-01-01
      oarbank-cas ls blobs
    """
    wanted = entry_filter(module, host, since, until)
    if what != "entries" and wanted.filters:
        raise click.UsageError("--module, --host, --since and --until are about entries")
    if what == "pins":
        return list_pins(session)
    store = session.store(read_only=True)
    items = _blobs(store) if what == "blobs" else _entries(store, wanted)
    if session.as_json:
        return session.documents(what, (document for document, _ in items))
    for _, line in items:
        session.line(line)
    return 0


def _blobs(store: Store) -> Iterator[tuple[dict[str, Any], str]]:
    for stat in store.backend.listing(layout.BLOBS):
        digest = stat.name.rpartition("/")[2]
        moment = instants.to_text(stat.time_ns)
        yield {"digest": digest, "size": stat.size, "time": moment}, f"{digest}  {stat.size}  {moment}"


def _entries(store: Store, wanted: EntryFilter) -> Iterator[tuple[dict[str, Any], str]]:
    for listed in store.results.listing():
        if wanted.takes(listed):
            yield _entry(listed)


def _entry(listed: ListedEntry) -> tuple[dict[str, Any], str]:
    header = listed.header
    if listed.problem is not None:
        return {"name": listed.name, "status": "corrupt", "reason": listed.problem}, f"corrupt  {listed.name}"
    ended = header["kind"] == "tombstone"
    status = str(header.get("cause", "ended")) if ended else "recorded"
    moment = header.get("ended_at" if ended else "recorded_at")
    by = header.get("ended_by" if ended else "recorded_by")
    document = {
        "job_key": header["job_key"],
        "class": header["class"],
        "status": status,
        "reason": header.get("reason"),
        "module": module_of(header) or None,
        "module_id": header.get("module_id"),
        "schema": header.get("schema"),
        "host": header.get("host"),
        "platform": header.get("platform"),
        "attempt": header.get("attempt"),
        "time": moment,
        "by": by,
        "size": listed.size,
        "datasets": header.get("datasets", {}),
    }
    shown = (
        header["job_key"],
        header["class"],
        status,
        module_of(header) or "-",
        header.get("host") or "-",
        moment,
        by,
    )
    return document, "  ".join(str(each) for each in shown)
