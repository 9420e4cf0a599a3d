"""Build the source archive and the wheel, install the wheel into clean environments, and use it and the tests there.

What the tests' environment happens to hold is no proof that a user's install is whole, and the checkout none that the
archive is. Each extra for users is tried by itself. Needs the package `build`, and what `pip install` needs.
"""

import os
import subprocess
import sys
import tarfile
import tempfile
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
EXTRAS = {"": "boto3", "[fast]": "obstore", "[fsspec]": "boto3"}
"""Extra to the engine of buckets that it leads to."""

TESTS = ["tests/contracts", "tests/store", "tests/filesystem", "tests/test_layers.py"]
"""What is run out of the archive: the rooms at the bottom, and what an entry point is needed for."""
TESTS_S = 600

IN_THE_WHEEL = (
    "oarbank_cas/py.typed",
    "oarbank_cas/schemas/result-envelope-1.schema.json",
    "data/share/bash-completion/completions/oarbank-cas",
    "data/share/zsh/site-functions/_oarbank-cas",
    "data/share/fish/vendor_completions.d/oarbank-cas.fish",
)
IN_THE_ARCHIVE = (
    "tests/conftest.py",
    "docs/index.md",
    "examples/sunspots/drive.py",
    ".ci/run",
    "CHANGELOG.md",
    "docker-compose.yml",
)

_SCRIPT = """
import sys
import oarbank_cas
from oarbank_cas.backends.s3.options import Place, S3Options
assert not {"boto3", "obstore", "fsspec"} & set(sys.modules), "imported before they are needed"
from oarbank_cas.backends.s3.wire import Wire
wire = Wire(Place("bucket", ""), S3Options(endpoint_url="http://127.0.0.1:9"))
print(wire.engines)
wire.close()
"""

_BY_URL = """
import sys
import fsspec
with fsspec.open(f"oarbank-cas://blob/{sys.argv[1]}", store=".oarbank-cas") as file:
    print(file.read().decode(), end="")
"""


def run(*command: str | Path, folder: Path, stdin: str | None = None) -> str:
    """Run a command in a folder; what it printed."""
    known = {"AWS_ACCESS_KEY_ID": "none", "AWS_SECRET_ACCESS_KEY": "none"}
    done = subprocess.run(
        command, cwd=folder, input=stdin, env={**os.environ, **known}, check=True, stdout=subprocess.PIPE, text=True
    )
    return done.stdout


def built(folder: Path) -> tuple[Path, Path]:
    """The source archive, and the wheel that is built out of it; what both must hold is there."""
    run(sys.executable, "-m", "build", "--outdir", folder, ROOT, folder=folder)
    (archive,) = folder.glob("*.tar.gz")
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as opened:
        names = opened.namelist()
    absent = [name for name in IN_THE_WHEEL if not any(found.endswith(name) for found in names)]
    strange = [name for name in names if not name.startswith(("oarbank_cas/", "oarbank_cas-"))]
    assert not absent, f"{wheel.name} lacks {absent}"
    assert not strange, f"{wheel.name} holds {strange}"
    with tarfile.open(archive) as packed:
        inside = {name.partition("/")[2] for name in packed.getnames()}
    absent = [name for name in IN_THE_ARCHIVE if name not in inside]
    assert not absent, f"{archive.name} lacks {absent}"
    return archive, wheel


def environment(folder: Path, requirement: str) -> Path:
    """A clean environment with the package in it; where its programs are."""
    venv.create(folder / "venv", with_pip=True)
    programs = folder / "venv" / ("Scripts" if os.name == "nt" else "bin")
    run(programs / "python", "-m", "pip", "install", "--quiet", requirement, folder=folder)
    run(programs / "python", "-m", "pip", "check", folder=folder)
    return programs


def try_extra(wheel: Path, extra: str, engine: str, folder: Path) -> None:
    """Install with an extra, and use what is there."""
    programs = environment(folder, f"{wheel}{extra}")
    command = programs / "oarbank-cas"
    run(command, "init", folder=folder)
    digest = run(command, "put", "-", folder=folder, stdin="installed").split()[0]
    found = run(command, "get", digest, folder=folder)
    assert found == "installed", found
    helped = [run(*name, "--help", folder=folder) for name in ((command,), (programs / "python", "-m", "oarbank_cas"))]
    assert helped[0] == helped[1], helped
    engines = run(programs / "python", "-c", _SCRIPT, folder=folder)
    assert engines.startswith(engine), engines
    if extra == "[fsspec]":
        found = run(programs / "python", "-c", _BY_URL, digest, folder=folder)
        assert found == "installed", found
    print(f"oarbank-cas{extra}: installs and works; buckets by {engines.strip()}")


def try_tests(archive: Path, wheel: Path, folder: Path) -> None:
    """Run tests out of the archive on the wheel: the package's own folder is taken away first."""
    with tarfile.open(archive) as packed:
        packed.extractall(folder, filter="data")
    (source,) = folder.glob("oarbank_cas-*")
    (source / "oarbank_cas").rename(folder / "away")
    programs = environment(folder, f"{wheel}[test]")
    # Not by `python -m`, which would look for modules here first.
    subprocess.run([programs / "pytest", "-n", "auto", *TESTS], cwd=source, check=True, timeout=TESTS_S)
    print("the tests of the source archive pass on the wheel:", ", ".join(TESTS))


def main() -> int:
    """Build, and try each."""
    with tempfile.TemporaryDirectory(prefix="oarbank-cas-build-") as made:
        archive, wheel = built(Path(made))
        for extra, engine in EXTRAS.items():
            with tempfile.TemporaryDirectory(prefix="oarbank-cas-install-") as folder:
                try_extra(wheel, extra, engine, Path(folder))
        with tempfile.TemporaryDirectory(prefix="oarbank-cas-archive-") as folder:
            try_tests(archive, wheel, Path(folder))
    return 0


if __name__ == "__main__":
    sys.exit(main())
