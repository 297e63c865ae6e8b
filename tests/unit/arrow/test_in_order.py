"""Micro-batches that are tried again: each row at its place, whether the stream has it or its archive."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="pip install 'jetcluster[spark]'")

from jetcluster.archive.bounds import Bounds
from jetcluster.archive.parquet import write_files
from jetcluster.archive.storage import ArchiveFolder
from jetcluster.arrow import in_order, planner, resolve
from jetcluster.arrow.offsets import Offset, Partitioning
from jetcluster.arrow.options import SourceOptions
from jetcluster.arrow.planner import ArchiveTask, DataLossError, OrderedTask
from jetcluster.arrow.read_task import read_task
from tests.unit.archive.made import batch
from tests.unit.arrow.fake_server import CREATED, StreamPeer, numbered, options_for, store_of
from tests.unit.arrow.test_archived import TARGET, archive_of, compact


@pytest.fixture
def with_gaps() -> Iterator[StreamPeer]:
    with StreamPeer(store_of(numbered(60), gaps=[7, 25, 26, 50])) as one:
        yield one


def partitions(options: SourceOptions, end: Offset) -> list[list[int]]:
    """Returns the sequences of each partition of a micro-batch from 1 on, in their order."""
    tasks = resolve.range_between(options, {"S": Offset(1, CREATED)}, {"S": end})
    return [[seq for one in read_task(task, options, ["seq"]) for seq in one.column(0).to_pylist()] for task in tasks]


@pytest.mark.parametrize("subjects", [">", "a.*", "a.y,b.x"])
@pytest.mark.parametrize("prefer", ["true", "false"])
def test_a_second_try_of_a_micro_batch_has_each_row_at_its_place(
    with_gaps: StreamPeer, tmp_path: Path, subjects: str, prefer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also when it reads from the archive what the first one read from the stream, on a machine with more cores."""
    url = archive_of(with_gaps, tmp_path, 40)
    options = options_for(with_gaps, archive=url, subjects=subjects, preferArchive=prefer, arrowBatchRows=7)
    end = Offset(56, CREATED, Partitioning(1, 2))
    before = partitions(options, end)
    assert [one == sorted(one) for one in before] == [True, True] and before[0][-1] < 28 <= before[1][0]
    monkeypatch.setattr(planner, "SMALL_TASK_SEQUENCES", 5)
    monkeypatch.setattr("os.cpu_count", lambda: 8)
    for upto in (10, 27, 30, 35):
        with_gaps.leader.delete_all(list(range(1, upto + 1)))
        assert partitions(options, end) == before


@pytest.mark.parametrize("subjects", [">", "a.*", "a.y,b.x"])
@pytest.mark.parametrize("seed", range(5))
def test_what_limits_remove_while_a_micro_batch_is_read_is_at_its_place(
    tmp_path: Path, seed: int, subjects: str
) -> None:
    rng = random.Random(seed)
    with StreamPeer(store_of(numbered(80))) as peer:
        url = archive_of(peer, tmp_path, 70)
        options = options_for(peer, archive=url, fetchBatch=6, arrowBatchRows=6, subjects=subjects)
        end = Offset(81, CREATED, Partitioning(1, 2))
        before, gone = partitions(options, end), 0

        def spoil(gets: int, frames: list[Any]) -> list[Any]:
            nonlocal gone
            more = min(gone + rng.randrange(25), 70)
            peer.leader.delete_all(list(range(gone + 1, more + 1)))
            gone = more
            return frames

        peer.spoil = spoil
        assert partitions(options, end) == before
        assert gone > 20
        peer.spoil = lambda gets, frames: frames
        (task,) = resolve.range_between(options, {"S": Offset(gone + 1, CREATED)}, {"S": Offset(81, CREATED)})
        peer.leader.delete_all(list(range(1, 76)))
        with pytest.raises(DataLossError, match="from 71 on some are in neither"):
            list(read_task(task, options, ["seq"]))


def test_compaction_while_a_micro_batch_is_read(with_gaps: StreamPeer, tmp_path: Path) -> None:
    url = archive_of(with_gaps, tmp_path, 40)
    with_gaps.leader.delete_all(list(range(1, 41)))
    options = options_for(with_gaps, archive=url)
    (task,) = resolve.range_between(options, {"S": Offset(1, CREATED)}, {"S": Offset(61, CREATED)})
    assert isinstance(task, OrderedTask)
    first = ArchiveTask(TARGET, url, task.files, Bounds(1, 41), 0)
    reading = in_order.read(first, options, ["data"])
    found = next(reading)["seq"].to_pylist()
    compact(url)
    found += [seq for one in reading for seq in one["seq"].to_pylist()]
    assert found == [n for n in range(1, 41) if n not in (7, 25, 26)]


def test_an_archive_that_is_made_anew_and_has_less_is_a_loss(with_gaps: StreamPeer, tmp_path: Path) -> None:
    url = archive_of(with_gaps, tmp_path / "old", 40)
    options = options_for(with_gaps, archive=url)
    with_gaps.leader.delete_all(list(range(1, 41)))
    (task,) = resolve.range_between(options, {"S": Offset(1, CREATED)}, {"S": Offset(61, CREATED)})
    assert isinstance(task, OrderedTask)
    ArchiveFolder(url).delete(task.files[0].path)
    later = ArchiveTask(TARGET, url, task.files, Bounds(1, 51), 0)
    with pytest.raises(DataLossError, match="from 41 on some are in neither"):
        list(in_order.read(later, options, ["data"]))


def test_files_that_reach_into_each_other_are_read_together(tmp_path: Path) -> None:
    storage = ArchiveFolder(str(tmp_path))
    ranges = [(1, 5), (2, 9), (8, 12), (13, 14), (20, 30), (21, 22)]
    files = [file for low, high in ranges for file in write_files(storage, "S", [batch([low, high], ["s"])])]
    random.Random(1).shuffle(files)
    groups = [[file.seqs for file in group] for group in in_order.overlapping(files)]
    assert groups == [[(1, 5), (2, 9), (8, 12)], [(13, 14)], [(20, 30), (21, 22)]]
    assert list(in_order.overlapping([])) == []


def test_an_archive_is_cut_by_its_sequences_as_its_rows_are_not_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stream has few of the messages that match; the archive may have as many as it has sequences."""
    monkeypatch.setattr(planner, "SMALL_TASK_SEQUENCES", 5)
    monkeypatch.setattr("os.cpu_count", lambda: 1)
    with StreamPeer(store_of(numbered(60))) as one:
        given: dict[str, Any] = {"subjects": "a.*", "maxRecordsPerPartition": 10}
        options = options_for(one, archive=archive_of(one, tmp_path, 60), **given)
        one.leader.delete_all(list(range(1, 59)))
        end = {"S": Offset(61, CREATED)}
        assert resolve.with_parts(options, {"S": 1}, end)["S"].parts == Partitioning(1, 6)
        assert resolve.with_parts(options_for(one, **given), {"S": 1}, end)["S"].parts == Partitioning(1, 1)
