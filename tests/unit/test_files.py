"""File operations made of the system's calls."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from jetcluster import files
from testkit.twins.storage import SimDisk
from testkit.twins.time import SeededRng


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_file_is_written_durably_in_place_of_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "state"
    calls: list[str] = []
    watched: Any = SimpleNamespace(**{name: getattr(os, name) for name in dir(os) if not name.startswith("__")})
    for name in ("fsync", "replace"):
        real = getattr(os, name)
        setattr(watched, name, lambda *args, name=name, real=real: (calls.append(name), real(*args))[1])
    for text in ("one", "two"):
        files.write_durably(path, text, watched)
        assert files.read_text(path) == text + "\n"
        assert calls[-3:] == ["fsync", "replace", "fsync"], "the file, its name, and the folder's entry"
    assert files.names_in(path.parent) == ["state"]
    assert (mode(path), mode(path.parent), mode(path.parent.parent)) == (
        files.FILE_MODE,
        files.FOLDER_MODE,
        files.FOLDER_MODE,
    )


def test_what_is_not_there(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    assert files.names_in(tmp_path / "none") == []
    assert files.exists(tmp_path / "file") and not files.is_folder(tmp_path / "file")
    assert not files.exists(tmp_path / "none") and not files.exists(tmp_path / "file" / "below")
    with pytest.raises(FileExistsError):
        files.make_folder(tmp_path / "file")
    with pytest.raises(FileNotFoundError):
        files.read(tmp_path / "none")


def test_a_tree_goes_and_what_it_points_to_stays(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.mkdir()
    (kept / "file").write_text("x")
    tree = tmp_path / "tree" / "below"
    files.make_folder(tree)
    (tree / "file").write_text("x")
    (tree / "link").symlink_to(kept)
    files.remove_tree(tmp_path / "tree")
    assert files.names_in(tmp_path) == ["kept"] and files.names_in(kept) == ["file"]


def test_a_long_file_is_read_whole(tmp_path: Path) -> None:
    data = os.urandom(3 << 20)
    files.write(tmp_path / "long", data)
    assert files.read(tmp_path / "long") == data
    assert 0 < files.free_bytes(tmp_path) <= files.total_bytes(tmp_path)


@pytest.fixture(params=["system", "simulated"])
def preallocated(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[files.Files, Path]:
    """A file of a MiB in which nothing was written."""
    calls: files.Files = os if request.param == "system" else SimDisk(SeededRng(1)).files
    path = tmp_path / "file" if request.param == "system" else Path("/file")
    descriptor = calls.open(path, os.O_RDWR | os.O_CREAT)
    calls.posix_fallocate(descriptor, 0, 1 << 20)
    calls.close(descriptor)
    return calls, path


def put(calls: files.Files, path: Path, at: int, data: bytes) -> None:
    descriptor = calls.open(path, os.O_RDWR)
    calls.pwrite(descriptor, data, at)
    calls.close(descriptor)


def test_a_preallocated_file_is_read_as_far_as_it_was_written(preallocated: tuple[files.Files, Path]) -> None:
    calls, path = preallocated
    assert len(files.read_beginning(path, calls)[0]) <= 1 << 16
    put(calls, path, 0, b"x" * 100_000)
    data, size = files.read_beginning(path, calls)
    assert size == 1 << 20 and data.rstrip(b"\0") == b"x" * 100_000 and len(data) < 1 << 20
    put(calls, path, 500_000, b"after a hole")
    data, size = files.read_beginning(path, calls)
    assert data.endswith(bytes(1000)) and data.rstrip(b"\0").endswith(b"after a hole") and size == 1 << 20
    put(calls, path, (1 << 20) - 1, b"z")
    assert files.read_beginning(path, calls) == (files.read(path, calls), 1 << 20)


class Forgetful:
    """The system's calls; the file system takes data from `hole` on for a hole, or knows no holes."""

    def __init__(self, hole: int | None) -> None:
        self._hole = hole

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def lseek(self, _fd: int, position: int, whence: int) -> int:
        if self._hole is None:
            raise OSError(errno.EINVAL, "no such thing")
        if whence == os.SEEK_DATA and position >= self._hole:
            raise OSError(errno.ENXIO, "nothing")
        return position if whence == os.SEEK_DATA else self._hole


@pytest.mark.parametrize("hole", [None, 0, 4096, 99_000])
def test_a_file_system_is_not_believed_that_there_are_only_zeros(tmp_path: Path, hole: int | None) -> None:
    path = tmp_path / "file"
    path.write_bytes((b"x" * 100_000).ljust(300_000, b"\0"))
    assert files.read_beginning(path, Forgetful(hole)) == (path.read_bytes(), 300_000)
