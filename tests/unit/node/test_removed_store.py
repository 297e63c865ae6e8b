"""The store of a server that was removed and comes back (node/removed_store.py)."""

from __future__ import annotations

from pathlib import Path

import pytest

from jetcluster.mesh.identity import load_identity
from jetcluster.node.removed_store import ASIDE_PREFIX, MAX_ASIDE, REMOVED_FILE, RemovedStoreError, leave, set_aside
from testkit.twins.log import ListLog

FOLDERS = ("journal", "data")


def store(root: Path) -> Path:
    """Returns the folder of a node's store with something in it."""
    directory = root / "jetstream"
    directory.mkdir(exist_ok=True)
    load_identity(directory, "n1", guarded=FOLDERS)
    (directory / "data" / "only-copy").write_text("x")
    return directory


def test_a_store_without_a_mark_stays(tmp_path: Path) -> None:
    directory, log = store(tmp_path), ListLog()
    set_aside(directory, log)
    assert (directory / "data" / "only-copy").exists() and not log.lines


def test_a_marked_store_is_kept_beside_the_empty_one(tmp_path: Path) -> None:
    directory, log, starts = store(tmp_path), ListLog(), []
    old = load_identity(directory, "n1", guarded=FOLDERS).peer_id
    leave(directory, log, lambda: starts.append(1))
    assert starts == [1] and (directory / REMOVED_FILE).exists()
    set_aside(directory, log)
    aside = tmp_path / f"{ASIDE_PREFIX}{old}"
    assert (aside / "data" / "only-copy").read_text() == "x"
    assert list(directory.iterdir()) == []
    assert load_identity(directory, "n1", guarded=FOLDERS).peer_id != old
    set_aside(directory, log)  # the new one has no mark
    assert (directory / "node.json").exists()
    assert log.lines[-1][2]["there"] == aside.name, "it fills the disk until somebody deletes it"


def test_a_disk_is_not_filled_with_old_stores(tmp_path: Path) -> None:
    log, starts = ListLog(), []
    for _ in range(MAX_ASIDE):
        directory = store(tmp_path)
        leave(directory, log, lambda: starts.append(1))
        set_aside(directory, log)
    directory = store(tmp_path)
    leave(directory, log, lambda: starts.append(1))
    assert len(starts) == MAX_ASIDE and not (directory / REMOVED_FILE).exists()
    assert "delete those before it" in log.events("error")[-1]


def test_a_store_that_cannot_be_moved_ends_the_start(tmp_path: Path) -> None:
    directory = store(tmp_path)
    leave(directory, ListLog(), lambda: None)
    (directory / "node.json").unlink()
    with pytest.raises(RemovedStoreError, match="cannot be set aside"):
        set_aside(directory, ListLog())
    assert (directory / "data" / "only-copy").exists()
