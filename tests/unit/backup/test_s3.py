"""S3's refusals as the port's errors. The calls are tested with the port's other sides (test_storage.py)."""

from __future__ import annotations

import sys
from http.server import BaseHTTPRequestHandler

import pytest

from jetcluster.backup.destination import open_storage
from jetcluster.backup.retention import PointCatalog
from jetcluster.backup.s3 import S3Storage
from jetcluster.backup.storage import BackupStorageError, PresentError, StorageAwayError
from tests.unit.backup.accounts import FakeStream
from tests.unit.backup.failing_proxy import WAYS, FailingProxy
from tests.unit.backup.site import Site


def test_a_missing_bucket_and_refused_keys_are_told(s3_endpoint: str) -> None:
    with pytest.raises(BackupStorageError, match=r"s3://nobodys/x/lock.json: NoSuchBucket: The spec"):
        open_storage("s3://nobodys/x", s3_endpoint, "us-east-1").write("lock.json", b"")
    with pytest.raises(BackupStorageError, match="NoSuchBucket"):
        open_storage("s3://nobodys", s3_endpoint, "us-east-1").read("lock.json")


def test_a_server_that_is_away_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jetcluster.backup.s3.ATTEMPTS", 1)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "user")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    with pytest.raises(StorageAwayError, match="Could not connect"):
        open_storage("s3://backups", "http://127.0.0.1:1", "us-east-1").read("lock.json")


def test_names_that_are_none() -> None:
    with pytest.raises(BackupStorageError, match="no bucket"):
        S3Storage.open("s3:///x")
    with pytest.raises(BackupStorageError):
        open_storage("s3://bucket", "not a url")


def test_without_boto3_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "boto3", None)
    with pytest.raises(BackupStorageError, match=r"pip install 'jetcluster\[s3\]'"):
        open_storage("s3://bucket/prefix")


@pytest.mark.thorough
def test_a_server_that_fails_one_request_in_five(s3_endpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Backups that verify and remove, and what they hold; answers are lost, and bodies break off."""
    monkeypatch.setattr("botocore.retries.standard.ExponentialBackoff.delay_amount", lambda *_: 0.0)
    stream = FakeStream("S")
    site = Site(stream)
    with FailingProxy(s3_endpoint, 0.2, seed=3) as proxy:
        site.storage = open_storage("s3://backups/prod", proxy.url, "us-east-1")  # type: ignore[assignment]
        for _ in range(5):
            stream.add(100)
            stream.delete(*range(stream.last - 50, stream.last - 30))
            point = site.backup(keep=3, verify=True)
            assert point.verified
            site.check(point)
        assert len(PointCatalog(site.storage).names()) == 3  # no point was written twice
        assert site.storage.read("lock.json") is None
    assert set(proxy.failed) >= set(WAYS) and sum(proxy.failed.values()) > proxy.requests / 10, proxy.failed


@pytest.mark.parametrize("way", ["answer lost", "answer cut off"])
def test_a_file_that_is_created_by_a_request_without_an_answer_is_there(
    way: str, s3_endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.unit.backup.failing_proxy.WAYS", (way,))
    with FailingProxy(s3_endpoint, 1.0, seed=1) as proxy:
        storage = open_storage("s3://backups/prod", proxy.url, "us-east-1")
        served = proxy.serve

        def once(one: BaseHTTPRequestHandler) -> None:
            served(one)
            proxy.share = 0.0

        monkeypatch.setattr(proxy, "serve", once)
        storage.create("lock.json", b"mine")
        with pytest.raises(PresentError):
            storage.create("lock.json", b"another's")
        for path, data in (("lock.json", b"mine"), ("missing", None)):
            proxy.share = 1.0
            assert storage.read(path) == data
        proxy.share = 1.0
        with pytest.raises(BackupStorageError, match="NoSuchBucket"):
            open_storage("s3://nobodys", proxy.url, "us-east-1").read("lock.json")
