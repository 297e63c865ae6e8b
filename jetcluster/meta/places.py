"""`Places`: where the streams are and what they claim, counted and indexed: no question walks over all of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Set
from typing import Any

from jetcluster.meta.state import Assignment
from jetcluster.records import NamedTuple
from jetcluster.stream.rules import RESTORING


class LimitUse(NamedTuple):
    """Bytes of a limit on the storage of an account or tier."""

    wanted: int
    taken: int
    limit: int
    """-1: none."""

    @property
    def exceeded(self) -> bool:
        return self.wanted > 0 and 0 <= self.limit < self.taken + self.wanted


class Places:
    """Derived from the assignments alone. Streams are group ids here."""

    def __init__(self, assignments: Iterable[Assignment] = ()) -> None:
        self._by_peer: dict[str, dict[int, tuple[str, ...]]] = {}
        """Peer -> group -> all peers of that stream."""
        self.restoring: dict[int, None] = {}
        """Streams whose archive is not completely restored yet."""
        self._short: dict[int, None] = {}
        """Streams with fewer peers than replicas."""
        self._mirrors: dict[tuple[str, str], dict[str, None]] = {}
        """(account, stream) -> names of the account's streams that mirror it."""
        self.leaders: Counter[str] = Counter()
        """Peer -> number of streams whose leader hint it is."""
        self.replicated: Counter[str] = Counter()
        """Peer -> number of its replicas, of streams with more than one."""
        self.reserved: Counter[tuple[str, str]] = Counter()
        """(peer, storage) -> bytes that `max_bytes` of all accounts' streams reserves there."""
        self.claimed: Counter[tuple[str, str]] = Counter()
        """(account, storage) -> bytes that its streams reserve, all replicas counted."""
        self.tiers: Counter[tuple[str, int, str]] = Counter()
        """(account, replicas, "") -> number of streams; (account, replicas, storage) -> bytes, one replica counted."""
        for assignment in assignments:
            self.put(assignment)

    def put(self, assignment: Assignment) -> None:
        gid = assignment.gid
        self._count(assignment, 1)
        for peer in assignment.peers:
            self._by_peer.setdefault(peer, {})[gid] = assignment.peers
        if assignment.config.get(RESTORING):
            self.restoring[gid] = None
        if len(assignment.peers) < assignment.replicas:
            self._short[gid] = None
        upstream = _upstream(assignment)
        if upstream is not None:
            self._mirrors.setdefault(upstream, {})[assignment.name] = None

    def drop(self, assignment: Assignment) -> None:
        gid = assignment.gid
        self._count(assignment, -1)
        for peer in assignment.peers:
            del self._by_peer[peer][gid]
            if not self._by_peer[peer]:
                del self._by_peer[peer]
        self.restoring.pop(gid, None)
        self._short.pop(gid, None)
        upstream = _upstream(assignment)
        if upstream is not None:
            del self._mirrors[upstream][assignment.name]
            if not self._mirrors[upstream]:
                del self._mirrors[upstream]

    def limit_use(
        self, account: str, config: Mapping[str, Any], limits: Mapping[str, int], replaced: Assignment | None
    ) -> LimitUse:
        """Return what the stream asks for and what is left for it of the limit on its kind of storage, an account's or
        a tier's. `replaced`: the stream as it was."""
        tier, storage = limits.get("replicas"), config["storage"]
        claimed = claim if tier else reserved
        limit = limits["max_memory"] if storage == "memory" else limits["max_storage"]
        taken = self.tiers[account, tier, storage] if tier else self.claimed[account, storage]
        if replaced is not None and replaced.config["storage"] == storage and tier in (None, replaced.replicas):
            taken -= claimed(replaced.config)
        return LimitUse(claimed(config), taken, limit)

    def on(self, peer: str) -> Set[int]:
        """Return the streams with a replica on the node."""
        return self._by_peer.get(peer, {}).keys()

    def mirrors_of(self, account: str, name: str) -> list[str]:
        """Return the sorted names of the account's streams that mirror its stream `name`."""
        return sorted(self._mirrors.get((account, name), ()))

    def misplaced(self, nodes: Set[str]) -> set[int]:
        """Return the streams with fewer peers than replicas, and those with a peer that is not among `nodes`."""
        return {*self._short, *self._lost(nodes)}

    def without(self, there: Set[str]) -> set[int]:
        """Return the streams of which no node of `there` has a replica. It looks only at those on other nodes."""
        others = (groups for peer, groups in self._by_peer.items() if peer not in there)
        return {gid for groups in others for gid, peers in groups.items() if there.isdisjoint(peers)}

    def _lost(self, nodes: Set[str]) -> Iterator[int]:
        for peer, groups in self._by_peer.items():
            if peer not in nodes:
                yield from groups

    def _count(self, assignment: Assignment, by: int) -> None:
        account, storage, size = assignment.account, assignment.config["storage"], claim(assignment.config)
        for peer in assignment.peers:
            self.replicated[peer] += by * (assignment.replicas > 1)
            self.reserved[peer, storage] += by * size
        self.leaders[assignment.leader_hint] += by
        self.claimed[account, storage] += by * reserved(assignment.config)
        self.tiers[account, assignment.replicas, ""] += by
        self.tiers[account, assignment.replicas, storage] += by * size


def _upstream(assignment: Assignment) -> tuple[str, str] | None:
    """Return the account and the name of the stream that this one mirrors, if it is one of this cluster."""
    mirror = assignment.config.get("mirror")
    if not isinstance(mirror, dict) or mirror.get("external"):
        return None
    return assignment.account, str(mirror.get("name", ""))


def reserved(config: Mapping[str, Any]) -> int:
    """Return the bytes that a stream reserves, all replicas counted: 0 without max_bytes."""
    return claim(config) * int(config["num_replicas"])


def claim(config: Mapping[str, Any]) -> int:
    """Return the bytes that one replica of a stream reserves."""
    return max(int(config["max_bytes"]), 0)
