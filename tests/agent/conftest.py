import sys
from pathlib import Path

import pytest

# The helpers beside this file are imported by name.
sys.path.append(str(Path(__file__).parent))

import agent_kit

from oarbank_cas.agent import workdir as workdir_module


@pytest.fixture(params=["openat", "paths"])
def way(request, monkeypatch):
    """How folders are walked: with directory descriptors, and as on a system that has none."""
    if request.param == "openat" and not workdir_module.HAS_DIR_FD:
        pytest.skip("this system has no directory descriptors")
    monkeypatch.setattr(workdir_module, "HAS_DIR_FD", request.param == "openat")
    return request.param


@pytest.fixture
def outside(tmp_path):
    """A folder beside the work directory that nothing may change."""
    folder = tmp_path / "outside"
    agent_kit.write_files(folder, {"secret.txt": b"secret", "deep/secret.txt": b"deep secret"})
    before = agent_kit.tree(folder)
    yield folder
    assert agent_kit.tree(folder) == before


@pytest.fixture
def workdir(tmp_path):
    folder = tmp_path / "w"
    folder.mkdir()
    return folder


@pytest.fixture
def store():
    return agent_kit.memory_store()
