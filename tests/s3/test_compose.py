"""docker-compose.yml: no engine runs here, so that its text is held to what it must say."""

from __future__ import annotations

import json
import re
from pathlib import Path

TEXT = (Path(__file__).parents[2] / "docker-compose.yml").read_text()


def test_it_listens_on_the_loopback_only():
    (ports,) = re.findall(r"ports:\n((?:\s+- .*\n)+)", TEXT)
    assert re.findall(r'- "(.*)"', ports) == ["127.0.0.1:8333:8333"]


def test_the_server_has_a_version_and_a_health_check():
    (image,) = re.findall(r"image: (\S+)", TEXT)
    assert re.fullmatch(r"[a-z/]+:\d+\.\d+", image)
    (check,) = re.findall(r"test: (\[.*\])", TEXT)
    kind, command = json.loads(check)
    assert kind == "CMD-SHELL"
    assert "s3.bucket.create -name oarbank" in command


def test_the_identity_is_json_and_the_one_that_the_head_names():
    (identity,) = re.findall(r"<<'END'\n(.*?)\n\s+END\n", TEXT, re.DOTALL)
    (known,) = json.loads(identity)["identities"]
    (credential,) = known["credentials"]
    assert f"AWS_ACCESS_KEY_ID={credential['accessKey']} AWS_SECRET_ACCESS_KEY={credential['secretKey']}" in TEXT
    assert "s3://oarbank/" in TEXT


def test_indents_are_even_and_without_tabs():
    for line in TEXT.splitlines():
        assert "\t" not in line
        assert (len(line) - len(line.lstrip())) % 2 == 0
