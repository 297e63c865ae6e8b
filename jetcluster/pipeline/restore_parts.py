"""The parts of an archive that tasks restore: ranges of sequences in order, each with the files that reach into it.

A part is what one task holds in memory and sorts. Parts do not overlap, so whoever takes them one after the other has
the archive's order, while tasks prepare later ones.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final, TypeVar

from jetcluster.archive.manifest import ArchivedFile, Manifest
from jetcluster.archive.storage import open_archive
from jetcluster.arrow.in_order import overlapping
from jetcluster.pipeline.archive_tasks import FilePart, rows_of, run_tasks

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

T = TypeVar("T")
R = TypeVar("R")

PART_BYTES: Final = 16 << 20
"""Bytes of Parquet in a part, about: a larger file is read by several tasks, each of which takes its sequences."""
BATCH_ROWS: Final = 10_000


def cut(manifests: Sequence[Manifest], end: int) -> list[FilePart]:
    """Returns the parts of all rows below sequence `end`, in order of sequence."""
    files = [file for one in manifests for file in one.files if file.seqs[0] < end]
    found = []
    for group in overlapping(files):
        low, high = group[0].seqs[0], min(max(file.seqs[1] for file in group) + 1, end)
        pieces = min(-(-sum(file.size for file in group) // PART_BYTES), high - low)
        cuts = [low + (high - low) * at // pieces for at in range(pieces + 1)]
        for first, stop in itertools.pairwise(cuts):
            held = tuple(file for file in group if file.seqs[0] < stop and file.seqs[1] >= first)
            if held:
                found.append(FilePart(held, first, stop))
    return found


def count(session: SparkSession, url: str, parts: Sequence[FilePart]) -> list[int]:
    """Returns the number of rows of each part. Tasks count those of which the manifests do not tell."""
    told = {at: _told(part) for at, part in enumerate(parts)}
    unknown = [at for at, rows in told.items() if rows is None]

    def work(at: int) -> Iterator[str]:
        rows = rows_of(open_archive(url), parts[at], ("seq",))
        yield f"{at} {sum(batch.num_rows for batch in rows)}"

    for text in run_tasks(session, unknown, work):
        at, rows = map(int, text.split())
        told[at] = rows
    return [told[at] or 0 for at in range(len(parts))]


def _told(part: FilePart) -> int | None:
    if all(_is_whole(file, part) for file in part.files):
        return sum(file.rows for file in part.files)
    return None


def _is_whole(file: ArchivedFile, part: FilePart) -> bool:
    return file.rows >= 0 and part.low <= file.seqs[0] and file.seqs[1] < part.high


def in_order(url: str, part: FilePart, columns: Sequence[str]) -> Iterator[Any]:
    """Yields the rows of a part as record batches in order of sequence. Raises what `read_file` raises."""
    import pyarrow as pa

    found = list(rows_of(open_archive(url), part, columns))
    if found:
        table = pa.Table.from_batches(found).sort_by("seq").combine_chunks()
        yield from table.to_batches(max_chunksize=BATCH_ROWS)


def ahead(items: Iterable[T], call: Callable[[T], R], width: int) -> Iterator[R]:
    """Yields `call` of each item in order; up to `width` calls are under way, or done and not taken yet."""
    waiting: deque[Future[R]] = deque()
    pool = ThreadPoolExecutor(width, thread_name_prefix="restore")
    try:
        for item in items:
            if len(waiting) == width:
                yield waiting.popleft().result()
            waiting.append(pool.submit(call, item))
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)
