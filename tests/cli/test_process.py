"""What only a real process shows: streams, signals, terminals, imports, users, limits."""

import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from agent_kit import digest, files_in, key, result, spec, write_files, write_job

from oarbank_cas import Origin, Store

COMMAND = [sys.executable, "-m", "oarbank_cas"]
root = pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="needs root")
posix = pytest.mark.skipif(os.name == "nt", reason="POSIX only")


def test_a_whole_job(spawn, tmp_path, workdir):
    """What an agent, a coordinator and the next stage do, each in a process of its own."""
    assert spawn("--store", tmp_path / "s", "init").code == 0
    env = os.environ | {"OARBANK_CAS_STORE": str(tmp_path / "s")}
    write_files(".", {"in.json": b'{"seed": 1}'})
    job = spawn("key", "--module", "org.example.align", "--compat", "1", "in.json").text.strip()
    assert spawn("lookup", job, env=env).code == 1
    handed = spawn("publish", "--upload-only", "--workdir", workdir, env=env)
    assert handed.code == 0
    recorded = spawn("--json", "record", "--job-key", job, "-", stdin=handed.out, env=env)
    assert recorded.json["recorded"]
    found = spawn("lookup", job, env=env)
    assert (found.code, found.out) == (0, handed.out)
    write_files(".", {"spec.json": spec({"reads": (recorded.json["datasets"]["out"], "in")})})
    Path("w2").mkdir()
    assert spawn("stage", "spec.json", "--workdir", "w2", env=env).code == 0
    assert files_in("w2/in") == {"a.txt": b"alpha", "deep/b": b"", "c": b"c"}
    assert spawn("fetch", job, "-o", "mine", env=env).code == 0
    assert spawn("invalidate", job, "--reason", "test", env=env).code == 0
    assert spawn("lookup", job, env=env).code == 1
    assert [name for name in os.listdir(tmp_path / "s/tmp") if name != "locks"] == []


# -- imports

HEAVY = ("boto3", "botocore", "s3fs", "aiohttp", "fsspec", "obstore", "pydantic", "rich", "asyncio")


@pytest.mark.parametrize("arguments", [("--help",), ("lookup", "--help"), ("--version",)])
def test_help_imports_nothing_heavy(arguments):
    program = (
        "import sys\nfrom oarbank_cas.cli import main\n"
        f"sys.argv = ['oarbank-cas', *{arguments!r}]\n"
        f"try: main()\nfinally: sys.stderr.write(' '.join(sorted(set({HEAVY!r}) & set(sys.modules))))"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ran.stderr == ""


def test_the_package_imports_nothing_heavy():
    program = f"import sys, oarbank_cas\nprint(sorted(set({HEAVY!r}) & set(sys.modules)))"
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ran.stdout == "[]\n"


def test_a_lookup_builds_no_model(store, workdir):
    with Store.open(store) as opened:
        opened.record(key(), json.dumps(result()).encode(), Origin("me"))
    program = (
        "import sys\nfrom oarbank_cas.cli import main\n"
        f"sys.argv = ['oarbank-cas', 'lookup', {key()!r}]\n"
        "try: main()\nfinally: sys.stderr.write(str('pydantic' in sys.modules))"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ran.stderr == "False"


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_shell_completion(spawn, shell):
    if shell == "bash" and shutil.which("bash") is None:
        pytest.skip("no bash here")
    ran = spawn(env=os.environ | {"_OARBANK_CAS_COMPLETE": f"{shell}_source"})
    assert ran.code == 0
    assert "_OARBANK_CAS_COMPLETE" in ran.text
    words = {"COMP_WORDS": "oarbank-cas l", "COMP_CWORD": "1" if shell != "fish" else "l"}
    ran = spawn(env=os.environ | words | {"_OARBANK_CAS_COMPLETE": f"{shell}_complete"})
    assert ran.code == 0
    assert "lookup" in ran.text
    assert "ls" in ran.text


# -- streams


@posix
@pytest.mark.parametrize(
    "arguments", [("ls", "blobs"), ("--json", "ls", "blobs"), ("--help",), ("get", "BIG"), ("ls", "--help")]
)
def test_a_closed_pipe_is_no_miss(store, arguments):
    with Store.open(store) as opened:
        big = opened.put_bytes(bytes(2**20)).digest
        for number in range(3):
            opened.put_bytes(b"%d" % number)
    arguments = [big if each == "BIG" else each for each in arguments]
    reading, writing = os.pipe()
    os.close(reading)
    with subprocess.Popen([*COMMAND, *arguments], stdout=writing, stderr=subprocess.PIPE) as child:
        os.close(writing)
        said = child.communicate(timeout=60)[1]
    assert child.returncode == 141
    assert said == b""


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
@pytest.mark.parametrize(
    "arguments", [("lookup", key()), ("ls",), ("--json", "ls"), ("get", digest(b"alpha")), ("--help",), ("schema",)]
)
def test_an_output_that_is_full(store, workdir, arguments):
    with Store.open(store) as opened:
        opened.publish(key(), workdir, Origin("me"))
    with open("/dev/full", "wb") as full:
        ran = subprocess.run([*COMMAND, *arguments], stdout=full, stderr=subprocess.PIPE, check=False, timeout=60)
    assert ran.returncode == 74
    assert ran.stderr == b"oarbank-cas: output: No space left on device\n"


@posix
@pytest.mark.parametrize("closed", ["0<&-", "1>&-", "2>&-", "0<&- 1>&- 2>&-"])
def test_closed_streams(store, closed):
    write_files(".", {"file": b"file"})
    line = f"exec {' '.join(COMMAND)} put file {closed}"
    ran = subprocess.run(["sh", "-c", line], capture_output=True, check=False, timeout=60)
    assert ran.returncode == 0
    with Store.open(store) as opened:
        assert opened.get_bytes(digest(b"file")) == b"file"
    if "1" not in closed:
        assert ran.stdout == f"{digest(b'file')}  4  file\n".encode()


@posix
def test_a_closed_stderr_does_not_change_the_answer(store):
    line = f"exec {' '.join(COMMAND)} lookup {key()} 2>&-"
    assert subprocess.run(["sh", "-c", line], capture_output=True, check=False, timeout=60).returncode == 1


def interruptible():
    # Programs that a shell starts in the background ignore interrupts, and so do their children.
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@posix
def test_an_interrupt(store):
    with subprocess.Popen(
        [*COMMAND, "--json", "put", "-"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        preexec_fn=interruptible,
    ) as child:
        child.stdin.write(bytes(20 * 2**20))  # more than a pipe holds: it is being read
        child.stdin.flush()
        child.send_signal(signal.SIGINT)
        out, said = child.communicate(timeout=60)
    assert child.returncode == 130
    assert b"interrupted" in said
    assert b"Traceback" not in said
    assert json.loads(out)["exit_code"] == 130
    assert not (store / "blobs").exists() or files_in(store / "blobs") == {}
    assert [name for name in os.listdir(store / "tmp") if name != "locks"] == []


@posix
@pytest.mark.parametrize("locale", ["C", "POSIX", "C.UTF-8"])
def test_names_that_are_no_text(spawn, store, tmp_path, locale):
    env = os.environ | {"LC_ALL": locale, "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    odd = b"na\xffme \xc3\xa9\n"
    folder = os.fsencode(tmp_path) + b"/w\xfe"
    try:
        os.mkdir(folder)
        with open(folder + b"/" + odd, "wb") as file:
            file.write(b"odd")
    except OSError:
        pytest.skip("this file system takes no such names")
    path = os.fsdecode(folder + b"/" + odd)
    ran = spawn("put", path, env=env)
    assert ran.code == 0, ran
    assert len(ran.out.splitlines()) == 1
    assert ran.out.startswith(f"{digest(b'odd')}  3  ".encode())
    ran = spawn("--json", "put", path, env=env)
    assert os.fsencode(ran.json["blobs"][0]["path"]) == os.fsencode(path)
    for arguments in (("put", path + "x"), ("get", path, "-o", "x"), ("stat", path), ("lookup", path), ("fetch", path)):
        ran = spawn("--json", *arguments, env=env)
        assert ran.code == 65, ran
        assert b"Traceback" not in ran.err
        assert ran.json["exit_code"] == 65
    ran = spawn("get", digest(b"odd"), "-o", path + "2", env=env)
    assert ran.code == 0
    job = os.fsdecode(folder) + "/job"
    write_job(job, {"x": b"x"})
    ran = spawn("--json", "publish", "--job-key", key(), "--workdir", job, "--by", "m\udcffe", env=env)
    assert ran.code == 0, ran
    assert spawn("ls", env=env).code == 0
    assert rb"m\udcffe" in spawn("ls", env=env).out
    assert spawn("--json", "ls", env=env).json["entries"][0]["by"] == "m\udcffe"
    assert spawn("lookup", key(), "--class", "\udcff", env=env).code == 65
    assert spawn("nonsense\udcff", env=env).code == 2


@posix
def test_bytes_on_stdout_are_as_they_are_in_any_locale(spawn, store, tmp_path):
    data = json.dumps(result(note="\u00e9\u4e2d"), ensure_ascii=False).encode()
    write_job(tmp_path / "w", {}, data)
    env = os.environ | {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONIOENCODING": "ascii"}
    assert spawn("publish", "--job-key", key(), "--workdir", tmp_path / "w", "--by", "\u00e9", env=env).code == 0
    assert spawn("lookup", key(), env=env).out == data
    ran = spawn("ls", env=env)
    assert ran.code == 0
    assert spawn("--json", "lookup", key(), env=env).json["envelope"].encode() == data


# -- terminals


@posix
@pytest.mark.parametrize(("quiet", "seen"), [((), True), (("-q",), False), (("--json",), False)])
def test_progress_is_for_terminals(store, tmp_path, quiet, seen):
    pty = pytest.importorskip("pty")
    write_job(tmp_path / "w", {f"f{number}": b"%d" % number for number in range(100)})
    primary, secondary = pty.openpty()
    env = os.environ | {"TERM": "xterm", "COLUMNS": "100"}
    arguments = [*COMMAND, *quiet, "publish", "--job-key", key(), "--workdir", tmp_path / "w"]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=secondary, env=env) as child:
        os.close(secondary)
        shown = b""
        while True:
            try:
                more = os.read(primary, 65536)
            except OSError:  # the other end is closed
                break
            if not more:
                break
            shown += more
        out = child.stdout.read()
    os.close(primary)
    assert child.returncode == 0
    assert (b"\x1b[" in shown) == seen
    assert (b"publish" in shown) == seen
    assert b"\x1b" not in out
    if "--json" in quiet:
        assert json.loads(out)["recorded"]
        assert shown == b""


def test_no_progress_elsewhere(spawn, store, workdir):
    ran = spawn("publish", "--job-key", key(), "--workdir", workdir)
    assert b"\x1b" not in ran.out + ran.err
    assert ran.err == b"3 files, 6 bytes; new: 3 files, 6 bytes\n"


# -- users and limits

# Everything is imported first: another user may not be able to read where Python is.
AS_NOBODY = """
import difflib, getpass, importlib, os, pwd, stringprep
from oarbank_cas.cli.app import _HOMES, main
for name in ("store", "contracts.envelopes", "agent.placing", *(f"cli.{home}" for home in _HOMES.values())):
    importlib.import_module(f"oarbank_cas.{name}")
os.setgroups([])
os.setgid(65534)
os.setuid(65534)
main()
"""


def as_nobody(*arguments):
    return subprocess.run(
        [sys.executable, "-c", AS_NOBODY, *map(str, arguments)], capture_output=True, check=False, timeout=60
    )


@pytest.fixture
def public(monkeypatch):
    """A folder that another user can reach."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        monkeypatch.chdir(folder)
        yield Path(folder)


@root
def test_another_user(public, workdir):
    with Store.init("store")[0] as opened:
        opened.publish(key(), workdir, Origin("me"))
    ran = as_nobody("--store", "store", "lookup", key())
    assert ran.returncode == 0  # reading needs no right to write
    assert json.loads(ran.stdout)
    assert as_nobody("--store", "store", "ls").returncode == 0
    assert as_nobody("--store", "store", "stat", digest(b"alpha")).returncode == 0
    assert as_nobody("--store", "store", "get", digest(b"alpha")).stdout == b"alpha"
    Path("file").write_bytes(b"new")
    ran = as_nobody("--store", "store", "put", "file")
    assert ran.returncode == 77
    assert b"Permission denied" in ran.stderr
    ran = as_nobody("--store", "store", "get", digest(b"alpha"), "-o", "back")
    assert ran.returncode == 73, ran.stderr.decode()
    assert as_nobody("--store", "new", "init").returncode == 77
    assert as_nobody("--store", "store", "invalidate", key(), "--reason", "x").returncode == 77
    Path("store/results").chmod(0o700)
    assert as_nobody("--store", "store", "lookup", key()).returncode == 77  # and no miss
    Path("store").chmod(0o700)
    ran = as_nobody("--store", "store", "lookup", key())
    assert ran.returncode == 77
    assert b"Permission denied" in ran.stderr
    assert sorted(os.listdir(".")) == ["file", "store"]


def limited(limit):
    def apply():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

    return apply


@posix
def test_files_may_not_grow(spawn, store, tmp_path):
    write_job(tmp_path / "w", {"small": b"1", "big": bytes(200_000)})
    ran = spawn("publish", "--job-key", key(), "--workdir", tmp_path / "w", preexec_fn=limited(100_000))
    assert ran.code == 74, ran
    assert b"Traceback" not in ran.err
    assert spawn("lookup", key()).code == 1
    with Store.open(store) as opened:
        digest_of_big = opened.put_bytes(bytes(200_000)).digest
    ran = spawn("get", digest_of_big, "-o", "back", preexec_fn=limited(100_000))
    assert ran.code == 74, ran
    assert os.listdir(".") == []


@pytest.fixture
def small_disk(tmp_path):
    """A file system of its own, with little space."""
    place = tmp_path / "disk"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", place], capture_output=True, check=False
    )
    if mounted.returncode != 0:
        pytest.skip("nothing can be mounted here")
    yield place
    subprocess.run(["umount", place], check=True)


@root
@pytest.mark.skipif(sys.platform != "linux", reason="a mount as on Linux")
def test_a_full_disk(spawn, small_disk, tmp_path):
    url = small_disk / "store"
    assert spawn("--store", url, "init").code == 0
    write_job(tmp_path / "w", {"small": b"1", "big": os.urandom(3 * 2**20)})
    ran = spawn("--store", url, "publish", "--job-key", key(), "--workdir", tmp_path / "w")
    assert ran.code == 74
    assert b"No space left on device; free some space" in ran.err
    assert spawn("--store", url, "lookup", key()).code == 1
    assert [name for name in os.listdir(url / "tmp") if name != "locks"] == []
    # And where the store has room but the target has none.
    Store.init(tmp_path / "store")[0].close()
    ran = spawn("--store", tmp_path / "store", "--json", "publish", "--job-key", key(), "--workdir", tmp_path / "w")
    dataset = ran.json["datasets"]["out"]
    (small_disk / "w2").mkdir()
    write_files(".", {"spec.json": spec({"a": (dataset, "in")})})
    big = digest((tmp_path / "w/big").read_bytes())
    for arguments in (
        ("stage", "spec.json", "--workdir", small_disk / "w2"),
        ("fetch", dataset, "-o", small_disk / "w2"),
        ("get", big, "-o", small_disk / "w2/back"),
    ):
        ran = spawn("--store", tmp_path / "store", *arguments)
        assert ran.code == 74, ran
        assert b"No space left" in ran.err
        assert {path for path in files_in(small_disk / "w2") if path != "small"} == set()


@posix
def test_an_interrupted_batch_does_not_run_to_its_end(store, tmp_path):
    """What had not begun when the interrupt came is not done, and nothing of the batch is visible."""
    write_job(tmp_path / "w", {f"f{number}": b"%d" % number for number in range(3000)})
    with subprocess.Popen(
        [*COMMAND, "publish", "--job-key", key(), "--workdir", tmp_path / "w"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        preexec_fn=interruptible,
    ) as child:
        while child.poll() is None and len(list((store / "tmp").glob("*/*"))) < 50:
            time.sleep(0.001)
        child.send_signal(signal.SIGINT)
        _, said = child.communicate(timeout=60)
    # It may just have ended by itself; half a job is what must not be.
    assert child.returncode in (0, 130)
    assert b"Traceback" not in said
    with Store.open(store) as opened:
        assert opened.lookup(key()).hit == (child.returncode == 0)
    assert [name for name in os.listdir(store / "tmp") if name != "locks"] == []


# -- input that comes slowly, or not at all


@posix
def test_a_pause_in_stdin_is_not_its_end(store):
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    with subprocess.Popen([*COMMAND, "put", "-"], stdin=reading, stdout=subprocess.PIPE) as child:
        os.close(reading)
        for piece in (b"a" * 10, b"b" * 10):
            os.write(writing, piece)
            time.sleep(0.3)  # long enough for a reader that takes a pause for the end; too short hides it, no more
        os.close(writing)
        said = child.communicate(timeout=60)[0]
    assert said.split() == [digest(b"a" * 10 + b"b" * 10).encode(), b"20", b"-"]


@posix
@pytest.mark.parametrize(
    "command", ["put -", f"record --job-key {key()} -", "lookup -", "key --module a.b --compat 1 -"]
)
def test_a_closed_stdin_is_not_empty(store, command):
    line = f"exec {' '.join(COMMAND)} {command} 0<&-"
    ran = subprocess.run(["sh", "-c", line], capture_output=True, check=False, timeout=60)
    assert ran.returncode == 65
    assert b"stdin: is closed" in ran.stderr


@posix
def test_a_pipe_is_read_where_a_document_is_named(store, tmp_path):
    line = f"exec {' '.join(COMMAND)} key --module a.b --compat 1 /dev/fd/3 3<<END\n{{}}\nEND"
    ran = subprocess.run(["sh", "-c", line], capture_output=True, check=False, timeout=60)
    assert (ran.returncode, len(ran.stdout)) == (0, 65), ran.stderr


@posix
def test_a_pipe_in_the_place_of_the_configuration_is_refused_at_once(store):
    os.mkfifo("oarbank-cas.toml")
    environment = {name: value for name, value in os.environ.items() if name != "OARBANK_CAS_STORE"}
    ran = subprocess.run([*COMMAND, "ls"], capture_output=True, check=False, timeout=60, env=environment)
    assert ran.returncode == 65
    assert b"oarbank-cas.toml: is a pipe" in ran.stderr


def test_an_empty_store_option_is_a_variable_that_is_not_set(store):
    ran = subprocess.run([*COMMAND, "--store", "", "ls"], capture_output=True, check=False, timeout=60)
    assert ran.returncode == 65
    assert b"--store: is empty" in ran.stderr


@pytest.mark.parametrize("value", ["0", "-1", "nan", "inf", "soon"])
def test_a_deadline_is_a_number_of_seconds(spawn, value):
    ran = spawn("--deadline-s", value, "schema", "result")
    assert ran.code == 2
    assert b"deadline" in ran.err
