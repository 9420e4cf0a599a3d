"""Ceph on the loopback, for tests: one monitor, one OSD on a sparse file, one gateway. Needs root.

The Ceph that is installed here, or one of another release in a folder with a whole system (a chroot):

    apt-get install radosgw ceph-mon ceph-osd ceph-common       Debian 12 has Ceph 16
    python tests/s3/ceph_kit.py /srv/ceph20                         Debian sid has Ceph 20: 1.1 GB, a minute
    OARBANK_CAS_TEST_CEPH=/srv/ceph20 python -m tests.s3.servers ceph -- pytest tests/backends tests/s3 -k s3
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

sys.path.append(str(Path(__file__).parent))

from ending import die_with_parent

VARIABLE = "OARBANK_CAS_TEST_CEPH"
"""Names a folder with a whole system that has Ceph; else the Ceph of this one is used."""

_PACKAGES = ("radosgw", "ceph-mon", "ceph-osd", "ceph-common")
_INSIDE = "/mnt"
"""Where a system sees the data's folder."""

_DISK = 20 * 2**30
_READY_S = 60

_daemons = []
"""Kept, because a process object that is thrown away while its process runs is warned of."""

_CONF = """
[global]
fsid = {fsid}
mon host = v2:127.0.0.1:{monitor}/0
mon initial members = a
public addr = 127.0.0.1
cluster addr = 127.0.0.1
auth allow insecure global id reclaim = false
keyring = {data}/keyring
run dir = {data}
admin socket = {data}/$name.asok
log to stderr = false
log file = {data}/$name.log
osd pool default size = 1
osd pool default min size = 1
osd pool default pg num = 8
osd pool default pgp num = 8
osd pool default pg autoscale mode = off
osd crush chooseleaf type = 0
mon allow pool size one = true
mon max pg per osd = 1000
mon data avail crit = 1
mon data avail warn = 2
paxos propose interval = 0.05
[mon.a]
mon data = {data}/mon
[osd.0]
osd data = {data}/osd
osd objectstore = bluestore
bluestore block size = {disk}
osd memory target = 939524096
osd class update on start = false
[client.rgw.a]
rgw frontends = beast endpoint=127.0.0.1:{gateway} tcp_nodelay=1
rgw data = {data}/rgw
rgw enable apis = s3, admin
rgw dynamic resharding = false
rgw override bucket index max shards = 1
rgw run sync thread = false
rgw relaxed region enforcement = true
"""
# One shard: a listing need not merge many. Without a manager nothing scales pools, so that they begin small.


class Ceph:
    """A cluster of one.

    Args:
        folder: for its data; empty.
        gateway: the port of S3.
        monitor: a free port.
        system: a folder with a whole system, or None for this one.
    """

    def __init__(self, folder, gateway, monitor, system=None):
        self.folder = Path(folder)
        self.data = _INSIDE if system else str(self.folder)
        self.within = ["chroot", system] if system else []
        self.fsid, self.monitor = str(uuid.uuid4()), monitor
        if system:
            # In a mount namespace of our own: gone when we are, and several may use the system at once.
            subprocess.run(["mount", "-t", "proc", "proc", f"{system}/proc"], check=True)
            subprocess.run(["mount", "--bind", str(self.folder), f"{system}{_INSIDE}"], check=True)
        for name in ("mon", "osd", "rgw"):
            (self.folder / name).mkdir()
        text = _CONF.format(fsid=self.fsid, monitor=monitor, gateway=gateway, data=self.data, disk=_DISK)
        (self.folder / "ceph.conf").write_text(text)

    def run(self, tool, *arguments):
        """Run a tool to its end; its output."""
        command = [*self.within, tool, "-c", f"{self.data}/ceph.conf", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False, preexec_fn=die_with_parent())
        if done.returncode:
            raise RuntimeError(f"{tool} {arguments[0]} failed: {done.stderr[-1000:]}")
        return done.stdout

    def daemon(self, program, *arguments):
        """Start a program that stays; it ends with this process."""
        command = [*self.within, program, "-f", "-c", f"{self.data}/ceph.conf", *arguments]
        _daemons.append(subprocess.Popen(command, stdin=subprocess.DEVNULL, preexec_fn=die_with_parent()))

    def key(self, name, *grants):
        """Make a daemon's key."""
        granted = [part for grant in grants for part in ("--cap", *grant.split(" ", 1))]
        self.run("ceph-authtool", f"{self.data}/keyring", "--gen-key", "-n", name, *granted)

    def start(self, access, secret):
        """Make the cluster and start all of it."""
        (self.folder / "keyring").touch()
        self.key("mon.", "mon allow *")
        self.key("client.admin", "mon allow *", "osd allow *", "mgr allow *")
        self.key("osd.0", "mon allow profile osd", "osd allow *", "mgr allow profile osd")
        self.key("client.rgw.a", "mon allow rw", "osd allow rwx")
        map_of = f"{self.data}/monmap"
        address = f"[v2:127.0.0.1:{self.monitor}]"
        self.run("monmaptool", "--create", "--addv", "a", address, "--fsid", self.fsid, map_of)
        self.run("ceph-mon", "--mkfs", "-i", "a", "--monmap", map_of, "--keyring", f"{self.data}/keyring")
        self.daemon("ceph-mon", "-i", "a")
        osd = str(uuid.uuid4())
        self.run("ceph", "--connect-timeout", "30", "osd", "new", osd, "0")
        self.run("ceph-osd", "-i", "0", "--mkfs", "--osd-uuid", osd)
        self.daemon("ceph-osd", "-i", "0")
        began = time.monotonic()
        while json.loads(self.run("ceph", "--connect-timeout", "30", "osd", "stat", "-f", "json"))["num_up_osds"] < 1:
            if time.monotonic() - began > _READY_S:
                raise RuntimeError("the OSD did not come up")
            time.sleep(0.1)
        self.run(
            "radosgw-admin", "user", "create", "--uid=tests", "--display-name=tests", f"--access-key={access}",
            f"--secret-key={secret}",
        )  # fmt: skip
        self.daemon("radosgw", "-n", "client.rgw.a")


def command(folder, ports, access, secret):
    """The command of a process that runs the cluster, and with which all of it ends."""
    system = os.environ.get(VARIABLE)
    if system is None and shutil.which("radosgw") is None:
        raise FileNotFoundError(
            f"no Ceph is installed here; {VARIABLE} may name a folder with one: see tests/s3/ceph_kit.py"
        )
    (folder / "ceph").mkdir()
    own = ["unshare", "--mount", "--propagation", "private"] if system else []
    return [
        *own, sys.executable, str(Path(__file__).resolve()), "--run", f"{folder}/ceph", str(ports[0]), str(ports[1]),
        access, secret, system or "",
    ]  # fmt: skip


def install(folder):
    """Put a whole Debian sid with Ceph into a folder."""
    if shutil.which("debootstrap") is None:
        sys.exit("debootstrap is missing: apt-get install debootstrap")
    mirror = os.environ.get("DEBIAN_MIRROR")
    base = [
        "debootstrap",
        "--variant=minbase",
        "--include=ca-certificates",
        "sid",
        folder,
        *([mirror] if mirror else ()),
    ]
    subprocess.run(base, check=True)
    forbid = Path(folder) / "usr/sbin/policy-rc.d"
    forbid.write_text("#!/bin/sh\nexit 101\n")  # packages start no services
    forbid.chmod(0o755)
    apt = ["chroot", folder, "env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "-q", "-y"]
    subprocess.run([*apt, "-o", "Acquire::Check-Valid-Until=false", "update"], check=True)
    subprocess.run([*apt, "install", "--no-install-recommends", *_PACKAGES], check=True)
    subprocess.run([*apt, "clean"], check=True)


def main():
    """Install a Ceph, or run one until this process ends."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", help="where to put a system with Ceph; new")
    parser.add_argument("--run", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("rest", nargs="*", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if not arguments.run:
        install(arguments.folder)
        return
    gateway, monitor, access, secret, system = arguments.rest
    ceph = Ceph(arguments.folder, gateway, monitor, system or None)
    ceph.start(access, secret)
    with contextlib.suppress(ChildProcessError):
        pid, _ = os.wait()  # none of them ends by itself
        sys.exit(f"a daemon of Ceph ended: {pid}")


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    main()
