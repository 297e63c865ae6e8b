"""`S3Storage`: backups in S3-compatible storage, by boto3 (`pip install 'jetcluster[s3]'`).

boto3, as it is the client that the storages are tested against: it logs in with keys, profiles and roles of pods and
machines, has conditional writes, retries and checks checksums. An object appears at once or not at all.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, Final, Self

from jetcluster.backup.storage import BackupStorageError, PresentError, StorageAwayError, StoredFile

MISSING: Final = "NoSuchKey"
NO_BODY: Final = "404"
PRESENT: Final = ("PreconditionFailed", "ConditionalRequestConflict", "412")
CONNECT_SECONDS: Final = 10
READ_SECONDS: Final = 60
ATTEMPTS: Final = 6


class S3Storage:
    """A bucket, or a prefix of it."""

    def __init__(self, client: Any, bucket: str, prefix: str) -> None:
        """`client` is boto3's, for S3."""
        self._client = client
        self._bucket = bucket
        self._prefix = f"{prefix}/" if prefix else ""

    @classmethod
    def open(cls, url: str, endpoint: str = "", region: str = "") -> Self:
        """Opens s3://bucket/prefix. Raises BackupStorageError."""
        bucket, _, prefix = url.removeprefix("s3://").partition("/")
        if not bucket:
            raise BackupStorageError(f"{url} names no bucket")
        try:
            import boto3
            from botocore.config import Config
            from botocore.exceptions import BotoCoreError
        except ImportError:
            raise BackupStorageError("S3 needs boto3: pip install 'jetcluster[s3]'") from None
        config = Config(
            connect_timeout=CONNECT_SECONDS, read_timeout=READ_SECONDS,
            retries={"mode": "standard", "max_attempts": ATTEMPTS},
        )  # fmt: skip
        try:
            client = boto3.client("s3", endpoint_url=endpoint or None, region_name=region or None, config=config)
        except (BotoCoreError, ValueError) as error:
            raise BackupStorageError(f"{url}: {error}") from error
        return cls(client, bucket, prefix.strip("/"))

    @property
    def url(self) -> str:
        return f"s3://{self._bucket}/{self._prefix}".rstrip("/")

    def list(self, folder: str) -> Iterator[StoredFile]:
        pages = self._client.get_paginator("list_objects_v2")
        with self._refusals(folder):
            for page in pages.paginate(Bucket=self._bucket, Prefix=f"{self._prefix}{folder}/"):
                for one in page.get("Contents", []):
                    yield StoredFile(one["Key"].removeprefix(self._prefix), one["Size"], one["ETag"])

    def read(self, path: str) -> bytes | None:
        with self._refusals(path):
            return self._read(path)

    def _read(self, path: str) -> bytes | None:
        """Raises boto3's errors. It repeats requests, but none whose answer breaks off in the middle."""
        from botocore.exceptions import ClientError, HTTPClientError, IncompleteReadError

        attempt = 0
        while True:
            attempt += 1
            try:
                found: bytes = self._client.get_object(Bucket=self._bucket, Key=self._prefix + path)["Body"].read()
            except ClientError as error:
                # Without the answer's body boto3 knows the status alone, which may mean the bucket as well.
                if _code(error) == MISSING or (_code(error) == NO_BODY and attempt >= ATTEMPTS):
                    return None
                if _code(error) != NO_BODY:
                    raise
            except (HTTPClientError, IncompleteReadError):
                if attempt >= ATTEMPTS:
                    raise
            else:
                return found

    def write(self, path: str, data: bytes) -> None:
        with self._refusals(path):
            self._client.put_object(Bucket=self._bucket, Key=self._prefix + path, Body=data)

    def create(self, path: str, data: bytes) -> None:
        try:
            with self._refusals(path):
                self._client.put_object(Bucket=self._bucket, Key=self._prefix + path, Body=data, IfNoneMatch="*")
        except PresentError:
            # A request whose answer was lost is repeated by boto3, and finds what it has written itself.
            if self.read(path) != data:
                raise

    def delete(self, path: str) -> None:
        with self._refusals(path):
            self._client.delete_object(Bucket=self._bucket, Key=self._prefix + path)

    def sweep(self) -> None:
        """There is nothing: an object appears whole."""

    @contextlib.contextmanager
    def _refusals(self, path: str) -> Iterator[None]:
        """Raises the port's errors for boto3's."""
        from botocore.exceptions import (
            BotoCoreError,
            ClientError,
            ConnectionError,
            HTTPClientError,
            IncompleteReadError,
        )

        where = f"{self.url}/{path}"
        try:
            yield
        except ClientError as error:
            told = error.response.get("Error", {})
            code, status = _code(error), error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
            if code in PRESENT:
                raise PresentError(f"{where} is there") from None
            kind = StorageAwayError if status >= 500 and status != 501 else BackupStorageError
            raise kind(f"{where}: {code}: {told.get('Message', '')}") from error
        except (ConnectionError, HTTPClientError, IncompleteReadError) as error:
            raise StorageAwayError(f"{where}: {error}") from error
        except BotoCoreError as error:
            raise BackupStorageError(f"{where}: {error}") from error


def _code(error: Any) -> str:
    """The code of a refusal, such as NoSuchKey."""
    return str(error.response.get("Error", {}).get("Code"))
