"""How a set of empty nodes becomes one cluster: agreement on the meta group's first peers.

The first configuration of the meta group is the one decision that no Raft log can make. Two nodes that start it with
disjoint peer sets would be two clusters with one name, so a node starts only on a set that **every** member of that set
announces too, and only if the set holds a majority of the nodes that the routes name. A node that meets a running
cluster never starts one: it asks to be added (`Verdict.JOIN`), or, when the running meta group already counts on it,
creates its empty replica (`Verdict.ADOPT`): its peer id proves that it never voted there, because a wiped node gets a
new id and a vote is not sent before the group's record is durable (cluster/identity.py, raft/journal.py).

Pure: links and time come in as arguments; `cluster.jetstream` drives it.
"""

from __future__ import annotations

import enum
import json
from dataclasses import dataclass, field

MAX_PEERS = 1024
"""Upper bound of a cluster's size, so that an announcement cannot grow without limit."""

STABLE_SECONDS = 0.15
"""How long all announcements must agree: covers gossip that is still on its way when the last link comes up."""

PARTIAL_SECONDS = 5.0
"""After this long a majority of the routes' nodes may start without the rest, which then joins."""

LONE_SECONDS = 3.0
"""A node whose configuration names no routes waits this long for somebody before it starts alone."""


class Verdict(enum.Enum):
    WAIT = "wait"
    CREATE = "create"
    ADOPT = "adopt"
    JOIN = "join"


@dataclass(slots=True, frozen=True)
class Announcement:
    """What a node says about itself to every peer, whenever it changes."""

    known: tuple[str, ...]
    """Sorted peer ids the node is connected to, itself included."""
    settled: bool
    """Every configured route led to a peer or to the node itself."""
    meta_peers: tuple[str, ...] = ()
    """The meta group's peers when the node has one, else empty."""

    def encode(self) -> bytes:
        return json.dumps({"known": self.known, "settled": self.settled, "meta_peers": self.meta_peers}).encode()

    @classmethod
    def decode(cls, raw: bytes) -> Announcement:
        """Raises ValueError on anything that is not an announcement."""
        data = json.loads(raw)
        if not isinstance(data, dict):
            raise ValueError("announcement is not an object")
        known, meta = data.get("known"), data.get("meta_peers", [])
        for ids in (known, meta):
            if not isinstance(ids, list) or len(ids) > MAX_PEERS or not all(isinstance(i, str) for i in ids):
                raise ValueError("announcement holds a bad peer list")
        assert isinstance(known, list)
        assert isinstance(meta, list)
        return cls(tuple(known), bool(data.get("settled")), tuple(meta))


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
    _agreed_since: float | None = None
    _agreed_on: tuple[str, ...] = ()

    def decide(self, mine: Announcement, now: float) -> tuple[Verdict, tuple[str, ...]]:
        """What to do now, and with which peers. Call it whenever something changed and on a short timer."""
        for announced in self.announcements.values():
            if announced.meta_peers:
                return (Verdict.ADOPT if self.me in announced.meta_peers else Verdict.JOIN), announced.meta_peers
        if not self._may_start(mine, now) or not self._all_agree(mine):
            self._agreed_since = None
            return Verdict.WAIT, ()
        if self._agreed_since is None or self._agreed_on != mine.known:
            self._agreed_since, self._agreed_on = now, mine.known
        if now < self._agreed_since + STABLE_SECONDS:
            return Verdict.WAIT, ()
        return Verdict.CREATE, mine.known

    def _may_start(self, mine: Announcement, now: float) -> bool:
        waited = now - self.started
        if self.expected <= 1:
            return len(mine.known) > 1 or waited >= LONE_SECONDS
        everyone_settled = mine.settled and all(
            peer == self.me or (peer in self.announcements and self.announcements[peer].settled) for peer in mine.known
        )
        if everyone_settled and len(mine.known) > 1:
            return True
        return waited >= PARTIAL_SECONDS and len(mine.known) * 2 > self.expected

    def _all_agree(self, mine: Announcement) -> bool:
        return all(
            peer == self.me or (peer in self.announcements and self.announcements[peer].known == mine.known)
            for peer in mine.known
        )
