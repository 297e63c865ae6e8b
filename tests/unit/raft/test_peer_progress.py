from __future__ import annotations

import pytest

from jetcluster.raft.core.peer_progress import FlowState, PeerProgress


def replicating(next_index: int = 11) -> PeerProgress:
    flow = PeerProgress("B", next_index, connected=True)
    flow.sent(next_index - 1, next_index - 1, 0, 0.0)
    flow.acked(next_index - 1, 0.0)
    assert flow.state is FlowState.REPLICATE
    return flow


def test_a_probe_waits_for_its_answer() -> None:
    flow = PeerProgress("B", 11, connected=True)
    assert flow.window_open(100, 10)
    flow.sent(10, 12, 50, 0.0)
    assert not flow.window_open(100, 10)
    flow.acked(9, 0.0)
    assert flow.state is FlowState.PROBE, "an answer to something older"
    flow.acked(12, 0.0)
    assert flow.state is FlowState.REPLICATE
    assert flow.next == 13


def test_what_a_probe_carried_is_watched_until_it_is_acked() -> None:
    """The answer to something else, a read context, can confirm where the probe stands but not that it was taken."""
    flow = PeerProgress("B", 11, connected=True)
    flow.sent(10, 12, 50, 0.0)
    flow.acked(10, 0.0)
    assert flow.state is FlowState.REPLICATE
    assert flow.stalled(2.0, 1.0), "it would never be sent again"
    flow.acked(12, 0.5)
    assert not flow.stalled(2.0, 1.0)


def test_what_a_probe_carried_is_watched_when_a_state_was_offered_in_between() -> None:
    flow = PeerProgress("B", 11, connected=True)
    flow.sent(10, 12, 50, 0.0)
    flow.snapshot(10, 0.5)
    flow.acked(10, 3.0)  # it got that state elsewhere, or had it
    assert flow.state is FlowState.REPLICATE
    assert not flow.stalled(3.5, 1.0)
    assert flow.stalled(4.5, 1.0), "it would never be sent again"
    flow.acked(12, 5.0)
    assert not flow.stalled(7.0, 1.0)


def test_an_ack_never_rewinds() -> None:
    flow = replicating()
    flow.sent(10, 12, 10, 0.0)
    flow.sent(12, 15, 10, 0.0)
    flow.acked(12, 0.0)
    assert (flow.next, flow.match, flow.bytes_out) == (16, 12, 10)


def test_the_window_closes_by_bytes_and_by_batches() -> None:
    flow = replicating()
    flow.sent(10, 11, 100, 0.0)
    assert not flow.window_open(100, 10)
    assert flow.window_open(101, 2)
    flow.sent(11, 12, 0, 0.0)
    assert not flow.window_open(101, 2)


def test_one_rewind_per_gap() -> None:
    flow = replicating()
    for i in range(10, 20):
        flow.sent(i, i + 1, 10, 0.0)
    assert flow.rejected(12, 8, last_index=20)
    assert (flow.state, flow.next) == (FlowState.PROBE, 11), "not below what is matched"
    flow.sent(10, 13, 10, 0.0)
    assert not any(flow.rejected(prev, 8, last_index=20) for prev in range(13, 20)), "echoes of the same gap"
    assert flow.rejected(10, 9, last_index=20)


def test_a_hint_beyond_the_log_waits_for_the_timer() -> None:
    flow = PeerProgress("B", 11, connected=True)
    flow.sent(10, 10, 0, 0.0)
    assert not flow.rejected(10, 50, last_index=10)
    assert not flow.window_open(100, 10)
    assert flow.stalled(2.0, 1.0)


def test_a_snapshot_ends_with_an_ack_or_a_hint_behind_it() -> None:
    flow = PeerProgress("B", 5, connected=True)
    flow.snapshot(40, 0.0)
    assert not flow.window_open(100, 10)
    assert not flow.rejected(0, 40, last_index=60)
    assert flow.rejected(0, 41, last_index=60)
    assert (flow.state, flow.next) == (FlowState.PROBE, 41)
    flow.snapshot(40, 0.0)
    flow.acked(40, 0.0)
    assert flow.state is FlowState.REPLICATE


def test_what_a_peer_needs_of_the_log() -> None:
    flow = replicating(41)

    def needs(now: float, base: int = 0, last: int = 100) -> int | None:
        return flow.needs(base, last, now, silence=10.0, lag=5)

    assert needs(1.0) == 40, "it is connected and takes entries"
    assert needs(11.0) is None, "it says nothing"
    flow.acked(50, 20.0)
    assert needs(21.0) == 50
    flow.reset(101, connected=False)
    assert needs(21.0) is None, "a follower that is away has what is retained for all"
    flow.pinned, flow.heard = 60, 30.0
    assert needs(35.0) == 60, "it fetched the state of 60, and will be back"
    assert needs(35.0, base=61) is None and flow.pinned is None, "the disk wanted the space"
    flow.pinned = 60
    assert needs(40.1) is None and flow.pinned is None
    flow.pinned, flow.heard = 60, 50.0
    flow.connected = True
    flow.sent(60, 60, 0, 50.0)
    flow.acked(70, 51.0)
    assert needs(51.0) == 70 == flow.pinned, "what it goes on from is kept as it advances"
    flow.reset(101, connected=False)
    assert needs(51.0) == 70
    flow.connected = True
    flow.sent(70, 70, 0, 52.0)
    flow.acked(95, 52.0)
    assert needs(52.0) == 95 and flow.pinned is None, "it is back"


def test_a_peer_has_caught_up_by_entries_or_by_time() -> None:
    flow = replicating(11)
    assert flow.caught_up(14, 0.0, lag=4, seconds=0.0)
    assert not flow.caught_up(1000, 0.0, lag=4, seconds=1.0), "a round begins: until it has 1000"
    flow.acked(900, 5.0)
    assert not flow.caught_up(5000, 5.0, lag=4, seconds=1.0)
    flow.acked(1000, 6.0)
    assert not flow.caught_up(6000, 6.0, lag=4, seconds=1.0), "that took six seconds, in which 5000 more came"
    flow.acked(6000, 6.9)
    assert flow.caught_up(6900, 6.9, lag=4, seconds=1.0)


def test_a_new_connection_starts_over() -> None:
    flow = replicating()
    flow.sent(10, 12, 10, 0.0)
    flow.reset(13, connected=True)
    assert (flow.state, flow.match, flow.bytes_out, flow.next) == (FlowState.PROBE, 0, 0, 13)
    flow.reset(13, connected=False)
    assert not flow.window_open(100, 10)
    assert not flow.stalled(100.0, 1.0)


def test_a_late_ack_moves_the_next_index_too() -> None:
    flow = PeerProgress("B", 11, connected=True)
    flow.sent(10, 10, 0, 0.0)
    assert flow.rejected(10, 3, last_index=20)
    assert flow.acked(7, 0.0)
    assert (flow.state, flow.match, flow.next) == (FlowState.PROBE, 7, 8), "what it has is not sent again"
    flow.sent(7, 9, 10, 0.0)
    assert not flow.acked(6, 0.0)
    assert flow.state is FlowState.PROBE


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("next", 10),
        ("match", 30),
        ("bytes_out", -1),
        ("probe_prev", 10),
        ("state", FlowState.PROBE),
        ("match", -1),
        ("offered", -1),
        ("sent_commit", -1),
        ("pinned", -1),
        ("goal", -1),
        ("goal_at", 1.0),
    ],
)
def test_a_field_that_cannot_be_is_noticed(field: str, value: int) -> None:
    flow = replicating()
    flow.sent(10, 12, 10, 0.0)
    flow.check()
    setattr(flow, field, value)
    with pytest.raises(AssertionError):
        flow.check()


def test_a_peer_without_a_link_has_not_heard_of_a_commit() -> None:
    flow = replicating()
    flow.reset(11, connected=False)
    flow.sent_commit = 3
    with pytest.raises(AssertionError):
        flow.check()
