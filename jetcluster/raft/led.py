"""The groups that a node leads, by their members: many have the same, so that what follows from who is there is decided
once for all of them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable, Iterator

from jetcluster.raft import codec
from jetcluster.raft.group_state import GroupState
from jetcluster.raft.membership import is_quorum
from jetcluster.raft.node_state import CONTROL_GID, NodeState

Members = tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]
"""Voters, those of before where the configuration is joint, and learners."""


class LedGroups:
    """Kept by the groups' replicators, which work while their group leads."""

    def __init__(self, node: NodeState) -> None:
        self._node = node
        self._by_members: dict[Members, dict[int, GroupState]] = {}
        self._members: dict[int, Members] = {}
        self._recovering: dict[int, GroupState] = {}

    def __len__(self) -> int:
        return len(self._members)

    def __iter__(self) -> Iterator[GroupState]:
        return (state for groups in self._by_members.values() for state in groups.values())

    def put(self, state: GroupState) -> None:
        """It leads, with the members of its newest configuration."""
        self.drop(state)
        config = state.log.config
        members = config.voters, config.outgoing, config.learners
        self._members[state.gid] = members
        self._by_members.setdefault(members, {})[state.gid] = state
        if _recovering(state):
            self._recovering[state.gid] = state

    def drop(self, state: GroupState) -> None:
        """It does not lead any more."""
        members = self._members.pop(state.gid, None)
        self._recovering.pop(state.gid, None)
        if members is not None:
            groups = self._by_members[members]
            del groups[state.gid]
            if not groups:
                del self._by_members[members]

    def recovers(self, state: GroupState) -> None:
        """A peer of the group has a damaged journal: it is there, and is no witness that no newer leader exists."""
        if state.gid in self._members:
            self._recovering[state.gid] = state

    def endangered(self, is_alive: Callable[[str], bool]) -> list[GroupState]:
        """Those that may have no quorum any more."""
        found = {gid: state for gid, state in self._recovering.items() if _recovering(state)}
        self._recovering = dict(found)
        me = self._node.me
        for (voters, outgoing, _), groups in self._by_members.items():
            alive = {peer for peer in (*voters, *outgoing) if peer == me or is_alive(peer)}
            if not is_quorum(voters, alive) or (outgoing and not is_quorum(outgoing, alive)):
                found.update(groups)
        return list(found.values())

    def tell(self, to: Iterable[str] | None = None) -> None:
        """Which groups this node leads with each of these peers, or with all, by now and before anything else that it
        sends there."""
        node = self._node
        lists: dict[str, list[tuple[int, int, int]]] = {p: [] for p in to or node.peers.states if node.peers.is_up(p)}
        for peers, groups in self._told(lists):
            leads = [state for state in groups if state.engine.leading and not state.stopped]
            entries = [(state.gid, state.term, state.commit_index) for state in leads]
            for peer in peers:
                lists[peer] += entries
        for peer, entries in lists.items():
            node.send(peer, CONTROL_GID, codec.encode_digest(entries))

    def _told(self, peers: Collection[str]) -> Iterator[tuple[list[str], Collection[GroupState]]]:
        """Groups, and those of their members that are among `peers`; none that has no such member."""
        for parts, groups in self._by_members.items():
            members = [peer for peer in dict.fromkeys(itertools.chain(*parts)) if peer in peers]
            if members:
                yield members, groups.values()


def _recovering(state: GroupState) -> bool:
    return any(flow.recovering for flow in state.flows.values())
