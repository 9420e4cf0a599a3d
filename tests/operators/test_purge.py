"""Purge: at once and for good, whatever refers to the blob, and written down first."""

import json

import pytest
from operators_kit import key, kinds

from oarbank_cas import Store, layout
from oarbank_cas.errors import BusyError, InvalidInputError, StorageIOError
from oarbank_cas.purge import purge


def audits(filled):
    return [json.loads(filled.read(name)) for name in filled.names("gc/purges/")]


def test_everything_that_holds_it_goes(filled):
    digest = filled.blob()
    name = layout.blob(digest)
    sound = filled.read(name)
    spare = [layout.fossil(digest, "00"), layout.fossil(digest, "01") + "~", layout.damaged(digest, "02")]
    near = [layout.fossil(digest[:-1] + ("0" if digest[-1] != "0" else "1"), "00"), "damaged/" + digest[:-1] + "x.1"]
    for each in (*spare, *near):
        filled.write(each, sound)
    report = filled.store.purge(digest, by="me", reason="a password")
    assert sorted(report.deleted) == sorted([name, *spare])
    assert not any(digest in each for each in filled.names() if not each.startswith("gc/purges/"))
    assert set(near) <= set(filled.names())
    assert report.referenced_by == [filled.entry(3)]


def test_entries_become_incomplete_at_once(filled):
    assert filled.store.lookup(key(3)).hit  # and remembered
    filled.store.purge(filled.blob(), by="me", reason="x")
    found = filled.store.lookup(key(3))
    assert (found.reason, found.missing) == ("incomplete", (filled.blob(),))
    assert filled.store.lookup(key(4)).hit
    assert kinds(filled.store.verify()) == [("missing", layout.blob(filled.blob()))]


def test_the_audit(filled):
    digest = filled.blob()
    report = filled.store.purge(digest, by="me@here", reason="a password")
    (audit,) = audits(filled)
    assert report.audit in filled.names()
    assert (audit["purge"], audit["by"], audit["reason"]) == (digest, "me@here", "a password")
    assert (audit["referenced_by"], audit["references"]) == ([filled.entry(3)], 1)
    assert audit["objects"] == [layout.blob(digest)]
    assert audit["at"].startswith("20")


def test_the_audit_is_written_before_anything_goes(filled, monkeypatch):
    order = []
    backend = filled.store.backend
    commit, delete = backend.commit, backend.delete
    monkeypatch.setattr(backend, "commit", lambda items: order.append(next(n for n, _ in items)) or commit(items))
    monkeypatch.setattr(backend, "delete", lambda name, *rest: order.append(name) or delete(name, *rest))
    filled.store.purge(filled.blob(), by="me", reason="x")
    assert order[0].startswith("gc/purges/")
    assert order[1:] == [layout.blob(filled.blob())]


def test_without_an_audit_nothing_goes(filled, monkeypatch):
    def full(_):
        raise StorageIOError("no space left on device")

    monkeypatch.setattr(filled.store.backend, "commit", full)
    with pytest.raises(StorageIOError):
        filled.store.purge(filled.blob(), by="me", reason="x")
    filled.check_whole()


def test_again_is_done(filled):
    filled.store.purge(filled.blob(), by="me", reason="x")
    report = filled.store.purge(filled.blob(), by="me", reason="x")
    assert (report.deleted, report.references) == ([], 1)
    assert len(audits(filled)) == 2
    assert filled.store.purge(key(99), by="me", reason="never there").references == 0


def test_pins_and_tombstones_are_named(filled):
    filled.store.invalidate(key(3), by="me", reason="wrong")
    assert filled.store.purge(filled.blob(), by="me", reason="x").referenced_by == [filled.entry(3)]
    assert filled.store.purge(filled.orphan, by="me", reason="x").referenced_by == ["pins/a-blob"]
    report = filled.store.purge(filled.blob(1), by="me", reason="x")
    assert report.referenced_by == [filled.entry(1), "pins/a-dataset"]
    assert not report.is_manifest


def test_a_manifest_is_told(filled):
    digest = filled.dataset(1).removeprefix("art:")
    report = filled.store.purge(digest, by="me", reason="x")
    assert report.is_manifest
    assert report.referenced_by == [filled.entry(1), "pins/a-dataset"]


def test_a_damaged_entry_that_names_it_is_told(filled):
    name = filled.entry(3)
    filled.write(name, filled.read(name)[:-1])
    assert filled.store.purge(filled.blob(), by="me", reason="x").referenced_by == [name]


def test_digests_in_another_spelling(filled):
    """JSON may escape any character."""
    from oarbank_cas import entry as codec

    name, digest = filled.entry(3), filled.blob()
    found = codec.decode(filled.read(name))
    escaped = f"\\u{ord(digest[0]):04x}{digest[1:]}".encode()
    filled.write(name, codec.encode(found.header, found.envelope.replace(digest.encode(), escaped)))
    assert filled.store.purge(digest, by="me", reason="x").referenced_by == [name]


def test_a_running_gc_is_told(filled):
    assert not filled.store.purge(filled.orphan, by="me", reason="x").gc_running
    filled.write("gc/running/abc", b"{}")
    assert filled.store.purge(filled.orphan, by="me", reason="x").gc_running


def test_what_comes_back_meanwhile_goes_too(filled, monkeypatch):
    digest = filled.blob()
    sound = filled.read(layout.blob(digest))
    backend = filled.store.backend
    delete, left = backend.delete, [3]

    def deleting(name, *rest):
        done = delete(name, *rest)
        if left[0]:
            left[0] -= 1
            filled.write(layout.fossil(digest, f"{left[0]}"), sound)  # gc at work
        return done

    monkeypatch.setattr(backend, "delete", deleting)
    report = filled.store.purge(digest, by="me", reason="x")
    assert len(report.deleted) == 4
    assert not filled.names("fossils/")
    left[0] = 1000
    filled.write(layout.blob(digest), sound)
    with pytest.raises(BusyError):
        filled.store.purge(digest, by="me", reason="x")


@pytest.mark.parametrize("reason", ["", "  ", "x" * 1001])
def test_a_reason_is_needed(filled, reason):
    with pytest.raises(InvalidInputError):
        filled.store.purge(filled.blob(), by="me", reason=reason)
    with pytest.raises(InvalidInputError):
        filled.store.purge("nope", by="me", reason="x")
    filled.check_whole()
    assert audits(filled) == []


def test_a_copy_may_bring_it_back(filled, mirror):
    """As docs/operators.md says: other stores are not reached."""
    filled.store.purge(filled.blob(), by="me", reason="x")
    assert mirror.store.has(filled.blob())


def test_many_references_are_counted(filled, monkeypatch):
    monkeypatch.setattr("oarbank_cas.purge.MAX_NAMED", 2)
    from operators_kit import digest_of

    report = purge(filled.store, digest_of(b"the same for every job"), by="me", reason="x")
    assert (len(report.referenced_by), report.references) == (2, 13)


def test_a_store_opened_for_reading(disk):
    from oarbank_cas.errors import PermissionDeniedError

    with Store.open(disk.root, read_only=True) as store, pytest.raises(PermissionDeniedError):
        store.purge(disk.blob(), by="me", reason="x")
    disk.check_whole()
