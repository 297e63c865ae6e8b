"""A folder as destination: what is left after a failure, modes, refusals."""

from __future__ import annotations

import os
import shutil
import stat
from pathlib import Path

import pytest

from jetcluster.backup.folder import FolderStorage
from jetcluster.backup.storage import BackupStorageError


def test_a_file_appears_after_it_is_synced_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    storage = FolderStorage(str(tmp_path))
    storage.write("points/a", b"old")
    synced: list[int] = []
    real = os.fsync

    def sync(descriptor: int) -> None:
        if not stat.S_ISDIR(os.fstat(descriptor).st_mode):
            assert (tmp_path / "points/a").read_bytes() == b"old"
            synced.append(os.fstat(descriptor).st_size)
        real(descriptor)

    monkeypatch.setattr(os, "fsync", sync)
    storage.write("points/a", b"newer")
    assert synced == [5]

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    for call in (storage.write, storage.create):
        with pytest.raises(BackupStorageError, match="No space left"):
            call("points/b", b"half")
    assert [path.name for path in (tmp_path / "points").iterdir()] == ["a"]


def test_what_a_killed_process_left_is_not_listed(tmp_path: Path) -> None:
    storage = FolderStorage(str(tmp_path))
    storage.write("blobs/ab/x", b"1")
    (tmp_path / "blobs/ab/.tmp-0123").write_bytes(b"half")
    assert [file.path for file in storage.list("blobs")] == ["blobs/ab/x"]


def test_only_the_owner_reads_a_backup(tmp_path: Path) -> None:
    FolderStorage(str(tmp_path / "new")).write("blobs/ab/x", b"1")
    for path in (tmp_path / "new", tmp_path / "new/blobs/ab"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o700
    assert stat.S_IMODE((tmp_path / "new/blobs/ab/x").stat().st_mode) == 0o600


def test_what_the_system_refuses_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    storage = FolderStorage(str(tmp_path / "file"))
    with pytest.raises(BackupStorageError, match="Not a directory"):
        storage.write("x", b"")
    with pytest.raises(BackupStorageError, match="Not a directory"):
        storage.read("x")
    with pytest.raises(BackupStorageError, match="Is a directory"):
        FolderStorage(str(tmp_path.parent)).read(tmp_path.name)


def test_a_file_that_vanishes_while_it_lists_ends_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    storage = FolderStorage(str(tmp_path))
    for number in range(20):
        storage.write(f"blobs/{number:02}/x", b"1")
        storage.write(f"blobs/{number:02}/y", b"1")
    listing, found = storage.list("blobs"), []
    for file in listing:
        found.append(file.path)
        for gone in ("05/x", "06", "07/y"):
            shutil.rmtree(tmp_path / "blobs" / gone, ignore_errors=True)
            (tmp_path / "blobs" / gone).unlink(missing_ok=True)
    assert len(found) >= 36 and len(set(found)) == len(found)
    real = Path.stat

    def stat_of(path: Path, **options: bool) -> os.stat_result:
        if path.match("10/y"):
            raise FileNotFoundError(2, "gone")
        return real(path, **options)

    monkeypatch.setattr(Path, "stat", stat_of)
    assert len(list(storage.list("blobs"))) == 35


@pytest.mark.parametrize("path", ["../out", "blobs/../../out", "/etc/out", "blobs/..", "a\0b"])
def test_no_path_leaves_the_folder(path: str, tmp_path: Path) -> None:
    storage = FolderStorage(str(tmp_path / "backup"))
    storage.write("blobs/ab/x", b"1")
    (tmp_path / "out").write_bytes(b"secret")
    for call in (
        lambda: storage.read(path), lambda: storage.write(path, b""), lambda: storage.create(path, b""),
        lambda: storage.delete(path), lambda: list(storage.list(path)),
    ):  # fmt: skip
        with pytest.raises(BackupStorageError, match="no path of a backup"):
            call()
    assert (tmp_path / "out").read_bytes() == b"secret"
    assert list(storage.list("blobs"))


def test_what_killed_processes_left_is_removed_when_it_is_old(tmp_path: Path) -> None:
    storage = FolderStorage(str(tmp_path))
    storage.write("blobs/ab/x", b"1")
    new, old = tmp_path / "blobs/ab/.tmp-new", tmp_path / "blobs/ab/.tmp-old"
    for path in (new, old):
        path.write_bytes(b"half")
    os.utime(old, (1.0, 1.0))
    os.utime(tmp_path / "blobs/ab/x", (1.0, 1.0))
    storage.sweep()
    assert new.exists() and not old.exists() and storage.read("blobs/ab/x") == b"1"
    FolderStorage(str(tmp_path / "none")).sweep()
