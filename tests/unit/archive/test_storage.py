"""Archives in folders and in an S3 server's bucket: the same calls, the same answers."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from jetcluster.archive.storage import ArchiveFolder, is_local, open_archive
from jetcluster.backup.storage import BackupStorageError, PresentError


@pytest.fixture(params=["folder", "s3"])
def storage(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    if request.param == "folder":
        return open_archive(f"file://{tmp_path}/an%20archive")
    pytest.importorskip("obstore", reason="obstore is not installed: pip install 'jetcluster[archive]'")
    monkeypatch.setenv("AWS_ENDPOINT_URL", request.getfixturevalue("s3_endpoint"))
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    return open_archive("s3://backups/an/archive/")


def test_files(storage: Any) -> None:
    assert storage.read("a/b") is None
    assert list(storage.list("a")) == []
    storage.create("a/b", b"1")
    with pytest.raises(PresentError):
        storage.create("a/b", b"2")
    storage.write("a/c/d", b"22")
    storage.write("a/c/d", b"333")
    storage.write("ab", b"")
    assert sorted((one.path, one.size) for one in storage.list("a")) == [("a/b", 1), ("a/c/d", 3)]
    assert sorted(one.path for one in storage.list("")) == ["a/b", "a/c/d", "ab"]
    assert (storage.read("a/b"), storage.read("ab")) == (b"1", b"")
    storage.delete("a/b")
    storage.delete("a/b")
    storage.sweep()
    assert [one.path for one in storage.list("a")] == ["a/c/d"]


def test_another_file_in_the_same_place_is_listed_as_another(storage: Any) -> None:
    storage.create("a/b", b"1")
    (before,), (again,) = storage.list("a"), storage.list("a")
    assert before == again
    storage.delete("a/b")
    storage.create("a/b", b"2")
    (after,) = storage.list("a")
    assert (after.path, after.size) == ("a/b", 1) and after != before


def test_open(storage: Any) -> None:
    storage.write("x", b"0123456789")
    with storage.open("x") as file:
        file.seek(4)
        assert bytes(file.read(3)) == b"456"
        file.seek(-2, os.SEEK_END)
        assert bytes(file.read()) == b"89"
    with pytest.raises(FileNotFoundError):
        storage.open("y")


def test_an_archive_is_readable_by_those_who_may_read_the_folder(tmp_path: Path) -> None:
    """Unlike a backup, which is its owner's alone."""
    before = os.umask(0o022)
    try:
        ArchiveFolder(str(tmp_path / "new")).write("a/b", b"")
    finally:
        os.umask(before)
    assert [(tmp_path / "new" / one).stat().st_mode & 0o777 for one in ("a", "a/b")] == [0o755, 0o644]


@pytest.mark.parametrize("url", ["hdfs://name/x", "http://host/x", "s4://bucket"])
def test_other_places_are_refused(url: str) -> None:
    assert not is_local(url)
    with pytest.raises(BackupStorageError, match=r"an archive is a folder, s3://"):
        open_archive(url)
