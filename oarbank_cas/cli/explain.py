"""The command that says why a job is a hit or a miss."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from oarbank_cas.cli.session import Session, pass_session, read_input

if TYPE_CHECKING:
    from oarbank_cas.contracts.key_inputs import KeyInputs
    from oarbank_cas.explain import Explanation

_MAX_KEY_LINE = 1024
"""Bytes of stdin that may be a job key."""

_SHOWN = 10
"""Missing blobs, and other entries of a key, that people are shown."""


def read_key_inputs(path: str) -> KeyInputs:
    """The document of key inputs in a file, or of stdin for `-`."""
    from oarbank_cas.contracts.key_inputs import MAX_KEY_INPUTS, KeyInputs

    return KeyInputs.parse(read_input(path, MAX_KEY_INPUTS), "stdin" if path == "-" else path)


@click.command()
@click.argument("question", metavar="INPUTS.json | KEY | -", required=False)
@click.option("--class", "result_class", default="any", show_default=True, help="The result class asked for.")
@click.option(
    "--nearest", type=click.IntRange(0, 32), default=5, show_default=True, metavar="N", help="So many like it are told."
)
@click.option(
    "--reindex", is_flag=True, help="Make the index of key inputs again first; without a question, only that."
)
@pass_session
def explain(session: Session, question: str | None, result_class: str, nearest: int, reindex: bool) -> int:
    """Say why a job is a hit or a miss.

    The question is a document {"module", "compat", "inputs"}, with "stage" where there is one, or a job key. Answers
    are hit; invalidated, expired or withdrawn; incomplete; corrupt; other-class; other-stage; and never, with the
    results of the module that are nearest, of those that were recorded with --key-inputs. Ends with 0 for a hit, else
    with 1.

    \b
    Examples:
      oarbank-cas explain inputs.json
      oarbank-cas explain $KEY --class linux
    """
    from oarbank_cas.inputs.index import InputsIndex

    if question is None and not reindex:
        raise click.UsageError("name a file of key inputs, a job key, or - for stdin")
    asked = _asked(question) if question is not None else None
    store = session.store()
    with session.progress("read") as progress:
        if reindex and not InputsIndex(store.backend).remake(progress):
            session.note(f"the index cannot be kept: {store.backend.where} may only be read")
        if asked is None:
            return 0
        found = store.explain(asked, result_class, nearest=nearest, progress=progress)
    if session.as_json:
        session.document(found.to_json())
    else:
        _show(session, found)
    return 0 if found.hit else 1


def _asked(question: str) -> str | KeyInputs:
    """A job key as it is, or the document that a file or stdin has; stdin may have a key too."""
    from oarbank_cas.contracts.key_inputs import MAX_KEY_INPUTS, KeyInputs
    from oarbank_cas.contracts.keys import is_key

    if question != "-":
        return question if is_key(question) else read_key_inputs(question)
    data = read_input(question, MAX_KEY_INPUTS)
    text = data.strip().decode("ascii", "replace") if len(data) <= _MAX_KEY_LINE else ""
    return text if is_key(text) else KeyInputs.parse(data, "stdin")


def _show(session: Session, found: Explanation) -> None:
    session.line(f"{found.answer}  {found.job_key}  {found.result_class}")
    session.line(found.detail)
    if found.recorded_at is not None and not found.hit:
        session.line(f"recorded {found.recorded_at} by {found.recorded_by}")
    if found.ended is not None and found.ended.gc is not None:
        gc = found.ended.gc
        if gc.started is None:
            session.line(f"by gc {gc.run}, whose record is gone")
        else:
            policy = ", ".join(f"{name} {value}" for name, value in (gc.policy or {}).items())
            session.line(f"by gc {gc.run} of {gc.started}, run by {gc.by}, with the policy {policy or 'none'}")
    for blob in found.missing[:_SHOWN]:
        seen = f"last seen {blob.last_seen}, by {blob.seen_by}" if blob.last_seen else "last seen: not known"
        session.line(f"missing  {blob.digest}  {seen}; what became of it: {blob.why}")
    if found.missing_count > _SHOWN:
        session.line(f"and {found.missing_count - _SHOWN:,} more")
    for other in found.others[:_SHOWN]:
        session.line(f"also  {other.job_key}  {other.result_class}  {other.status}")
    if found.key_inputs == "gone":
        session.line("its key inputs were kept, and are gone")
    _show_nearest(session, found)


def _show_nearest(session: Session, found: Explanation) -> None:
    if found.searched is None:
        if found.answer in ("never", "other-stage"):
            session.note("give the key's inputs, not the key alone, to see the nearest that is recorded")
        return
    if not found.nearest:
        session.line(f"nothing like it is recorded with its inputs (among {found.searched:,} jobs of the module)")
    for near in found.nearest:
        times = "1 difference" if near.count == 1 else f"{near.count:,} differences"
        session.line(f"near  {near.job_key}  {near.result_class}  {near.recorded_at}  {times}")
        for each in near.differences:
            session.line(f"  {each}")
        if near.count > len(near.differences):
            session.line(f"  and {near.count - len(near.differences):,} more")
