"""S3's refusals as the port's errors. The calls are tested with the port's other sides (test_storage.py)."""

from __future__ import annotations

import sys

import pytest

from jetcluster.backup.destination import open_storage
from jetcluster.backup.s3 import S3Storage
from jetcluster.backup.storage import BackupStorageError, StorageAwayError


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
