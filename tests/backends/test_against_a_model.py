"""Every backend does what a dict would do: any sequence of calls, compared with a naive model."""

from __future__ import annotations

import contextlib
import tempfile
from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from oarbank_cas.errors import ConflictError, CorruptError, NotFoundError, UnsupportedError

NAMES = ("x/a.b", "x/a/b", "x/a/b.c", "x/ab", "x/a-", "x/B/c/d", "y/a", "y/~")
PREFIXES = ("x/", "x/a/", "y/", "x/B/", "z/")

names = st.sampled_from(NAMES)
contents = st.sampled_from([b"", b"1", b"2", b"22", b"x" * 5000])
validators = st.sampled_from(["standing", "former", "foreign", "nonsense"])


@dataclass
class Incarnation:
    """One life of a name: what the model knows of an object."""

    data: bytes
    validators: set[str] = field(default_factory=set)
    time_ns: int = 0


class Machine(RuleBasedStateMachine):
    make = None

    def __init__(self):
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.backend = type(self).make(self.folder.name)
        self.objects = {}
        self.former = {name: set() for name in NAMES}
        self.gone = {}
        self.readers = []

    def teardown(self):
        for reader, _ in self.readers:
            reader.close()
        self.backend.close()
        self.folder.cleanup()

    # -- the model

    def appeared(self, name, data, stat, before):
        assert stat.name == name
        assert stat.size == len(data)
        assert stat.time_ns >= before
        if not self.backend.exact_identity and self.gone.get((name, stat.validator)) == data:
            self.former[name].discard(stat.validator)
        assert stat.validator not in self.former[name]
        assert all(stat.validator not in found.validators for other, found in self.objects.items() if other == name)
        self.objects[name] = Incarnation(data, {stat.validator}, stat.time_ns)

    def went(self, name):
        gone = self.objects.pop(name)
        self.former[name] |= gone.validators
        self.gone |= {(name, validator): gone.data for validator in gone.validators}
        return gone

    def expected(self, name, kind):
        """A validator of a kind, and whether it names what stands."""
        if kind == "standing" and name in self.objects:
            return self.backend.stat(name).validator, True
        if kind == "former" and self.former[name]:
            return max(self.former[name]), False
        if kind == "foreign":
            for other in NAMES:
                if other != name and other in self.objects:
                    validator = self.backend.stat(other).validator
                    standing = self.objects.get(name)
                    # memory's validators and inodes differ between names that both stand
                    shared = standing is not None and validator in standing.validators
                    assert not (shared and self.backend.exact_identity)
                    return validator, shared
        return "nonsense", False

    def incoming(self, data):
        incoming = self.backend.incoming(len(data))
        incoming.write(data)
        return incoming

    # -- the calls

    @rule(items=st.lists(st.tuples(names, contents), min_size=1, max_size=7))
    def commit(self, items):
        before = self.backend.now()
        stats = self.backend.commit([(name, self.incoming(data)) for name, data in items])
        for (name, data), stat in zip(items, stats, strict=True):
            if name in self.objects:
                assert stat is None
            else:
                self.appeared(name, data, stat, before)

    @rule(name=names, data=contents, kind=validators)
    def replace(self, name, data, kind):
        validator, stands = self.expected(name, kind)
        before = self.backend.now()
        stat = self.backend.replace(name, self.incoming(data), validator)
        if stands:
            self.went(name)
            self.appeared(name, data, stat, before)
        else:
            assert stat is None

    @rule(name=names, kind=st.one_of(st.none(), validators))
    def delete(self, name, kind):
        if kind is None:
            assert self.backend.delete(name) is (name in self.objects)
            stands = name in self.objects
        else:
            validator, stands = self.expected(name, kind)
            assert self.backend.delete(name, validator) is stands
        if stands:
            self.went(name)

    @rule(name=names, to=names)
    def copy(self, name, to):
        before = self.backend.now()
        if name not in self.objects:
            with pytest.raises(NotFoundError):
                self.backend.copy(name, to)
        elif to in self.objects:
            assert self.backend.copy(name, to) is None
        else:
            self.appeared(to, self.objects[name].data, self.backend.copy(name, to), before)

    @rule(name=names, to=names, kind=validators)
    def rename(self, name, to, kind):
        validator, stands = self.expected(name, kind)
        if not self.backend.atomic_move:
            with pytest.raises(UnsupportedError):
                self.backend.rename(name, to, validator)
        elif not stands:
            assert self.backend.rename(name, to, validator) is False
        elif to in self.objects:
            with pytest.raises(ConflictError):
                self.backend.rename(name, to, validator)
        else:
            assert self.backend.rename(name, to, validator) is True
            moved = self.went(name)
            stat = self.backend.stat(to)
            assert stat.size == len(moved.data)
            assert stat.time_ns >= moved.time_ns
            self.objects[to] = Incarnation(moved.data, {stat.validator}, stat.time_ns)
            # What moves and comes back may be known by the validator that it had.
            self.former[to].discard(stat.validator)

    @rule(name=names)
    def touch(self, name):
        before = self.backend.now()
        if not self.backend.atomic_move:
            with pytest.raises(UnsupportedError):
                self.backend.touch(name)
        elif name not in self.objects:
            assert self.backend.touch(name) is None
        else:
            stat = self.backend.touch(name)
            assert stat.time_ns >= before
            assert stat.validator not in self.former[name]
            self.objects[name].validators.add(stat.validator)
            self.objects[name].time_ns = stat.time_ns

    @rule(data=contents)
    def discard(self, data):
        self.incoming(data).discard()

    @rule(name=names, start=st.integers(0, 6))
    def open(self, name, start):
        if name not in self.objects:
            with pytest.raises(NotFoundError):
                self.backend.open(name, start)
        else:
            self.readers.append((self.backend.open(name, start), self.objects[name].data[start:]))

    @precondition(lambda self: self.readers)
    @rule()
    def read_what_was_opened(self):
        reader, data = self.readers.pop(0)
        with contextlib.closing(reader):
            found = b""
            while chunk := reader.read(3000):
                found += chunk
            assert found == data

    @rule(name=names, limit=st.sampled_from([0, 1, 10, 10_000]))
    def read(self, name, limit):
        if name not in self.objects:
            with pytest.raises(NotFoundError):
                self.backend.read(name, limit)
        elif len(self.objects[name].data) > limit:
            with pytest.raises(CorruptError):
                self.backend.read(name, limit)
        else:
            data, stat = self.backend.read(name, limit)
            assert data == self.objects[name].data
            assert stat == self.backend.stat(name)

    @rule(prefix=st.sampled_from(PREFIXES), after=st.one_of(st.just(""), names, st.sampled_from(PREFIXES)))
    def listing(self, prefix, after):
        listed = list(self.backend.listing(prefix, after))
        assert [stat.name for stat in listed] == sorted(
            name for name in self.objects if name.startswith(prefix) and name > after
        )

    @rule()
    def flush_and_sweep(self):
        self.backend.flush(list(self.objects))
        self.backend.sweep()

    @invariant()
    def the_store_is_what_the_model_says(self):
        for name in NAMES:
            stat = self.backend.stat(name)
            assert (stat is not None) is (name in self.objects)
            if stat is not None:
                assert stat.size == len(self.objects[name].data)
                assert stat.validator in self.objects[name].validators


def explore(kind, kinds, examples, steps):
    machine = type("Machine", (Machine,), {"make": staticmethod(kinds[kind])})
    run_state_machine_as_test(
        machine, settings=settings(max_examples=examples, stateful_step_count=steps, deadline=None, database=None)
    )


@pytest.mark.parametrize("kind", ["memory-disk", "memory-bucket", "memory-seconds", "local", "s3", "s3-fast"])
def test_any_sequence_of_calls(kind, kinds):
    explore(kind, kinds, {"local": 20, "s3": 3, "s3-fast": 3}.get(kind, 50), 30)


@pytest.mark.long
@pytest.mark.parametrize("kind", ["memory-disk", "memory-bucket", "local", "s3", "s3-fast"])
def test_many_long_sequences_of_calls(kind, kinds, budget):
    explore(kind, kinds, (2 if kind.startswith("s3") else 10) * budget, 80)
