"""Commands about blobs: put, get, stat."""

from __future__ import annotations

import sys
import time

import click

from oarbank_cas.cli.session import Session, open_stdin, pass_session

_WHOLE = 64 * 2**20
"""Bytes up to which a blob is verified before its first byte is printed."""

_CHUNK = 2**20


@click.command()
@click.argument("paths", nargs=-1, required=True, metavar="PATH... | -")
@pass_session
def put(session: Session, paths: tuple[str, ...]) -> None:
    """Store files, or stdin for `-`; prints digest, size and name of each.

    \b
    Examples:
      oarbank-cas put model.bin notes.txt
      tar c logs | oarbank-cas put -
    """
    if "-" in paths and len(paths) > 1:
        raise click.UsageError("- stands alone: stdin, and no files")
    store = session.store()
    if paths == ("-",):
        blobs = [store.put_stream(open_stdin())]
    else:
        with session.progress("put") as progress:
            blobs = store.put_files(paths, progress)
    if session.as_json:
        session.document(
            {
                "blobs": [
                    {"digest": blob.digest, "size": blob.size, "path": None if path == "-" else path, "new": blob.new}
                    for path, blob in zip(paths, blobs, strict=True)
                ]
            }
        )
        return
    for path, blob in zip(paths, blobs, strict=True):
        session.line(f"{blob.digest}  {blob.size}  {path}")


@click.command()
@click.argument("digest")
@click.option("-o", "--output", metavar="PATH", help="Write this file, in the place of what is there.")
@pass_session
def get(session: Session, digest: str, output: str | None) -> None:
    """Write a blob's verified bytes to stdout or to a file.

    Wrong bytes never get the file's name. On stdout a blob above 64 MiB is verified as it is written: if its bytes are
    wrong its end is withheld, and the exit code says so.

    \b
    Example:
      oarbank-cas get $DIGEST -o model.bin
    """
    if session.as_json and output is None:
        raise click.UsageError("get --json needs -o PATH: stdout cannot hold both")
    store = session.store()
    if output is not None:
        size = store.get_file(digest, output)
        if session.as_json:
            session.document({"digest": digest, "size": size, "path": output})
        return
    stdout = sys.stdout.buffer
    with store.open_blob(digest) as reader:
        if reader.size <= _WHOLE:
            stdout.write(reader.readall() or b"")
        else:
            while chunk := reader.read(_CHUNK):
                stdout.write(chunk)
    stdout.flush()


@click.command()
@click.argument("digests", nargs=-1, required=True, metavar="DIGEST...")
@pass_session
def stat(session: Session, digests: tuple[str, ...]) -> int:
    """Say whether blobs are there, with size and age. Exit code 1 if one is not.

    \b
    Example:
      oarbank-cas stat $DIGEST
    """
    store = session.store(read_only=True)
    found = [(digest, store.stat(digest)) for digest in digests]
    now = time.time()
    if session.as_json:
        session.document(
            {
                "blobs": [
                    {
                        "digest": digest,
                        "present": blob is not None,
                        "size": blob.size if blob else None,
                        "age_s": _age(blob.time_ns, now) if blob else None,
                    }
                    for digest, blob in found
                ]
            }
        )
    else:
        for digest, blob in found:
            session.line(f"{digest}  {f'{blob.size}  {_age(blob.time_ns, now)} s old' if blob else 'absent'}")
    return 0 if all(blob for _, blob in found) else 1


def _age(time_ns: int | None, now: float) -> int:
    return max(0, round(now - (time_ns or 0) / 1e9))
