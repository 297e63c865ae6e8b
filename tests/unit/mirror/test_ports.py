"""

Lines of a stream's links: the first ones at once, then one with a number.
"""

from __future__ import annotations

from typing import Any

from jetcluster.mirror.ports import LINES_AT_ONCE, LOG_SECONDS, LinkLog, Pace
from testkit.twins.time import ManualTime
from tests.unit.mirror.rig import Rig


def many(count: int) -> list[dict[str, Any]]:
    return [{"name": f"UP{i}"} for i in range(count)]


def test_turns_are_given_at_once_while_there_are_some() -> None:
    time, begun, pace = ManualTime(), list[str](), Pace(2, 3)
    for stream in "AAAB":
        pace.turn(time, stream, lambda stream=stream: begun.append(stream))  # type: ignore[misc]
    assert begun == ["A", "A", "B"]
    time.advance(0.11)
    assert begun == ["A", "A", "B", "A"]


def test_streams_have_turns_in_turns() -> None:
    time, begun, pace = ManualTime(), list[str](), Pace(2, 3)
    for stream in "A" * 20 + "B" * 3:
        pace.turn(time, stream, lambda stream=stream: begun.append(stream))  # type: ignore[misc]
    time.advance(0.11)
    time.advance(0.1)
    assert begun[:3] == ["A", "A", "B"]
    assert sorted(begun[3:]) == ["A", "A", "A", "A", "B", "B"][: len(begun) - 3]
    pace.forget("A")
    time.advance(5.0)
    assert begun.count("A") < 7
    assert begun.count("B") == 3


def test_links_that_fail_ask_so_often_together_and_tell_so_much() -> None:
    rig = Rig(sources=many(600))
    rig.bus.deaf = True
    rig.links.begin()
    rig.run(5.0)  # all have begun once
    before = rig.count("STREAM.INFO")
    rig.run(20.0)
    assert rig.count("STREAM.INFO") - before <= 50 * 21
    assert rig.count("STREAM.INFO") - before > 600  # nobody is forgotten
    assert len(rig.lines.lines) < 12


def test_one_link_does_not_wait_for_those_of_another_stream() -> None:
    crowd, one = Rig(sources=many(600)), Rig(mirror={"name": "UP"})
    around = crowd.around._replace(target=one, bus=one.bus, log=one.lines)
    one.time, one.links = crowd.time, type(one.links)(around, "ONE")
    crowd.bus.deaf = one.bus.deaf = True
    crowd.links.begin()
    one.links.begin()
    crowd.run(30.0)
    one.bus.deaf = False
    crowd.run(1.5)  # a second, and two windows
    one.live()
    assert one.link.live


def test_very_many_links_end_in_steps() -> None:
    rig = Rig(sources=many(600))
    rig.links.begin()
    rig.run(2.0)
    assert len(rig.bus.subscriptions) == 600
    rig.links.end(deleted=True)
    assert not rig.links.by_key
    assert len(rig.bus.subscriptions) > 500
    asked = rig.count("STREAM.INFO")
    rig.run(30.0)
    assert not rig.bus.subscriptions
    assert rig.count("STREAM.INFO") == asked


def test_few_links_end_at_once() -> None:
    rig = Rig(sources=many(8))
    rig.links.begin()
    rig.run(1.0)
    rig.links.end()
    assert not rig.bus.subscriptions


class Lines(list[str]):
    def info(self, event: str, **values: Any) -> None:
        self.append(f"{event} {values['upstream']} {values['reason']}")

    def warning(self, event: str, **values: Any) -> None:
        self.append(f"{event} {values.get('upstream', values.get('last'))} {values['error']} {values.get('times', 1)}")


def test_many_lines_become_one_with_a_number() -> None:
    time, lines = ManualTime(), Lines()
    log = LinkLog(lines, time, "S")  # type: ignore[arg-type]
    for n in range(LINES_AT_ONCE + 3):
        log.failed(f"U{n}", "broken")
    assert lines == [f"link failed U{n} broken 1" for n in range(LINES_AT_ONCE)]
    lines.clear()
    time.advance(LOG_SECONDS)
    assert lines == [f"links failed or began again U{LINES_AT_ONCE + 2} broken 3"]
    log.again("U", "moved")
    assert len(lines) == 1, "while it goes on, only numbers are logged"
    time.advance(LOG_SECONDS)
    assert lines[1:] == ["links failed or began again U moved 1"]


def test_after_a_quiet_time_lines_are_logged_at_once_again() -> None:
    time, lines = ManualTime(), Lines()
    log = LinkLog(lines, time, "S")  # type: ignore[arg-type]
    for _ in range(LINES_AT_ONCE):
        log.again("U", "moved")
    time.advance(LOG_SECONDS)
    assert lines == ["link begins again U moved"] * LINES_AT_ONCE, "nothing was left out"
    log.failed("U", "broken")
    assert lines[LINES_AT_ONCE:] == ["link failed U broken 1"]
