"""What hinders catch-up, and when an operator reads of it."""

from __future__ import annotations

from typing import Any

from jetcluster.mesh.api import MeshError, MeshRefusedError
from jetcluster.replica.troubles import NO_METHOD, PATIENCE, PAUSE, Troubles
from testkit.twins.time import ManualTime


class Lines:
    def __init__(self) -> None:
        self.read: list[str] = []

    def debug(self, event: str, **_: Any) -> None:
        pass

    def warning(self, event: str, **values: Any) -> None:
        self.read.append(f"{event}: {values['gid']} {values['peer']}")


def troubles() -> tuple[Troubles, ManualTime, list[str]]:
    time, log = ManualTime(), Lines()
    return Troubles(time, log), time, log.read  # type: ignore[arg-type]


def fail(found: Troubles, time: ManualTime, seconds: float, gid: int = 1, peer: str = "B") -> None:
    for _ in range(round(seconds)):
        found.failed(gid, peer, MeshError("lost"))
        time.advance(1)


def test_a_short_trouble_is_not_told() -> None:
    found, time, read = troubles()
    fail(found, time, PATIENCE - 1)
    found.over(1)
    fail(found, time, PATIENCE - 1)
    time.advance(PATIENCE + 1)
    fail(found, time, PATIENCE - 1)
    assert read == []


def test_a_long_trouble_is_told_once_a_minute_for_each_peer() -> None:
    found, time, read = troubles()
    fail(found, time, PATIENCE + 2 * PAUSE - 5)
    assert read == ["catch-up does not come on: 1 B"] * 2
    found.failed(2, "B", MeshError("lost"))
    found.failed(1, "C", MeshError("lost"))
    assert read[2:] == ["catch-up does not come on: 1 C"], "of B it was told already"


def test_another_version_is_told_at_once() -> None:
    found, time, read = troubles()
    found.failed(1, "B", MeshRefusedError("fetch" + NO_METHOD))
    found.other_version(2, "B", "")
    assert read == ["a state waits until both nodes run the same version: 1 B"]
    time.advance(PAUSE)
    found.other_version(2, "B", "")
    assert len(read) == 2
    found.failed(1, "C", MeshRefusedError("busy"))
    assert len(read) == 2
