"""The storage that a destination names."""

from __future__ import annotations

from pathlib import Path

import pytest

from jetcluster.backup.destination import open_storage
from jetcluster.backup.folder import FolderStorage
from jetcluster.backup.s3 import S3Storage
from jetcluster.backup.storage import BackupStorageError


def test_a_destination_is_a_folder_or_a_bucket(tmp_path: Path, s3_endpoint: str) -> None:
    folder = open_storage(str(tmp_path / "a b"))
    assert isinstance(folder, FolderStorage) and folder.url == str(tmp_path / "a b")
    bucket = open_storage("s3://backups/prod/", s3_endpoint, "us-east-1")
    assert isinstance(bucket, S3Storage) and bucket.url == "s3://backups/prod"
    with pytest.raises(BackupStorageError, match="only folders and s3"):
        open_storage("ftp://there")
