"""Attempts published into a real server's bucket, and read there by ranges."""

import pytest

from oarbank_cas.attempt import DirectoryAttempt, Journal
from oarbank_cas.errors import ConflictError


def test_published_and_read(store, tmp_path):
    count = 30_000
    journal = Journal(tmp_path / "results.jsonl", durable=False)
    journal.append_many([[number, "x" * 80] for number in range(count)])
    done = store.publish_attempt(tmp_path, "p", expires_at="2099-01-01")
    assert done.published
    assert not store.publish_attempt(tmp_path, "p", expires_at="2098-01-01").published
    lasting = store.publish_attempt(tmp_path, "p")
    assert (lasting.published, lasting.dataset, lasting.pin.expires_at) == (True, done.dataset, None)
    there, here = store.attempt("p"), DirectoryAttempt(tmp_path)
    assert there.listing() == here.listing()
    for offset in (0, count // 2, count - 1, count, 10**7):
        assert there.page("results", offset, 10) == here.page("results", offset, 10)
    assert there.content("results") == here.content("results")
    assert sum(1 for _ in there.follow("results", 1)) == count - 1
    journal.append(0)
    with pytest.raises(ConflictError, match="keeps another attempt"):
        store.publish_attempt(tmp_path, "p")
