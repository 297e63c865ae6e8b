"""Manifests of an archive: the description of a batch, written after all of its rows.

    <folder>/stream=ORDERS/batch=7/part-*.parquet     rows of the sequences [start, end)
    <folder>/manifest/7.json                          the manifest; a batch without one does not exist

Manifests 0, 1, 2, ... have no gap: each begins at the end of the previous one.
"""

from __future__ import annotations

import itertools
import json
import re
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Final

from jetcluster.pipeline.folder import Folder
from jetcluster.pipeline.result import DataLoss, UsageError

SCHEMA: Final = 1
"""The version of the manifest and of the rows."""
FOLDER: Final = "manifest"
_NAME: Final = re.compile(r"(\d{1,12})\.json")
_UNSIGNED_64: Final = 1 << 64


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """The description of one batch."""

    number: int
    stream: str
    created: str
    """When the stream was created: a stream created again counts from 1."""
    subjects: list[str]
    """Filters; [">"] for all."""
    start: int
    end: int
    """Exclusive. In an archive of all subjects, sequences without a row were deleted."""
    rows: int
    first_seq: int | None
    last_seq: int | None
    first_time: int | None
    last_time: int | None
    """Times of the first and the last row, nanoseconds since the Unix epoch."""
    digest: str
    """XOR of all rows' `digest`, 16 hexadecimal digits: a checksum of the contents."""
    places: str
    """XOR of xxhash64(seq, time_ns, digest): a checksum of contents and places."""
    files: dict[str, int]
    """Name -> bytes."""
    config: dict[str, Any] = field(default_factory=dict)
    """The configuration of the stream."""
    read: dict[str, Any] = field(default_factory=dict)
    """The replicas that were read."""
    schema: int = SCHEMA

    @property
    def directory(self) -> str:
        return directory(self.stream, self.number)

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=1, sort_keys=True) + "\n"

    @classmethod
    def from_json(cls, text: str, where: str) -> Manifest:
        """Raises UsageError."""
        try:
            found = json.loads(text)
            if found.get("schema") != SCHEMA:
                raise UsageError(f"{where} has schema {found.get('schema')}; this version reads {SCHEMA}")
            return cls(**{one.name: found[one.name] for one in fields(cls)})
        except (ValueError, KeyError, AttributeError, TypeError) as error:
            raise UsageError(f"{where} is no manifest: {error}") from None


def directory(stream: str, number: int) -> str:
    return f"stream={stream}/batch={number}"


def path(number: int) -> str:
    return f"{FOLDER}/{number}.json"


def hexadecimal(value: int | None) -> str:
    """Formats a signed 64-bit hash as 16 hexadecimal digits; None, the hash of no rows, is 0."""
    return f"{(value or 0) % _UNSIGNED_64:016x}"


def load(folder: Folder) -> list[Manifest]:
    """Returns all manifests in order. Raises UsageError for an invalid archive, DataLoss when a manifest is missing."""
    numbers = sorted(int(match[1]) for name in folder.list(FOLDER) if (match := _NAME.fullmatch(name)))
    if numbers != list(range(len(numbers))):
        missing = next(number for number in range(len(numbers) + 1) if number not in numbers)
        raise DataLoss(f"{folder.url}: manifest {missing} is missing, {numbers[-1]} is there")
    found = [Manifest.from_json(folder.read(path(number)), f"{folder.url}/{path(number)}") for number in numbers]
    check_chain(found, folder.url)
    return found


def check_chain(found: list[Manifest], where: str) -> None:
    """Checks that the manifests are of one stream (else UsageError), without gap or overlap (else DataLoss)."""
    for before, after in itertools.pairwise(found):
        same = (after.stream, after.created, after.subjects) == (before.stream, before.created, before.subjects)
        if not same:
            raise UsageError(f"{where}: manifest {after.number} is of another stream than {before.number}")
        if after.start != before.end:
            raise DataLoss(
                f"{where}: manifest {after.number} begins at {after.start}, {before.number} ended at {before.end}"
            )


def commit(folder: Folder, manifest: Manifest) -> None:
    """Writes the manifest, with which the batch begins to exist. Raises TakenError, OSError."""
    folder.settle(manifest.directory)  # Spark does not sync: a power failure could leave a manifest of empty files
    folder.create(path(manifest.number), manifest.to_json())
