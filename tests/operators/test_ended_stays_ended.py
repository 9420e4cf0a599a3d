"""Repairing never brings a result back that was ended, however its tombstone is damaged."""

from __future__ import annotations

import os
import shutil

import pytest

from oarbank_cas import Origin, Store, layout
from oarbank_cas.verify import Options

KEY = "ab" * 32
ENVELOPE = b'{"schema": "m/result@1", "module_version": "1.0.0", "payload": {}}'


@pytest.mark.parametrize("damage", ["a bit of the body", "a bit of the header", "cut in the header", "cut to half"])
def test_a_damaged_tombstone_is_not_replaced_by_the_entry(tmp_path, damage):
    store, _ = Store.init(tmp_path / "store")
    store.record(KEY, ENVELOPE, Origin("me"))
    shutil.copytree(tmp_path / "store", tmp_path / "other")
    store.invalidate(KEY, by="me", reason="wrong")
    path = os.path.join(store.backend.where, layout.entry(KEY, None, "any"))
    with open(path, "rb") as file:
        data = bytearray(file.read())
    if damage == "a bit of the body":
        data[-3] ^= 1
    elif damage == "a bit of the header":
        data[data.index(b"wrong")] ^= 1
    else:
        del data[200 if damage == "cut in the header" else len(data) // 2 :]
    os.chmod(path, 0o644)
    with open(path, "wb") as file:
        file.write(data)
    with store, Store.open(tmp_path / "other") as other:
        store.verify(Options(repair=True), other)
        assert not store.lookup(KEY).hit


def test_a_damaged_entry_is_healed(tmp_path):
    store, _ = Store.init(tmp_path / "store")
    store.record(KEY, ENVELOPE, Origin("me"))
    shutil.copytree(tmp_path / "store", tmp_path / "other")
    path = os.path.join(store.backend.where, layout.entry(KEY, None, "any"))
    os.chmod(path, 0o644)
    with open(path, "r+b") as file:
        file.seek(-3, os.SEEK_END)
        file.write(b"x")
    with store, Store.open(tmp_path / "other") as other:
        (problem,) = store.verify(Options(repair=True), other).problems
        assert store.lookup(KEY).envelope == ENVELOPE
        assert problem.healed
        assert problem.detail.endswith("; it was healed from the other store")
        assert "record its result again" not in problem.detail  # there is nothing left to do
