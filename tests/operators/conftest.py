import io
import json
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

# The helpers beside this file are imported by name.
sys.path.append(str(Path(__file__).parent))

from operators_kit import Filled, disk_store, memory_store

from oarbank_cas import Store
from oarbank_cas.cli import main


@pytest.fixture(scope="session")
def template(tmp_path_factory):
    """A store with a dozen results, made once."""
    made = disk_store(tmp_path_factory.mktemp("template") / "store").fill()
    made.store.close()
    return made


def copy_of(template, folder):
    shutil.copytree(template.root, folder)
    return Filled(Store.open(folder), folder, list(template.jobs), template.orphan)


@pytest.fixture(params=["disk", "memory", "bucket"])
def filled(request, tmp_path, template):
    """A store with a dozen results, on disk, in memory, and in memory that cannot rename."""
    if request.param == "disk":
        made = copy_of(template, tmp_path / "store")
    else:
        made = Filled(memory_store(atomic_move=request.param == "memory"), None).fill()
    yield made
    made.store.close()


@pytest.fixture
def disk(tmp_path, template):
    """The same on disk."""
    made = copy_of(template, tmp_path / "store")
    yield made
    made.store.close()


@pytest.fixture
def other(tmp_path):
    """An empty store on disk."""
    made = disk_store(tmp_path / "other")
    yield made
    made.store.close()


@pytest.fixture
def mirror(filled, tmp_path, template):
    """A store on disk that has everything that `filled` has."""
    made = copy_of(template, tmp_path / "mirror")
    yield made
    made.store.close()


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


@pytest.fixture
def run(tmp_path, monkeypatch):
    """The command line in this process, in an empty folder."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("HOME", str(tmp_path / "here"))
    monkeypatch.delenv("OARBANK_CAS_STORE", raising=False)

    def call(*arguments):
        with pytest.MonkeyPatch.context() as patch:
            out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True) for _ in range(2))
            patch.setattr(sys, "argv", ["oarbank-cas", *map(str, arguments)])
            patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b""), encoding="utf-8"))
            patch.setattr(sys, "stdout", out)
            patch.setattr(sys, "stderr", err)
            with pytest.raises(SystemExit) as ended:
                main()
            assert "Traceback" not in err.buffer.getvalue().decode()
            return Ran(ended.value.code, out.buffer.getvalue(), err.buffer.getvalue())

    return call
