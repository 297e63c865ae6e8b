"""The groups that a node leads, by their members: many have the same, so that what follows from who is there is decided
once for all of them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jetcluster.raft.group import Group

Members = tuple[tuple[str, ...], tuple[str, ...]]
"""Voters and learners."""


class LedGroups:
    """Kept by the groups' replicators, which work while their group leads."""

    def __init__(self, me: str) -> None:
        self._me = me
        self._by_members: dict[Members, dict[int, Group]] = {}
        self._members: dict[int, Members] = {}
        self._recovering: dict[int, Group] = {}

    def __len__(self) -> int:
        return len(self._members)

    def __iter__(self) -> Iterator[Group]:
        return (group for groups in self._by_members.values() for group in groups.values())

    def put(self, group: Group) -> None:
        """It leads, with the members of its newest configuration."""
        self.drop(group)
        config = group.log.config
        members = config.voters, config.learners
        self._members[group.gid] = members
        self._by_members.setdefault(members, {})[group.gid] = group
        if _recovering(group):
            self._recovering[group.gid] = group

    def drop(self, group: Group) -> None:
        """It does not lead any more."""
        members = self._members.pop(group.gid, None)
        self._recovering.pop(group.gid, None)
        if members is not None:
            groups = self._by_members[members]
            del groups[group.gid]
            if not groups:
                del self._by_members[members]

    def recovers(self, group: Group) -> None:
        """A peer of the group has a damaged journal: it is there, and is no witness that no newer leader exists."""
        if group.gid in self._members:
            self._recovering[group.gid] = group

    def endangered(self, is_alive: Callable[[str], bool]) -> list[Group]:
        """Those that may have no quorum any more."""
        found = {gid: group for gid, group in self._recovering.items() if _recovering(group)}
        self._recovering = dict(found)
        for (voters, _), groups in self._by_members.items():
            others = [peer for peer in voters if peer != self._me]
            # as the core counts (check-quorum): itself in any case
            if 2 * (1 + sum(map(is_alive, others))) <= len(others) + 1:
                found.update(groups)
        return list(found.values())

    def told(self, peers: Collection[str]) -> Iterator[tuple[list[str], Collection[Group]]]:
        """Groups, and those of their members that are among `peers`; none that has no such member."""
        for (voters, learners), groups in self._by_members.items():
            members = [peer for peer in (*voters, *learners) if peer in peers]
            if members:
                yield members, groups.values()


def _recovering(group: Group) -> bool:
    return any(flow.recovering for flow in group.replicator.flows.values())
