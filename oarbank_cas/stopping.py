"""Ending work before it is done: at a deadline, or when somebody says so.

    with Stop(deadline_s=600) as stop:      # another thread may call stop.cancel()
        store.stage(spec, workdir)

The body ends with StoppedError then, within a fraction of a second, also where it waits for a network that says
nothing: such a request is left to a thread that ends by itself and touches no file. Whether the server still does what
it was asked is as open as after an answer that was lost. What was begun is cleaned up as after any other error.

On its way out of the body it is `Stopping`, which is no Exception: nothing may take it for a fault of the store, and go
on with the next key or blob.

A stop holds for the thread that entered it and for the threads that work for it (`Threads`). Where none is in force,
looking for it costs next to nothing.
"""

from __future__ import annotations

import contextlib
import contextvars
import threading
import time
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, Final, ParamSpec, Self, TypeVar

from oarbank_cas.errors import StoppedError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator
    from types import TracebackType

_P = ParamSpec("_P")
_T = TypeVar("_T")

_LOOK_S: Final = 0.1
"""Seconds between two looks, where something else is waited for too."""

_in_force: contextvars.ContextVar[Stop | None] = contextvars.ContextVar("oarbank_cas_stop", default=None)


class Stopping(BaseException):
    """The work is to end. `Stop` makes a StoppedError of it, or a KeyboardInterrupt where a signal has ended it."""

    def __init__(self, stop: Stop, why: str) -> None:
        super().__init__(why)
        self.stop = stop


class Stop:
    """Ends the work in its body early. Use it as a context manager, once.

    Args:
        deadline_s: seconds from now after which the work ends; None for no deadline.
    """

    def __init__(self, deadline_s: float | None = None) -> None:
        self._deadline_s = deadline_s
        self._ends = time.monotonic() + deadline_s if deadline_s is not None else None
        # Plain values, since a signal handler sets them: a lock might be held by the very thread that it interrupts.
        self._cancelled = False
        self._listening = 0
        self.interrupted = False
        """Whether a signal has ended the work."""
        self._around: Stop | None = None
        self._token: contextvars.Token[Stop | None] | None = None

    def cancel(self) -> None:
        """End the work, from any thread."""
        self._cancelled = True

    def interrupt(self) -> bool:
        """End the work, from a signal handler.

        Returns:
            Whether the interrupted thread finds out by itself, and at once. It must not be torn out of its waiting,
            where it may hold a lock that others need to come to an end.
        """
        again, self.interrupted, self._cancelled = self.interrupted, True, True
        return self._listening > 0 and not again

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """The body looks for the end of the work all the time."""
        counts = threading.current_thread() is threading.main_thread()  # the one that handles signals
        self._listening += counts
        try:
            yield
        finally:
            self._listening -= counts

    def __enter__(self) -> Self:
        self._around = _in_force.get()
        self._token = _in_force.set(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._token is not None
        _in_force.reset(self._token)
        if isinstance(error, Stopping) and error.stop is self:
            raise KeyboardInterrupt if self.interrupted else StoppedError(str(error)) from None

    def check(self) -> None:
        """Look whether the work is to end.

        Raises:
            Stopping: it is.
        """
        if self._cancelled:
            raise Stopping(self, "cancelled before it was done")
        if self._ends is not None and time.monotonic() >= self._ends:
            raise Stopping(self, f"not done within {self._deadline_s:g} s")
        if self._around is not None:
            self._around.check()

    def sleep(self, seconds: float) -> None:
        """Wait, but not beyond the end of the work."""
        until = time.monotonic() + seconds
        with self.listening():
            while (left := until - time.monotonic()) > 0:
                self.check()
                time.sleep(min(left, _LOOK_S))
            self.check()


def interrupt() -> bool:
    """End the work that goes on here, from a signal handler; see `Stop.interrupt`. False where no stop is in force."""
    stop = _in_force.get()
    return stop is not None and stop.interrupt()


def is_in_force() -> bool:
    """Whether the work that goes on here may be ended early."""
    return _in_force.get() is not None


def check() -> None:
    """Look whether the work that goes on here is to end.

    Raises:
        Stopping: it is.
    """
    stop = _in_force.get()
    if stop is not None:
        stop.check()


def sleep(seconds: float) -> None:
    """Wait; Stopping as soon as the work is to end."""
    stop = _in_force.get()
    if stop is None:
        time.sleep(seconds)
    else:
        stop.sleep(seconds)


def result(future: Future[_T]) -> _T:
    """What became of a future; Stopping as soon as the work is to end."""
    stop = _in_force.get()
    if stop is not None:
        with stop.listening():
            while not wait([future], timeout=_LOOK_S).done:
                stop.check()
    return future.result()


def results(futures: Collection[Future[_T]]) -> None:
    """Wait for all, or for the first that fails, whose error is raised; Stopping as soon as the work is to end."""
    stop = _in_force.get()
    with stop.listening() if stop is not None else contextlib.nullcontext():
        while True:
            done, left = wait(futures, timeout=None if stop is None else _LOOK_S, return_when=FIRST_EXCEPTION)
            for future in done:
                future.result()
            if not left:
                return
            if stop is not None:
                stop.check()


def attend(call: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
    """Call something that may wait for long; Stopping as soon as the work is to end.

    The call is left alone then, so it must touch nothing that others may give another meaning meanwhile, such as a
    descriptor that its owner closes.
    """
    if _in_force.get() is None:
        return call(*args, **kwargs)
    future: Future[_T] = Future()

    def run() -> None:
        try:
            future.set_result(call(*args, **kwargs))
        except BaseException as error:  # noqa: BLE001 - for whoever waits
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return result(future)


class Threads(ThreadPoolExecutor):
    """Threads that work for the one that made them, under the same stop.

    Left on an error, what has not begun is not begun. What is under way is waited for.

    Args:
        count: how many.
        name: what they do, for who looks at them.
    """

    def __init__(self, count: int, name: str) -> None:
        super().__init__(count, thread_name_prefix=f"oarbank-cas-{name}")

    def submit(self, fn: Callable[_P, _T], /, *args: _P.args, **kwargs: _P.kwargs) -> Future[_T]:
        """See `Executor.submit`."""
        if _in_force.get() is None:
            return super().submit(fn, *args, **kwargs)
        return super().submit(contextvars.copy_context().run, fn, *args, **kwargs)  # type: ignore[arg-type]

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.shutdown(wait=True, cancel_futures=kind is not None)
