"""Damage that servers report, against damage that was done to them."""

from __future__ import annotations

from pathlib import Path

import pytest

from chaos.checkers import judge
from chaos.nemeses.cut_journal import CUT, cut_off
from chaos.nemeses.rot import flip_near
from tests.chaos.test_checkers import Script


def told(*names: str) -> list[tuple[str, str]]:
    script = Script()
    script.now = 1.0
    begun = script.history.invoke("files", "fault", "nemesis", subject="rot-two")
    for name in names:
        script.now += 1.0
        script.history.note("queue", "damaged", replica=name)
    script.now += 1.0
    script.history.end(begun, "ok", replica="n1 n3")
    return [(finding.kind, finding.text[:2]) for finding in judge(script.history.events).findings]


@pytest.mark.parametrize(
    ("names", "findings"),
    [
        (("n1", "n3"), []),
        (("n1", "n1"), [("unannounced", "n3")]),
        (("n1", "n2", "n3"), [("false alarm", "n2")]),
        ((), [("unannounced", "n1"), ("unannounced", "n3")]),
    ],
)
def test_everybody_whose_data_rots_tells_it_and_nobody_else(
    names: tuple[str, ...], findings: list[tuple[str, str]]
) -> None:
    assert told(*names) == findings


def test_one_bit_rots(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(bytes(100))
    assert flip_near(path, 0.3) == "bit 4 of byte 30"
    assert path.read_bytes() == bytes(30) + b"\x10" + bytes(69)


@pytest.mark.parametrize(("used", "left"), [(CUT * 3, CUT * 2), (1000, 500)])
def test_the_newest_segment_is_cut_where_it_was_written(tmp_path: Path, used: int, left: int) -> None:
    folder = tmp_path / "jetstream" / "journal"
    folder.mkdir(parents=True)
    for number in (1, 2):
        (folder / f"{number:016x}.wal").write_bytes(b"x" * used + bytes(5000))
    (folder / "STORE").write_bytes(b"y")
    assert cut_off(tmp_path) == used - left
    assert [path.stat().st_size for path in sorted(folder.glob("*.wal"))] == [used + 5000, left]
