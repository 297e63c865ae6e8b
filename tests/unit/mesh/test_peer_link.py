"""Messages on their way to one peer, whatever moves the bytes (mesh/peer_link.py)."""

from __future__ import annotations

import pytest

from jetcluster.mesh.frames import MAX_DELIVER, decode_deliver, decode_msg
from jetcluster.mesh.peer_link import MeshCounters, PeerLink
from jetcluster.mesh.traffic import RouteTraffic

HEAD = 5
"""Bytes of a frame before its body: length and kind."""
MAX_FRAME = 1 << 20


class Link(PeerLink):
    """Keeps what it is to send."""

    def __init__(self) -> None:
        super().__init__(MAX_FRAME, MeshCounters(), RouteTraffic())
        self.frames: list[bytes] = []
        self.takes = True

    def send(self, frame: bytes) -> None:
        self.frames.append(frame)

    def accepts_msgs(self) -> bool:
        return self.takes

    @property
    def dropped(self) -> int:
        return self._counters.dropped_msgs

    def sent_of(self, account: str) -> int:
        return self._traffic[account].out_msgs


def test_a_message_is_one_frame_and_counts_for_its_account() -> None:
    link = Link()
    link.send_msg("ACC", b"s", b"r", [b"q"], b"NATS/1.0\r\n\r\n", b"payload")
    (frame,) = link.frames
    assert decode_msg(frame, HEAD, len(frame)) == ("ACC", b"s", b"r", [b"q"], b"NATS/1.0\r\n\r\n", b"payload")
    assert (link.stats.out_msgs, link.sent_of("ACC"), link.dropped) == (1, 1, 0)


@pytest.mark.parametrize(("takes", "size"), [(False, 1), (True, MAX_FRAME)])
def test_what_does_not_fit_or_is_not_taken_is_dropped_and_counted(takes: bool, size: int) -> None:
    link = Link()
    link.takes = takes
    link.send_msg("ACC", b"s", b"", [], b"", b"x" * size)
    link.send_many("ACC", b"inbox", [], [(b"s", b"", b"", b"x" * size)])
    assert (link.frames, link.dropped, link.stats.out_msgs) == ([], 2, 0)


def test_many_messages_go_in_order_in_frames_that_raft_need_not_wait_for() -> None:
    link = Link()
    messages = [(b"s%d" % number, b"", b"", b"x" * 1_000) for number in range(500)]
    link.send_many("ACC", b"inbox", [b"q"], messages)
    assert len(link.frames) > 1 and max(map(len, link.frames)) <= MAX_DELIVER
    taken = [message for frame in link.frames for message in decode_deliver(frame, HEAD, len(frame))[3]]
    assert taken == messages
    assert (link.stats.out_msgs, link.sent_of("ACC")) == (500, 500)
