"""A store for gc's tests: a world without parties, whose time is moved by hand."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys

import pytest

from oarbank_cas import layout
from oarbank_cas.blobs import Blobs
from oarbank_cas.contracts.canonical import digest_of
from oarbank_cas.contracts.keys import parse_key
from oarbank_cas.contracts.recordable import check_recordable
from oarbank_cas.gc.clocks import Moment, Surroundings
from oarbank_cas.gc.collect import Options, collect
from oarbank_cas.gc.hits import HitRecorder
from oarbank_cas.intake import Intake
from oarbank_cas.lookups import Lookups
from oarbank_cas.pins import Pins
from oarbank_cas.results import Origin, Results

from .scenarios import DESCRIPTOR, envelope, manifest_of
from .world import SESSION_S, SETTLED, Chooser, S, World, fake_clocks


class Machine(Surroundings):
    """gc's machine."""

    host = "machine"
    offset = 0

    def __init__(self, world):
        self.world = world
        self.numbers = itertools.count(1)

    def moment(self):
        return Moment(self.host, self.world.now + self.offset)

    def nonce(self):
        return self.world.nonce()

    def seconds(self):
        return self.world.now / S


class Bench:
    """A store, and what tests do to it."""

    def __init__(self, atomic_move):
        self.world = World(Chooser(), atomic_move=atomic_move)
        self.backend = self.world.memory
        self.descriptor = DESCRIPTOR
        self.place(layout.DESCRIPTOR, DESCRIPTOR.encode())
        self.blobs = Blobs(self.backend, SESSION_S)
        self.lookups = Lookups(self.backend, self.blobs, SESSION_S)
        self.results = Results(self.backend, self.blobs, self.lookups, SESSION_S)
        self.pins = Pins(self.backend, self.blobs, self.lookups, self.results, SESSION_S)
        self.machine = Machine(self.world)

    def place(self, name, data):
        incoming = self.backend.incoming()
        incoming.write(data)
        assert self.backend.commit([(name, incoming)])[0]

    def overwrite(self, name, data):
        self.backend.delete(name)
        self.place(name, data)

    def names(self, prefix=""):
        return [stat.name for stat in self.backend.listing(prefix)]

    def later(self, seconds=None):
        self.world.now += SETTLED + 70 * S if seconds is None else int(seconds * S)

    def put(self, *contents):
        with Intake(self.backend, self.blobs) as intake:
            for content in contents:
                intake.add_bytes(content)
            intake.commit()
        return digest_of(contents[0])

    def record(self, name, *contents, module="demo"):
        """A result; its job key."""
        key = digest_of(name.encode())
        text = envelope(contents, f"{key} {name}").replace(b'"demo/', f'"{module}/'.encode())
        checked = check_recordable(text, max_inline_kb=None)
        with Intake(self.backend, self.blobs) as intake:
            for content in (*contents, manifest_of(contents)):
                intake.add_bytes(content)
            hold = intake.commit()
        assert self.results.create(parse_key(key), "any", checked, Origin(by="test"), hold).recorded
        return key

    def gc(self, policy=None, backend=None, **options):
        return collect(
            backend or self.backend, self.descriptor, policy, Options(**options), by="tester", around=self.machine
        )

    def hit(self, key, client="client"):
        recorder = HitRecorder(self.backend, client, clock=lambda: self.world.now)
        recorder.note(key, "any")
        recorder.close()

    def stands(self, key):
        return self.lookups.lookup(key).hit


@pytest.fixture(params=[True, False], ids=["rename", "copy"])
def bench(request):
    from . import world

    with fake_clocks():
        made = Bench(request.param)
        world.CURRENT = made.world
        yield made


# -- processes that are killed

SPAWN = """
import os, sys, traceback
from tests.gc import crash_child
for line in sys.stdin:
    root, what, number, when = line.split("\\t")
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(read)
        os.dup2(write, 1)
        try:
            crash_child.main(root, what, number, when.strip())
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            os._exit(3)
    os.close(write)
    with os.fdopen(read) as out:
        told = out.read()
    _, status = os.waitpid(pid, 0)
    print(os.waitstatus_to_exitcode(status), told.replace("\\n", "\\t"), flush=True)
"""


class Children:
    """Forks children that run `crash_child`, from a process that has imported everything already."""

    def __init__(self):
        root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
        self.process = subprocess.Popen(
            [sys.executable, "-c", SPAWN], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=root
        )

    def run(self, root, what, number=0, when="before"):
        """Exit code, and what the child had said until it died."""
        self.process.stdin.write(f"{root}\t{what}\t{number}\t{when}\n")
        self.process.stdin.flush()
        code, _, told = self.process.stdout.readline().partition(" ")
        said = {}
        for line in told.split("\t"):
            if line.strip().startswith("{"):
                said.update(json.loads(line))
        return int(code), said

    def close(self):
        self.process.stdin.close()
        self.process.stdout.close()
        self.process.wait()


@pytest.fixture(scope="session")
def children():
    children = Children()
    yield children
    children.close()
