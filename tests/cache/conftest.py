import sys
from pathlib import Path

import pytest

# The helpers beside this file, and those of the agent's tests, are imported by name.
sys.path.append(str(Path(__file__).parent))
sys.path.append(str(Path(__file__).parent.parent / "agent"))

import cache_kit


@pytest.fixture
def place(tmp_path):
    """A store on disk whose reads are counted, and a cache before it."""
    return cache_kit.Place(tmp_path)


@pytest.fixture
def workdir(tmp_path):
    folder = tmp_path / "w"
    folder.mkdir()
    return folder
