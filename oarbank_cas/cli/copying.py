"""The command that copies between stores."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from oarbank_cas.cli.session import Session, pass_session
from oarbank_cas.cli.tables import show_table
from oarbank_cas.sizes import size_text

if TYPE_CHECKING:
    from oarbank_cas.copying import Report


@click.command()
@click.argument("wanted", nargs=-1, metavar="[KEY | art:DIGEST | [blob:]DIGEST]...")
@click.option("--from", "source", metavar="URL", help="The store to copy from.  [default: --store]")
@click.option("--to", "target", metavar="URL", help="The store to copy to.  [default: --store]")
@click.option("--all", "everything", is_flag=True, help="Copy all blobs, entries and pins.")
@click.option("--class", "result_class", default="any", show_default=True, help="The result class of keys.")
@click.option("--tombstones", is_flag=True, help="Copy tombstones too, where the target has nothing under their key.")
@click.option("--replace-ended", is_flag=True, help="Copy results even where the target has ended them.")
@click.option("--dry-run", is_flag=True, help="Write nothing: only say what would be copied.")
@pass_session
def copy(
    session: Session,
    wanted: tuple[str, ...],
    source: str | None,
    target: str | None,
    everything: bool,
    result_class: str,
    tombstones: bool,
    replace_ended: bool,
    dry_run: bool,
) -> int:
    """Copy results, datasets or blobs to another store: only what is missing, every byte checked.

    Again is a no-op, and goes on where an earlier copy ended. A different result at the target stays, and is told.
    Datasets and blobs alone are kept there by no entry: pin them. Ends with 1 if the target has not all of it then.

    \b
    Examples:
      oarbank-cas copy --from .oarbank-cas --to /data/cas --all
      oarbank-cas copy --to /mnt/usb/cas $KEY art:$DIGEST
    """
    from oarbank_cas.copying import Options
    from oarbank_cas.store import Store

    if bool(wanted) == everything:
        raise click.UsageError("name what to copy, or say --all: one of the two")
    if source is None and target is None:
        raise click.UsageError("name a store with --from or --to; the other is then --store")
    options = Options(result_class, tombstones, replace_ended, dry_run)
    source, target = source or session.url, target or session.url
    with (
        Store.open(source, read_only=True, s3=session.s3_for(source)) as here,
        Store.open(target, read_only=dry_run, s3=session.s3_for(target)) as there,
        session.progress("copy") as progress,
    ):
        report = here.copy_to(there, None if everything else wanted, options, progress)
    if session.as_json:
        session.document(report.to_json())
    else:
        _show(session, report)
    return report.exit_code


def _show(session: Session, report: Report) -> None:
    if report.problems:
        rows = [(each["kind"], each["name"], each["detail"]) for each in report.problems]
        show_table(session, "not copied", ("kind", "object", "why"), rows)
    if report.problem_count > len(report.problems):
        session.line(f"and {report.problem_count - len(report.problems):,} more")
    count = report.counts
    verb = "would be copied" if report.dry_run else "copied"
    size = size_text(count["bytes copied"])
    session.line(f"blobs: {count['blobs copied']:,} {verb} ({size}), {count['blobs there']:,} there")
    session.line(f"entries: {count['entries copied']:,} {verb}, {count['entries there']:,} there")
    if count["tombstones copied"] or count["tombstones there"]:
        session.line(f"tombstones: {count['tombstones copied']:,} {verb}, {count['tombstones there']:,} there")
    if count["tombstones left out"]:
        session.line(f"tombstones: {count['tombstones left out']:,} left out; --tombstones copies them")
    if count["pins copied"] or count["pins there"]:
        session.line(f"pins: {count['pins copied']:,} {verb}, {count['pins there']:,} there")
