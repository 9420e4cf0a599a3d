"""The line on a terminal that tells how far a transfer has come: files, bytes, rate, time left."""

from __future__ import annotations

from typing import Self

from rich.console import Console
from rich.filesize import decimal
from rich.progress import (
    BarColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)


class Bar:
    """A line that is told of each file; it shows how much is left once it is told how much there is.

    Args:
        what: what is done.
    """

    def __init__(self, what: str) -> None:
        self._what = what
        self._files = 0
        columns = (SpinnerColumn(), TextColumn("{task.description}"), TransferSpeedColumn(), TimeElapsedColumn())
        self._progress = Progress(*columns, console=Console(stderr=True), transient=True)
        self._task = self._progress.add_task(what, total=None)

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def set_size(self, size: int) -> None:
        """See `progress.Callback`."""
        self._progress.columns = (
            *self._progress.columns[:2],
            BarColumn(),
            TransferSpeedColumn(),
            TimeRemainingColumn(),
        )
        self._progress.update(self._task, total=size)

    def relative_update(self, inc: int = 1) -> None:
        """See `progress.Callback`: one more file is done."""
        self._files += 1
        self._progress.advance(self._task, inc)
        task = self._progress.tasks[0]
        of = f" of {decimal(int(task.total))}" if task.total is not None else ""
        self._progress.update(
            self._task, description=f"{self._what}: {self._files:,} files, {decimal(int(task.completed))}{of}"
        )

    __call__ = relative_update
