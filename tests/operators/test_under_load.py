"""A short soak by default; `OARBANK_CAS_TEST_BUDGET=75` makes it the ten-minute one."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SECONDS = 8


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.skipif(os.name == "nt", reason="forks")
def test_nothing_is_lost(tmp_path, budget):
    command = [sys.executable, str(Path(__file__).with_name("soak.py")), "--minutes", str(SECONDS * budget / 60)]
    ran = subprocess.run([*command, "--folder", str(tmp_path)], capture_output=True, text=True, check=False)
    assert ran.returncode in (0, 1), ran.stderr
    summary = json.loads(ran.stdout)
    assert summary["wrong"] == []
    did = summary["did"]
    assert did["writer: recorded"] > 50
    assert did["fetcher: fetched"] > 10
    assert did["operator: gc"] >= 1
    assert did["operator: blobs condemned"] > 0
