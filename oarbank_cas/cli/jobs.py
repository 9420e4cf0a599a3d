"""Commands about a job's end: its key, publishing its files, recording its envelope."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from oarbank_cas.cli.explain import read_key_inputs
from oarbank_cas.cli.session import Session, pass_session, read_input, whoami

if TYPE_CHECKING:
    from collections.abc import Callable

    from oarbank_cas.agent.publish import Uploaded
    from oarbank_cas.results import Recorded

_MAX_INPUTS = 64 * 2**20


@click.command()
@click.option("--module", required=True, metavar="ID", help="The module's id, such as org.example.align.")
@click.option("--compat", required=True, metavar="TEXT", help="The module's compatibility level.")
@click.option("--stage", metavar="NAME", help="The stage, for a module with several.")
@click.argument("inputs", metavar="INPUTS.json | -")
@pass_session
def key(session: Session, module: str, compat: str, stage: str | None, inputs: str) -> None:
    """Print the job key of key inputs, a JSON file or stdin. No store is needed.

    \b
    Example:
      oarbank-cas key --module org.example.align --compat 3 inputs.json
    """
    from oarbank_cas.contracts.canonical import parse_json
    from oarbank_cas.contracts.keys import job_key

    where = "stdin" if inputs == "-" else inputs
    found = job_key(module, compat, parse_json(read_input(inputs, _MAX_INPUTS), where=where), stage)
    if session.as_json:
        session.document({"job_key": found})
    else:
        click.echo(found)


def _origin_options(command: Callable[..., Any]) -> Callable[..., Any]:
    for option, settings in (
        ("--max-inline-kb", {"type": click.IntRange(min=0), "default": 256, "show_default": True,
                             "help": "KiB that the payload may have, as written."}),
        ("--key-inputs", {"metavar": "FILE",
                          "help": "What the key was computed from, kept for `explain`: a document of module, compat, "
                                  "inputs and stage."}),
        ("--module-id", {"metavar": "ID", "help": "The module's full id."}),
        ("--host", {"metavar": "NAME", "help": "The machine that the job ran on.  [default: provenance.host]"}),
        ("--attempt", {"metavar": "ID", "help": "The attempt's id.  [default: a new one]"}),
        ("--by", {"metavar": "WHO", "help": "Who records.  [default: user@machine]"}),
        ("--platform", {"metavar": "TOKEN", "help": "The platform that the job ran on, such as linux-amd64."}),
        ("--class", {"default": "any", "show_default": True, "help": "The result class to record in."}),
    ):  # fmt: skip
        names = (option, "result_class") if option == "--class" else (option,)
        command = click.option(*names, **settings)(command)
    return command


def _recorded_document(recorded: Recorded, uploaded: Uploaded | None) -> dict[str, Any]:
    document = {
        "job_key": recorded.job_key,
        "class": recorded.result_class,
        "recorded": recorded.recorded,
        "exclusive": recorded.exclusive,
        "datasets": dict(recorded.datasets),
        "attempt": recorded.header.get("attempt"),
        "by": recorded.header.get("recorded_by"),
        "envelope": recorded.envelope.decode(),
    }
    return document | (_uploaded_document(uploaded) if uploaded else {})


def _uploaded_document(uploaded: Uploaded) -> dict[str, Any]:
    return {
        "files": uploaded.files,
        "size": uploaded.size,
        "new_files": uploaded.new_files,
        "new_size": uploaded.new_size,
    }


def _tell(session: Session, recorded: Recorded, uploaded: Uploaded | None) -> None:
    if not recorded.exclusive:
        session.note(
            "the store's server ignores conditions: another who recorded this key at that moment may have been told "
            "that he was first, too; `oarbank-cas lookup` says what stands"
        )
    if session.as_json:
        session.document(_recorded_document(recorded, uploaded))
        return
    if uploaded is not None:
        session.note(
            f"{uploaded.files} files, {uploaded.size} bytes; new: {uploaded.new_files} files, {uploaded.new_size} bytes"
        )
    if not recorded.recorded:
        same = uploaded is not None and uploaded.envelope == recorded.envelope
        what = "this very result" if same else "another result"
        session.note(f"{what} was recorded first, by {recorded.header.get('recorded_by')}; it stands")
    session.line(f"{'recorded' if recorded.recorded else 'stands'}  {recorded.job_key}  {recorded.result_class}")
    for name, dataset in recorded.datasets.items():
        session.line(f"{dataset}  {name}")


@click.command()
@click.option("--job-key", metavar="KEY", help="The job's key; needed unless --upload-only.")
@click.option("--workdir", required=True, metavar="W", help="The job's work directory.")
@click.option("--result", metavar="PATH", help="The envelope.  [default: result.json in the work directory]")
@_origin_options
@click.option("--upload-only", is_flag=True, help="Upload, and print the envelope that `record` takes.")
@click.option("--out", metavar="PATH", help="With --upload-only: write the envelope there.")
@pass_session
def publish(
    session: Session,
    job_key: str | None,
    workdir: str,
    result: str | None,
    result_class: str,
    platform: str | None,
    by: str | None,
    attempt: str | None,
    host: str | None,
    module_id: str | None,
    key_inputs: str | None,
    max_inline_kb: int,
    upload_only: bool,
    out: str | None,
) -> None:
    """Upload a finished job's files, put digests into its envelope, and record it.

    Run it again after a failure: what has arrived is not sent again. If another result stands already for this key and
    class, that one stays, and is said (exit code 0).

    \b
    Examples:
      oarbank-cas publish --job-key $KEY --workdir work --platform linux-amd64
      oarbank-cas publish --upload-only --workdir work --out envelope.json
    """
    from oarbank_cas.results import Origin

    if out is not None and not upload_only:
        raise click.UsageError("--out goes with --upload-only")
    if job_key is None and not upload_only:
        raise click.UsageError("name the job's key with --job-key, or use --upload-only")
    if key_inputs is not None and upload_only:
        raise click.UsageError("--key-inputs goes with what is recorded: give it to `record`")
    made_of = read_key_inputs(key_inputs) if key_inputs is not None else None
    store = session.store()
    with session.progress("publish") as progress:
        if job_key is None or upload_only:
            uploaded = store.upload(workdir, result=result, max_inline_kb=max_inline_kb, progress=progress)
            recorded = None
        else:
            origin = Origin(by or whoami(), attempt, platform, host, module_id)
            recorded, uploaded = store.publish(
                job_key,
                workdir,
                origin,
                result_class,
                result=result,
                max_inline_kb=max_inline_kb,
                progress=progress,
                key_inputs=made_of,
            )
    if recorded is not None:
        _tell(session, recorded, uploaded)
        return
    _hand_over(session, uploaded, out)


def _hand_over(session: Session, uploaded: Uploaded, out: str | None) -> None:
    if out is not None:
        from oarbank_cas.agent.placing import write_document

        write_document(out, uploaded.envelope)
    if session.as_json:
        document = {"envelope": uploaded.envelope.decode(), "datasets": uploaded.datasets, "path": out}
        session.document(document | _uploaded_document(uploaded))
    elif out is None:
        sys.stdout.buffer.write(uploaded.envelope)


@click.command()
@click.argument("envelope", metavar="ENVELOPE.json | -")
@click.option("--job-key", required=True, metavar="KEY", help="The job's key.")
@_origin_options
@pass_session
def record(
    session: Session,
    envelope: str,
    job_key: str,
    result_class: str,
    platform: str | None,
    by: str | None,
    attempt: str | None,
    host: str | None,
    module_id: str | None,
    key_inputs: str | None,
    max_inline_kb: int,
) -> None:
    """Record an envelope whose files are in the store already (what `publish --upload-only` printed).

    \b
    Example:
      oarbank-cas record --job-key $KEY envelope.json
    """
    from oarbank_cas.entry import MAX_ENVELOPE
    from oarbank_cas.results import Origin

    if envelope == key_inputs == "-":
        raise click.UsageError("stdin is one document: name a file for the envelope or for the key inputs")
    data = read_input(envelope, MAX_ENVELOPE)
    made_of = read_key_inputs(key_inputs) if key_inputs is not None else None
    origin = Origin(by or whoami(), attempt, platform, host, module_id)
    recorded = session.store().record(
        job_key, data, origin, result_class, max_inline_kb=max_inline_kb, key_inputs=made_of
    )
    _tell(session, recorded, None)
