import io
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

# The helpers of the agent side's tests are imported by name.
sys.path.append(str(Path(__file__).parent.parent / "agent"))

from agent_kit import write_job

from oarbank_cas import Store
from oarbank_cas.cli import main


@dataclass
class Ran:
    code: int
    out: bytes
    err: bytes

    @property
    def text(self):
        return self.out.decode()

    @property
    def said(self):
        return self.err.decode()

    @property
    def json(self):
        assert self.out.endswith(b"\n")
        return json.loads(self.out)

    @property
    def lines(self):
        return [json.loads(line) for line in self.out.splitlines()]


@pytest.fixture(autouse=True)
def _a_folder_of_its_own(alone):
    """For every command."""


@pytest.fixture
def run():
    """The command line in this process."""

    def call(*arguments, stdin=b""):
        with pytest.MonkeyPatch.context() as patch:
            out = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True)
            err = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", errors="backslashreplace", write_through=True)
            patch.setattr(sys, "argv", ["oarbank-cas", *map(str, arguments)])
            patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin), encoding="utf-8"))
            patch.setattr(sys, "stdout", out)
            patch.setattr(sys, "stderr", err)
            with pytest.raises(SystemExit) as ended:
                main()
            assert type(ended.value.code) is int
            return Ran(ended.value.code, out.buffer.getvalue(), err.buffer.getvalue())

    return call


@pytest.fixture
def spawn():
    """The command line in a process of its own."""

    def call(*arguments, stdin=b"", **settings):
        ran = subprocess.run(
            [sys.executable, "-m", "oarbank_cas", *map(os.fspath, arguments)],
            input=stdin,
            capture_output=True,
            timeout=120,
            check=False,
            **settings,
        )
        return Ran(ran.returncode, ran.stdout, ran.stderr)

    return call


@pytest.fixture
def store(tmp_path, monkeypatch):
    """A store on disk, named by the environment; its folder."""
    Store.init(tmp_path / "store")[0].close()
    monkeypatch.setenv("OARBANK_CAS_STORE", str(tmp_path / "store"))
    return tmp_path / "store"


@pytest.fixture
def workdir(tmp_path):
    """The work directory of a finished job."""
    write_job(tmp_path / "w", {"a.txt": b"alpha", "deep/b": b"", "c": b"c"})
    return tmp_path / "w"
