"""Pages of the documentation as programs: their blocks of commands, run in order, and what the pages say they print.

A fence `sh` is run by bash, a fence `python` by Python; a fence `text` right after one is what both streams say. In it
`...` stands for anything within a line. Whatever is indented instead of fenced is for readers only. `/tmp/` in a page
is the folder that the test gives.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
_FENCE = re.compile(r"^```(\w+)[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_MARK = "@@ end of block"
_PROLOGUE = """set -E -o pipefail
trap 'printf "@@ failed: %s\\n" "$BASH_COMMAND"' ERR
exec 2>&1
"""


@dataclass
class Block:
    """One block of a page: what is run, where it stands, and what the page says it prints (None: nothing is said)."""

    kind: str
    code: str
    place: str
    shown: str | None = None


def blocks(page: Path, text: str | None = None) -> list[Block]:
    """The fences of a page, each `text` joined to the block before it."""
    text = page.read_text(encoding="utf-8") if text is None else text
    found: list[Block] = []
    end = 0
    for fence in _FENCE.finditer(text):
        kind, code = fence.groups()
        place = f"{page.name}:{text.count(chr(10), 0, fence.start()) + 1}"
        if kind == "text" and found and not text[end : fence.start()].strip():
            found[-1].shown = code
        else:
            found.append(Block(kind, code, place))
        end = fence.end()
    return found


def _script(block: Block) -> str:
    code = block.code if block.kind == "sh" else f"python3 - <<'@@PYTHON'\n{block.code}@@PYTHON\n"
    return f"{code}echo '{_MARK}'\n"


def run(page: Path, folder: Path, text: str | None = None, **environment: str) -> list[tuple[Block, str]]:
    """Run a page's blocks in one shell, in an empty folder; each block, and what it printed.

    `text` is what the page is to say instead, where names in it must be real ones.
    """
    wanted = [block for block in blocks(page, text) if block.kind in ("sh", "python")]
    program = _PROLOGUE + re.sub(r"(?<!\w)/tmp/", f"{folder}/", "".join(map(_script, wanted)))
    known = {name: value for name, value in os.environ.items() if not name.startswith(("OARBANK_", "AWS_"))}
    path = os.pathsep.join([str(Path(sys.executable).parent), known["PATH"]])
    done = subprocess.run(
        ["bash"],
        input=program,
        cwd=folder,
        env={**known, "PATH": path, "HOME": str(folder), "COLUMNS": "200", **environment},
        stdout=subprocess.PIPE,
        text=True,
        timeout=240,
        check=False,
    )
    printed = done.stdout.split(f"{_MARK}\n")
    assert len(printed) == len(wanted) + 1, f"the shell ended early:\n{done.stdout}"
    return list(zip(wanted, printed, strict=False))


def pattern(shown: str) -> re.Pattern[str]:
    """What a page shows, as an expression."""
    return re.compile(re.escape(shown).replace(re.escape("..."), ".*"))


def check(page: Path, folder: Path, text: str | None = None, **environment: str) -> int:
    """Run a page, as `run` does, and compare; how many blocks were compared."""
    compared = 0
    for block, printed in run(page, folder, text, **environment):
        assert "@@ failed: " not in printed, f"{block.place}\n{printed}"
        if block.shown is not None:
            assert pattern(block.shown).fullmatch(printed), (
                f"{block.place} shows\n{block.shown}\nbut this is\n{printed}"
            )
            compared += 1
    return compared
