"""What the pages tell readers to type works, as written, and prints what they show."""

from __future__ import annotations

import ast
import importlib

import pages
import pytest

DOCS = pages.ROOT / "docs"
RUN = {"README.md": 2, "docs/tutorial.md": 10, "docs/recovery.md": 6, "docs/moving.md": 5, "docs/sizing.md": 1}
"""Pages that are run, and how many of their blocks show what they print."""


@pytest.mark.skipif("sys.platform == 'win32'", reason="the pages are written for a POSIX shell")
@pytest.mark.parametrize("page", RUN)
def test_commands_of_a_page_print_what_it_shows(page, tmp_path):
    assert pages.check(pages.ROOT / page, tmp_path) == RUN[page]


PYTHON = [
    pytest.param(block, id=block.place)
    for page in [pages.ROOT / "README.md", *sorted(DOCS.glob("*.md"))]
    for block in pages.blocks(page)
    if block.kind == "python"
]


@pytest.mark.parametrize("block", PYTHON)
def test_what_python_on_a_page_imports_is_there(block):
    for node in ast.walk(ast.parse(block.code)):
        if isinstance(node, ast.ImportFrom) and node.module.startswith("oarbank_cas"):
            module = importlib.import_module(node.module)
            for alias in node.names:
                assert hasattr(module, alias.name), f"{node.module} has no {alias.name}"


def test_a_wrong_page_is_noticed(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("```sh\necho one\n```\n\n```text\none\n```\n")
    assert pages.check(page, tmp_path) == 1
    page.write_text("```sh\necho one two\n```\n\n```text\none\n```\n")
    with pytest.raises(AssertionError, match=r"page\.md:1"):
        pages.check(page, tmp_path)
    page.write_text("```sh\nfalse\necho done\n```\n")
    with pytest.raises(AssertionError, match="failed: false"):
        pages.check(page, tmp_path)
    page.write_text("```sh\nexit 0\n```\n")
    with pytest.raises(AssertionError, match="ended early"):
        pages.check(page, tmp_path)
