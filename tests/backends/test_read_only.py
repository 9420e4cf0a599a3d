"""A store opened for reading only: what reads works, and what changes is refused before it reaches the storage."""

from __future__ import annotations

import inspect

import pytest

from oarbank_cas.backends.base import Backend
from oarbank_cas.backends.readonly import ReadOnlyBackend
from oarbank_cas.errors import PermissionDeniedError, UnsupportedError

READS = {
    "stat": lambda b: b.stat("x/a"),
    "read": lambda b: b.read("x/a", 100),
    "read_range": lambda b: b.read_range("x/a", 0, 9),
    "listing": lambda b: list(b.listing("x/")),
    "strays": lambda b: list(b.strays("x/")),
}
CHANGES = {
    "incoming": lambda b: b.incoming(),
    "adopt": lambda b: b.adopt("file", 1),
    "commit": lambda b: b.commit([("x/b", None)]),
    "create": lambda b: b.create("x/b", b"1"),
    "create_many": lambda b: b.create_many([("x/b", None)]),
    "replace": lambda b: b.replace("x/a", None, b.stat("x/a").validator),
    "delete": lambda b: b.delete("x/a"),
    "delete_many": lambda b: b.delete_many(["x/a"]),
    "delete_expiring": lambda b: b.delete_expiring("x/a", 2**62, 60),
    "grant_create": lambda b: b.grant_create("x/b", bytes(32), 60),
    "copy": lambda b: b.copy("x/a", "x/b"),
    "rename": lambda b: b.rename("x/a", "x/b", b.stat("x/a").validator),
    "rename_many": lambda b: b.rename_many([("x/a", "x/b", b.stat("x/a").validator)]),
    "touch": lambda b: b.touch("x/a"),
    "touch_many": lambda b: b.touch_many(["x/a"]),
    "sweep": lambda b: b.sweep(),
}
HARMLESS = {"grant_read", "incoming_file", "workshop", "now", "open", "flush", "clone", "close"}


@pytest.fixture
def filled(backend, put):
    put(backend, "x/a", b"1")
    return backend


def test_every_method_of_the_port_is_thought_of():
    methods = {name for name, _ in inspect.getmembers(Backend, inspect.isfunction) if not name.startswith("_")}
    assert methods == set(READS) | set(CHANGES) | HARMLESS


@pytest.mark.parametrize("name", READS)
def test_reading_works(filled, name):
    assert READS[name](ReadOnlyBackend(filled)) == READS[name](filled)


def test_opening_works(filled):
    with ReadOnlyBackend(filled).open("x/a") as reader:
        assert reader.read(9) == b"1"


@pytest.mark.parametrize("name", CHANGES)
def test_changing_is_refused(filled, name):
    before = list(filled.listing("x/"))
    with pytest.raises((PermissionDeniedError, UnsupportedError)):
        CHANGES[name](ReadOnlyBackend(filled))
    assert list(filled.listing("x/")) == before
