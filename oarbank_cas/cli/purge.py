"""The command that removes a blob at once and for good."""

from __future__ import annotations

import sys

import click

from oarbank_cas.cli.session import Session, complain, pass_session, whoami


@click.command()
@click.argument("digest")
@click.option("--reason", required=True, metavar="TEXT", help="Why; kept in the audit record.")
@click.option("--by", metavar="WHO", help="Who does it.  [default: user@machine]")
@click.option("--yes", is_flag=True, help="Do not ask.")
@pass_session
def purge(session: Session, digest: str, reason: str, by: str | None, yes: bool) -> int:
    """Remove a blob at once and for good, whatever refers to it: a leaked secret, say.

    The blob, its condemned incarnations and what was set aside of it go; entries that refer to it are incomplete from
    then on, and lookups miss. It cannot be undone. An audit record is written first, and stays in gc/purges/. Again is
    done. Copies outside the store (work directories, caches, other stores, backups) are not reached.

    \b
    Example:
      oarbank-cas purge $DIGEST --reason "contains a password"
    """
    from oarbank_cas.contracts.canonical import check_digest

    check_digest(digest, "purge")
    store = session.store()
    if not yes:
        if session.as_json or not sys.stdin.isatty():
            raise click.UsageError("purging cannot be undone: confirm with --yes")
        click.confirm(f"Remove blob {digest} from {store.backend.where} for good?", abort=True, err=True)
    with session.progress("purge") as progress:
        report = store.purge(digest, by=by or whoami(), reason=reason, progress=progress)
    if session.as_json:
        session.document(report.to_json())
    else:
        for name in report.deleted:
            session.line(f"removed  {name}")
        if not report.deleted:
            session.line("nothing of it is in the store")
        for name in report.referenced_by:
            session.line(f"referred to by  {name}")
        if report.references > len(report.referenced_by):
            session.line(f"and by {report.references - len(report.referenced_by):,} more")
        session.line(f"audit  {report.audit}")
    if report.is_manifest:
        complain("it named a dataset: end what refers to it (invalidate, unpin), or gc will delete nothing any more")
    if report.gc_running:
        complain("a gc is under way, and may be bringing it back: purge it again when that has ended")
    return 0
