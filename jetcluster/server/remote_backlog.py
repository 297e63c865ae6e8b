"""`RemoteBacklog`: what waits at other nodes, for clients there, of what this node sends to one subject.

A sender of much to one subject must not bury a slow client, on any node (`Bus.backlog`). What is queued on a link says
nothing of a client behind it, so the other node is asked: the question travels in order with the messages, and the
answer is how much the slowest taker there has not been sent yet.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from jetcluster.protocol.interest import RemotePeer

ASK_EVERY: Final = 256 * 1024
"""Bytes sent without an answer after which the peer is asked; and what a client may have waiting without being asked
about again."""
MAX_FLOWS: Final = 4096
"""Subjects and peers that are kept track of; the one sent to least recently is forgotten."""


class _Flow:
    __slots__ = ("asked", "confirmed", "sent", "waiting")

    def __init__(self) -> None:
        self.sent = 0
        """Bytes, ever."""
        self.confirmed = 0
        """As far as the last answer goes."""
        self.waiting = 0
        """The bytes that it said are waiting."""
        self.asked = False


class RemoteBacklog:
    """The backlog of one account."""

    def __init__(self, account: str) -> None:
        self._account = account
        self._flows: OrderedDict[tuple[RemotePeer, bytes], _Flow] = OrderedDict()

    def sent(self, peer: RemotePeer, target: bytes, size: int) -> None:
        key = peer, target
        flow = self._flows.get(key)
        if flow is None:
            flow = self._flows[key] = _Flow()
            if len(self._flows) > MAX_FLOWS:
                self._flows.popitem(last=False)
        else:
            self._flows.move_to_end(key)
        flow.sent += size
        if flow.sent - flow.confirmed >= ASK_EVERY:
            self._ask(peer, target, flow)

    def of(self, peer: RemotePeer, target: bytes) -> int:
        """Bytes on their way to the peer's takers of `target`, or waiting there. Who looks again while it is much
        makes the peer be asked again."""
        flow = self._flows.get((peer, target))
        if flow is None:
            return 0
        if flow.waiting > ASK_EVERY:
            self._ask(peer, target, flow)
        return flow.waiting + flow.sent - flow.confirmed

    def told(self, peer: RemotePeer, target: bytes, mark: int, waiting: int) -> None:
        """The peer's answer: `mark` is what had been sent when it was asked."""
        flow = self._flows.get((peer, target))
        if flow is None or not flow.asked or mark > flow.sent:
            return
        flow.asked = False
        flow.confirmed, flow.waiting = mark, waiting
        if flow.sent - mark >= ASK_EVERY:
            self._ask(peer, target, flow)
        elif flow.sent == mark and waiting <= ASK_EVERY:
            del self._flows[peer, target]

    def drop_peer(self, peer: RemotePeer) -> None:
        for key in [key for key in self._flows if key[0] is peer]:
            del self._flows[key]

    def _ask(self, peer: RemotePeer, target: bytes, flow: _Flow) -> None:
        if not flow.asked:
            flow.asked = True
            peer.ask_backlog(self._account, target, flow.sent)
