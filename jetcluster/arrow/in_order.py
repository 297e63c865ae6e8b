"""Rows of an archive in order of sequence, whatever the order in its files, which is by subject.

A streaming query reads them so, as a second try of its micro-batch must have each row at the same place, also when the
first one read it from the stream. Files whose sequences overlap are read and sorted together: the memory is that of one
file, or two at midnight.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from jetcluster.archive.manifest import ArchivedFile
from jetcluster.archive.storage import open_archive
from jetcluster.arrow import archived
from jetcluster.arrow.archived import MAX_READS
from jetcluster.arrow.options import SourceOptions
from jetcluster.arrow.planner import ArchiveTask
from jetcluster.client.stream_state import StreamError


def read(task: ArchiveTask, options: SourceOptions, columns: Sequence[str]) -> Iterator[Any]:
    """Yields the rows of a task in order, with `seq` and `columns` of an archive. Raises StreamError when files are
    replaced all the time, DataLossError when the archive does not have all of the rest any more, and what
    `archived.find` and `read_file` raise."""
    import pyarrow as pa

    from jetcluster.archive.parquet import pieces, read_file

    storage, files, bounds = open_archive(task.url), task.files, task.bounds
    names = list(dict.fromkeys(["seq", *columns]))
    for _ in range(MAX_READS):
        try:
            for group in overlapping(files):
                found = [rows for one in group for rows in read_file(storage, one, names, bounds, options.arrow_rows)]
                if found:
                    table = pa.Table.from_batches(found).sort_by("seq").combine_chunks()
                    yield from pieces(table, options.arrow_rows)
                    bounds = dataclasses.replace(bounds, low=table["seq"][-1].as_py() + 1)
        except FileNotFoundError:  # compaction has put another in its place
            files = archived.files_of(dataclasses.replace(task, bounds=bounds), options)
        else:
            return
    raise StreamError(f"{task.url}: files are replaced all the time, or are missing")


def overlapping(files: Iterable[ArchivedFile]) -> Iterator[list[ArchivedFile]]:
    """Yields the files in groups, each with all files that reach into its sequences, in order of sequence."""
    group: list[ArchivedFile] = []
    last = 0
    for file in sorted(files, key=lambda one: one.seqs):
        if group and file.seqs[0] > last:
            yield group
            group = []
        group.append(file)
        last = max(last, file.seqs[1])
    if group:
        yield group


def removed(task: ArchiveTask, options: SourceOptions, columns: Sequence[str]) -> Iterator[Any]:
    """Yields in order what limits removed from the stream while it was read; `task` names no files. Raises
    DataLossError if the archive does not have it."""
    yield from read(dataclasses.replace(task, files=archived.files_of(task, options)), options, columns)
