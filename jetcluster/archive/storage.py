"""`open_archive`: the folder or object store that an archive is in.

It is reached from every process by its URL alone, without Spark: tasks write and read Parquet themselves, so a folder
and an object store are used in the same way, and no jar of a cloud is needed.
"""

from __future__ import annotations

from typing import Any, Protocol
from urllib.parse import unquote, urlsplit

from jetcluster.backup.folder import FolderStorage
from jetcluster.backup.storage import BackupStorage, BackupStorageError

OBJECT_STORES = ("s3", "s3a", "gs", "az", "azure", "abfs", "abfss")
"""Schemes of URLs that obstore reads."""


class ArchiveStorage(BackupStorage, Protocol):
    """A destination of backups whose files can be read in parts."""

    def open(self, path: str) -> Any:
        """Opens a file for pyarrow, seekable. Raises FileNotFoundError besides what the port raises."""
        ...


class ArchiveFolder(FolderStorage):
    """A folder that those who may read its parent may read, unlike a backup: an archive is a table."""

    def __init__(self, folder: str) -> None:
        super().__init__(folder, private=False)

    def open(self, path: str) -> Any:
        """Opens a file. Raises FileNotFoundError, BackupStorageError."""
        return self.at(path).open("rb")


def is_local(url: str) -> bool:
    """True for a path or a `file:` URL."""
    return urlsplit(url).scheme in ("", "file")


def open_archive(url: str) -> ArchiveStorage:
    """Opens the archive at a path or URL. Raises BackupStorageError for another kind of URL."""
    parts = urlsplit(url)
    if is_local(url):
        return ArchiveFolder(unquote(parts.path) if parts.scheme else url)
    if parts.scheme in OBJECT_STORES:
        from jetcluster.archive.object_storage import ObjectStorage

        return ObjectStorage.open_url(url)
    raise BackupStorageError(
        f"{url}: an archive is a folder, s3://bucket/path, gs://bucket/path or az://container/path"
    )
