"""`Owner`: the owner of a group's state machine, as the group tells it of roles, members and snapshots. An exception of
the owner stops this group and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jetcluster.raft.api import Role, StateMachine
from jetcluster.raft.group_state import GroupState
from jetcluster.raft.membership import Config, Members


class Owner:
    """One per group. `fail` stops the group."""

    def __init__(self, state: GroupState, machine: StateMachine, fail: Callable[[BaseException | str], None]) -> None:
        self.fail = fail
        self._state = state
        self._machine = machine
        self._role: tuple[Role, int, str | None] | None = None
        self._members: Config | None = None

    def call(self, callback: Callable[..., Any], *args: Any) -> None:
        """Calls the owner's code; the node must live, whatever it raises."""
        try:
            callback(*args)
        except Exception as error:  # noqa: BLE001 - as above
            self.fail(error)

    def tell_role(self, role: Role, leader: str | None) -> None:
        state = self._state
        news = (role, state.term, leader)
        if news != self._role and not state.stopped:
            self._role = news
            self.call(self._machine.on_role, role, state.term, leader)

    def tell_members(self) -> None:
        """The owner keeps with its state by whom that was decided."""
        state = self._state
        index = max(state.applied_index, state.log.base_index)
        config = state.log.config_at(index)
        if config != self._members:
            self._members = config
            self.call(self._machine.on_members, Members(index, config))

    def restored(self, index: int) -> None:
        """The state machine holds `index` now (a snapshot was installed)."""
        self._state.applied_index = self._state.machine_index = index
        self._members = None
        self.tell_members()

    def dropped(self, first_index: int) -> None:
        self.call(self._machine.on_dropped, first_index)

    def needs_snapshot(self, leader: str, index: int, term: int) -> None:
        self.call(self._machine.on_snapshot_needed, leader, index, term)
