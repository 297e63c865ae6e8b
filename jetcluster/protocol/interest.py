"""Interest and messages between nodes: the contract of the router (`server.accounts`) and the mesh (`mesh`).

Each node reports its subscriptions to its peers; a node that routes a message sends it once to every peer with plain
interest, and names the queue groups for which that peer was chosen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final, Protocol

from jetcluster.protocol.bus import Outgoing, Valve

FORWARDED = b"\x00"
"""Prefix of a queue name in `queues` of a message that was forwarded because its first choice had no member left. Such
a message goes to members of that queue only (its plain copies went out already) and is not forwarded again. No client
can make such a name: SUB refuses NUL in a queue."""

NEAR: Final = 0
ELSEWHERE: Final = 1
"""Another zone than this node's."""
AWAY: Final = 2
"""It is not heard now, or does not keep up with what it is sent."""


class RemotePeer(Protocol):
    """The router's view of a link to another node. Compared by identity; dropped with `drop_peer`."""

    peer_id: str

    valve: Valve
    """Closed while publishers should wait because too much is queued for the peer."""

    @property
    def server_name(self) -> str:
        """The name of the server at the other end, or its id where the name is not known."""

    @property
    def route_id(self) -> int | None:
        """The number that /routez gives the link; None: it is no route."""

    @property
    def pending(self) -> int:
        """Bytes queued for the peer and not yet handed to the operating system."""

    @property
    def distance(self) -> int:
        """NEAR, ELSEWHERE or AWAY: reads are answered by the nearest member that has the data."""

    def send_msg(
        self, account: str, subject: bytes, reply: bytes, queues: list[bytes], headers: bytes, payload: bytes
    ) -> None:
        """Queues one message on the link. Must not raise and must not call back into the router."""

    def send_run(self, account: str, messages: list[Outgoing], size: int) -> None:
        """Queues messages that are routed by their own subjects; like `send_msg` without queues for each. `size`: bytes
        of all their parts."""

    def send_many(self, account: str, target: bytes, queues: list[bytes], messages: Sequence[Outgoing]) -> None:
        """Queues messages that are routed by `target`, in order with everything else; like `send_msg` for each."""

    def ask_backlog(self, account: str, target: bytes, mark: int) -> None:
        """Asks, in order with the messages, how much waits at the peer for its slowest taker of `target`; the answer
        comes to `Switchboard.backlog_told` with the same `mark`, u64."""


class InterestListener(Protocol):
    """A callback for changes of this node's interest."""

    def __call__(self, account: str, subject: bytes, queue: bytes | None, count: int) -> None:
        """This node's interest in (account, subject, queue) is now `count` (0: gone). Plain interest is reported as 1
        or 0, when it begins and ends; a queue's at every change of its member count. `local_only` subscriptions are
        left out. Called synchronously: queue a frame, never block."""


class Switchboard(Protocol):
    """All accounts of a node, as the mesh sees them. `server.accounts.accounts.Accounts` implements it."""

    def listen(self, listener: InterestListener) -> None:
        """Reports changes of this node's interest to `listener` from now on."""

    def interests(self) -> Iterator[tuple[str, bytes, bytes | None, int]]:
        """(account, subject, queue, count) of this node's whole interest, which is sent first on a new link."""

    def set_remote_interest(
        self, peer: RemotePeer, account: str, subject: bytes, queue: bytes | None, count: int
    ) -> None:
        """Replaces the interest of `peer` in (account, subject, queue); 0 removes it. Creates unknown accounts."""

    def drop_peer(self, peer: RemotePeer) -> None:
        """Forgets all interest of a peer whose link is gone."""

    def deliver_from_peer(
        self,
        peer: RemotePeer,
        account: str,
        subject: bytes,
        reply: bytes,
        queues: list[bytes],
        headers: bytes,
        payload: bytes,
    ) -> None:
        """Delivers a message of a peer to local takers only: every plain one, and one member of each named queue. A
        queue that has no local member left goes on, once, to another peer that has one."""

    def deliver_many_from_peer(
        self, peer: RemotePeer, account: str, target: bytes, queues: list[bytes], messages: Sequence[Outgoing]
    ) -> None:
        """As `deliver_from_peer`, for messages that are routed by `target` and show their own subjects."""

    def deliver_each_from_peer(
        self, peer: RemotePeer, account: str, messages: Sequence[Outgoing], failed: Callable[[], None]
    ) -> None:
        """As `deliver_from_peer` for each, without queues. `failed` is called, in the handler, for a taker that raises;
        later messages are still delivered."""

    def backlog_here(self, account: str, target: bytes) -> int:
        """Bytes that the slowest client of this node that takes `target` has not been sent yet."""

    def backlog_told(self, peer: RemotePeer, account: str, target: bytes, mark: int, waiting: int) -> None:
        """A peer's answer to `RemotePeer.ask_backlog`."""

    def valve_told(self, peer: RemotePeer, account: str, subject: bytes, closed: bool) -> None:
        """Notes that the taker of (account, subject) at `peer` is busy (`closed`) or ready again: this node's clients
        that publish to it wait while it is busy."""
