"""Manifests of an archive: the description of a batch, written after all of its rows.

    <archive>/stream=ORDERS/day=2026-11-22/<first>-<last>.<random>.parquet   rows
    <archive>/_manifest/7.json                                               the manifest of batch 7
    <archive>/_manifest/3-7.json                                             one that replaces those of batches 3 to 7

A file that no manifest names does not count. Batches 0, 1, 2, ... have no gap: each begins at the end of the one
before it. Names that begin with `_` are no data for Spark and pyarrow, so the archive's root is a table.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Final, NamedTuple

from jetcluster.archive.bounds import Bounds
from jetcluster.backup.storage import BackupStorage, PresentError, StoredFile
from jetcluster.errors import JetclusterError

SCHEMA: Final = 2
"""The version of the manifest and of the rows. 1: a folder for each batch, manifests beside the data."""
COLUMNS: Final = ("seq", "subject", "time", "time_ns", "headers", "headers_raw", "subject_raw", "data", "digest")
FILE_ROWS: Final = 250_000
FILE_BYTES: Final = 128 << 20
"""Bytes of rows in memory. A writer holds so much, and as much again while it sorts."""
PACKED: Final = 4
"""About how many times smaller rows are in a file than in memory."""
FOLDER: Final = "_manifest"
OLD_FOLDER: Final = "manifest"
_NAME: Final = re.compile(r"(?:(\d{1,12})-)?(\d{1,12})\.json")
_UNSIGNED_64: Final = 1 << 64


class NotAnArchiveError(JetclusterError):
    """There is no archive, or it is of another stream."""


class ArchiveLossError(JetclusterError):
    """Files of an archive are missing or damaged."""


class ArchivedFile(NamedTuple):
    """A Parquet file of an archive: the smallest and the largest value of columns, and checksums of its rows."""

    path: str
    size: int
    """Bytes."""
    rows: int
    """-1: unknown, in archives of schema 1, as are subjects and checksums."""
    seqs: tuple[int, int]
    times: tuple[int, int]
    """Unix nanoseconds."""
    subjects: tuple[str, str] | None = None
    digest: int = 0
    """XOR of the rows' `digest`, signed, as `places` is."""
    places: int = 0

    def may_hold(self, bounds: Bounds) -> bool:
        return bounds.may_hold(self.seqs, self.times, self.subjects)

    @classmethod
    def from_json(cls, found: list[Any]) -> ArchivedFile:
        path, size, rows, seqs, times, subjects, digest, places = found
        return cls(
            str(path), int(size), int(rows), (int(seqs[0]), int(seqs[1])), (int(times[0]), int(times[1])),
            (str(subjects[0]), str(subjects[1])) if subjects else None, int(digest), int(places),
        )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """The description of one batch, or of several that were made one."""

    number: int
    since: int
    """The first batch that is in it; the same as `number` where it is one."""
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
    """The smallest and the largest time, nanoseconds since the Unix epoch."""
    digest: str
    """XOR of all rows' `digest`, 16 hexadecimal digits: a checksum of the contents."""
    places: str
    """XOR of xxhash64(seq, time_ns, digest): a checksum of contents and places."""
    files: list[ArchivedFile]
    config: dict[str, Any] = field(default_factory=dict)
    """The configuration of the stream."""
    read: dict[str, Any] = field(default_factory=dict)
    """The replicas that were read."""
    schema: int = SCHEMA

    @property
    def size(self) -> int:
        """Bytes of its files."""
        return sum(one.size for one in self.files)

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=1, sort_keys=True) + "\n"

    @classmethod
    def from_json(cls, text: str, where: str) -> Manifest:
        """Raises NotAnArchiveError."""
        try:
            found = json.loads(text)
            if found.get("schema") == 1:
                found = _of_schema_1(found)
            if found.get("schema") != SCHEMA:
                raise NotAnArchiveError(f"{where} has schema {found.get('schema')}; this version reads 1 and {SCHEMA}")
            found["files"] = [ArchivedFile.from_json(one) for one in found["files"]]
            return cls(**{one.name: found[one.name] for one in fields(cls)})
        except (ValueError, KeyError, AttributeError, TypeError) as error:
            raise NotAnArchiveError(f"{where} is no manifest: {error}") from None


def _of_schema_1(found: Mapping[str, Any]) -> dict[str, Any]:
    """Converts a manifest of the first schema, whose files have names and sizes only."""
    folder = f"stream={found['stream']}/batch={found['number']}"
    seqs = (found["start"], max(found["start"], found["end"] - 1))
    times = (found["first_time"] or 0, found["last_time"] or 0)
    files = [[f"{folder}/{name}", size, -1, seqs, times, None, 0, 0] for name, size in found["files"].items()]
    return {**found, "since": found["number"], "files": files, "schema": SCHEMA}


def totals(files: Iterable[ArchivedFile]) -> dict[str, Any]:
    """Returns the fields of a manifest that follow from its files, which must not be of schema 1."""
    found = list(files)
    digest = places = 0
    for one in found:
        digest ^= one.digest
        places ^= one.places
    return {
        "rows": sum(one.rows for one in found),
        "first_seq": min((one.seqs[0] for one in found), default=None),
        "last_seq": max((one.seqs[1] for one in found), default=None),
        "first_time": min((one.times[0] for one in found), default=None),
        "last_time": max((one.times[1] for one in found), default=None),
        "digest": hexadecimal(digest),
        "places": hexadecimal(places),
        "files": found,
    }


def path(since: int, number: int) -> str:
    """Returns the path of the manifest of a batch, or of those from `since` to `number`."""
    return f"{FOLDER}/{number}.json" if since == number else f"{FOLDER}/{since}-{number}.json"


def hexadecimal(value: int | None) -> str:
    """Formats a signed 64-bit hash as 16 hexadecimal digits; None, the hash of no rows, is 0."""
    return f"{(value or 0) % _UNSIGNED_64:016x}"


def load(storage: BackupStorage, known: dict[StoredFile, Manifest] | None = None) -> list[Manifest]:
    """Returns the manifests that count, in order. `known` keeps those that were read before: a manifest never changes,
    but an archive may be removed and made anew in the same place, with other files. Raises NotAnArchiveError,
    ArchiveLossError when one is missing."""
    named = listed(storage)
    found = []
    for since, number in counting(named, storage.url):
        file = named[since, number]
        one = None if known is None else known.get(file)
        if one is None:
            data = storage.read(file.path)
            if data is None:  # it was replaced by another one a moment ago
                return load(storage, known)
            one = Manifest.from_json(data.decode(errors="replace"), f"{storage.url}/{file.path}")
        found.append(one)
    if known is not None:
        known.clear()
        known.update((named[one.since, one.number], one) for one in found)
    check_chain(found, storage.url)
    return found


def listed(storage: BackupStorage) -> dict[tuple[int, int], StoredFile]:
    """Returns the files of all manifests by their first and last batch, also of those that were replaced."""
    found = {}
    for folder in (OLD_FOLDER, FOLDER):
        for file in storage.list(folder):
            if match := _NAME.fullmatch(file.path.removeprefix(f"{folder}/")):
                found[int(match[1] or match[2]), int(match[2])] = file
    return found


def counting(named: Iterable[tuple[int, int]], where: str) -> list[tuple[int, int]]:
    """Returns those manifests that no wider one replaces. Raises ArchiveLossError for a hole."""
    found: list[tuple[int, int]] = []
    wanted = 0
    for since, number in sorted(named, key=lambda one: (one[0], -one[1])):
        if since > wanted:
            raise ArchiveLossError(f"{where}: manifest {wanted} is missing, {since} is there")
        if since == wanted:
            found.append((since, number))
            wanted = number + 1
        elif number >= wanted:
            raise ArchiveLossError(f"{where}: manifest {since}-{number} overlaps with the one before it")
    return found


def check_chain(found: list[Manifest], where: str) -> None:
    """Checks that the manifests are of one stream (else NotAnArchiveError), without gap or overlap (else
    ArchiveLossError)."""
    for before, after in itertools.pairwise(found):
        same = (after.stream, after.created, after.subjects) == (before.stream, before.created, before.subjects)
        if not same:
            raise NotAnArchiveError(f"{where}: manifest {after.number} is of another stream than {before.number}")
        if after.start != before.end:
            raise ArchiveLossError(
                f"{where}: manifest {after.number} begins at {after.start}, {before.number} ended at {before.end}"
            )


def commit(storage: BackupStorage, manifest: Manifest) -> None:
    """Writes the manifest, with which the batch begins to exist. Its files must be durable by then. Raises
    NotAnArchiveError when another job has written it."""
    where = path(manifest.since, manifest.number)
    try:
        storage.create(where, manifest.to_json().encode())
    except PresentError:
        raise NotAnArchiveError(f"{storage.url}/{where} is there already: does another job write there?") from None
