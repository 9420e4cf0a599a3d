"""Commands about grants: given out by who has a credential, used by who has none."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import click

from oarbank_cas.cli.session import Session, pass_session, read_input
from oarbank_cas.errors import InvalidInputError, NotFoundError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from oarbank_cas.grants import Grant

_MAX_BYTES = 64 * 2**20
_expires = click.option("--expires-s", type=int, default=3600, show_default=True, metavar="N", help="Seconds to live.")


@click.group()
def grant() -> None:
    """Let agents without a credential put and get blobs of a bucket, one by one, for a while.

    \b
    Example:
      coordinator$  oarbank-cas --json grant put $DIGEST > grants.json
      agent$        oarbank-cas grant upload grants.json out/model.bin
    """


@grant.command("put")
@click.argument("digests", nargs=-1, required=True, metavar="DIGEST...")
@_expires
@pass_session
def put(session: Session, digests: tuple[str, ...], expires_s: int) -> None:
    """Give grants to put blobs: these very bytes, and nothing else. Prints secrets: whoever has one can use it."""
    _show(session, session.store(read_only=False).grant_put(digests, expires_s))


@grant.command("get")
@click.argument("digests", nargs=-1, required=True, metavar="DIGEST...")
@_expires
@pass_session
def get(session: Session, digests: tuple[str, ...], expires_s: int) -> None:
    """Give grants to get blobs. Prints secrets: whoever has one can use it."""
    _show(session, session.store(read_only=False).grant_get(digests, expires_s))


def _show(session: Session, grants: Sequence[Grant]) -> None:
    session.document({"grants": [each.to_json() for each in grants]})


@grant.command("upload")
@click.argument("grants", metavar="GRANTS | -")
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@pass_session
def upload(session: Session, grants: str, paths: tuple[str, ...]) -> None:
    """Put files by put grants. Needs no store and no credential."""
    from oarbank_cas.agent.granted import digest_of
    from oarbank_cas.agent.granted import upload as send

    by_digest = {each.get("digest"): each for each in _read(grants)}
    done = []
    for path in paths:
        digest = digest_of(path)
        if digest not in by_digest:
            raise NotFoundError(f"{path} has the digest {digest}, for which there is no grant")
        done.append({"digest": digest, "path": path, "new": send(by_digest[digest], path)})
    if session.as_json:
        session.document({"blobs": done})
    else:
        for each in done:
            session.line(f"{each['digest']}  {'uploaded' if each['new'] else 'there already'}  {each['path']}")


@grant.command("download")
@click.argument("grants", metavar="GRANTS | -")
@click.option(
    "-o", "--output", required=True, metavar="DIR", help="The folder; files there are named by their digests."
)
@pass_session
def download(session: Session, grants: str, output: str) -> None:
    """Get blobs by get grants, verified. Needs no store and no credential."""
    from oarbank_cas.agent.granted import download as receive

    os.makedirs(output, exist_ok=True)
    done = []
    for each in _read(grants):
        digest = str(each.get("digest"))
        path = os.path.join(output, os.path.basename(digest) or "blob")
        done.append({"digest": digest, "path": path, "size": receive(each, path)})
    if session.as_json:
        session.document({"blobs": done})
    else:
        for each in done:
            session.line(f"{each['digest']}  {each['size']}  {each['path']}")


def _read(path: str) -> list[dict[str, Any]]:
    from oarbank_cas.contracts.canonical import parse_json

    document = parse_json(read_input(path, _MAX_BYTES), where=path)
    found = document.get("grants") if isinstance(document, dict) else None
    if not isinstance(found, list):
        raise InvalidInputError('is no document with "grants"', path)
    return [each if isinstance(each, dict) else {} for each in found]
