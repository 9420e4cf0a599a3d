"""Commands that bring artifacts out of the store: stage for jobs, fetch for people."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from oarbank_cas.cli.session import Session, pass_session, read_input
from oarbank_cas.errors import InvalidInputError, NotFoundError

if TYPE_CHECKING:
    from oarbank_cas.cache.carrying import Placement
    from oarbank_cas.contracts.manifest import FileRef
    from oarbank_cas.store import Store

_MAX_SPEC = 64 * 2**20


@click.command()
@click.argument("spec", required=False, metavar="SPEC.json | -")
@click.option("--workdir", metavar="W", help="The job's work directory; it exists.")
@click.option(
    "--placement",
    type=click.Choice(["auto", "reflink", "copy", "hardlink"]),
    default="auto",
    show_default=True,
    help="How files come out of the cache: by shared blocks where that works, else as copies; or as hard links.",
)
@click.option("--check", metavar="W", help="Place nothing: say what the job in W has changed among its inputs.")
@pass_session
def stage(session: Session, spec: str | None, workdir: str | None, placement: Placement, check: str | None) -> int:
    """Place the inputs and datasets of a spec envelope in a work directory, as read-only files.

    Each mount appears whole or not at all. Again is a no-op; anything else at a mount is an error.

    After the job, --check W finds inputs that it changed, and drops what it spoilt from the cache (exit code 1 if there
    were any). The spec may be left out where the cache has a record of what was placed.

    \b
    Examples:
      oarbank-cas stage spec.json --workdir work
      oarbank-cas stage --check work spec.json
    """
    if check is not None:
        if workdir is not None:
            raise click.UsageError("--check W names the work directory: leave --workdir out")
        return _check(session, check, read_input(spec, _MAX_SPEC) if spec is not None else None)
    if spec is None or workdir is None:
        raise click.UsageError("name the spec, and the work directory with --workdir")
    data = read_input(spec, _MAX_SPEC)
    store = session.store()
    with session.progress("stage") as progress:
        mounted = store.stage(data, workdir, progress=progress, placement=placement)
    if session.as_json:
        session.document(
            {
                "mounts": [
                    {
                        "name": each.name,
                        "dataset": each.dataset,
                        "mount": each.mount,
                        "files": each.files,
                        "size": each.size,
                        "placed": each.placed,
                    }
                    for each in mounted
                ]
            }
        )
        return 0
    for each in mounted:
        name = f"inputs.{each.name}" if each.name else "dataset"
        state = "placed" if each.placed else "there already"
        session.line(f"{name}  {each.dataset}  {each.mount}  {each.files} files, {each.size} bytes, {state}")
    return 0


def _check(session: Session, workdir: str, spec: bytes | None) -> int:
    changed = session.store().check_mounts(workdir, spec)
    if session.as_json:
        session.document({"workdir": workdir, "changed": [asdict(each) for each in changed]})
        return 1 if changed else 0
    for each in changed:
        whose = f"inputs.{each.name}" if each.name else "dataset"
        session.line(f"{each.what}  {each.path}  {whose}  {each.dataset}  by job {each.job_key or 'unknown'}")
        if each.spoilt_cache:
            session.line("  a hard link: the cached blob was spoilt by that, and is dropped")
        for path in each.also_mounted:
            session.line(f"  the same file, in another mount: {path}")
    if not changed:
        session.line("all inputs are as they were placed")
    return 1 if changed else 0


@click.command()
@click.argument("what", metavar="KEY | art:DIGEST")
@click.argument("part", required=False, metavar="[NAME[/PATH]]")
@click.option("-o", "--output", default=".", show_default=True, metavar="DIR", help="The folder to write to.")
@click.option("--class", "result_class", default="any", show_default=True, help="The result class of a key.")
@pass_session
def fetch(session: Session, what: str, part: str | None, output: str, result_class: str) -> None:
    """Write a result's artifacts, one of them, or one file, to a folder.

    All artifacts of a key go to DIR/<name>/..., one artifact or a dataset to DIR/..., one file to DIR/<its name>. Of a
    dataset (art:...), which has no artifact names, PART is the path of a file. Nothing that is there is overwritten.

    \b
    Examples:
      oarbank-cas fetch $KEY -o results
      oarbank-cas fetch $KEY plots/summary.png
      oarbank-cas fetch art:$DIGEST -o reference
    """
    store = session.store()
    if what.startswith("art:"):
        files = _part(store.files_of(what), part, what)
    else:
        files = _of_result(store, what, result_class, part)
    with session.progress("fetch") as progress:
        written = store.fetch(files, output, progress)
    size = sum(file.size for _, file in files)
    if session.as_json:
        session.document(
            {
                "output": output,
                "written": written,
                "files": [{"path": path, "digest": file.digest, "size": file.size} for path, file in files],
            }
        )
    else:
        session.line(
            f"{len(files)} files, {size} bytes in {output} ({written} written, {len(files) - written} there already)"
        )


def _of_result(store: Store, key: str, result_class: str, part: str | None) -> list[tuple[str, FileRef]]:
    answer = store.lookup(key, result_class, complete=False)  # what is absent shows when it is fetched
    if not answer.hit:
        raise NotFoundError(f"{key} in class {result_class}: miss ({answer.reason}): {answer.detail}")
    if not answer.datasets:
        raise NotFoundError(f"{key} in class {result_class} has no artifacts")
    if part is None:
        return [
            (f"{name}/{file.path}", file)
            for name, dataset in answer.datasets.items()
            for file in store.files_of(dataset)
        ]
    name, _, path = part.partition("/")
    if name not in answer.datasets:
        raise NotFoundError(f"{key} has no artifact {name!r}; it has {', '.join(sorted(answer.datasets))}")
    return _part(store.files_of(answer.datasets[name]), path or None, part)


def _part(files: tuple[FileRef, ...], path: str | None, label: str) -> list[tuple[str, FileRef]]:
    if path is None:
        return [(file.path, file) for file in files]
    for file in files:
        if file.path == path:
            return [(path.rpartition("/")[2], file)]
    below = [file for file in files if file.path.startswith(path.rstrip("/") + "/")]
    if below:
        raise InvalidInputError(
            f"is a folder with {len(below)} files; name one of them, such as {below[0].path}", label
        )
    raise NotFoundError(f"{label}: no file {path!r} in it; it has {len(files)}, such as {files[0].path}")
