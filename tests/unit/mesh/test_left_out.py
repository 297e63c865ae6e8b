from __future__ import annotations

from pathlib import Path

from jetcluster.mesh import left_out


def test_a_mark_stays(tmp_path: Path) -> None:
    assert left_out.marked(tmp_path) == ""
    text = left_out.advice(tmp_path, "rescued without n3")
    left_out.mark(tmp_path, text)
    assert left_out.marked(tmp_path) == text
    assert "rescued without n3" in text and f"Move {tmp_path} away" in text
    assert [path.name for path in tmp_path.iterdir()] == [left_out.FILE]
