"""The index of key inputs in a store: noted at each record, gathered when it is asked (docs/formats.md).

A record leaves a small empty object whose name says everything. Who asks reads these names; where there are many they
are gathered into objects of up to 65,536 rows, which are merged as they grow, so that a question reads 64 bytes for
each job of the module, and nothing of the jobs themselves. What it answers with are keys to look at, no more: a row
that is wrong, stale or missing makes a worse answer and never a wrong one.

Nothing here needs a lock. An object of rows is named by its bytes and removed only after another that has its rows
stands, so that the worst that two who gather at once can do is to write a row twice.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from oarbank_cas import layout
from oarbank_cas.batches import in_order
from oarbank_cas.contracts.canonical import digest_of
from oarbank_cas.contracts.key_inputs import MAX_KEY_INPUTS, KeyInputs
from oarbank_cas.errors import (
    CasError,
    CorruptError,
    NotFoundError,
    PermissionDeniedError,
    StorageIOError,
    UnavailableError,
)
from oarbank_cas.inputs.rows import HALF_NAME, KEY, MAX_ROWS, ROW, Best, Hit, Rows, decode, encode
from oarbank_cas.inputs.sketch import SIZE, columns, distances, sketch

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from oarbank_cas.backends.base import Backend

Progress = Callable[[int], None]
"""Called with the bytes of each document that is read."""

GATHER_AT = 1024
"""Notes of one module from which on they are gathered."""

_CHUNK = 8192
_GATHERED = 16_384
"""Notes that are gathered in one go: their names are long."""

_TRIES = 5
_TAG = 16
_NEW = re.compile(rf"[0-9a-f]{{{_TAG}}}/([0-9a-f]{{2}})/(\1[0-9a-f]{{62}})\.([0-9a-f]{{{2 * SIZE}}})")
_ROWS = re.compile(rf"([0-9a-f]{{{_TAG}}})/([0-9a-f]{{{HALF_NAME}}})-([0-9a-f]{{{HALF_NAME}}})")


@dataclass(frozen=True, slots=True)
class Alike:
    """Keys to look at.

    Attributes:
        keys: hex parts of job keys, the most alike first.
        rows: how many jobs of the module the index has; one that is noted twice may count twice.
        damaged: objects of the index that are not what they should be.
    """

    keys: list[str]
    rows: int
    damaged: list[str]


def module_tag(module: str) -> str:
    """What stands for a module in names."""
    return digest_of(module.encode())[:_TAG]


class InputsIndex:
    """The index of one store.

    Args:
        backend: the store's storage.
    """

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    # -- what a record leaves

    def note(self, inputs: KeyInputs) -> None:
        """Note that these inputs are kept in the store.

        Raises:
            CasError: it cannot be written; the caller goes on without.
        """
        name = layout.key_inputs_new(module_tag(inputs.module), inputs.key.hex, sketch(inputs.document).hex())
        self._backend.create(name, b"")

    # -- asking

    def alike(self, inputs: KeyInputs, most: int, progress: Progress | None = None) -> Alike:
        """Find jobs of a module by how alike their inputs are. An index that is lost or damaged is made again.

        Args:
            inputs: the ones to compare with; they are not in the answer.
            most: keys to answer with, at most.
            progress: see `remake`.

        Raises:
            UnavailableError: the store is out of reach.
        """
        tag, wanted, own = module_tag(inputs.module), sketch(inputs.document), inputs.key.hex
        for last in (*[False] * (_TRIES - 1), True):
            with contextlib.suppress(_GoneError):
                best = Best(most + 1)
                rows, notes, damaged = self._look(tag, wanted, best, patient=not last)
                keys = self._keys(best, patient=not last)
                break
        if damaged or (not rows and self._is_empty()):
            best, rows = Best(most + 1), 0

            def look(of: str, made: dict[bytes, bytes]) -> None:
                nonlocal rows
                if of == tag:
                    rows += len(made)
                    named = list(made)
                    best.offer(distances(columns(made.values()), wanted), lambda at: (named[at].hex(), None))

            self.remake(progress, look)
            keys = self._keys(best, patient=False)
        elif notes >= GATHER_AT:
            with contextlib.suppress(CasError):  # the answer does not need it; who may only read never can
                self.gather(tag)
        return Alike([key for key in keys if key != own][:most], rows, damaged)

    def _look(self, tag: str, wanted: bytes, best: Best, *, patient: bool) -> tuple[int, int, list[str]]:
        """Offer everything that the index has of a module; how many rows and notes there are, and what is damaged."""
        rows = notes = 0
        damaged = []
        # Notes first: what is gathered meanwhile is then met a second time, not missed.
        for chunk in _chunks(self._notes(tag), _CHUNK):
            keys = [key for _, key, _ in chunk]
            notes += len(chunk)
            best.offer(distances(columns(found for _, _, found in chunk), wanted), lambda at: (keys[at], None))  # noqa: B023 - used at once
        for each in self._listed(tag):
            try:
                data = self._backend.read_range(each.name, 0, each.rows * SIZE) if each.rows <= MAX_ROWS else b""
            except NotFoundError:
                if patient:
                    raise _GoneError from None
                continue
            except (CorruptError, StorageIOError):
                data = b""
            if digest_of(data)[:HALF_NAME] != each.sketches:
                damaged.append(each.name)
                continue
            rows += each.rows
            best.offer(distances(data, wanted), lambda at: ("", (each, at)))  # noqa: B023 - used at once
        return rows + notes, notes, damaged

    def _keys(self, best: Best, *, patient: bool) -> list[str]:
        """The keys of the nearest rows, each once."""
        found = list(in_order(self._key, best.found, self._backend.requests_at_once))
        if patient and None in found:
            raise _GoneError
        return list(dict.fromkeys(key for key in found if key is not None))

    def _key(self, hit: Hit) -> str | None:
        """The key of a hit; None where its object went meanwhile."""
        if hit.row is None:
            return hit.key
        each, at = hit.row
        try:
            data = self._backend.read_range(each.name, each.rows * SIZE + at * KEY, KEY)
        except NotFoundError:
            return None
        return data.hex() if len(data) == KEY else None

    def _notes(self, tag: str) -> Iterator[tuple[str, str, bytes]]:
        """Name, key and sketch of each note of a module."""
        for stat in self._backend.listing(f"{layout.EXPLAIN_NEW}{tag}/"):
            match = _NEW.fullmatch(stat.name.removeprefix(layout.EXPLAIN_NEW))
            if match is not None:
                yield stat.name, match[2], bytes.fromhex(match[3])

    def _listed(self, tag: str) -> list[Rows]:
        """The objects of rows of a module, the smallest first. What is none is left alone."""
        found = []
        for stat in self._backend.listing(f"{layout.EXPLAIN_ROWS}{tag}/"):
            match = _ROWS.fullmatch(stat.name.removeprefix(layout.EXPLAIN_ROWS))
            if match is not None:
                found.append(Rows(stat.name, stat.size // ROW, match[2], match[3]))
        return sorted(found, key=lambda each: (each.rows, each.name))

    # -- gathering

    def gather(self, tag: str) -> None:
        """Gather the notes of a module into objects of rows.

        Raises:
            PermissionDeniedError: the store may only be read.
        """
        for chunk in _chunks(self._notes(tag), _GATHERED):
            rows = {bytes.fromhex(key): found for _, key, found in chunk}
            merged = []
            for each in self._listed(tag):
                if each.rows > 2 * len(rows) or each.rows + len(rows) > MAX_ROWS:
                    break
                more = self._read(each)
                if more is not None:
                    rows |= more
                    merged.append(each.name)
            written = self._write(tag, rows)
            self._backend.delete_many([name for name in merged if name != written])
            self._backend.delete_many([name for name, _, _ in chunk])

    def _read(self, each: Rows) -> dict[bytes, bytes] | None:
        """Key to sketch, of a sound object; None of another."""
        try:
            return decode(self._backend.read(each.name, MAX_ROWS * ROW)[0], each)
        except (NotFoundError, CorruptError):
            return None

    def _write(self, tag: str, rows: dict[bytes, bytes]) -> str:
        sketches, keys, data = encode(rows)
        name = layout.key_inputs_rows(tag, sketches, keys)
        if not self._backend.create(name, data) and self._read(Rows(name, len(rows), sketches, keys)) is None:
            self._backend.delete(name)  # damaged: the right one has the same name
            self._backend.create(name, data)
        return name

    # -- keeping house

    def drop(self, is_gone: Callable[[str], bool]) -> None:
        """Forget jobs of which nothing is recorded any more.

        Args:
            is_gone: asked for the hex part of each key.

        Raises:
            CasError: the storage failed; what is left is found the next time.
        """
        for tag in self._tags():
            self._backend.delete_many([name for name, key, _ in self._notes(tag) if is_gone(key)])
            for each in self._listed(tag):
                rows = self._read(each)
                if rows is None:
                    continue
                left = {key: found for key, found in rows.items() if not is_gone(key.hex())}
                if len(left) < len(rows):
                    if left:
                        self._write(tag, left)
                    self._backend.delete(each.name)
            if len(list(itertools.islice(self._notes(tag), GATHER_AT))) == GATHER_AT:
                self.gather(tag)

    def _tags(self) -> list[str]:
        """The tags of all modules that the index knows."""
        tags: set[str] = set()
        for prefix in (layout.EXPLAIN_NEW, layout.EXPLAIN_ROWS):
            after = prefix
            while (first := next(self._backend.listing(prefix, after), None)) is not None:
                tag = first.name.removeprefix(prefix).partition("/")[0]
                tags.add(tag)
                after = f"{prefix}{tag}/\U0010ffff"
        return sorted(tag for tag in tags if len(tag) == _TAG)

    # -- making it again

    def _is_empty(self) -> bool:
        """Whether nothing was ever noted or made here: then the index may have been lost."""
        return next(self._backend.listing(layout.EXPLAIN), None) is None

    def remake(
        self, progress: Progress | None = None, look: Callable[[str, dict[bytes, bytes]], None] | None = None
    ) -> bool:
        """Make the index again from what is recorded: every entry's name, and every document of key inputs.

        Args:
            progress: called with the bytes of each document that is read.
            look: called with the tag of a module and rows of it, as they are made.

        Returns:
            Whether it could be kept. Where the store may only be read, `look` was called all the same.

        Raises:
            UnavailableError: the store is out of reach.
        """
        before = [each.name for tag in self._tags() for each in self._listed(tag)]
        written: set[str] = set()
        held: dict[str, dict[bytes, bytes]] = {}
        may_write = True

        def flush() -> None:
            nonlocal may_write
            for tag, rows in held.items():
                if look is not None:
                    look(tag, rows)
                try:
                    if may_write:
                        written.add(self._write(tag, rows))
                except PermissionDeniedError:
                    may_write = False
            held.clear()

        count = 0
        for inputs in in_order(self._kept, self._recorded(), self._backend.requests_at_once):
            if inputs is None:
                continue
            if progress is not None:
                progress(len(inputs.canonical))
            held.setdefault(module_tag(inputs.module), {})[bytes.fromhex(inputs.key.hex)] = sketch(inputs.document)
            count += 1
            if count % MAX_ROWS == 0:
                flush()
        flush()
        with contextlib.suppress(PermissionDeniedError):
            if may_write:
                self._backend.create(layout.EXPLAIN_MADE, b"")
                self._backend.delete_many([name for name in before if name not in written])
                return True
        return False

    def _recorded(self) -> Iterator[str]:
        """The hex part of each key that has an entry or tombstone."""
        last = ""
        for stat in self._backend.listing(layout.RESULTS):
            parts = stat.name.split("/")
            if len(parts) == 4 and parts[2] != last and parts[2][:2] == parts[1]:
                last = parts[2]
                yield last

    def _kept(self, key_hex: str) -> KeyInputs | None:
        """The inputs that are kept of a key, or None."""
        try:
            data, _ = self._backend.read(layout.blob(key_hex), MAX_KEY_INPUTS)
            if hashlib.sha256(data).hexdigest() != key_hex:
                return None
            return KeyInputs.stored(data)
        except UnavailableError:
            raise
        except CasError:
            return None  # one that cannot be read is not found; the others are


class _GoneError(Exception):
    """An object of rows went between its listing and its reading: its rows are in another."""


def _chunks(items: Iterable[tuple[str, str, bytes]], size: int) -> Iterator[list[tuple[str, str, bytes]]]:
    waiting = iter(items)
    while chunk := list(itertools.islice(waiting, size)):
        yield chunk
