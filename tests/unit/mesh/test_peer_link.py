"""Messages on their way to one peer, whatever moves the bytes (mesh/peer_link.py).

Traffic of links, by account.
"""

from __future__ import annotations

import pytest

from jetcluster.mesh import peer_link
from jetcluster.mesh.frames import MAX_DELIVER_BYTES, MSG, MSGS, decode_deliver, decode_msg, decode_msgs
from jetcluster.mesh.peer_link import MAX_GATHERED_BYTES, MeshCounters, PeerLink, RouteTraffic, Traffic

HEAD = 5
"""Bytes of a frame before its body: length and kind."""
MAX_FRAME = 1 << 20


class Link(PeerLink):
    """Keeps what it is to send."""

    def __init__(self) -> None:
        super().__init__(MAX_FRAME, MeshCounters(), RouteTraffic())
        self.frames: list[bytes] = []
        self.takes = True
        self.expected = 0

    def send(self, frame: bytes) -> None:
        self._seal()
        self.frames.append(frame)

    def _expect(self, size: int) -> None:
        self.expected += size

    def _queue_expected(self, frame: bytes) -> None:
        self.frames.append(frame)

    def end_turn(self) -> None:
        self._seal()

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
    assert len(link.frames) > 1 and max(map(len, link.frames)) <= MAX_DELIVER_BYTES
    taken = [message for frame in link.frames for message in decode_deliver(frame, HEAD, len(frame))[3]]
    assert taken == messages
    assert (link.stats.out_msgs, link.sent_of("ACC")) == (500, 500)


def test_the_messages_of_a_turn_go_as_one_frame_whose_bytes_count_from_the_first_on() -> None:
    link = Link()
    messages = [(b"s%d" % number, b"r", b"NATS/1.0\r\n\r\n", b"%d" % number) for number in range(100)]
    for subject, reply, headers, payload in messages:
        link.send_msg("ÄCC", subject, reply, [], headers, payload)
    assert link.frames == []
    before = link.expected
    link.end_turn()
    (frame,) = link.frames
    assert before > 0 and link.expected == len(frame)
    assert decode_msgs(frame, HEAD, len(frame)) == ("ÄCC", messages)
    assert (link.stats.out_msgs, link.sent_of("ÄCC"), link.dropped) == (100, 100, 0)
    link.end_turn()
    assert len(link.frames) == 1


def test_gathered_messages_keep_their_place_among_all_that_is_sent() -> None:
    link = Link()
    link.send_msg("A", b"1", b"", [], b"", b"")
    link.send_msg("A", b"2", b"", [b"q"], b"", b"")
    link.send_msg("A", b"3", b"", [], b"", b"")
    link.send_msg("B", b"4", b"", [], b"", b"")
    link.send_msg("B", b"5", b"", [], b"", b"x" * MAX_GATHERED_BYTES)
    link.send_msg("B", b"6", b"", [], b"", b"")
    link.end_turn()
    assert [frame[HEAD - 1] for frame in link.frames] == [MSGS, MSG, MSGS, MSGS, MSG, MSGS]
    subjects = [
        decode_msg(frame, HEAD, len(frame))[1] if frame[4] == MSG else decode_msgs(frame, HEAD, len(frame))[1][0][0]
        for frame in link.frames
    ]
    assert subjects == [b"1", b"2", b"3", b"4", b"5", b"6"]


def test_a_frame_of_gathered_messages_is_no_longer_than_raft_may_wait_for() -> None:
    link = Link()
    for number in range(500):
        link.send_msg("ACC", b"s%d" % number, b"", [], b"", b"x" * 1_000)
    link.end_turn()
    assert len(link.frames) > 1 and max(map(len, link.frames)) <= MAX_DELIVER_BYTES
    taken = [message for frame in link.frames for message in decode_msgs(frame, HEAD, len(frame))[1]]
    assert [subject for subject, _, _, _ in taken] == [b"s%d" % number for number in range(500)]
    assert sum(map(len, link.frames)) == link.expected


def test_messages_that_are_not_taken_are_not_gathered() -> None:
    link = Link()
    link.takes = False
    link.send_msg("ACC", b"s", b"", [], b"", b"")
    link.end_turn()
    assert (link.frames, link.dropped, link.expected) == ([], 1, 0)


def test_both_ways_are_counted_by_account() -> None:
    routes = RouteTraffic()
    routes.sent("A", 5)
    routes.sent_many("A", [(b"subject", b"reply", b"hh", b"ppp"), (b"s", b"", b"", b"p")])
    routes.received("A", 3, 40)
    routes.received("B", 1, 2)
    assert routes.by_account == {"A": Traffic(3, 40, 3, 11), "B": Traffic(1, 2)}


def test_names_that_peers_make_up_have_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer_link, "MAX_ACCOUNTS", 2)
    routes = RouteTraffic()
    for name in ("A", "B", "C"):
        routes.received(name, 1, 1)
    routes.sent("A", 1)
    routes.sent("C", 1)
    assert list(routes.by_account) == ["A", "B"]
    assert routes["A"].out_msgs == 1 and routes["C"] == Traffic()
