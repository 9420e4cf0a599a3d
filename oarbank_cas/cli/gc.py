"""The command that collects garbage."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import click

from oarbank_cas.cli.session import Session, complain, pass_session, whoami
from oarbank_cas.cli.tables import counting, show_table
from oarbank_cas.cli.values import Size
from oarbank_cas.sizes import size_text

if TYPE_CHECKING:
    from collections.abc import Callable

    from oarbank_cas.gc.report import Report

_NONE = "none"
"""On the command line: the store's policy has this rule, and it does not hold."""


def _or_none(number: type[int] | type[float]) -> Callable[[click.Context, click.Parameter, str | None], Any]:
    """A number, or `none`."""

    def convert(ctx: click.Context, param: click.Parameter, value: str | None) -> Any:  # noqa: ANN401 - a number or a text
        if value is None or value.lower() == _NONE:
            return value and _NONE
        try:
            found = number(value)
        except ValueError:
            found = -1
        if not 0 <= found < 10**9:
            kind = "whole number" if number is int else "number"
            raise click.BadParameter(f"{value!r} is no {kind} from 0 up, and not `{_NONE}`", ctx, param)
        return found

    return convert


def _size(ctx: click.Context, param: click.Parameter, value: str | None) -> int | str | None:
    """A size in bytes, or `none`."""
    if value is None or value.lower() == _NONE:
        return value and _NONE
    return Size().convert(value, param, ctx)


@click.command()
@click.option("--dry-run", is_flag=True, help="Write nothing: only say what would be done.")
@click.option("--keep-days", callback=_or_none(float), metavar="N", help="Keep entries for N days since recorded.")
@click.option("--keep-hit-days", callback=_or_none(float), metavar="N", help="Keep entries for N days since last hit.")
@click.option("--keep-newest", callback=_or_none(int), metavar="N", help="Keep the newest N entries of each module.")
@click.option(
    "--max-bytes",
    callback=_size,
    metavar="SIZE",
    help="Keep at most so much (500G, 2T); what was hit longest ago goes first.",
)
@click.option(
    "--tombstone-days", callback=_or_none(float), metavar="N", help="Keep tombstones for N days.  [default: 30]"
)
@click.option("--save-policy", is_flag=True, help="Keep these five in the store's policy, once this run has succeeded.")
@click.option("--allow-no-roots", is_flag=True, help="Go on though the store has blobs, and no entry or pin at all.")
@click.option(
    "--yes-really", is_flag=True, help="Go on though more than half of the entries, or of the blobs, would go."
)
@click.option("--anyway", is_flag=True, help="Go on though another gc is under way; that is safe, and a waste.")
@click.option("--roots-confirmed", is_flag=True, help="Of a restored store: all its entries and pins are here.")
@click.option(
    "--stall-bound-s",
    type=click.IntRange(min=1),
    metavar="N",
    help="Where the storage cannot refuse a late delete: no request of this run will be held up longer than N seconds.",
)
@click.option("--by", metavar="WHO", help="Who runs it, for the audit.  [default: user@machine]")
@pass_session
def gc(
    session: Session,
    /,
    dry_run: bool,
    save_policy: bool,
    allow_no_roots: bool,
    yes_really: bool,
    anyway: bool,
    roots_confirmed: bool,
    stall_bound_s: int | None,
    by: str | None,
    **rules: float | str | None,
) -> int:
    """Free what nothing refers to, and end entries that the retention policy no longer keeps.

    Safe while the fleet works. Unasked, no entry ends: an entry is kept where any --keep option keeps it, or none is
    given, or it is pinned. A blob that nothing refers to is condemned after the grace period, and removed by a later
    gc. With --save-policy the rules hold for every gc; `none` in the place of a number drops one. Nothing is deleted
    where anything could not be read: the exit code then tells.

    \b
    Examples:
      oarbank-cas gc --dry-run
      oarbank-cas gc --keep-days 90 --keep-hit-days 30
      oarbank-cas gc --max-bytes 2T --keep-days none --save-policy
    """
    from oarbank_cas.gc.collect import Options
    from oarbank_cas.gc.retention import Policy

    numbers: dict[str, Any] = {name: value for name, value in rules.items() if value not in (None, _NONE)}
    policy = Policy(**numbers, dropped=frozenset(name for name, value in rules.items() if value == _NONE))
    if save_policy and dry_run:
        raise click.UsageError("--save-policy writes, --dry-run does not: leave out one of the two")
    store = session.store(read_only=dry_run)
    options = Options(
        dry_run=dry_run,
        anyway=anyway,
        allow_no_roots=allow_no_roots,
        yes_really=yes_really,
        roots_confirmed=roots_confirmed,
        stall_bound_s=stall_bound_s,
    )
    with counting(session) as progress:
        report = store.gc(policy, options, by=by or whoami(), progress=progress)
    if save_policy and report.exit_code == 0:
        Policy(**report.policy).save(store.backend)
    if session.as_json:
        session.document(report.to_json())
    else:
        _show(session, report)
    _complain(report)
    if save_policy and report.exit_code:
        complain("the policy was not saved, because of the above")
    return report.exit_code


def _show(session: Session, report: Report) -> None:
    from oarbank_cas.gc.report import PLANNED

    planned = bool(report.dry_run or report.refused or report.doubts)
    table, title = (report.plan, "what would be done") if planned else (report.done, "what was done")
    words = PLANNED if planned else {}
    by_module: Counter[tuple[str, str, str]] = Counter()
    bytes_of: Counter[tuple[str, str, str]] = Counter()
    for row in table.rows():
        key = (row["action"], row["module"] or "", row["age"])
        by_module[key] += row["count"]
        bytes_of[key] += row["bytes"]
    rows = [
        (words.get(action, action), module or "-", age, f"{count:,}", size_text(bytes_of[action, module, age]))
        for (action, module, age), count in by_module.items()
    ]
    show_table(session, title, ("action", "module", "age", "count", "bytes"), rows, right=(3, 4))
    for action, total in table.totals().items():
        if total["count"]:
            session.line(f"{words.get(action, action)}: {total['count']:,} ({size_text(total['bytes'])})")
    if report.policy:
        session.line("policy: " + ", ".join(f"{name} {value}" for name, value in report.policy.items()))
    session.note(f"{report.seconds:.1f} s, {_requests(report)} requests, {size_text(report.bytes_read)} read")
    for note in report.notes:
        session.note(note)
    if report.unknown:
        session.note(f"{report.unknown} objects are none of a store's, and were left alone: see `oarbank-cas verify`")


def _requests(report: Report) -> str:
    total: Any = sum(report.requests.values())
    return f"{total:,}"


def _complain(report: Report) -> None:
    """Say why nothing was deleted, or not all."""
    for doubt in report.doubts:
        complain(f"{doubt.what}: {doubt.why}")
    nothing = "a run would delete nothing" if report.dry_run else "nothing was deleted"
    if report.doubts:
        complain(f"{nothing}, because of the above")
    if report.refused:
        complain(f"{nothing}: {report.refused}")
    if report.failed:
        complain(f"{report.failed.what}: {report.failed.why}; the next gc goes on from here")
    if report.missing:
        complain(f"{report.missing} blobs that entries or pins refer to are missing: see `oarbank-cas verify`")
