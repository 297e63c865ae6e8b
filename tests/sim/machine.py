"""The replicated state of the simulation: a list of commands with a durable prefix, as the store has it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jetcluster.raft.api import Role
from jetcluster.raft.membership import Members

if TYPE_CHECKING:
    from tests.sim.simulation import SimNode

Applied = tuple[int, int, bytes]
"""(index, term, command)"""


class SimStore:
    """The state of a machine that survives a crash: that of the last flush."""

    def __init__(self) -> None:
        self.entries: list[Applied] = []
        self.index = 0
        self.term = 0
        self.members: Members | None = None


class SimMachine:
    def __init__(self, node: SimNode, gid: int, store: SimStore) -> None:
        self.node = node
        self.gid = gid
        self.store = store
        self.entries = list(store.entries)
        self.index = store.index
        self.term = store.term
        self.members = store.members
        self.waiting: dict[int, bytes] = {}
        """Index -> command proposed here and not yet answered."""
        self.fetching = False

    def apply(self, index: int, term: int, command: bytes) -> None:
        self.entries.append((index, term, command))
        self.index, self.term = index, term
        self.node.sim.checks.applied(self.node, self.gid, index, term, command)
        mine = self.waiting.pop(index, None)
        if mine is not None and mine == command:
            self.node.sim.acked(self.gid, index, command)

    def flush(self) -> int:
        """Makes the present state durable; returns its index."""
        self.store.entries = list(self.entries)
        self.store.index, self.store.term = self.index, self.term
        self.store.members = self.members
        return self.index

    def replace(self, entries: list[Applied], index: int, term: int, members: Members) -> None:
        self.entries = list(entries)
        self.index, self.term, self.members = index, term, members
        self.flush()

    def on_members(self, members: Members) -> None:
        self.members = members

    def on_role(self, role: Role, term: int, leader: str | None) -> None:
        self.node.sim.log(self.node.name, "role", self.gid, role.name, term, leader)

    def on_dropped(self, first_index: int) -> None:
        self.waiting = {i: c for i, c in self.waiting.items() if i < first_index}

    def on_contradicted(self) -> None:
        self.node.sim.log(self.node.name, "contradicted", self.gid)

    def on_snapshot_needed(self, leader: str, index: int, term: int) -> None:
        self.node.sim.fetch_snapshot(self.node, self.gid, leader, index)
