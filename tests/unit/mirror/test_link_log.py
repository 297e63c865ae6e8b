"""Lines of a stream's links: the first ones at once, then one with a number."""

from __future__ import annotations

from typing import Any

from jetcluster.mirror.link_log import AT_ONCE, EVERY, LinkLog
from testkit.twins.time import ManualTime


class Lines(list[str]):
    def info(self, event: str, **values: Any) -> None:
        self.append(f"{event} {values['upstream']} {values['reason']}")

    def warning(self, event: str, **values: Any) -> None:
        self.append(f"{event} {values.get('upstream', values.get('last'))} {values['error']} {values.get('times', 1)}")


def test_many_lines_become_one_with_a_number() -> None:
    time, lines = ManualTime(), Lines()
    log = LinkLog(lines, time, "S")  # type: ignore[arg-type]
    for n in range(AT_ONCE + 3):
        log.failed(f"U{n}", "broken")
    assert lines == [f"link failed U{n} broken 1" for n in range(AT_ONCE)]
    lines.clear()
    time.advance(EVERY)
    assert lines == [f"links failed or began again U{AT_ONCE + 2} broken 3"]
    log.again("U", "moved")
    assert len(lines) == 1, "while it goes on, only numbers are told"
    time.advance(EVERY)
    assert lines[1:] == ["links failed or began again U moved 1"]


def test_after_a_quiet_time_lines_are_told_at_once_again() -> None:
    time, lines = ManualTime(), Lines()
    log = LinkLog(lines, time, "S")  # type: ignore[arg-type]
    for _ in range(AT_ONCE):
        log.again("U", "moved")
    time.advance(EVERY)
    assert lines == ["link begins again U moved"] * AT_ONCE, "nothing was left out"
    log.failed("U", "broken")
    assert lines[AT_ONCE:] == ["link failed U broken 1"]
