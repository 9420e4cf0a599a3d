"""A store: opened by its URL, its rooms put together. No logic of its own."""

from __future__ import annotations

import contextlib
import functools
import os
from typing import TYPE_CHECKING, BinaryIO, Self

from oarbank_cas import descriptor as descriptors
from oarbank_cas import instants, layout, opening
from oarbank_cas.agent.publish import Published, Publisher, Uploaded
from oarbank_cas.backends.readonly import ReadOnlyBackend
from oarbank_cas.blobs import Blob, BlobReader, Blobs
from oarbank_cas.errors import (
    ConflictError,
    NotFoundError,
    UnavailableError,
)
from oarbank_cas.gc.hits import HitRecorder
from oarbank_cas.intake import Intake
from oarbank_cas.lookups import Lookup, Lookups
from oarbank_cas.pins import Pins
from oarbank_cas.results import MAX_INLINE_KB, Origin, Recorded, Results
from oarbank_cas.sources import PathSource

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from oarbank_cas.agent.checking import ChangedInput
    from oarbank_cas.agent.stage import Mounted, Resolver, Stager
    from oarbank_cas.attempt.publishing import PublishedSeal
    from oarbank_cas.attempt.view import AttemptView
    from oarbank_cas.backends.base import Backend
    from oarbank_cas.backends.s3.options import S3Options
    from oarbank_cas.cache.cache import Cache
    from oarbank_cas.cache.carrying import Placement
    from oarbank_cas.contracts.key_inputs import KeyInputs
    from oarbank_cas.contracts.manifest import FileRef
    from oarbank_cas.copying import Options as CopyOptions
    from oarbank_cas.copying import Report as CopyReport
    from oarbank_cas.descriptor import Descriptor
    from oarbank_cas.explain import Explanation
    from oarbank_cas.gc.collect import Options as GcOptions
    from oarbank_cas.gc.report import Report as GcReport
    from oarbank_cas.gc.retention import Policy
    from oarbank_cas.grants import Grant
    from oarbank_cas.progress import Progress, Step
    from oarbank_cas.purge import Report as PurgeReport
    from oarbank_cas.stats import Stats
    from oarbank_cas.verify import Options as VerifyOptions
    from oarbank_cas.verify import Report as VerifyReport


class Store:
    """A store of blobs and results. Safe to use from many threads; a store from many processes and machines.

    Open one with `Store.open`, make one with `Store.init`. Works as a context manager.

    Args:
        backend: its storage.
        descriptor: what it says of itself.
        cache: this machine's cache, or None. Readers' blobs come through it; whatever decides by what the store itself
            has does not ask it.
    """

    def __init__(self, backend: Backend, descriptor: Descriptor, cache: Cache | None = None) -> None:
        self.backend = backend
        self.descriptor = descriptor
        self.cache = cache
        self.blobs = Blobs(backend, descriptor.session_s)
        self.reads = _read_through(self.blobs, backend, descriptor, cache) if cache is not None else self.blobs
        self.lookups = Lookups(backend, self.blobs, descriptor.session_s)
        self.results = Results(backend, self.blobs, self.lookups, descriptor.session_s)
        self._hits = HitRecorder(backend)
        self.lookups.on_hit = self._hits.note
        self.blobs.on_gone = self.reads.on_gone = self.lookups.forget
        self.pins = Pins(backend, self.blobs, self.lookups, self.results, descriptor.session_s)
        self._publisher = Publisher(backend, self.blobs, self.results)

    # -- opening

    @classmethod
    def open(
        cls,
        url: str | os.PathLike[str],
        read_only: bool = False,
        *,
        s3: S3Options | None = None,
        cache: str | os.PathLike[str] | None = None,
        cache_bytes: int | None = None,
    ) -> Self:
        """Open a store.

        Args:
            url: a directory's path, a `file:` URL, or `s3://bucket/prefix`.
            read_only: refuse every change.
            s3: options of a bucket; AWS's own settings where None.
            cache: the directory of a local cache for what is read, made if absent; none where None. What is wrong with
                it is logged as a warning (`oarbank_cas.cache`), and reads go straight to the store.
            cache_bytes: bytes that the cache may hold; 20 GiB where None.

        Raises:
            UnavailableError: there is no store.
            UnsupportedError: its kind of storage, or its format, is unknown to this version.
            CorruptError: its descriptor is damaged.
            PermissionDeniedError: it may not be read.
        """
        backend = opening.open_backend(url, s3, read_only=read_only)
        try:
            data, _ = backend.read(layout.DESCRIPTOR, descriptors.MAX_BYTES)
            descriptor = descriptors.decode(data, backend.where)
        except BaseException as error:
            backend.close()
            if isinstance(error, NotFoundError | UnavailableError):
                raise opening.missing(backend.where, error) from error
            raise
        kept = _open_cache(cache, cache_bytes) if cache is not None else None
        return cls(ReadOnlyBackend(backend) if read_only else backend, descriptor, kept)

    @classmethod
    def init(
        cls,
        url: str | os.PathLike[str],
        *,
        session_s: int | None = None,
        grace_s: int | None = None,
        slack_s: int | None = None,
        s3: S3Options | None = None,
    ) -> tuple[Self, bool]:
        """Make a store, or open the one that is there.

        Args:
            url: as in `open`; a missing directory is made, a bucket must be there.
            session_s: seconds for which a writer may rely on what it has seen; 6 hours where None.
            grace_s: seconds before gc looks at an unreferenced blob; 24 hours where None.
            slack_s: seconds by which clocks and listings may be off; 5 minutes where None.
            s3: as in `open`.

        Returns:
            The store, and whether it was made.

        Raises:
            ConflictError: the store that is there has other numbers, or the directory cannot be made.
            PermissionDeniedError: it may not be made.
            InvalidInputError: a number is out of range.
        """
        asked = {"session_s": session_s, "grace_s": grace_s, "slack_s": slack_s}
        spans = {"session_s": descriptors.SESSION_S, "grace_s": descriptors.GRACE_S, "slack_s": descriptors.SLACK_S}
        spans |= {name: value for name, value in asked.items() if value is not None}
        descriptors.new(**spans, created="")
        with contextlib.closing(opening.new_backend(url, s3)) as backend:
            made = _create_descriptor(backend, spans)
        store = cls.open(url, s3=s3)
        for name, value in asked.items():
            standing = getattr(store.descriptor, name)
            if value not in (None, standing):
                store.close()
                raise ConflictError(
                    f"the store {store.backend.where} has {name} = {standing}, not {value}, and clients rely on it: "
                    f"make a new store with --{name.replace('_', '-')} {value} and copy this one into it"
                )
        return store, made

    def close(self) -> None:
        """Give back what the store holds open, and remove its temporaries."""
        self._hits.close()
        if self.cache is not None:
            self.cache.close()
        self.backend.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- blobs

    def put_bytes(self, data: bytes) -> Blob:
        """Store bytes, durable on return; what is there already is not written again."""
        with self.intake() as intake:
            blob = intake.add_bytes(data)
            intake.commit()
            return blob

    def put_stream(self, stream: BinaryIO) -> Blob:
        """Store all bytes of a binary stream, however many; as `put_bytes`."""
        with self.intake() as intake:
            blob = intake.add_stream(stream)
            intake.commit()
            return blob

    def put_file(self, path: str | os.PathLike[str]) -> Blob:
        """Store a file; as `put_files` with one."""
        return self.put_files([path])[0]

    def put_files(self, paths: Sequence[str | os.PathLike[str]], progress: Progress | None = None) -> list[Blob]:
        """Store files, all durable on return; what is there already is not written again.

        Raises:
            InvalidInputError: one is no readable regular file.
            StorageIOError: one changed while it was read, or writing failed.
        """
        with self.intake() as intake:
            blobs = intake.add_files([PathSource(os.fspath(path)) for path in paths], progress)
            intake.commit()
            return blobs

    def intake(self) -> Intake:
        """A batch of puts that share their flushes; see `Intake`."""
        return Intake(self.backend, self.blobs)

    def open_blob(self, digest: str) -> BlobReader:
        """A blob as a binary stream; the read that reaches the end of wrong bytes raises CorruptError.

        Raises:
            NotFoundError: it is absent.
        """
        return self.reads.open(digest)

    def get_bytes(self, digest: str, max_bytes: int | None = None) -> bytes:
        """A blob's verified bytes; see `Blobs.get_bytes`."""
        return self.reads.get_bytes(digest, max_bytes)

    def get_file(self, digest: str, path: str | os.PathLike[str]) -> int:
        """Write a blob's verified bytes to a file; see `Blobs.get_file`."""
        return self.reads.get_file(digest, path)

    def stat(self, digest: str) -> Blob | None:
        """Size and time of a blob, or None where it is absent."""
        return self.blobs.stat(digest)

    def has(self, digest: str) -> bool:
        """Whether a blob is there."""
        return self.blobs.has(digest)

    def missing(self, digests: Iterable[str]) -> list[str]:
        """Those of `digests` that are absent, each once, in the order given."""
        return self.blobs.missing(digests)

    def grant_put(self, digests: Iterable[str], expires_s: int = 3600) -> list[Grant]:
        """Let agents without a credential put these blobs into a bucket; see `grants.grant_put`."""
        from oarbank_cas.grants import grant_put

        return grant_put(self.backend, digests, expires_s)

    def grant_get(self, digests: Iterable[str], expires_s: int = 3600) -> list[Grant]:
        """Let agents without a credential get these blobs from a bucket; see `grants.grant_get`."""
        from oarbank_cas.grants import grant_get

        return grant_get(self.backend, self.blobs, digests, expires_s)

    # -- results

    def lookup(self, key: str, result_class: str = "any", *, complete: bool = True) -> Lookup:
        """What is recorded for a job; see `Lookups.lookup`."""
        return self.lookups.lookup(key, result_class, complete=complete)

    def lookup_many(self, keys: Iterable[str], result_class: str = "any", *, complete: bool = True) -> Iterator[Lookup]:
        """One answer a key, in order; see `Lookups.lookup_many`."""
        return self.lookups.lookup_many(keys, result_class, complete=complete)

    def record(
        self,
        key: str,
        envelope: bytes,
        origin: Origin,
        result_class: str = "any",
        *,
        max_inline_kb: int = MAX_INLINE_KB,
        key_inputs: KeyInputs | None = None,
    ) -> Recorded:
        """Record an envelope whose blobs are in the store; see `Results.record`.

        The first to record wins. On storage that ignores conditions that is best effort: see `Recorded.exclusive`.
        """
        return self.results.record(
            key, envelope, origin, result_class, max_inline_kb=max_inline_kb, key_inputs=key_inputs
        )

    def invalidate(self, key: str, result_class: str = "any", *, by: str, reason: str) -> bool:
        """End an entry; see `Results.invalidate`."""
        return self.results.invalidate(key, result_class, by=by, reason=reason)

    def undo_invalidate(self, key: str, result_class: str = "any", *, by: str) -> bool:
        """Bring an ended entry back; see `Results.undo`."""
        return self.results.undo(key, result_class, by=by)

    def explain(
        self,
        question: str | KeyInputs,
        result_class: str = "any",
        *,
        nearest: int = 5,
        progress: Step | None = None,
    ) -> Explanation:
        """Why a job is a hit or a miss, and what was recorded that is like it; see `oarbank_cas.explain.explain`."""
        from oarbank_cas.explain import explain

        return explain(self, question, result_class, nearest=nearest, progress=progress)

    # -- operators

    def gc(
        self,
        policy: Policy | None = None,
        options: GcOptions | None = None,
        *,
        by: str = "oarbank-cas gc",
        progress: Callable[[str, int], None] | None = None,
    ) -> GcReport:
        """Collect garbage, or say what would be collected; see `oarbank_cas.gc.collect.collect`."""
        from oarbank_cas.gc.collect import collect

        return collect(self.backend, self.descriptor, policy, options, by=by, progress=progress)

    def verify(
        self, options: VerifyOptions | None = None, source: Store | None = None, progress: Step | None = None
    ) -> VerifyReport:
        """Check everything, and repair it where asked; see `oarbank_cas.verify.verify`."""
        from oarbank_cas.verify import verify

        return verify(self, options, source, progress)

    def stats(self, progress: Step | None = None, *, with_gc: bool = True) -> Stats:
        """Figures about everything in the store; see `oarbank_cas.stats.stats`."""
        from oarbank_cas.stats import stats

        return stats(self, progress, with_gc=with_gc)

    def copy_to(
        self,
        target: Store,
        wanted: Sequence[str] | None = None,
        options: CopyOptions | None = None,
        progress: Step | None = None,
    ) -> CopyReport:
        """Copy what is wanted, or everything, to another store; see `oarbank_cas.copying.copy`."""
        from oarbank_cas.copying import copy

        return copy(self, target, wanted, options, progress)

    def purge(self, digest: str, *, by: str, reason: str, progress: Step | None = None) -> PurgeReport:
        """Remove a blob at once and for good, whatever refers to it; see `oarbank_cas.purge.purge`."""
        from oarbank_cas.purge import purge

        return purge(self, digest, by=by, reason=reason, progress=progress)

    # -- jobs

    @functools.cached_property
    def _stager(self) -> Stager:
        from oarbank_cas.agent.stage import Stager  # which most commands have no need of

        return Stager(self.reads)

    def publish(
        self,
        key: str,
        workdir: str | os.PathLike[str],
        origin: Origin,
        result_class: str = "any",
        *,
        result: str | os.PathLike[str] | None = None,
        max_inline_kb: int = MAX_INLINE_KB,
        progress: Progress | None = None,
        key_inputs: KeyInputs | None = None,
    ) -> Published:
        """Upload a finished job's files and record its envelope; see `Publisher.publish`."""
        return self._publisher.publish(
            key,
            workdir,
            result,
            origin,
            result_class,
            max_inline_kb=max_inline_kb,
            progress=progress,
            key_inputs=key_inputs,
        )

    def upload(
        self,
        workdir: str | os.PathLike[str],
        *,
        result: str | os.PathLike[str] | None = None,
        max_inline_kb: int = MAX_INLINE_KB,
        progress: Progress | None = None,
    ) -> Uploaded:
        """Upload a finished job's files without recording; see `Publisher.upload`."""
        return self._publisher.upload(workdir, result, max_inline_kb=max_inline_kb, progress=progress)

    def stage(
        self,
        spec: bytes,
        workdir: str | os.PathLike[str],
        *,
        resolver: Resolver | None = None,
        progress: Progress | None = None,
        placement: Placement = "auto",
    ) -> list[Mounted]:
        """Place a spec envelope's inputs and datasets; see `Stager.stage`."""
        return self._stager.stage(spec, workdir, resolver, progress, placement)

    def check_mounts(
        self, workdir: str | os.PathLike[str], spec: bytes | None = None, *, resolver: Resolver | None = None
    ) -> list[ChangedInput]:
        """What the job of a work directory has changed among its inputs; see `Stager.check`."""
        return self._stager.check(workdir, spec, resolver)

    def files_of(self, dataset: str) -> tuple[FileRef, ...]:
        """The files of an `art:` dataset; see `Stager.files_of`."""
        return self._stager.files_of(dataset)

    def fetch(
        self,
        files: Sequence[tuple[str, FileRef]],
        directory: str | os.PathLike[str],
        progress: Progress | None = None,
    ) -> int:
        """Write files to a directory for people; see `Stager.fetch`."""
        return self._stager.fetch(files, directory, progress)

    # -- attempts

    def publish_attempt(
        self,
        directory: str | os.PathLike[str],
        pin: str | None = None,
        *,
        note: str = "",
        by: str = "",
        expires_at: str | None = None,
        progress: Step | None = None,
    ) -> PublishedSeal:
        """Seal an attempt and keep it under a pin; see `AttemptPublisher.publish`."""
        from oarbank_cas.attempt.publishing import AttemptPublisher

        publisher = AttemptPublisher(self.backend, self.blobs, self.pins)
        return publisher.publish(directory, pin, note=note, by=by, expires_at=expires_at, progress=progress)

    def attempt(self, reference: str) -> AttemptView:
        """A published attempt by its dataset or its pin's name; see `published_attempt`."""
        from oarbank_cas.attempt.published import published_attempt

        return published_attempt(self.reads, self.pins, reference)


def _open_cache(path: str | os.PathLike[str], budget: int | None) -> Cache:
    from oarbank_cas.cache.cache import DEFAULT_BYTES, Cache

    return Cache(path, DEFAULT_BYTES if budget is None else budget)


def _read_through(blobs: Blobs, backend: Backend, descriptor: Descriptor, cache: Cache) -> Blobs:
    from oarbank_cas.cache.reads import CachedBlobs

    return CachedBlobs(backend, descriptor.session_s, blobs, cache)


def _create_descriptor(backend: Backend, spans: dict[str, int]) -> bool:
    """Create the descriptor if it is absent; whether this call did."""
    if backend.stat(layout.DESCRIPTOR) is not None:
        return False
    if backend.stat(layout.CACHE_DESCRIPTOR) is not None:
        raise ConflictError(f"{backend.where} is a local cache: choose another directory")
    if next(backend.listing(layout.BLOBS), None) is not None:
        raise ConflictError(
            f"{backend.where} holds blobs but no {layout.DESCRIPTOR}: restore that file, or choose another directory"
        )
    data = descriptors.new(**spans, created=instants.to_text(backend.now())).encode()
    return backend.create(layout.DESCRIPTOR, data)
