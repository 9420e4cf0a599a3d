"""Pages of listings: read here as the client reads them, whatever the names; what is no plain page is left to it."""

from __future__ import annotations

import pytest
import s3_kit
from proxy import Proxy

from oarbank_cas.backends.s3 import listed, listing
from oarbank_cas.backends.s3.backend import S3Backend
from oarbank_cas.backends.s3.capabilities import Capabilities

ODD = [
    "a b",
    "a+b",
    "a%2Bb",
    "a&b=c",
    "\u00e4\u6f22",
    "q?x#y",
    "d/e/f",
    "d/g",
    "~tilde",
    "(x)!*'",
    'quo"te',
    "<tag>",
    "z",
]
FIELDS = ("Key", "Size", "ETag", "LastModified")


@pytest.fixture
def wire(place):
    made = s3_kit.wire(place, engine="boto3")
    stored = 0
    for number, name in enumerate(ODD):
        try:
            made.client.put_object(**made.bucket, Key=place.prefix + name, Body=b"x" * number)
        except made.client.exceptions.ClientError:
            continue  # a server that refuses the name
        stored += 1
    assert stored > 4
    yield made
    made.close()


def plainly(page):
    contents = [{field: each[field] for field in FIELDS} for each in page.get("Contents", ())]
    return contents, page.get("CommonPrefixes", []), page["IsTruncated"], page.get("NextContinuationToken")


@pytest.mark.parametrize(
    "more", [{}, {"MaxKeys": 3}, {"Delimiter": "/"}, {"StartAfter": "a+b"}, {"Prefix": "a"}, {"Prefix": "none"}]
)
def test_a_page_says_what_the_client_reads(wire, more, monkeypatch):
    asked = {**wire.bucket, "Prefix": wire.place.prefix, "MaxKeys": 1000, **more}
    if "Prefix" in more:
        asked["Prefix"] = wire.place.prefix + more["Prefix"]
    if "StartAfter" in more:
        asked["StartAfter"] = wire.place.prefix + more["StartAfter"]
    for _ in range(20):
        expected = wire.client.list_objects_v2(**asked)
        with monkeypatch.context() as patch:
            patch.setattr(wire.client, "list_objects_v2", None)  # it must not be needed
            found = wire.boto3.page(asked)
        assert plainly(found)[:3] == plainly(expected)[:3]
        assert (found["NextContinuationToken"] is None) == (expected.get("NextContinuationToken") is None)
        if not found["IsTruncated"]:
            return
        asked["ContinuationToken"] = found["NextContinuationToken"]
    pytest.fail("the listing does not end")


PAGE = """<?xml version="1.0" encoding="UTF-8"?>
<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/"><Name>b</Name><IsTruncated>{truncated}</IsTruncated>
<Contents><Key>{key}</Key><LastModified>{moment}</LastModified><ETag>&quot;e&quot;</ETag><Size>{size}</Size></Contents>
</ListBucketResult>"""
GOOD = {"truncated": "false", "key": "k", "moment": "2026-12-01T17:00:00.000Z", "size": "3"}


def test_a_plain_page():
    found = listed.read(PAGE.format(**GOOD).encode())
    assert [each["Key"] for each in found["Contents"]] == ["k"]
    assert found["Contents"][0]["LastModified"].isoformat() == "2026-12-01T17:00:00+00:00"


@pytest.mark.parametrize(
    "document",
    [
        b"",
        b"<html>",
        b"not XML at all",
        PAGE.format(**GOOD).encode()[:-20],
        b"<Error><Code>SlowDown</Code></Error>",
        PAGE.format(**{**GOOD, "truncated": ""}).encode(),
        PAGE.format(**{**GOOD, "truncated": "perhaps"}).encode(),
        PAGE.format(**{**GOOD, "size": ""}).encode(),
        PAGE.format(**{**GOOD, "moment": ""}).encode(),
        PAGE.format(**{**GOOD, "moment": "yesterday"}).encode(),
        PAGE.format(**{**GOOD, "moment": "2026-12-01T17:00:00"}).encode(),
    ],
)
def test_anything_else_is_left_to_the_client(document):
    assert listed.read(document) is None


def test_a_page_that_is_cut_is_asked_for_again(place):
    """A listing that comes back short, and looks whole, would have gc take blobs away that are named in the rest."""
    with Proxy(s3_kit.server()["endpoint"], 1, share=0) as proxy:
        backend = S3Backend(s3_kit.wire(place, endpoint_url=proxy.endpoint, engine="boto3"), Capabilities())
        names = [f"blobs/aa/{number}" for number in range(5)]
        for name in names:
            incoming = backend.incoming(1)
            incoming.write(b"x")
            backend.create_many([(name, incoming)])
        for harm in ("cut-answer", "reset-after", "error-503"):
            proxy.at = lambda method, path: method == "GET" and "list-type" in path
            proxy.share, proxy.most, proxy.harms = 1, 2, (harm,)
            assert [stat.name for stat in listing.listing(backend.wire, "bytes", "blobs/", "")] == names
            assert (proxy.log[-1][2], proxy.log[-2][2], proxy.log[-3][2]) == (None, harm, harm)
            proxy.share = 0
        backend.close()
