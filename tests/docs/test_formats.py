"""docs/formats.md is exact: a reader written from it alone, without the package, reads what the package writes."""

from __future__ import annotations

import ast
import hashlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from oarbank_cas import Origin, Store, job_key, layout
from oarbank_cas.contracts.key_inputs import KeyInputs
from oarbank_cas.gc.collect import Options
from oarbank_cas.gc.retention import Policy

READER = Path(__file__).parent / "independent_reader.py"
ORIGIN = Origin(by="Zoë <z@example.org>", platform="linux-amd64", host="node1", module_id="org.example.align")

INPUTS = {'größe/\n"': [1, -7, True, None, {"deep": ["é", "", {}]}], "b": 2**53, "params": {"a": "0.5", "z": []}}


def read(store, *arguments):
    """Run the reader without the package and without anything that is installed."""
    return subprocess.run([sys.executable, "-I", "-S", READER, store, *arguments], capture_output=True, check=False)


def told(store):
    done = read(store)
    assert done.returncode == 0, done.stderr.decode()
    return json.loads(done.stdout)


def publish(store, folder, name, files, result_class="any", stage=None, inputs=None):
    """Record a result of some files; its key and its dataset."""
    work = folder / f"work-{name}"
    listed = []
    for path, data in files.items():
        (work / path).parent.mkdir(parents=True, exist_ok=True)
        (work / path).write_bytes(data)
        listed.append({"path": path, "local": path})
    document = {"schema": "align/result@1", "module_version": "1.0.0", "payload": {"n": name, "ü": "é"}}
    document["artifacts"] = [{"name": "out", "files": listed}]
    (work / "result.json").write_text(json.dumps(document, indent=1, ensure_ascii=False), encoding="utf-8")
    key = job_key("org.example.align", "1", inputs or {"name": name}, stage)
    kept = KeyInputs.of("org.example.align", "1", inputs, stage) if inputs else None
    published = store.publish(key, work, ORIGIN, result_class, key_inputs=kept)
    return key, published.recorded.datasets["out"]


def tree(root):
    """Every file with its bytes and its time."""
    found = {}
    for path, folders, files in os.walk(root):
        for name in folders + files:
            full = Path(path, name)
            stat = full.stat()
            data = full.read_bytes() if full.is_file() else None
            found[str(full)] = (stat.st_ino, stat.st_mtime_ns, stat.st_mode, data)
    return found


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A store in which everything stands that the page describes, closed."""
    folder = tmp_path_factory.mktemp("formats")
    root = folder / "cas"
    store, _ = Store.init(root, session_s=60, grace_s=1, slack_s=0)
    with store:
        first = publish(store, folder, "first", {"a/b.txt": b"one", "empty": b"", "z+@-._.bin": bytes(range(256))})
        staged = publish(store, folder, "staged", {"a.txt": b"two"}, "linux", "count", INPUTS)
        ended = publish(store, folder, "ended", {"a.txt": b"three"})
        undone = publish(store, folder, "undone", {"a.txt": b"four"})
        store.invalidate(ended[0], by="ann", reason="wrong “genome”\n")
        store.invalidate(undone[0], by="ann", reason="no")
        store.undo_invalidate(undone[0], by="bob")
        orphan = store.put_bytes(b"nobody needs this").digest
        purged = store.put_bytes(b"a password").digest
        store.purge(purged, by="ann", reason="secret")
        store.pins.pin("by-key", staged[0], result_class="linux", expires_at="2999-01-01")
        store.pins.pin("by-dataset", first[1], note="n")
        lone = store.put_bytes(b"pinned alone").digest
        store.pins.pin("by-digest", f"blob:{lone}")
        assert store.lookup(first[0]).hit
    deadline = time.monotonic() + 60
    while not list((root / "fossils").rglob("*.*")):
        assert time.monotonic() < deadline
        time.sleep(0.5)
        with Store.open(root) as store:
            report = store.gc(Policy(keep_days=9999), Options(yes_really=True))
            assert report.exit_code == 0, report.to_json()
    with Store.open(root) as store:
        Policy(keep_days=30, keep_newest=4).save(store.backend)
    return root, {"first": first, "staged": staged, "ended": ended, "undone": undone, "orphan": orphan, "lone": lone}


def test_the_reader_is_independent():
    for node in ast.walk(ast.parse(READER.read_text(encoding="utf-8"))):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        names += [node.module] if isinstance(node, ast.ImportFrom) else []
        assert {name.partition(".")[0] for name in names} <= sys.stdlib_module_names


class TestWhatItReads:
    def test_entries_and_datasets(self, made):
        root, names = made
        found = told(root)
        with Store.open(root, read_only=True) as store:
            for what, result_class in (("first", "any"), ("staged", "linux"), ("undone", "any")):
                key, dataset = names[what]
                answer = store.lookup(key, result_class)
                expected = [ORIGIN.by, answer.datasets, hashlib.sha256(answer.envelope).hexdigest()]
                assert found["entries"].pop(f"{key}@{result_class}") == expected
                files = [[file.path, file.digest, file.size] for file in store.files_of(dataset)]
                assert found["datasets"].pop(dataset) == files
        key, dataset = names["ended"]
        expected = ["invalidated", "wrong “genome”\n", {"out": dataset}]
        assert found["tombstones"] == {f"{key}@any": expected}
        assert not found["entries"]
        assert not found["datasets"]
        assert not found["unknown"]

    def test_an_envelope_byte_for_byte(self, made):
        root, names = made
        with Store.open(root, read_only=True) as store:
            assert read(root, names["staged"][0], "linux").stdout == store.lookup(names["staged"][0], "linux").envelope

    def test_blobs_and_fossils(self, made):
        root, names = made
        found = told(root)
        with Store.open(root, read_only=True) as store:
            standing = {digest: store.stat(digest).size for digest in found["blobs"]}
            assert standing == found["blobs"]
            assert len(standing) == len(list(store.backend.listing(layout.BLOBS)))
            assert [name.split("/")[2].split(".")[0] for name in found["fossils"]] == [names["orphan"]]

    def test_pins_and_what_gc_keeps(self, made):
        root, names = made
        found = told(root)
        key, dataset = names["staged"][0], names["first"][1]
        assert {name: (pin["keeps"], pin["class"]) for name, pin in found["pins"].items()} == {
            "by-key": (key, "linux"),
            "by-dataset": (dataset, None),
            "by-digest": (names["lone"], None),
        }
        assert found["policy"] == {"keep_days": 30, "keep_newest": 4}
        first = names["first"][0]
        assert f"results/{first[:2]}/{first}/_@any" in found["hits"]
        assert [purge["reason"] for purge in found["purges"]] == ["secret"]
        assert found["runs"][-1]["completed"] is True
        assert found["runs"][-1]["exit_code"] == 0
        assert found["state"]["fossils"] == found["fossils"]

    def test_key_inputs(self, made):
        root, names = made
        found = told(root)
        digits = names["staged"][0].partition(":")[0]
        ((key, (document, module, sketch)),) = found["key_inputs"].items()
        assert (key, document["inputs"]) == (digits, INPUTS)
        assert found["sketches"] == {digits: [module, sketch]}

    def test_what_gc_knows_of_entries(self, made):
        root, names = made
        found = told(root)
        recorded = dict(found["state"]["entries"])
        key, dataset = names["first"]
        with Store.open(root, read_only=True) as store:
            expected = {file.digest: file.size for file in store.files_of(dataset)}
            manifest = dataset.removeprefix("art:")
            expected[manifest] = store.stat(manifest).size
        assert dict(recorded[f"results/{key[:2]}/{key}/_@any"]) == expected
        assert sorted(found["state"]["manifests"]) == found["state"]["manifests"]
        assert manifest in found["state"]["manifests"]

    def test_nothing_is_changed(self, made):
        root, _ = made
        before = tree(root)
        told(root)
        assert tree(root) == before


class TestWhatItRefuses:
    """What the package takes for damage the reader takes for damage, and the other way round."""

    @pytest.fixture
    def copy(self, tmp_path):
        root = tmp_path / "cas"
        store, _ = Store.init(root)
        with store:
            key, dataset = publish(store, tmp_path, "first", {"a.txt": b"one"})
            name = layout.entry(key, None, "any")
        return root, key, root / name, dataset

    def both(self, root, key):
        """Whether it is a hit to the reader, and to the package."""
        with Store.open(root, read_only=True) as store:
            return read(root, key).returncode == 0, store.lookup(key).hit

    def test_each_byte_of_an_entry(self, copy):
        root, key, entry, _ = copy
        sound = entry.read_bytes()
        assert self.both(root, key) == (True, True)
        entry.chmod(0o644)
        # Every byte near the header's end and start, and some of all others.
        header = sound.index(b"\n")
        places = {*range(header - 90, header + 3), 0, 1, 2, *range(5, len(sound), 97)}
        wrong = [sound[:at] + bytes([sound[at] ^ 1]) + sound[at + 1 :] for at in sorted(places)]
        wrong += [sound[:-1], sound + b"\n", b"\n" + sound, sound[: header + 1], b"", sound.replace(b"\n", b"\r\n", 1)]
        entries = root.parent / "wrong"
        entries.mkdir()
        program = (
            "import sys; sys.path.insert(0, sys.argv[1]); import independent_reader as r\n"
            "store = r.Store(sys.argv[2]); answers = []\n"
            "for path in sys.argv[3:]:\n"
            "    try: store.entry(open(path, 'rb').read()); answers.append('right')\n"
            "    except r.Wrong: answers.append('wrong')\n"
            "print(set(answers))"
        )
        paths = []
        for number, data in enumerate(wrong):
            paths.append(entries / str(number))
            paths[-1].write_bytes(data)
        ran = subprocess.run(
            [sys.executable, "-I", "-S", "-c", program, READER.parent, root, *paths],
            capture_output=True,
            text=True,
            check=True,
        )
        assert ran.stdout.strip() == "{'wrong'}"
        with Store.open(root, read_only=True) as store:
            for data in wrong:
                entry.write_bytes(data)
                assert store.lookup(key).reason == "corrupt"

    def test_another_name(self, copy):
        root, key, entry, _ = copy
        other = key[::-1]
        target = root / layout.entry(other, None, "any")
        target.parent.mkdir(parents=True)
        target.write_bytes(entry.read_bytes())
        assert self.both(root, other) == (False, False)

    def test_a_blob_that_went_or_shrank(self, copy):
        root, key, _, dataset = copy
        manifest = root / layout.blob(dataset.removeprefix("art:"))
        kept = manifest.read_bytes()
        manifest.unlink()
        assert self.both(root, key) == (False, False)
        manifest.write_bytes(kept)
        assert self.both(root, key) == (True, True)
        blob = root / layout.blob(hashlib.sha256(b"one").hexdigest())
        blob.chmod(0o644)
        blob.write_bytes(b"on")
        assert self.both(root, key) == (False, False)

    def test_a_blob_that_is_a_fossil(self, copy):
        root, key, _, _ = copy
        digest = hashlib.sha256(b"one").hexdigest()
        fossil = root / layout.fossil(digest, "0123456789abcdef")
        fossil.parent.mkdir(parents=True)
        (root / layout.blob(digest)).rename(fossil)
        assert self.both(root, key) == (True, True)
