"""Install the package into clean environments, plain and with each extra for users, and use it there.

What the tests' environment happens to hold is no proof that a user's install is whole. Needs what `pip install` needs.
"""

import os
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
EXTRAS = {"": "boto3", "[fast]": "obstore"}
"""Extra to the engine of buckets that it leads to."""

_SCRIPT = """
import sys
import oarbank_cas
from oarbank_cas.backends.s3.options import Place, S3Options
assert not {"boto3", "obstore"} & set(sys.modules), "imported before they are needed"
from oarbank_cas.backends.s3.wire import Wire
wire = Wire(Place("bucket", ""), S3Options(endpoint_url="http://127.0.0.1:9"))
print(wire.engines)
wire.close()
"""


def run(*command: str | Path, folder: Path, stdin: str | None = None) -> str:
    """Run a command in a folder; what it printed."""
    known = {"AWS_ACCESS_KEY_ID": "none", "AWS_SECRET_ACCESS_KEY": "none"}
    done = subprocess.run(
        command, cwd=folder, input=stdin, env={**os.environ, **known}, check=True, stdout=subprocess.PIPE, text=True
    )
    return done.stdout


def try_extra(extra: str, engine: str, folder: Path) -> None:
    """Install with an extra, and use what is there."""
    venv.create(folder / "venv", with_pip=True)
    programs = folder / "venv" / ("Scripts" if os.name == "nt" else "bin")
    run(programs / "python", "-m", "pip", "install", "--quiet", f"{ROOT}{extra}", folder=folder)
    run(programs / "python", "-m", "pip", "check", folder=folder)
    command = programs / "oarbank-cas"
    run(command, "init", folder=folder)
    digest = run(command, "put", "-", folder=folder, stdin="installed").split()[0]
    found = run(command, "get", digest, folder=folder)
    assert found == "installed", found
    engines = run(programs / "python", "-c", _SCRIPT, folder=folder)
    assert engines.startswith(engine), engines
    print(f"oarbank-cas{extra}: installs and works; buckets by {engines.strip()}")


def main() -> int:
    """Try each."""
    for extra, engine in EXTRAS.items():
        with tempfile.TemporaryDirectory(prefix="oarbank-cas-install-") as folder:
            try_extra(extra, engine, Path(folder))
    return 0


if __name__ == "__main__":
    sys.exit(main())
