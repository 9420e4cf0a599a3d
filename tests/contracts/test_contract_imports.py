"""The contracts import nothing of the package but errors, and the hot ones no pydantic."""

import ast
import importlib.resources
import subprocess
import sys

import pytest

FOLDER = importlib.resources.files("oarbank_cas").joinpath("contracts")
MODULES = sorted(path.name.removesuffix(".py") for path in FOLDER.iterdir() if path.name.endswith(".py"))
# What a lookup imports: starting up must not take the time that pydantic takes.
LIGHT = ["__init__", "canonical", "keys", "manifest", "paths", "places", "references", "rewrite", "upgrades"]


@pytest.mark.parametrize("module", LIGHT)
def test_light(module):
    name = "oarbank_cas.contracts" if module == "__init__" else f"oarbank_cas.contracts.{module}"
    code = f"import sys, {name}; print([m for m in ('pydantic', 'click', 'rich', 'fsspec') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("module", MODULES)
def test_layer(module):
    tree = ast.parse(FOLDER.joinpath(f"{module}.py").read_text(encoding="utf-8"))
    names = [node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    names += [alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names]
    ours = [name for name in names if name.startswith("oarbank_cas")]
    assert all(name == "oarbank_cas.errors" or name.startswith("oarbank_cas.contracts") for name in ours)
    assert not {"os", "pathlib", "io", "shutil", "socket"} & set(names)
