"""The links of a stream to its upstreams."""

from __future__ import annotations

from typing import Any

from jetcluster.mirror.link import SILENCE_SECONDS
from jetcluster.stream.rules import link_key
from tests.unit.mirror.rig import begun


def test_sources_come_and_go() -> None:
    rig = begun(sources=[{"name": "A"}, {"name": "B"}])
    first = rig.links.by_key[link_key({"name": "A"})]
    assert [entry["name"] for entry in rig.links.info()["sources"]] == ["A", "B"]
    rig.configure(sources=[{"name": "C"}, {"name": "A"}])
    rig.links.configure()
    assert [entry["name"] for entry in rig.links.info()["sources"]] == ["C", "A"]
    assert rig.links.by_key[link_key({"name": "A"})] is first
    rig.configure()
    rig.links.configure()
    assert rig.links.info() == {}
    assert not rig.bus.subscriptions


def silence(rig: Any) -> list[str]:
    """The lines of the log about it."""
    return [line for line in rig.lines.lines if "heard" in line and not line.startswith("link ")]


def test_a_cut_is_seen_in_the_lag_and_once_in_the_log() -> None:
    """An upstream that is not heard may have had more: nothing to catch up with is what the last word said."""
    rig = begun()
    rig.live()
    rig.take(1)
    for _ in range(5):
        rig.run(1.0)
        rig.control("Nats-Last-Consumer: 1")
        rig.links.tick()
        shown = rig.links.info(seconds=True)["mirror"]
        assert (shown["lag"], shown["lag_seconds"], shown["silent_seconds"]) == (0, 0.0, 0.0)
    for seconds in range(1, 61):
        rig.run(1.0)
        rig.links.tick()
        shown = rig.links.info(seconds=True)["mirror"]
        assert shown["silent_seconds"] == seconds
        assert shown["lag_seconds"] == (seconds if seconds > 2 else 0.0)
        assert shown["active"] == seconds * 10**9
        told = ["nothing is heard of the upstream: what is read here gets older None"]
        assert silence(rig) == (told if seconds > SILENCE_SECONDS else [])
    asked = rig.count("STREAM.INFO")
    while rig.count("STREAM.INFO") == asked:
        rig.run(0.1)
    rig.live(last_seq=1)
    rig.links.tick()
    assert rig.links.info(seconds=True)["mirror"]["lag_seconds"] == 0.0
    assert silence(rig) == [*told, "the upstream is heard again None"]


def test_what_is_under_way_on_a_narrow_link_is_late_although_the_upstream_has_nothing_left() -> None:
    rig = begun()
    rig.live()
    for seq in range(1, 4):
        rig.take(seq, sent_ns=rig.time.time_ns() - 40 * 10**9)
        rig.run(1.0)
        shown = rig.links.info(seconds=True)["mirror"]
        assert (shown["lag"], shown["lag_seconds"]) == (0, 40.0)
    rig.control("Nats-Last-Consumer: 3")
    assert rig.links.info(seconds=True)["mirror"]["lag_seconds"] == 0.0
    rig.take(4, sent_ns=rig.time.time_ns() - 10**9)  # clocks of two clusters
    assert rig.links.info(seconds=True)["mirror"]["lag_seconds"] == 0.0


def test_an_upstream_that_was_never_heard_is_silent_from_the_beginning() -> None:
    rig = begun()
    rig.run(7.0)
    rig.links.tick()
    shown = rig.links.info(seconds=True)["mirror"]
    assert (shown["active"], shown["lag_seconds"], shown["silent_seconds"]) == (-1, 7.0, 7.0)
    assert len(silence(rig)) == 1


def test_thousands_of_silent_upstreams_are_one_line() -> None:
    rig = begun(sources=[{"name": f"S{n}"} for n in range(200)])
    for _ in range(30):
        rig.run(1.0)
        rig.links.tick()
    assert len(silence(rig)) == 1
    rig.configure()
    rig.links.configure()
    rig.links.tick()
    assert len(silence(rig)) == 1  # nobody is heard again, as there is nobody
