"""Trying again: which failures deserve it, how long to wait, and what is said when it is of no use."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from oarbank_cas import stopping
from oarbank_cas.backends.s3 import failures

if TYPE_CHECKING:
    from oarbank_cas.errors import CasError

_T = TypeVar("_T")


@dataclass(slots=True)
class Attempt:
    """One try of a call.

    Attributes:
        number: 1 for the first.
        may_have_acted: an earlier try was sent and not answered: the server may have done it.
    """

    number: int = 1
    may_have_acted: bool = False


@dataclass(frozen=True, slots=True)
class Retry:
    """How often, how long, and by which clock.

    Attributes:
        tries: at most.
        first_s: the longest wait before the second try; doubled for each further one.
        longest_s: the longest wait at all.
        deadline_s: no try begins later than this after the first.
        sleep: waits; tests give their own.
        seconds: a clock that runs forward; tests give their own.
        chance: a number from 0 to 1; tests give their own.
    """

    tries: int = 8
    first_s: float = 0.2
    longest_s: float = 10.0
    deadline_s: float = 120.0
    sleep: Callable[[float], None] = field(default=stopping.sleep, repr=False)
    seconds: Callable[[], float] = field(default=time.monotonic, repr=False)
    chance: Callable[[], float] = field(default=random.random, repr=False)

    def run(self, what: str, where: str, call: Callable[[Attempt], _T]) -> _T:
        """Call until it answers.

        Args:
            what: the operation and its object, for messages.
            where: the store, for messages.
            call: does it once. What it raises beside an S3 client's errors is passed on.

        Raises:
            CasError: as `failures.translate` says.
            Stopping: the work is to end.
        """
        failed: list[failures.Failure] = []
        try:
            return self._run(what, where, call, failed)
        except stopping.Stopping as end:
            if failed:
                tries = f"{len(failed)} {'try' if len(failed) == 1 else 'tries'}"
                end.args = (f"{end}: {what} in {where} had failed in {tries} ({failed[-1].code})",)
            raise

    def _run(self, what: str, where: str, call: Callable[[Attempt], _T], failed: list[failures.Failure]) -> _T:
        began = self.seconds()
        attempt = Attempt()
        while True:
            stopping.check()
            try:
                return stopping.attend(call, attempt)
            except failures.CLIENT_ERRORS as error:
                failure = failures.judge(error)
                failed.append(failure)
                waited = self.seconds() - began
                if not failure.again or attempt.number >= self.tries or waited >= self.deadline_s:
                    raise self._final(failure, what, where, attempt.number, waited) from None
                attempt = Attempt(attempt.number + 1, attempt.may_have_acted or failure.may_have_acted)
            # Jitter over the whole span: clients that were refused together must not come back together.
            longest = min(self.longest_s, self.first_s * 2 ** (attempt.number - 2))
            self.sleep(min(longest * (0.25 + 0.75 * self.chance()), max(0.0, self.deadline_s - waited)))

    @staticmethod
    def _final(failure: failures.Failure, what: str, where: str, tries: int, waited: float) -> CasError:
        return failures.translate(failure, what, where, tries, waited)
