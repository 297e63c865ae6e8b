"""Parquet files of an archive: written by the tasks of the archive job, read by row groups that a query may want.

A file holds the rows of one range of sequences and one day, sorted by subject and sequence: so its row groups have
narrow statistics of subjects, and files have narrow ones of sequences and times.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from jetcluster.archive.bounds import Bounds
from jetcluster.archive.manifest import FILE_BYTES, FILE_ROWS, ArchivedFile, ArchiveLossError
from jetcluster.archive.places import places, xored
from jetcluster.archive.storage import ArchiveStorage

KEYS: Final = ("seq", "subject", "subject_raw")
"""Columns that filters need."""
GROUP_BYTES: Final = 4 << 20
MIN_GROUP_ROWS: Final = 500
MAX_GROUP_ROWS: Final = 50_000
BATCH_BYTES: Final = 16 << 20
"""Bytes of a record batch that is read, about, unless one row has more."""
_STATISTICS: Final = ["seq", "subject", "time", "time_ns"]


def write_files(
    storage: ArchiveStorage, stream: str, batches: Iterable[Any], rows: int = FILE_ROWS
) -> Iterator[ArchivedFile]:
    """Writes record batches with COLUMNS, in ascending order of sequences, to files of at most about `rows` rows and
    FILE_BYTES. Yields each file once it is durable."""
    held: list[Any] = []
    count = size = 0
    for batch in batches:
        if held and (count + batch.num_rows > rows or size + batch.nbytes > FILE_BYTES):
            yield from _write(storage, stream, held)
            held, count, size = [], 0, 0
        held.append(batch)
        count += batch.num_rows
        size += batch.nbytes
    if count:
        yield from _write(storage, stream, held)


def _write(storage: ArchiveStorage, stream: str, batches: list[Any]) -> Iterator[ArchivedFile]:
    table = pa.Table.from_batches(batches)
    days = pc.floor_temporal(table["time"], unit="day")
    for day in sorted(pc.unique(days).to_pylist()):
        part = table if len(pc.unique(days)) == 1 else table.filter(pc.equal(days, pa.scalar(day, days.type)))
        yield _write_one(storage, stream, day.strftime("%Y-%m-%d"), part)


def _write_one(storage: ArchiveStorage, stream: str, day: str, table: Any) -> ArchivedFile:
    table = table.sort_by([("subject", "ascending"), ("seq", "ascending")]).combine_chunks()
    mean = max(table.nbytes // table.num_rows, 1)
    sink = pa.BufferOutputStream()
    pq.write_table(
        table, sink, compression="zstd", use_dictionary=["subject"], write_statistics=_STATISTICS,
        row_group_size=min(max(GROUP_BYTES // mean, MIN_GROUP_ROWS), MAX_GROUP_ROWS),
        coerce_timestamps="us", write_page_checksum=True,
    )  # fmt: skip
    data = sink.getvalue().to_pybytes()
    seqs, names = _reach(table["seq"]), _reach(table["subject"])
    path = f"stream={stream}/day={day}/{seqs[0]}-{seqs[1]}.{secrets.token_hex(6)}.parquet"
    storage.write(path, data)
    return ArchivedFile(
        path, len(data), table.num_rows, seqs, _reach(table["time_ns"]), names,
        xored(table["digest"].to_numpy()), xored(_places(table)),
    )  # fmt: skip


def _reach(column: Any) -> tuple[Any, Any]:
    found = pc.min_max(column).as_py()
    return found["min"], found["max"]


def _places(table: Any) -> Any:
    return places(*(table[name].to_numpy() for name in ("seq", "time_ns", "digest")))


def read_file(
    storage: ArchiveStorage, file: ArchivedFile, columns: Sequence[str], bounds: Bounds, rows: int = 10_000
) -> Iterator[Any]:
    """Yields record batches of at most `rows` rows within `bounds`, as `pieces`, with `columns` of COLUMNS. Raises
    ArchiveLossError for a damaged file, FileNotFoundError for a missing one."""
    with storage.open(file.path) as opened:
        try:
            parquet = pq.ParquetFile(opened, page_checksum_verification=True)
            if file.rows not in (-1, parquet.metadata.num_rows):
                raise ArchiveLossError(
                    f"{storage.url}/{file.path} has {parquet.metadata.num_rows} rows, its manifest says {file.rows}"
                )
            needed = list(dict.fromkeys([*columns, *KEYS]))
            for group in range(parquet.num_row_groups):
                if not bounds.may_hold(*_statistics(parquet.metadata.row_group(group))):
                    continue
                table = parquet.read_row_group(group, columns=needed, use_threads=False)
                for batch in pieces(table.combine_chunks(), rows):
                    wanted = bounds.mask(batch)
                    found = batch if wanted is None else batch.filter(wanted)
                    if found.num_rows:
                        yield found.select(list(columns))
        except FileNotFoundError:
            raise
        except (pa.ArrowException, OSError, KeyError) as error:
            raise ArchiveLossError(f"{storage.url}/{file.path} is damaged: {error}") from error


def pieces(table: Any, rows: int) -> list[Any]:
    """Returns a table as record batches of at most `rows` rows and about BATCH_BYTES."""
    most = BATCH_BYTES * table.num_rows // max(table.nbytes, 1)
    found: list[Any] = table.to_batches(max_chunksize=max(min(rows, most), 1))
    return found


def _statistics(group: Any) -> tuple[Any, Any, Any]:
    """Returns (smallest, largest) of a row group's `seq`, `time_ns` and `subject`; None where it has none."""
    found: dict[str, tuple[Any, Any]] = {}
    for at in range(group.num_columns):
        column = group.column(at)
        if column.path_in_schema in _STATISTICS and column.statistics is not None and column.statistics.has_min_max:
            found[column.path_in_schema] = column.statistics.min, column.statistics.max
    return found.get("seq"), found.get("time_ns"), found.get("subject")


def read_back(storage: ArchiveStorage, file: ArchivedFile) -> None:
    """Reads a whole file and compares it with its entry. Raises ArchiveLossError."""
    count = digest = place = 0
    try:
        for batch in read_file(storage, file, ("seq", "time_ns", "digest"), Bounds()):
            count += batch.num_rows
            digest ^= xored(batch["digest"].to_numpy())
            place ^= xored(_places(batch))
    except FileNotFoundError:
        raise ArchiveLossError(f"{storage.url}/{file.path} was written, and is not there") from None
    if (count, digest, place) != (file.rows, file.digest, file.places):
        raise ArchiveLossError(
            f"{storage.url}/{file.path} reads back {count} rows that are not the {file.rows} written"
        )
