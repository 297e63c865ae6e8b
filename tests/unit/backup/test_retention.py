"""The points of a destination, and their removal."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from jetcluster.backup.folder import FolderStorage
from jetcluster.backup.plan import StreamProgress
from jetcluster.backup.point import Blob, RestorePoint, Segment, StreamPoint
from jetcluster.backup.retention import PointCatalog
from jetcluster.backup.sequences import DamagedBackupError
from testkit.twins.backup_storage import MemoryStorage


def filled() -> tuple[MemoryStorage, list[RestorePoint]]:
    """Three points with a blob of their own and one in common; a blob of an interrupted run; one that nothing needs."""
    storage, points = MemoryStorage(), []
    for day in (1, 2, 3):
        own = Segment(Blob.of(b"%d" % day), 1, 2, 2, 9)
        common = Segment(Blob.of(b"common"), 3, 4, 2, 9)
        stream = StreamPoint("S", "then", {"name": "S"}, {"messages": 4}, Blob.of(b"live"), (own, common))
        points.append(RestorePoint(f"2026010{day}T000000Z", day, day, (stream,)))
        storage.files[points[-1].path] = points[-1].to_json()
    for data in (b"1", b"2", b"3", b"common", b"live", b"begun", b"nobody's"):
        storage.files[Blob.of(data).path] = data
    PointCatalog(storage).note("S", StreamProgress("then", (Segment(Blob.of(b"begun"), 5, 6, 2, 9),), (6, "x")))
    return storage, points


def test_old_points_go_with_what_they_alone_need() -> None:
    storage, points = filled()
    catalog = PointCatalog(storage)
    checks: list[int] = []
    assert catalog.prune(2, lambda: checks.append(storage.changes)) == (1, 2)
    assert catalog.points() == points[1:]
    assert set(catalog.blobs()) == {Blob.of(data).path for data in (b"2", b"3", b"common", b"live", b"begun")}
    assert len(checks) == 3  # before each removal
    assert catalog.prune(2, lambda: None) == (0, 0)


def test_a_point_that_cannot_be_read_does_not_count_and_keeps_all_blobs() -> None:
    storage, points = filled()
    storage.files[points[2].path] = points[2].to_json()[:-20]
    catalog = PointCatalog(storage)
    before = set(catalog.blobs())
    with pytest.raises(DamagedBackupError, match="no blob is removed"):
        catalog.prune(1, lambda: None)
    assert catalog.names() == [points[1].name, points[2].name]
    assert set(catalog.blobs()) == before
    assert catalog.newest() == points[1].name


def test_the_last_point_of_a_stream_goes_if_that_is_asked() -> None:
    storage, points = filled()
    other = replace(points[0].streams[0], name="T")
    storage.files[points[0].path] = replace(points[0], streams=(*points[0].streams, other)).to_json()
    catalog = PointCatalog(storage)
    assert catalog.prune(1, lambda: None)[0] == 1
    assert catalog.names() == [points[0].name, points[2].name]
    assert catalog.prune(1, lambda: None, gone=True)[0] == 1
    assert catalog.names() == [points[2].name]


def test_other_files_are_no_points() -> None:
    storage, points = filled()
    storage.files["points/README"] = b""
    storage.files["points/20260109T000000Z.json.bak"] = b""
    assert PointCatalog(storage).names() == [one.name for one in points]


def test_a_point_under_another_name_is_refused() -> None:
    storage, points = filled()
    storage.files["points/20260109T000000Z.json"] = replace(points[0], name="20260108T000000Z").to_json()
    with pytest.raises(DamagedBackupError, match="is the point"):
        PointCatalog(storage).point("20260109T000000Z")
    with pytest.raises(DamagedBackupError, match="missing"):
        PointCatalog(storage).point("20260110T000000Z")


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b'{"created": 1}', b'{"created": "a", "segments": [{}]}'])
def test_progress_that_cannot_be_read_is_none(data: bytes) -> None:
    storage, _ = filled()
    catalog = PointCatalog(storage)
    found = catalog.progress("S")
    assert found is not None and found.anchor == (6, "x") and found.segments[0].last == 6
    storage.files["partial/S.json"] = data
    assert catalog.progress("S") is None
    catalog.forget_progress(["S"])
    assert catalog.progress("S") is None


@pytest.mark.parametrize("stream", ["x" * 255, "ä" * 127, "../../points/20260101T000000Z", "S", "~", "a b", "\udcff"])
def test_progress_of_a_stream_of_any_name_stays_in_its_folder(stream: str, tmp_path: Path) -> None:
    storage = FolderStorage(str(tmp_path))
    storage.write(Blob.of(b"begun").path, b"begun")
    progress = StreamProgress("then", (Segment(Blob.of(b"begun"), 5, 6, 2, 9),), (6, "x"))
    catalog = PointCatalog(storage)
    catalog.note(stream, progress)
    assert catalog.progress(stream) == progress and catalog.progress("other") is None
    assert [file.path.count("/") for file in storage.list("partial")] == [1]
    assert catalog.names() == []
    assert catalog.prune(1, lambda: None) == (0, 0)  # what it has written stays
    catalog.forget_progress([stream])
    assert list(storage.list("partial")) == []
    assert catalog.prune(1, lambda: None) == (0, 1)
