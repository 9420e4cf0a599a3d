"""The operators' commands: what they print, and every exit code."""

import json
import os
import pty
import subprocess
import sys

import pytest
from operators_kit import digest_of, disk_store, envelope, key, record

from oarbank_cas import Origin, Store, layout
from oarbank_cas.gc.collect import Options as GcOptions
from oarbank_cas.gc.retention import Policy


@pytest.fixture
def store(disk, monkeypatch, run):
    """The store on disk, named by the environment."""
    monkeypatch.setenv("OARBANK_CAS_STORE", str(disk.root))
    return disk


@pytest.fixture
def backup(store, tmp_path):
    made = disk_store(tmp_path / "backup")
    store.store.copy_to(made.store)
    yield made
    made.store.close()


COMMANDS = [
    ("gc",),
    ("gc", "--dry-run"),
    ("verify",),
    ("verify", "--dry-run"),
    ("stats",),
    ("pins",),
    ("unpin", "x"),
    ("pin", "x", key(0)),
    ("copy", "--to", "elsewhere", "--all"),
    ("purge", key(0), "--reason", "x", "--yes"),
]


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_no_store_is_69(run, tmp_path, command):
    ran = run("--store", tmp_path / "none", *command)
    assert ran.code == 69
    assert "there is no store" in ran.said
    assert not (tmp_path / "none").exists()
    as_json = run("--json", "--store", tmp_path / "none", *command)
    assert as_json.json["exit_code"] == 69


@pytest.mark.parametrize(
    "command",
    [
        ("gc", "--keep-days", "soon"),
        ("gc", "--save-policy", "--dry-run", "--keep-days", "3"),
        ("verify", "--sample", "0"),
        ("verify", "--sample", "101%"),
        ("verify", "--sample", "half"),
        ("verify", "--from", "elsewhere"),
        ("verify", "--dry-run", "--repair"),
        ("verify", "--workers", "0"),
        ("copy", "--all"),
        ("copy", "--to", "x"),
        ("copy", "--to", "x", "--all", key(0)),
        ("purge", key(0)),
        ("purge", key(0), "--reason", "not confirmed"),
        ("pin", "x"),
        ("unpin",),
    ],
    ids=" ".join,
)
def test_usage_is_2(run, store, command):
    ran = run(*command)
    assert ran.code == 2
    assert ran.out == b""
    store.check_whole()


@pytest.mark.parametrize(
    "command",
    [
        ("verify", "--resume", "oarbank-cas.txt"),
        ("copy", "--from", "{store}", "--to", "{store}", "--all"),
        ("copy", "--to", "{backup}", "nope"),
        ("purge", "nope", "--reason", "x", "--yes"),
        ("pin", "x", "nope"),
        ("pin", "No Name", key(0)),
        ("unpin", "No Name"),
    ],
    ids=" ".join,
)
def test_invalid_input_is_65(run, store, backup, command):
    with open("oarbank-cas.txt", "w") as file:
        file.write("mine")
    ran = run(*[part.format(store=store.root, backup=backup.root) for part in command])
    assert ran.code == 65
    assert ran.out == b""
    assert len(ran.said.splitlines()) == 1


# -- pins


def test_pins_that_are_past(run, store):
    """One that would keep nothing is refused; one that keeps nothing any more is told."""
    for past in ("2020-01-01", "2020-01-01T12:00:00+02:00"):
        ran = run("pin", "late", key(5), "--expires", past)
        assert ran.code == 65
        assert "is past" in ran.said
    assert "pins/late" not in store.names()
    assert run("pin", "later", key(5), "--expires", "2099-01-01").code == 0
    document = json.loads(store.read("pins/later"))
    store.write("pins/later", json.dumps(document | {"expires_at": "2020-01-01T00:00:00Z"}).encode())
    for command in (("pins",), ("ls", "pins")):
        assert f"later  {key(5)}  2020-01-01T00:00:00Z (expired)" in run(*command).text
        listed = run("--json", *command).json["pins"]
        assert {each["name"]: each["expired"] for each in listed} == {
            "a-blob": False,
            "a-dataset": False,
            "a-job": False,
            "later": True,
        }


def test_pins(run, store):
    ran = run("pin", "paper", key(5), "--note", "figure 3", "--by", "ann", "--expires", "2099-01-01")
    assert (ran.code, ran.text) == (0, f"pinned  paper  {key(5)}\n")
    listed = {pin["name"]: pin for pin in run("--json", "pins").json["pins"]}
    assert listed["paper"] == {
        "name": "paper",
        "job_key": key(5),
        "class": "any",
        "dataset": None,
        "digest": None,
        "note": "figure 3",
        "by": "ann",
        "created_at": listed["paper"]["created_at"],
        "expires_at": "2099-01-01T00:00:00.000000Z",
        "expired": False,
    }
    assert f"paper  {key(5)}  2099-01-01T00:00:00.000000Z  ann  figure 3\n" in run("pins").text
    assert run("pin", "paper", key(6)).code == 73
    assert (run("unpin", "paper").code, run("unpin", "paper").code) == (0, 1)
    assert run("--json", "unpin", "paper").json == {"name": "paper", "removed": False}


def test_ls_pins(run, store):
    assert run("ls", "pins").text == run("pins").text
    assert run("--json", "ls", "pins").json == run("--json", "pins").json
    assert run("ls", "pins", "--module", "x").code == 2


def test_pinning_what_is_not_there_is_1(run, store):
    for target in (key(77), f"art:{key(77)}", f"blob:{key(77)}"):
        assert run("pin", "x", target).code == 1
    assert "x" not in run("pins").text.split()


def test_a_damaged_pin_is_65_and_the_others_are_listed(run, store):
    store.write("pins/broken", b"{")
    ran = run("pins")
    assert ran.code == 65
    assert len(ran.text.splitlines()) == 3
    assert "pins/broken" in ran.said
    ran = run("--json", "pins")
    assert (ran.code, len(ran.json["pins"]), len(ran.json["damaged"])) == (65, 3, 1)


# -- gc


def quick(tmp_path, monkeypatch):
    made = disk_store(tmp_path / "quick", session_s=1, grace_s=1, slack_s=0)
    monkeypatch.setenv("OARBANK_CAS_STORE", str(made.root))
    return made


def test_gc(run, tmp_path, monkeypatch):
    made = quick(tmp_path, monkeypatch)
    record(made.store, 1)
    orphan = made.store.put_bytes(b"x" * 5000).digest
    import time

    time.sleep(1.2)
    dry = run("gc", "--dry-run")
    assert dry.code == 0
    assert "would condemn blobs  -  under 1 day  1  4.9 KiB" in dry.text
    assert made.store.has(orphan)
    real = run("gc", "--by", "ann")
    assert real.code == 0
    assert "blobs condemned  -  under 1 day  1  4.9 KiB" in real.text
    assert "would" not in real.text
    assert not made.store.has(orphan)
    document = run("--json", "gc").json
    assert document["exit_code"] == 0
    assert document["done"]["totals"]["fossils kept"]["count"] == 1
    record_of = [json.loads(made.read(name)) for name in made.names("gc/runs/")]
    assert any(each["by"] == "ann" for each in record_of)
    for _ in range(5):
        time.sleep(1.2)
        text = run("gc").text
        if "fossils purged" in text:
            break
    assert "fossils purged  -  under 1 day  1  4.9 KiB" in text
    assert made.store.lookup(key(1)).hit
    made.store.close()


def test_gc_retention(run, store):
    ran = run("gc", "--dry-run", "--keep-newest", "1", "--yes-really")
    assert ran.code == 0
    # Of four entries of each module; job 0 is pinned.
    assert "would end entries: 9" in ran.text or "would end entries: 8" in ran.text
    assert "expired" not in ran.text
    assert run("gc", "--max-bytes", "1G").code == 0
    assert run("gc", "--max-bytes", "0", "--yes-really").code == 0
    assert store.store.lookup(key(0)).hit
    assert store.store.lookup(key(5)).reason == "expired"


@pytest.mark.parametrize("rule", ["--keep-days", "--keep-newest", "--max-bytes"])
def test_gc_that_would_end_more_than_half_is_1(run, store, rule):
    before = store.contents("results/")
    dry = run("gc", "--dry-run", rule, "0")
    assert dry.code == 1
    assert "would end entries: 11" in dry.text
    assert f"a run would delete nothing: 11 of 12 entries would be ended ({rule[2:].replace('-', '_')} 0" in dry.said
    assert "--yes-really" in dry.said
    ran = run("gc", rule, "0", "--save-policy")
    assert (ran.code, ran.text) == (1, dry.text)
    assert "nothing was deleted: 11 of 12 entries" in ran.said
    assert "the policy was not saved" in ran.said
    assert store.contents("results/") == before
    assert "policy.json" not in store.names()
    done = run("gc", rule, "0", "--save-policy", "--yes-really")
    assert done.code == 0
    assert "entries expired: 11" in done.text
    assert "policy.json" in store.names()


def test_gc_policies_that_are_saved(run, store):
    def saved():
        return json.loads(store.read("policy.json"))

    assert run("gc", "--keep-newest", "100", "--save-policy").code == 0
    assert saved() == {"keep_newest": 100}
    assert "policy: keep_newest 100" in run("gc", "--dry-run").text
    assert run("gc", "--keep-days", "90.5", "--max-bytes", "1G", "--save-policy").code == 0
    assert saved() == {"keep_days": 90.5, "keep_newest": 100, "max_bytes": 2**30}  # one by one, the others stay
    # For one run, or for good.
    assert "keep_newest" not in run("gc", "--keep-newest", "none").text
    assert saved()["keep_newest"] == 100
    assert run("gc", "--keep-newest", "NONE", "--max-bytes", "none", "--save-policy").code == 0
    assert saved() == {"keep_days": 90.5}
    assert run("gc", "--keep-days", "none", "--save-policy").code == 0
    assert saved() == {}
    for wrong in (("--keep-newest", "1.5"), ("--keep-days", "soon"), ("--keep-days", "")):
        assert run("gc", *wrong).code == 2
    assert run("gc", "--dry-run", "--save-policy").code == 2


def snapshot(folder):
    """Everything about a tree that writing to it changes."""
    found = {}
    for base, folders, names in os.walk(folder):
        for name in (".", *folders, *names):
            st = os.lstat(os.path.join(base, name))
            found[os.path.join(base, name)] = (st.st_ino, st.st_mode, st.st_size, st.st_mtime_ns, st.st_ctime_ns)
    return found


@pytest.mark.parametrize(
    "command",
    [("gc", "--dry-run"), ("gc", "--dry-run", "--keep-days", "0", "--yes-really"), ("verify", "--dry-run"), ("stats",)],
)
def test_dry_runs_leave_no_trace(run, disk, monkeypatch, command):
    """Not even in tmp/: no name, inode or time of the whole tree changes."""
    monkeypatch.setenv("OARBANK_CAS_STORE", str(disk.root))
    orphan = disk.store.put_bytes(b"nothing refers to this either").digest
    disk.store.close()
    os.utime(disk.path(layout.blob(orphan)), (1, 1))
    before = snapshot(disk.root)
    assert run(*command).code == 0
    assert snapshot(disk.root) == before
    # Nor through a store that is open for writing.
    with Store.open(disk.root) as store:
        opened = snapshot(disk.root)
        store.gc(Policy(keep_days=0), GcOptions(dry_run=True, yes_really=True))
        assert snapshot(disk.root) == opened


def test_a_dry_gc_of_a_store_that_may_not_be_written(disk):
    """As another user, who may only read; real permissions."""
    if os.name == "nt" or os.getuid() != 0:
        pytest.skip("needs another user")
    disk.store.close()
    for base, folders, names in os.walk(disk.root):
        for name in (*folders, *names):
            os.chmod(os.path.join(base, name), 0o555 if name in folders else 0o444)
    os.chmod(disk.root, 0o555)
    for parent in disk.root.parents:
        if not os.stat(parent).st_mode & 0o001:
            os.chmod(parent, 0o711)
    # Everything is imported before: another user may not be able to read the interpreter's own files.
    program = """
import os, sys
from oarbank_cas.cli import main
store = sys.argv[1]
def run(*arguments):
    sys.argv = ["oarbank-cas", "--store", store, *arguments]
    try:
        main()
    except SystemExit as ended:
        return ended.code
first = run("gc", "--dry-run")
os.setgid(65534)
os.setuid(65534)
print("ended", first, run("gc", "--dry-run"), run("gc"))
"""
    ran = subprocess.run(
        [sys.executable, "-c", program, str(disk.root)],
        capture_output=True,
        text=True,
        check=False,
        cwd=disk.root,
        env=os.environ | {"HOME": str(disk.root)},
    )
    assert ran.stdout.splitlines()[-1] == "ended 0 0 77", ran.stderr


def test_gc_without_roots_is_1(run, tmp_path, monkeypatch):
    made = quick(tmp_path, monkeypatch)
    made.store.put_bytes(b"x")
    ran = run("gc")
    assert ran.code == 1
    assert "--allow-no-roots" in ran.said
    assert run("gc", "--allow-no-roots").code == 0
    made.store.close()


def test_gc_of_more_than_half_is_1(run, tmp_path, monkeypatch):
    made = quick(tmp_path, monkeypatch)
    record(made.store, 1)
    for number in range(9):
        made.store.put_bytes(b"%d" % number)
    import time

    time.sleep(1.2)
    ran = run("gc")
    assert ran.code == 1
    assert "--yes-really" in ran.said
    assert run("gc", "--yes-really").code == 0
    made.store.close()


def test_gc_that_cannot_read_something_is_65(run, store):
    store.write(store.entry(3), b"")
    before = store.names("blobs/")
    ran = run("gc")
    assert ran.code == 65
    assert store.entry(3) in ran.said
    assert "nothing was deleted" in ran.said
    assert store.names("blobs/") == before
    assert run("--json", "gc").json["doubts"]


def test_a_second_gc_is_75(run, store):
    # A living process on this machine says that it is at it.
    import socket

    told = json.dumps({"by": "ann", "host": socket.gethostname(), "pid": os.getppid()}).encode()
    store.write("gc/running/0123", told)
    ran = run("gc")
    assert ran.code == 75
    assert "--anyway" in ran.said
    assert run("--json", "gc").json["kind"] == "BusyError"
    assert run("gc", "--anyway").code == 0


# -- verify


def test_verify(run, store, backup):
    ran = run("verify")
    assert ran.code == 0
    assert f"nothing is wrong with {store.root}" in ran.text
    store.flip(layout.blob(store.blob()))
    store.remove(layout.blob(store.blob(4)))
    dry = run("verify", "--dry-run")
    assert dry.code == 1
    assert [line.split()[:3] for line in dry.text.splitlines()[:2]] == [
        ["damaged", "-", layout.blob(store.blob())],
        ["missing", "-", layout.blob(store.blob(4))],
    ] or dry.text.splitlines()[0].startswith("missing")
    assert "problems: 2; healed: 0; left: 2" in dry.text
    document = run("--json", "verify", "--dry-run").json
    assert (document["problem_count"], document["sound"], document["healed"]) == (2, False, 0)
    assert run("verify").code == 1
    assert run("verify", "--repair").code in (0, 1)
    assert run("verify", "--repair", "--from", backup.root).code == 0
    assert run("verify").code == 0
    store.check_whole()


def test_verify_samples_say_which(run, store):
    ran = run("verify", "--sample", "10%", "--seed", "abc")
    assert "(10 %, seed abc)" in ran.text
    document = run("--json", "verify", "--sample", "10").json
    assert document["sample"] == 10
    assert document["seed"] == document["started"][:10]


def test_verify_resumes(run, store):
    assert run("verify", "--resume", "state").code == 0
    assert not os.path.exists("state")
    assert run("verify", "--resume", "no/folder").code == 73


def test_verify_lists_orphans(run, store):
    store.store.pins.unpin("a-blob")
    assert run("verify").text.count(store.orphan) == 0
    ran = run("verify", "--orphans")
    assert ran.code == 0
    assert ran.text.count(store.orphan) == 1


def test_verify_from_no_store_is_69(run, store):
    assert run("verify", "--repair", "--from", "nowhere").code == 69


# -- stats


def test_stats(run, store):
    ran = run("stats")
    assert ran.code == 0
    for word in ("blobs by size", "blobs by age", "modules", "module1", "a gc now", "ratio 1.0"):
        assert word in ran.text
    assert all(line == line.rstrip() for line in ran.text.splitlines())
    document = run("--json", "stats").json
    assert document["blobs"]["count"] == len(store.names("blobs/"))
    assert document["gc"] is not None
    assert run("--json", "stats", "--no-gc").json["gc"] is None


def test_stats_page(run, store):
    assert run("stats", "--html", "page.html").code == 0
    with open("page.html", encoding="utf-8") as file:
        assert file.read().startswith("<!doctype html>")
    assert os.listdir(".") == ["page.html"]
    assert run("stats", "--html", "no/such/folder.html").code == 73
    os.mkdir("folder")
    assert run("stats", "--html", "folder").code == 73
    assert sorted(os.listdir(".")) == ["folder", "page.html"]


def test_stats_in_a_plain_locale(store):
    environment = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONIOENCODING": "ascii"}
    command = [sys.executable, "-m", "oarbank_cas", "--store", str(store.root), "stats"]
    ran = subprocess.run(command, capture_output=True, env=environment, timeout=60, check=False)
    assert (ran.returncode, ran.stderr) == (0, b"")
    assert "█" in ran.stdout.decode()


@pytest.mark.parametrize("command", [("stats",), ("pins",), ("gc", "--dry-run"), ("verify",)], ids=" ".join)
def test_on_a_terminal(store, command):
    """Tables with heads, and colours unless they are not wanted."""
    leader, follower = pty.openpty()
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "100"}
    child = subprocess.Popen(
        [sys.executable, "-m", "oarbank_cas", "--store", str(store.root), *command],
        stdout=follower,
        stderr=subprocess.DEVNULL,
        stdin=subprocess.DEVNULL,
        env=environment,
    )
    os.close(follower)
    shown = b""
    while True:
        try:
            more = os.read(leader, 65536)
        except OSError:
            break
        if not more:
            break
        shown += more
    os.close(leader)
    assert child.wait(60) == 0
    assert b"\x1b[" in shown or command == ("verify",)
    assert b"Traceback" not in shown


# -- copy


def test_copy(run, store, tmp_path):
    target = disk_store(tmp_path / "target")
    dry = run("copy", "--to", target.root, "--all", "--dry-run")
    assert dry.code == 0
    assert target.names("blobs/") == []
    ran = run("copy", "--to", target.root, "--all")
    assert ran.code == 0
    assert "entries: 12 copied, 0 there" in ran.text
    assert dry.text.replace("would be copied", "copied") == ran.text
    again = run("--json", "copy", "--from", store.root, "--to", target.root, "--all").json
    assert again["counts"]["entries_there"] == 12
    assert again["problem_count"] == 0
    target.jobs = store.jobs
    target.check_whole()
    target.store.close()


def test_copying_what_is_not_there_or_differs_is_1(run, store, tmp_path):
    target = disk_store(tmp_path / "target")
    assert run("copy", "--to", target.root, key(77)).code == 1
    target.store.put_bytes(b"theirs")
    target.store.record(key(3), envelope({"a": b"theirs"}), Origin("them"))
    ran = run("copy", "--to", target.root, key(3), key(4))
    assert ran.code == 1
    assert ran.text.startswith(f"differs  {store.entry(3)}")
    assert target.store.lookup(key(4)).hit
    target.store.close()


def test_copy_reads_only_at_the_source(run, store, backup):
    name = layout.blob(store.blob())
    store.flip(name)
    backup.remove(name)
    assert run("copy", "--from", store.root, "--to", backup.root, f"blob:{store.blob()}").code == 1
    assert name in store.names()
    assert store.names("damaged/") == []


# -- purge


def test_purge(run, store):
    digest = store.blob()
    ran = run("purge", digest, "--reason", "a password", "--by", "ann", "--yes")
    assert ran.code == 0
    assert f"removed  {layout.blob(digest)}" in ran.text
    assert f"referred to by  {store.entry(3)}" in ran.text
    assert run("lookup", key(3)).code == 1
    again = run("--json", "purge", digest, "--reason", "a password", "--yes")
    assert (again.code, again.json["deleted"]) == (0, [])
    audits = [json.loads(store.read(name)) for name in store.names("gc/purges/")]
    assert {each["by"] for each in audits} >= {"ann"}


def test_purging_a_dataset_says_what_to_do(run, store):
    ran = run("purge", store.dataset(3).removeprefix("art:"), "--reason", "x", "--yes")
    assert ran.code == 0
    assert "invalidate" in ran.said
    assert run("gc").code == 0 or "invalidate" in ran.said
    assert run("invalidate", key(3), "--reason", "purged").code == 0
    assert run("gc").code == 0


@pytest.mark.parametrize(("answer", "code"), [(b"n\n", 130), (b"y\n", 0)])
def test_purge_asks_on_a_terminal(store, answer, code):
    leader, follower = pty.openpty()
    child = subprocess.Popen(
        [sys.executable, "-m", "oarbank_cas", "--store", str(store.root), "purge", store.blob(), "--reason", "x"],
        stdin=follower,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    os.close(follower)
    os.write(leader, answer)
    out, err = child.communicate(timeout=60)
    os.close(leader)
    assert child.returncode == code, (out, err)
    assert store.store.has(store.blob()) == (code != 0)


# -- all of them


@pytest.mark.parametrize("command", ["gc", "verify", "stats", "copy", "purge", "pin", "unpin", "pins"])
def test_help(run, command):
    ran = run(command, "--help")
    assert ran.code == 0
    assert "Example" in ran.text
    assert all(len(line) <= 100 for line in ran.text.splitlines())


def test_a_full_output_is_74(store):
    if not os.path.exists("/dev/full"):
        pytest.skip("no /dev/full")
    with open("/dev/full", "wb") as full:
        for command in (["stats"], ["verify"], ["pins"]):
            ran = subprocess.run(
                [sys.executable, "-m", "oarbank_cas", "--store", str(store.root), *command],
                stdout=full,
                stderr=subprocess.PIPE,
                timeout=60,
                check=False,
            )
            assert ran.returncode == 74, ran.stderr
    assert digest_of(b"") in digest_of(b"")
