"""Values of the meta group: assignments and nodes, and the effects of a change.

`SubjectBook` indexes the subjects of an account's streams, to find overlaps without a walk over all streams.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from jetcluster.config.nkeys import is_key
from jetcluster.model.subjects import Patterns
from jetcluster.model.times import rfc3339
from jetcluster.records import NamedTuple, dataclass

MAX_FENCED_NODES = 64


class MoveOrigin(NamedTuple):
    """The peers and placement of a stream before a move, which a cancelled move restores."""

    peers: tuple[str, ...]
    placement: Mapping[str, Any] | None
    since_ns: int
    """Time of the move's request."""

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> MoveOrigin:
        return cls(tuple(map(str, data["peers"])), data["placement"], int(data["since_ns"]))


class Scaled(NamedTuple):
    """The updates of a stream's number of replicas since it was given more or fewer peers without one."""

    numbers: tuple[int, ...]
    """Each number that it had before one of them, ascending."""
    since_ns: int
    """Time of the last one's request."""

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Scaled:
        return cls(tuple(map(int, data["numbers"])), int(data["since_ns"]))


@dataclass(slots=True, frozen=True)
class Assignment:
    """One stream and the peers that hold it."""

    gid: int
    """Id of the Raft group and the stream, never reused."""
    account: str
    name: str
    config: Mapping[str, Any]
    """Normalised wire form (model.stream.StreamConfig.to_wire). Shared: it must not be changed in place."""
    peers: tuple[str, ...]
    created_ns: int
    leader_hint: str
    """The peer that should campaign while the group has no leader: spreads leaders at creation."""
    revision: int
    """Meta log index of the last change."""
    founders: tuple[str, ...] = ()
    """Peers that have been members since the group began: only they may take an empty log for the group's and vote
    with it. A peer that was added later, or was away in between, waits until the leader has caught it up."""
    reshaped: bool = False
    """True when the peers have changed since the creation: they should be members, and need not be the voters."""

    origin: MoveOrigin | None = None
    """Origin of the last move; only the stream's leader knows whether the move is complete."""
    rescue: int = 0
    """Number of rescues of the stream from a lost majority (`raft.membership.Config.rescue`). Replicas from before the
    newest one are no longer part of the stream."""
    kept: str = ""
    """The node whose replica became the stream in that rescue; it may no longer have one."""
    fenced: tuple[str, ...] = ()
    """Nodes whose replicas were given up in that rescue; each may have a new replica of the rescued stream."""
    scaled: Scaled | None = None
    """For CANCEL_MOVE and INFO alone: no verdict of apply may depend on it, as older versions do not keep it."""

    @property
    def subjects(self) -> tuple[str, ...]:
        return tuple(self.config.get("subjects", ()))

    @property
    def replicas(self) -> int:
        return int(self.config["num_replicas"])

    @property
    def memory(self) -> bool:
        return bool(self.config["storage"] == "memory")

    def changed(
        self,
        revision: int,
        *,
        config: Mapping[str, Any] | None = None,
        peers: tuple[str, ...] | None = None,
        origin: MoveOrigin | None = None,
        scaled: Scaled | None = None,
    ) -> Assignment:
        peers = peers or self.peers
        hint = self.leader_hint if self.leader_hint in peers else peers[0]
        founders = tuple(p for p in self.founders if p in peers)
        return replace(
            self,
            config=config or self.config,
            peers=peers,
            leader_hint=hint,
            revision=revision,
            founders=founders,
            reshaped=self.reshaped or set(peers) != set(self.peers),
            origin=origin,
            scaled=scaled or (self.scaled if len(peers) == len(self.peers) else None),
        )

    def scaled_at(self, since_ns: object) -> Scaled:
        """Return `scaled` after one more update of the number of replicas."""
        numbers = {*(self.scaled.numbers if self.scaled is not None else ()), self.replicas}
        return Scaled(tuple(sorted(numbers)), since_ns if isinstance(since_ns, int) else 0)

    def rescued(self, revision: int, number: int, kept: str, peers: tuple[str, ...]) -> Assignment:
        """Return the assignment after a rescue: `kept` holds the stream, and `peers` catch up from it."""
        fenced = tuple(dict.fromkeys(p for p in (*self.fenced, *self.peers) if p != kept))[-MAX_FENCED_NODES:]
        changed = self.changed(revision, peers=(kept, *peers))
        rescued = replace(changed, leader_hint=kept, founders=(kept,), rescue=number, kept=kept, fenced=fenced)
        return replace(rescued, scaled=None)

    def may_return_to(self, voters: int) -> bool:
        """True where so many voters, while a change is under way, are a number that the stream may be given back. It
        has others after a rescue or the removal of a server, until it is filled up: nobody asked for them."""
        return voters == len(self.peers) or (self.scaled is not None and voters in self.scaled.numbers)

    def check(self) -> None:
        """Raise ValueError, KeyError or TypeError when some node could not store, show and reload the assignment."""
        config = self.config
        if not isinstance(config, dict) or config["name"] != self.name or config["storage"] not in ("file", "memory"):
            raise ValueError("config")
        texts = (self.account, self.name, self.leader_hint, *self.peers, *config.get("subjects", ()))
        if not all(isinstance(text, str) for text in texts) or not (self.account and self.name and self.peers):
            raise ValueError("not the types")
        if not isinstance(config.get("subjects", []), list):
            raise ValueError("subjects")
        if type(config["num_replicas"]) is not int or type(config["max_bytes"]) is not int:
            raise ValueError("no numbers")
        if not isinstance(config["metadata"], dict) or "retention" not in config or "sealed" not in config:
            raise ValueError("not normalised")

    def first_peers(self, me: str) -> tuple[str, ...]:
        """Return the voters with which node `me` begins a replica that its journal does not know. A list without `me`
        keeps it from campaigning before it knows the voters."""
        founds = me in self.founders and not self.reshaped
        return self.peers if founds else tuple(p for p in self.peers if p != me)

    def to_dict(self) -> dict[str, Any]:
        return {
            "gid": self.gid,
            "account": self.account,
            "name": self.name,
            "config": self.config,
            "peers": list(self.peers),
            "created_ns": self.created_ns,
            "leader_hint": self.leader_hint,
            "revision": self.revision,
            "founders": list(self.founders),
            "origin": self.origin._asdict() if self.origin is not None else None,
            **({"reshaped": True} if self.reshaped else {}),
            **({"rescue": self.rescue, "kept": self.kept, "fenced": list(self.fenced)} if self.rescue else {}),
            **({"scaled": self.scaled._asdict()} if self.scaled is not None else {}),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Assignment:
        """Undo `to_dict`. Raises KeyError, TypeError or ValueError for any other input."""
        return cls(
            int(data["gid"]),
            str(data["account"]),
            str(data["name"]),
            dict(data["config"]),
            tuple(map(str, data["peers"])),
            int(data["created_ns"]),
            str(data["leader_hint"]),
            int(data["revision"]),
            tuple(map(str, data.get("founders", data["peers"]))),
            bool(data.get("reshaped", False)),
            MoveOrigin.from_dict(data["origin"]) if data.get("origin") else None,
            int(data.get("rescue", 0)),
            str(data.get("kept", "")),
            tuple(map(str, data.get("fenced", ()))),
            Scaled.from_dict(data["scaled"]) if data.get("scaled") else None,
        )


@dataclass(slots=True, frozen=True)
class Node:
    """A member of the cluster, connected or not."""

    peer: str
    name: str
    tags: tuple[str, ...] = ()
    jetstream: bool = True
    draining: bool = False
    """No replica is placed on the node, and its present ones move away."""
    level: int = 0
    """The level of commands that it last reported (`raft.node_state`); 0 before its first report."""
    key: str = ""
    """Its public key (`mesh.identity`), "" while unknown; it never changes."""

    def to_dict(self) -> dict[str, Any]:
        node: dict[str, Any] = {"peer": self.peer, "name": self.name, "tags": list(self.tags)}
        node["jetstream"] = self.jetstream
        if self.draining:
            node["draining"] = True
        node |= {"level": self.level} if self.level else {}
        return node | ({"key": self.key} if self.key else {})

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Node:
        tags = tuple(map(str, data["tags"]))
        draining = bool(data.get("draining", False))
        level = int(data.get("level", 0))
        key = str(data.get("key", ""))
        return cls(str(data["peer"]), str(data["name"]), tags, bool(data["jetstream"]), draining, level, key)


def node_key(text: object) -> str:
    """Return a node's public key of a command, or "" where it has none. Raises ValueError for anything else."""
    if text != "" and not (isinstance(text, str) and is_key("N", text)):
        raise ValueError("key")
    return str(text)


@dataclass(slots=True, frozen=True)
class Rescue:
    """A rescue of the meta group without a majority of its voters, which an operator declared lost."""

    number: int
    """1 for the cluster's first rescue (`raft.membership.Config.rescue`)."""
    at_ns: int
    by: str
    """The user who asked for it."""
    survivors: Mapping[str, str]
    """Peer id -> name."""
    lost: Mapping[str, str]
    """Peer id -> name of the nodes whose stores must never rejoin."""

    def told(self, peer: str) -> str:
        """Return the reason for which `peer`, one of `lost`, is refused."""
        return f"the meta group was rescued without {self.lost[peer]} at {rfc3339(self.at_ns)}"

    def to_dict(self) -> dict[str, Any]:
        return {
            "number": self.number,
            "at_ns": self.at_ns,
            "by": self.by,
            "survivors": dict(self.survivors),
            "lost": dict(self.lost),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Rescue:
        survivors, lost = ({str(peer): str(name) for peer, name in data[key].items()} for key in ("survivors", "lost"))
        return cls(int(data["number"]), int(data["at_ns"]), str(data["by"]), survivors, lost)


class StreamAssigned(NamedTuple):
    """A stream was created; its peers begin their replicas."""

    assignment: Assignment


class StreamUpdated(NamedTuple):
    """A stream has another configuration, other peers or another leader hint than in `previous`."""

    assignment: Assignment
    previous: Assignment


class StreamRemoved(NamedTuple):
    """A stream was deleted; its peers remove their replicas with all data."""

    assignment: Assignment


class ClusterNamed(NamedTuple):
    """The cluster got its id, which never changes."""

    cluster_id: str


class NodeChanged(NamedTuple):
    """A node is new, or reports other attributes."""

    node: Node


class NodeRemoved(NamedTuple):
    """A node was removed, or replaced by another node with its name."""

    node: Node


class ClusterRescued(NamedTuple):
    """An operator rescued the meta group from a lost majority (`raft.rescue`)."""

    rescue: Rescue


Effect = StreamAssigned | StreamUpdated | StreamRemoved | NodeChanged | NodeRemoved | ClusterNamed | ClusterRescued


def stream_difference(before: Mapping[int, Assignment], after: Mapping[int, Assignment]) -> Iterable[Effect]:
    """Yield the effects that lead from `before` to `after`, by group id."""
    for gid in sorted(before.keys() - after.keys()):
        yield StreamRemoved(before[gid])
    for gid in sorted(after):
        if gid not in before:
            yield StreamAssigned(after[gid])
        elif before[gid] != after[gid]:
            yield StreamUpdated(after[gid], before[gid])


def node_difference(before: Mapping[str, Node], after: Mapping[str, Node]) -> Iterable[Effect]:
    """Yield the effects that lead from `before` to `after`, by peer id."""
    for peer in sorted(before.keys() - after.keys()):
        yield NodeRemoved(before[peer])
    for peer in sorted(after):
        if before.get(peer) != after[peer]:
            yield NodeChanged(after[peer])


class SubjectBook:
    """The subjects of streams as one set of patterns: the thousandth stream costs about as much as the first."""

    def __init__(self) -> None:
        self._patterns = Patterns()
        self._of: dict[str, list[str]] = {}

    def __bool__(self) -> bool:
        return bool(self._of)

    def add(self, name: str, subjects: Sequence[str]) -> None:
        for subject in subjects:
            self._patterns.add(subject)
        if subjects:
            self._of.setdefault(name, []).extend(subjects)

    def remove(self, name: str) -> None:
        """Remove all subjects of the stream."""
        for subject in self._of.pop(name, ()):
            self._patterns.remove(subject)

    def effort(self, subjects: Sequence[str]) -> int:
        """Return the maximum number of look-ups that `overlaps` needs."""
        return len(subjects) * self._patterns.shapes

    def overlaps(self, subjects: Sequence[str], but: str) -> bool:
        """Return True when a stream other than `but` has a subject that overlaps with one of `subjects`."""
        own = self._of.get(but)
        if not own:
            return any(map(self._patterns.overlap, subjects))
        mine = Patterns(own)
        return any(self._patterns.overlaps(subject) > mine.overlaps(subject) for subject in subjects)
