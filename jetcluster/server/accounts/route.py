"""Compiled routes of an account: the takers of a subject, sorted by kind so that delivery checks no types; and
`GoneOwners`, which keeps takers of gone owners out of routes while `accounts.Removals` remove them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from jetcluster.clock import Rng
from jetcluster.protocol.bus import BulkCallback, Callback, Origin
from jetcluster.protocol.interest import RemotePeer
from jetcluster.protocol.sublist import Sublist
from jetcluster.server.accounts.subscription import (
    AnySubscription,
    ClientSubscription,
    ClientTaker,
    InternalSubscription,
    LeafInterest,
    LeafPeer,
    LocalSubscription,
    Passage,
    RemoteInterest,
)

RESERVED_SUBJECTS = (b"_GR_.", b"$NRG.")
"""Clients may not publish here: gateway replies and Raft."""

RESERVED_REPLIES = (b"$JS.ACK.", b"_R_.", b"_GR_.")
"""Clients may not use these as reply subjects."""

SYSTEM_QUEUE = b"_sys_"
"""The queue group of Direct Get responders: all members give the same answer, so the nearest one does."""

_CLIENTS = (ClientSubscription, Passage)


class QueueRoute:
    """One queue group: its members on this node, and the peers that have members, with their numbers."""

    __slots__ = ("leaves", "local", "name", "only", "remote", "shared", "weight")

    def __init__(self, name: bytes, members: list[AnySubscription]) -> None:
        self.name = name
        self.local: tuple[LocalSubscription, ...] = tuple(m for m in members if not isinstance(m, RemoteInterest))
        self.shared: tuple[LocalSubscription, ...] = tuple(
            m for m in self.local if not (isinstance(m, InternalSubscription) and m.local_only)
        )
        """Local members that other nodes know of, which may take a peer's message."""
        self.remote: tuple[tuple[RemotePeer, int], ...] = tuple(
            (m.peer, m.count) for m in members if isinstance(m, RemoteInterest) and not isinstance(m, LeafInterest)
        )
        self.leaves: tuple[tuple[LeafPeer, int], ...] = tuple(
            (m.peer, m.count) for m in members if isinstance(m, LeafInterest)
        )
        """Leaf links with members behind them; they get messages that no member in this cluster can take."""
        self.weight = len(self.local) + sum(count for _, count in self.remote)
        only = self.local[0] if name == SYSTEM_QUEUE and len(self.local) == 1 else None
        self.only: InternalSubscription | None = only if isinstance(only, InternalSubscription) else None
        """The member that takes every message of this node's clients: see SYSTEM_QUEUE."""

    def remote_at(self, point: int) -> RemotePeer:
        """Returns the peer of the remote member with the number `point`, 0 <= point < sum of the counts."""
        for peer, count in self.remote:
            if point < count:
                return peer
            point -= count
        raise AssertionError("point beyond the group's remote members")

    def nearest(self, random: Callable[[], float], but: RemotePeer | None = None) -> RemotePeer | None:
        """Returns the peer of a remote member other than `but`, None when there is none: of SYSTEM_QUEUE one of the
        nearest. Distances are looked at now, as peers fall silent and change their tags without a new route."""
        members = [member for member in self.remote if member[0] is not but]
        if len(members) > 1 and self.name == SYSTEM_QUEUE:
            least = min([peer.distance for peer, _ in members])
            members = [member for member in members if member[0].distance == least]
        if len(members) < 2:
            return members[0][0] if members else None
        point = random() * sum([count for _, count in members])
        for peer, count in members:
            point -= count
            if point < 0:
                return peer
        return members[-1][0]


def take_one(
    members: Sequence[LocalSubscription],
    rng: Rng,
    subject: bytes,
    reply: bytes,
    headers: bytes,
    payload: bytes,
    origin: Origin,
) -> bool:
    """Delivers a message to one of the members, beginning with a random one; returns False if none took it."""
    count = len(members)
    start = int(rng.random() * count) if count > 1 else 0
    return any(members[(start + step) % count].take(subject, reply, headers, payload, origin) for step in range(count))


class Route:
    """The takers of a subject. `single` and `client` are the fast cases; if both are None, use `Router.deliver`."""

    __slots__ = (
        "bulk",
        "callbacks",
        "client",
        "clients",
        "leaves",
        "node",
        "nodes",
        "open",
        "peers",
        "queues",
        "remote",
        "reserved",
        "seen",
        "shared_callbacks",
        "single",
        "takers",
    )

    def __init__(
        self, subject: bytes, plain: list[AnySubscription], queues: dict[bytes, list[AnySubscription]]
    ) -> None:
        internal = [s for s in plain if isinstance(s, InternalSubscription)]
        exclusive = [s for s in internal if s.exclusive]
        self.open: Route | None = None
        """The route for the server itself and for peers, if an exclusive subscription takes clients' messages."""
        if exclusive:
            self.open = Route(subject, [s for s in plain if s not in exclusive], queues)
            plain, internal, queues = [*exclusive], exclusive, {}
        self.callbacks: tuple[Callback, ...] = tuple(s.callback for s in internal)
        self.shared_callbacks: tuple[Callback, ...] = tuple(s.callback for s in internal if not s.local_only)
        self.clients: tuple[ClientTaker, ...] = tuple(s for s in plain if isinstance(s, _CLIENTS))
        # A peer with several matching interests gets one copy: a dict keeps the order and drops repetitions.
        self.peers: tuple[RemotePeer, ...] = tuple({s.peer: None for s in plain if isinstance(s, RemoteInterest)})
        self.leaves: tuple[LeafPeer, ...] = tuple({s.peer: None for s in plain if isinstance(s, LeafInterest)})
        """The leaf links among `peers`; `nodes` are the others."""
        self.remote: tuple[RemoteInterest, ...] = tuple(
            s for s in plain if isinstance(s, RemoteInterest) and not isinstance(s, LeafInterest)
        )
        """Interest of nodes, for whose closed valves publishers wait."""
        self.nodes: tuple[RemotePeer, ...] = tuple(peer for peer in self.peers if peer not in self.leaves)
        self.queues: tuple[QueueRoute, ...] = tuple(QueueRoute(name, members) for name, members in queues.items())
        self.takers = len(plain) + len(self.queues)
        self.reserved = subject.startswith(RESERVED_SUBJECTS)
        self.seen = b""
        """The subject last looked up through this route: the second lookup in a row caches it (`Router.lookup`)."""
        alone = self.takers == 1 and not self.reserved
        taker = None
        if alone:
            taker = internal[0] if internal else self.queues[0].only if self.queues else None
        self.single: Callback | None = None if taker is None else taker.callback
        self.bulk: BulkCallback | None = None if taker is None else taker.bulk
        """Takes several messages for `single`."""
        self.node: RemoteInterest | None = self.remote[0] if alone and self.remote and not self.leaves else None
        """The plain interest of another node, which alone takes the messages."""
        self.client: ClientSubscription | None = (
            self.clients[0]  # type: ignore[assignment]  # a passage is always special
            if alone and self.clients and not self.clients[0].special
            else None
        )

    def group(self, name: bytes) -> QueueRoute | None:
        for group in self.queues:
            if group.name == name:
                return group
        return None


Compile = Callable[[bytes, list[AnySubscription], dict[bytes, list[AnySubscription]]], Route]


class GoneOwners:
    """Clients, peers and leaf links of one router that are gone while its index still has some of their takers."""

    def __init__(self, index: Sublist[AnySubscription, Route], compile: Compile) -> None:
        self._index = index
        self._compile = compile
        self._owners: set[object] = set()

    def use(self, compile: Compile) -> None:
        """Sets the function that compiles routes."""
        self._compile = compile
        self._index.compile_with(self._without_them if self._owners else compile)

    def add(self, owner: object) -> None:
        self._owners.add(owner)
        self.use(self._compile)

    def discard(self, owner: object) -> None:
        self._owners.discard(owner)
        self.use(self._compile)

    def _without_them(
        self, subject: bytes, plain: list[AnySubscription], queues: dict[bytes, list[AnySubscription]]
    ) -> Route:
        left = {name: [taker for taker in members if self._is_here(taker)] for name, members in queues.items()}
        groups = {name: members for name, members in left.items() if members}
        return self._compile(subject, [taker for taker in plain if self._is_here(taker)], groups)

    def _is_here(self, taker: AnySubscription) -> bool:
        if isinstance(taker, ClientSubscription):
            return taker.owner not in self._owners
        return not isinstance(taker, RemoteInterest) or taker.peer not in self._owners
