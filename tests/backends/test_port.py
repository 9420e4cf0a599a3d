"""The guarantees of `oarbank_cas.backends.base`, as rules that every backend keeps."""

from __future__ import annotations

import threading

import pytest

from oarbank_cas.errors import ConflictError, CorruptError, NotFoundError, UnsupportedError

LIMIT = 2**20


def names_of(listing):
    return [stat.name for stat in listing]


def together(*works):
    """Run the works at the same moment, a thread each; what they returned."""
    barrier = threading.Barrier(len(works))
    results = [None] * len(works)
    errors = []

    def run(index, work):
        try:
            barrier.wait()
            results[index] = work()
        except BaseException as error:  # noqa: BLE001 - told to the test
            errors.append(error)

    threads = [threading.Thread(target=run, args=item) for item in enumerate(works)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    return results


class TestCreating:
    def test_what_was_committed_is_read_back(self, backend, put):
        stat = put(backend, "x/ab/one", b"hello")
        assert stat.name == "x/ab/one"
        assert stat.size == 5
        assert backend.stat("x/ab/one") == stat
        assert backend.read("x/ab/one", LIMIT) == (b"hello", stat)
        with backend.open("x/ab/one") as reader:
            assert reader.stat == stat
            assert reader.read(100) == b"hello"
            assert reader.read(100) == b""

    def test_an_empty_object_is_an_object(self, backend, put):
        assert put(backend, "x/empty", b"").size == 0
        assert backend.read("x/empty", 0)[0] == b""
        assert names_of(backend.listing("x/")) == ["x/empty"]

    def test_all_that_was_written_arrives_whatever_it_is_written_as(self, backend):
        incoming = backend.incoming()
        for chunk in (b"a", bytearray(b"bc"), memoryview(b"xdefx")[1:4], b""):
            incoming.write(chunk)
        assert incoming.size == 6
        incoming.finish()
        incoming.finish()
        backend.commit([("x/a", incoming)])
        assert backend.read("x/a", LIMIT)[0] == b"abcdef"

    def test_many_megabytes_arrive(self, backend):
        block = bytes(range(256)) * 4096
        incoming = backend.incoming(20 * len(block))
        for _ in range(20):
            incoming.write(block)
        assert backend.commit([("x/big", incoming)])[0].size == 20 * len(block)
        assert backend.read("x/big", 2**30)[0] == block * 20

    def test_nothing_is_visible_before_the_commit(self, backend):
        incoming = backend.incoming()
        incoming.write(b"half")
        assert backend.stat("x/a") is None
        assert names_of(backend.listing("x/")) == []
        incoming.write(b"whole")
        backend.commit([("x/a", incoming)])
        assert backend.read("x/a", LIMIT)[0] == b"halfwhole"

    def test_a_commit_never_overwrites(self, backend, put):
        first = put(backend, "x/a", b"first")
        assert put(backend, "x/a", b"second") is None
        assert backend.read("x/a", LIMIT) == (b"first", first)

    def test_one_call_answers_each_item_in_order(self, backend, put):
        put(backend, "x/03", b"old")
        items = []
        for number in range(10):
            incoming = backend.incoming()
            incoming.write(b"%d" % number)
            items.append((f"x/{number:02}", incoming))
        stats = backend.commit(items)
        assert [stat and stat.name for stat in stats] == [None if n == 3 else f"x/{n:02}" for n in range(10)]
        assert [backend.read(f"x/{n:02}", LIMIT)[0] for n in range(10)] == [
            b"old" if n == 3 else b"%d" % n for n in range(10)
        ]

    def test_of_one_name_twice_in_a_call_the_first_wins(self, backend):
        one, two = backend.incoming(), backend.incoming()
        one.write(b"one")
        two.write(b"two")
        first, second = backend.commit([("x/a", one), ("x/a", two)])
        assert first is not None
        assert second is None
        assert backend.read("x/a", LIMIT)[0] == b"one"

    def test_an_empty_commit_is_nothing(self, backend):
        assert backend.commit([]) == []

    def test_discarding_leaves_nothing(self, backend):
        incoming = backend.incoming()
        incoming.write(b"x" * 1000)
        incoming.discard()
        incoming.discard()
        assert names_of(backend.listing("x/")) == []

    def test_discarding_after_the_commit_takes_nothing_back(self, backend):
        incoming = backend.incoming()
        incoming.write(b"kept")
        backend.commit([("x/a", incoming)])
        incoming.discard()
        assert backend.read("x/a", LIMIT)[0] == b"kept"

    def test_one_of_many_threads_wins(self, backend, put, turns):
        for turn in range(turns):
            name = f"x/{turn}"
            stats = together(*[lambda n=n, name=name: put(backend, name, b"%d" % n) for n in range(8)])
            (winner,) = [n for n, stat in enumerate(stats) if stat is not None]
            assert backend.read(name, LIMIT) == (b"%d" % winner, stats[winner])


class TestReading:
    def test_an_object_can_be_read_from_any_byte_on(self, backend, put):
        put(backend, "x/a", b"0123456789")
        for start in range(12):
            with backend.open("x/a", start) as reader:
                assert reader.stat.size == 10
                assert reader.read(3) == b"0123456789"[start : start + 3]

    @pytest.mark.parametrize(("start", "length"), [(0, 3), (2, 4), (9, 1), (9, 5), (10, 5), (12, 5), (0, 100), (4, 0)])
    def test_a_range_is_read(self, backend, put, start, length):
        put(backend, "x/a", b"0123456789")
        put(backend, "x/empty", b"")
        assert backend.read_range("x/a", start, length) == b"0123456789"[start : start + length]
        assert backend.read_range("x/empty", start, length) == b""

    def test_a_range_of_what_is_absent(self, backend):
        with pytest.raises(NotFoundError):
            backend.read_range("x/a", 0, 10)

    def test_reading_into_a_buffer(self, backend, put):
        put(backend, "x/a", b"0123456789")
        with backend.open("x/a") as reader:
            buffer = bytearray(7)
            assert reader.readinto(memoryview(buffer)) == 7
            assert bytes(buffer) == b"0123456"
            assert reader.readinto(memoryview(buffer)) == 3
            assert bytes(buffer[:3]) == b"789"
            assert reader.readinto(memoryview(buffer)) == 0

    def test_a_reader_may_be_closed_twice(self, backend, put):
        put(backend, "x/a", b"a")
        reader = backend.open("x/a")
        reader.close()
        reader.close()

    def test_a_larger_object_is_refused_and_one_at_the_limit_is_not(self, backend, put):
        put(backend, "x/a", b"12345")
        assert backend.read("x/a", 5)[0] == b"12345"
        with pytest.raises(CorruptError, match="x/a"):
            backend.read("x/a", 4)

    def test_what_is_absent_is_said_to_be(self, backend, put):
        put(backend, "x/a", b"a")
        for name in ("x/b", "y/b", "x/a.b", "z/y/x/w"):
            assert backend.stat(name) is None
            with pytest.raises(NotFoundError):
                backend.read(name, LIMIT)
            with pytest.raises(NotFoundError):
                backend.open(name)
            with pytest.raises(NotFoundError):
                backend.copy(name, "x/c")
            assert backend.delete(name) is False
            assert backend.delete(name, "validator") is False
        assert names_of(backend.listing("x/")) == ["x/a"]

    def test_a_reader_keeps_the_incarnation_that_it_opened(self, backend, put, swap):
        first = put(backend, "x/a", b"first" * 1000)
        with backend.open("x/a") as replaced, backend.open("x/a") as deleted:
            assert replaced.read(5) == b"first"
            second = swap(backend, "x/a", b"other" * 1000, first.validator)
            assert replaced.read(5) == b"first"
            backend.delete("x/a", second.validator)
            assert deleted.read(5) == b"first"
            assert replaced.stat == deleted.stat == first


class TestIdentity:
    def test_replacing_needs_the_very_incarnation(self, backend, put, swap):
        first = put(backend, "x/a", b"1")
        second = swap(backend, "x/a", b"2", first.validator)
        assert backend.read("x/a", LIMIT) == (b"2", second)
        assert swap(backend, "x/a", b"3", first.validator) is None
        assert swap(backend, "x/a", b"3", "nonsense") is None
        assert backend.read("x/a", LIMIT) == (b"2", second)

    def test_replacing_never_creates(self, backend, put, swap):
        first = put(backend, "x/a", b"1")
        backend.delete("x/a")
        assert swap(backend, "x/a", b"2", first.validator) is None
        assert swap(backend, "y/never", b"2", first.validator) is None
        assert names_of(backend.listing("x/")) == []

    def test_deleting_a_given_incarnation(self, backend, put, swap):
        first = put(backend, "x/a", b"1")
        second = swap(backend, "x/a", b"2", first.validator)
        assert backend.delete("x/a", first.validator) is False
        assert backend.stat("x/a") == second
        assert backend.delete("x/a", second.validator) is True
        assert backend.stat("x/a") is None

    def test_deleting_whatever_stands(self, backend, put):
        put(backend, "x/a", b"1")
        assert backend.delete("x/a") is True
        assert backend.delete("x/a") is False

    def test_a_deleted_name_may_be_made_again(self, backend, put):
        first = put(backend, "x/a", b"1")
        backend.delete("x/a")
        second = put(backend, "x/a", b"1" if backend.exact_identity else b"2")
        assert second is not None
        assert second.validator != first.validator
        assert backend.delete("x/a", first.validator) is False

    def test_the_validator_is_the_same_wherever_it_is_given(self, backend, put):
        stat = put(backend, "x/a", b"1")
        (listed,) = backend.listing("x/")
        with backend.open("x/a") as reader:
            assert stat == backend.stat("x/a") == listed == reader.stat == backend.read("x/a", 1)[1]

    def test_validators_never_come_again_by_replacing(self, backend, put, swap):
        stats = [put(backend, "x/a", b"....")]
        for turn in range(200):
            stats.append(swap(backend, "x/a", b"%04d" % turn, stats[-1].validator))
        assert len({stat.validator for stat in stats}) == 201

    def test_validators_never_come_again_by_deleting(self, backend, put):
        seen = set()
        for turn in range(200):
            seen.add(put(backend, "x/a", b"%04d" % turn).validator)
            backend.delete("x/a")
        assert len(seen) == 200

    def test_one_of_many_threads_replaces(self, backend, put, swap, turns):
        standing = put(backend, "x/a", b"start")
        for turn in range(turns):
            expected = standing.validator
            works = [
                lambda data=b"%d %d" % (turn, n), expected=expected: swap(backend, "x/a", data, expected)
                for n in range(6)
            ]
            stats = together(*works)
            (winner,) = [n for n, stat in enumerate(stats) if stat is not None]
            standing = stats[winner]
            assert backend.read("x/a", LIMIT) == (b"%d %d" % (turn, winner), standing)

    def test_one_of_replace_delete_and_replace_acts(self, backend, put, swap, turns):
        for turn in range(turns):
            standing = put(backend, f"x/{turn}", b"start")
            name, expected = standing.name, standing.validator
            done = together(
                lambda name=name, expected=expected: swap(backend, name, b"one", expected),
                lambda name=name, expected=expected: backend.delete(name, expected),
                lambda name=name, expected=expected: swap(backend, name, b"two", expected),
                lambda name=name, expected=expected: backend.delete(name, expected),
            )
            if not backend.exact_delete:
                done = [done[0] or done[1] or done[3] or done[2], done[0] and done[2]]
            assert sum(map(bool, done)) == 1


class TestMoving:
    @pytest.fixture(autouse=True)
    def _needs_atomic_move(self, backend):
        if not backend.atomic_move:
            pytest.skip("this storage copies and deletes")

    def test_a_renamed_object_stands_under_its_new_name_alone(self, backend, put):
        stat = put(backend, "x/a", b"moved")
        assert backend.rename("x/a", "y/deep/b", stat.validator) is True
        assert backend.stat("x/a") is None
        data, moved = backend.read("y/deep/b", LIMIT)
        assert data == b"moved"
        assert moved.name == "y/deep/b"

    def test_renaming_needs_the_very_incarnation(self, backend, put, swap):
        first = put(backend, "x/a", b"1")
        second = swap(backend, "x/a", b"2", first.validator)
        assert backend.rename("x/a", "x/b", first.validator) is False
        assert backend.rename("x/none", "x/b", first.validator) is False
        assert backend.stat("x/a") == second
        assert backend.stat("x/b") is None

    def test_renaming_never_overwrites(self, backend, put):
        first, second = put(backend, "x/a", b"1"), put(backend, "x/b", b"2")
        with pytest.raises(ConflictError, match="x/b"):
            backend.rename("x/a", "x/b", first.validator)
        assert backend.stat("x/a") == first
        assert backend.stat("x/b") == second

    def test_one_of_many_threads_renames(self, backend, put):
        for turn in range(10):
            stat = put(backend, f"x/{turn}", b"x")
            done = together(
                *[lambda n=n, s=stat: backend.rename(s.name, f"{s.name}.{n}", s.validator) for n in range(6)]
            )
            assert sum(done) == 1
            assert names_of(backend.listing("x/", after=f"x/{turn}."))[0] == f"x/{turn}.{done.index(True)}"
            backend.delete(f"x/{turn}.{done.index(True)}")

    def test_a_touched_object_has_the_present_time(self, backend, put):
        put(backend, "x/a", b"1")
        before = backend.now()
        touched = backend.touch("x/a")
        assert touched.time_ns >= before
        assert backend.read("x/a", LIMIT) == (b"1", touched)

    def test_touching_what_is_absent(self, backend):
        assert backend.touch("x/a") is None
        assert backend.stat("x/a") is None


class TestCopying:
    def test_a_copy_has_the_bytes_and_a_fresh_time(self, backend, put):
        first = put(backend, "x/a", b"bytes" * 100_000)
        before = backend.now()
        copied = backend.copy("x/a", "y/b")
        assert copied.name == "y/b"
        assert copied.time_ns >= before
        assert backend.read("y/b", LIMIT) == (b"bytes" * 100_000, copied)
        assert backend.stat("x/a") == first

    def test_a_copy_never_overwrites(self, backend, put):
        put(backend, "x/a", b"1")
        second = put(backend, "x/b", b"2")
        assert backend.copy("x/a", "x/b") is None
        assert backend.read("x/b", LIMIT) == (b"2", second)

    def test_one_of_many_threads_copies(self, backend, put, turns):
        if hasattr(backend, "capabilities") and not backend.capabilities.copy_if_absent:
            pytest.skip("this server copies over what stands")
        put(backend, "x/a", b"1" * 10_000)
        stats = together(*[lambda: backend.copy("x/a", "x/b") for _ in range(6)])
        assert sum(stat is not None for stat in stats) == 1

    def test_moving_is_refused_where_it_is_not_one_step(self, backend, put):
        if backend.atomic_move:
            pytest.skip("this storage can")
        stat = put(backend, "x/a", b"1")
        with pytest.raises(UnsupportedError):
            backend.rename("x/a", "x/b", stat.validator)
        with pytest.raises(UnsupportedError):
            backend.touch("x/a")
        assert backend.stat("x/a") == stat


class TestTime:
    def test_nothing_is_older_than_the_time_asked_before_it(self, backend, put, swap):
        for turn in range(50):
            before = backend.now()
            made = put(backend, f"x/{turn}", b"1")
            assert before <= made.time_ns
            between = backend.now()
            assert between <= swap(backend, made.name, b"2", made.validator).time_ns

    def test_time_does_not_go_back(self, backend):
        times = [backend.now() for _ in range(200)]
        assert times == sorted(times)

    def test_the_time_is_that_of_the_commit_not_of_the_writing(self, backend):
        incoming = backend.incoming()
        incoming.write(b"slow")
        incoming.finish()
        later = backend.now()
        assert backend.commit([("x/a", incoming)])[0].time_ns >= later


class TestListing:
    NAMES = ("x/a.b", "x/a/b", "x/a/b.c", "x/a/b0/c", "x/a/ba", "x/a-", "x/ab", "x/a0", "x/B", "x/~", "x/b/c", "x/b!")

    @pytest.fixture
    def filled(self, backend, put):
        for name in (*self.NAMES, "x.y/a", "w/a", "y/a", "xx/a"):
            put(backend, name, name.encode())
        return backend

    def test_names_come_in_the_order_of_their_bytes(self, filled):
        assert names_of(filled.listing("x/")) == sorted(self.NAMES)

    def test_a_prefix_is_a_folder(self, filled):
        assert names_of(filled.listing("x/a/")) == ["x/a/b", "x/a/b.c", "x/a/b0/c", "x/a/ba"]
        assert names_of(filled.listing("x/none/")) == []

    def test_without_a_prefix_everything_is_listed(self, filled):
        listed = [name for name in names_of(filled.listing("")) if not name.startswith(("tmp/", "oarbank-cas"))]
        assert listed == sorted([*self.NAMES, "x.y/a", "w/a", "y/a", "xx/a"])

    @pytest.mark.parametrize(
        "after", ["", "w", "x/", "x/a", "x/a.b", "x/a/", "x/a/a", "x/a/b", "x/a/b0", "x/a/b0/c", "x/a0", "x/~", "y"]
    )
    def test_a_listing_goes_on_after_any_name(self, filled, after):
        assert names_of(filled.listing("x/", after)) == [name for name in sorted(self.NAMES) if name > after]
        assert names_of(filled.listing("x/a/", after)) == [
            name for name in sorted(self.NAMES) if name > after and name.startswith("x/a/")
        ]

    def test_what_is_listed_is_what_stat_says(self, filled):
        assert [filled.stat(stat.name) for stat in filled.listing("x/")] == list(filled.listing("x/"))

    def test_more_than_a_page(self, backend):
        items = []
        for number in range(2500):
            items.append((f"x/{number % 7}/{number:04}", backend.incoming()))
            items[-1][1].finish()
        backend.commit(items)
        assert names_of(backend.listing("x/")) == sorted(name for name, _ in items)

    def test_what_stood_throughout_is_listed_while_others_come_and_go(self, backend, put):
        standing = [f"x/{n % 5}/s{n:03}" for n in range(100)]
        for name in standing:
            put(backend, name, b"s")
        stop = threading.Event()
        failed = []

        def churn(seed):
            try:
                turn = 0
                while not stop.is_set():
                    name = f"x/{(turn + seed) % 6}/{'aszz'[turn % 4]}{turn % 9}{seed}"
                    put(backend, name, b"churn")
                    backend.delete(name)
                    turn += 1
            except BaseException as error:  # noqa: BLE001 - told to the test
                failed.append(error)

        threads = [threading.Thread(target=churn, args=(seed,)) for seed in range(2)]
        for thread in threads:
            thread.start()
        try:
            for _ in range(15):
                listed = names_of(backend.listing("x/"))
                assert listed == sorted(set(listed))
                assert set(standing) <= set(listed)
        finally:
            stop.set()
            for thread in threads:
                thread.join()
        assert failed == []


class TestManyAtOnce:
    def test_removing_many(self, backend, put):
        for name in ("x/a", "x/b", "x/c"):
            put(backend, name, b"1")
        backend.delete_many(["x/a", "x/none", "x/c"])
        assert names_of(backend.listing("x/")) == ["x/b"]
        backend.delete_many([])
        assert names_of(backend.listing("x/")) == ["x/b"]

    def test_moving_and_touching_many(self, backend, put):
        if not backend.atomic_move:
            pytest.skip("this storage copies and deletes")
        stats = [put(backend, f"x/{n}", b"%d" % n) for n in range(8)]
        moves = [(stat.name, f"y/{n}/b", "nonsense" if n == 3 else stat.validator) for n, stat in enumerate(stats)]
        assert backend.rename_many(moves) == [n != 3 for n in range(8)]
        assert names_of(backend.listing("x/")) == ["x/3"]
        assert [backend.read(f"y/{n}/b", 9)[0] for n in range(8) if n != 3] == [b"%d" % n for n in range(8) if n != 3]
        before = backend.now()
        touched = backend.touch_many(["y/0/b", "y/3/b", "y/7/b"])
        assert touched == [backend.stat("y/0/b"), None, backend.stat("y/7/b")]
        assert touched[0].time_ns >= before
        assert backend.rename_many([]) == backend.touch_many([]) == []

    def test_a_delete_that_comes_too_late_is_refused(self, backend, put):
        put(backend, "x/a", b"1")
        if not backend.expiring_delete:
            with pytest.raises(UnsupportedError):
                backend.delete_expiring("x/a", backend.now(), 60)
            assert backend.stat("x/a") is not None
            return
        with pytest.raises(ConflictError):
            backend.delete_expiring("x/a", backend.now() - 120 * 10**9, 60)
        assert backend.stat("x/a") is not None
        assert backend.delete_expiring("x/a", backend.now(), 60) is True
        assert backend.delete_expiring("x/a", backend.now(), 60) is False


class TestTheRest:
    def test_objects_are_no_strays(self, backend, put):
        put(backend, "x/a/b", b"1")
        assert list(backend.strays("x/")) == []
        assert list(backend.strays("none/")) == []

    def test_flushing_needs_no_more_than_names(self, backend, put):
        put(backend, "x/a", b"1")
        backend.flush([])
        backend.flush(iter(["x/a"]))
        backend.flush([put(backend, f"x/{n}/a", b"1").name for n in range(20)])

    def test_a_clone_has_the_bytes_or_the_file_is_untouched(self, backend, put, tmp_path):
        put(backend, "x/a", b"bytes" * 10_000)
        with open(tmp_path / "clone", "w+b") as file:
            done = backend.clone("x/a", file.fileno())
            assert file.read() == (b"bytes" * 10_000 if done else b"")

    def test_sweeping_leaves_what_lives(self, backend):
        incoming = backend.incoming()
        incoming.write(b"alive")
        backend.sweep()
        incoming.write(b"!")
        backend.commit([("x/a", incoming)])
        assert backend.read("x/a", LIMIT)[0] == b"alive!"

    def test_closing_twice_is_harmless(self, backend, put):
        put(backend, "x/a", b"1")
        backend.close()
        backend.close()

    def test_no_half_object_is_ever_seen(self, backend, put, swap):
        size = 300_000
        stop = threading.Event()
        failed = []

        def write(seed):
            try:
                turn = 0
                while not stop.is_set():
                    data = bytes([(turn + seed) % 256]) * size
                    standing = backend.stat("x/a") or put(backend, "x/a", data)
                    if standing is not None:
                        if turn % 3:
                            swap(backend, "x/a", data, standing.validator)
                        else:
                            backend.delete("x/a", standing.validator)
                    turn += 1
            except BaseException as error:  # noqa: BLE001 - told to the test
                failed.append(error)

        threads = [threading.Thread(target=write, args=(seed,)) for seed in range(2)]
        for thread in threads:
            thread.start()
        seen = 0
        try:
            while seen < 100 and not failed:
                try:
                    data, stat = backend.read("x/a", size)
                except NotFoundError:
                    continue
                assert len(data) == size == stat.size
                assert data == data[:1] * size
                seen += 1
        finally:
            stop.set()
            for thread in threads:
                thread.join()
        assert failed == []
