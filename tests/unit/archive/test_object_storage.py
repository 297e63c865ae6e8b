"""Object stores that are not there."""

from __future__ import annotations

import pytest

from jetcluster.archive.object_storage import ObjectStorage, speaks_plain_http
from jetcluster.archive.storage import open_archive
from jetcluster.backup.storage import BackupStorageError, StorageAwayError


def test_no_such_bucket_and_no_server(s3_endpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("obstore", reason="obstore is not installed: pip install 'jetcluster[archive]'")
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3_endpoint)
    with pytest.raises(BackupStorageError, match="there is no such bucket"):
        list(open_archive("s3://nowhere/x").list(""))
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    monkeypatch.setattr("jetcluster.archive.object_storage.RETRY_SECONDS", 1)
    away = ObjectStorage.open_url("s3://backups/x")
    with pytest.raises(StorageAwayError, match="s3://backups/x/y"):
        away.read("y")


def test_what_to_install_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "obstore.store", None)
    with pytest.raises(BackupStorageError, match=r"pip install 'jetcluster\[archive\]'"):
        open_archive("gs://bucket/x")


@pytest.mark.parametrize(
    ("url", "variable"),
    [
        ("s3://b/x", "AWS_ENDPOINT_URL"), ("s3a://b/x", "AWS_ENDPOINT"), ("gs://b/x", "GOOGLE_BASE_URL"),
        ("az://b/x", "AZURE_STORAGE_ENDPOINT"), ("abfss://b/x", "AZURE_ENDPOINT"),
    ],
)  # fmt: skip
def test_an_endpoint_of_ones_own_may_speak_plain_http(url: str, variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """That of another cloud does not count."""
    for name in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT", "GOOGLE_BASE_URL", "AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT"):
        monkeypatch.delenv(name, raising=False)
    assert not speaks_plain_http(url)
    for scheme in ("https", "http"):
        monkeypatch.setenv(variable, f"{scheme}://127.0.0.1:9000")
        assert speaks_plain_http(url) == (scheme == "http")
    assert [speaks_plain_http(f"{other}://b") for other in ("s3", "gs", "az")].count(True) == 1
