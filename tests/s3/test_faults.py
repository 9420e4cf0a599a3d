"""Whatever a network does, an operation ends in the right answer or in a clear error.

Each plan runs a seeded sequence of operations through a proxy that harms a third of the requests. A hundred by default;
`OARBANK_CAS_TEST_BUDGET=10 pytest tests/s3/test_faults.py` runs a thousand.
"""

from __future__ import annotations

import hashlib
import itertools
import random

import pytest
import s3_kit
from proxy import HARMS, Proxy

from oarbank_cas.backends.s3.backend import S3Backend
from oarbank_cas.backends.s3.retry import Retry
from oarbank_cas.errors import CasError, CorruptError, NotFoundError, StorageIOError, UnavailableError

PLANS = 100
GROUPS = 10


class Waits:
    """Backoff that takes no time."""

    def __init__(self, seed):
        self.now = 0.0
        self.chance = random.Random(seed)

    def retry(self):
        return Retry(tries=8, sleep=self.sleep, seconds=lambda: self.now, chance=self.chance.random)

    def sleep(self, seconds):
        assert 0 <= seconds <= 10
        self.now += seconds


@pytest.fixture(params=["boto3", "obstore"], autouse=True)
def engine(request, monkeypatch):
    """Each of these with both engines."""
    monkeypatch.setattr(s3_kit, "ENGINE", request.param)


def harmed_backend(proxy, place, seed):
    waits = Waits(seed)
    wire = s3_kit.Wire(place, s3_kit.options(endpoint_url=proxy.endpoint), waits.retry())
    return S3Backend(wire, s3_kit.capabilities())


@pytest.fixture
def plain_bytes():
    """An object's bytes, read past the proxy; None where it is absent."""
    s3 = s3_kit.plain()

    def read(place, name):
        try:
            return s3.get_object(Bucket=place.bucket, Key=place.prefix + name)["Body"].read()
        except s3.exceptions.NoSuchKey:
            return None

    return read


class Plan:
    """One sequence of operations by one client, and what must be true of it.

    An operation that raised may or may not have been done; everything else is known.
    """

    def __init__(self, backend, place, seed, plain_bytes):
        self.backend = backend
        self.place = place
        self.chance = random.Random(seed)
        self.plain = plain_bytes
        self.serial = itertools.count()
        self.known = {}  # name -> the contents, any of which may stand; None for absent

    def fresh(self):
        return (b"%d " % next(self.serial)) * self.chance.choice((1, 40, 4000, 60_000))

    def incoming(self, data):
        incoming = self.backend.incoming(len(data))
        incoming.write(data)
        return incoming

    def run(self, steps):
        ended = []
        for _ in range(steps):
            name = f"x/{self.chance.randrange(4)}"
            step = self.chance.choice(
                (self.create, self.create, self.replace, self.delete, self.read, self.copy, self.listing)
            )
            may = self.known.setdefault(name, {None})
            try:
                step(name, may)
                ended.append("done")
            except (UnavailableError, StorageIOError):
                ended.append("error")
            # What stands is whole, and one of those that may stand.
            self.check(name, f"{name}.copy")
        self.check(*self.known)
        return ended

    def check(self, *names):
        for name in names:
            if name in self.known:
                stands = self.plain(self.place, name)
                assert stands in self.known[name], (name, stands and stands[:20])
                self.known[name] = {stands}

    def create(self, name, may):
        data = self.fresh()
        may.add(data)
        before = may - {data}
        try:
            stat = self.backend.commit([(name, self.incoming(data))])[0]
        except CasError:
            if None not in before:
                may.discard(data)  # it stood: a create changes nothing then
            raise
        if stat is None:
            assert None not in before, "told that it lost to nobody"
            may.discard(data)
        else:
            assert before == {None}
            assert stat.size == len(data)
            self.known[name] = {data}

    def replace(self, name, may):
        standing = self.backend.stat(name)
        assert (standing is None) == (may == {None})
        if standing is None:
            return
        data = self.fresh()
        may.add(data)
        stat = self.backend.replace(name, self.incoming(data), standing.validator)
        assert stat is not None, "told that it lost to nobody"
        self.known[name] = {data}

    def delete(self, name, may):
        before = set(may)
        may.add(None)
        removed = self.backend.delete(name)
        if before == {None}:
            assert not removed  # where the network asks twice, the second answer says that nothing was there
        self.known[name] = {None}

    def read(self, name, may):
        try:
            data, stat = self.backend.read(name, 2**30)
        except NotFoundError:
            assert may == {None}
            return
        assert stat.size == len(data)
        self.same(data, may)

    @staticmethod
    def same(data, may):
        """The bytes are right, but for a bit that flipped on the way to a reader: that is seen by digests, above."""
        (stands,) = may
        assert stands is not None
        assert len(data) == len(stands)
        assert sum(a != b for a, b in zip(data, stands, strict=True)) <= 1

    def copy(self, name, may):
        target = f"{name}.copy"
        there = self.known.setdefault(target, {None})
        before = set(there)
        there |= may - {None}
        try:
            made = self.backend.copy(name, target)
        except NotFoundError:
            assert may == {None}
            self.known[target] = before
            return
        if made is None:
            assert before != {None}, "told that it lost to nobody"
            self.known[target] = before
        else:
            self.known[target] = set(may)

    def listing(self, name, may):
        del name, may
        listed = [stat.name for stat in self.backend.listing("x/")]
        assert listed == sorted(name for name, contents in self.known.items() if contents != {None})


def run_plan(seed, plain_bytes, harms=None, share=0.3):
    place = s3_kit.fresh_place()
    with Proxy(s3_kit.server()["endpoint"], seed, share, harms=harms) as proxy:
        backend = harmed_backend(proxy, place, seed)
        try:
            return Plan(backend, place, seed, plain_bytes).run(10), proxy.log
        finally:
            backend.close()


# A bit that flips in an answer's XML or headers is not for a checksum to find: TLS does, and the digests above.
CHECKED = tuple(harm for harm in HARMS if harm != "flip-answer")


@pytest.mark.parametrize("group", range(GROUPS))
def test_seeded_plans(group, budget, plain_bytes):
    if not s3_kit.capabilities().create_if_absent:
        pytest.skip("this server ignores conditions")
    done = []
    for number in range(PLANS * budget // GROUPS):
        ended, _ = run_plan(f"{group}.{number}", plain_bytes, CHECKED)
        done += ended
    assert done.count("done") > 0.9 * len(done)


@pytest.mark.parametrize("harm", CHECKED)
def test_each_harm_alone(harm, plain_bytes):
    if not s3_kit.capabilities().create_if_absent:
        pytest.skip("this server ignores conditions")
    ended, log = run_plan(f"alone {harm}", plain_bytes, (harm,), 0.6)
    assert "done" in ended
    assert [found for _, _, found in log if found] != []


def test_a_flipped_bit_on_the_way_back_is_found_by_the_digest(store, s3):
    from oarbank_cas import Store

    data = bytes(range(256)) * 200
    digest = store.put_bytes(data).digest
    found = 0
    for seed in range(6):
        with Proxy(s3_kit.server()["endpoint"], seed, share=0.0) as proxy:
            options = s3_kit.options(endpoint_url=proxy.endpoint)
            with Store.open(store.backend.where, read_only=True, s3=options) as harmed:
                proxy.harms, proxy.share, proxy.most = ("flip-answer",), 1.0, 1
                try:
                    assert hashlib.sha256(harmed.get_bytes(digest)).hexdigest() == digest
                except (CorruptError, StorageIOError):
                    found += 1
    assert found
    assert store.get_bytes(digest) == data, "a good blob is not thrown away for a bad wire"


@pytest.mark.parametrize("harm", ["error-503", "reset-before", "error-429"])
def test_what_never_works_ends_in_a_clear_error(harm, place):
    waits = Waits(0)
    with Proxy(s3_kit.server()["endpoint"], 1, share=1.0, harms=(harm,), most=10**9) as proxy:
        backend = harmed_backend(proxy, place, 0)
        with pytest.raises(UnavailableError, match="8 times") as failed:
            backend.stat("x/a")
        assert "endpoint" in str(failed.value)
        assert len(proxy.log) == 8
        backend.close()
    del waits


def test_a_create_whose_answer_is_lost_does_not_lose_to_itself(place, put):
    with Proxy(s3_kit.server()["endpoint"], 1, share=1.0, harms=("reset-after",), most=1) as proxy:
        backend = harmed_backend(proxy, place, 0)
        stat = put(backend, "x/a", b"mine")
        assert stat is not None
        assert [harm for method, _, harm in proxy.log if method == "PUT"] == ["reset-after", None]
        assert put(backend, "x/a", b"other") is None
        backend.close()
