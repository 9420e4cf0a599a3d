"""Putting right what a verification found: from what the store itself still has, else from another store.

Only verified bytes go in, under names where nothing stands, and every healed blob is read once more afterwards. Nothing
is deleted: what was in the way is moved to `damaged/`.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from typing import TYPE_CHECKING

from oarbank_cas import copying, layout, stopping
from oarbank_cas import entry as codec
from oarbank_cas.errors import CasError, CorruptError, NotFoundError, UnavailableError
from oarbank_cas.gc.names import is_entry_name
from oarbank_cas.intake import Intake
from oarbank_cas.verify.checks import check_entry, pin_refs, read_pin

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from oarbank_cas.backends.base import ObjectStat, Reader
    from oarbank_cas.rooms import Rooms
    from oarbank_cas.verify.report import Problem


class _Stream:
    """A stored object as a binary stream, for `Intake.add_stream`."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader

    def read(self, size: int) -> bytes:
        """The next bytes."""
        return self._reader.read(size)


class Repair:
    """Heals one store.

    Args:
        rooms: the store.
        source: another store, or None.
        progress: called with the bytes of each blob that is brought.
        workers: threads.
    """

    KINDS = ("damaged", "missing", "misplaced", "irregular")
    """Kinds of problems that can be healed."""

    def __init__(
        self, rooms: Rooms, source: Rooms | None, progress: Callable[[int], None], workers: int | None
    ) -> None:
        self._rooms = rooms
        self._source = source
        self._workers = workers or os.cpu_count() or 1
        self._copier = (
            None if source is None else copying.Copier(source, rooms, copying.Options(replace_ended=False), progress)
        )

    def heal(self, problems: list[Problem]) -> Iterator[tuple[Problem, str | None]]:
        """Try to put problems right; how each was, or None where it was not."""
        with stopping.Threads(self._workers, "repair") as pool:
            yield from zip(problems, pool.map(self._guarded, problems), strict=True)

    def _guarded(self, problem: Problem) -> str | None:
        try:
            return self._heal(problem)
        except UnavailableError:
            raise
        except CasError:
            return None  # the problem stands as it was told

    def _heal(self, problem: Problem) -> str | None:
        if problem.digest is None:
            if problem.name.startswith(layout.PINS):
                return self._pin(problem) if problem.kind == "missing" else None
            return self._entry(problem) if is_entry_name(problem.name) else None
        if problem.kind == "misplaced":
            return self._misplaced(problem.name, problem.digest)
        if problem.name.startswith(layout.FOSSILS):
            # A fossil is a spare: with the damaged one set aside, what is needed is told as missing.
            return "it was a spare" if problem.aside and self._is_spare(problem.digest) else None
        return self._blob(problem.digest)

    def _is_spare(self, digest: str) -> bool:
        return self._rooms.blobs.has(digest) and self._rooms.blobs.check(digest)

    # -- blobs

    def _blob(self, digest: str) -> str | None:
        if self._rooms.blobs.has(digest) and self._stands(digest):
            return "it is there again"
        ways: tuple[tuple[str, Callable[[str], bool]], ...] = (
            ("it was healed from a fossil", self._from_fossil),
            ("what was set aside is sound after all, and was put back", self._from_damaged),
            ("it was healed from the other store", self._from_source),
        )
        for how, bring in ways:
            try:
                if bring(digest) and self._stands(digest):
                    return how
            except (NotFoundError, CorruptError):
                continue
        return None

    def _from_fossil(self, digest: str) -> bool:
        return self._rooms.blobs.revive(digest) is not None

    def _stands(self, digest: str) -> bool:
        """Whether the right bytes are there now, under the blob's own name."""
        return self._rooms.blobs.check(digest) and self._rooms.blobs.has(digest)

    def _from_damaged(self, digest: str) -> bool:
        """Bytes that failed their check by a fault of the machine may be right when it is mended."""
        prefix = f"{layout.DAMAGED}{digest}."
        for stat in self._rooms.backend.listing(layout.DAMAGED, after=prefix):
            if not stat.name.startswith(prefix):
                return False
            if self._add(stat.name, digest):
                return True
        return False

    def _add(self, name: str, digest: str) -> bool:
        """Put the bytes of an object, if they are those of a blob."""
        backend = self._rooms.backend
        with backend.open(name) as reader, Intake(backend, self._rooms.blobs) as intake:
            if intake.add_stream(_Stream(reader)).digest != digest:  # type: ignore[arg-type]
                return False
            intake.commit()
        return True

    def _from_source(self, digest: str) -> bool:
        if self._copier is None or self._source is None:
            return False
        self._copier.blobs({digest: self._source.blobs.size_for_readers(digest) or 0})
        return True

    def _misplaced(self, name: str, digest: str) -> str | None:
        """Bring a blob under its own name; what nobody finds is set aside."""
        stat = self._rooms.backend.stat(name)
        if stat is None:  # brought by a run that was cut off
            return "it stands under its own name" if self._stands(digest) else None
        if not self._add(name, digest) or not self._stands(digest):
            return None
        self._rooms.blobs.move_aside(digest, stat)
        return f"it stands under its own name; what was misplaced is in {layout.DAMAGED}"

    # -- entries and pins

    def _pin(self, problem: Problem) -> str | None:
        """Bring what a pin keeps."""
        backend, blobs = self._rooms.backend, self._rooms.blobs
        pin = read_pin(backend, problem.name)
        if self._copier is not None:
            if pin.dataset is not None:
                self._copier.dataset(pin.dataset)
            elif pin.entry is not None:
                self._copier.entry(pin.entry)
        refs, wrong = pin_refs(backend, blobs, problem.name, pin)
        if wrong is not None or any(blobs.size_for_readers(ref.digest.hex()) is None for ref in refs):
            return None
        return "all that it keeps is there"

    def _entry(self, problem: Problem) -> str | None:
        """Bring an entry that is damaged here; it takes the place of that very one."""
        if self._copier is None:
            return None
        with contextlib.suppress(NotFoundError):  # it was never there
            data, stat = self._rooms.backend.read(problem.name, codec.MAX_OBJECT)
            if self._is_sound(stat, data):
                return "it is there again"
            if not codec.is_surely_entry(data):
                return None
            # Named by its bytes: however often they cannot be healed, they are kept once.
            kept = layout.damaged(copying.key_of(problem.name)[0].hex, hashlib.sha256(data).hexdigest()[:16])
            self._rooms.backend.create(kept, data)
        if not self._copier.entry(problem.name):
            return None
        data, stat = self._rooms.backend.read(problem.name, codec.MAX_OBJECT)
        return "it was healed from the other store" if self._is_sound(stat, data) else None

    def _is_sound(self, stat: ObjectStat, data: bytes) -> bool:
        facts, wrong = check_entry(self._rooms.blobs, stat, data)
        return facts is not None and wrong is None
