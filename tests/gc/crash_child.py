"""A process that works on a store on disk, and kills itself at the N-th operation of its backend.

Arguments: the store's directory, what to do (`repair --resume from STORE`), N, and `before` or `after`. Prints one line
of JSON for each thing that returned, flushed, so that its parent knows what was promised. N of 0 never kills.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading

from oarbank_cas import descriptor as descriptors
from oarbank_cas import layout
from oarbank_cas.backends.base import Backend
from oarbank_cas.backends.local import LocalBackend
from oarbank_cas.blobs import Blobs
from oarbank_cas.contracts.keys import parse_key
from oarbank_cas.contracts.recordable import check_recordable
from oarbank_cas.gc.collect import Options, collect
from oarbank_cas.gc.retention import Policy
from oarbank_cas.intake import Intake
from oarbank_cas.lookups import Lookups
from oarbank_cas.results import Origin, Results
from oarbank_cas.store import Store
from oarbank_cas.verify import Options as VerifyOptions
from tests.gc.scenarios import KEY, OTHER, X, Y, envelope

OPERATIONS = (
    *("now", "stat", "read", "open", "incoming", "commit", "replace", "delete", "delete_many"),
    *("copy", "rename", "rename_many", "touch", "touch_many", "flush", "sweep"),
)


class KillingBackend(Backend):
    """Counts operations, and ends the process without a word at one of them."""

    def __init__(self, backend, number, when):
        self._backend = backend
        self._number = number
        self._when = when
        self.count = 0
        self._lock = threading.Lock()
        self.where = backend.where
        self.atomic_move = backend.atomic_move
        self.group_commit = backend.group_commit

    def _step(self, name, *arguments):
        with self._lock:
            self.count += 1
            due = self.count == self._number
        if due and self._when == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        try:
            return getattr(self._backend, name)(*arguments)
        finally:
            if due and self._when == "after":
                os.kill(os.getpid(), signal.SIGKILL)

    def listing(self, prefix, after=""):
        self._step("stat", layout.DESCRIPTOR)
        yield from self._backend.listing(prefix, after)

    def close(self):
        self._backend.close()


def _forward(name):
    def method(self, *arguments):
        return self._step(name, *arguments)

    return method


for _name in OPERATIONS:
    setattr(KillingBackend, _name, _forward(_name))
KillingBackend.__abstractmethods__ = frozenset()


def say(**what):
    print(json.dumps(what), flush=True)  # noqa: T201 - to the parent


def publish(rooms, key, contents, token):
    backend, blobs, results = rooms
    checked = check_recordable(envelope(contents, f"{key} {token}"), max_inline_kb=None)
    with Intake(backend, blobs) as intake:
        for content in contents:
            intake.add_bytes(content)
        results.require(intake, checked)
        hold = intake.commit()
    say(put=list(hold.sizes))
    recorded = results.create(parse_key(key), "any", checked, Origin(by="agent"), hold)
    say(recorded=key, new=recorded.recorded)


def check_store(backend, descriptor, what, source):
    """`verify` or `repair`; with `--resume` its state is kept beside the store."""
    command, _, resume = what.partition(" ")
    options = VerifyOptions(
        repair=command == "repair", resume=f"{backend.where}.state" if resume else None, workers=1, list_orphans=True
    )
    store = Store(backend, descriptor)
    if command == "repair":
        with Store.open(source, read_only=True) as other:
            report = store.verify(options, other)
    else:
        report = store.verify(options)
    found = sorted((each.kind, each.name, each.aside, each.healed) for each in report.problems)
    say(exit=report.exit_code, found=found, counts=report.to_json()["counts"])


def main(root, what, number, when):
    backend = KillingBackend(LocalBackend(root, layout.DESCRIPTOR), int(number), when)
    data, _ = backend._backend.read(layout.DESCRIPTOR, descriptors.MAX_BYTES)
    descriptor = descriptors.decode(data, root)
    blobs = Blobs(backend, descriptor.session_s)
    results = Results(backend, blobs, Lookups(backend, blobs, descriptor.session_s), descriptor.session_s)
    if what.startswith(("verify", "repair")):
        check_store(backend, descriptor, *what.split(" from "))
    elif what == "publish":
        publish((backend, blobs, results), KEY, (X, Y), "a")
    elif what == "rerecord":
        results.invalidate(OTHER, by="operator", reason="wrong")
        say(ended=OTHER)
        publish((backend, blobs, results), OTHER, (X,), "again")
    else:
        policy = Policy(keep_days=0, tombstone_days=0) if what == "expire" else None
        report = collect(backend, descriptor, policy, Options(anyway=True, allow_no_roots=True, yes_really=True))
        say(exit=report.exit_code, doubts=[doubt.why for doubt in report.doubts], done=report.done.totals())
    backend.close()
    say(operations=backend.count)


if __name__ == "__main__":
    main(*sys.argv[1:])
