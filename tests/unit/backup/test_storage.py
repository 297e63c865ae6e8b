"""The port's contract, on all sides of it; reading blobs."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from jetcluster.backup.destination import open_storage
from jetcluster.backup.point import Blob
from jetcluster.backup.sequences import DamagedBackupError
from jetcluster.backup.storage import BackupStorage, PresentError, read_blob
from testkit.twins.backup_storage import MemoryStorage


@pytest.fixture(params=["memory", "folder", "s3"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[BackupStorage]:
    if request.param == "memory":
        yield MemoryStorage()
    elif request.param == "folder":
        yield open_storage(str(tmp_path / "not" / "there" / "yet"))
    else:
        yield open_storage("s3://backups/prod/eu", request.getfixturevalue("s3_endpoint"), "us-east-1")


def test_files_come_and_go(storage: BackupStorage) -> None:
    assert list(storage.list("blobs")) == []
    assert storage.read("lock.json") is None
    storage.write("blobs/ab/abc", b"one")
    storage.write("blobs/ab/abc", b"other")
    storage.write("blobs/cd/cde", bytes(range(256)) * 300)
    storage.write("blobs2", b"beside")
    storage.write("empty", b"")
    assert storage.read("blobs/ab/abc") == b"other"
    assert storage.read("blobs/cd/cde") == bytes(range(256)) * 300
    assert storage.read("empty") == b""
    listed = sorted(storage.list("blobs"))
    assert [(one.path, one.size) for one in listed] == [("blobs/ab/abc", 5), ("blobs/cd/cde", 76800)]
    storage.write("blobs/ab/abc", b"third")
    assert [one in listed for one in sorted(storage.list("blobs"))] == [False, True], "by their versions"
    storage.delete("blobs/ab/abc")
    storage.delete("blobs/ab/abc")
    assert [file.path for file in storage.list("blobs")] == ["blobs/cd/cde"]


def test_one_of_several_creates_the_file(storage: BackupStorage) -> None:
    won: list[int] = []

    def create(number: int) -> None:
        try:
            storage.create("lock.json", b"%d" % number)
        except PresentError:
            return
        won.append(number)

    threads = [threading.Thread(target=create, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1
    assert storage.read("lock.json") == b"%d" % won[0]
    storage.delete("lock.json")
    storage.create("lock.json", b"again")


def test_a_blob_that_is_missing_or_another_one_is_told(storage: BackupStorage) -> None:
    blob = Blob.of(b"content")
    with pytest.raises(DamagedBackupError, match="missing"):
        read_blob(storage, blob)
    storage.write(blob.path, b"contend")
    with pytest.raises(DamagedBackupError, match="checksum"):
        read_blob(storage, blob)
    storage.write(blob.path, b"content")
    assert read_blob(storage, blob) == b"content"
