"""The model of reads: how many a second a cluster serves, from processor times that were measured.

A server has a share of a core. From it go what it takes at rest and what writes take; the rest is reads of its own
clients, as many as they ask for. What a read costs at other servers is taken from theirs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

LEADER, FOLLOWER, MIRROR, DOOR = PLACES = ("leader", "follower", "mirror", "door")
"""Servers that a client can ask: those with a replica, with a mirror, and without either."""
MEASURED_FOLLOWERS = 2
"""Followers of the stream whose costs were measured: three replicas."""


@dataclass(frozen=True, slots=True)
class ReadCost:
    """Microseconds of processor time for each message that is read, by who spends it."""

    asked: float
    """The server that the client is connected to."""
    leader: float = 0.0
    """The stream's leader, where it is another one."""
    others: float = 0.0
    """All others together."""

    @property
    def total(self) -> float:
        return self.asked + self.leader + self.others


@dataclass(frozen=True, slots=True)
class WriteCost:
    """Microseconds of processor time for each message that is published at the stream's leader."""

    alone: float
    """A leader without followers."""
    leader: float
    """A leader with MEASURED_FOLLOWERS."""
    follower: float
    feeding: float
    """More at the leader for a mirror."""
    mirror: float

    def at_leader(self, followers: int, mirrors: int) -> float:
        """In proportion to its followers: each is sent what another one is."""
        each = (self.leader - self.alone) / MEASURED_FOLLOWERS
        return self.alone + followers * each + mirrors * self.feeding


@dataclass(frozen=True, slots=True)
class Costs:
    """All that the model knows of one form of reads."""

    reads: Mapping[str, ReadCost]
    """By place."""
    writes: WriteCost
    rest: float
    """The share of a core that a server takes when nobody asks it anything."""


@dataclass(frozen=True, slots=True)
class Plan:
    """A cluster and its work. The stream has a replica on each of `replicas` servers and mirrors of one replica on
    `mirrors` others; `doors` servers have neither."""

    replicas: int
    mirrors: int = 0
    doors: int = 0
    share: float = 1.0
    """Cores of each server."""
    writes: float = 0.0
    """Messages a second, published at the leader."""

    @property
    def followers(self) -> int:
        return self.replicas - 1


@dataclass(frozen=True, slots=True)
class Served:
    """Messages that are read per second, at each server of a kind."""

    leader: float
    follower: float
    mirror: float
    door: float
    total: float
    """At all servers together."""


def predict(plan: Plan, costs: Costs) -> Served:
    """The most reads that the plan's servers can serve, when the clients of each keep it busy.

    Where doors or those who ask the leader would take more than there is, they are slowed down to what there is."""
    left = _left(plan, costs)
    asked = {place: left[place] / costs.reads[place].asked for place in PLACES}
    door, mirror, follower = costs.reads[DOOR], costs.reads[MIRROR], costs.reads[FOLLOWER]
    taken = plan.doors * asked[DOOR] * (door.leader + door.others) / plan.replicas  # of each replica, in turn
    slowed = min(1.0, min(left[LEADER], left[FOLLOWER] if plan.followers else left[LEADER]) / taken) if taken else 1.0
    at_door, taken = asked[DOOR] * slowed, taken * slowed
    at_follower = max(left[FOLLOWER] - taken, 0.0) / follower.asked
    questions = plan.followers * at_follower * follower.leader + plan.mirrors * asked[MIRROR] * mirror.leader
    room = max(left[LEADER] - taken, 0.0)
    slowed = min(1.0, room / questions) if questions else 1.0
    at_follower, at_mirror = at_follower * slowed, asked[MIRROR] * slowed
    at_leader = max(room - questions * slowed, 0.0) / costs.reads[LEADER].asked
    total = at_leader + plan.followers * at_follower + plan.mirrors * at_mirror + plan.doors * at_door
    return Served(at_leader, at_follower, at_mirror, at_door, total)


def _left(plan: Plan, costs: Costs) -> dict[str, float]:
    """Microseconds of each second that a server of each kind has for reads."""
    writes = {
        LEADER: costs.writes.at_leader(plan.followers, plan.mirrors),
        FOLLOWER: costs.writes.follower,
        MIRROR: costs.writes.mirror,
        DOOR: 0.0,
    }
    return {
        place: max(1e6 * (plan.share - costs.rest) - plan.writes * each, 0.0) for place, each in writes.items()
    }  # fmt: skip
