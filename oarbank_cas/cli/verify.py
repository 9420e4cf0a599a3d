"""The command that checks and repairs a store."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from oarbank_cas import instants
from oarbank_cas.cli.session import Session, pass_session
from oarbank_cas.cli.tables import show_table
from oarbank_cas.cli.values import Moment
from oarbank_cas.sizes import size_text

if TYPE_CHECKING:
    from oarbank_cas.verify import Report


def _percent(ctx: click.Context, param: click.Parameter, value: str | None) -> float:
    """5 or 5%, as a number."""
    if value is None:
        return 100.0
    try:
        number = float(value.strip().removesuffix("%"))
    except ValueError:
        number = 0.0
    if not 0 < number <= 100:
        raise click.BadParameter(f"{value!r} is no percentage above 0 and up to 100, such as 5%", ctx, param)
    return number


@click.command()
@click.option("--dry-run", is_flag=True, help="Write nothing: damaged blobs stay where they are.")
@click.option("--repair", is_flag=True, help="Bring back what is damaged or missing.")
@click.option("--from", "source", metavar="URL", help="With --repair: another store that may have it.")
@click.option("--sample", callback=_percent, metavar="N%", help="Read the bytes of so many blobs only.")
@click.option("--seed", metavar="TEXT", help="With --sample: chooses which.  [default: today's date]")
@click.option(
    "--since", type=Moment(), metavar="TIME", help="Only read the bytes of blobs that came in since (2026-01-31)."
)
@click.option("--resume", metavar="FILE", help="Keep the state there: if the run ends early, the same call goes on.")
@click.option("--orphans", is_flag=True, help="List the blobs that nothing refers to; else they are counted.")
@click.option("--workers", type=click.IntRange(min=1), metavar="N", help="Threads.  [default: one a core]")
@pass_session
def verify(
    session: Session,
    dry_run: bool,
    repair: bool,
    source: str | None,
    sample: float,
    seed: str | None,
    since: str | None,
    resume: str | None,
    orphans: bool,
    workers: int | None,
) -> int:
    """Check every blob's bytes, every entry, and every reference. Ends with 1, and a list, if anything is wrong.

    Damaged blobs are read twice, and then moved to damaged/ in the store, so that lookups miss and jobs run again;
    nothing is deleted. --sample and --since choose blobs whose bytes are read; entries, pins and references are always
    checked. Safe while the fleet works.

    \b
    Examples:
      oarbank-cas verify --dry-run
      oarbank-cas verify --sample 5%
      oarbank-cas verify --repair --from /backup/cas --resume verify.state
    """
    from oarbank_cas.store import Store
    from oarbank_cas.verify import Options

    if source is not None and not repair:
        raise click.UsageError("--from is for --repair")
    if dry_run and repair:
        raise click.UsageError("--dry-run writes nothing, --repair does: leave out one of the two")
    options = Options(
        look_only=dry_run,
        repair=repair,
        sample=sample,
        seed=seed,
        since_ns=instants.from_text(since, "--since") if since else None,
        list_orphans=orphans,
        resume=resume,
        workers=workers,
    )
    store = session.store(read_only=dry_run)
    with session.progress("verify") as progress:
        if source is None:
            report = store.verify(options, None, progress)
        else:
            with Store.open(source, read_only=True, s3=session.s3_for(source)) as other:
                report = store.verify(options, other, progress)
    if session.as_json:
        session.document(report.to_json())
    else:
        _show(session, report)
    return report.exit_code


def _show(session: Session, report: Report) -> None:
    rows = []
    for problem in report.problems:
        state = "healed" if problem.healed else "set aside" if problem.aside else "-"
        needed = f"; {problem.references} refer to it, such as {problem.referenced_by[0]}" if problem.references else ""
        rows.append((problem.kind, state, problem.name, problem.detail + needed))
    if rows:
        show_table(session, "found", ("kind", "state", "object", "what"), rows)
    listed = len(report.problems)
    found = sum(report.by_kind.values())
    if found > listed:
        session.line(f"and {found - listed:,} more")
    count = report.counts
    unreferred = f"{count['orphans']:,} blobs ({size_text(count['orphan_bytes'])}); gc sees to them"
    if count["roots_unread"]:
        unreferred = f"not known, since {count['roots_unread']:,} entries, pins or their folders could not be read"
    chosen = f" ({report.options.sample:g} %, seed {report.options.seed})" if report.options.sample < 100 else ""
    for line in (
        f"blobs: {count['blobs']:,} ({size_text(count['blob_bytes'])}); "
        f"read {count['blobs_read']:,} ({size_text(count['bytes_read'])} with condemned ones){chosen}",
        f"condemned blobs: {count['fossils']:,}; read {count['fossils_read']:,}",
        f"entries: {count['entries']:,}; tombstones: {count['tombstones']:,}; "
        f"pins: {count['pins']:,}, and {count['expired_pins']:,} expired",
        f"nothing refers to: {unreferred}",
        f"in damaged/: {count['set_aside_before']:,} ({size_text(count['set_aside_before_bytes'])}); "
        f"temporaries: {count['temporaries']:,}",
    ):
        session.line(line)
    if report.problem_count == 0:
        session.line(f"nothing is wrong with {report.store}")
    else:
        left = report.problem_count - report.healed
        session.line(f"problems: {report.problem_count:,}; healed: {report.healed:,}; left: {left:,}")
    session.note(f"{report.seconds:.1f} s" + (", going on with an earlier run" if report.resumed else ""))
