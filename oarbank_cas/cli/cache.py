"""The commands on this machine's cache: status, trim, clear, verify."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

import click

from oarbank_cas.cli.session import Session, json_option, pass_session
from oarbank_cas.cli.values import Size
from oarbank_cas.errors import InvalidInputError
from oarbank_cas.sizes import size_text

if TYPE_CHECKING:
    from oarbank_cas.cache.cache import Cache
    from oarbank_cas.cache.upkeep import Freed


@click.group()
def cache() -> None:
    """Look after this machine's cache: the one that --cache or OARBANK_CAS_CACHE names."""


def _cache(session: Session) -> Cache:
    found = session.cache()
    if found is None:
        raise click.UsageError("no cache is named: give --cache DIR before the command, or set OARBANK_CAS_CACHE")
    return found


@cache.command()
@click.option("--workdir", default=".", show_default=True, metavar="W", help="Try what works from the cache to W.")
@json_option
@pass_session
def status(session: Session, workdir: str) -> None:
    """Say what the cache holds, and how files get from it to a work directory.

    \b
    Example:
      oarbank-cas --cache /var/cache/oarbank cache status --workdir work
    """
    from oarbank_cas.cache.carrying import abilities
    from oarbank_cas.cache.upkeep import status as look

    named = _cache(session)
    found = look(named)
    try:
        works = abilities(found.where, workdir)
    except OSError as error:
        raise InvalidInputError(f"cannot be tried: {error.strerror}", workdir) from error
    age_s = None if found.oldest_use_ns is None else max(0, round(time.time() - found.oldest_use_ns / 1e9))
    if session.as_json:
        session.document(
            {
                "cache": found.where,
                "budget": found.budget,
                "size": found.size,
                "blobs": found.blobs,
                "incoming": found.incoming,
                "held": found.held,
                "linked": found.linked,
                "oldest_use_age_s": age_s,
                "workdir": os.path.abspath(workdir),
                "reflink": works["reflink"],
                "hardlink": works["hardlink"],
                "mounts": [
                    {
                        "workdir": record.workdir,
                        "mount": record.mount,
                        "name": record.name,
                        "dataset": record.dataset,
                        "job_key": record.job_key,
                        "files": len(record.files),
                        "linked": sum(row[4] for row in record.files),
                    }
                    for record in found.mounts
                ],
            }
        )
        return
    session.line(f"{found.where}: {found.blobs} blobs, {size_text(found.size)} of {size_text(found.budget)}")
    if age_s is not None:
        session.line(f"the one that goes next was used {age_s} s ago")
    session.line(f"{found.incoming} on their way in, {found.held} held, {found.linked} linked by mounts")
    way = "share blocks (reflink)" if works["reflink"] else "are copied: the file systems cannot share blocks"
    session.line(f"files placed in {os.path.abspath(workdir)} {way}; hard links {_works(works['hardlink'])} there")
    for record in found.mounts:
        session.line(f"mount  {os.path.join(record.workdir, record.mount)}  {record.dataset}  job {record.job_key}")


def _works(yes: bool) -> str:
    return "work" if yes else "do not work"


@cache.command()
@click.option(
    "--bytes", "limit", type=Size(), metavar="SIZE", help="Keep at most so much (500M, 20G).  [default: the budget]"
)
@json_option
@pass_session
def trim(session: Session, limit: int | None) -> None:
    """Remove what was used longest ago, and what dead processes left. What is in use stays.

    \b
    Example:
      oarbank-cas cache trim --bytes 5G
    """
    from oarbank_cas.cache import upkeep

    _say(session, upkeep.trim(_cache(session), limit))


@cache.command()
@json_option
@pass_session
def clear(session: Session) -> None:
    """Remove every blob that is not in use.

    \b
    Example:
      oarbank-cas cache clear
    """
    from oarbank_cas.cache import upkeep

    _say(session, upkeep.trim(_cache(session), 0))


def _say(session: Session, freed: Freed) -> None:
    if session.as_json:
        session.document(
            {
                "removed": freed.removed,
                "removed_size": freed.removed_size,
                "blobs": freed.blobs,
                "size": freed.size,
            }
        )
    else:
        session.line(
            f"removed {freed.removed} blobs, {size_text(freed.removed_size)}; "
            f"{freed.blobs} are left, {size_text(freed.size)}"
        )


@cache.command()
@json_option
@pass_session
def verify(session: Session) -> int:
    """Hash every blob in the cache, and drop what is wrong. Exit code 1 if anything was.

    \b
    Example:
      oarbank-cas cache verify
    """
    from oarbank_cas.cache import upkeep

    named = _cache(session)
    with session.progress("verify") as progress:
        found = upkeep.verify(named, progress)
    if session.as_json:
        session.document(
            {
                "blobs": found.blobs,
                "size": found.size,
                "wrong": found.wrong,
                "gone": found.gone,
                "strays": found.strays,
            }
        )
    else:
        session.line(f"{found.blobs} blobs, {size_text(found.size)}, {len(found.wrong)} wrong, {len(found.gone)} gone")
        for digest in found.wrong:
            session.line(f"wrong, and dropped: {digest}")
        for path in found.strays:
            session.line(f"no blob, and left alone: {path}")
    return 1 if found.wrong else 0
