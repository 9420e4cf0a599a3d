"""Stores in a real server's bucket."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

# The helpers beside this file are imported by name.
sys.path.append(str(Path(__file__).parent))

import s3_kit

from oarbank_cas import Store
from oarbank_cas.backends.s3.backend import S3Backend


@pytest.fixture
def place():
    """A prefix of a test's own."""
    return s3_kit.fresh_place()


@pytest.fixture
def s3():
    """The options that lead to the server."""
    s3_kit.server()
    return s3_kit.options()


@pytest.fixture
def backend(place):
    """An empty store's backend."""
    made = S3Backend(s3_kit.wire(place), s3_kit.capabilities(), multipart_above=8 * 2**20, part_size=5 * 2**20)
    yield made
    made.close()
    assert s3_kit.left_behind(made.wire) == []


@pytest.fixture
def store(place, s3):
    """An empty store, of a server that is known already. It must leave no temporaries behind."""
    known = s3_kit.capabilities().encode()
    s3_kit.plain().put_object(Bucket=place.bucket, Key=place.prefix + "capabilities.json", Body=known)
    made, _ = Store.init(place.url, session_s=2, grace_s=1, slack_s=0, s3=s3)
    yield made
    made.close()
    assert s3_kit.left_behind(made.backend.wire) == []


@pytest.fixture
def put():
    """Creates an object; its stat, or None where the name stood."""

    def create(backend, name, data):
        incoming = backend.incoming(len(data))
        incoming.write(data)
        return backend.commit([(name, incoming)])[0]

    return create
