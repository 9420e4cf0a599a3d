"""Attempts on their way into the store: what is published, under which pin, for how long, and what is refused."""

import hashlib
import json
import os
import subprocess
import sys
import threading

import pytest
from attempt_model import line_of, lines_of
from publish_kit import SESSION_S, World, put

from oarbank_cas import instants, layout
from oarbank_cas.attempt import Declaration, artifacts, declare, publishing, sealed
from oarbank_cas.attempt.document import FILE
from oarbank_cas.errors import (
    ConflictError,
    CorruptError,
    InvalidInputError,
    NotFoundError,
    PermissionDeniedError,
    StorageIOError,
    UnavailableError,
)
from oarbank_cas.intake import Intake
from oarbank_cas.store import Store


@pytest.fixture(params=[True, False], ids=["disk-like", "bucket-like"])
def world(request, recorded):
    return World(atomic_move=request.param, wrap=recorded)


@pytest.fixture
def job(tmp_path):
    directory = tmp_path / "job"
    directory.mkdir()
    declare(directory, Declaration.records("eval", "eval.jsonl").task(4).describe("lösses"))
    declare(directory, Declaration.json("warm", "warm.json"))
    declare(directory, Declaration.json("later", "later.json"))
    (directory / "results.jsonl").write_bytes(lines_of([1, 2]))
    (directory / "eval.jsonl").write_bytes(lines_of([3]) + b'{"torn')
    (directory / "warm.json").write_bytes(b'{"w": 1.0}')
    (directory / "undeclared.json").write_bytes(b"{}")
    (directory / "manifest.json").write_bytes(b"the runner's own")
    return directory


def at(world, seconds):
    """A time that many seconds from now, as --expires takes it."""
    return instants.to_text(world.clock.now_ns + seconds * 10**9)


def document_of(world, done):
    (ref,) = (file for file in done.files if file.path == FILE)
    return json.loads(world.store.get_bytes(ref.digest))


class TestPublishing:
    def test_what_is_published(self, world, job):
        expires = at(world, 999)
        done = world.store.publish_attempt(job, "run-7", note="why", by="who", expires_at=expires)
        assert done.sealed == sealed(job)
        assert done.sealed.problems == []
        assert {file.path: (file.digest, file.size) for file in done.files if file.path != FILE} == {
            name: (hashlib.sha256(data).hexdigest(), len(data))
            for name in ("results.jsonl", "eval.jsonl", "warm.json")
            for data in [(job / name).read_bytes()]
        }
        assert sorted(file.path for file in done.files) == ["eval.jsonl", FILE, "results.jsonl", "warm.json"]
        assert world.store.files_of(done.dataset) == done.files
        assert document_of(world, done) == {
            **sealed(job).to_json(),
            "journals": {"results": {"records": 2, "marks": []}, "eval": {"records": 1, "marks": []}},
        }
        assert list(document_of(world, done)["artifacts"]) == ["results", "eval", "warm"]
        pin = world.store.pins.get("run-7")
        assert pin == done.pin
        assert (pin.dataset, pin.note, pin.by, pin.expires_at) == (done.dataset, "why", "who", expires)
        assert (done.published, done.new_files) == (True, 4)
        assert done.new_size == sum(file.size for file in done.files)

    def test_the_hold_began_before_the_first_look(self, world, job):
        before = instants.to_text(world.clock())
        done = world.store.publish_attempt(job)
        assert before <= done.pin.held_since
        first_stat = next(i for i, call in enumerate(world.backend.calls) if call[0] in ("stat", "commit"))
        assert "now" in world.backend.names()[:first_stat]

    def test_the_default_pin_is_named_by_the_content(self, world, job):
        done = world.store.publish_attempt(job)
        assert done.pin.name == "attempt-" + done.dataset.removeprefix("art:")
        assert done.pin.expires_at is None

    def test_the_same_attempt_again_is_a_no_op(self, world, job, tmp_path):
        first = world.store.publish_attempt(job, by="a")
        names = world.names("")
        moved = tmp_path / "elsewhere"
        job.rename(moved)
        world.clock.pass_s(10 * SESSION_S)
        again = world.store.publish_attempt(moved, by="b", note="other")
        assert (again.published, again.new_files, again.new_size) == (False, 0, 0)
        assert (again.dataset, again.pin) == (first.dataset, first.pin)
        assert world.names("") == names

    def test_problems_do_not_say_where_the_attempt_stood(self, world, job, tmp_path, monkeypatch):
        (job / "warm.json").unlink()
        (job / "warm.json").mkdir()
        first = world.store.publish_attempt(job)
        assert first.sealed.problems == ["warm is not listed: warm.json is a directory, not a regular file"]
        monkeypatch.chdir(tmp_path)
        assert world.store.publish_attempt("job").dataset == first.dataset
        monkeypatch.chdir(job)
        assert world.store.publish_attempt(".").dataset == first.dataset

    def test_another_attempt_under_the_same_pin_is_refused(self, world, job):
        first = world.store.publish_attempt(job, "p")
        (job / "warm.json").write_bytes(b"2")
        blobs = world.blobs()
        with pytest.raises(ConflictError, match=r"keeps another attempt.*unpin it first"):
            world.store.publish_attempt(job, "p")
        assert world.blobs() == blobs
        assert world.store.pins.get("p") == first.pin
        second = world.store.publish_attempt(job, "p2")
        assert second.dataset != first.dataset

    def test_a_pin_made_meanwhile_is_not_taken(self, world, job):
        digest = world.store.put_bytes(b"x").digest

        def steal(items):
            if items[0][0] == "pins/p" and "pins/p" not in world.names("pins/"):
                Store(world.memory, world.descriptor).pins.pin("p", f"blob:{digest}")

        world.backend.hooks["commit"] = steal
        with pytest.raises(ConflictError, match="a pin p stands"):
            world.store.publish_attempt(job, "p")
        assert world.store.pins.get("p").digest == digest

    def test_the_same_attempt_published_meanwhile(self, world, job):
        other = []

        def race(items):
            if items[0][0] == "pins/p" and not other:
                other.append(Store(world.memory, world.descriptor).publish_attempt(job, "p"))

        world.backend.hooks["commit"] = race
        done = world.store.publish_attempt(job, "p")
        assert (done.published, other[0].published) == (False, True)
        assert done.pin == other[0].pin

    def test_an_empty_attempt(self, world, tmp_path):
        done = world.store.publish_attempt(tmp_path)
        assert [file.path for file in done.files] == [FILE]
        assert done.sealed == artifacts.Sealed({}, {}, [])

    def test_broken_declarations_publish_the_results_alone(self, world, job):
        (job / "artifacts.jsonl").write_bytes(b"junk\n")
        done = world.store.publish_attempt(job)
        assert [file.path for file in done.files] == [FILE, "results.jsonl"]
        assert len(done.sealed.problems) == 1
        assert "no declaration of artifacts.jsonl is served" in done.sealed.problems[0]
        assert document_of(world, done)["problems"] == done.sealed.problems

    def test_files_are_opened_without_following_links(self, world, job, tmp_path):
        (tmp_path / "secret").write_bytes(b"secret")
        (job / "warm.json").unlink()
        (job / "warm.json").symlink_to(tmp_path / "secret")
        done = world.store.publish_attempt(job)
        assert "warm" not in done.sealed.artifacts
        assert hashlib.sha256(b"secret").hexdigest() not in world.blobs()

    def test_equal_files_are_one_blob(self, world, job):
        (job / "later.json").write_bytes((job / "warm.json").read_bytes())
        done = world.store.publish_attempt(job)
        assert sorted(done.sealed.artifacts) == ["eval", "later", "results", "warm"]
        assert len(world.blobs()) == len(done.files)  # one less, and the manifest

    def test_progress_counts_every_file(self, world, job):
        sizes = []
        world.store.publish_attempt(job, progress=sizes.append)
        assert sorted(sizes) == sorted(
            (job / name).stat().st_size for name in ("results.jsonl", "eval.jsonl", "warm.json")
        )

    def test_names_that_surprise(self, world, tmp_path):
        odd = tmp_path / os.fsdecode(b"\xff \xe2\x80\xa8")
        odd.mkdir()
        (odd / "artifacts.jsonl").symlink_to("nothing")
        done = world.store.publish_attempt(odd)
        assert len(done.sealed.problems) == 1
        assert world.store.attempt(done.dataset).listing()[1] == done.sealed.problems

    def test_problems_that_are_no_unicode(self, world, job, monkeypatch):
        monkeypatch.setattr(publishing, "sealed", lambda path: artifacts.Sealed(problems=["\udcff is odd"]))
        (job / "results.jsonl").unlink()
        done = world.store.publish_attempt(job)
        assert world.store.attempt(done.dataset).listing()[1] == done.sealed.problems == ["\\udcff is odd"]

    @pytest.mark.parametrize(
        ("options", "why"),
        [
            ({"pin": "Run 7"}, "is no name of a pin"),
            ({"pin": ""}, "is no name of a pin"),
            ({"pin": "../x"}, "is no name of a pin"),
            ({"pin": "con"}, "is no name of a pin"),
            ({"note": "x" * 1001}, "more than 1000"),
            ({"by": "x" * 1001}, "more than 1000"),
            ({"expires_at": "soon"}, "is no time"),
            ({"expires_at": "2020-01-01"}, "is past"),
        ],
    )
    def test_what_is_asked_wrongly_is_refused_before_anything_is_stored(self, world, job, options, why):
        with pytest.raises(InvalidInputError, match=why):
            world.store.publish_attempt(job, **options)
        assert world.names("") == [layout.DESCRIPTOR]

    def test_no_directory(self, world, job):
        with pytest.raises(NotFoundError):
            world.store.publish_attempt(job / "none")
        with pytest.raises(InvalidInputError):
            world.store.publish_attempt(job / "warm.json")

    def test_a_pin_that_cannot_be_read(self, world, job):
        put(world.memory, "pins/p", b"junk")
        with pytest.raises(CorruptError, match="unpin it"):
            world.store.publish_attempt(job, "p")
        assert not world.blobs()


class TestExpiry:
    def test_a_later_expiry_makes_the_pin_last_longer(self, world, job):
        first = world.store.publish_attempt(job, "p", expires_at=at(world, 1000), note="1")
        longer = at(world, 2000)
        second = world.store.publish_attempt(job, "p", expires_at=longer, note="2")
        assert (second.published, second.dataset) == (True, first.dataset)
        assert world.store.pins.get("p") == second.pin
        assert (second.pin.expires_at, second.pin.note) == (longer, "2")
        for_ever = world.store.publish_attempt(job, "p")
        assert (for_ever.published, for_ever.pin.expires_at) == (True, None)

    def test_an_earlier_expiry_leaves_it(self, world, job):
        first = world.store.publish_attempt(job, "p", expires_at=at(world, 1000))
        same = world.store.publish_attempt(job, "p", expires_at=first.pin.expires_at)
        assert (same.published, same.pin) == (False, first.pin)
        second = world.store.publish_attempt(job, "p", expires_at=at(world, 500))
        assert (second.published, second.pin) == (False, first.pin)
        world.store.publish_attempt(job, "p")
        third = world.store.publish_attempt(job, "p", expires_at=at(world, 5000))
        assert (third.published, third.pin.expires_at) == (False, None)

    def test_an_expired_pin_is_made_to_last_again(self, world, job):
        world.store.publish_attempt(job, "p", expires_at=at(world, 10))
        world.clock.pass_s(100_000)
        done = world.store.publish_attempt(job, "p", expires_at=at(world, 1000))
        assert done.published
        world.gc_until_settled()
        assert world.store.attempt("p").page("results", 0, 9).payloads == [1, 2]

    def test_an_unpinned_one_in_the_middle_of_lasting_longer(self, world, job):
        world.store.publish_attempt(job, "p", expires_at=at(world, 1000))
        world.backend.hooks["replace"] = lambda name, *_: world.memory.delete(name)
        done = world.store.publish_attempt(job, "p")
        assert done.published
        assert world.store.pins.get("p") == done.pin


class TestGc:
    def test_a_pinned_attempt_stays_until_it_is_unpinned(self, world, job):
        done = world.store.publish_attempt(job, "p")
        stray = world.store.put_bytes(b"stray").digest
        kept = world.blobs() - {stray}
        world.gc_until_settled()
        assert world.blobs() == kept
        assert world.names("fossils/") == []
        view = world.store.attempt("p")
        assert view.content("warm").data == b'{"w": 1.0}'
        assert world.store.pins.unpin("p")
        world.gc_until_settled()
        assert world.blobs() == set()
        with pytest.raises(NotFoundError, match="no attempt is published under the name p"):
            world.store.attempt("p")
        with pytest.raises(NotFoundError, match=f"attempt {done.dataset}"):
            world.store.attempt(done.dataset)
        with pytest.raises(NotFoundError):
            view.content("warm")
        with pytest.raises(NotFoundError):
            view.page("results", 0, 1)

    def test_retention_ends_it(self, world, job):
        world.store.publish_attempt(job, expires_at=at(world, 2000))
        kept = world.blobs()
        world.gc_until_settled()
        assert world.blobs() == kept
        world.clock.pass_s(2000)
        world.gc_until_settled()
        assert world.blobs() == set()

    def test_published_again_after_gc_took_it(self, world, job):
        first = world.store.publish_attempt(job, "p")
        world.store.pins.unpin("p")
        world.gc_until_settled()
        again = world.store.publish_attempt(job, "p")
        assert (again.dataset, again.new_files) == (first.dataset, 4)
        assert world.store.attempt("p").content("warm").data == b'{"w": 1.0}'

    def test_published_while_condemned_it_is_brought_back(self, world, job):
        world.store.publish_attempt(job, "p")
        world.store.pins.unpin("p")
        world.clock.pass_s(200)
        world.gc()
        assert not world.blobs()
        world.store.publish_attempt(job, "q")
        world.gc_until_settled()
        assert world.store.attempt("q").page("results", 0, 9).payloads == [1, 2]

    def test_a_pin_that_comes_late_is_held_anew_or_withdrawn(self, world, job):
        """Rule 3: between the commit of the files and the pin gc takes everything away."""

        def sleep(items):
            if items[0][0] == "pins/p":
                world.gc_until_settled()

        world.backend.hooks["commit"] = sleep
        with pytest.raises(StorageIOError, match="pin again"):
            world.store.publish_attempt(job, "p")
        assert world.names("pins/") == []
        assert not world.blobs()
        world.backend.hooks["commit"] = lambda items: world.clock.pass_s(2 * SESSION_S)
        assert world.store.publish_attempt(job, "p").published


class TestChanges:
    """A file that changes after it was sealed."""

    @pytest.fixture
    def changed(self, monkeypatch):
        """Calls `change` after the files are sealed and before they are put."""

        def install(change):
            real = publishing.sealed
            monkeypatch.setattr(publishing, "sealed", lambda path: (real(path), change())[0])

        return install

    @pytest.mark.parametrize("how", ["edit", "grow", "shrink", "replace", "remove", "link", "directory"])
    def test_between_sealing_and_putting(self, world, job, changed, tmp_path, how):
        path = job / "warm.json"
        (tmp_path / "secret").write_bytes(b"secret")

        def change():
            if how == "edit":
                path.write_bytes(b'{"w": 9.0}')
            elif how == "grow":
                path.write_bytes(b'{"w": 1.0} ')
            elif how == "shrink":
                os.truncate(path, 3)
            else:
                path.unlink()
                if how == "replace":
                    path.write_bytes(b"{}")
                elif how == "link":
                    path.symlink_to(tmp_path / "secret")
                elif how == "directory":
                    path.mkdir()

        changed(change)
        done = world.store.publish_attempt(job)
        assert sorted(done.sealed.artifacts) == sorted(done.sealed.artifact_index) == ["eval", "results"]
        assert [file.path for file in done.files] == ["eval.jsonl", FILE, "results.jsonl"]
        (problem,) = done.sealed.problems
        assert problem.startswith("warm is not listed: ")
        assert os.fspath(job) not in problem
        if how in ("edit", "grow", "shrink", "replace"):
            assert "changed after it was sealed" in problem
        assert world.store.attempt(done.dataset).listing()[1] == [problem]
        assert hashlib.sha256(b"secret").hexdigest() not in world.blobs()

    def test_changed_results_mean_that_the_attempt_goes_on(self, world, job, changed):
        changed(lambda: (job / "results.jsonl").write_bytes(lines_of([1, 2, 3])))
        with pytest.raises(StorageIOError, match=r"so nothing is .*changed after it was sealed"):
            world.store.publish_attempt(job)
        assert world.names("") == [layout.DESCRIPTOR]

    def test_results_that_vanish(self, world, job, changed):
        changed((job / "results.jsonl").unlink)
        done = world.store.publish_attempt(job)
        assert sorted(done.sealed.artifacts) == ["eval", "warm"]
        assert len(done.sealed.problems) == 1

    @pytest.mark.parametrize(("kind", "error"), [("link", InvalidInputError), ("denied", PermissionDeniedError)])
    def test_results_that_cannot_be_had(self, world, job, monkeypatch, kind, error):
        path = job / "results.jsonl"
        if kind == "link":
            path.rename(job / "elsewhere")
            path.symlink_to("elsewhere")
        else:
            real = artifacts.reading

            def refuse(asked):
                if str(asked) == str(path):
                    raise PermissionDeniedError("no")
                return real(asked)

            monkeypatch.setattr(artifacts, "reading", refuse)
        with pytest.raises(error, match="results cannot be published, so nothing is"):
            world.store.publish_attempt(job)
        assert world.names("") == [layout.DESCRIPTOR]

    def test_results_that_never_stand_still(self, world, job, monkeypatch):
        real = artifacts.FileSource.read_at

        def read_at(self, offset, size):
            if self.name.endswith("results.jsonl") and offset == 0:
                with (job / "results.jsonl").open("ab") as file:
                    file.write(line_of("0"))
            return real(self, offset, size)

        monkeypatch.setattr(artifacts.FileSource, "read_at", read_at)
        with pytest.raises(StorageIOError, match="changed while it was read"):
            world.store.publish_attempt(job)

    @pytest.mark.parametrize("moment", ["while it is surveyed", "while it is put"])
    def test_while_it_is_read(self, world, job, monkeypatch, moment):
        """Changed and changed back: what is surveyed must be what is put."""
        path = job / "eval.jsonl"
        data = path.read_bytes()
        done = []

        def there_and_back():
            path.write_bytes(lines_of([1, 2, 3, 4, 5]))
            done.append(True)

        if moment == "while it is surveyed":
            real = publishing.survey_of

            def survey(source):
                if source.name == str(path):
                    there_and_back()
                    try:
                        return real(source)
                    finally:
                        path.write_bytes(data)
                return real(source)

            monkeypatch.setattr(publishing, "survey_of", survey)
            with pytest.raises(StorageIOError, match="changed after it was sealed"):
                world.store.publish_attempt(job)
        else:
            real = Intake.add_file
            monkeypatch.setattr(
                Intake,
                "add_file",
                lambda self, source: (source.label == str(path) and there_and_back(), real(self, source))[1],
            )
            assert "eval" not in world.store.publish_attempt(job).sealed.artifacts
        assert done

    def test_a_store_that_fails_is_no_fault_of_a_file(self, world, job):
        def full(size_hint):
            raise StorageIOError("no space left")

        world.backend.hooks["incoming"] = full
        with pytest.raises(StorageIOError, match="no space left"):
            world.store.publish_attempt(job)

        def away(name):
            raise UnavailableError("out of reach")

        world.backend.hooks = {"stat": away}
        with pytest.raises(UnavailableError):
            world.store.publish_attempt(job)
        assert world.names("") == [layout.DESCRIPTOR]

    def test_each_file_is_put_from_the_very_file_that_was_surveyed(self, world, job, monkeypatch):
        """Another file under the name, after it was opened: the open one was sealed, and is what is put."""
        path = job / "eval.jsonl"
        sealed_bytes = path.read_bytes()
        real = publishing.survey_of

        def survey(source):
            if source.name == str(path):
                (job / "new").write_bytes(lines_of([9, 9, 9]))
                (job / "new").rename(path)
            return real(source)

        monkeypatch.setattr(publishing, "survey_of", survey)
        done = world.store.publish_attempt(job)
        if "eval" in done.sealed.artifacts:
            assert world.store.attempt(done.dataset).page("eval", 0, 9).payloads == [3]
            assert hashlib.sha256(sealed_bytes).hexdigest() in world.blobs()
        else:
            assert "changed" in done.sealed.problems[0]


def test_files_are_put_side_by_side(job, monkeypatch):
    world = World()
    monkeypatch.setattr(publishing.os, "cpu_count", lambda: 3)
    together = threading.Barrier(3, timeout=20)
    real = Intake.add_file
    monkeypatch.setattr(Intake, "add_file", lambda self, source: (together.wait(), real(self, source))[1])
    assert len(world.store.publish_attempt(job).files) == 4


CHILD = """
import sys
from oarbank_cas.store import Store
with Store.open(sys.argv[1]) as store:
    sys.stdout.write("go\\n"); sys.stdout.flush()
    print(store.publish_attempt(sys.argv[2], "p").dataset)
"""


@pytest.mark.long
def test_killed_while_it_publishes_then_again(tmp_path, job, budget):
    """At any moment: either nothing is pinned or everything is there, and again gives what it always gives."""
    for number in range(30):
        (job / f"f{number}.json").write_bytes(os.urandom(50_000))
        declare(job, Declaration.json(f"f{number}", f"f{number}.json"))
    (job / "eval.jsonl").write_bytes(lines_of(range(20_000)))
    wanted = None
    for round_number in range(6 * budget):
        root = tmp_path / f"store-{round_number}"
        Store.init(root)[0].close()
        child = subprocess.Popen(
            [sys.executable, "-c", CHILD, root, job], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        assert child.stdout.readline() == "go\n"
        try:
            child.wait(timeout=0.02 + 0.05 * round_number)
        except subprocess.TimeoutExpired:
            child.kill()
        child.communicate()
        with Store.open(root) as store:
            if [found.name for found in store.pins.listing()]:
                view = store.attempt("p")
                assert len(view.listing()[0]) == 33
                assert view.page("eval", 19_999, 1).payloads == [19_999]
                assert all(view.content(f"f{n}").data == (job / f"f{n}.json").read_bytes() for n in range(30))
            done = store.publish_attempt(job, "p")
            assert wanted in (None, done.dataset)
            wanted = done.dataset
            assert store.attempt("p").content("f0").data == (job / "f0.json").read_bytes()


def test_racing_publishers_agree(tmp_path, job, race):
    Store.init(tmp_path / "store")[0].close()
    program = """
from oarbank_cas.store import Store
with Store.open(arguments[0]) as store:
    ready()
    done = store.publish_attempt(arguments[1], "p")
    answer([done.dataset, done.published, done.pin.attempt])
"""
    told = race(program, *[(tmp_path / "store", job)] * 4)
    assert len({dataset for dataset, _, _ in told}) == 1
    assert sum(published for _, published, _ in told) == 1
    assert len({attempt for _, _, attempt in told}) == 1


def test_importing_attempts_does_not_import_publishing():
    code = "import sys, oarbank_cas.attempt; print('oarbank_cas.attempt.publishing' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
