"""Published attempts as they are read: like their directories, by ranges, checked; and hostile ones."""

import hashlib
import json
import os
import random
from dataclasses import replace

import pytest
from attempt_model import line_of, lines_of, quick
from hypothesis import given
from hypothesis import strategies as st
from publish_kit import World, dataset_of, numbered_lines, put

from oarbank_cas import layout
from oarbank_cas.attempt import INLINE_CAP, Declaration, DirectoryAttempt, declare
from oarbank_cas.attempt.blobsource import BlobSource
from oarbank_cas.attempt.document import FILE, MAX_BYTES, decode
from oarbank_cas.attempt.survey import Mark, Survey, survey_of, surveyed_page
from oarbank_cas.backends.memory import MemoryBackend
from oarbank_cas.contracts.manifest import FileRef
from oarbank_cas.errors import CasError, CorruptError, InvalidInputError, NotFoundError
from oarbank_cas.store import Store

MARKED = 12_000
"""Records of a journal that is long enough for marks."""


class Bytes:
    """A source that counts what is read of it."""

    name = "journal"

    def __init__(self, data):
        self.data = data
        self.read = 0

    def size(self):
        return len(self.data)

    def read_at(self, offset, size):
        found = self.data[offset : offset + size]
        self.read += len(found)
        return found


@pytest.fixture
def world(recorded):
    return World(wrap=recorded)


@pytest.fixture
def job(tmp_path):
    """Every kind of artifact: long, torn, empty, above the cap, not there."""
    directory = tmp_path / "job"
    directory.mkdir()
    for name in ("eval", "none", "torn", "one_long", "damaged"):
        declare(directory, Declaration.records(name, f"{name}.jsonl").task(4).describe("lösses"))
    for name in ("warm", "big", "later", "no_text"):
        declare(directory, Declaration.json(name, f"{name}.json"))
    (directory / "results.jsonl").write_bytes(numbered_lines(MARKED))
    (directory / "eval.jsonl").write_bytes(lines_of([3, 1e3, "\u2028"]) + b" \r\n" + line_of("1.0", 7) + b'{"torn')
    (directory / "none.jsonl").write_bytes(b"")
    (directory / "torn.jsonl").write_bytes(b"torn")
    (directory / "one_long.jsonl").write_bytes(line_of('"' + "x" * (INLINE_CAP + 10) + '"') + lines_of([2]))
    (directory / "damaged.jsonl").write_bytes(lines_of([1]) + b"junk\n" + lines_of([2]))
    (directory / "warm.json").write_bytes(b'{"w": 1.0}')
    (directory / "big.json").write_bytes(b"x" * (INLINE_CAP + 1))
    (directory / "no_text.json").write_bytes(b"\xff\x00")
    return directory


NAMES = ["results", "eval", "none", "torn", "one_long", "damaged", "warm", "big", "later", "no_text", "unheard_of"]


def outcome(call, *args):
    try:
        return call(*args)
    except CasError as error:
        return type(error), error.exit_code


class TestLikeItsDirectory:
    def test_everything_reads_the_same(self, world, job):
        here, there = DirectoryAttempt(job), world.store.attempt(world.store.publish_attempt(job).dataset)
        listed, problems = here.listing()
        assert there.listing() == ([one for one in listed if one.size is not None], problems)
        for name in NAMES:
            assert outcome(there.content, name) == outcome(here.content, name), name
            if name == "later":
                continue  # declared, but without a file: it was not published
            for offset, limit in [
                (0, 1),
                (0, 100),
                (2, 2),
                (7999, 3),
                (0, 20_000),
                (MARKED - 1, 5),
                (MARKED, 1),
                (10**9, 1),
            ]:
                assert outcome(there.page, name, offset, limit) == outcome(here.page, name, offset, limit), (
                    name,
                    offset,
                )
            for offset, limit in [(-1, 1), (0, 0), (0, True)]:
                assert outcome(there.page, name, offset, limit) == outcome(here.page, name, offset, limit)

    def test_an_empty_attempt(self, world, tmp_path):
        dataset = world.store.publish_attempt(tmp_path).dataset
        here, there = DirectoryAttempt(tmp_path), world.store.attempt(dataset)
        assert there.listing() == here.listing()
        assert there.listing()[0][0].size is None
        for call in (lambda view: view.content("results"), lambda view: view.page("results", 0, 1)):
            assert outcome(call, there) == outcome(call, here) == (NotFoundError, 1)

    def test_walking_by_next_offset_gives_every_record(self, world, job):
        view = world.store.attempt(world.store.publish_attempt(job).dataset)
        numbers, offset, available = [], 0, 1
        while offset < available:
            page = view.page("results", offset, 3001)
            numbers += [payload[0] for payload in page.payloads]
            offset, available = page.next_offset, page.available
        assert numbers == list(range(MARKED))

    def test_follow_ends_at_the_end(self, world, job):
        view = world.store.attempt(world.store.publish_attempt(job).dataset)
        assert [one.payload[0] for one in view.follow("results", 0)] == list(range(MARKED))
        assert [one.payload[0] for one in view.follow("results", MARKED - 3)] == list(range(MARKED - 3, MARKED))
        assert list(view.follow("results", MARKED)) == list(view.follow("results", 10**9)) == []
        assert [one.payload_json for one in view.follow("eval", 1)] == ["1000.0", '"\\u2028"', "1.0"]
        assert list(view.follow("torn", 0)) == []
        with pytest.raises(InvalidInputError, match="no pages; read it with cat"):
            view.follow("warm", 0)
        with pytest.raises(NotFoundError):
            view.follow("unheard_of", 0)
        with pytest.raises(CorruptError, match=r"record 1 .*holds the file as it was published"):
            list(view.follow("damaged", 0))

    def test_broken_declarations(self, world, job):
        (job / "artifacts.jsonl").write_bytes(b"junk\n")
        view = world.store.attempt(world.store.publish_attempt(job).dataset)
        listed, problems = view.listing()
        assert [one.artifact.name for one in listed] == ["results"]
        assert len(problems) == 1
        with pytest.raises(NotFoundError, match="no artifact 'warm' is declared; there are: results"):
            view.content("warm")

    def test_by_pin_and_by_dataset(self, world, job):
        done = world.store.publish_attempt(job, "run-7")
        assert world.store.attempt("run-7").listing() == world.store.attempt(done.dataset).listing()
        assert world.store.attempt("run-7").dataset == done.dataset
        digest = world.store.put_bytes(b"x").digest
        world.store.pins.pin("blob", f"blob:{digest}")
        with pytest.raises(InvalidInputError, match=r"pin blob: keeps .*, which is no published attempt"):
            world.store.attempt("blob")
        for wrong in ("art:", "art:" + "0" * 63, "art:" + "A" * 64, "", "../x", "Run"):
            with pytest.raises(InvalidInputError):
                world.store.attempt(wrong)
        with pytest.raises(NotFoundError):
            world.store.attempt("art:" + "0" * 64)

    def test_a_large_document_says_how_to_get_it(self, world, job):
        done = world.store.publish_attempt(job)
        with pytest.raises(InvalidInputError, match=f"oarbank-cas fetch {done.dataset} big.json"):
            world.store.attempt(done.dataset).content("big")


class Counting(MemoryBackend):
    """Counts the bytes that are read of blobs."""

    read_bytes = 0

    def open(self, name, start=0):
        reader = super().open(name, start)
        real = reader.read

        def read(size):
            found = real(size)
            self.read_bytes += len(found)
            return found

        reader.read = read
        return reader


class TestRanges:
    def test_a_page_reads_a_part(self, tmp_path):
        (tmp_path / "results.jsonl").write_bytes(numbered_lines(100_000))
        size = (tmp_path / "results.jsonl").stat().st_size
        assert size > 15 * 2**20
        world = World()
        world.store.publish_attempt(tmp_path, "p")
        backend = Counting(clock=world.clock)
        backend._objects = world.memory._objects
        view = Store(backend, world.descriptor).attempt("p")
        for offset in (0, 1, 50_000, 77_777, 99_999):
            backend.read_bytes = 0
            page = view.page("results", offset, 10)
            assert [payload[0] for payload in page.payloads] == list(range(offset, min(offset + 10, 100_000)))
            assert page.available == 100_000
            assert backend.read_bytes < 3 * 2**20
        backend.read_bytes = 0
        assert view.page("results", 10**6, 10) == ((), 10**6, 100_000)
        assert backend.read_bytes == 0
        content = view.content("results")
        assert content.size == size
        assert content.data == (tmp_path / "results.jsonl").read_bytes()[: len(content.data)]
        assert INLINE_CAP - 200 < len(content.data) <= INLINE_CAP
        assert content.data.endswith(b"\n")
        assert backend.read_bytes < 2 * 2**20

    def test_without_a_survey_a_journal_is_streamed(self, world):
        """As another language may publish it."""
        data = numbered_lines(MARKED)
        view = world.store.attempt(hand_made(world, data, journals=None))
        assert view.page("results", 11_000, 2).payloads == [[11_000, "x" * 80], [11_001, "x" * 80]]
        assert [one.payload[0] for one in view.follow("results", 11_998)] == [11_998, 11_999]

    @pytest.mark.parametrize("size", [0, 1, 10, 1000, 10_000])
    def test_a_source_gives_any_range(self, world, size):
        data = random.Random(size).randbytes(size)
        digest = world.store.put_bytes(data).digest
        dice = random.Random(1)
        with BlobSource(world.store.blobs, digest, size, "it") as source:
            assert source.size() == size
            for _ in range(200):
                offset, length = dice.randint(0, size + 3), dice.randint(0, size + 3)
                assert source.read_at(offset, length) == data[offset : offset + length]

    def test_reading_on_takes_no_new_request(self, world):
        data = numbered_lines(MARKED)
        digest = world.store.put_bytes(data).digest
        with BlobSource(world.store.blobs, digest, len(data), "it") as source:
            at = 0
            while at < len(data):
                at += len(source.read_at(at, 4096)) - 100 if len(data) - at > 4096 else 4096
        assert world.backend.names().count("open") == 1


class TestSurvey:
    @quick(30)
    @given(
        st.lists(st.integers(0, 400_000), min_size=0, max_size=12),
        st.booleans(),
        st.lists(st.tuples(st.integers(0, 13), st.integers(1, 13)), min_size=1, max_size=6),
    )
    def test_pages_by_survey_are_pages_by_reading(self, sizes, blanks, asked):
        from oarbank_cas.attempt.scan import page_of

        lines = [line_of(f'"{"x" * size}"') + (b" \n" if blanks else b"") for size in sizes]
        data = b"".join(lines) + b"torn"
        found = survey_of(Bytes(data))
        assert found.records == len(sizes)
        assert all(data[byte - 1 : byte] == b"\n" for byte, _ in found.marks)
        for offset, limit in asked:
            assert surveyed_page(Bytes(data), found, offset, limit) == page_of(Bytes(data), offset, limit)

    def test_marks_are_few(self):
        found = survey_of(Bytes(lines_of(["x" * 1000]) * 250_000))
        assert 100 < len(found.marks) <= 260
        assert found.records == 250_000

    @pytest.mark.parametrize("change", range(6))
    def test_a_wrong_survey_is_noticed_where_it_is_used(self, change):
        data = numbered_lines(20_000)
        right = survey_of(Bytes(data))
        assert len(right.marks) >= 3
        first, second, *rest = right.marks
        wrong = [
            Survey(right.records, (Mark(first.byte, first.before + 1), second, *rest)),
            Survey(right.records, (Mark(first.byte, first.before - 1), second, *rest)),
            Survey(right.records, (Mark(first.byte + 1, first.before), second, *rest)),
            Survey(right.records, (first, Mark(second.byte - 1, second.before), *rest)),
            Survey(right.records, (second._replace(before=first.before), *rest)),
            Survey(right.records, (first._replace(byte=first.byte - 40), second, *rest)),
        ][change]
        for offset in (0, first.before - 1, first.before, first.before + 1):
            try:
                page = surveyed_page(Bytes(data), wrong, offset, 5)
            except CorruptError:
                continue
            assert [payload[0] for payload in page.payloads] == list(range(offset, offset + 5))
        with pytest.raises(CorruptError, match="what was published about this journal is wrong"):
            surveyed_page(Bytes(data), wrong, first.before, 5)

    @pytest.mark.parametrize("records", [19_999, 20_001, 0])
    def test_a_wrong_count_is_noticed_at_the_end(self, records):
        data = numbered_lines(20_000)
        wrong = survey_of(Bytes(data))._replace(records=records)
        if records:
            with pytest.raises(CorruptError, match="not record"):
                surveyed_page(Bytes(data), wrong, 19_990, 5)


def hand_made(world, results, journals=None, **changes):
    """A published attempt made by hand; `changes` replace members of its manifest.json."""
    digest = hashlib.sha256(results).hexdigest()
    entry = {"format": "records", "size": len(results), "sha256": digest, "task": None, "description": ""}
    said = {
        "artifacts": {"results": "results.jsonl"},
        "runner": {"artifact_index": {"results": entry}},
        "problems": [],
        **({"journals": journals} if journals is not None else {}),
        **changes,
    }
    return dataset_of(world.store, {"results.jsonl": results, FILE: json.dumps(said).encode()})


def entry_of(data, **changes):
    digest = hashlib.sha256(data).hexdigest()
    return {"format": "records", "size": len(data), "sha256": digest, "task": None, "description": "", **changes}


RESULTS = lines_of([1, 2])


class TestHostile:
    @pytest.mark.parametrize(
        "data",
        [
            b"",
            b"{",
            b"null",
            b"[]",
            b"{}",
            b"\xff",
            b"\xef\xbb\xbf{}",
            b'{"artifacts": {}, "artifacts": {}}',
            b'{"artifacts": [], "runner": {}, "problems": []}',
            b'{"artifacts": {}, "runner": [], "problems": []}',
            b'{"artifacts": {}, "runner": {}, "problems": []}',
            b'{"artifacts": {}, "runner": {"artifact_index": {}}}',
            b'{"artifacts": {}, "runner": {"artifact_index": {}}, "problems": [1]}',
            b'{"artifacts": {}, "runner": {"artifact_index": {}}, "problems": "x"}',
            b'{"artifacts": {}, "runner": {"artifact_index": {}}, "problems": [], "journals": []}',
            b'{"artifacts": {}, "runner": {"artifact_index": {}}, "problems": ["\\ud800"]}',
            b'{"artifacts": {"a": "a"}, "runner": {"artifact_index": {}}, "problems": []}',
            b'{"artifacts": {}, "runner": {"artifact_index": {"a": {}}}, "problems": []}',
            b'{"artifacts": {"a": 1}, "runner": {"artifact_index": {"a": {}}}, "problems": []}',
            b'{"artifacts": {"a": "a"}, "runner": {"artifact_index": {"a": 1}}, "problems": []}',
            b"[" * 100_000,
            b'{"a":' * 100_000,
        ],
        ids=repr,
    )
    def test_arbitrary_bytes(self, world, data):
        dataset = dataset_of(world.store, {FILE: data})
        with pytest.raises(InvalidInputError, match=f"{FILE} of attempt {dataset}"):
            world.store.attempt(dataset)

    @pytest.mark.parametrize(
        ("name", "changes", "why"),
        [
            ("results", {"size": len(RESULTS) + 1}, "the dataset says"),
            ("results", {"sha256": "0" * 64}, "the dataset says"),
            ("results", {"size": -1}, "is no size"),
            ("results", {"size": True}, "is no size"),
            ("results", {"size": "1"}, "is no size"),
            ("results", {"sha256": "x"}, "is no digest"),
            ("results", {"sha256": None}, "is no digest"),
            ("results", {"format": "json"}, "built-in"),
            ("results", {"task": 1}, "built-in"),
            ("other", {}, "other.jsonl, which the dataset does not have"),
            ("other", {"file": "../results.jsonl"}, "portable"),
            ("other", {"file": "/etc/passwd"}, "portable"),
            ("other", {"file": "results.jsonl"}, "belongs to the runner"),
            ("other", {"file": FILE}, "belongs to the runner"),
            ("Other", {}, "is no artifact name"),
            ("../x", {}, "is no artifact name"),
            ("x" * 65, {}, "is no artifact name"),
            ("other", {"format": "binary"}, "is no artifact format"),
            ("other", {"format": None}, "is no artifact format"),
            ("other", {"task": -1}, "is no task"),
            ("other", {"description": "\x1b[31m"}, "control characters"),
            ("other", {"description": "x" * 201}, "shorten it"),
            ("other", {"description": None}, "is text"),
        ],
    )
    def test_lies_about_an_artifact(self, world, name, changes, why):
        entry = {**entry_of(RESULTS), **changes}
        file = entry.pop("file", f"{name}.jsonl")
        dataset = hand_made(world, RESULTS, artifacts={name: file}, runner={"artifact_index": {name: entry}})
        with pytest.raises(InvalidInputError, match=why) as caught:
            world.store.attempt(dataset)
        assert FILE in str(caught.value)

    def test_two_artifacts_with_one_file(self, world):
        files = {"a": "a.json", "b": "A.json"}
        index = {name: entry_of(b"{}", format="json") for name in files}
        said = {"artifacts": files, "runner": {"artifact_index": index}, "problems": []}
        with pytest.raises(InvalidInputError, match='has the same file as "a"'):
            decode(json.dumps(said).encode(), "it")

    def test_more_artifacts_than_an_attempt_has(self):
        files = {f"a{n}": f"a{n}" for n in range(4098)}
        index = {name: entry_of(b"{}", format="json") for name in files}
        said = {"artifacts": files, "runner": {"artifact_index": index}, "problems": []}
        with pytest.raises(InvalidInputError, match="more than 4097"):
            decode(json.dumps(said).encode(), "it")

    @pytest.mark.parametrize(
        "journal",
        [
            1,
            {},
            {"records": 2},
            {"records": "2", "marks": []},
            {"records": -1, "marks": []},
            {"records": True, "marks": []},
            {"records": 2, "marks": {}},
            {"records": 2, "marks": [1]},
            {"records": 2, "marks": [[1]]},
            {"records": 2, "marks": [["1", 1]]},
            {"records": 2, "marks": [[0, 0]]},
            {"records": 2, "marks": [[len(RESULTS), 2]]},
            {"records": 2, "marks": [[5, 3]]},
            {"records": 2, "marks": [[5, 1], [5, 1]]},
            {"records": 2, "marks": [[5, 1], [6, 0]]},
            {"records": 2, "marks": [[n, 0] for n in range(1, 5000)]},
        ],
        ids=lambda journal: repr(journal)[:60],
    )
    def test_malformed_surveys(self, world, journal):
        with pytest.raises(InvalidInputError, match="journal"):
            world.store.attempt(hand_made(world, RESULTS, journals={"results": journal}))

    @pytest.mark.parametrize("marks", [[[5, 1]], [[len(RESULTS) // 2, 0]], [[len(RESULTS) // 2, 2]]])
    def test_false_surveys(self, world, marks):
        view = world.store.attempt(hand_made(world, RESULTS, journals={"results": {"records": 2, "marks": marks}}))
        for offset in (0, 1):
            with pytest.raises(CorruptError, match="is wrong"):
                view.page("results", offset, 5)
        with pytest.raises(CorruptError, match="is wrong"):
            list(view.follow("results", 0 if marks[0][1] == 0 else 2))

    def test_what_a_newer_version_adds_is_left_alone(self, world):
        dataset = hand_made(
            world,
            RESULTS,
            runner={"artifact_index": {"results": entry_of(RESULTS, more=1)}, "more": 1},
            more={},
            journals={"results": {"records": 2, "marks": [], "more": 1}, "unheard_of": 7},
        )
        assert world.store.attempt(dataset).page("results", 0, 5).payloads == [1, 2]

    def test_a_dataset_that_is_no_attempt(self, world):
        dataset = dataset_of(world.store, {"a.txt": b"a"})
        with pytest.raises(InvalidInputError, match=f"it is no published attempt: it has no {FILE}"):
            world.store.attempt(dataset)

    def test_a_manifest_that_lies_about_the_size_of_the_document(self, world):
        digest = world.store.put_bytes(b"{}").digest
        for size in (1, 3, 0):
            with pytest.raises(CorruptError):
                world.store.attempt(dataset_of(world.store, {FILE: FileRef(FILE, digest, size)}))
        with pytest.raises(InvalidInputError, match="at most"):
            world.store.attempt(dataset_of(world.store, {FILE: FileRef(FILE, digest, MAX_BYTES + 1)}))
        absent = "0" * 64
        with pytest.raises(NotFoundError, match=absent):
            world.store.attempt(dataset_of(world.store, {FILE: FileRef(FILE, absent, 2)}))

    @pytest.mark.parametrize("size", [1, 300, 10**7])
    def test_both_manifests_lie_about_the_size_of_a_file(self, world, size):
        digest = world.store.put_bytes(RESULTS).digest
        said = {
            "artifacts": {"results": "results.jsonl"},
            "runner": {"artifact_index": {"results": entry_of(RESULTS, size=size)}},
            "problems": [],
        }
        files = {"results.jsonl": FileRef("results.jsonl", digest, size), FILE: json.dumps(said).encode()}
        view = world.store.attempt(dataset_of(world.store, files))
        for call in (
            lambda: view.content("results"),
            lambda: view.page("results", 0, 1),
            lambda: list(view.follow("results", 0)),
        ):
            with pytest.raises(CorruptError, match=r"bytes"):
                call()

    def test_a_manifest_of_the_dataset_that_is_none(self, world):
        digest = world.store.put_bytes(b"{}").digest
        with pytest.raises(CasError) as caught:
            world.store.attempt(f"art:{digest}")
        assert caught.value.exit_code == 65

    @quick(80)
    @given(st.data())
    def test_mutated_documents_never_surprise(self, data):
        world = World()
        text = bytearray(
            json.dumps(
                {
                    "artifacts": {"results": "results.jsonl"},
                    "runner": {"artifact_index": {"results": entry_of(RESULTS)}},
                    "problems": [],
                    "journals": {"results": {"records": 2, "marks": [[len(RESULTS) // 2, 1]]}},
                }
            ).encode()
        )
        for _ in range(data.draw(st.integers(1, 4))):
            at = data.draw(st.integers(0, len(text) - 1))
            text[at : at + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=3))
        dataset = dataset_of(world.store, {"results.jsonl": RESULTS, FILE: bytes(text)})
        try:
            view = world.store.attempt(dataset)
            view.listing()
            view.content("results")
            assert view.page("results", 0, 5).payloads in ([1, 2], [])
            list(view.follow("results", 0))
        except CasError:
            pass


def rot(world, digest, change):
    """Other bytes in a blob, behind the store's back."""
    name = layout.blob(digest)
    stat, data = world.memory._objects[name]
    data = change(data)
    world.memory._objects[name] = (replace(stat, size=len(data), validator=stat.validator + "r"), data)


class TestDamage:
    def flip(self, at):
        return lambda data: data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]

    def digest(self, world, done, path):
        return next(file.digest for file in done.files if file.path == path)

    @pytest.mark.parametrize("path", ["eval.jsonl", "warm.json", "results.jsonl"])
    def test_a_damaged_file(self, world, job, path):
        done = world.store.publish_attempt(job)
        digest = self.digest(world, done, path)
        at = 100 if path == "results.jsonl" else 5
        rot(world, digest, self.flip(at))
        view = world.store.attempt(done.dataset)
        name = path.partition(".")[0]
        with pytest.raises(CorruptError, match="set aside"):
            view.content(name)
        assert digest not in world.blobs()
        assert world.names("damaged/")
        with pytest.raises(NotFoundError, match=digest):
            view.content(name)
        assert view.content("no_text").data == b"\xff\x00"

    def test_a_damaged_journal_where_a_page_reads_it(self, world, job):
        done = world.store.publish_attempt(job)
        digest = self.digest(world, done, "results.jsonl")
        data = (job / "results.jsonl").read_bytes()
        at = data.index(b"[7000, ") if b"[7000, " in data else len(data) // 2
        rot(world, digest, self.flip(at + 1))
        view = world.store.attempt(done.dataset)
        assert view.page("results", 100, 2).payloads[0][0] == 100  # not read where it is damaged
        with pytest.raises(CorruptError, match="set aside"):
            view.page("results", 7000, 1)
        with pytest.raises(NotFoundError):
            view.page("results", 100, 2)

    @pytest.mark.parametrize("cut", [0, 1, 100])
    def test_a_cut_journal(self, world, job, cut):
        done = world.store.publish_attempt(job)
        digest = self.digest(world, done, "results.jsonl")
        rot(world, digest, lambda data: data[: len(data) - 100 + cut] if cut < 100 else b"")
        view = world.store.attempt(done.dataset)
        for call in (lambda: view.page("results", 0, 1), lambda: list(view.follow("results", 0))):
            with pytest.raises((CorruptError, NotFoundError)):
                call()

    def test_a_damaged_manifest(self, world, job):
        done = world.store.publish_attempt(job)
        rot(world, self.digest(world, done, FILE), self.flip(3))
        with pytest.raises(CorruptError, match="set aside"):
            world.store.attempt(done.dataset)
        done = world.store.publish_attempt(job)  # it is put again from its source
        assert world.store.attempt(done.dataset).content("warm").data == b'{"w": 1.0}'
        rot(world, done.dataset.removeprefix("art:"), self.flip(3))
        with pytest.raises(CorruptError):
            world.store.attempt(done.dataset)

    def test_records_that_were_damaged_before(self, world, job):
        done = world.store.publish_attempt(job)
        view = world.store.attempt(done.dataset)
        with pytest.raises(CorruptError, match=r"record 1 .*the store holds the file as it was published"):
            view.page("damaged", 0, 5)
        assert view.page("damaged", 2, 5).payloads == [2]
        assert view.content("damaged").data == (job / "damaged.jsonl").read_bytes()
        assert world.names("damaged/") == []

    def test_a_long_journal_with_damage_is_shown_as_it_was_published(self, world, tmp_path):
        data = b"junk\n" + numbered_lines(MARKED)
        (tmp_path / "results.jsonl").write_bytes(data)
        view = world.store.attempt(world.store.publish_attempt(tmp_path).dataset)
        content = view.content("results")
        assert content.data == data[: len(content.data)]
        assert len(content.data) > INLINE_CAP - 200

    def test_read_from_a_fossil(self, world, job):
        """gc moves a file aside between the publishing of a pin and its reading: readers find it."""
        done = world.store.publish_attempt(job)
        for digest in world.blobs():
            data = world.memory.read(layout.blob(digest), 2**30)[0]
            put(world.memory, layout.fossil(digest, "0" * 16), data)
            world.memory.delete(layout.blob(digest))
        view = world.store.attempt(done.dataset)
        assert view.page("results", 11_000, 1).payloads[0][0] == 11_000
        assert view.content("warm").data == b'{"w": 1.0}'


def test_on_disk_too(tmp_path, job):
    with Store.init(tmp_path / "store")[0] as store:
        store.publish_attempt(job, "p")
    with Store.open(tmp_path / "store", read_only=True) as store:
        view, here = store.attempt("p"), DirectoryAttempt(job)
        for name in NAMES:
            assert outcome(view.content, name) == outcome(here.content, name)
            if name != "later":
                assert outcome(view.page, name, 9_000, 10) == outcome(here.page, name, 9_000, 10)
        files = store.files_of(view.dataset)
        store.fetch([(file.path, file) for file in files], tmp_path / "out")
    for file in files:
        if file.path != FILE:
            assert (tmp_path / "out" / file.path).read_bytes() == (job / file.path).read_bytes()
    assert sorted(os.listdir(tmp_path / "out")) == sorted(file.path for file in files)
