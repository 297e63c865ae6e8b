"""Bootstrap of one cluster from a set of empty nodes: agreement on the meta group's first peers.

The first configuration of the meta group is the one decision that no Raft log can make. Two nodes that start it with
disjoint peer sets would be two clusters with one name, so a node starts only on a set that **every** member of that set
announces too, and only if the set holds a majority of the nodes that the routes name. A node that meets a running
cluster never starts one: it asks to be added (`Verdict.JOIN`), or, when the running meta group already counts on it,
creates its empty replica (`Verdict.ADOPT`): its peer id proves that it never voted there, because a wiped node gets a
new id and a vote is not sent before the group's record is durable (mesh/identity.py, raft/journal/journal.py).

A set without some of the nodes that the routes name is not started on while no majority of its wall clocks agrees:
nobody could lead (`health.cluster_clock`), so nobody could add those who come later and know the time.

No node starts alone, with routes or without: a node that lost its store can not know that a cluster is running
somewhere that merely does not reach it at the moment. nats-server does likewise: it refuses a JetStream cluster
without routes, and waits for others without end when its routes lead only to itself (2.15.2, tried). Here a node
without routes waits too, because others may name it in theirs. Should there be two clusters all the same, their ids
differ (cluster/cluster_id.py), and their nodes refuse each other.

Pure: links and time come in as arguments; `cluster.jetstream` drives it.
"""

from __future__ import annotations

import enum
import json
from dataclasses import asdict, field
from typing import NamedTuple

from jetcluster.config.nkeys import is_key
from jetcluster.health.cluster_clock import MAX_DIFFERENCE_NS
from jetcluster.mesh.identity import is_peer_id
from jetcluster.records import dataclass

MAX_PEERS = 1024
"""Upper bound of a cluster's size, so that an announcement cannot grow without limit."""

MAX_ID = 64

STABLE_SECONDS = 0.15
"""Seconds for which all announcements must agree: covers gossip that is still on its way when the last link comes
up."""

PARTIAL_SECONDS = 5.0
"""After this long a majority of the routes' nodes may start without the rest, which then joins."""

TELL_SECONDS = 10.0
"""A node that still waits says so this often."""


class Verdict(enum.Enum):
    WAIT = "wait"
    CREATE = "create"
    ADOPT = "adopt"
    JOIN = "join"


@dataclass(slots=True, frozen=True)
class Announcement:
    """Word of a node about itself to every peer, whenever it changes."""

    known: tuple[str, ...]
    """Sorted peer ids the node is connected to, itself included."""
    settled: bool
    """Every configured route led to a peer or to the node itself."""
    meta_peers: tuple[str, ...] = ()
    """The meta group's peers when the node has one, else empty."""
    cluster_id: str = ""
    """The cluster that the node belongs to, when it knows."""
    keys: tuple[tuple[str, str], ...] = ()
    """Peer ids and the public keys by which the cluster knows them."""
    wall_ns: int = 0
    """The node's wall clock when this was sent."""

    def encode(self) -> bytes:
        fields = asdict(self)
        if not self.keys:
            del fields["keys"]
        return json.dumps(fields).encode()

    @classmethod
    def decode(cls, raw: bytes) -> Announcement:
        """Raises ValueError on anything that is not an announcement."""
        try:
            data = json.loads(raw)
        except RecursionError as error:
            raise ValueError("announcement is nested too deeply") from error
        if not isinstance(data, dict):
            raise ValueError("announcement is not an object")
        known, meta, cluster_id = data.get("known"), data.get("meta_peers", []), data.get("cluster_id", "")
        for ids in (known, meta):
            if (
                not isinstance(ids, list)
                or len(ids) > MAX_PEERS
                or not all(isinstance(i, str) and len(i) <= MAX_ID for i in ids)
            ):
                raise ValueError("announcement holds a bad peer list")
        assert isinstance(known, list)
        assert isinstance(meta, list)
        if not isinstance(cluster_id, str) or len(cluster_id) > MAX_ID:
            raise ValueError("announcement holds a bad cluster id")
        keys = tuple(_named_key(item) for item in _list(data.get("keys", [])))
        wall_ns = data.get("wall_ns", 0)
        if not isinstance(wall_ns, int):
            raise ValueError("announcement holds a bad time")
        return cls(tuple(known), bool(data.get("settled")), tuple(meta), cluster_id, keys, wall_ns)


def _list(value: object) -> list[object]:
    if not isinstance(value, list) or len(value) > MAX_PEERS:
        raise ValueError("announcement holds a bad list")
    return value


def _named_key(item: object) -> tuple[str, str]:
    if not isinstance(item, list) or len(item) != 2 or not is_peer_id(item[0]):
        raise ValueError("announcement holds a bad key")
    peer, key = item
    if not isinstance(key, str) or not is_key("N", key):
        raise ValueError("announcement holds a bad key")
    return peer, key


class Decision(NamedTuple):
    verdict: Verdict
    peers: tuple[str, ...] = ()
    """First peers of the group to create, or the present ones of the group to join."""
    cluster_id: str = ""
    """Id of the cluster to join."""


@dataclass(slots=True)
class Bootstrap:
    """One node's view of the agreement.

    `expected` is the number of distinct nodes that the configured routes name, this one included (0 routes: 1); it
    counts only while some route leads nowhere.
    """

    me: str
    expected: int
    started: float
    """Monotonic seconds when the node began to look for others."""
    announcements: dict[str, Announcement] = field(default_factory=dict)
    """Peer id -> its newest announcement, connected peers only."""
    apart: set[str] = field(default_factory=set)
    """Peers whose wall clock is another one than this node's, by their newest announcement."""
    member_of: str = ""
    """The cluster that this node had joined when it went down, before its journal held the meta group."""
    _told: float = 0.0
    _agreed_since: float | None = None
    _agreed_on: tuple[str, ...] = ()

    def heard(self, peer: str, announced: Announcement, wall_ns: int) -> None:
        """`wall_ns`: this node's wall clock when that came."""
        self.announcements[peer] = announced
        if announced.wall_ns and abs(announced.wall_ns - wall_ns) > MAX_DIFFERENCE_NS:
            self.apart.add(peer)
        else:
            self.apart.discard(peer)

    def forget(self, peer: str) -> None:
        """Its link is gone."""
        self.announcements.pop(peer, None)
        self.apart.discard(peer)

    def decide(self, mine: Announcement, now: float) -> Decision:
        """The step to take now, and with which peers. Call it whenever something changed and on a short timer."""
        running = [a for a in self.announcements.values() if a.meta_peers]
        if running:
            self._agreed_since = None
            if len(self.clusters()) != 1:
                return Decision(Verdict.WAIT)  # none of them knows its id yet, or there are two: not ours to choose
            found = next(a for a in running if a.cluster_id)
            verdict = Verdict.ADOPT if self.me in found.meta_peers else Verdict.JOIN
            return Decision(verdict, found.meta_peers, found.cluster_id)
        if self.member_of or not self._may_start(mine, now) or not self._all_agree(mine):
            self._agreed_since = None
            return Decision(Verdict.WAIT)
        if self._agreed_since is None or self._agreed_on != mine.known:
            self._agreed_since, self._agreed_on = now, mine.known
        if now < self._agreed_since + STABLE_SECONDS:
            return Decision(Verdict.WAIT)
        return Decision(Verdict.CREATE, mine.known)

    def clusters(self) -> tuple[str, ...]:
        """Ids of the running clusters that connected peers belong to."""
        return tuple(sorted({a.cluster_id for a in self.announcements.values() if a.meta_peers and a.cluster_id}))

    def complaint(self, mine: Announcement, now: float) -> str:
        """Why this node still waits, every `TELL_SECONDS`; "" in between."""
        if now - max(self.started, self._told) < TELL_SECONDS:
            return ""
        self._told = now
        if len(self.clusters()) > 1:
            return f"JetStream waits: peers belong to different clusters ({', '.join(self.clusters())})"
        if len(mine.known) == 1 and self.expected <= 1:
            return "JetStream waits for other nodes: no configured route leads to one, and none has connected"
        if self.member_of:
            return f"JetStream waits for a member of cluster {self.member_of}"
        if len(mine.known) * 2 > self.expected and self._clocks_differ(mine):
            return "JetStream waits for more nodes: the wall clocks of those found differ"
        return f"JetStream waits for a majority of {self.expected} nodes: {len(mine.known)} found, itself included"

    def _may_start(self, mine: Announcement, now: float) -> bool:
        if len(mine.known) < 2:
            return False
        if self.expected <= 1:
            return True
        everyone_settled = mine.settled and all(
            peer == self.me or (peer in self.announcements and self.announcements[peer].settled) for peer in mine.known
        )
        if everyone_settled:
            return True
        if now - self.started < PARTIAL_SECONDS or len(mine.known) * 2 <= self.expected:
            return False
        return not self._clocks_differ(mine)

    def _clocks_differ(self, mine: Announcement) -> bool:
        """No majority of those found agrees with this node's."""
        return 2 * len([peer for peer in mine.known if peer not in self.apart]) <= len(mine.known)

    def _all_agree(self, mine: Announcement) -> bool:
        return all(
            peer == self.me or (peer in self.announcements and self.announcements[peer].known == mine.known)
            for peer in mine.known
        )
