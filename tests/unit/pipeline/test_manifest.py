"""Manifests and the folder they are in."""

from __future__ import annotations

from pathlib import Path

import pytest

from jetcluster.pipeline import manifest
from jetcluster.pipeline.folder import LocalFolder, TakenError
from jetcluster.pipeline.manifest import Manifest
from jetcluster.pipeline.result import DataLoss, UsageError


def make(number: int, start: int, end: int, **more: object) -> Manifest:
    given = {
        "stream": "ORDERS", "created": "2026-11-22T00:00:00Z", "subjects": [">"], "rows": end - start,
        "first_seq": start, "last_seq": end - 1, "first_time": 1, "last_time": 2, "digest": "0" * 16,
        "places": "f" * 16, "files": {"part-0.parquet": 10}, "config": {"name": "ORDERS"}, "read": {},
    } | more  # fmt: skip
    return Manifest(number=number, start=start, end=end, **given)  # type: ignore[arg-type]


def commit(folder: LocalFolder, one: Manifest) -> None:
    (Path(folder.url) / one.directory).mkdir(parents=True, exist_ok=True)
    manifest.commit(folder, one)


def test_round_trip(tmp_path: Path) -> None:
    folder = LocalFolder(tmp_path)
    assert manifest.load(folder) == []
    written = [make(number, 10 * number, 10 * number + 10) for number in range(12)]
    for one in reversed(written):
        commit(folder, one)
    assert manifest.load(folder) == written  # in order of numbers, not of names
    assert written[3].directory == "stream=ORDERS/batch=3"


def test_a_manifest_is_written_once_and_whole(tmp_path: Path) -> None:
    folder = LocalFolder(tmp_path)
    commit(folder, make(0, 1, 5))
    with pytest.raises(TakenError, match="does another job write"):
        commit(folder, make(0, 1, 9))
    assert manifest.load(folder) == [make(0, 1, 5)]
    assert [path.name for path in (tmp_path / "manifest").iterdir()] == ["0.json"]


def test_the_rows_are_on_the_disk_before_the_manifest_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A manifest outlives a power failure, and with it the stream's messages may be removed: so must the rows."""
    top = tmp_path / "archive"
    synced: list[str] = []

    def fsync(descriptor: int) -> None:
        path = Path(f"/proc/self/fd/{descriptor}").resolve()
        seen = "" if (top / "manifest" / "0.json").exists() else "before: "
        synced.append(seen + str(path.relative_to(tmp_path)))

    monkeypatch.setattr("os.fsync", fsync)
    folder = LocalFolder(top)
    one = make(0, 1, 5)
    batch = top / one.directory
    batch.mkdir(parents=True)
    (batch / "part-0.parquet").write_text("x" * 10)
    commit(folder, one)
    durable_before = {line.removeprefix("before: ") for line in synced if line.startswith("before: ")}
    inside = {"archive/stream=ORDERS", "archive/stream=ORDERS/batch=0", "archive/stream=ORDERS/batch=0/part-0.parquet"}
    assert {".", "archive"} | inside <= durable_before
    assert {"archive/manifest", "archive"} <= {line for line in synced if not line.startswith("before: ")}


def test_there_is_no_manifest_of_rows_that_are_not_there(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        manifest.commit(LocalFolder(tmp_path), make(0, 1, 5))
    assert manifest.load(LocalFolder(tmp_path)) == []


def test_what_a_crash_leaves_is_not_seen(tmp_path: Path) -> None:
    folder = LocalFolder(tmp_path)
    commit(folder, make(0, 1, 5))
    (tmp_path / "manifest" / ".1.json.4711").write_text("{")
    assert len(manifest.load(folder)) == 1


def test_holes(tmp_path: Path) -> None:
    folder = LocalFolder(tmp_path)
    commit(folder, make(0, 1, 5))
    commit(folder, make(2, 5, 9))
    with pytest.raises(DataLoss, match="manifest 1 is missing, 2 is there"):
        manifest.load(folder)
    commit(folder, make(1, 6, 9))
    with pytest.raises(DataLoss, match="manifest 1 begins at 6, 0 ended at 5"):
        manifest.load(folder)


def test_another_stream(tmp_path: Path) -> None:
    folder = LocalFolder(tmp_path)
    commit(folder, make(0, 1, 5))
    commit(folder, make(1, 5, 9, created="2026-11-23T00:00:00Z"))
    with pytest.raises(UsageError, match="of another stream"):
        manifest.load(folder)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"schema": 2}', '{"schema": 1}', "nonsense"])
def test_rubbish(text: str) -> None:
    with pytest.raises(UsageError, match=r"m\.json"):
        Manifest.from_json(text, "m.json")


def test_hashes_are_unsigned() -> None:
    assert manifest.hexadecimal(-1) == "f" * 16
    assert manifest.hexadecimal(None) == manifest.hexadecimal(0) == "0" * 16
    assert manifest.hexadecimal(255) == "00000000000000ff"
