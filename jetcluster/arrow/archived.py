"""Archive and live stream as one table (option `archive`): what is read from where, and the rows of an archive.

The stream is the truth from its first sequence on, the archive below it. Planning cuts there. While tasks read, limits
may remove messages, so that the first sequence moves: a task that has read its range asks for it, and then takes what
it did not get below it from the archive. If the archive does not reach that far, the task fails.

Tasks of the archive own ranges of sequences, not files: when compaction has put other files in the place of those that
were planned, a task reads the new ones and leaves out the sequences that it has already.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

from jetcluster.archive import manifest
from jetcluster.archive.bounds import Bounds
from jetcluster.archive.manifest import ArchivedFile, Manifest
from jetcluster.archive.storage import open_archive
from jetcluster.arrow.options import SourceOptions
from jetcluster.arrow.planner import ArchiveTask, DataLossError, Target, lowest
from jetcluster.backup.storage import StoredFile
from jetcluster.client.stream_state import StreamError, StreamState
from jetcluster.protocol import subjects

MAX_READS: Final = 5
"""Times that a task begins anew as files were replaced."""

_known: dict[str, dict[StoredFile, Manifest]] = {}
"""Manifests by the archive's URL and their own file: a streaming query plans again and again."""


class Archived(NamedTuple):
    """The archive of one stream, as its manifests are now."""

    url: str
    start: int
    end: int
    """Exclusive."""
    files: tuple[ArchivedFile, ...]

    def cut(self, low: int, state: StreamState, options: SourceOptions) -> int:
        """Returns the sequence from which on the stream is read, when reading begins at `low`. What the stream has and
        the archive has not is not left out because the archive is preferred."""
        whole = self.start <= max(low, lowest(state))
        return max(lowest(state), self.end if options.prefer_archive and whole else 0)

    def united(self, state: StreamState) -> StreamState:
        """Returns the state of archive and stream as one stream. Where the stream is empty, the archive's messages say
        how many rows some bytes are (`maxBytesPerTrigger`)."""
        found = state._replace(first=min(self.start, lowest(state)))
        if state.messages:
            return found
        held = [one for one in self.files if one.rows > 0]
        size = sum(one.size for one in held) * manifest.PACKED
        return found._replace(messages=sum(one.rows for one in held), bytes=size)

    def gap(self, stream: str, low: int, high: int) -> str:
        """Describes what the archive lacks of the sequences [low, high), which the stream does not have; "" for
        nothing."""
        if low >= high or self.start <= low < high <= self.end:
            return ""
        lacks = low if low < self.start else max(low, self.end)
        return (
            f"{stream}: limits or a purge removed messages up to {high - 1}, and the archive {self.url} has "
            f"{self.start} to {self.end - 1}: from {lacks} on some are in neither. failOnDataLoss=false reads what "
            "there is"
        )

    def seq_at_time(self, ns: int, below: int) -> int | None:
        """Returns the first archived sequence below `below` at or after a time; None if there is none."""
        from jetcluster.archive.parquet import read_file

        found: int | None = None
        bounds = Bounds(high=below, first_time=ns)
        for file in sorted(self.files, key=lambda one: one.seqs):
            if found is not None and file.seqs[0] >= found:
                break
            if file.may_hold(bounds):
                for batch in read_file(open_archive(self.url), file, ("seq", "time_ns"), bounds):
                    rows = zip(batch["seq"].to_pylist(), batch["time_ns"].to_pylist(), strict=True)
                    seqs = [seq for seq, time in rows if time >= ns]
                    found = min([*seqs, found] if found is not None else seqs, default=None)
        return found


def find(stream: str, created: str, options: SourceOptions) -> Archived | None:
    """Returns the archive of a stream; None if the query names none. Raises StreamError when it is of another stream,
    and what `manifest.load` raises."""
    url = options.archives.get(stream)
    if url is None:
        return None
    found = manifest.load(open_archive(url), _known.setdefault(url, {}))
    if not found:
        raise StreamError(f"archive={url}: there is no archive (jetcluster pipeline archive makes one)")
    last = found[-1]
    if last.stream != stream:
        raise StreamError(f"archive={url} is of {last.stream}, not of {stream}")
    if last.created != created:
        raise StreamError(
            f"archive={url} is of {stream} as it was created at {last.created}; the one on the server was created at "
            f"{created}, and its sequences mean other messages"
        )
    for one in options.subjects:
        if not any(subjects.is_subset(one.encode(), held.encode()) for held in last.subjects):
            raise StreamError(f"archive={url} has only {', '.join(last.subjects)}, and the query reads {one}")
    files = tuple(file for one in found for file in one.files)
    return Archived(url, found[0].start, last.end, files)


def tasks(
    target: Target, archive: Archived, bounds: Bounds, options: SourceOptions, first: int = 0
) -> list[ArchiveTask]:
    """Returns the tasks that read an archive within `bounds`, each at most about `maxRecordsPerPartition` rows of files
    that cannot be left out. They are numbered from `first` on."""
    wanted = sorted((file for file in archive.files if file.may_hold(bounds)), key=lambda one: one.seqs)
    starts = [bounds.low]
    rows = 0
    for file in wanted:
        count = options.max_records if file.rows < 0 else file.rows
        if rows and rows + count > options.max_records and file.seqs[0] > starts[-1]:
            starts.append(file.seqs[0])
            rows = 0
        rows += count
    found: list[ArchiveTask] = []
    for low, high in zip(starts, [*starts[1:], bounds.high], strict=True):
        files = tuple(file for file in wanted if file.seqs[0] < high and file.seqs[1] >= low)
        if files and low < high:
            part = Bounds(low, high, bounds.first_time, bounds.last_time, bounds.subjects)
            found.append(ArchiveTask(target, archive.url, files, part, first + len(found)))
    return found


class Seen:
    """The sequences of the rows that a task has yielded."""

    def __init__(self) -> None:
        self._parts: list[Any] = []
        self.removed = 0
        """Messages that the stream had below this sequence may be missing; 0: none are."""

    def add(self, seqs: Any) -> None:
        """`seqs`: integers, as numpy or a list."""
        import numpy as np

        self._parts.append(np.asarray(seqs, np.int64))

    def add_range(self, first: int, last: int) -> None:
        import numpy as np

        self._parts.append(np.arange(first, last + 1, dtype=np.int64))

    def fresh(self, batch: Any) -> Any:
        """Returns the rows of a batch whose `seq` was not yielded."""
        import numpy as np
        import pyarrow as pa

        if not self._parts:
            return batch
        self._parts = [np.concatenate(self._parts)]
        known = np.isin(batch["seq"].to_numpy(), self._parts[0])
        return batch.filter(pa.array(~known)) if known.any() else batch


def read(task: ArchiveTask, options: SourceOptions, columns: Sequence[str], seen: Seen | None = None) -> Iterator[Any]:
    """Yields the rows of a task with columns of an archive, `seq` among them, but for those of `seen`. Raises
    StreamError when files are replaced all the time, DataLossError when the archive does not have all of the task any
    more, and what `find` and `read_file` raise."""
    from jetcluster.archive.parquet import read_file

    storage = open_archive(task.url)
    seen, files = seen or Seen(), task.files
    names = list(dict.fromkeys(["seq", *columns]))
    for _ in range(MAX_READS):
        try:
            for file in files:
                for batch in read_file(storage, file, names, task.bounds, options.arrow_rows):
                    rows = seen.fresh(batch)
                    seen.add(rows["seq"].to_numpy())
                    if rows.num_rows:
                        yield rows
        except FileNotFoundError:  # compaction has put another in its place
            files = files_of(task, options)
        else:
            return
    raise StreamError(f"{task.url}: files are replaced all the time, or are missing")


def repair(task: ArchiveTask, options: SourceOptions, columns: Sequence[str], seen: Seen) -> Iterator[Any]:
    """Yields what limits removed from the stream while `task`, which names no files, was read there. Raises
    DataLossError if the archive does not have it."""
    yield from read(dataclasses.replace(task, files=files_of(task, options)), options, columns, seen)


def files_of(task: ArchiveTask, options: SourceOptions) -> tuple[ArchivedFile, ...]:
    """Returns the files that may have rows of a task, as the archive is now: it may have been made anew since planning.
    Raises DataLossError if it lacks some of the task's sequences, and what `find` raises."""
    archive = find(task.target.stream, task.target.created, options)
    assert archive is not None, task
    if options.fail_on_data_loss and (gap := archive.gap(task.target.stream, task.bounds.low, task.bounds.high)):
        raise DataLossError(gap)
    return tuple(file for file in archive.files if file.may_hold(task.bounds))
