"""Many small files on all cores: other processes read, hash, write and name them: the interpreter is most of the work.

Threads of one interpreter take turns; for a file of a few KiB a turn costs more than the file. A process that cannot be
started, or dies, is no error: its files are the caller's to put.
"""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any, cast

from oarbank_cas import intake_worker, stopping
from oarbank_cas.intake_worker import NAME, TAKE

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence
    from typing import IO

    from oarbank_cas.intake_worker import Answers, Taken
    from oarbank_cas.sources import PlacedSource

FEWEST = 1000
"""Files from which the processes are worth their start."""

_BATCH = 200
_MOST_WORKERS = 8
_LOOK_S = 0.1
AT_ONCE = (stopping.Stopping, KeyboardInterrupt)
"""After these nobody waits for what is under way."""
_PATIENCE_S = 5.0


def is_possible() -> bool:
    """Whether other processes can help here."""
    return (
        sys.platform == "linux"
        and bool(sys.executable)
        and os.path.isfile(intake_worker.__file__)
        and len(os.sched_getaffinity(0)) > 1
    )


class IntakePool:
    """Processes that take small files into one store's temporaries, until `close`.

    Args:
        blobs: see `Worker`.
        scratch: what the path of a temporary begins with, used by nobody else.
        most: bytes that a file may have to be taken.
        tops: descriptors of the directories that the files are in.
    """

    def __init__(self, blobs: str, scratch: str, most: int, tops: Collection[int]) -> None:
        self.tops = frozenset(tops)
        self._processes: list[subprocess.Popen[bytes]] = []
        self._locks: list[threading.Lock] = []
        self._killed = False
        for _ in range(min(len(os.sched_getaffinity(0)), _MOST_WORKERS)):
            with contextlib.suppress(OSError):
                number = len(self._processes)  # by which `name` finds who made a temporary
                process = subprocess.Popen(
                    [sys.executable, "-I", "-S", intake_worker.__file__],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,
                    pass_fds=sorted(tops),
                    start_new_session=True,  # an interrupt is the caller's; these end with their input
                )
                self._processes.append(process)
                self._locks.append(threading.Lock())
                assert process.stdin is not None
                intake_worker.send(process.stdin, (blobs, f"{scratch}-{number}-", most))

    def close(self) -> None:
        """End the processes. Nobody asks them any more by now."""
        for process in self._processes:
            for stream in (process.stdin, process.stdout):
                with contextlib.suppress(OSError):
                    assert stream is not None
                    stream.close()
        for process in self._processes:
            with contextlib.suppress(subprocess.TimeoutExpired):  # stuck in the kernel, on a disk that is gone
                process.wait(_PATIENCE_S if self._killed else None)

    def kill(self) -> None:
        """End the processes, whatever they are at. Who waits for an answer gets none."""
        self._killed = True
        for process in self._processes:
            process.kill()

    def take(self, sources: Sequence[PlacedSource], use: Callable[[Sequence[tuple[int, Taken]]], None]) -> list[int]:
        """Take these files, as far as that goes.

        Args:
            sources: the files.
            use: called from several threads with files' indices and what became of them; it owns their temporaries.

        Returns:
            The indices of files that the caller must put, in order.
        """
        left: list[int] = []
        batches = _Batches(len(sources))

        def drive(number: int) -> None:
            for batch in batches:
                answers = self._ask(number, TAKE, [sources[index].place() for index in batch])
                if answers is None:
                    left.extend(batch)
                    return
                found = list(zip(batch, cast("list[Taken | None]", answers), strict=True))
                left.extend([index for index, taken in found if taken is None])
                use([(index, taken) for index, taken in found if taken is not None])

        with stopping.Threads(len(self._processes) or 1, "intake") as pool:
            drivers = [pool.submit(drive, number) for number in range(len(self._processes))]
            try:
                with self._killing_on_stop():
                    stopping.results(drivers)
            except BaseException:
                batches.stop()
                raise
        for batch in batches:  # nobody was left to take them
            left.extend(batch)
        return sorted(left)

    def name(self, pairs: Sequence[tuple[str, str]]) -> list[bool | None]:
        """Give temporaries their names; see `Namer`. A process that is taking files ends its batch first."""
        count = len(self._processes)
        if not count:
            return [None] * len(pairs)
        parts: list[list[int]] = [[] for _ in range(count)]
        for index, (temporary, _) in enumerate(pairs):
            parts[int(temporary.rsplit("-", 2)[1])].append(index)  # its maker's number, as `scratch` says
        answers: list[bool | None] = [None] * len(pairs)
        with stopping.Threads(count, "name") as pool:
            asked = [
                pool.submit(self._ask, number, NAME, [pairs[index] for index in part])
                for number, part in enumerate(parts)
            ]
            with self._killing_on_stop():
                stopping.results(asked)
            for number, future in enumerate(asked):
                found = future.result()
                for index, answer in zip(parts[number], found or [], strict=False):
                    answers[index] = cast("bool | None", answer)
        return answers

    @contextlib.contextmanager
    def _killing_on_stop(self) -> Iterator[None]:
        """Where the work is to end at once: a process that is stuck would never answer, nor read what it is asked."""
        try:
            yield
        except AT_ONCE:
            self.kill()
            raise

    def _ask(self, number: int, verb: str, items: list[Any]) -> Answers | None:
        """Have a process do something; None where it is no more."""
        process = self._processes[number]
        assert process.stdin is not None
        assert process.stdout is not None
        with self._locks[number]:
            try:
                intake_worker.send(process.stdin, (verb, items))
                _await(process.stdout)
                return cast("Answers", intake_worker.receive(process.stdout))
            except (OSError, EOFError):
                return None


def _await(answers: IO[bytes]) -> None:
    """Wait for an answer, or for the end of the work."""
    while not select.select([answers], [], [], _LOOK_S)[0]:
        stopping.check()


class _Batches:
    """Ranges of indices, handed out once each, to many threads."""

    def __init__(self, count: int) -> None:
        self._starts = iter(range(0, count, _BATCH))
        self._count = count
        self._lock = threading.Lock()

    def __iter__(self) -> Iterator[range]:
        while True:
            with self._lock:
                start = next(self._starts, None)
            if start is None:
                return
            yield range(start, min(start + _BATCH, self._count))

    def stop(self) -> None:
        with self._lock:
            self._starts = iter(range(0))
