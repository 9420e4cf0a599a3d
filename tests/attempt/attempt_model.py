"""A naive second opinion on journals: whole files in memory, no cleverness, nothing taken from the package."""

import hashlib
import json
import os

from hypothesis import settings

BUDGET = float(os.environ.get("OARBANK_CAS_TEST_BUDGET", "1"))
CAP = 1_048_576


def quick(examples, **more):
    return settings(settings.get_profile("attempt"), max_examples=max(1, int(examples * BUDGET)), **more)


def line_of(text, version=1, checksum=None, newline=b"\n"):
    checksum = checksum or hashlib.sha256(text.encode("utf-8")).hexdigest()
    body = {"schema_version": version, "checksum": checksum, "payload_json": text}
    return json.dumps(body).encode("ascii") + newline


def lines_of(values, version=1):
    return b"".join(line_of(json.dumps(value), version) for value in values)


class BadError(Exception):
    pass


def record_of(line):
    """(version, text) of a line, or BadError."""

    def pairs(found):
        keys = [key for key, _ in found]
        if len(keys) != len(set(keys)):
            raise ValueError
        return ("object", dict(found))

    def refuse(_):
        raise ValueError

    try:
        tag_and_members = json.loads(line.decode("utf-8"), object_pairs_hook=pairs)
        assert isinstance(tag_and_members, tuple)
        members = tag_and_members[1]
        assert sorted(members) == ["checksum", "payload_json", "schema_version"]
        version, checksum, text = members["schema_version"], members["checksum"], members["payload_json"]
        assert type(version) is int
        assert 0 <= version <= 2**53
        assert type(text) is str
        assert checksum == hashlib.sha256(text.encode("utf-8")).hexdigest()
        json.loads(text, parse_constant=refuse)
    except (ValueError, AssertionError, RecursionError):
        raise BadError from None
    return version, text


def complete_lines(data):
    return [line for line in data[: data.rfind(b"\n") + 1].split(b"\n")[:-1] if line.strip(b" \t\r")]


def read_model(data):
    return [record_of(line) for line in complete_lines(data)]


def page_model(data, offset, limit, cap=CAP, max_page=10_000):
    """(records, next offset, available), or BadError."""
    lines = complete_lines(data)
    taken, room = [], cap
    for line in lines[offset:]:
        if len(taken) == min(limit, max_page) or (taken and room <= 0):
            break
        version, text = record_of(line)
        size = len(text.encode("utf-8"))
        if taken and size > room:
            break
        taken.append((version, text))
        room -= size
    return taken, offset + len(taken), len(lines)


def repaired(data):
    """The file as a writer leaves it before it adds a record."""
    if not data or data.endswith(b"\n"):
        return data
    start = data.rfind(b"\n") + 1
    try:
        record_of(data[start:])
    except BadError:
        return data[:start]
    return data + b"\n"


def outcome(function, *args):
    """What the package says, in the model's terms; anything but its own error for damage escapes."""
    from oarbank_cas.errors import CorruptError

    try:
        return function(*args)
    except CorruptError:
        return BadError


def model_outcome(function, *args, **more):
    try:
        return function(*args, **more)
    except BadError:
        return BadError


def flat(page):
    return page if page is BadError else ([tuple(record) for record in page.records], page.next_offset, page.available)
