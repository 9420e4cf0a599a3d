"""Broken journals, each with its stated outcome: what readers give, and what a writer leaves of the tail."""

import json

import pytest
from attempt_model import flat, line_of, lines_of, page_model, read_model, repaired

from oarbank_cas.attempt import Journal, Pager, content, follow, page, read
from oarbank_cas.errors import CorruptError

ONE, TWO, THREE = (lines_of([n]) for n in (1, 2, 3))
FLIPPED = bytes([TWO[60] ^ 1])

# Name: the file, the number of the record at which reading ends with an error (None: it reads whole), records counted.
CORPUS = {
    "empty": (b"", None, 0),
    "whole": (ONE + TWO + THREE, None, 3),
    "torn": (ONE + TWO[:-9], None, 1),
    "torn by its newline alone": (ONE + TWO[:-1], None, 1),
    "torn from its start": (TWO[:-1], None, 0),
    "a head cut off": (ONE[7:] + TWO, 0, 2),
    "a middle cut out": (ONE + TWO[:40] + TWO[50:] + THREE, 1, 3),
    "a bit flipped in the checksum": (ONE + TWO[:60] + FLIPPED + TWO[61:] + THREE, 1, 3),
    "a newline flipped": (ONE + TWO[:-1] + b"\x0b" + THREE, 1, 2),
    "a wrong checksum": (ONE + line_of("2", checksum="0" * 64) + THREE, 1, 3),
    "a payload changed": (ONE + TWO.replace(b'"2"', b'"3"') + THREE, 1, 3),
    "the outer key twice": (ONE + TWO.replace(b"{", b'{"checksum": "x", ', 1) + THREE, 1, 3),
    "a key of the payload twice, which is the payload's matter": (line_of('{"a":1,"a":2}'), None, 1),
    "another version, which is for the reader to judge": (ONE + line_of("2", 99), None, 2),
    "a version that is no integer": (ONE + TWO.replace(b": 1,", b": 1.5,"), 1, 2),
    "CRLF": ((ONE + TWO + THREE).replace(b"\n", b"\r\n"), None, 3),
    "CR alone": ((ONE + TWO).replace(b"\n", b"\r"), None, 0),
    "blank lines": (b"\n\n" + ONE + b" \t\r\n" + TWO + b"\n", None, 2),
    "blank as Unicode sees it": (ONE + "\u00a0\n".encode() + TWO, 1, 3),
    "a form feed": (ONE + b"\x0c\n" + TWO, 1, 3),
    "NUL bytes in a line": (ONE + b"\x00" * 4096 + b"\n" + TWO, 1, 3),
    "NUL bytes in the tail": (ONE + b"\x00" * 4096, None, 1),
    "invalid UTF-8": (ONE + TWO.replace(b'"2"', b'"\xff"'), 1, 2),
    "overlong UTF-8": (ONE + TWO.replace(b'"2"', b'"\xc0\xaf"'), 1, 2),
    "a byte order mark": (b"\xef\xbb\xbf" + ONE + TWO, 0, 2),
    "UTF-16": ("".join(map(chr, ONE)).encode("utf-16-le") + b"\n", 0, 2),
    "two records in a line": (ONE[:-1] + TWO, 0, 1),
    "JSON that is no record": (ONE + b"{}\n[]\n1\n", 1, 4),
    "text": (b"hello\nworld\n", 0, 2),
    "very deep": (ONE + b"[" * 200_000 + b"\n", 1, 2),
    "binary": (bytes(range(256)) * 4 + b"\n", 0, 5),
}


@pytest.mark.parametrize("name", CORPUS)
def test_outcome(name, tmp_path):
    data, bad, available = CORPUS[name]
    path = tmp_path / "j.jsonl"
    path.write_bytes(data)
    good = available if bad is None else bad
    for reader in (lambda: read(path), lambda: follow(path, stop=lambda: True)):
        records = reader()
        for _ in range(good):
            next(records)
        with pytest.raises(StopIteration if bad is None else CorruptError):
            next(records)
    fast = Pager(path)
    for pages in (lambda o, n: page(path, o, n), fast.page):
        if bad is None:
            assert flat(pages(0, 100)) == page_model(data, 0, 100)
        else:
            with pytest.raises(CorruptError, match=f"record {bad} "):
                pages(0, 100)
            if bad:
                assert pages(0, bad).available == available
        assert pages(available, 5) == ((), available, available)
    assert content(path, "records") == data[: data.rfind(b"\n") + 1]
    Journal(path).append("new")
    after = path.read_bytes()
    assert after.startswith(repaired(data))
    assert read_model(after[len(repaired(data)) :]) == [(1, '"new"')]


def test_a_bit_flip_anywhere_in_a_journal_is_noticed_or_harmless(tmp_path):
    data = ONE + line_of('{"k": "v"}') + THREE
    path = tmp_path / "j.jsonl"
    payloads = ["1", '{"k": "v"}', "3"]
    for at in range(len(data)):
        for bit in (0, 1, 3, 5, 7):
            path.write_bytes(data[:at] + bytes([data[at] ^ (1 << bit)]) + data[at + 1 :])
            try:
                got = [record.payload_json for record in read(path)]
            except CorruptError:
                continue
            # Only the version (which no checksum covers), white space and the last newline can change in silence.
            assert got == payloads or (at == len(data) - 1 and got == payloads[:2])


def test_five_thousand_records_are_a_journal_like_any_other(tmp_path):
    path = tmp_path / "j.jsonl"
    path.write_bytes(lines_of(range(5000)))
    assert [json.loads(record.payload_json) for record in read(path)] == list(range(5000))
    assert page(path, 4999, 5).payloads == [4999]
