"""A test run that is killed leaves no server."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import servers

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks into /proc")


def owner_of_a_server():
    """A process that was given a server; it, and what it says of the server."""
    environment = {name: value for name, value in os.environ.items() if name != servers.VARIABLE}
    owner = subprocess.Popen(
        [sys.executable, servers.__file__, "seaweed"], stdout=subprocess.PIPE, env=environment, text=True
    )
    return owner, json.loads(owner.stdout.readline())


def gone(*pids):
    """Whether all of them end soon; a zombie that nobody asked for has ended."""
    until = time.monotonic() + 30
    while any(servers.lives(pid) for pid in pids):
        if time.monotonic() > until:
            return False
        time.sleep(0.05)
    return True


@pytest.mark.parametrize("killed", ["owner", "guard", "both at once"])
def test_killing_leaves_no_server(killed):
    owner, server = owner_of_a_server()
    guard, weed = server["guard"], server["server"]
    with owner:
        try:
            assert servers.lives(weed)
            folder = os.readlink(f"/proc/{weed}/cwd")
            for pid in {"owner": [owner.pid], "guard": [guard], "both at once": [guard, owner.pid]}[killed]:
                os.kill(pid, signal.SIGKILL)
            assert gone(weed, guard)
        finally:
            owner.kill()
            for pid in (guard, weed):
                if servers.lives(pid):
                    os.kill(pid, signal.SIGKILL)
            if killed != "owner":
                servers._remove(Path(folder))
    if killed == "owner":
        assert not Path(folder).exists()


def test_a_guard_that_is_asked_to_end_ends_its_server_first():
    owner, server = owner_of_a_server()
    with owner:
        folder = Path(os.readlink(f"/proc/{server['server']}/cwd"))
        os.kill(server["guard"], signal.SIGTERM)
        assert gone(server["server"], server["guard"])
        owner.kill()
    assert not folder.exists()
