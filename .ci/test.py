"""Install the package with what its tests need into `.venv`, and run the tests. Arguments go to pytest."""

import os
import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LEAST = (3, 11)


def environment(folder: Path) -> Path:
    """Make the virtual environment if it is absent; its Python."""
    python = folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    if not python.exists():
        venv.create(folder, with_pip=True)
    return python


def main() -> int:
    """Install, then test."""
    if sys.version_info < LEAST:
        print(f"Python {LEAST[0]}.{LEAST[1]} or newer is needed; this is {sys.version.split()[0]}", file=sys.stderr)
        return 2
    python = environment(ROOT / ".venv")
    subprocess.run([python, "-m", "pip", "install", "--quiet", "--editable", ".[test]"], cwd=ROOT, check=True)
    return subprocess.run([python, "-m", "pytest", "-n", "auto", *sys.argv[1:]], cwd=ROOT, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
