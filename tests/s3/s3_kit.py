"""What tests of buckets share: the run's server, a place of its own for each test, and looks past the package."""

from __future__ import annotations

import contextlib
import functools
import os
import tempfile
import uuid
from pathlib import Path

import servers

from oarbank_cas.backends.s3.options import Place, S3Options
from oarbank_cas.backends.s3.probe import Probe
from oarbank_cas.backends.s3.retry import Retry
from oarbank_cas.backends.s3.wire import Wire

VARIABLE = servers.VARIABLE
BUCKET = servers.BUCKET


@functools.cache
def server():
    """The server that this run's workers share."""
    owner = os.getppid() if "PYTEST_XDIST_WORKER" in os.environ else os.getpid()
    folder = Path(tempfile.gettempdir()) / f"oarbank-cas-tests-{owner}"
    if VARIABLE not in os.environ:
        folder.mkdir(exist_ok=True)  # the server's guard removes it
    found = servers.shared(folder, owner)
    # As an agent's machine has them: in the environment, and nowhere else.
    os.environ |= {
        "AWS_ACCESS_KEY_ID": found["access"],
        "AWS_SECRET_ACCESS_KEY": found["secret"],
        "AWS_CONFIG_FILE": os.devnull,
        "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
        "AWS_EC2_METADATA_DISABLED": "true",
    }
    os.environ.pop("AWS_ENDPOINT_URL", None)  # tests name it themselves
    s3 = servers.client(found)
    with contextlib.suppress(s3.exceptions.BucketAlreadyOwnedByYou, s3.exceptions.BucketAlreadyExists):
        s3.create_bucket(Bucket=BUCKET)
    return found


def kind():
    """Which server it is."""
    return server()["kind"]


def fresh_place():
    """A prefix that no other test uses."""
    server()
    return Place(BUCKET, f"t/{uuid.uuid4().hex}/")


ENGINE = "auto"
"""The engine of all clients that name none."""


def options(**more):
    """The options that lead to the server."""
    return S3Options(**{"endpoint_url": server()["endpoint"], "engine": ENGINE, **more})


def wire(place=None, retry=None, **more):
    """A client of the server."""
    return Wire(place or fresh_place(), options(**more), retry or Retry(tries=4, first_s=0.05))


def plain(found=None):
    """A boto3 client with nothing of ours."""
    del found
    return servers.client(server())


@functools.cache
def capabilities():
    """What the server honours, by the package's own probe."""
    probing = wire()
    try:
        return Probe(probing).run()
    finally:
        probing.close()


def keys(place):
    """Every key below a place, asked past the package."""
    pages = plain().get_paginator("list_objects_v2").paginate(Bucket=place.bucket, Prefix=place.prefix)
    return [found["Key"] for page in pages for found in page.get("Contents", ())]


def left_behind(found):
    """Temporaries and unfinished uploads below a wire's place."""
    prefix = found.place.prefix
    left = [key for key in keys(found.place) if key.startswith(f"{prefix}tmp/")]
    uploads = plain().list_multipart_uploads(Bucket=found.place.bucket, Prefix=prefix).get("Uploads", ())
    return left + [each["Key"] for each in uploads if each["Key"].startswith(prefix)]
