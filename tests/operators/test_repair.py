"""Repair brings back what is damaged or missing, from the store or from another, and never makes things worse."""

import pytest
from operators_kit import Filled, disk_store, envelope, key, kinds, memory_store, record, tree

from oarbank_cas import Origin, Store, layout
from oarbank_cas import entry as codec
from oarbank_cas.backends.memory import MemoryBackend
from oarbank_cas.errors import ConflictError
from oarbank_cas.verify import Options

REPAIR = Options(repair=True)


def heal(filled, source=None):
    report = filled.store.verify(REPAIR, source.store if source is not None else None)
    assert report.sound, report.problems
    assert report.exit_code == 0
    assert report.healed == report.problem_count > 0
    assert filled.store.verify().problem_count == 0
    filled.check_whole()
    return report


def test_damaged_and_missing_blobs(filled, mirror):
    for number in range(3, 9):
        name = layout.blob(filled.blob(number))
        if number % 2:
            filled.flip(name)
        else:
            filled.remove(name)
    filled.write(layout.blob(filled.blob(9)), b"")
    before = tree(mirror.root)
    report = heal(filled, mirror)
    assert report.healed == 7
    assert len(filled.names("damaged/")) == 4
    assert tree(mirror.root) == before


def test_manifests_and_pinned_blobs(filled, mirror):
    filled.remove(layout.blob(filled.dataset(1).removeprefix("art:")))
    filled.flip(layout.blob(filled.orphan))
    heal(filled, mirror)


def test_from_a_fossil(filled):
    digest = filled.blob()
    sound = filled.read(layout.blob(digest))
    filled.fossilise(digest)
    filled.write(layout.blob(digest), sound[:-1])
    report = heal(filled)
    assert "fossil" in report.problems[0].detail
    assert filled.names("fossils/") == [layout.fossil(digest, "0" * 16)]  # it is kept


def test_from_what_was_set_aside(filled):
    """The machine that found it damaged was itself at fault."""
    digest = filled.blob()
    filled.write(layout.damaged(digest, "00"), b"really wrong")
    filled.move(layout.blob(digest), layout.damaged(digest, "01"))
    heal(filled)
    assert len(filled.names("damaged/")) == 2


def test_a_damaged_fossil_of_a_sound_blob(filled):
    digest = filled.blob()
    filled.write(layout.fossil(digest, "00"), b"wrong")
    heal(filled)
    assert filled.names("fossils/") == []


def test_a_misplaced_blob(filled):
    digest = filled.blob()
    filled.move(layout.blob(digest), f"blobs/00/x{digest}"[:9] + digest)
    filled.move(f"blobs/00/{digest}", f"blobs/{'ff' if digest[:2] != 'ff' else '00'}/{digest}")
    heal(filled)
    assert len(filled.names("damaged/")) == 1
    assert digest == filled.names("damaged/")[0].removeprefix("damaged/").partition(".")[0]


def test_a_misplaced_blob_with_wrong_bytes_stays(filled):
    digest = filled.blob()
    wrong = "blobs/elsewhere/" + digest
    filled.write(wrong, b"other bytes")
    report = filled.store.verify(REPAIR)
    assert kinds(report) == [("misplaced", wrong)]
    assert filled.read(wrong) == b"other bytes"
    filled.check_whole()


@pytest.mark.parametrize("kept", [-1, 700, 0.9])
def test_damaged_entries(filled, mirror, kept):
    name = filled.entry(3)
    data = filled.read(name)
    wrong = data[: int(len(data) * kept) if isinstance(kept, float) else kept]
    filled.write(name, wrong)
    heal(filled, mirror)
    assert codec.decode(filled.read(name)).envelope == codec.decode(data).envelope
    (aside,) = filled.names("damaged/")
    assert filled.read(aside) == wrong  # not lost


def test_an_entry_of_another_key(filled, mirror):
    filled.write(filled.entry(3), filled.read(filled.entry(4)))
    heal(filled, mirror)


def cut_short(filled, number):
    name = filled.entry(number)
    filled.write(name, filled.read(name)[:-3])


def test_what_may_have_been_a_tombstone_is_left(filled, mirror):
    for damage in (b"", b"{}\n{}", filled.read(filled.entry(3))[:40]):
        filled.write(filled.entry(3), damage)
        assert filled.store.verify(REPAIR, mirror.store).exit_code == 1
    assert not filled.store.lookup(key(3)).hit


def test_an_entry_whose_files_went_too(filled, mirror):
    cut_short(filled, 3)
    filled.remove(layout.blob(filled.blob(3)))
    heal(filled, mirror)


def test_nowhere_to_heal_from(filled, other):
    filled.remove(layout.blob(filled.blob(3)))
    filled.flip(layout.blob(filled.blob(4)))
    filled.write(filled.entry(5), b"")
    for source in (None, other.store):
        report = filled.store.verify(REPAIR, source)
        assert (report.exit_code, report.healed) == (1, 0)
    assert {kind for kind, _ in kinds(report)} == {"missing", "damaged"}


def test_the_other_store_is_damaged_too(filled, mirror):
    digest = filled.blob()
    filled.remove(layout.blob(digest))
    mirror.flip(layout.blob(digest))
    report = filled.store.verify(REPAIR, mirror.store)
    assert kinds(report) == [("missing", layout.blob(digest))]
    assert layout.blob(digest) not in filled.names()


def test_the_other_store_has_another_result(filled, other):
    files = {"a": b"other"}
    other.store.put_bytes(b"other")
    other.store.record(key(3), envelope(files), Origin("them"))
    cut_short(filled, 3)
    # It is a result for this key all the same, which is what the store is asked for.
    assert filled.store.verify(REPAIR, other.store).sound
    assert filled.store.lookup(key(3)).hit


def test_a_backup_of_the_store_itself_heals(disk, tmp_path):
    """Same id, other place."""
    import shutil

    shutil.copytree(disk.root, tmp_path / "backup")
    backup = disk_store(tmp_path / "backup")
    disk.flip(layout.blob(disk.blob()))
    heal(disk, backup)
    backup.store.close()


def test_links_are_for_people(disk, mirror_of_disk, tmp_path):
    name = layout.blob(disk.blob())
    disk.move(name, "elsewhere")
    disk.path(name).symlink_to(disk.path("elsewhere"))
    report = disk.store.verify(REPAIR, mirror_of_disk.store)
    assert kinds(report) == [("foreign", "elsewhere"), ("irregular", name)]
    assert disk.path(name).is_symlink()
    disk.path(name).unlink()
    assert disk.store.verify(REPAIR, mirror_of_disk.store).sound
    disk.check_whole()


@pytest.fixture
def mirror_of_disk(disk, tmp_path):
    made = disk_store(tmp_path / "mirror")
    disk.store.copy_to(made.store)
    yield made
    made.store.close()


def test_an_ended_result_does_not_come_back(filled, mirror):
    filled.store.invalidate(key(3), by="me", reason="wrong")
    filled.store.verify(REPAIR, mirror.store)
    assert filled.store.lookup(key(3)).reason == "invalidated"


def test_repair_reads_what_it_healed_again(filled, mirror, monkeypatch):
    """Where what is in the way cannot be set aside, nothing counts as healed."""
    from oarbank_cas.blobs import Blobs

    monkeypatch.setattr(Blobs, "_set_aside", lambda *_: "it could not be set aside")
    name = layout.blob(filled.blob())
    filled.flip(name)
    report = filled.store.verify(REPAIR, mirror.store)
    assert kinds(report) == [("damaged", name)]
    assert not report.problems[0].aside


def test_dead_temporaries_are_swept(disk):
    disk.store.backend.now()  # the first use of a store sweeps them too
    folder = disk.root / "tmp" / "here-4000000-0123456789ab"
    folder.mkdir(parents=True)
    (folder / "1").write_bytes(b"half")
    import socket

    own = disk.root / "tmp" / f"{socket.gethostname()}-4000000-0123456789ac"
    own.mkdir()
    (own / "1").write_bytes(b"half")
    assert disk.store.verify().counts["temporaries"] == 2
    assert own.exists()
    disk.store.verify(REPAIR)
    assert not own.exists()


def test_many(filled, mirror):
    for number in range(100, 140):
        record(filled.store, number)
        filled.jobs.append(number)
    filled.store.copy_to(mirror.store)
    for number in filled.jobs[::2]:
        filled.flip(layout.blob(filled.blob(number)))
    report = heal(filled, mirror)
    assert report.by_kind == {"damaged": len(filled.jobs[::2])}


def test_what_cannot_be_healed_is_kept_once(filled, mirror):
    """However often it is tried; and never where it is sound."""
    name = filled.entry(3)
    filled.write(name, filled.read(name)[:-3])
    mirror.write(name, mirror.read(name)[:-3])
    for _ in range(3):
        report = filled.store.verify(REPAIR, mirror.store)
        assert kinds(report) == [("damaged", name)]
    assert len(filled.names("damaged/")) == 1


class Unconditional(MemoryBackend):
    """Storage that ignores what a delete expects; `meanwhile` is done before each."""

    exclusive = False
    meanwhile = None

    def delete(self, name, expected=None):
        if self.meanwhile is not None:
            meanwhile, self.meanwhile = self.meanwhile, None
            meanwhile()
        return super().delete(name)


def test_storage_that_ignores_what_a_delete_expects():
    """Two meet one damaged blob, and a third brings it anew between: that one must not be removed."""
    backend = Unconditional(atomic_move=False)
    made = Filled(Store(backend, memory_store().descriptor), None).fill()
    digest = made.blob()
    name = layout.blob(digest)
    sound = made.read(name)
    made.flip(name)
    stale = backend.stat(name)

    def meanwhile():
        # The other looked at the same moment, and wants to set the same incarnation aside.
        with pytest.raises(ConflictError, match="another"):
            made.store.blobs.move_aside(digest, stale)

    backend.meanwhile = meanwhile
    assert made.store.blobs.move_aside(digest, stale) in made.names("damaged/")
    made.write(name, sound)
    with pytest.raises(ConflictError, match="another"):
        made.store.blobs.move_aside(digest, stale)
    assert made.read(name) == sound
    assert len(made.names("damaged/")) == 1


def test_who_died_between_copy_and_removal(monkeypatch):
    """Storage without conditions: after a session another goes on."""
    now = [10**18]
    backend = Unconditional(atomic_move=False, clock=lambda: now[0])
    made = Filled(Store(backend, memory_store().descriptor), None).fill()
    digest = made.blob()
    made.flip(layout.blob(digest))
    with monkeypatch.context() as patch:
        patch.setattr(backend, "delete", lambda *_: False)
        assert made.store.blobs.move_aside(digest, backend.stat(layout.blob(digest))) is None
    now[0] += (made.store.descriptor.session_s + 1) * 10**9
    assert made.store.blobs.move_aside(digest, backend.stat(layout.blob(digest)))
    assert layout.blob(digest) not in made.names()
    assert len(made.names("damaged/")) == 1
