"""What doctor says, of real servers and of rules that a bucket may have."""

from __future__ import annotations

import json
from dataclasses import asdict, fields

import pytest
import s3_kit
from proxy import Proxy

from oarbank_cas import CorruptError, Store, UnavailableError
from oarbank_cas.backends.s3 import probe
from oarbank_cas.backends.s3.capabilities import Capabilities
from oarbank_cas.doctor import examine, lifecycle_problems


def test_what_is_found_is_kept_and_nothing_else_remains(store, place, s3):
    before = s3_kit.keys(place)
    report = examine(place.url, s3)
    assert s3_kit.keys(place) == before
    assert report.kept
    assert report.exit_code == 0
    assert Capabilities(**report.capabilities) == s3_kit.capabilities()
    assert {check["answer"] for check in report.checks} <= {"yes", "no"}
    assert abs(report.clock_difference_s) < 60
    json.dumps(report.to_json())


@pytest.mark.skipif(s3_kit.VARIABLE in s3_kit.os.environ, reason="says what SeaweedFS does")
def test_what_seaweed_honours():
    found = asdict(s3_kit.capabilities())
    lacks = {"payload_hash", "versioned"}
    assert found.pop("listing_order") == "folders"
    assert "SeaweedFS" in found.pop("server")
    assert {name for name, honoured in found.items() if not honoured} == lacks


def test_a_dry_run_keeps_nothing(place, s3):
    report = examine(place.url, s3, keep=False)
    assert not report.kept
    assert s3_kit.keys(place) == []


def test_a_place_without_a_store_stays_without_one(place, s3):
    assert not examine(place.url, s3).kept
    assert s3_kit.keys(place) == []


class TestAServerInTrouble:
    """The probe waits little, asks seldom, and what it could not find out is neither relied on nor kept."""

    @pytest.fixture
    def uploads_fail(self):
        at = lambda method, path: "uploads" in path  # noqa: E731
        with Proxy(s3_kit.server()["endpoint"], 1, share=1.0, harms=("error-503",), most=10**9, at=at) as proxy:
            yield proxy

    def test_what_could_not_be_found_out_is_said(self, uploads_fail, place):
        report = examine(place.url, s3_kit.options(endpoint_url=uploads_fail.endpoint))
        answers = {check["check"]: check["answer"] for check in report.checks}
        assert answers["takes an object in parts"] == "unknown"
        assert not report.capabilities["multipart"]
        assert report.capabilities["ranges"]
        assert any("could not be found out" in problem for problem in report.problems)
        assert len([harm for _, _, harm in uploads_fail.log if harm]) == 6
        assert s3_kit.keys(place) == []

    def test_the_next_client_asks_again(self, uploads_fail, place, s3):
        made, _ = Store.init(place.url, s3=s3_kit.options(endpoint_url=uploads_fail.endpoint))
        with made:
            assert not made.backend.capabilities.multipart
        assert place.prefix + "capabilities.json" not in s3_kit.keys(place)
        with Store.open(place.url, s3=s3) as other:
            assert other.backend.capabilities.multipart
        assert place.prefix + "capabilities.json" in s3_kit.keys(place)

    def test_one_that_answers_nothing_is_given_up(self, place, monkeypatch):
        monkeypatch.setattr(probe, "_SILENT_S", 0.2)
        monkeypatch.setattr(probe, "_WHOLE_S", 1)
        at = lambda method, path: "probe-" in path and "basic" not in path  # noqa: E731
        with Proxy(s3_kit.server()["endpoint"], 1, share=1.0, harms=("silence",), most=10**9, at=at) as proxy:
            report = examine(place.url, s3_kit.options(endpoint_url=proxy.endpoint))
        said = {check["detail"] for check in report.checks if check["answer"] == "unknown"}
        assert said >= {"ReadTimeoutError", "no time was left"}
        assert len(proxy.log) < 60
        assert not any(value is True for value in report.capabilities.values())


def test_a_missing_bucket(s3):
    with pytest.raises(UnavailableError, match="no such bucket"):
        examine("s3://no-such-bucket-at-all/x", s3)


@pytest.mark.skipif(s3_kit.VARIABLE in s3_kit.os.environ, reason="needs a second identity")
def test_what_may_only_be_read_is_said(place, s3, monkeypatch):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "reader")
    report = examine(place.url, s3)
    assert report.exit_code == 1
    answers = {check["check"]: check["answer"] for check in report.checks}
    assert answers["may write"] == "no"
    assert s3_kit.server()["secret"] not in json.dumps(report.to_json())


def test_a_directory(tmp_path):
    Store.init(tmp_path / "store")[0].close()
    assert examine(str(tmp_path / "store")).exit_code == 0
    with pytest.raises(UnavailableError):
        examine(str(tmp_path / "none"))


class TestLifecycleRules:
    def rule(self, **more):
        return {"ID": "r", "Status": "Enabled", "Filter": {"Prefix": ""}, **more}

    def test_harmless_ones(self):
        rules = [
            self.rule(AbortIncompleteMultipartUpload={"DaysAfterInitiation": 7}),
            self.rule(NoncurrentVersionExpiration={"NoncurrentDays": 30}),
            self.rule(Expiration={"ExpiredObjectDeleteMarker": True}),
            self.rule(Transitions=[{"Days": 30, "StorageClass": "STANDARD_IA"}]),
            self.rule(Expiration={"Days": 1}, Status="Disabled"),
            self.rule(Expiration={"Days": 1}, Filter={"Prefix": "other/"}),
        ]
        assert lifecycle_problems(rules, "cas/") == []

    @pytest.mark.parametrize(
        "below", [{"Filter": {"Prefix": "cas/blobs/"}}, {"Prefix": "cas"}, {"Filter": {"And": {"Prefix": "c"}}}, {}]
    )
    def test_ones_that_take_blobs_away(self, below):
        (said,) = lifecycle_problems([self.rule(Expiration={"Days": 90}, **below)], "cas/")
        assert "removes objects" in said
        (said,) = lifecycle_problems([self.rule(Transitions=[{"StorageClass": "GLACIER"}], **below)], "cas/")
        assert "GLACIER" in said


class TestTheStoredDocument:
    def test_it_reads_what_it_writes(self):
        known = s3_kit.capabilities()
        assert Capabilities.decode(known.encode(), "here") == known

    def test_what_is_not_there_is_not_relied_on(self):
        assert Capabilities.decode(b'{"format": 1, "newer": 7}', "here") == Capabilities()
        assert not any(value is True for value in asdict(Capabilities()).values())

    @pytest.mark.parametrize("data", [b"", b"[]", b"{}", b'{"format": 1, "multipart": "yes"}', b"[" * 9000])
    def test_damage(self, data):
        with pytest.raises(CorruptError, match="doctor"):
            Capabilities.decode(data, "here")

    def test_each_lack_is_told(self):
        everything = {field.name: True for field in fields(Capabilities) if field.type == "bool"}
        good = Capabilities(**{**everything, "versioned": False})
        assert good.consequences() == []
        for name in ("create_if_absent", "replace_if_match", "delete_if_match", "delete_exact", "expiring_delete",
                     "batch_delete",
                     "multipart", "signatures"):  # fmt: skip
            assert len(good.without(**{name: False}).consequences()) == 1
        assert len(good.without(checksum_sha256=False).consequences()) == 1
        assert len(good.without(checksum_sha256=False, payload_hash=False).consequences()) == 2
