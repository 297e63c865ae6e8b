"""Nemeses and the files they damage; their effects on clusters are shown by runs (test_runs.py)."""

from __future__ import annotations

from pathlib import Path

from chaos.docker_cluster import LOCAL_ONLY
from chaos.nemeses import NEMESES
from chaos.nemeses.base import empty
from chaos.runner import possible
from chaos.scenarios import SCENARIOS


def test_an_emptied_store_keeps_its_folder(tmp_path: Path) -> None:
    (tmp_path / "journal" / "deep").mkdir(parents=True)
    (tmp_path / "journal" / "deep" / "segment").write_bytes(b"x")
    (tmp_path / "node.json").write_text("{}")
    inode = tmp_path.stat().st_ino
    empty(tmp_path)
    assert list(tmp_path.iterdir()) == []
    assert tmp_path.stat().st_ino == inode


class Small:
    """A target of three nodes that can do nothing special."""

    names = ("n1", "n2", "n3")
    missing = dict.fromkeys((*LOCAL_ONLY, "disconnect"), "not here")


def test_what_a_target_cannot_do_is_left_out_with_the_reason() -> None:
    can, cannot = possible(SCENARIOS["members"], Small())  # type: ignore[arg-type]
    assert [nemesis.name for nemesis in can] == ["kill-leader"]
    assert cannot == {"peer-remove": "needs 4 nodes", "server-remove": "not here; not here"}
    assert all(need in Small.missing for nemesis in NEMESES.values() for need in nemesis.needs)
