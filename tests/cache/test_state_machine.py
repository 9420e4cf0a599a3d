"""The cache against a model of it: which blobs it holds after any sequence of reads, holds, links and trims."""

import contextlib
import hashlib
import os
import shutil
import tempfile
from pathlib import Path

from cache_kit import cached, check, spoil
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from oarbank_cas.cache import upkeep
from oarbank_cas.cache.cache import Cache

PIECES = [bytes([number]) * size for number, size in enumerate([0, 10, 100, 300, 300, 500, 700, 900, 1200])]
NAMES = [hashlib.sha256(data).hexdigest() for data in PIECES]
BUDGET = 1500
number = st.integers(0, len(PIECES) - 1)
some = st.sets(number, min_size=1, max_size=4)


class CacheMachine(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        self.folder = tempfile.mkdtemp(prefix="oarbank-cas-machine-")
        self.path = os.path.join(self.folder, "cache")
        self.cache = Cache(self.path, BUDGET)
        self.cache.rows([])
        self.order = []  # the model: what is cached, least recently used first
        self.held = []  # holds: a context, and what it holds
        self.linked = {}  # number -> the other name of its file
        self.brought = 0

    def teardown(self):
        for context, _ in self.held:
            context.close()
        self.cache.close()
        check(self.path, BUDGET)
        shutil.rmtree(self.folder)

    # -- the model

    def protected(self):
        return {each for _, held in self.held for each in held} | set(self.linked)

    def room_for(self, size, budget=BUDGET):
        """Evict in the model; whether there is room then."""
        for each in list(self.order):
            if self.total() + size <= budget:
                break
            if each in self.linked and each not in {one for _, held in self.held for one in held}:
                self.order.remove(each)  # looked at, found in use: counts as used
                self.order.append(each)
            elif each not in self.protected():
                self.order.remove(each)
        return self.total() + size <= budget

    def total(self):
        return sum(len(PIECES[each]) for each in self.order)

    def use(self, each):
        if each in self.order:
            self.order.remove(each)
            self.order.append(each)

    # -- what happens

    def fetch(self, digest, fd, label):
        self.brought += 1
        data = PIECES[NAMES.index(digest)]
        os.ftruncate(fd, 0)
        os.lseek(fd, 0, os.SEEK_SET)
        os.write(fd, data)
        return len(data)

    @rule(each=number)
    def read(self, each):
        before = self.brought
        there = each in self.order
        fd = self.cache.fill(NAMES[each], len(PIECES[each]), self.fetch)
        self.use(each)
        if there or self.room_for(len(PIECES[each])):
            with os.fdopen(fd, "rb") as file:
                assert file.read() == PIECES[each]
            if not there:
                self.order.append(each)
            assert self.brought == before + (not there)
        else:
            assert fd is None
            assert self.brought == before

    @rule(each=number)
    def fail(self, each):
        """The store fails half-way."""
        there = each in self.order

        def broken(digest, fd, label):
            os.write(fd, b"x")
            raise ZeroDivisionError

        with contextlib.suppress(ZeroDivisionError):
            fd = self.cache.fill(NAMES[each], len(PIECES[each]), broken)
            if fd is not None:
                os.close(fd)
        self.use(each)
        if not there:
            self.room_for(len(PIECES[each]))
        assert os.listdir(f"{self.path}/partial") == []

    @precondition(lambda self: len(self.held) < 3)
    @rule(which=some)
    def hold(self, which):
        context = contextlib.ExitStack()
        rows = context.enter_context(self.cache.holding([NAMES[each] for each in which]))
        assert set(rows) == {NAMES[each] for each in which & set(self.order)}
        # All at one moment: the order among them is the digests'.
        for each in sorted(which, key=lambda one: NAMES[one]):
            self.use(each)
        self.held.append((context, which))

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def release(self, data):
        context, _ = self.held.pop(data.draw(st.integers(0, len(self.held) - 1)))
        context.close()

    @precondition(lambda self: self.order)
    @rule(data=st.data())
    def link(self, data):
        each = data.draw(st.sampled_from(self.order))
        if each not in self.linked and PIECES[each]:
            self.linked[each] = os.path.join(self.folder, f"link{each}")
            os.link(self.cache.folder.blob(NAMES[each]), self.linked[each])

    @precondition(lambda self: self.linked)
    @rule(data=st.data(), spoilt=st.booleans())
    def unlink(self, data, spoilt):
        each = data.draw(st.sampled_from(sorted(self.linked)))
        if spoilt:
            spoil(self.linked[each])
        os.unlink(self.linked.pop(each))
        if spoilt:
            assert not self.cache.examine(NAMES[each])
            self.order.remove(each)

    @rule(limit=st.integers(0, BUDGET))
    def trim(self, limit):
        upkeep.trim(self.cache, limit)
        self.room_for(0, limit)

    @rule()
    def reopen(self):
        if not self.held:
            self.cache.close()
            self.cache = Cache(self.path, BUDGET)

    @precondition(lambda self: self.order)
    @rule(data=st.data())
    def vanish(self, data):
        """Somebody removes a file."""
        each = data.draw(st.sampled_from(self.order))
        if each not in self.linked:
            os.unlink(self.cache.folder.blob(NAMES[each]))
            assert self.cache.open(NAMES[each]) is None
            self.order.remove(each)

    @invariant()
    def holds_what_the_model_holds(self):
        assert set(cached(self.path)) == {NAMES[each] for each in self.order} if Path(self.path).exists() else True
        assert self.total() <= BUDGET


CacheMachine.TestCase.settings = settings(
    max_examples=60, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)
TestAgainstAModel = CacheMachine.TestCase
