"""Archive and live stream as one table: each sequence once, and none missing, whatever moves meanwhile."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="pip install 'jetcluster[spark]'")

from jetcluster.archive import manifest
from jetcluster.archive.bounds import Bounds
from jetcluster.archive.manifest import COLUMNS, ArchivedFile, Manifest, totals
from jetcluster.archive.parquet import read_file, write_files
from jetcluster.archive.storage import ArchiveFolder
from jetcluster.arrow import archived, planner, resolve
from jetcluster.arrow.archived import Archived, Seen
from jetcluster.arrow.offsets import Offset
from jetcluster.arrow.options import SourceOptions
from jetcluster.arrow.planner import ArchiveTask, DataLossError, RangeTask, Target
from jetcluster.arrow.read_task import read_task
from jetcluster.client.stream_state import StreamError
from jetcluster.model.times import rfc3339
from tests.unit.archive.made import batch
from tests.unit.arrow.fake_server import CREATED, T0, StreamPeer, numbered, options_for, store_of

TARGET = Target("S", "S", CREATED, "n1", ("n1",))


def archive_of(peer: StreamPeer, folder: Path, upto: int, each: int = 10, subjects: str = ">", first: int = 1) -> str:
    """Archives the stream's messages up to a sequence, `each` sequences a batch, as the job does."""
    storage = ArchiveFolder(str(folder))
    for number, start in enumerate(range(first, upto + 1, each)):
        end = min(start + each, upto + 1)
        options = options_for(peer, subjects=subjects, failOnDataLoss="false")
        rows = read_task(RangeTask(TARGET, start, end, 0), options, COLUMNS)
        files = list(write_files(storage, "S", rows, 4))
        manifest.commit(storage, of_files(number, start, end, files, subjects=[subjects]))
    return str(folder)


def of_files(number: int, start: int, end: int, files: list[ArchivedFile], **more: Any) -> Manifest:
    given = {"stream": "S", "created": CREATED, "subjects": [">"], "since": number} | more
    return Manifest(number=number, start=start, end=end, **given, **totals(files))


def rows_of(options: SourceOptions) -> list[dict[str, Any]]:
    extents = resolve.batch_extents(options)
    resolve.check_loss(extents)
    tasks = resolve.tasks_of(extents, options)
    return [row for task in tasks for one in read_task(task, options, options.names) for row in one.to_pylist()]


def seqs_of(options: SourceOptions) -> list[int]:
    found = [row["seq"] for row in rows_of(options)]
    assert len(set(found)) == len(found)
    return sorted(found)


@pytest.fixture
def peer() -> Iterator[StreamPeer]:
    with StreamPeer(store_of(numbered(60), gaps=[7, 25, 26, 50])) as one:
        yield one


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ({}, range(1, 61)),
        ({"preferArchive": "true"}, range(1, 61)),
        ({"startingOffsets": 12, "endingOffsets": 15}, range(12, 15)),
        ({"startingOffsets": 29, "endingOffsets": 33}, range(29, 33)),
        ({"startingOffsets": 45}, range(45, 61)),
        ({"asOfSeq": 9}, range(1, 10)),
        ({"startingTimestamp": rfc3339(T0 + 9_000)}, range(10, 61)),
        ({"startingTimestamp": rfc3339(T0 + 44_000)}, range(45, 61)),
        ({"asOfTime": rfc3339(T0 + 9_000)}, range(1, 11)),
        ({"maxRecordsPerPartition": 7}, range(1, 61)),
    ],
)
def test_one_table(peer: StreamPeer, tmp_path: Path, given: dict[str, object], wanted: range) -> None:
    """The stream has lost its first thirty messages; the archive has the first forty."""
    url = archive_of(peer, tmp_path, 40)
    peer.leader.delete_all(list(range(1, 31)))
    there = [seq for seq in wanted if seq not in (7, 25, 26, 50)]
    assert seqs_of(options_for(peer, archive=url, **given)) == there


@pytest.mark.parametrize("columns", ["", ",".join(["stream", *COLUMNS]), "seq", "data,seq"])
def test_rows_of_the_archive_are_those_of_the_stream(peer: StreamPeer, tmp_path: Path, columns: str) -> None:
    url = archive_of(peer, tmp_path, 40)
    before = rows_of(options_for(peer, columns=columns))
    kafka = rows_of(options_for(peer, kafkaColumns="true"))
    peer.leader.delete_all(list(range(1, 31)))
    after = rows_of(options_for(peer, archive=url, columns=columns))
    assert sorted(after, key=lambda row: row["seq"]) == before
    after = rows_of(options_for(peer, archive=url, kafkaColumns="true"))
    assert sorted(after, key=lambda row: row["offset"]) == kafka


def test_filters_hold_in_both(peer: StreamPeer, tmp_path: Path) -> None:
    url = archive_of(peer, tmp_path, 40)
    peer.leader.delete_all(list(range(1, 31)))
    found = rows_of(options_for(peer, archive=url, subjects="a.y,b.>"))
    assert {row["subject"] for row in found} == {"a.y", "b.x"}
    assert len(found) == sum(seq % 3 != 1 and seq not in (7, 25, 26, 50) for seq in range(1, 61))
    with pytest.raises(StreamError, match=r"has only b\.>, and the query reads a\.y"):
        seqs_of(options_for(peer, archive=archive_of(peer, tmp_path / "b", 40, subjects="b.>"), subjects="a.y"))


def test_what_is_in_neither_is_told(peer: StreamPeer, tmp_path: Path) -> None:
    url = archive_of(peer, tmp_path, 20)
    peer.leader.delete_all(list(range(1, 31)))
    with pytest.raises(DataLossError, match=r"has 1 to 20: from 21 on some are in neither"):
        seqs_of(options_for(peer, archive=url))
    assert seqs_of(options_for(peer, archive=url, startingOffsets=31)) == [n for n in range(31, 61) if n != 50]
    lenient = seqs_of(options_for(peer, archive=url, failOnDataLoss="false"))
    assert lenient == [n for n in range(1, 61) if n not in (7, 50) and not 20 < n < 31]
    with pytest.raises(StreamError, match="there is no archive"):
        seqs_of(options_for(peer, archive=str(tmp_path / "nowhere")))
    peer.created = "2026-12-01T00:00:00Z"
    with pytest.raises(StreamError, match="as it was created at"):
        seqs_of(options_for(peer, archive=url))


@pytest.mark.parametrize("subjects", [">", "a.*"])
@pytest.mark.parametrize("seed", range(5))
def test_retention_that_moves_while_tasks_read(tmp_path: Path, seed: int, subjects: str) -> None:
    """Planning sees 1 to 80 in the stream. Each request finds less of it, and all of what goes is archived."""
    rng = random.Random(seed)
    wanted = [n for n in range(1, 81) if subjects == ">" or n % 3 != 0]
    with StreamPeer(store_of(numbered(80))) as peer:
        url = archive_of(peer, tmp_path, 70)
        options = options_for(
            peer,
            archive=url,
            fetchBatch=6,
            prefetch="false",
            arrowBatchRows=6,
            maxRecordsPerPartition=30,
            subjects=subjects,
        )
        extents = resolve.batch_extents(options)
        gone = 0

        def spoil(gets: int, frames: list[Any]) -> list[Any]:
            nonlocal gone
            more = min(gone + rng.randrange(12), 70)
            peer.leader.delete_all(list(range(gone + 1, more + 1)))
            gone = more
            return frames

        peer.spoil = spoil
        found = []
        for task in resolve.tasks_of(extents, options):
            for one in read_task(task, options, ["data", "seq"]):
                found += one.column(1).to_pylist()
                assert one.column(0).to_pylist() == [b"%d" % seq for seq in one.column(1).to_pylist()]
    assert gone > 20
    assert sorted(found) == wanted


def test_what_goes_while_tasks_read_and_is_not_archived_is_an_error(tmp_path: Path) -> None:
    with StreamPeer(store_of(numbered(40))) as peer:
        options = options_for(
            peer, archive=archive_of(peer, tmp_path, 20), fetchBatch=10, prefetch="false", arrowBatchRows=10
        )
        batches = read_task(RangeTask(TARGET, 1, 41, 0), options, ["seq"])
        assert next(batches).num_rows == 10
        peer.leader.delete_all(list(range(1, 26)))
        with pytest.raises(DataLossError, match="from 21 on some are in neither"):
            list(batches)


def test_a_batch_that_is_made_one_with_others_while_it_is_read(peer: StreamPeer, tmp_path: Path) -> None:
    """Compaction takes the planned files away: rows are read from the new one, each once."""
    url = archive_of(peer, tmp_path, 40)
    peer.leader.delete_all(list(range(1, 41)))
    options = options_for(peer, archive=url, maxRecordsPerPartition=25)
    tasks = resolve.tasks_of(resolve.batch_extents(options), options)
    reads = [iter(read_task(task, options, ["seq"])) for task in tasks if isinstance(task, ArchiveTask)]
    assert len(reads) == 2
    found = [seq for one in reads for seq in next(one).column(0).to_pylist()]  # all have begun
    new = compact(url)
    found += [seq for one in reads for rest in one for seq in rest.column(0).to_pylist()]
    assert sorted(found) == [n for n in range(1, 41) if n not in (7, 25, 26)]
    ArchiveFolder(url).delete(new[0].path)
    with pytest.raises(StreamError, match="files are replaced all the time, or are missing"):
        list(read_task(tasks[0], options, ["seq"]))


def compact(url: str) -> list[ArchivedFile]:
    """Puts one batch in the place of those of 1 to 40, and returns its files."""
    storage = ArchiveFolder(url)
    old = manifest.load(storage)
    rows = [one for file in (f for m in old for f in m.files) for one in archived_rows(storage, file)]
    new = list(write_files(storage, "S", rows))
    manifest.commit(storage, of_files(old[-1].number, 1, 41, new, since=0))
    for file in (file for one in old for file in one.files):
        storage.delete(file.path)
    return new


@pytest.mark.parametrize("prefer", ["true", "false"])
def test_an_archive_that_begins_later_than_the_stream(peer: StreamPeer, tmp_path: Path, prefer: str) -> None:
    """Preferred or not: what only the stream has is read there."""
    url = archive_of(peer, tmp_path, 40, first=21)
    there = [seq for seq in range(1, 61) if seq not in (7, 25, 26, 50)]
    assert seqs_of(options_for(peer, archive=url, preferArchive=prefer)) == there
    peer.leader.delete_all([1, 2, 3])
    assert seqs_of(options_for(peer, archive=url, preferArchive=prefer)) == there[3:]
    peer.leader.delete_all(list(range(4, 31)))
    later = options_for(peer, archive=url, preferArchive=prefer, startingOffsets=23)
    assert seqs_of(later) == [seq for seq in there if seq >= 23]


def anew(peer: StreamPeer, url: str, first: int) -> None:
    """Removes an archive and makes it again in the same place, as of what a later job found in the stream."""
    for file in list(ArchiveFolder(url).list("")):
        ArchiveFolder(url).delete(file.path)
    archive_of(peer, Path(url), 40, first=first)


def test_an_archive_that_was_made_anew_is_known_as_it_is(peer: StreamPeer, tmp_path: Path) -> None:
    url = archive_of(peer, tmp_path, 40)
    options = options_for(peer, archive=url)
    assert archived.find("S", CREATED, options)[1:3] == (1, 41)  # type: ignore[index]
    anew(peer, url, 21)
    assert archived.find("S", CREATED, options)[1:3] == (21, 41)  # type: ignore[index]
    peer.leader.delete_all(list(range(1, 31)))
    with pytest.raises(DataLossError, match="messages 1 to 20 are gone"):
        seqs_of(options_for(peer, archive=url, startingOffsets=1))


def test_an_archive_that_is_made_anew_while_it_is_read(peer: StreamPeer, tmp_path: Path) -> None:
    """The planned files are gone; what the new ones lack is told, as it would be by planning."""
    url = archive_of(peer, tmp_path, 40)
    there = [seq for seq in range(1, 41) if seq not in (7, 25, 26)]
    kept = store_of(numbered(60), gaps=[7, 25, 26, 50])
    peer.leader.delete_all(list(range(1, 41)))
    for given in ({}, {"failOnDataLoss": "false"}):
        options = options_for(peer, archive=url, **given)
        task = resolve.tasks_of(resolve.batch_extents(options), options)[0]
        with StreamPeer(kept) as before:
            anew(before, url, 21)
        if given:
            rows = [seq for one in read_task(task, options, ["seq"]) for seq in one.column(0).to_pylist()]
            assert sorted(rows) == [seq for seq in there if seq > 20]
        else:
            with pytest.raises(DataLossError, match=r"has 21 to 40: from 1 on some are in neither"):
                list(read_task(task, options, ["seq"]))
            with StreamPeer(kept) as before:
                anew(before, url, 1)
    assert isinstance(task, ArchiveTask)
    for file in list(ArchiveFolder(url).list("")):
        ArchiveFolder(url).delete(file.path)
    for at, more in enumerate(({"created": "2026-12-01T00:00:00Z"}, {"stream": "T"})):
        manifest.commit(ArchiveFolder(f"{url}/{at}"), of_files(0, 1, 41, [], **more))
    for at, said in enumerate(("as it was created at", "is of T, not of S")):
        place = f"{url}/{at}"
        with pytest.raises(StreamError, match=said):
            list(read_task(dataclasses.replace(task, url=place), options_for(peer, archive=place), ["seq"]))


def archived_rows(storage: ArchiveFolder, file: ArchivedFile) -> list[Any]:
    return list(read_file(storage, file, COLUMNS, Bounds()))


def test_micro_batches_begin_in_the_archive(peer: StreamPeer, tmp_path: Path) -> None:
    url = archive_of(peer, tmp_path, 40)
    peer.leader.delete_all(list(range(1, 31)))
    options = options_for(peer, archive=url)
    found = []
    for low, high in ((1, 15), (15, 32), (32, 61)):
        for task in resolve.range_between(options, {"S": Offset(low, CREATED)}, {"S": Offset(high, CREATED)}):
            found += [seq for one in read_task(task, options, ["seq"]) for seq in one.column(0).to_pylist()]
    assert sorted(found) == [n for n in range(1, 61) if n not in (7, 25, 26, 50)]
    with pytest.raises(DataLossError, match="messages 1 to 30 are gone"):
        resolve.range_between(options_for(peer), {"S": Offset(1, CREATED)}, {"S": Offset(15, CREATED)})


@pytest.mark.parametrize("low", [1, 12])
def test_micro_batches_prefer_the_archive_where_the_stream_has_lost_messages_in_its_midst(
    peer: StreamPeer, tmp_path: Path, low: int
) -> None:
    """As `max_msgs_per_subject` removes them: the stream still begins at 1."""
    url = archive_of(peer, tmp_path, 40)
    peer.leader.delete_all(list(range(10, 31)))
    options = options_for(peer, archive=url, preferArchive="true")
    found = []
    for begin, end in ((low, 15), (15, 45), (45, 61)):
        for task in resolve.range_between(options, {"S": Offset(begin, CREATED)}, {"S": Offset(end, CREATED)}):
            found += [seq for one in read_task(task, options, ["seq"]) for seq in one.column(0).to_pylist()]
    assert found == [n for n in range(low, 61) if n not in (7, 25, 26, 50)]
    assert seqs_of(options_for(peer, archive=url, preferArchive="true", startingOffsets=low)) == found


def test_a_stream_that_is_empty_has_messages_as_large_as_those_of_its_archive(tmp_path: Path) -> None:
    """So bytes become as many rows: without any size, a megabyte would be a million of them."""
    with StreamPeer(store_of(numbered(100))) as peer:
        url = archive_of(peer, tmp_path, 100, each=100)
        peer.leader.delete_all(list(range(1, 101)))
        options = options_for(peer, archive=url, maxBytesPerTrigger="64k")
        state, archive = resolve.united(resolve.stream_states(options)["S"], 1, options)
    assert archive is not None and (state.first, state.messages) == (1, 100)
    assert state.bytes == 4 * sum(file.size for file in archive.files)
    ends = planner.advance({"S": Offset(1, CREATED)}, {"S": Offset(101, CREATED)}, {"S": state}, size=state.bytes // 4)
    assert ends["S"].seq == 26


def test_tasks_own_ranges_and_leave_out_files(tmp_path: Path) -> None:
    names = ["s.0", "s.1"]
    storage = ArchiveFolder(str(tmp_path))
    files = [
        file for at in range(1, 101, 10) for file in write_files(storage, "S", [batch(list(range(at, at + 10)), names)])
    ]
    whole = Archived(str(tmp_path), 1, 101, tuple(files))
    with StreamPeer(store_of([])) as peer:
        options = options_for(peer, maxRecordsPerPartition=30)
    found = archived.tasks(TARGET, whole, Bounds(5, 95), options, first=3)
    assert [(task.bounds.low, task.bounds.high, task.index) for task in found] == [
        (5, 31, 3), (31, 61, 4), (61, 91, 5), (91, 95, 6)
    ]  # fmt: skip
    assert [len(task.files) for task in found] == [3, 3, 3, 1]
    (one,) = archived.tasks(TARGET, whole, Bounds(42, 47), options)
    assert [file.seqs for file in one.files] == [(41, 50)]
    times = files[5].times
    (one,) = archived.tasks(TARGET, whole, Bounds(1, 101, times[0], times[1]), options)
    assert [file.seqs for file in one.files] == [(51, 60)]
    assert archived.tasks(TARGET, whole, Bounds(1, 101, subjects=("t.*",)), options) == []


def test_seen_rows() -> None:
    seen = Seen()
    rows = batch(list(range(1, 11)), ["a"])
    assert seen.fresh(rows) is rows
    seen.add_range(2, 4)
    seen.add([7, 9])
    assert seen.fresh(rows)["seq"].to_pylist() == [1, 5, 6, 8, 10]
