"""What shells complete, by the files that come with the package; and the command under its other names."""

import importlib.metadata
import os
import shutil
import subprocess
import sys
import sysconfig
import time
from pathlib import Path

import click
import pytest

from oarbank_cas.cli import completing
from oarbank_cas.cli.app import cli

FOLDER = Path(__file__).parent.parent.parent / "completions"
SCRIPTS = sysconfig.get_path("scripts")
FILES = {"bash": "oarbank-cas.bash", "zsh": "_oarbank-cas", "fish": "oarbank-cas.fish"}
MADE_BY = "8.5"
"""The release of click that made the files: `_OARBANK_CAS_COMPLETE=bash_source oarbank-cas`, and likewise."""


def shell(name):
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed")
    return found


@pytest.fixture(autouse=True)
def _files(monkeypatch):
    """Something to complete, where commands run; and the command on the path."""
    Path("folder").mkdir()
    Path("letters.json").touch()
    monkeypatch.setenv("PATH", SCRIPTS + os.pathsep + os.environ["PATH"])


@pytest.mark.parametrize("name", FILES)
def test_the_files_are_what_click_makes(name, spawn):
    release = importlib.metadata.version("click")
    if not release.startswith(f"{MADE_BY}."):
        pytest.skip(f"click {MADE_BY} made them, and this is {release}")
    shell("bash")  # of which click asks the version
    command = shutil.which("oarbank-cas")
    ran = subprocess.run([command], env=os.environ | {"_OARBANK_CAS_COMPLETE": f"{name}_source"}, capture_output=True)
    assert (ran.returncode, ran.stdout.decode()) == (0, (FOLDER / FILES[name]).read_text())


CASES = [
    ("oarbank-cas loo", "oarbank-cas lookup "),
    ("oarbank-cas attempt decl", "oarbank-cas attempt declare "),
    ("oarbank-cas stage --plac", "oarbank-cas stage --placement "),
    ("oarbank-cas stage --placement hard", "oarbank-cas stage --placement hardlink "),
    ("oarbank-cas put let", "oarbank-cas put letters.json "),
    ("oarbank-cas key --module a.b --compat 1 let", "oarbank-cas key --module a.b --compat 1 letters.json "),
    ("oarbank-cas stage letters.json --workdir fol", "oarbank-cas stage letters.json --workdir folder/"),
    ("oarbank-cas --store fol", "oarbank-cas --store folder/"),
]


def typed(command, settings, line, wanted):
    """What a line in an interactive shell has become after a tab; whether that is what was wanted."""
    pty = pytest.importorskip("pty", reason="there are no terminals here")
    pid, fd = pty.fork()
    if not pid:
        os.execvpe(command[0], command, os.environ | {"TERM": "dumb", "PS1": "READY> "})
    os.set_blocking(fd, False)
    seen = b""

    def until(text, seconds=20):
        nonlocal seen
        end = time.monotonic() + seconds
        while text not in seen and time.monotonic() < end:
            try:
                seen += os.read(fd, 65536)
            except BlockingIOError:
                time.sleep(0.02)
        return text in seen

    try:
        os.write(fd, f"{settings}; PS1='SET''UP> '\n".encode())
        assert until(b"SETUP> "), seen
        seen = b""
        os.write(fd, f"{line}\t".encode())
        return until(wanted.encode()), seen
    finally:
        os.close(fd)
        os.kill(pid, 9)
        os.waitpid(pid, 0)


@pytest.mark.parametrize(("line", "wanted"), CASES)
def test_bash(line, wanted):
    settings = f"source {FOLDER}/oarbank-cas.bash"
    found, seen = typed([shell("bash"), "--norc", "--noprofile", "-i"], settings, line, wanted)
    assert found, seen


@pytest.mark.parametrize(("line", "wanted"), CASES)
def test_zsh(line, wanted):
    settings = f"fpath=({FOLDER} $fpath); autoload -Uz compinit; compinit -u -D; unsetopt prompt_sp zle_bracketed_paste"
    found, seen = typed([shell("zsh"), "-f", "-i", "-V"], settings, line, wanted.rstrip())
    assert found, seen


@pytest.mark.parametrize(("line", "wanted"), CASES)
def test_fish(line, wanted, tmp_path):
    program = f"source {FOLDER}/oarbank-cas.fish; complete -C {line!r}"
    ran = subprocess.run([shell("fish"), "--no-config", "-c", program], capture_output=True, text=True, timeout=60)
    assert wanted.split()[-1] in [each.partition("\t")[0] for each in ran.stdout.splitlines()]


def test_completing_imports_nothing_heavy():
    program = (
        "import sys\nfrom oarbank_cas.cli import main\ntry: main()\n"
        "finally: sys.stderr.write(' '.join(sorted({'boto3', 'pydantic', 'fsspec', 'rich'} & set(sys.modules))))"
    )
    settings = {"_OARBANK_CAS_COMPLETE": "bash_complete", "COMP_WORDS": "oarbank-cas ", "COMP_CWORD": "1"}
    ran = subprocess.run([sys.executable, "-c", program], env=os.environ | settings, capture_output=True, text=True)
    assert "plain,lookup" in ran.stdout.splitlines()
    assert ran.stderr == ""


def parameters(command, path=()):
    for param in command.params:
        yield path, param
    if isinstance(command, click.Group):
        for name in command.list_commands(click.Context(command)):
            yield from parameters(command.get_command(click.Context(command), name), (*path, name))


def test_every_parameter_that_names_a_path_is_completed_as_one():
    named = [(path, param) for path, param in parameters(cli) if isinstance(param.type, completing._Named)]
    assert len(named) > 20
    names = {"config", "cache", "workdir", "output", "out", "directory", "paths", "grants", "html", "envelope"}
    opened = {(" ".join(path), param.name) for path, param in parameters(cli) if param.name in names}
    assert opened <= {(" ".join(path), param.name) for path, param in named}


def test_the_module_is_the_command_under_the_same_name(spawn):
    command = shutil.which("oarbank-cas")
    for arguments in (["--help"], ["lookup", "--help"], ["--version"], ["nonsense"], ["lookup"], []):
        ran = subprocess.run([command, *arguments], capture_output=True)
        module = spawn(*arguments)
        assert (module.code, module.out, module.err) == (ran.returncode, ran.stdout, ran.stderr)
        assert b"python" not in module.out + module.err
        assert b"oarbank-cas" in module.out + module.err
