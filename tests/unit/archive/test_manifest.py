"""Manifests: which count, and that holes and rubbish are told."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from jetcluster.archive import manifest
from jetcluster.archive.manifest import ArchiveLossError, Manifest, NotAnArchiveError
from jetcluster.archive.storage import ArchiveFolder
from jetcluster.backup.storage import StoredFile
from tests.unit.archive.made import manifest as made


def test_round_trip(tmp_path: Path) -> None:
    folder = ArchiveFolder(str(tmp_path))
    assert manifest.load(folder) == []
    written = [made(number, 10 * number, 10 * number + 10) for number in range(12)]
    for one in reversed(written):
        manifest.commit(folder, one)
    assert manifest.load(folder) == written  # in order of numbers, not of names
    assert written[3].size == 10


def test_a_manifest_is_written_once(tmp_path: Path) -> None:
    folder = ArchiveFolder(str(tmp_path))
    manifest.commit(folder, made(0, 1, 5))
    with pytest.raises(NotAnArchiveError, match="does another job write"):
        manifest.commit(folder, made(0, 1, 9))
    assert manifest.load(folder) == [made(0, 1, 5)]
    assert [path.name for path in (tmp_path / "_manifest").iterdir()] == ["0.json"]


def test_a_wider_manifest_replaces_those_in_it(tmp_path: Path) -> None:
    """As when compaction died before it removed the old ones."""
    folder = ArchiveFolder(str(tmp_path))
    for number in range(5):
        manifest.commit(folder, made(number, number, number + 1))
    wide = made(3, 1, 4, since=1)
    manifest.commit(folder, wide)
    assert manifest.load(folder) == [made(0, 0, 1), wide, made(4, 4, 5)]
    widest = made(4, 0, 5, since=0)
    manifest.commit(folder, widest)
    assert manifest.load(folder) == [widest]
    assert len(manifest.listed(folder)) == 7
    manifest.commit(folder, made(6, 4, 6, since=3))
    with pytest.raises(ArchiveLossError, match="manifest 3-6 overlaps"):
        manifest.load(folder)


def test_what_was_read_is_not_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = ArchiveFolder(str(tmp_path))
    for number in range(3):
        manifest.commit(folder, made(number, number, number + 1))
    known: dict[StoredFile, Manifest] = {}
    first = manifest.load(folder, known)
    reads: list[str] = []
    read = ArchiveFolder.read
    monkeypatch.setattr(ArchiveFolder, "read", lambda self, path: (reads.append(path), read(self, path))[1])
    manifest.commit(folder, made(3, 3, 4))
    assert manifest.load(folder, known) == [*first, made(3, 3, 4)]
    assert reads == ["_manifest/3.json"]


def test_an_archive_that_was_made_anew_is_read_anew(tmp_path: Path) -> None:
    """Its manifests have the names of the old ones, and here their size, too."""
    folder = ArchiveFolder(str(tmp_path))
    known: dict[StoredFile, Manifest] = {}
    for number in range(3):
        manifest.commit(folder, made(number, 10 + number, 11 + number))
    manifest.load(folder, known)
    for file in list(folder.list("_manifest")):
        folder.delete(file.path)
    anew = [made(number, 50 + number, 51 + number) for number in range(3)]
    for one in anew:
        manifest.commit(folder, one)
    assert manifest.load(folder, known) == anew
    assert len(known) == 3


def test_holes(tmp_path: Path) -> None:
    folder = ArchiveFolder(str(tmp_path))
    manifest.commit(folder, made(0, 1, 5))
    manifest.commit(folder, made(2, 5, 9))
    with pytest.raises(ArchiveLossError, match="manifest 1 is missing, 2 is there"):
        manifest.load(folder)
    manifest.commit(folder, made(1, 6, 9))
    with pytest.raises(ArchiveLossError, match="manifest 1 begins at 6, 0 ended at 5"):
        manifest.load(folder)


def test_another_stream(tmp_path: Path) -> None:
    folder = ArchiveFolder(str(tmp_path))
    manifest.commit(folder, made(0, 1, 5))
    manifest.commit(folder, made(1, 5, 9, created="2026-11-23T00:00:00Z"))
    with pytest.raises(NotAnArchiveError, match="of another stream"):
        manifest.load(folder)


def test_archives_of_the_first_schema_are_read_and_go_on(tmp_path: Path) -> None:
    old = {
        "number": 0, "stream": "ORDERS", "created": "2026-11-22T00:00:00Z", "subjects": [">"], "start": 1, "end": 5,
        "rows": 3, "first_seq": 1, "last_seq": 3, "first_time": 7, "last_time": 9, "digest": "0" * 16,
        "places": "f" * 16, "files": {"part-0.zstd.parquet": 10}, "config": {}, "read": {}, "schema": 1,
    }  # fmt: skip
    (tmp_path / "manifest").mkdir()
    (tmp_path / "manifest" / "0.json").write_text(json.dumps(old))
    folder = ArchiveFolder(str(tmp_path))
    manifest.commit(folder, made(1, 5, 9))
    first, second = manifest.load(folder)
    assert (first.number, first.since, first.rows, second.start) == (0, 0, 3, 5)
    file = first.files[0]
    assert (file.path, file.size, file.rows) == ("stream=ORDERS/batch=0/part-0.zstd.parquet", 10, -1)
    assert (file.seqs, file.times, file.subjects) == ((1, 4), (7, 9), None)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"schema": 3}', '{"schema": 2}', '{"schema": 1}', "nonsense"])
def test_rubbish(text: str) -> None:
    with pytest.raises(NotAnArchiveError, match=r"m\.json"):
        Manifest.from_json(text, "m.json")


def test_hashes_are_unsigned() -> None:
    assert manifest.hexadecimal(-1) == "f" * 16
    assert manifest.hexadecimal(None) == manifest.hexadecimal(0) == "0" * 16
    assert manifest.hexadecimal(255) == "00000000000000ff"
