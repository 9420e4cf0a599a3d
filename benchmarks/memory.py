"""Peak memory of putting, and of getting to a file and to a stream, one large file; each in a process of its own."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

from contest import parser, workplace


def make_large(path: Path, size: int) -> None:
    """A file of random blocks."""
    with path.open("wb") as file:
        for _ in range(size // 2**20):
            file.write(os.urandom(2**20))


def peak_mib(command: list[str]) -> float:
    """Run a command; its peak resident memory in MiB, from the operating system."""
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0, command
    return usage.ru_maxrss / (2**20 if sys.platform == "darwin" else 1024)


def show(what: str, command: list[str]) -> None:
    """Run a command and print its peak memory."""
    print(f"  {what:<36} {peak_mib(command):6.1f} MiB")


def main() -> None:
    """Measure."""
    arguments = parser(__doc__).parse_args()
    size = 4 * 2**30 if not arguments.quick else 80 * 2**20
    with workplace(arguments) as folder:
        large, store = folder / "large", str(folder / "store")
        make_large(large, size)
        cas = [sys.executable, "-m", "oarbank_cas", "--store", store]
        subprocess.run([*cas, "init"], check=True, stdout=subprocess.DEVNULL)
        print(f"peak memory with one file of {size / 2**30:.2f} GiB")
        show("python -c 'import click, pydantic'", [sys.executable, "-c", "import click, pydantic"])
        show("put FILE", [*cas, "put", str(large)])
        show("put FILE, again", [*cas, "put", str(large)])
        with large.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        show("get DIGEST -o FILE", [*cas, "get", digest, "-o", str(folder / "out")])
        show("get DIGEST > stream", [*cas, "get", digest])


if __name__ == "__main__":
    main()
