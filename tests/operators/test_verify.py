"""Verification finds every kind of damage, is silent about a sound store, and changes only what is damaged."""

import json
import os

import pytest
from operators_kit import digest_of, envelope, files_of, key, kinds, record, tree

from oarbank_cas import Origin, Store, layout
from oarbank_cas import entry as codec
from oarbank_cas.backends.base import Backend
from oarbank_cas.errors import InvalidInputError, StorageIOError, UnavailableError
from oarbank_cas.verify import Options
from oarbank_cas.verify import run as run_module
from oarbank_cas.verify.report import MAX_NAMED

LOOK = Options(look_only=True)


def test_a_sound_store(filled):
    report = filled.store.verify()
    assert (report.exit_code, report.problems, report.problem_count) == (0, [], 0)
    counts = report.counts
    blobs = filled.names("blobs/")
    assert counts["blobs"] == counts["blobs_read"] == len(blobs)
    assert counts["blob_bytes"] == counts["bytes_read"] == sum(len(filled.read(name)) for name in blobs)
    assert (counts["entries"], counts["tombstones"], counts["pins"]) == (12, 0, 3)
    assert counts["orphans"] == 0  # the pin counts


def test_a_sound_store_is_left_as_it_is(disk):
    before = tree(disk.root)
    for options in (None, LOOK, Options(repair=True)):
        assert disk.store.verify(options).sound
    assert tree(disk.root) == before


def test_orphans_are_told_and_no_problem(filled):
    filled.store.pins.unpin("a-blob")
    report = filled.store.verify()
    assert (report.exit_code, report.counts["orphans"], report.counts["orphan_bytes"]) == (0, 1, 22)
    assert report.problems == []
    listed = filled.store.verify(Options(list_orphans=True))
    assert [(each.kind, each.digest) for each in listed.problems] == [("orphan", filled.orphan)]
    assert listed.exit_code == 0


def test_what_was_ended_still_counts_as_referred_to(filled):
    filled.store.invalidate(key(3), by="me", reason="wrong")
    report = filled.store.verify()
    assert report.sound
    assert (report.counts["tombstones"], report.counts["orphans"]) == (1, 0)
    filled.remove(layout.blob(filled.blob(3)))
    assert filled.store.verify().sound  # nobody is answered from it


@pytest.mark.parametrize("damage", ["flip", "truncate", "empty", "grow", "other"])
def test_damaged_blobs_are_set_aside(filled, damage):
    digest = filled.blob()
    name = layout.blob(digest)
    sound = filled.read(name)
    wrong = {
        "flip": sound[:100] + bytes([sound[100] ^ 1]) + sound[101:],
        "truncate": sound[:-1],
        "empty": b"",
        "grow": sound + b"\0",
        "other": b"x" * len(sound),
    }[damage]
    filled.write(name, wrong)
    looked = filled.store.verify(LOOK)
    assert kinds(looked) == [("damaged", name)]
    assert filled.read(name) == wrong
    report = filled.store.verify()
    assert (report.exit_code, kinds(report)) == (1, [("damaged", name)])
    (problem,) = report.problems
    assert (problem.digest, problem.aside, problem.references) == (digest, True, 1)
    assert problem.referenced_by == (filled.entry(3),)
    assert name not in filled.names()
    (aside,) = filled.names("damaged/")
    assert aside.startswith(f"damaged/{digest}.")
    assert filled.read(aside) == wrong
    assert filled.store.lookup(key(3)).reason == "incomplete"
    # From then on it is missing, and what was set aside is told.
    again = filled.store.verify()
    assert kinds(again) == [("missing", name)]
    assert again.counts["set_aside_before"] == 1


def test_a_damaged_blob_that_nothing_refers_to(filled):
    filled.store.pins.unpin("a-blob")
    filled.flip(layout.blob(filled.orphan))
    report = filled.store.verify()
    assert (report.exit_code, report.problems[0].references) == (1, 0)
    assert filled.store.verify().exit_code == 0


def test_damaged_fossils_are_set_aside_too(filled):
    digest = filled.blob()
    filled.fossilise(digest)
    assert filled.store.verify().sound  # readers find it
    filled.flip(layout.fossil(digest, "0" * 16))
    report = filled.store.verify()
    assert kinds(report) == [("damaged", layout.fossil(digest, "0" * 16))]
    assert filled.names("fossils/") == []
    assert kinds(filled.store.verify()) == [("missing", layout.blob(digest))]


def test_half_moved_fossils_are_checked(filled):
    digest = filled.blob()
    filled.move(layout.blob(digest), layout.fossil(digest, "ab") + "~")
    report = filled.store.verify()
    assert report.sound
    assert report.counts["fossils_read"] == 1
    filled.flip(layout.fossil(digest, "ab") + "~")
    assert not filled.store.verify().sound


def test_missing_blobs(filled):
    filled.remove(layout.blob(filled.blob(3)))
    filled.remove(layout.blob(digest_of(b"the same for every job")))
    report = filled.store.verify()
    assert {problem.kind for problem in report.problems} == {"missing"}
    by_digest = {problem.digest: problem for problem in report.problems}
    shared = by_digest[digest_of(b"the same for every job")]
    assert (shared.references, len(shared.referenced_by)) == (13, MAX_NAMED)  # twelve entries, and a pinned dataset
    assert by_digest[filled.blob(3)].referenced_by == (filled.entry(3),)


def test_a_missing_manifest(filled):
    digest = filled.dataset(3).removeprefix("art:")
    filled.remove(layout.blob(digest))
    assert kinds(filled.store.verify()) == [("missing", layout.blob(digest))]


@pytest.mark.parametrize("damage", ["flip body", "header", "empty", "garbage", "cut"])
def test_damaged_entries(filled, damage):
    name = filled.entry(3)
    data = filled.read(name)
    wrong = {
        "flip body": data[:-5] + b"#" + data[-4:],
        "header": b"{" + data,
        "empty": b"",
        "garbage": os.urandom(300),
        "cut": data[:-1],
    }[damage]
    filled.write(name, wrong)
    report = filled.store.verify()
    assert kinds(report) == [("damaged", name)]
    assert filled.read(name) == wrong  # a miss for everybody; what it says is for people
    assert "invalidate" in report.problems[0].detail


def test_an_entry_under_another_key(filled):
    to = layout.entry(key(99), None, "any")
    filled.write(to, filled.read(filled.entry(3)))
    assert kinds(filled.store.verify()) == [("misplaced", to)]
    filled.remove(to)
    other_class = layout.entry(key(3), None, "linux")
    filled.write(other_class, filled.read(filled.entry(3)))
    assert kinds(filled.store.verify()) == [("misplaced", other_class)]


def test_an_entry_whose_header_names_other_datasets(filled):
    name = filled.entry(3)
    found = codec.decode(filled.read(name))
    for datasets in ({}, {"out": filled.dataset(4)}):
        header = {**found.header, "datasets": datasets}
        filled.write(name, codec.encode(header, found.envelope))
        assert kinds(filled.store.verify()) == [("mismatch", name)]


def test_an_entry_that_says_another_size(filled):
    data = b"five."
    filled.store.put_bytes(data)
    sent = envelope({"a": data})
    filled.store.record(key(50), sent, Origin("me"))
    name = filled.entry(50)
    found = codec.decode(filled.read(name))
    lying = found.envelope.replace(b'"size": 5', b'"size": 6')
    header = {**found.header}
    filled.write(name, codec.encode(header, lying))
    report = filled.store.verify(Options(sample=0.0001))
    assert ("mismatch", layout.blob(digest_of(data))) in kinds(report)
    assert filled.store.get_bytes(digest_of(data)) == data  # the blob is sound, and stays


def test_pins(filled):
    filled.remove(filled.entry(0))
    filled.remove(layout.blob(filled.orphan))
    filled.remove(layout.blob(filled.dataset(1).removeprefix("art:")))
    filled.write("pins/broken", b"{")
    report = filled.store.verify()
    found = kinds(report)
    assert ("missing", "pins/a-job") in found
    assert ("missing", layout.blob(filled.orphan)) in found
    assert ("missing", "pins/a-dataset") in found
    assert ("damaged", "pins/broken") in found


def test_expired_pins_need_nothing(filled):
    filled.store.pins.unpin("a-blob")
    filled.store.pins.pin("old", f"blob:{filled.orphan}", expires_at="2099-01-01T00:00:00Z")
    filled.write("pins/old", filled.read("pins/old").replace(b"2099", b"2020"))
    filled.remove(layout.blob(filled.orphan))
    report = filled.store.verify()
    assert report.sound
    assert (report.counts["pins"], report.counts["expired_pins"]) == (2, 1)


def test_misplaced_blobs(filled):
    digest = filled.blob()
    wrong = f"blobs/zz/{digest}"
    filled.move(layout.blob(digest), wrong)
    assert kinds(filled.store.verify()) == [("misplaced", wrong), ("missing", layout.blob(digest))]
    assert wrong in filled.names()


def test_foreign_objects_are_told_and_left_alone(filled):
    foreign = ["README", "blobs.txt", "blobs/ab/notes", "fossils/x", "results/ab/x", "pins/Not A Pin", "zz/deep/file"]
    for name in foreign:
        filled.write(name, b"mine")
    report = filled.store.verify(Options(repair=True))
    assert report.exit_code == 0
    assert sorted(problem.name for problem in report.problems) == sorted(foreign)
    assert {problem.kind for problem in report.problems} == {"foreign"}
    assert all(filled.read(name) == b"mine" for name in foreign)


def test_what_a_store_has_beside_is_not_foreign(filled):
    for name in ("policy.json", "capabilities.json", "gc/runs/x.json", "damaged/ab.cd"):
        filled.write(name, b"{}")
    assert filled.store.verify().problems == []


def test_links(disk, tmp_path):
    digest = disk.blob()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_bytes(disk.read(layout.blob(digest)))
    disk.remove(layout.blob(digest))
    disk.path(layout.blob(digest)).symlink_to(elsewhere)
    disk.path("here").symlink_to(elsewhere)
    os.mkfifo(disk.path("pipe"))
    report = disk.store.verify()
    assert kinds(report) == [("foreign", "here"), ("foreign", "pipe"), ("irregular", layout.blob(digest))]
    assert report.exit_code == 1
    assert elsewhere.exists()


def test_a_linked_folder_hides_nothing(disk, tmp_path):
    digest = disk.blob()
    shard = disk.path(f"blobs/{digest[:2]}")
    shard.rename(tmp_path / "moved")
    shard.symlink_to(tmp_path / "moved")
    report = disk.store.verify()
    assert report.exit_code == 1
    assert any(problem.kind == "unreadable" for problem in report.problems)


def test_names_that_are_no_text(disk):
    folder = os.fsencode(disk.root)
    with open(os.path.join(folder, b"blobs", b"bad-\xff-name"), "wb"):
        pass
    with open(os.path.join(folder, b"stray-\xfe"), "wb"):
        pass
    report = disk.store.verify()
    assert len(report.problems) == 2
    assert json.loads(json.dumps(report.to_json()))["problems"][0]["name"].isascii()


@pytest.mark.skipif(os.geteuid() == 0, reason="the superuser may read everything")
def test_blobs_that_may_not_be_read(disk):
    disk.path(layout.blob(disk.blob())).chmod(0)
    report = disk.store.verify()
    assert kinds(report) == [("unreadable", layout.blob(disk.blob()))]


@pytest.mark.parametrize(
    "hide", ["a folder that is a link", "a damaged entry", "an entry that is a link", "a damaged pin", "no manifest"]
)
def test_nothing_is_called_an_orphan_where_roots_cannot_be_read(disk, tmp_path, hide, run):
    """What they refer to is not known: only what could not be read is told."""
    whole = disk.store.verify(Options(look_only=True, list_orphans=True))
    assert (whole.counts["roots_unread"], whole.by_kind) == (0, {})
    disk.store.pins.unpin("a-blob")
    assert disk.store.verify(Options(look_only=True, list_orphans=True)).by_kind == {"orphan": 1}
    entry = disk.path(disk.entry(3))
    what = disk.entry(3)
    if hide == "a folder that is a link":
        entry.parent.parent.rename(tmp_path / "elsewhere")
        entry.parent.parent.symlink_to(tmp_path / "elsewhere")
        what = f"{disk.root} (entries)"
    elif hide == "a damaged entry":
        disk.write(what, disk.read(what)[:-3])
    elif hide == "an entry that is a link":
        entry.rename(tmp_path / "elsewhere")
        entry.symlink_to(tmp_path / "elsewhere")
    elif hide == "a damaged pin":
        what = "pins/a-dataset"
        disk.write(what, b"{}")
    else:
        what = "pins/a-dataset"
        disk.remove(layout.blob(disk.dataset(1).removeprefix("art:")))
    report = disk.store.verify(Options(look_only=True, list_orphans=True))
    assert report.counts["roots_unread"] >= 1
    assert report.counts["orphans"] == report.counts["orphan_bytes"] == 0
    assert "orphan" not in report.by_kind
    assert what in {problem.name for problem in report.problems}
    told = run("--store", disk.root, "verify", "--dry-run", "--orphans")
    assert told.code == 1
    assert "nothing refers to: not known" in told.text
    assert what in told.text
    assert "gc sees to them" not in told.text


# -- a store or a machine that fails


class Failing(Backend):
    """Another backend, some of whose reads go wrong."""

    def __init__(self, backend):
        self.backend = backend
        self.where = backend.where
        self.atomic_move = backend.atomic_move
        self.group_commit = backend.group_commit
        self.errors = {}
        self.rotten = {}

    def open(self, name, start=0):
        if name in self.errors:
            raise self.errors[name]
        if self.rotten.get(name, 0) > 0:
            self.rotten[name] -= 1
            return Rotten(self.backend.open(name, start))
        return self.backend.open(name, start)


for method in Backend.__abstractmethods__ - {"open"}:
    setattr(Failing, method, lambda self, *args, _method=method, **kw: getattr(self.backend, _method)(*args, **kw))
Failing.__abstractmethods__ = frozenset()


class Rotten:
    """A reader whose bytes are wrong."""

    def __init__(self, reader):
        self.reader = reader
        self.stat = reader.stat

    def read(self, size):
        data = self.reader.read(size)
        return data and bytes([data[0] ^ 1]) + data[1:]

    def close(self):
        self.reader.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


@pytest.fixture
def failing(filled):
    backend = Failing(filled.store.backend)
    filled.failing = backend
    filled.seen = Store(backend, filled.store.descriptor)
    return filled


def test_bytes_that_were_wrong_once_are_left_where_they_are(failing):
    name = layout.blob(failing.blob())
    for options in (None, LOOK, Options(repair=True)):
        failing.failing.rotten = {name: 1}
        report = failing.seen.verify(options)
        assert kinds(report) == [("unreadable", name)]
        assert report.exit_code == 1
    failing.check_whole()
    assert failing.names("damaged/") == []


def test_a_blob_that_cannot_be_read_is_left_where_it_is(failing):
    name = layout.blob(failing.blob())
    failing.failing.errors = {name: StorageIOError("I/O error")}
    report = failing.seen.verify(Options(repair=True))
    assert kinds(report) == [("unreadable", name)]
    failing.check_whole()


def test_a_store_out_of_reach_is_no_finding(failing):
    failing.failing.errors = {layout.blob(failing.blob()): UnavailableError("gone")}
    with pytest.raises(UnavailableError):
        failing.seen.verify()


def test_a_blob_that_gc_moves_while_it_is_looked_at(failing):
    """Between the listing and the reading it becomes a fossil, which the walk over fossils then reads."""
    digest = failing.blob()

    class Moving(Failing):
        def open(self, name, start=0):
            if name == layout.blob(digest) and name in failing.names("blobs/"):
                failing.fossilise(digest)
            return self.backend.open(name, start)

    report = Store(Moving(failing.store.backend), failing.store.descriptor).verify()
    assert report.problems == []
    assert report.counts["fossils_read"] == 1


def test_an_entry_that_is_ended_while_it_is_verified(filled):
    filled.remove(layout.blob(filled.blob(3)))

    class Ending(Failing):
        def listing(self, prefix, after=""):
            if prefix == "blobs/":
                filled.store.invalidate(key(3), by="me", reason="meanwhile")
            return self.backend.listing(prefix, after)

    assert Store(Ending(filled.store.backend), filled.store.descriptor).verify().sound


# -- choosing


def test_a_sample_is_the_same_for_the_same_seed(filled):
    for number in range(20, 60):
        record(filled.store, number)
    blobs = len(filled.names("blobs/"))
    reports = [filled.store.verify(Options(sample=30, seed=seed)) for seed in ("a", "a", "b")]
    read = [report.counts["blobs_read"] for report in reports]
    assert read[0] == read[1]
    assert all(0.1 * blobs < each < 0.5 * blobs for each in read)
    assert all(report.counts["blobs"] == blobs for report in reports)


def test_samples_of_many_seeds_meet_everything(filled):
    name = layout.blob(filled.blob())
    filled.flip(name)
    found = [bool(filled.store.verify(Options(look_only=True, sample=50, seed=str(n))).problems) for n in range(20)]
    assert 3 < sum(found) < 17
    assert (
        filled.store.verify(Options(look_only=True, sample=50)).options.seed
        == run_module.instants.to_text(filled.store.backend.now())[:10]
    )


def test_a_truncated_blob_is_met_by_every_sample(filled):
    name = layout.blob(filled.blob())
    filled.write(name, filled.read(name)[:-1])
    assert kinds(filled.store.verify(Options(look_only=True, sample=0.0001))) == [("damaged", name)]


def test_since(filled):
    name = layout.blob(filled.blob())
    filled.flip(name)
    later = filled.store.backend.now() + 1
    assert filled.store.verify(Options(look_only=True, since_ns=later)).counts["blobs_read"] == 0
    assert not filled.store.verify(Options(look_only=True, since_ns=later - 3600 * 10**9)).sound


@pytest.mark.parametrize("sample", [0, -1, 101, float("nan")])
def test_samples_that_make_no_sense(sample):
    with pytest.raises(InvalidInputError):
        Options(sample=sample)


def test_looking_only_repairs_nothing():
    with pytest.raises(InvalidInputError):
        Options(look_only=True, repair=True)


def test_looking_at_a_store_that_may_only_be_read(disk):
    disk.flip(layout.blob(disk.blob()))
    before = tree(disk.root)
    with Store.open(disk.root, read_only=True) as store:
        assert store.verify(LOOK).problem_count == 1
        # What cannot be set aside is told all the same.
        report = store.verify()
        assert (report.problem_count, report.problems[0].aside) == (1, False)
    assert tree(disk.root) == before


def test_every_file_of_a_job_is_what_it_was(filled):
    filled.store.verify()
    filled.check_whole()
    assert files_of(3) != files_of(4)
