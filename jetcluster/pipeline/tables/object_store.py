"""Tables in object stores: three libraries are told of one place.

Tasks write files by pyarrow, which takes keys, region and endpoint from the environment, as the archive does. deltalake
does so, too, but takes plain HTTP only when told; pyiceberg asks the catalog's properties alone.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from pyarrow import fs

from jetcluster.archive.object_storage import ENDPOINTS, speaks_plain_http

REGIONS: Final = ("AWS_REGION", "AWS_DEFAULT_REGION")
S3_NAMES: Final = ("s3a://", "s3n://")
"""Hadoop's names for what pyarrow knows as s3:// only."""


def file_system(folder: str) -> tuple[Any, str]:
    """Returns pyarrow's file system for a path or URL, and the path in it."""
    if "://" not in folder:
        return fs.LocalFileSystem(), folder
    if folder.startswith("file:"):  # pyarrow takes no URL with a space
        return fs.LocalFileSystem(), unquote(urlsplit(folder).path)
    for name in S3_NAMES:
        if folder.startswith(name):
            folder = f"s3://{folder.removeprefix(name)}"
    region = _named(REGIONS)
    if folder.startswith("s3://") and region and "?" not in folder:
        folder = f"{folder}?region={region}"  # else pyarrow asks the store for it, which may not be allowed
    system, path = fs.FileSystem.from_uri(folder)
    return system, path


def delta_options(url: str) -> dict[str, str] | None:
    """Returns the options of deltalake for a table."""
    return {"allow_http": "true"} if "://" in url and speaks_plain_http(url) else None


def catalog_properties(given: Mapping[str, str]) -> dict[str, str]:
    """Returns the properties of a catalog, with the place of S3 that the environment names where they name none."""
    found = dict(given)
    for key, names in (("s3.endpoint", ENDPOINTS["s3"]), ("s3.region", REGIONS)):
        if value := _named(names):
            found.setdefault(key, value)
    return found


def _named(names: Iterable[str]) -> str:
    """Returns the first of the variables of the environment that is there; "" without any."""
    return next(filter(None, map(os.environ.get, names)), None) or ""
