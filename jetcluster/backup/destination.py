"""`open_storage`: the storage that a destination names."""

from __future__ import annotations

from jetcluster.backup.folder import FolderStorage
from jetcluster.backup.s3 import S3Storage
from jetcluster.backup.storage import BackupStorage, BackupStorageError


def open_storage(place: str, endpoint: str = "", region: str = "") -> BackupStorage:
    """Opens a folder or `s3://bucket/prefix`. Raises BackupStorageError."""
    if place.startswith("s3://"):
        return S3Storage.open(place, endpoint, region)
    if "://" in place:
        raise BackupStorageError(f"{place}: only folders and s3://bucket/prefix are known")
    return FolderStorage(place)
