"""A store on disk with one result, and the filesystem over it."""

from __future__ import annotations

import sys
from pathlib import Path

import fsspec
import pytest

# The helpers beside this file, and those of the agent's tests, are imported by name.
sys.path.append(str(Path(__file__).parent))
sys.path.append(str(Path(__file__).parent.parent / "agent"))

import filesystem_kit

from oarbank_cas.filesystem import StoreFileSystem


@pytest.fixture(autouse=True)
def _nothing_named(alone):
    """And no instance outlives its test."""
    yield
    StoreFileSystem.clear_instance_cache()


@pytest.fixture
def made(tmp_path):
    """A store with a result: two artifacts, a folder in one, an empty file, one of several blocks."""
    return filesystem_kit.Made(tmp_path / "store")


@pytest.fixture
def fs(made):
    return fsspec.filesystem("oarbank-cas", store=made.url)
