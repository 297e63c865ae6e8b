"""`ObjectStorage`: an archive in S3, Google Cloud Storage or Azure, by obstore (`pip install 'jetcluster[archive]'`).

obstore, as it is one wheel for the three without a dependency, with conditional writes. It takes keys, regions and
endpoints from the environment (AWS_ACCESS_KEY_ID, AWS_ENDPOINT_URL, GOOGLE_SERVICE_ACCOUNT, AZURE_STORAGE_...) and from
the roles of machines and pods, so an archive's URL holds no secret.
"""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Iterator
from typing import Any, Final, Self

from jetcluster.backup.storage import BackupStorageError, PresentError, StorageAwayError, StoredFile

RETRY_SECONDS: Final = 60
ENDPOINTS: Final = {
    "s3": ("AWS_ENDPOINT_URL", "AWS_ENDPOINT", "AWS_ENDPOINT_URL_S3"),
    "gs": ("GOOGLE_BASE_URL",),
    "az": ("AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT"),
}
"""The first two letters of a URL -> the variables that name an endpoint of one's own."""


class ObjectStorage:
    """A bucket or container, or a prefix of it. An object appears at once or not at all."""

    def __init__(self, store: Any, url: str) -> None:
        """`store` is obstore's, with the prefix of `url`."""
        self._store = store
        self._url = url.rstrip("/")

    @classmethod
    def open_url(cls, url: str) -> Self:
        """Opens a URL such as s3://bucket/prefix. Raises BackupStorageError."""
        try:
            from datetime import timedelta

            from obstore.exceptions import BaseError
            from obstore.store import from_url
        except ImportError:
            raise BackupStorageError(f"{url} needs obstore: pip install 'jetcluster[archive]'") from None
        try:
            # An endpoint of one's own may speak plain HTTP, which obstore takes only when told.
            store = from_url(
                url.rstrip("/"),
                client_options={"allow_http": True} if speaks_plain_http(url) else None,
                retry_config={"retry_timeout": timedelta(seconds=RETRY_SECONDS)},
            )
        except (BaseError, ValueError) as error:
            raise BackupStorageError(f"{url}: {error}") from error
        return cls(store, url)

    @property
    def url(self) -> str:
        return self._url

    def list(self, folder: str) -> Iterator[StoredFile]:
        with self._refusals(folder):
            for page in self._store.list(f"{folder}/" if folder else None):
                for one in page:
                    version = str(one["e_tag"] or one["last_modified"])
                    yield StoredFile(one["path"], int(one["size"]), version)

    def read(self, path: str) -> bytes | None:
        try:
            with self._refusals(path):
                return bytes(self._store.get(path).bytes())
        except FileNotFoundError:
            return None

    def write(self, path: str, data: bytes) -> None:
        with self._refusals(path):
            self._store.put(path, data)

    def create(self, path: str, data: bytes) -> None:
        try:
            with self._refusals(path):
                self._store.put(path, data, mode="create", use_multipart=False)
        except PresentError:
            # A request whose answer was lost is repeated, and finds what it has written itself.
            if self.read(path) != data:
                raise

    def delete(self, path: str) -> None:
        with contextlib.suppress(FileNotFoundError), self._refusals(path):
            self._store.delete(path)

    def sweep(self) -> None:
        """There is nothing: an object appears whole."""

    def open(self, path: str) -> Any:
        """Opens an object, read in ranges. Raises FileNotFoundError."""
        with self._refusals(path):
            return _ObjectReader(self._store, path, int(self._store.head(path)["size"]))

    @contextlib.contextmanager
    def _refusals(self, path: str) -> Iterator[None]:
        """Raises the port's errors for obstore's."""
        from obstore import exceptions

        where = f"{self._url}/{path}"
        try:
            yield
        except (exceptions.NotFoundError, FileNotFoundError) as error:
            raise FileNotFoundError(f"{where} is missing") from error
        except (exceptions.AlreadyExistsError, exceptions.PreconditionError):
            raise PresentError(f"{where} is there") from None
        except exceptions.GenericError as error:
            if "status code: 404" in str(error):  # to list nothing is no error, unlike where nothing can be
                raise BackupStorageError(f"{where}: there is no such bucket") from error
            raise StorageAwayError(f"{where}: {_first_line(error)}") from error
        except exceptions.BaseError as error:
            raise BackupStorageError(f"{where}: {_first_line(error)}") from error


class _ObjectReader(io.RawIOBase):
    """An object as a file, each read of which is one request for a range. obstore's own reader is no Python file."""

    def __init__(self, store: Any, path: str, size: int) -> None:
        self._store = store
        self._path = path
        self._size = size
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = max(0, offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence])
        return self._at

    def readinto(self, buffer: Any) -> int:
        count = min(len(buffer), max(self._size - self._at, 0))
        if count:
            buffer[:count] = bytes(self._store.get_range(self._path, start=self._at, length=count))
            self._at += count
        return count


def speaks_plain_http(url: str) -> bool:
    """Returns whether the environment names an endpoint of one's own for `url`, and that speaks plain HTTP."""
    return any(os.environ.get(name, "").startswith("http://") for name in ENDPOINTS.get(url[:2], ENDPOINTS["az"]))


def _first_line(error: Exception) -> str:
    """obstore adds its own structures behind the sentence."""
    return str(error).partition("\n")[0]
