"""One command of an operator in a process that kills itself at its n-th operation on a store: argv says which."""

import os
import signal
import sys

from oarbank_cas import Store
from oarbank_cas.backends.base import Backend
from oarbank_cas.verify import Options

MUTATING = {"incoming", "commit", "replace", "delete", "copy", "rename", "touch", "flush", "sweep"}


class Dying(Backend):
    """Kills the process before, or just after, its n-th operation that changes something; 0: never."""

    def __init__(self, backend, at, after):
        self.backend = backend
        self.where = backend.where
        self.atomic_move = backend.atomic_move
        self.group_commit = backend.group_commit
        self.left = at
        self.done = 0
        self.after = after

    def call(self, method, *args, **kwargs):
        counts = method in MUTATING
        if counts:
            self.done += 1
            self.left -= 1
        if counts and self.left == 0 and not self.after:
            os.kill(os.getpid(), signal.SIGKILL)
        answer = getattr(self.backend, method)(*args, **kwargs)
        if counts and self.left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return answer


def _passing(method):
    return lambda self, *args, **kwargs: self.call(method, *args, **kwargs)


for _method in Backend.__abstractmethods__:
    setattr(Dying, _method, _passing(_method))
Dying.__abstractmethods__ = frozenset()


def main():
    what, store, other, at, after = sys.argv[1:6]
    target = Store.open(store)
    backend = Dying(target.backend, int(at), after == "after")
    dying = Store(backend, target.descriptor)
    if what == "repair":
        resume = sys.argv[6] if len(sys.argv) > 6 else None
        report = dying.verify(Options(repair=True, resume=resume), Store.open(other, read_only=True))
    elif what == "verify":
        report = dying.verify(Options())
    else:
        report = Store.open(other, read_only=True).copy_to(dying)
    sys.stdout.write(f"{backend.done} {report.exit_code}\n")


if __name__ == "__main__":
    main()
