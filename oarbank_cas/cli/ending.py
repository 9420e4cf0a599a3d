"""The command that ends answers, and brings them back."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from oarbank_cas.cli.listing import EntryFilter, entry_filter, entry_filter_options
from oarbank_cas.cli.session import Session, pass_session, whoami

if TYPE_CHECKING:
    from collections.abc import Iterator

    from oarbank_cas.store import Store


@click.command()
@click.argument("keys", nargs=-1, metavar="[KEY...]")
@click.option("--class", "result_class", default=None, help="The result class.  [default: any; with filters: all]")
@entry_filter_options
@click.option("--reason", metavar="TEXT", help="Why; kept, and told to whoever misses.")
@click.option("--by", metavar="WHO", help="Who ends it.  [default: user@machine]")
@click.option("--undo", is_flag=True, help="Bring back what was ended, while its tombstone and its files are there.")
@click.option("--dry-run", is_flag=True, help="Only say what would be done.")
@pass_session
def invalidate(
    session: Session,
    keys: tuple[str, ...],
    result_class: str | None,
    module: str | None,
    host: str | None,
    since: str | None,
    until: str | None,
    reason: str | None,
    by: str | None,
    undo: bool,
    dry_run: bool,
) -> int:
    """End results, by key or by module, host and time: lookups miss until a new one is recorded.

    Ends with 1 if there was nothing to end (or to bring back).

    \b
    Examples:
      oarbank-cas invalidate $KEY --reason "wrong reference genome"
      oarbank-cas invalidate --host node17 --since 2026-03-01 --reason "bad memory" --dry-run
      oarbank-cas invalidate $KEY --undo
    """
    wanted = entry_filter(module, host, since, until)
    if bool(keys) == wanted.filters:
        raise click.UsageError("name job keys, or choose with --module, --host, --since, --until: one of the two")
    if not undo and not reason:
        raise click.UsageError("say why with --reason")
    store = session.store()
    targets = [(each, result_class or "any") for each in keys] or list(_chosen(store, wanted, result_class, undo))
    who = by or whoami()
    done = []
    for each, in_class in targets:
        if dry_run:
            changed = _would_change(store, each, in_class, undo)
        elif undo:
            changed = store.undo_invalidate(each, in_class, by=who)
        else:
            changed = store.invalidate(each, in_class, by=who, reason=reason or "")
        done.append({"job_key": each, "class": in_class, "changed": changed})
    if session.as_json:
        session.document({"entries": done, "dry_run": dry_run})
    else:
        verb = "brought back" if undo else "ended"
        for item in done:
            said = f"would be {verb}" if dry_run else verb if item["changed"] else "nothing to do"
            session.line(f"{said}  {item['job_key']}  {item['class']}")
    return 0 if done and any(item["changed"] for item in done) else 1


def _would_change(store: Store, key: str, result_class: str, undo: bool) -> bool:
    answer = store.lookup(key, result_class, complete=False)
    ended = answer.header.get("kind") == "tombstone"
    return ended if undo else not ended and answer.reason != "absent"


def _chosen(store: Store, wanted: EntryFilter, result_class: str | None, undo: bool) -> Iterator[tuple[str, str]]:
    kind = "tombstone" if undo else "entry"
    for listed in store.results.listing():
        header = listed.header
        if header.get("kind") == kind and result_class in (None, header.get("class")) and wanted.takes(listed):
            yield header["job_key"], header["class"]
