"""Results: the first writer wins, endings are tombstones, and a hit is what can really be used."""

from __future__ import annotations

import hashlib
import json
import os
import threading

import pytest

from oarbank_cas import entry as codec
from oarbank_cas import layout
from oarbank_cas.errors import (
    CorruptError,
    InvalidInputError,
    NotFoundError,
    PermissionDeniedError,
    StorageIOError,
    UnavailableError,
)
from oarbank_cas.presence import MAX_SPAN_S, Presence
from oarbank_cas.results import Origin

OTHER_KEY = "1e" * 32


def digest_of(data):
    return hashlib.sha256(data).hexdigest()


def name_of(key, result_class="any"):
    hexed, _, stage = key.partition(":")
    return layout.entry(hexed, stage or None, result_class)


def manifest_of(store):
    """The digest of the manifest of the filled store's envelope."""
    (files,) = [artifact["files"] for artifact in json.loads(store.envelope)["artifacts"]]
    listed = [{"digest": f["digest"], "path": f["path"], "size": f["size"]} for f in files]
    return digest_of(json.dumps({"files": listed}, separators=(",", ":")).encode())


class TestRecordAndLookup:
    @pytest.mark.parametrize("key", ["0f" * 32, "0f" * 32 + ":map_reads"])
    @pytest.mark.parametrize("result_class", ["any", "linux", "amd64", "linux-amd64"])
    def test_what_was_recorded_is_found_byte_for_byte(self, filled, origin, key, result_class):
        recorded = filled.results.record(key, filled.envelope, origin, result_class)
        assert recorded.recorded
        assert recorded.envelope == filled.envelope
        assert recorded.datasets == {"out": f"art:{manifest_of(filled)}"}
        for rooms in (filled, filled.again()):
            found = rooms.lookups.lookup(key, result_class)
            assert found.hit
            assert (found.job_key, found.result_class, found.status) == (key, result_class, "hit")
            assert found.envelope == filled.envelope
            assert found.datasets == recorded.datasets
            assert found.header == recorded.header

    def test_the_header_says_where_it_came_from(self, filled, key, origin):
        before = filled.backend.now()
        filled.results.record(key, filled.envelope, origin)
        header = filled.lookups.lookup(key).header
        assert header["recorded_by"] == "tests"
        assert header["attempt"] == "attempt-1"
        assert header["platform"] == "linux-amd64"
        assert header["host"] == "here"
        assert header["module_id"] == "org.example.module"
        assert header["schema"] == "org.example.module/result@1"
        assert before <= header["held_since_ns"] <= filled.backend.stat(name_of(key)).time_ns

    def test_the_host_is_the_envelopes_unless_said(self, store, key, envelope):
        made_on = envelope(provenance={"host": "node-7"})
        assert store.results.record(key, made_on, Origin(by="t")).header["host"] == "node-7"
        assert store.results.record(OTHER_KEY, made_on, Origin(by="t", host="n")).header["host"] == "n"

    def test_an_attempt_id_is_made_where_none_is_given(self, store, key, envelope):
        assert store.results.record(key, envelope(), Origin(by="t")).header["attempt"]

    def test_nothing_recorded_is_a_miss(self, store, key):
        found = store.lookups.lookup(key)
        assert (found.status, found.reason, found.envelope) == ("miss", "absent", None)
        assert not found.hit
        assert found.datasets == {}

    def test_key_stage_and_class_are_apart(self, filled, key, origin):
        filled.results.record(key, filled.envelope, origin, "linux")
        for other, result_class in ((key, "any"), (key, "amd64"), (key + ":s", "linux"), (OTHER_KEY, "linux")):
            assert filled.lookups.lookup(other, result_class).reason == "absent"
        assert filled.lookups.lookup(key, "linux").hit

    def test_the_manifests_are_stored(self, filled, key, origin):
        assert not filled.blobs.has(manifest_of(filled))
        filled.results.record(key, filled.envelope, origin)
        listed = json.loads(filled.blobs.get_bytes(manifest_of(filled)))
        assert [file["path"] for file in listed["files"]] == ["a.txt", "deep/b.bin"]

    @pytest.mark.parametrize("key", ["", "0F" * 32, "0f" * 31, "0f" * 32 + ":", "0f" * 32 + ":S", "0f" * 32 + "\n", 7])
    def test_a_malformed_key_is_refused(self, store, key, envelope, origin):
        for call in (
            lambda: store.lookups.lookup(key),
            lambda: list(store.lookups.lookup_many([key])),
            lambda: store.results.record(key, envelope(), origin),
            lambda: store.results.invalidate(key, by="t", reason="r"),
            lambda: store.results.undo(key, by="t"),
        ):
            with pytest.raises(InvalidInputError):
                call()

    @pytest.mark.parametrize("result_class", ["", "Linux", "a/b", "../x", "a@b", "x" * 65, None])
    def test_a_malformed_class_is_refused(self, store, key, envelope, result_class):
        for call in (
            lambda: store.lookups.lookup(key, result_class),
            lambda: store.results.record(key, envelope(), Origin(by="t"), result_class),
            lambda: store.results.invalidate(key, result_class, by="t", reason="r"),
            lambda: store.results.undo(key, result_class, by="t"),
        ):
            with pytest.raises(InvalidInputError):
                call()

    @pytest.mark.parametrize(
        ("platform", "result_class"),
        [
            ("linux-amd64", "darwin"),
            ("linux-amd64", "arm64"),
            ("linux-amd64", "linux-arm64"),
            ("darwin-arm64", "linux"),
        ],
    )
    def test_a_class_takes_no_results_of_other_platforms(self, filled, key, platform, result_class):
        with pytest.raises(InvalidInputError, match=result_class):
            filled.results.record(key, filled.envelope, Origin(by="t", platform=platform), result_class)
        assert filled.names(layout.RESULTS) == []

    @pytest.mark.parametrize(
        "origin",
        [
            Origin(by="x" * 1001),
            Origin(by="t", attempt="x" * 1001),
            Origin(by="t", host="x" * 1001),
            Origin(by="t", platform="Linux"),
            Origin(by="t", module_id="module"),
        ],
    )
    def test_a_malformed_origin_is_refused(self, filled, key, origin):
        with pytest.raises(InvalidInputError):
            filled.results.record(key, filled.envelope, origin)
        assert filled.names(layout.RESULTS) == []


class TestWhatMayBeRecorded:
    def test_blobs_must_be_there(self, filled, key, origin):
        filled.remove(layout.blob(filled.digests[1]))
        with pytest.raises(NotFoundError, match=filled.digests[1]):
            filled.results.record(key, filled.envelope, origin)
        assert filled.names(layout.RESULTS) == []

    def test_a_memory_of_them_is_not_enough(self, filled, key, origin):
        filled.results.record(key, filled.envelope, origin)
        assert filled.lookups.lookup(key).hit
        filled.remove(layout.blob(filled.digests[1]))
        with pytest.raises(NotFoundError):
            filled.results.record(OTHER_KEY, filled.envelope, origin)
        with pytest.raises(NotFoundError):
            filled.results.record(key, filled.envelope, origin)

    def test_condemned_ones_are_brought_back(self, filled, key, origin):
        filled.fossilise(filled.digests[1])
        assert filled.results.record(key, filled.envelope, origin).recorded
        assert filled.blobs.has(filled.digests[1])

    def test_sizes_must_be_right(self, store, key, origin, envelope):
        digest = store.put(b"12345")
        with pytest.raises(InvalidInputError, match=digest):
            store.results.record(key, envelope({"a": (digest, 6)}), origin)
        assert store.names(layout.RESULTS) == []

    def test_what_is_still_local_is_uploaded_first(self, store, key, origin):
        document = {
            "schema": "org.example.module/result@1",
            "module_version": "1.0.0",
            "artifacts": [{"name": "out", "files": [{"path": "a", "local": "a"}]}],
            "payload": {},
        }
        with pytest.raises(InvalidInputError, match="upload"):
            store.results.record(key, json.dumps(document).encode(), origin)

    @pytest.mark.parametrize("data", [b"", b"{}", b"[]", b"\xff", b'{"schema": 1}'])
    def test_an_envelope_keeps_the_contract(self, store, key, origin, data):
        with pytest.raises(InvalidInputError):
            store.results.record(key, data, origin)
        assert store.names("results/") == []

    def test_a_large_payload_is_refused_and_the_limit_named(self, store, key, origin, envelope):
        large = envelope(payload={"text": "x" * 2048})
        with pytest.raises(InvalidInputError, match="max_inline_kb"):
            store.results.record(key, large, origin, max_inline_kb=2)
        assert store.results.record(key, large, origin, max_inline_kb=3).recorded
        with pytest.raises(InvalidInputError, match="256 KiB"):
            store.results.record(OTHER_KEY, envelope(payload={"text": "x" * (256 * 1024)}), origin)

    def test_what_could_not_be_read_again_is_refused(self, store, key, envelope, monkeypatch):
        monkeypatch.setattr(codec, "MAX_HEADER", 2**16 + 2000)
        with pytest.raises(InvalidInputError, match="header"):
            store.results.record(key, envelope(provenance={"host": "h" * 2000}), Origin(by="t"))
        assert store.lookups.lookup(key).reason == "absent"

    def test_what_is_recorded_can_be_ended_whatever_is_said_of_it(self, store, key, envelope):
        largest = envelope(provenance={"host": "h" * (codec.MAX_HEADER - 2**16 - 1000)})
        assert store.results.record(key, largest, Origin(by="t")).recorded
        assert store.results.invalidate(key, by="\U0001f600" * 1000, reason="\0" * 1000) is True
        assert store.lookups.lookup(key).reason == "invalidated"


class TestTheFirstWriterWins:
    def test_the_second_gets_what_stands(self, filled, key, origin, envelope):
        first = filled.results.record(key, filled.envelope, origin)
        before = filled.backend.stat(name_of(key))
        second = filled.again().results.record(key, envelope(), Origin(by="second"))
        assert not second.recorded
        assert second.envelope == filled.envelope
        assert second.datasets == first.datasets
        assert second.header == first.header
        assert filled.backend.stat(name_of(key)) == before

    def test_it_is_made_durable_for_the_second_too(self, filled, key, origin):
        filled.results.record(key, filled.envelope, origin)
        filled.backend.calls.clear()
        filled.results.record(key, filled.envelope, origin)
        assert ("flush", [name_of(key)]) in filled.backend.calls
        assert not {"commit", "replace"} & set(filled.backend.names())

    def test_one_of_many_threads(self, filled, origin, envelope):
        for turn in range(5):
            key = f"{turn:064x}"
            barrier = threading.Barrier(6)
            answers = []

            def work(number, key=key, barrier=barrier, answers=answers):
                barrier.wait()
                answers.append(filled.results.record(key, envelope(payload={"n": number}), origin))

            threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            (winner,) = [answer for answer in answers if answer.recorded]
            assert {answer.envelope for answer in answers} == {winner.envelope}
            assert filled.lookups.lookup(key).envelope == winner.envelope

    @pytest.mark.parametrize("standing", ["nothing", "tombstone", "damage"])
    def test_one_of_many_processes(self, tmp_path, race, standing, envelope):
        root = tmp_path / "store"
        root.mkdir()
        (root / layout.DESCRIPTOR).write_text("{}")
        program = (
            "import json\n"
            "from oarbank_cas.backends.local import LocalBackend\n"
            "from oarbank_cas.blobs import Blobs\nfrom oarbank_cas.lookups import Lookups\n"
            "from oarbank_cas.results import Origin, Results\n"
            "import oarbank_cas.contracts.envelopes\n"
            "backend = LocalBackend(arguments[0], 'oarbank-cas.json')\nblobs = Blobs(backend, 3600)\n"
            "results = Results(backend, blobs, Lookups(backend, blobs, 3600), 3600)\n"
            "envelope = json.loads(arguments[1])\nmine = envelope.replace('NUMBER', arguments[2]).encode()\n"
            "ready()\n"
            "answers = [results.record(f'{turn:064x}', mine, Origin(by=arguments[2])) for turn in range(8)]\n"
            "backend.close()\n"
            "answer([[a.recorded, a.envelope.decode(), a.header['recorded_by']] for a in answers])\n"
        )
        for turn in range(8):
            path = root / layout.entry(f"{turn:064x}", None, "any")
            path.parent.mkdir(parents=True)
            if standing == "damage":
                path.write_bytes(b"damaged")
            elif standing == "tombstone":
                path.write_bytes(
                    codec.encode({"kind": "tombstone", "job_key": f"{turn:064x}", "stage": None, "class": "any"}, b"")
                )
        text = json.dumps(envelope(payload={"n": "NUMBER"}).decode())
        answers = race(program, *[(root, text, number) for number in range(8)])
        for turn in range(8):
            told = [answer[turn] for answer in answers]
            (winner,) = [number for number, (recorded, _, _) in enumerate(told) if recorded]
            assert {(body, by) for _, body, by in told} == {
                (envelope(payload={"n": str(winner)}).decode(), str(winner))
            }
            stands = (root / layout.entry(f"{turn:064x}", None, "any")).read_bytes()
            assert codec.decode(stands).envelope.decode() == told[0][1]
        assert set(os.listdir(root / "tmp")) <= {"locks"}


class TestEndings:
    def test_an_ended_entry_is_a_miss_that_says_why(self, filled, key, origin):
        filled.results.record(key, filled.envelope, origin)
        entry = filled.object(name_of(key))
        assert filled.results.invalidate(key, by="ann", reason="wrong reference genome") is True
        for rooms in (filled, filled.again()):
            found = rooms.lookups.lookup(key)
            assert (found.status, found.reason, found.envelope) == ("miss", "invalidated", None)
            assert "ann" in found.detail
            assert "wrong reference genome" in found.detail
        tombstone = codec.decode(filled.object(name_of(key)))
        assert tombstone.ended == entry

    def test_only_the_named_class_ends(self, filled, key, origin):
        for result_class in ("any", "linux"):
            filled.results.record(key, filled.envelope, origin, result_class)
        filled.results.invalidate(key, "linux", by="t", reason="r")
        assert filled.lookups.lookup(key).hit
        assert filled.lookups.lookup(key, "linux").reason == "invalidated"

    def test_nothing_to_end(self, filled, key, origin):
        assert filled.results.invalidate(key, by="t", reason="r") is False
        filled.results.record(key, filled.envelope, origin)
        assert filled.results.invalidate(key, by="t", reason="r") is True
        before = filled.backend.stat(name_of(key))
        assert filled.results.invalidate(key, by="t", reason="r") is False
        assert filled.backend.stat(name_of(key)) == before

    def test_a_record_takes_the_place_of_a_tombstone(self, filled, key, origin, envelope):
        filled.results.record(key, filled.envelope, origin)
        for turn in range(3):
            filled.results.invalidate(key, by="t", reason="r")
            other = envelope(payload={"turn": turn})
            assert filled.results.record(key, other, origin).recorded
            assert filled.lookups.lookup(key).envelope == other
        assert filled.results.undo(key, by="t") is False

    def test_an_undone_ending_brings_the_very_entry_back(self, filled, key, origin):
        filled.results.record(key, filled.envelope, origin, "linux")
        header = filled.lookups.lookup(key, "linux").header
        for _ in range(2):
            filled.results.invalidate(key, "linux", by="t", reason="r")
            assert filled.results.undo(key, "linux", by="bob") is True
            found = filled.lookups.lookup(key, "linux")
            assert found.envelope == filled.envelope
            assert found.datasets == {"out": f"art:{manifest_of(filled)}"}
            assert found.header["restored"]["by"] == "bob"
            assert {k: found.header[k] for k in ("recorded_at", "recorded_by", "host", "schema")} == {
                k: header[k] for k in ("recorded_at", "recorded_by", "host", "schema")
            }
            assert found.header["held_since_ns"] > header["held_since_ns"]

    def test_unknown_fields_of_the_header_come_back_too(self, store, key, envelope):
        data = codec.encode(
            {"kind": "entry", "job_key": key, "stage": None, "class": "any", "from_the_future": [1, {"a": None}]},
            envelope(),
        )
        store.place(name_of(key), data)
        store.results.invalidate(key, by="t", reason="r")
        assert store.results.undo(key, by="t") is True
        assert store.lookups.lookup(key).header["from_the_future"] == [1, {"a": None}]

    def test_nothing_to_undo(self, filled, key, origin):
        assert filled.results.undo(key, by="t") is False
        filled.results.record(key, filled.envelope, origin)
        assert filled.results.undo(key, by="t") is False

    def test_an_undo_needs_the_blobs(self, filled, key, origin):
        filled.results.record(key, filled.envelope, origin)
        filled.results.invalidate(key, by="t", reason="r")
        filled.remove(layout.blob(filled.digests[0]))
        with pytest.raises(NotFoundError):
            filled.results.undo(key, by="t")
        assert filled.lookups.lookup(key).reason == "invalidated"

    def test_a_result_recorded_during_the_undo_stays(self, filled, key, origin, envelope):
        filled.results.record(key, filled.envelope, origin)
        filled.results.invalidate(key, by="t", reason="r")

        def meanwhile(*_):
            filled.backend.hooks.clear()
            filled.again().results.record(key, envelope(), origin)

        filled.backend.hooks["replace"] = meanwhile
        assert filled.results.undo(key, by="t") is False
        assert filled.lookups.lookup(key).envelope == envelope()

    def test_damage_that_was_ended_is_not_brought_back(self, store, key):
        store.place(name_of(key), b"damaged")
        assert store.results.invalidate(key, by="t", reason="r") is True
        with pytest.raises(CorruptError):
            store.results.undo(key, by="t")

    def test_a_tombstone_of_another_key_brings_nothing_back_here(self, filled, key, origin):
        filled.results.record(key, filled.envelope, origin)
        filled.results.invalidate(key, by="t", reason="r")
        filled.place(name_of(OTHER_KEY), filled.object(name_of(key)))
        assert filled.results.undo(OTHER_KEY, by="t") is False
        assert not filled.lookups.lookup(OTHER_KEY).hit

    def test_an_ended_entry_of_another_key_is_not_brought_back_here(self, filled, key, origin):
        filled.results.record(key, filled.envelope, origin)
        filled.place(name_of(OTHER_KEY), filled.object(name_of(key)))
        assert filled.results.invalidate(OTHER_KEY, by="t", reason="copied by hand") is True
        with pytest.raises(CorruptError):
            filled.results.undo(OTHER_KEY, by="t")
        assert not filled.lookups.lookup(OTHER_KEY).hit

    @pytest.mark.parametrize("long", [{"by": "x" * 1001, "reason": "r"}, {"by": "t", "reason": "x" * 1001}])
    def test_a_long_note_is_refused(self, filled, key, origin, long):
        filled.results.record(key, filled.envelope, origin)
        with pytest.raises(InvalidInputError):
            filled.results.invalidate(key, **long)
        assert filled.lookups.lookup(key).hit

    def test_an_ending_ends_what_was_judged_or_what_stands_by_then(self, filled, key, origin, envelope):
        filled.results.record(key, filled.envelope, origin)

        def meanwhile(*_):
            filled.backend.hooks.clear()
            other = filled.again()
            other.results.invalidate(key, by="other", reason="first")
            other.results.record(key, envelope(), origin)

        filled.backend.hooks["replace"] = meanwhile
        assert filled.results.invalidate(key, by="t", reason="second") is True
        found = codec.decode(filled.object(name_of(key)))
        assert codec.decode(found.ended).envelope == envelope()


class TestWhatIsNoHit:
    def damages(self, data):
        yield b""
        yield data[:-1]
        yield data + b"\n"
        yield data[: data.index(b"\n")]
        yield b"[" * 100_000 + data
        for place in (0, data.index(b"\n"), data.index(b"\n") + 1, len(data) - 1):
            yield data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]

    def test_damage_is_a_miss_and_a_record_heals_it(self, filled, key, origin):
        filled.results.record(key, filled.envelope, origin)
        for damaged in self.damages(filled.object(name_of(key))):
            filled.rot(name_of(key), damaged)
            for complete in (True, False):
                found = filled.again().lookups.lookup(key, complete=complete)
                assert (found.status, found.reason, found.envelope) == ("miss", "corrupt", None)
                assert found.detail
            assert filled.results.record(key, filled.envelope, origin).recorded
            assert filled.lookups.lookup(key).envelope == filled.envelope

    def test_a_flip_anywhere_never_answers_with_another_envelope(self, filled, key, origin):
        filled.results.record(key, filled.envelope, origin)
        data = filled.object(name_of(key))
        for place in range(len(data)):
            flipped = data[:place] + bytes([data[place] ^ 4]) + data[place + 1 :]
            found = filled.lookups.judge(codec_key(key), "any", flipped)
            assert found.envelope in (None, filled.envelope)
            assert found.hit or found.reason in ("corrupt", "incomplete")
            assert place <= data.index(b"\n") or not found.hit

    @pytest.mark.parametrize(
        ("key", "result_class"), [(OTHER_KEY, "any"), ("0f" * 32 + ":s", "any"), ("0f" * 32, "linux")]
    )
    def test_an_entry_copied_under_another_name_is_none(self, filled, origin, key, result_class):
        filled.results.record("0f" * 32, filled.envelope, origin)
        filled.place(name_of(key, result_class), filled.object(name_of("0f" * 32)))
        for complete in (True, False):
            found = filled.lookups.lookup(key, result_class, complete=complete)
            assert (found.status, found.reason, found.envelope) == ("miss", "corrupt", None)
        assert filled.results.record(key, filled.envelope, origin, result_class).recorded
        assert filled.lookups.lookup(key, result_class).hit

    @pytest.mark.parametrize(("key", "stage"), [("0f" * 32, "s"), ("0f" * 32 + ":s", None), ("0f" * 32 + ":s", "t")])
    def test_a_header_that_contradicts_itself_is_damage(self, store, key, stage, envelope):
        header = {"kind": "entry", "job_key": key, "stage": stage, "class": "any"}
        store.place(name_of(key), codec.encode(header, envelope()))
        assert store.lookups.lookup(key).reason == "corrupt"

    def test_a_missing_blob_makes_it_incomplete_and_a_record_supersedes_it(self, filled, key, origin, envelope):
        filled.results.record(key, filled.envelope, origin)
        for digest in (*filled.digests, manifest_of(filled)):
            data = filled.blobs.get_bytes(digest)
            filled.remove(layout.blob(digest))
            found = filled.again().lookups.lookup(key)
            assert (found.status, found.reason, found.missing) == ("miss", "incomplete", (digest,))
            assert found.envelope is None
            assert filled.again().lookups.lookup(key, complete=False).hit
            filled.put(data)
        filled.remove(layout.blob(filled.digests[0]))
        assert filled.results.record(key, envelope(), origin).recorded
        assert filled.lookups.lookup(key).envelope == envelope()

    def test_a_blob_of_another_size_is_missing(self, filled, key, origin):
        filled.results.record(key, filled.envelope, origin)
        filled.rot(layout.blob(filled.digests[0]), b"firs")
        found = filled.again().lookups.lookup(key)
        assert (found.reason, found.missing) == ("incomplete", (filled.digests[0],))

    def test_a_condemned_blob_is_still_there_for_a_lookup(self, filled, key, origin):
        filled.results.record(key, filled.envelope, origin)
        filled.fossilise(filled.digests[0])
        assert filled.again().lookups.lookup(key).hit

    def test_every_reference_counts_in_fields_of_the_future_too(self, store, key, origin, envelope):
        seen, thumbnail = store.put(b"seen"), store.put(b"thumbnail")
        document = json.loads(envelope({"a": (seen, 4)}))
        document["artifacts"][0]["preview"] = [{"thumbnail": {"digest": thumbnail, "size": 9}}]
        store.results.record(key, json.dumps(document).encode(), origin)
        store.remove(layout.blob(thumbnail))
        assert store.again().lookups.lookup(key).missing == (thumbnail,)

    def test_an_object_too_large_is_damage_unread(self, store, key, origin, envelope, monkeypatch):
        monkeypatch.setattr(codec, "MAX_OBJECT", 10_000)
        store.place(name_of(key), b" " * 10_001)
        assert store.lookups.lookup(key).reason == "corrupt"
        assert store.results.record(key, envelope(), origin).recorded

    @pytest.mark.parametrize("body", [b"[]", b"7", b"not JSON", b"[" * 100_000, b'{"artifacts": ' + b"9" * 5000 + b"}"])
    def test_an_envelope_that_cannot_be_read_is_damage(self, store, key, body):
        store.place(name_of(key), codec.encode({"kind": "entry", "job_key": key, "stage": None, "class": "any"}, body))
        assert store.lookups.lookup(key).reason == "corrupt"

    @pytest.mark.parametrize("datasets", [{"out": 7}, {"out": "art:short"}, {"out": "other:1"}])
    def test_datasets_that_cannot_be_are_damage(self, store, key, envelope, datasets):
        header = {"kind": "entry", "job_key": key, "stage": None, "class": "any", "datasets": datasets}
        store.place(name_of(key), codec.encode(header, envelope()))
        assert store.lookups.lookup(key).reason == "corrupt"


def codec_key(key):
    from oarbank_cas.contracts.keys import parse_key

    return parse_key(key)


class TestAStoreOutOfReach:
    """It is an error, never a miss."""

    ERRORS = (UnavailableError("gone"), PermissionDeniedError("no"), StorageIOError("bad disk"))

    @pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
    @pytest.mark.parametrize("method", ["read", "stat"])
    def test_a_lookup_raises(self, filled, key, origin, error, method):
        filled.results.record(key, filled.envelope, origin)

        def fail(*_):
            raise error

        filled.backend.hooks[method] = fail
        with pytest.raises(type(error)):
            filled.again().lookups.lookup(key)
        with pytest.raises(type(error)):
            filled.results.record(key, filled.envelope, origin)
        if method == "read":
            with pytest.raises(type(error)):
                filled.results.invalidate(key, by="t", reason="r")

    def test_of_many_keys_it_is_that_keys_status(self, filled, key, origin):
        filled.results.record(key, filled.envelope, origin)

        def fail(name, *_):
            if OTHER_KEY in name:
                raise UnavailableError("the disk went away")

        filled.backend.hooks["read"] = fail
        found = list(filled.lookups.lookup_many([key, OTHER_KEY, "2d" * 32, key]))
        assert [answer.status for answer in found] == ["hit", "error", "miss", "hit"]
        assert found[1].reason == "UnavailableError"
        assert found[1].detail == "the disk went away"
        assert isinstance(found[1].error, UnavailableError)
        assert [answer.job_key for answer in found] == [key, OTHER_KEY, "2d" * 32, key]

    def test_keys_are_taken_as_they_are_needed(self, filled, key, origin):
        if filled.backend.requests_at_once > 1:
            pytest.skip("here some are taken ahead")

        def keys():
            yield key
            raise ZeroDivisionError

        assert next(iter(filled.lookups.lookup_many(keys()))).status == "miss"


class TestRemembering:
    @pytest.fixture
    def moment(self, monkeypatch):
        now = [1000.0, 5000.0]
        monkeypatch.setattr(Presence, "moment", staticmethod(lambda: tuple(now)))
        return now

    def test_a_lookup_in_steady_state_is_one_read(self, filled, key, origin):
        filled.results.record(key, filled.envelope, origin)
        filled.lookups.lookup(key)
        filled.backend.calls.clear()
        assert filled.lookups.lookup(key).hit
        assert filled.backend.calls == [("read", name_of(key), codec.MAX_OBJECT)]

    def test_the_first_lookup_asks_for_every_blob_once(self, filled, key, origin):
        filled.results.record(key, filled.envelope, origin)
        filled.backend.calls.clear()
        filled.lookups.lookup(key)
        asked = [name for method, name, *_ in filled.backend.calls if method == "stat"]
        assert sorted(asked) == sorted(layout.blob(d) for d in (*filled.digests, manifest_of(filled)))

    def test_without_completeness_it_is_one_read_too(self, filled, key, origin):
        filled.results.record(key, filled.envelope, origin)
        filled.backend.calls.clear()
        assert filled.lookups.lookup(key, complete=False).hit
        assert len(filled.backend.calls) == 1
        filled.lookups.lookup(key)
        assert len(filled.backend.calls) > 2

    def test_what_was_seen_serves_for_a_quarter_of_a_session_at_most(self, filled, key, origin, moment):
        filled.results.record(key, filled.envelope, origin)
        assert filled.lookups.lookup(key).hit
        filled.remove(layout.blob(filled.digests[0]))
        span = min(filled.session_s / 4, MAX_SPAN_S)
        for clock in (0, 1):
            moment[clock] += span - 1
            assert filled.lookups.lookup(key).hit
            moment[clock] += 1
            assert filled.lookups.lookup(key).reason == "incomplete"
            moment[clock] -= span
            assert filled.lookups.lookup(key).hit

    @pytest.mark.parametrize("clock", [0, 1])
    def test_a_clock_set_back_makes_nothing_fresher(self, filled, key, origin, moment, clock):
        filled.results.record(key, filled.envelope, origin)
        filled.lookups.lookup(key)
        filled.remove(layout.blob(filled.digests[0]))
        moment[clock] -= 1
        assert filled.lookups.lookup(key).reason == "incomplete"

    def test_one_memory_does_not_make_another_fresher(self, filled, key, origin, moment, envelope):
        """A second entry of the same blob rests on the look at the blob, not on its own first lookup."""
        digest = filled.digests[0]
        filled.results.record(key, envelope({"a": (digest, 5)}), origin)
        filled.results.record(OTHER_KEY, envelope({"a": (digest, 5)}, payload={"other": 1}), origin)
        assert filled.lookups.lookup(key).hit
        filled.remove(layout.blob(digest))
        for clock in (0, 1):
            moment[clock] += MAX_SPAN_S - 1
        assert filled.lookups.lookup(OTHER_KEY).hit
        for clock in (0, 1):
            moment[clock] += 2
        assert filled.lookups.lookup(OTHER_KEY).reason == "incomplete"

    def test_a_miss_is_not_remembered(self, filled, key, origin):
        filled.results.record(key, filled.envelope, origin)
        data = filled.blobs.get_bytes(filled.digests[0])
        filled.remove(layout.blob(filled.digests[0]))
        assert filled.lookups.lookup(key).reason == "incomplete"
        filled.put(data)
        assert filled.lookups.lookup(key).hit

    def test_an_ending_is_seen_at_once(self, filled, key, origin):
        filled.results.record(key, filled.envelope, origin)
        assert filled.lookups.lookup(key).hit
        filled.again().results.invalidate(key, by="t", reason="r")
        assert filled.lookups.lookup(key).reason == "invalidated"

    def test_the_memory_is_bounded(self, monkeypatch):
        monkeypatch.setattr("oarbank_cas.presence.MAX_REMEMBERED", 3)
        presence = Presence(3600)
        for name in "abcd":
            presence.saw(name, presence.moment())
        assert [presence.seen(name) is not None for name in "abcd"] == [False, True, True, True]


class TestARecordThatTakesTooLong:
    """Rule 5: an entry created later than a session after its hold is held anew, or withdrawn."""

    @pytest.fixture
    def late(self, clocked, envelope, clock):
        """A store where the time between the hold and the entry is `pass_s`, and `meanwhile` happens in it."""
        digest = clocked.put(b"first")
        clocked.envelope = envelope({"a": (digest, 5)})
        clocked.digests = [digest]

        def slow(pass_s, meanwhile=lambda: None):
            def commit(items):
                if any(name.startswith(layout.RESULTS) for name, _ in items):
                    clocked.backend.hooks.clear()
                    clock.pass_s(pass_s)
                    meanwhile()

            clocked.backend.hooks["commit"] = commit

        clocked.slow = slow
        return clocked

    def test_in_time_it_stands_without_another_look(self, late, key, origin):
        late.slow(late.session_s - 1, lambda: late.remove(layout.blob(late.digests[0])))
        assert late.results.record(key, late.envelope, origin).recorded

    def test_late_it_stands_where_everything_is_still_there(self, late, key, origin):
        late.slow(late.session_s + 1)
        assert late.results.record(key, late.envelope, origin).recorded
        assert late.lookups.lookup(key).hit

    def test_late_a_condemned_blob_is_brought_back(self, late, key, origin):
        late.slow(late.session_s + 1, lambda: late.fossilise(late.digests[0]))
        assert late.results.record(key, late.envelope, origin).recorded
        assert late.blobs.has(late.digests[0])

    @pytest.mark.parametrize("damage", ["gone", "of another size"])
    def test_late_it_is_withdrawn_where_a_blob_went(self, late, key, origin, damage):
        name = layout.blob(late.digests[0])
        late.slow(late.session_s + 1, lambda: late.remove(name) if damage == "gone" else late.rot(name, b"firs"))
        with pytest.raises(StorageIOError, match="publish again"):
            late.results.record(key, late.envelope, origin)
        found = late.lookups.lookup(key)
        assert (found.status, found.reason) == ("miss", "withdrawn")
        late.put(b"first")
        assert late.results.record(key, late.envelope, origin).recorded

    def test_a_clock_that_went_back_counts_as_late(self, late, key, origin):
        late.slow(-10, lambda: late.remove(layout.blob(late.digests[0])))
        with pytest.raises(StorageIOError):
            late.results.record(key, late.envelope, origin)
        assert late.lookups.lookup(key).reason == "withdrawn"

    def test_another_writers_entry_is_not_withdrawn(self, late, key, origin, envelope):
        def meanwhile():
            late.remove(layout.blob(late.digests[0]))
            late.again().results.record(key, envelope(), origin)

        late.slow(late.session_s + 1, meanwhile)
        answer = late.results.record(key, late.envelope, origin)
        assert not answer.recorded
        assert answer.envelope == envelope()
        assert late.lookups.lookup(key).envelope == envelope()

    def test_late_in_the_place_of_a_tombstone_too(self, late, key, origin, clock):
        late.results.record(key, late.envelope, origin)
        late.results.invalidate(key, by="t", reason="r")

        def slow(*_):
            late.backend.hooks.clear()
            clock.pass_s(late.session_s + 1)
            late.remove(layout.blob(late.digests[0]))

        late.backend.hooks["replace"] = slow
        with pytest.raises(StorageIOError):
            late.results.record(key, late.envelope, origin)
        assert late.lookups.lookup(key).reason == "withdrawn"


class TestListing:
    def test_every_entry_and_tombstone_by_its_header(self, filled, key, origin):
        filled.results.record(key, filled.envelope, origin)
        filled.results.record(key, filled.envelope, origin, "linux")
        filled.results.record(OTHER_KEY + ":s", filled.envelope, origin)
        filled.results.invalidate(key, by="t", reason="r")
        filled.place("results/ff/odd", b"damaged")
        listed = list(filled.results.listing())
        assert [found.name for found in listed] == filled.names(layout.RESULTS)
        assert [found.header.get("kind") for found in listed] == ["tombstone", "entry", "entry", None]
        assert [found.problem is None for found in listed] == [True, True, True, False]
        assert listed[1].size == len(filled.object(name_of(key, "linux")))

    def test_only_headers_are_read(self, store, key, origin, envelope):
        store.results.record(key, envelope(payload={"x": "x" * 200_000}), origin)
        store.backend.calls.clear()
        list(store.results.listing())
        assert "read" not in store.backend.names()
