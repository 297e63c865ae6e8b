"""The lag of replicas, from notes and from what a leader knows."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from jetcluster.monitor.lag import IDLE_SECONDS, MAX_NOTES, Lag, LagNotes
from jetcluster.raft.api import PeerStatus
from testkit.twins.time import ManualTime
from tests.unit.monitor import fake_node


class Rig:
    def __init__(self) -> None:
        self.clock = ManualTime()
        self.engine = fake_node.engine(self.clock)
        self.replica: Any = self.engine.replicas[7]
        node: Any = fake_node.node(SimpleNamespace(timers=self.clock), self.clock, self.engine)
        self.notes = LagNotes(node)

    def publish(self, messages: int) -> None:
        """One entry with so many messages."""
        group = self.replica.group
        group.commit_index += 1
        group.applied_index += 1
        self.replica.store.state.last_seq += messages

    def lag(self, match: int, missing: int | None = None) -> Lag:
        return self.notes.of(self.replica, match, lambda: missing)


@pytest.fixture
def rig() -> Rig:
    return Rig()


def test_a_replica_that_lacks_nothing(rig: Rig) -> None:
    rig.notes.asked()
    rig.publish(10)
    assert rig.lag(11) == rig.lag(12) == Lag(0, 0, 0.0)


def test_behind_since_it_stopped(rig: Rig) -> None:
    rig.notes.asked()
    for _ in range(5):
        rig.publish(10)
        rig.clock.advance(1.0)
    lag = rig.lag(12)
    assert (lag.entries, lag.messages) == (3, 30)
    assert lag.seconds == pytest.approx(2.0, abs=1.01)
    assert rig.lag(1).messages == 50  # before the first note: all that is known of
    assert rig.lag(12, missing=44) == Lag(3, 44, lag.seconds)


def test_a_peer_whose_link_broke_lacks_what_came_since(rig: Rig) -> None:
    """The leader looks anew for where its log stands then, and counts from nothing (`PeerProgress.reset`)."""
    rig.notes.asked()
    for _ in range(5):
        rig.publish(10)
        rig.clock.advance(1.0)
    gone = PeerStatus("P2", 0, 0.0, connected=False, voter=True, acked_index=12)
    rig.replica.group.status = lambda: SimpleNamespace(peers=[gone])
    rig.engine.network.catchup = SimpleNamespace(missing=lambda gid, peer: None)
    ((peer, lag),) = rig.notes.peers(rig.engine, rig.replica)
    assert (peer, lag.entries, lag.messages) == ("P2", 3, 30)


def test_notes_are_bounded_and_reach_back(rig: Rig) -> None:
    rig.notes.asked()
    for second in range(280):
        rig.publish(1)
        rig.clock.advance(1.0)
        if not second % 100:
            rig.notes.asked()
    (kept,) = rig.notes.notes.values()
    assert len(kept) <= MAX_NOTES
    lag = rig.lag(100)
    assert (lag.entries, lag.messages) == (190, 190)
    assert lag.seconds == pytest.approx(190, abs=2)


def test_an_idle_stream_has_no_lag_of_its_own(rig: Rig) -> None:
    rig.notes.asked()
    rig.publish(5)
    rig.clock.advance(100)
    rig.publish(1)
    assert rig.lag(11) == Lag(1, 1, pytest.approx(0.0, abs=1.01))
    rig.clock.advance(100)
    assert rig.lag(11) == Lag(1, 1, pytest.approx(100, abs=1.01))
    assert rig.lag(10) == Lag(2, 6, pytest.approx(200, abs=1.01))


def test_nobody_asks_any_more(rig: Rig) -> None:
    rig.notes.asked()
    rig.clock.advance(IDLE_SECONDS + 2)
    assert rig.notes.notes == {}
    rig.publish(1)
    rig.clock.advance(10)
    assert rig.notes.notes == {}
    rig.notes.asked()
    assert list(rig.notes.notes) == [7]


def test_a_stream_that_is_led_elsewhere_now(rig: Rig) -> None:
    rig.notes.asked()
    rig.replica.leading = False
    rig.clock.advance(2.0)
    assert rig.notes.notes == {}
