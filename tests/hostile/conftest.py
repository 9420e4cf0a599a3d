import sys
from pathlib import Path

# The helpers beside this file, and those of the agent side's tests, are imported by name.
sys.path += [str(Path(__file__).parent), str(Path(__file__).parent.parent / "agent")]

import agent_kit
import pytest


@pytest.fixture
def fenced(tmp_path):
    """A folder whose files nothing may change or add to, but for those below `w` in it."""
    agent_kit.write_files(tmp_path, {"secret.txt": b"secret", "beside/secret.txt": b"secret"})
    before = agent_kit.tree(tmp_path)
    yield tmp_path
    after = {path: what for path, what in agent_kit.tree(tmp_path).items() if path.partition("/")[0] != "w"}
    assert after == before
