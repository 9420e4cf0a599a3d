"""Imports point down only: docs/architecture.md in a form that fails."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import oarbank_cas

ROOT = Path(oarbank_cas.__file__).parent

# Lowest first. A module may import from its own line and from those above it in this list.
LAYERS = [
    {"errors", "filelock", "instants", "sizes", "stopping", "batches", "progress"},
    {"contracts", "backends"},
    {"layout"},
    {"absent"},
    {"entry", "descriptor", "presence"},
    {"transfer"},
    {"blobs"},
    {"inputs"},
    {"sources", "intake_worker", "intake_pool", "pending", "intake"},
    {"cache"},
    {"lookups"},
    {"results", "pins"},
    {"gc", "agent"},
    {"rooms", "purge", "grants", "copying", "stats", "stats_page", "verify", "explain"},
    {"attempt"},
    {"opening", "settings"},
    {"store", "doctor"},
    {"aio", "filesystem"},
    {"cli"},
    {"__main__", "__init__"},
]
RANK = {name: rank for rank, names in enumerate(LAYERS) for name in names}

PURE = {
    "contracts": {"errors", "contracts"},
    "backends": {"errors", "filelock", "stopping", "backends"},
    "errors": set(),
}
"""What these rooms may import of ours at all."""

IO_MODULES = {"os", "io", "pathlib", "shutil", "socket", "subprocess", "tempfile", "threading", "time", "asyncio"}


def room_of(path: Path) -> str:
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def imported(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            assert node.level == 0, f"{path}: relative import"
            found |= (
                {f"{node.module}.{alias.name}" for alias in node.names}
                if node.module == "oarbank_cas"
                else {node.module}
            )
    return found


def ours(path: Path) -> set[str]:
    return {name.split(".")[1] for name in imported(path) if name.startswith("oarbank_cas.")} - {"__version__"}


MODULES = sorted(ROOT.rglob("*.py"))


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_point_down(path: Path) -> None:
    room = room_of(path)
    assert room in RANK, f"{room} has no place in the layers"
    for other in ours(path):
        assert RANK[other] <= RANK[room], f"{path.name} ({room}) imports {other}, which is above it"
        if room in PURE:
            assert other in PURE[room], f"{room} may not import {other}"


@pytest.mark.parametrize("path", sorted((ROOT / "contracts").glob("*.py")), ids=lambda path: path.name)
def test_the_contracts_do_no_io(path: Path) -> None:
    assert not imported(path) & IO_MODULES


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_each_module_says_why_it_exists(path: Path) -> None:
    said = ast.get_docstring(ast.parse(path.read_text()))
    assert said is not None, f"{path} has no docstring"
