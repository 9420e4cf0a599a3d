"""A look at what a store's storage honours, what is lost where it does not, and what may harm it from outside."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from oarbank_cas import layout, opening
from oarbank_cas.backends.local import LocalBackend
from oarbank_cas.errors import CasError, UnavailableError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from oarbank_cas.backends.s3.options import S3Options
    from oarbank_cas.backends.s3.wire import Wire
    from oarbank_cas.cache.cache import Cache


@dataclass(slots=True)
class Report:
    """What was found.

    Attributes:
        store: the store's URL.
        server: what the storage calls itself.
        engine: what this machine talks to a bucket with; None for a directory.
        checks: each with `check`, `answer` (`yes`, `no`, `unknown`) and `detail`.
        capabilities: what is kept with the store.
        clock_difference_s: seconds by which the store's clock is ahead of this machine's; None where it is not known.
        consequences: what is done otherwise here, and what that costs.
        problems: what must be seen to.
        kept: the capabilities were written into the store.
    """

    store: str
    server: str = "a file system"
    engine: str | None = None
    checks: list[dict[str, str]] = field(default_factory=list)
    capabilities: dict[str, Any] = field(default_factory=dict)
    clock_difference_s: float | None = None
    consequences: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    kept: bool = False

    @property
    def exit_code(self) -> int:
        """1 where there are problems."""
        return 1 if self.problems else 0

    def to_json(self) -> dict[str, Any]:
        """The report as a document."""
        return asdict(self)


def examine(url: str, s3: S3Options | None = None, *, keep: bool = True) -> Report:
    """Look at a store's storage. Nothing of the look remains but, for a bucket, `capabilities.json`.

    Args:
        url: the store.
        s3: options of a bucket.
        keep: write what was found into the store, if there is one.

    Raises:
        UnavailableError, PermissionDeniedError: it is missing, or out of reach, or may not be used at all.
    """
    if not opening.is_s3(url):
        return _directory(opening.directory_of(url))
    wire = opening.s3_wire(url, s3)
    try:
        return _bucket(wire, keep=keep)
    finally:
        wire.close()


def _bucket(wire: Wire, *, keep: bool) -> Report:
    from oarbank_cas.backends.s3 import reading
    from oarbank_cas.backends.s3.probe import Probe

    report = Report(wire.where, engine=wire.engines)
    probe = Probe(wire)
    try:
        found = probe.run()
    except CasError as error:
        report.server = probe.server
        report.checks = [asdict(finding) for finding in probe.findings]
        report.problems.append(str(error))
        if isinstance(error, UnavailableError):
            raise
        return report
    report.server = probe.server
    report.checks = [asdict(finding) for finding in probe.findings]
    report.capabilities = asdict(found)
    report.clock_difference_s = probe.clock_difference_s
    report.consequences = found.consequences()
    if wire.is_fast and not found.verified_fast_puts:
        report.consequences.append("the server would not check the bytes of obstore's puts: boto3 puts, slower")
    if not probe.complete:
        report.problems.append("some of it could not be found out, and is not relied on: run this again")
    report.problems += lifecycle_problems(_lifecycle(wire), wire.place.prefix)
    if keep and reading.head(wire, layout.DESCRIPTOR) is not None:
        opening.keep_capabilities(wire, found)
        report.kept = True
    return report


def _lifecycle(wire: Wire) -> list[Mapping[str, Any]]:
    """The bucket's lifecycle rules; none where it has none, or they may not be read."""
    from oarbank_cas.backends.s3 import failures

    try:
        said = wire.client.get_bucket_lifecycle_configuration(**wire.bucket)
    except failures.CLIENT_ERRORS:
        return []
    return list(said.get("Rules", ()))


def lifecycle_problems(rules: list[Mapping[str, Any]], prefix: str) -> list[str]:
    """What a bucket's lifecycle rules could do to a store below `prefix`.

    Ending old versions and abandoned uploads is harmless. Taking objects away, or where they must be restored first, is
    not.
    """
    said = []
    for rule in rules:
        which = rule.get("Filter") or {}
        below = rule.get("Prefix") or which.get("Prefix") or (which.get("And") or {}).get("Prefix") or ""
        if rule.get("Status") != "Enabled" or not (below.startswith(prefix) or prefix.startswith(below)):
            continue
        name = rule.get("ID") or below or "unnamed"
        expiration = rule.get("Expiration") or {}
        if "Days" in expiration or "Date" in expiration:
            said.append(f"the bucket's lifecycle rule {name!r} removes objects of this store: take it away")
        said += [
            f"the bucket's lifecycle rule {name!r} moves objects of this store to {move['StorageClass']}, from where "
            "they must be restored before they can be read: take it away"
            for move in rule.get("Transitions", ())
            if move.get("StorageClass") in ("GLACIER", "DEEP_ARCHIVE")
        ]
    return said


def examine_cache(report: Report, cache: Cache, workdir: str) -> None:
    """Add to a report what this machine's cache can do for a work directory there."""
    from oarbank_cas.cache.carrying import abilities

    try:
        cache.folder.prepare()
        cache.index.rows([])
        works = abilities(cache.folder.where, workdir)
    except CasError as error:
        report.problems.append(f"the cache cannot be used: {error}")
        return
    except OSError as error:
        report.problems.append(f"no file can be placed in {os.path.abspath(workdir)}: {error.strerror}")
        return
    where = f"from {cache.folder.where} to {os.path.abspath(workdir)}"
    for way, works_here in works.items():
        answer = "yes" if works_here else "no"
        report.checks.append({"check": f"cache: places by {way}", "answer": answer, "detail": where})
    if not works["reflink"]:
        report.consequences.append("files are placed from the cache as copies, each of which takes its own space")


def _directory(path: str) -> Report:
    report = Report(path)
    backend = LocalBackend(path, layout.DESCRIPTOR)
    try:
        if backend.stat(layout.DESCRIPTOR) is None:
            raise UnavailableError(f"there is no store at {path}: make one with `oarbank-cas init`")
        report.checks.append({"check": "may read", "answer": "yes", "detail": ""})
        try:
            incoming = backend.incoming(1)
            incoming.write(b"1")
            incoming.finish()
            incoming.discard()
            backend.now()
        except CasError as error:
            report.problems.append(str(error))
        report.checks.append({"check": "may write", "answer": "no" if report.problems else "yes", "detail": ""})
        flushes = "yes" if backend.group_commit else "no"
        report.checks.append({"check": "flushes many files at once", "answer": flushes, "detail": os.name})
    finally:
        backend.close()
    return report
