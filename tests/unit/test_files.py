"""File operations made of the system's calls."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from jetcluster import files


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
