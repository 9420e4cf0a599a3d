"""Listings by the order of names' bytes, from servers that list by it, and from those that go folder by folder.

SeaweedFS and other servers on top of a file system list `x/a/b` before `x/a-`, since for them `a` is a folder, and
`a` < `a-`. By bytes it is the other way round, because `-` < `/`. Names are held back until no smaller one can come.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, Any

from oarbank_cas.backends.s3 import failures, stats

if TYPE_CHECKING:
    from collections.abc import Iterator

    from oarbank_cas.backends.base import ObjectStat
    from oarbank_cas.backends.s3.capabilities import Order
    from oarbank_cas.backends.s3.wire import Wire

_PAGE = 1000


def listing(wire: Wire, order: Order, prefix: str, after: str) -> Iterator[ObjectStat]:
    """Every object below `prefix` and after `after`, by the order of their names' bytes; see `Backend.listing`."""
    if not after.startswith(prefix):
        if after > prefix:
            return  # greater than every name below the prefix
        after = ""
    if order == "bytes":
        yield from _checked(wire, _raw(wire, prefix, after))
        return
    if prefix == "":
        # Folder by folder from here on, so that no more than one folder's names are ever held back.
        for name in sorted(_top(wire)):
            if name.endswith("/"):
                if name > after or after.startswith(name):
                    yield from _sorted(wire, name, after)
            elif name > after:
                yield from (found for found in _raw(wire, name, "") if found.name == name)
        return
    yield from _sorted(wire, prefix, after)


def _checked(wire: Wire, found: Iterator[ObjectStat]) -> Iterator[ObjectStat]:
    last = ""
    for stat in found:
        if stat.name <= last:
            broken = failures.Failure("ListingOutOfOrder")
            raise failures.translate(broken, f"list: {stat.name} came after {last}", wire.where, 1, 0)
        last = stat.name
        yield stat


def _sorted(wire: Wire, prefix: str, after: str) -> Iterator[ObjectStat]:
    held: list[tuple[str, ObjectStat]] = []
    start = _start(prefix, after)
    for stat in _raw(wire, prefix, start):
        if stat.name <= after:
            continue
        path = stat.name[len(prefix) :].split("/")
        while held and _is_safe(held[0][0][len(prefix) :].split("/"), path):
            yield heapq.heappop(held)[1]
        heapq.heappush(held, (stat.name, stat))
    while held:
        yield heapq.heappop(held)[1]


def _is_safe(path: list[str], latest: list[str]) -> bool:
    """Whether no name that comes after `latest`, folder by folder or by bytes, is smaller than `path` by bytes."""
    return all(latest >= [*path[:level], path[level] + "/"] for level in range(len(path) - 1))


def _start(prefix: str, after: str) -> str:
    """Where a listing must begin, folder by folder, so that it misses no name that is greater than `after` by bytes.

    Beginning after `x/a`, such servers leave out `x/a/b` too: the folder counts as passed.
    """
    path = after[len(prefix) :].split("/")
    for level, part in enumerate(path):
        for index, char in enumerate(part):
            if char < "/" and index:
                return prefix + "/".join([*path[:level], _before(part[:index])])
    return prefix + "/".join([*path[:-1], _before(path[-1])])


def _before(part: str) -> str:
    """Something a little smaller than a part of a name."""
    if not part:
        return part
    smaller = "." if part[-1] == "0" else chr(ord(part[-1]) - 1)
    return part[:-1] + (f"{smaller}~" if smaller > " " else "")


def _raw(wire: Wire, prefix: str, after: str) -> Iterator[ObjectStat]:
    for page in _pages(wire, wire.key(prefix), wire.key(after) if after else ""):
        for found in page.get("Contents", ()):
            name = found["Key"][len(wire.place.prefix) :]
            if not name.endswith("/"):  # a folder's own object, which some tools make
                yield stats.stat_of(name, found["Size"], found["ETag"], found["LastModified"])


def _top(wire: Wire) -> Iterator[str]:
    for page in _pages(wire, wire.place.prefix, "", Delimiter="/"):
        for found in page.get("CommonPrefixes", ()):
            yield found["Prefix"][len(wire.place.prefix) :]
        for found in page.get("Contents", ()):
            name = found["Key"][len(wire.place.prefix) :]
            if name and not name.endswith("/"):
                yield name


def _pages(wire: Wire, prefix: str, after: str, **more: Any) -> Iterator[Any]:  # noqa: ANN401 - the client's documents
    asked: dict[str, Any] = {**wire.bucket, **wire.owner, "Prefix": prefix, "MaxKeys": _PAGE, **more}
    if after:
        asked["StartAfter"] = after
    token: str | None = None
    while True:
        if token is not None:
            asked["ContinuationToken"] = token
        page = wire.call(f"list {prefix}", lambda _: wire.boto3.page(asked))
        yield page
        if not page.get("IsTruncated"):
            return
        following = page.get("NextContinuationToken")
        if not following or following == token:
            broken = failures.Failure("ListingCutShort")
            raise failures.translate(broken, f"list {prefix}: the server broke it off", wire.where, 1, 0)
        token = following
