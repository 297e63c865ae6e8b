"""Archives as their manifests name them, in a folder or an object store, read without Spark."""

from __future__ import annotations

from jetcluster.archive import manifest
from jetcluster.archive.bounds import Bounds
from jetcluster.archive.parquet import read_file
from jetcluster.archive.storage import open_archive

Row = tuple[int, bytes, bytes, bytes]
"""Sequence, subject, header block, payload."""


def ends(url: str) -> int:
    """The sequence at which an archive ends; 1 for one that is not there."""
    found = manifest.load(open_archive(url))
    return found[-1].end if found else 1


def rows(url: str) -> list[Row]:
    """All rows, by sequence. None may be there twice."""
    storage, columns = open_archive(url), ("seq", "subject", "headers_raw", "data")
    found = []
    for file in (file for one in manifest.load(storage) for file in one.files):
        for batch in read_file(storage, file, columns, Bounds()):
            found += [(seq, subject.encode(), block or b"", data) for seq, subject, block, data in
                      zip(*(column.to_pylist() for column in batch.columns), strict=True)]  # fmt: skip
    assert len({row[0] for row in found}) == len(found), "a sequence is there twice"
    return sorted(found)
