import json
import os
import socket
import stat
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest
from agent_kit import ORIGIN, digest, files_in, key, memory_store, objects, result, tree, write_files, write_job

from oarbank_cas import (
    InvalidInputError,
    NotFoundError,
    Origin,
    StorageIOError,
    Store,
    UnavailableError,
    stopping,
)
from oarbank_cas import intake as intake_module
from oarbank_cas.agent.workdir import Folder
from oarbank_cas.backends.memory import MemoryBackend

A, B = b"alpha\n", bytes(range(256)) * 5

ODD = (
    (
        "{\r\n"
        '\t"schema" :  "align/result@3", "module_version":"1.2.3-rc.1+b5",\n'
        '  "future": {"local": "not-an-upload", "n": [1.0, 1e3, 1E+2, -0, -0.0, 0.1e-7, 12345678901234567890123]},\n'
        '  "escapes": "\\u00e9\\/\\ud83d\\ude00 \u00e9 \\u0041",\n'
        '  "artifacts" : [ {"name":"reads","note":{"thumbnail": {"local": "pics/t.png", "w":  10}},\n'
        '     "files":[ {"path":"a.txt" , "local" : "out/a.txt" , "x": 1.50},\n'
        '               {"digest":null,"local":"b.bin","size": null ,"path":"sub/b.bin"},\n'
        '               { "size":SIZE_A, "path":"again.txt", "local":"out/a.txt", "digest":"DIGEST_A"}]} ],\n'
        '  "payload":{"n":1.0,"big":9007199254740993,"local":"kept"} ,"effective":{}\n}  \n'
    )
    .replace("SIZE_A", str(len(A)))
    .replace("DIGEST_A", digest(A))
)


def published_text(text):
    a, b, t = ((digest(data), len(data)) for data in (A, B, b"png"))
    return (
        text.replace('{"local": "pics/t.png", "w":  10}', f'{{"digest": "{t[0]}", "size": {t[1]}, "w":  10}}')
        .replace('"local" : "out/a.txt" , "x"', f'"digest" : "{a[0]}" , "size" : {a[1]} , "x"')
        .replace('{"digest":null,"local":"b.bin","size": null ,', f'{{"digest":"{b[0]}","size": {b[1]} ,')
        .replace('"local":"out/a.txt", "digest"', '"digest"')
    )


def write_odd_job(workdir):
    return write_job(workdir, {"out/a.txt": A, "b.bin": B, "pics/t.png": b"png"}, ODD)


def test_an_envelope_keeps_every_byte_but_its_locals(store, workdir):
    write_odd_job(workdir)
    recorded, uploaded = store.publish(key(), workdir, ORIGIN)
    expected = published_text(ODD)
    assert "local" in expected
    assert recorded.recorded
    assert recorded.envelope.decode() == expected
    assert uploaded.envelope == recorded.envelope
    found = store.lookup(key())
    assert found.hit
    assert found.envelope == recorded.envelope
    assert found.datasets == recorded.datasets == uploaded.datasets
    for data in (A, B, b"png"):
        assert store.get_bytes(digest(data)) == data


def test_a_lookup_reports_the_dataset_of_each_artifact(store, workdir):
    write_job(workdir, {"x": b"1", "d/y": b""}, result({"one": {"x": "x"}, "two": {"deep/er/y": "d/y", "x": "x"}}))
    store.publish(key(), workdir, ORIGIN)
    datasets = store.lookup(key()).datasets
    assert sorted(datasets) == ["one", "two"]
    assert [(file.path, store.get_bytes(file.digest)) for file in store.files_of(datasets["two"])] == [
        ("deep/er/y", b""),
        ("x", b"1"),
    ]


def test_the_work_directory_is_left_as_it_was(store, workdir):
    write_odd_job(workdir)
    before = tree(workdir)
    store.publish(key(), workdir, ORIGIN)
    assert tree(workdir) == before


def test_an_envelope_without_artifacts_is_published(store, workdir):
    data = write_job(workdir, {}, result())
    recorded, uploaded = store.publish(key(), workdir, ORIGIN)
    assert recorded.envelope == data
    assert (uploaded.files, uploaded.size, recorded.datasets) == (0, 0, {})


def test_an_envelope_elsewhere(store, workdir, tmp_path):
    write_files(workdir, {"x": b"1"})
    other = tmp_path / "elsewhere.json"
    other.write_text(json.dumps(result({"out": {"x": "x"}})))
    (tmp_path / "link.json").symlink_to(other)
    assert store.publish(key(), workdir, ORIGIN, result=tmp_path / "link.json")[0].recorded


# -- what is refused, by name, before anything is uploaded


def link(path, target):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(target)


def make_device(path):
    if os.geteuid() != 0:
        pytest.skip("only root makes devices")
    try:
        os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, 5))  # endless zeros
    except PermissionError:
        pytest.skip("no devices can be made here")


# What is planted in a work directory `w` beside a folder `out`, and the local that leads to it.
PLANTS = {
    "missing": ("bad", lambda w, out: None),
    "missing folder": ("no/such/bad", lambda w, out: None),
    "directory": ("bad", lambda w, out: (w / "bad").mkdir()),
    "named pipe": ("bad", lambda w, out: os.mkfifo(w / "bad")),
    "device": ("bad", lambda w, out: make_device(w / "bad")),
    "device by link": ("bad", lambda w, out: link(w / "bad", "/dev/null")),
    "absolute link": ("bad", lambda w, out: link(w / "bad", out / "secret.txt")),
    "absolute link to what is also inside": ("bad", lambda w, out: link(w / "bad", "/good")),
    "relative link": ("bad", lambda w, out: link(w / "bad", "../outside/secret.txt")),
    "link up and back": ("bad", lambda w, out: link(w / "bad", "../outside/../w/good")),
    "chained link": (
        "bad",
        lambda w, out: (link(w / "bad", "sub/second"), link(w / "sub/second", "../../outside/secret.txt")),
    ),
    "loop": ("bad", lambda w, out: link(w / "bad", "bad")),
    "long loop": ("bad", lambda w, out: (link(w / "bad", "other"), link(w / "other", "bad"))),
    "broken link": ("bad", lambda w, out: link(w / "bad", "nowhere")),
    "link to the folder": ("bad", lambda w, out: link(w / "bad", ".")),
    "link to a pipe": ("bad", lambda w, out: (link(w / "bad", "pipe"), os.mkfifo(w / "pipe"))),
    "linked folder": ("bad/secret.txt", lambda w, out: link(w / "bad", out)),
    "linked folder inside": ("bad/x", lambda w, out: (write_files(w, {"real/x": b"x"}), link(w / "bad", "real"))),
    "linked folder deeper": ("a/b/c/secret.txt", lambda w, out: link(w / "a/b/c", out / "deep")),
    "link through a linked folder": (
        "bad",
        lambda w, out: (link(w / "hop", out), link(w / "bad", "hop/secret.txt")),
    ),
    "a file as folder": ("bad/x", lambda w, out: (w / "bad").write_bytes(b"")),
}


@pytest.mark.timeout(20)
@pytest.mark.parametrize("kind", PLANTS)
def test_a_local_that_is_no_file_of_the_work_directory(store, workdir, outside, way, kind):
    local, plant = PLANTS[kind]
    plant(workdir, outside)
    write_job(workdir, {"good": b"good"}, result({"out": {"good": "good", "bad": local}}))
    with pytest.raises(InvalidInputError) as caught:
        store.publish(key(), workdir, ORIGIN)
    assert local in str(caught.value)
    assert objects(store) == {}


@pytest.mark.timeout(20)
def test_a_socket_is_no_local(store, workdir, way, monkeypatch):
    monkeypatch.chdir(workdir)  # a socket's path is short
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind("bad")
        write_job(workdir, {"good": b"good"}, result({"out": {"good": "good", "bad": "bad"}}))
        with pytest.raises(InvalidInputError, match="bad: is a socket"):
            store.publish(key(), workdir, ORIGIN)
    assert objects(store) == {}


@pytest.mark.parametrize(
    "local",
    [
        "/etc/passwd",
        "../outside/secret.txt",
        "a/../../outside/secret.txt",
        "./good",
        "good/",
        "",
        ".",
        "..",
        "a//b",
        ".hidden",
        "a\\b",
        "..\\secret",
        "C:/x",
        "good\x00",
        "good\n",
        "g\u00f6\u00f6d",
        "con",
        "sub/NUL.txt",
        "x" * 101,
        "~root",
    ],
)
def test_a_local_that_is_no_portable_path(store, workdir, outside, local):
    write_job(workdir, {"good": b"good"}, result({"out": {"good": "good", "bad": local}}))
    with pytest.raises(InvalidInputError, match="local"):
        store.publish(key(), workdir, ORIGIN)
    assert objects(store) == {}


def test_a_hidden_upload_is_held_to_the_same_rules(store, workdir, outside):
    document = result(
        {"out": [{"path": "good", "local": "good", "thumb": [{"x": {"local": "../outside/secret.txt"}}]}]}
    )
    write_job(workdir, {"good": b"good"}, document)
    with pytest.raises(InvalidInputError, match=r"\.\."):
        store.publish(key(), workdir, ORIGIN)
    assert objects(store) == {}


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="needs to become another user")
def test_a_file_that_may_not_be_read():
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)  # another user comes here, but not into the folders that pytest makes
        write_job(Path(folder, "w"), {"bad": b"bad"})
        Path(folder, "w/bad").chmod(0)
        ran = subprocess.run(
            [sys.executable, "-c", AS_NOBODY, f"{folder}/w"], capture_output=True, text=True, check=True
        )
    assert ran.stdout == "bad cannot be read: Permission denied\n"


AS_NOBODY = """
import os, sys
from oarbank_cas import PermissionDeniedError
from oarbank_cas.agent.workdir import Folder
os.setgid(65534)
os.setuid(65534)
try:
    Folder(sys.argv[1]).open_file("bad")
except PermissionDeniedError as error:
    print(error)
"""


@pytest.mark.timeout(20)
@pytest.mark.parametrize("kind", ["missing", "link out", "pipe", "directory", "too large", "link in"])
def test_the_envelope_itself(store, workdir, outside, way, kind):
    envelope = workdir / "result.json"
    message = {"link out": "leaves the work directory", "pipe": "named pipe", "too large": "more than"}.get(kind, kind)
    if kind == "link out":
        write_job(outside.parent, {}, result())
        envelope.symlink_to("../result.json")
    elif kind == "pipe":
        os.mkfifo(envelope)
    elif kind == "directory":
        envelope.mkdir()
    elif kind == "too large":
        with envelope.open("wb") as file:
            file.truncate(64 * 2**20 + 1)
    elif kind == "link in":
        (workdir / "real.json").write_text(json.dumps(result()))
        envelope.symlink_to("real.json")
        assert store.publish(key(), workdir, ORIGIN)[0].recorded
        return
    with pytest.raises(InvalidInputError, match=f"result.json.*{message}"):
        store.publish(key(), workdir, ORIGIN)
    assert objects(store) == {}


def test_a_work_directory_that_is_none(store, tmp_path):
    (tmp_path / "file").write_bytes(b"")
    for bad, message in ((tmp_path / "no", "is missing"), (tmp_path / "file", "is not a directory$")):
        with pytest.raises(InvalidInputError, match=message):
            store.publish(key(), bad, ORIGIN)


def test_a_link_that_stays_inside_is_followed(store, workdir, way):
    write_job(workdir, {"real/data": b"data"}, result({"out": {"a": "one", "b": "sub/two", "c": "abs"}}))
    (workdir / "one").symlink_to("real/data")
    (workdir / "sub").mkdir()
    (workdir / "sub/two").symlink_to("../one")
    (workdir / "abs").symlink_to(workdir / "real/data")
    recorded, _ = store.publish(key(), workdir, ORIGIN)
    assert {file.digest for file in store.files_of(recorded.datasets["out"])} == {digest(b"data")}


def test_the_work_directory_may_be_a_link_itself(store, workdir, tmp_path, way):
    write_job(workdir, {"x": b"1"})
    (tmp_path / "link").symlink_to("w")
    assert store.publish(key(), tmp_path / "link", ORIGIN)[0].recorded


# -- digests that stand there already


def test_a_claim_beside_a_local_must_agree(store, workdir):
    right = {"path": "x", "local": "x", "digest": digest(b"1"), "size": 1}
    for wrong in ({"digest": digest(b"2")}, {"size": 2}):
        write_job(workdir, {"x": b"1"}, result({"out": [right | wrong]}))
        with pytest.raises(InvalidInputError, match="claims"):
            store.publish(key(), workdir, ORIGIN)
        assert objects(store) == {}
    write_job(workdir, {"x": b"1"}, result({"out": [right]}))
    assert store.publish(key(), workdir, ORIGIN)[0].recorded


def test_a_file_that_is_in_the_store_already(store, workdir):
    held = store.put_bytes(b"held")
    before = objects(store)
    for file, error in (
        ({"digest": digest(b"other"), "size": 5}, NotFoundError),
        ({"digest": held.digest, "size": 5}, InvalidInputError),
    ):
        write_job(workdir, {"x": b"1"}, result({"out": [{"path": "x", "local": "x"}, {"path": "y"} | file]}))
        with pytest.raises(error, match=file["digest"]):
            store.publish(key(), workdir, ORIGIN)
        assert objects(store) == before
    write_job(workdir, {}, result({"out": [{"path": "y", "digest": held.digest, "size": 4}]}))
    assert store.publish(key(), workdir, ORIGIN)[0].recorded


def test_neither_local_nor_digest(store, workdir):
    write_job(workdir, {}, result({"out": [{"path": "x"}]}))
    with pytest.raises(InvalidInputError, match="neither local nor digest"):
        store.publish(key(), workdir, ORIGIN)


# -- the payload's limit


@pytest.mark.parametrize("excess", [0, 1])
def test_the_payload_limit_is_exact_and_counts_bytes_as_written(store, workdir, excess):
    payload = '{ "t" :"' + "\u00e9" * 500 + "x" * (1024 - 8 - 1000 - 2 + excess) + '"}'
    assert len(payload.encode()) == 1024 + excess
    text = json.dumps(result({"out": {"x": "x"}}, payload=0)).replace('"payload": 0', f'"payload": {payload}')
    write_job(workdir, {"x": b"1"}, text)
    if excess:
        with pytest.raises(InvalidInputError, match=r"1025 bytes; max_inline_kb allows 1 KiB"):
            store.publish(key(), workdir, ORIGIN, max_inline_kb=1)
        assert objects(store) == {}
    else:
        assert store.publish(key(), workdir, ORIGIN, max_inline_kb=1)[0].recorded


def test_the_default_limit_is_256_kib(store, workdir):
    write_job(workdir, {}, result(payload={"t": "x" * (256 * 1024)}))
    with pytest.raises(InvalidInputError, match="max_inline_kb allows 256 KiB"):
        store.publish(key(), workdir, ORIGIN)


# -- failing, and again


def put_digests(backend):
    """Digests of the blobs that were brought in, in the order of the commits."""
    return [
        name.rpartition("/")[2]
        for call, *arguments in backend.calls
        if call == "commit"
        for name, _ in arguments[0]
        if name.startswith("blobs/")
    ]


def test_a_failed_record_leaves_the_blobs_and_again_sends_none(workdir, recorded):
    backend = recorded(MemoryBackend())
    store = memory_store(backend)
    contents = {f"f{number}": f"{number}".encode() for number in range(50)}
    write_job(workdir, contents)

    def out_of_reach(items):
        if any(name.startswith("results/") for name, _ in items):
            raise UnavailableError("the network is gone")

    backend.hooks["commit"] = out_of_reach
    with pytest.raises(UnavailableError):
        store.publish(key(), workdir, ORIGIN)
    assert len(put_digests(backend)) == 51  # and the manifest
    assert not store.lookup(key()).hit
    assert objects(store, "results/") == {}
    backend.hooks.clear()
    backend.calls.clear()
    recorded_now, uploaded = store.publish(key(), workdir, ORIGIN)
    assert recorded_now.recorded
    assert put_digests(backend) == []
    assert (uploaded.files, uploaded.new_files, uploaded.new_size) == (50, 0, 0)
    assert store.lookup(key()).hit


def test_a_failed_upload_records_nothing(workdir, recorded):
    backend = recorded(MemoryBackend())
    store = memory_store(backend)
    write_job(workdir, {"a": b"1", "b": b"2"})

    def full(items):
        raise StorageIOError("no space is left")

    backend.hooks["commit"] = full
    with pytest.raises(StorageIOError):
        store.publish(key(), workdir, ORIGIN)
    assert objects(store) == {}
    del backend.hooks["commit"]
    assert store.publish(key(), workdir, ORIGIN)[0].recorded


def test_blobs_are_there_before_the_entry(workdir, recorded):
    backend = recorded(MemoryBackend())
    store = memory_store(backend)
    write_job(workdir, {"a": b"1", "b": b"2"})
    needed = {digest(b"1"), digest(b"2")}

    def look(items):
        if any(name.startswith("results/") for name, _ in items):
            assert needed <= {name.rpartition("/")[2] for name in objects(store, "blobs/")}

    backend.hooks["commit"] = look
    assert store.publish(key(), workdir, ORIGIN)[0].recorded


def test_only_what_is_new_is_sent(workdir, recorded):
    backend = recorded(MemoryBackend())
    store = memory_store(backend)
    store.put_bytes(b"old")
    write_job(workdir, {"a": b"old", "b": b"new", "c": b"new", "d": b""})
    backend.calls.clear()
    _, uploaded = store.publish(key(), workdir, ORIGIN)
    sent = put_digests(backend)
    assert digest(b"old") not in sent
    assert sorted(sent).count(digest(b"new")) == 1
    assert (uploaded.files, uploaded.size, uploaded.new_files, uploaded.new_size) == (4, 9, 2, 3)


def test_the_second_writer_gets_the_standing_entry(store, workdir, tmp_path):
    first = write_job(workdir, {"x": b"1"}, result({"out": {"x": "x"}}, payload={"by": "first"}))
    write_job(tmp_path / "w2", {"x": b"2"}, result({"out": {"x": "x"}}, payload={"by": "second"}))
    assert store.publish(key(), workdir, Origin("one"))[0].recorded
    recorded, uploaded = store.publish(key(), tmp_path / "w2", Origin("two"))
    assert not recorded.recorded
    assert b'"first"' in recorded.envelope
    assert b'"second"' in uploaded.envelope
    assert recorded.header["recorded_by"] == "one"
    assert store.lookup(key()).envelope == recorded.envelope
    assert b'"first"' in first


def test_stages_and_classes_do_not_mix(store, workdir):
    write_job(workdir, {"x": b"1"})
    store.publish(f"{key()}:align", workdir, Origin("me", platform="linux-amd64"), "linux")
    assert store.lookup(f"{key()}:align", "linux").hit
    for asked, result_class in ((key(), "linux"), (f"{key()}:align", "any"), (f"{key()}:align", "linux-amd64")):
        assert store.lookup(asked, result_class).reason == "absent"


@pytest.mark.parametrize(
    ("job", "result_class", "origin"),
    [
        ("short", "any", Origin("me")),
        (key().upper(), "any", Origin("me")),
        (f"{key()}\n", "any", Origin("me")),
        (f"{key()}:", "any", Origin("me")),
        (key(), "Linux", Origin("me")),
        (key(), "../x", Origin("me")),
        (key(), "linux", Origin("me", platform="darwin-arm64")),
        (key(), "any", Origin("me", platform="Linux")),
        (key(), "any", Origin("me", module_id="nodots")),
        (key(), "any", Origin("x" * 1001)),
        (key(), "any", Origin("me", host="h" * 1001)),
    ],
)
def test_a_wrong_target_is_refused_before_anything_is_uploaded(store, workdir, job, result_class, origin):
    write_job(workdir, {"x": b"1"})
    with pytest.raises(InvalidInputError):
        store.publish(job, workdir, origin, result_class)
    assert objects(store) == {}


# -- files that change


@pytest.mark.parametrize(
    ("size", "moment"),
    [(10, "read"), (3 * 2**20, "read"), (65 * 2**20, "read"), (65 * 2**20, "copy")],
    ids=["small", "held", "streamed", "streamed, second pass"],
)
@pytest.mark.parametrize("change", ["grows", "shrinks", "rewritten"])
def test_a_file_that_changes_meanwhile(store, workdir, monkeypatch, size, moment, change):
    write_job(workdir, {"x": b"1"}, result({"out": {"x": "x", "big": "big"}}))
    big = workdir / "big"
    with big.open("wb") as file:
        file.truncate(size)
    touched = []

    def change_after(call):
        def changing(fd, *arguments):
            answer = call(fd, *arguments)
            if os.fstat(fd).st_ino == big.stat().st_ino and not touched:
                touched.append(fd)
                with open(big, "r+b") as file:
                    if change == "rewritten":
                        file.write(b"changed")
                    else:
                        file.truncate(size + (1 if change == "grows" else -1))
            return answer

        return changing

    if moment == "read":
        monkeypatch.setattr(os, "readv", change_after(os.readv))
        monkeypatch.setattr(os, "read", change_after(os.read))
    else:
        monkeypatch.setattr(os, "lseek", change_after(os.lseek))
    with pytest.raises(StorageIOError, match=r"^big changed while it was read: "):
        store.publish(key(), workdir, ORIGIN)
    monkeypatch.undo()
    assert objects(store) == {}
    big.write_bytes(b"")
    assert store.publish(key(), workdir, ORIGIN)[0].recorded


def test_a_file_replaced_while_it_is_opened(store, workdir, outside, monkeypatch, way):
    write_job(workdir, {"x": b"1"})
    real = os.open
    swapped = []

    def swapping(path, *args, **settings):
        if os.path.basename(path) == "x" and not swapped:
            swapped.append(path)
            (workdir / "x").unlink()
            (workdir / "x").symlink_to(outside / "secret.txt")
        return real(path, *args, **settings)

    monkeypatch.setattr(os, "open", swapping)
    with pytest.raises((InvalidInputError, StorageIOError), match=r"^x"):
        store.publish(key(), workdir, ORIGIN)
    monkeypatch.undo()
    assert objects(store) == {}


@pytest.mark.timeout(20)
def test_a_file_that_becomes_a_pipe_does_not_hang(store, workdir, monkeypatch, way):
    write_job(workdir, {"x": b"1"})
    real = os.open

    def swapping(path, *args, **settings):
        if os.path.basename(path) == "x" and (workdir / "x").is_file():
            (workdir / "x").unlink()
            os.mkfifo(workdir / "x")
        return real(path, *args, **settings)

    monkeypatch.setattr(os, "open", swapping)
    with pytest.raises((InvalidInputError, StorageIOError), match=r"^x"):
        store.publish(key(), workdir, ORIGIN)
    monkeypatch.undo()
    assert objects(store) == {}


# -- two programs, and many at once


def test_an_upload_is_recorded_by_another_process(workdir, tmp_path):
    with Store.init(tmp_path / "store")[0] as store:
        write_odd_job(workdir)
        uploaded = store.upload(workdir)
        assert objects(store, "results/") == {}
        assert uploaded.envelope.decode() == published_text(ODD)
    program = (
        "import sys\nfrom oarbank_cas import Origin, Store\n"
        "with Store.open(sys.argv[1]) as store:\n"
        "    done = store.record(sys.argv[2], sys.stdin.buffer.read(), Origin('coordinator'))\n"
        "    print(done.recorded, done.datasets == eval(sys.argv[3]))\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program, tmp_path / "store", key(), repr(uploaded.datasets)],
        input=uploaded.envelope,
        capture_output=True,
        check=True,
    )
    assert ran.stdout == b"True True\n"
    with Store.open(tmp_path / "store", read_only=True) as store:
        assert store.lookup(key()).envelope == uploaded.envelope


def test_record_refuses_what_was_not_uploaded(store, workdir):
    data = write_odd_job(workdir)
    with pytest.raises(InvalidInputError, match="still local: upload it first"):
        store.record(key(), data, ORIGIN)
    other = memory_store()
    with pytest.raises(NotFoundError, match="upload first"):
        other.record(key(), store.upload(workdir).envelope, ORIGIN)
    assert objects(other) == {}


def test_ten_thousand_files(store, workdir):
    contents = {f"d{number % 97}/f{number}": f"{number % 5000}".encode() for number in range(10_000)}
    write_job(workdir, contents)
    seen = []
    recorded, uploaded = store.publish(key(), workdir, ORIGIN, progress=seen.append)
    assert uploaded.files == len(seen) == 10_000
    assert uploaded.new_files == 5000
    assert sum(seen) == uploaded.size
    listed = {file.path: file.digest for file in store.files_of(recorded.datasets["out"])}
    assert listed == {path: digest(data) for path, data in contents.items()}


def test_publishing_the_same_at_once(store, tmp_path):
    write_job(tmp_path / "w", {f"f{number}": b"%d" % number for number in range(200)})
    barrier = threading.Barrier(6)
    answers = []

    def run():
        barrier.wait()
        answers.append(store.publish(key(), tmp_path / "w", ORIGIN)[0])

    threads = [threading.Thread(target=run) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(answer.recorded for answer in answers) == [False] * 5 + [True]
    assert len({answer.envelope for answer in answers}) == 1
    assert store.lookup(key()).hit


def test_nothing_is_left_in_the_temporaries(workdir, tmp_path):
    store, _ = Store.init(tmp_path / "store")
    with store:
        write_job(workdir, {"a": b"1", "bad": b""}, result({"out": {"a": "a", "bad": "bad", "late": "late"}}))
        with pytest.raises(InvalidInputError):
            store.publish(key(), workdir, ORIGIN)
        write_job(workdir, {"late": b"3"}, result({"out": {"a": "a", "late": "late"}}))
        store.publish(key(), workdir, ORIGIN)
    left = {path for path in files_in(tmp_path / "store") if path.startswith("tmp/") and "locks" not in path}
    assert left == set()


def test_a_damaged_blob_in_the_way_is_replaced(workdir, tmp_path):
    with Store.init(tmp_path / "store")[0] as store:
        write_job(workdir, {"x": b"right bytes"})
        store.publish(key(), workdir, ORIGIN)
        blob = tmp_path / "store/blobs" / digest(b"right bytes")[:2] / digest(b"right bytes")
        blob.chmod(0o644)
        blob.write_bytes(b"cut")
        assert store.lookup(key(), complete=True).reason in ("incomplete", None)
        assert store.publish(key(1), workdir, ORIGIN)[0].recorded
        assert store.get_bytes(digest(b"right bytes")) == b"right bytes"


def test_an_interrupt_ends_a_batch(store, workdir, monkeypatch):
    """What had not begun when the interrupt came is not read; nothing becomes visible."""
    write_job(workdir, {f"f{number}": b"%d" % number for number in range(1000)})
    real_open, opened, waiting = Folder.open_file, [], []

    def interrupted(futures, **_):
        waiting.extend(futures)
        raise KeyboardInterrupt

    def opening(self, local):
        if threading.current_thread() is not threading.main_thread():
            deadline = time.monotonic() + 20
            while not (waiting and waiting[-1].cancelled()) and time.monotonic() < deadline:
                time.sleep(0.001)
            opened.append(local)
        return real_open(self, local)

    monkeypatch.setattr(intake_module, "_SMALL", 0)  # small files go without threads
    monkeypatch.setattr(stopping, "wait", interrupted)
    monkeypatch.setattr(Folder, "open_file", opening)
    with pytest.raises(KeyboardInterrupt):
        store.publish(key(), workdir, ORIGIN)
    assert len(opened) < 1000
    assert objects(store) == {}
