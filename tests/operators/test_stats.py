"""Figures: counted by hand, and shown on a page that needs nothing else."""

import re
import xml.dom.minidom

import pytest
from operators_kit import digest_of, envelope, files_of, key, record

from oarbank_cas import Origin, layout
from oarbank_cas.sizes import parse_size, size_text
from oarbank_cas.stats import AGE_NAMES, SIZE_NAMES, size_class
from oarbank_cas.stats_page import page


def test_counts(filled):
    found = filled.store.stats()
    blobs = {name: len(filled.read(name)) for name in filled.names("blobs/")}
    assert (found.blobs.count, found.blobs.bytes) == (len(blobs), sum(blobs.values()))
    assert (found.entries.count, found.tombstones.count, found.pins) == (12, 0, 3)
    assert found.entries.bytes == sum(len(filled.read(name)) for name in filled.names("results/"))
    # Three files and a manifest each; one file is everybody's.
    assert (found.referenced.count, found.distinct.count) == (48, 37)
    shared = len(b"the same for every job")
    assert found.referenced.bytes - found.distinct.bytes == 11 * shared
    assert found.dedup_ratio == found.referenced.bytes / found.distinct.bytes
    assert (found.orphans.count, found.orphans.bytes) == (1, len(b"nothing refers to this"))
    assert (found.missing, found.unreadable, found.fossils.count, found.damaged.count) == (0, 0, 0, 0)
    assert sum(each.count for each in found.sizes.values()) == len(blobs)
    assert found.ages["under 1 day"].count == len(blobs)


def test_modules(filled):
    filled.store.invalidate(key(3), by="me", reason="x")
    found = filled.store.stats().modules
    assert set(found) == {"module0", "module1", "module2"}
    assert (found["module0"].entries.count, found["module0"].tombstones.count) == (3, 1)
    assert found["module1"].entries.count == 4
    assert (found["module1"].referenced.count, found["module1"].distinct.count) == (16, 13)
    assert found["module1"].referenced.bytes - found["module1"].distinct.bytes == 3 * len(b"the same for every job")
    assert found["module1"].ages["under 1 day"] == 4
    assert found["module1"].last_ns > 0


def test_damage_is_counted_and_no_error(filled):
    filled.write(filled.entry(3), b"")
    filled.remove(layout.blob(filled.blob(4)))
    filled.write(layout.damaged(filled.blob(5), "00"), b"xyz")
    filled.write("results/foreign", b"")
    filled.write("blobs/foreign", b"")
    found = filled.store.stats()
    assert (found.unreadable, found.missing) == (1, 1)
    assert (found.damaged.count, found.damaged.bytes) == (1, 3)
    assert found.free.why_not is not None


def test_condemned_blobs(filled):
    before = filled.store.stats()
    filled.fossilise(filled.blob(3))
    found = filled.store.stats()
    assert (found.fossils.count, found.missing) == (1, 0)
    assert found.distinct == before.distinct
    assert found.blobs.count == before.blobs.count - 1


def test_what_a_gc_would_free(tmp_path):
    from operators_kit import disk_store

    made = disk_store(tmp_path / "s", session_s=1, grace_s=1, slack_s=0)
    record(made.store, 1)
    made.store.put_bytes(b"x" * 1000)
    import time

    time.sleep(1.2)
    free = made.store.stats().free
    assert (free.condemned.count, free.condemned.bytes, free.purged.count) == (1, 1000, 0)
    assert made.store.stats(with_gc=False).free is None
    made.store.gc()
    time.sleep(1.2)
    made.store.gc()
    assert made.store.stats().fossils.count + made.store.stats().free.purged.count < 3
    made.store.close()


def test_an_empty_store(other):
    found = other.store.stats()
    assert found.dedup_ratio is None
    assert found.to_json()["blobs"] == {"count": 0, "bytes": 0}
    assert "<svg" in page(found)


@pytest.mark.parametrize(
    ("size", "name"),
    [
        (0, "empty"),
        (1, "to 1 KiB"),
        (1024, "to 1 KiB"),
        (1025, "to 16 KiB"),
        (2**30, "to 1 GiB"),
        (2**30 + 1, "over 1 GiB"),
    ],
)
def test_size_classes(size, name):
    assert size_class(size) == name


def test_the_page_needs_nothing_else(filled):
    found = filled.store.stats()
    text = page(found)
    assert not re.search(r"<script|<link|<img|src=|href=|url\(|@import|https?:", text)
    assert "prefers-color-scheme: dark" in text
    assert text.count("<svg") == text.count("</svg>") == 8
    assert all(name in text for name in (*SIZE_NAMES, *AGE_NAMES, "module0", found.id))
    # Well-formed but for the doctype and the two void elements.
    body = re.sub(r"<meta [^>]*>", "", text.removeprefix("<!doctype html>\n"))
    xml.dom.minidom.parseString(body)


def test_names_from_outside_are_text(filled):
    evil = "</svg><script>alert(1)</script>&\"'"
    filled.store.put_bytes(b"evil")
    filled.store.record(key(60), envelope({"a": b"evil"}), Origin("me"))
    found = filled.store.stats()
    found.modules[evil] = found.modules.pop("align")
    found.store = evil + "\udcff"
    text = page(found)
    assert "<script" not in text
    assert "&lt;script&gt;" in text
    text.encode("utf-8")


def test_entries_by_files(filled):
    total = sum(len(data) for number in filled.jobs for data in files_of(number).values())
    manifests = sum(len(filled.read(layout.blob(filled.dataset(n).removeprefix("art:")))) for n in filled.jobs)
    assert filled.store.stats().referenced.bytes == total + manifests
    assert digest_of(b"the same for every job") in {name[-64:] for name in filled.names("blobs/")}


@pytest.mark.parametrize(
    ("text", "size"),
    [("0", 0), ("1024", 1024), ("1k", 1024), ("1.5M", 3 * 2**19), ("2T", 2**41), ("2TiB", 2**41), ("5 GB", 5 * 2**30)],
)
def test_sizes(text, size):
    assert parse_size(text) == size


def test_sizes_for_people():
    assert [size_text(n) for n in (0, 1023, 1024, 10**9, 2**60)] == [
        "0 B",
        "1023 B",
        "1.0 KiB",
        "953.7 MiB",
        "1024.0 PiB",
    ]
