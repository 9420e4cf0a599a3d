"""Many small files on all cores: other processes read, hash and write them, since the interpreter is most of the work.

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
from collections import deque
from typing import TYPE_CHECKING, Self

from oarbank_cas import intake_worker, stopping

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from typing import IO

    from oarbank_cas.intake_worker import Taken
    from oarbank_cas.sources import PlacedSource

FEWEST = 1000
"""Files from which the processes are worth their start."""

_BATCH = 200
_MOST_WORKERS = 8
_LOOK_S = 0.1
_AT_ONCE = (stopping.Stopping, KeyboardInterrupt)
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
    """Processes that take small files into one store's temporaries. Leaving it as a context manager ends them.

    Args:
        blobs: see `Worker`.
        scratch: what the path of a temporary begins with, used by nobody else.
        most: bytes that a file may have to be taken.
        tops: descriptors of the directories that the files are in.
    """

    def __init__(self, blobs: str, scratch: str, most: int, tops: Sequence[int]) -> None:
        self._processes: list[subprocess.Popen[bytes]] = []
        for number in range(min(len(os.sched_getaffinity(0)), _MOST_WORKERS)):
            with contextlib.suppress(OSError):
                process = subprocess.Popen(
                    [sys.executable, "-I", "-S", intake_worker.__file__],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,
                    pass_fds=tops,
                    start_new_session=True,  # an interrupt is the caller's; these end with their input
                )
                self._processes.append(process)
                assert process.stdin is not None
                intake_worker.send(process.stdin, (blobs, f"{scratch}-{number}-", most))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        at_once = kind is not None and issubclass(kind, _AT_ONCE)
        if at_once:
            self._kill()
        for process in self._processes:
            for stream in (process.stdin, process.stdout):
                with contextlib.suppress(OSError):
                    assert stream is not None
                    stream.close()
        for process in self._processes:
            with contextlib.suppress(subprocess.TimeoutExpired):  # stuck in the kernel, on a disk that is gone
                process.wait(_PATIENCE_S if at_once else None)

    def _kill(self) -> None:
        for process in self._processes:
            process.kill()

    def take(self, sources: Sequence[PlacedSource], use: Callable[[int, Taken], None]) -> list[int]:
        """Take these files, as far as that goes.

        Args:
            sources: the files.
            use: called from several threads with a file's index and what became of it.

        Returns:
            The indices of files that the caller must put, in order.
        """
        left: list[int] = []
        batches = _Batches(len(sources))

        def drive(process: subprocess.Popen[bytes]) -> None:
            assert process.stdin is not None
            assert process.stdout is not None
            for batch in batches:
                try:
                    intake_worker.send(process.stdin, [sources[index].place() for index in batch])
                    _await(process.stdout)
                    answers = intake_worker.receive(process.stdout)
                except (OSError, EOFError):
                    left.extend(batch)
                    return
                waiting = deque(zip(batch, answers, strict=True))  # type: ignore[call-overload]
                try:
                    while waiting:
                        index, taken = waiting.popleft()
                        if taken is None:
                            left.append(index)
                        else:
                            use(index, taken)
                finally:
                    _remove([taken[2] for _, taken in waiting if taken is not None])

        with stopping.Threads(len(self._processes) or 1, "intake") as pool:
            drivers = [pool.submit(drive, process) for process in self._processes]
            try:
                stopping.results(drivers)
            except BaseException as error:
                batches.stop()
                if isinstance(error, _AT_ONCE):
                    self._kill()  # one that is stuck would never answer
                raise
        for batch in batches:  # nobody was left to take them
            left.extend(batch)
        return sorted(left)


def _await(answers: IO[bytes]) -> None:
    """Wait for an answer, or for the end of the work."""
    while not select.select([answers], [], [], _LOOK_S)[0]:
        stopping.check()


def _remove(temporaries: Sequence[str]) -> None:
    for path in filter(None, temporaries):
        with contextlib.suppress(OSError):
            os.unlink(path)


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
