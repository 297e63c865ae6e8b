"""Bootstrap of a cluster from empty nodes: agreement on the meta group's first peers.

The first configuration of the meta group is the one decision that no Raft log can make. Two nodes that start it with
disjoint peer sets would be two clusters of one name. A node therefore starts only on a set that **every** member of
that set announces too, and only if the set holds a majority of the nodes that the routes name. A node that meets a
running cluster never starts one: it asks to be added (`Verdict.JOIN`), or creates its empty replica when the running
meta group already counts on it (`Verdict.ADOPT`). Its peer id proves that it never voted there, because a wiped node
gets a new id and a vote is not sent before the group's record is durable (mesh/identity.py, raft/journal/journal.py).

A set that lacks some nodes of the routes is not started while no majority of its wall clocks agrees: no node could lead
(`health.cluster_clock`), so none could add the nodes that come later and have the right time.

No node starts alone, with or without routes: a node that lost its store cannot know whether a cluster is running that
it does not reach at the moment. nats-server does likewise: it refuses a JetStream cluster without routes, and waits for
peers without end when its routes lead only to itself (2.15.2, tried). Here a node without routes waits too, because the
routes of other nodes may name it. Nodes of two clusters refuse each other by their ids (cluster/cluster_id.py).

The module is pure: links and time are arguments; `cluster.jetstream` drives it.
"""

from __future__ import annotations

import enum
import json
from dataclasses import asdict, field

from jetcluster.config.nkeys import is_key
from jetcluster.health.cluster_clock import MAX_DIFFERENCE_NS
from jetcluster.mesh.identity import is_peer_id
from jetcluster.records import NamedTuple, dataclass

MAX_PEERS = 1024
"""Upper bound of a cluster's size, which bounds the size of an announcement."""

MAX_ID = 64

STABLE_SECONDS = 0.15
"""Time for which all announcements must agree: covers gossip in transit when the last link comes up."""

PARTIAL_SECONDS = 5.0
"""Time after which a majority of the routes' nodes may start without the rest, which then joins."""

TELL_SECONDS = 10.0
"""Time between two log lines of a node that still waits."""


class Verdict(enum.Enum):
    """The next step of a node that has no meta group yet."""

    WAIT = "wait"
    CREATE = "create"
    ADOPT = "adopt"
    JOIN = "join"


@dataclass(slots=True, frozen=True)
class Announcement:
    """A node's announcement of itself to each peer, sent whenever it changes."""

    known: tuple[str, ...]
    """Sorted ids of the peers that the node is connected to, and its own."""
    settled: bool
    """True when each configured route led to a peer or to the node itself."""
    meta_peers: tuple[str, ...] = ()
    """Peers of the node's meta group; empty when it has none."""
    cluster_id: str = ""
    """Id of the node's cluster, when it is known."""
    keys: tuple[tuple[str, str], ...] = ()
    """Pairs of peer id and the public key by which the cluster knows that peer."""
    wall_ns: int = 0
    """The node's wall clock at sending."""
    followers: tuple[str, ...] = ()
    """Members of the node's meta group without a vote."""

    def encode(self) -> bytes:
        fields = asdict(self)
        for name in ("keys", "followers"):
            if not fields[name]:
                del fields[name]
        return json.dumps(fields).encode()

    @classmethod
    def decode(cls, raw: bytes) -> Announcement:
        """Raises ValueError for anything that is not an announcement."""
        try:
            data = json.loads(raw)
        except RecursionError as error:
            raise ValueError("announcement is nested too deeply") from error
        if not isinstance(data, dict):
            raise ValueError("announcement is not an object")
        known, meta, cluster_id = data.get("known"), data.get("meta_peers", []), data.get("cluster_id", "")
        followers = data.get("followers", [])
        for ids in (known, meta, followers):
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
        return cls(tuple(known), bool(data.get("settled")), tuple(meta), cluster_id, keys, wall_ns, tuple(followers))


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


class Founding(enum.Enum):
    """The part of a node in founding a cluster."""

    TOGETHER = "together"
    """Only with others, by their agreement."""
    ALONE = "alone"
    """By itself: the first worker of a machine whose workers are the whole cluster."""
    NEVER = "never"
    """Another worker of a machine, which joins what the first one is a member of."""


class Decision(NamedTuple):
    """A verdict, with the group that it refers to."""

    verdict: Verdict
    peers: tuple[str, ...] = ()
    """First peers of the group to create, or present peers of the group to join."""
    cluster_id: str = ""
    """Id of the cluster to join."""


@dataclass(slots=True)
class Bootstrap:
    """One node's view of the agreement.

    `expected` is the number of distinct nodes that the configured routes name, this one included (0 routes: 1). It
    counts only while some route leads nowhere.
    """

    me: str
    expected: int
    started: float
    """Monotonic seconds when the node began to look for peers."""
    announcements: dict[str, Announcement] = field(default_factory=dict)
    """By peer id, the newest announcement of each connected peer."""
    apart: set[str] = field(default_factory=set)
    """Peers whose wall clock differs from this node's, by their newest announcement."""
    founding: Founding = Founding.TOGETHER
    member_of: str = ""
    """Id of the cluster that this node had joined when it stopped before its journal held the meta group."""
    _told: float = 0.0
    _agreed_since: float | None = None
    _agreed_on: tuple[str, ...] = ()

    def heard(self, peer: str, announced: Announcement, wall_ns: int) -> None:
        """Takes an announcement that arrived when this node's wall clock was `wall_ns`."""
        self.announcements[peer] = announced
        if announced.wall_ns and abs(announced.wall_ns - wall_ns) > MAX_DIFFERENCE_NS:
            self.apart.add(peer)
        else:
            self.apart.discard(peer)

    def forget(self, peer: str) -> None:
        """Drops a peer whose link is gone."""
        self.announcements.pop(peer, None)
        self.apart.discard(peer)

    def decide(self, mine: Announcement, now: float) -> Decision:
        """Returns the step to take now. Must be called after each change and on a short timer."""
        running = [a for a in self.announcements.values() if a.meta_peers]
        if running:
            self._agreed_since = None
            if len(self.clusters()) != 1:
                return Decision(Verdict.WAIT)  # no id is known yet, or two clusters run: not this node's choice
            found = next(a for a in running if a.cluster_id)
            verdict = Verdict.ADOPT if self.me in found.meta_peers else Verdict.JOIN
            return Decision(verdict, found.meta_peers, found.cluster_id)
        joins = self.member_of or self.founding is Founding.NEVER
        if joins or not self._may_start(mine, now) or not self._all_agree(mine):
            self._agreed_since = None
            return Decision(Verdict.WAIT)
        if self._agreed_since is None or self._agreed_on != mine.known:
            self._agreed_since, self._agreed_on = now, mine.known
        if now < self._agreed_since + STABLE_SECONDS:
            return Decision(Verdict.WAIT)
        return Decision(Verdict.CREATE, mine.known)

    def clusters(self) -> tuple[str, ...]:
        """Returns the sorted ids of the running clusters that connected peers belong to."""
        return tuple(sorted({a.cluster_id for a in self.announcements.values() if a.meta_peers and a.cluster_id}))

    def complaint(self, mine: Announcement, now: float) -> str:
        """Returns why this node still waits, every `TELL_SECONDS`; "" in between."""
        if now - max(self.started, self._told) < TELL_SECONDS:
            return ""
        self._told = now
        if len(self.clusters()) > 1:
            return f"JetStream waits: peers belong to different clusters ({', '.join(self.clusters())})"
        if self.founding is Founding.NEVER:
            return "JetStream waits for the first worker of this machine, or for another member of the cluster"
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
        """True when no majority of the known nodes has this node's time."""
        return 2 * len([peer for peer in mine.known if peer not in self.apart]) <= len(mine.known)

    def _all_agree(self, mine: Announcement) -> bool:
        return all(
            peer == self.me or (peer in self.announcements and self.announcements[peer].known == mine.known)
            for peer in mine.known
        )
