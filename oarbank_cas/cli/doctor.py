"""The command that looks at what a store's storage honours."""

from __future__ import annotations

import os

import click

from oarbank_cas.cli.session import Session, pass_session


@click.command()
@click.option("--dry-run", is_flag=True, help="Keep nothing: capabilities.json stays as it is.")
@pass_session
def doctor(session: Session, dry_run: bool) -> int:
    """Try what the store's storage honours, and say what follows. Ends with 1 where something must be seen to.

    A bucket is tried with fresh random names below the store's prefix, which are removed again. What was found is kept
    in the store as capabilities.json, for all clients: run this again when the server was changed or updated.

    \b
    Example:
      oarbank-cas --store s3://bucket/cas doctor
    """
    from oarbank_cas.doctor import examine, examine_cache

    url = session.url
    report = examine(url, session.s3_for(url), keep=not dry_run)
    cache = session.cache()
    if cache is not None:
        examine_cache(report, cache, os.curdir)
    if session.as_json:
        session.document(report.to_json())
        return report.exit_code
    session.line(f"{report.store}: {report.server}")
    if report.engine is not None:
        session.line(f"by {report.engine}")
    for check in report.checks:
        detail = f"  ({check['detail']})" if check["detail"] else ""
        session.line(f"{check['answer']:<8} {check['check']}{detail}")
    if report.clock_difference_s is not None:
        session.line(f"its clock is {report.clock_difference_s:+.1f} s from this machine's, to a second")
    for text in report.consequences:
        session.line(f"so: {text}")
    for text in report.problems:
        session.line(f"problem: {text}")
    if report.kept:
        session.note("kept in the store, for all clients")
    return report.exit_code
