"""Servers of an older version: they report an older level with every heartbeat, propose nothing newer while they lead,
and must never get a command that only a newer one understands, for they would stop there.

A machine has such a server while its `level` is set; its next start after that is the upgrade. What else an older
version did otherwise is no part of this.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from jetcluster.cluster import wiring
from jetcluster.consumer.state import turn
from jetcluster.raft.membership import Config
from jetcluster.raft.node import RaftNode
from jetcluster.raft.node_state import Levels
from jetcluster.replica.applying import Applying
from jetcluster.stream.log import commands
from jetcluster.stream.log.levels import BATCH_ROLLUP_LEVEL, LONG_ROLLUP_LEVEL, RETENTION_GUARD_LEVEL
from testkit.sim.deployment import Deployment
from testkit.sim.loop import SimLoop


class OldLevels(Levels):
    """The levels of a node that is older itself: it leads by what it knows."""

    def of(self, config: Config) -> int:
        return min(self.own, super().of(config))


class _Node(RaftNode):
    """Has the level of the machine that it runs on."""

    def __init__(self, me: str, *rest: Any) -> None:
        super().__init__(me, *rest)
        if level := own_level():
            self.levels = OldLevels(me, level, self.levels.recorded)


def own_level() -> int:
    """The level of the process that runs now; 0: this version's."""
    loop = asyncio.get_running_loop()
    return loop.level if isinstance(loop, SimLoop) else 0


def needed(command: bytes) -> int:
    """The lowest level of a server that understands this command of a stream's log."""
    if command[0] == commands.CONSUMER_TURN:
        return turn.level_of(command[commands.HEAD.size :])
    if command[1] & commands.ROLLS_UP:
        return LONG_ROLLUP_LEVEL if command[0] == commands.PUBLISH else BATCH_ROLLUP_LEVEL
    if command[1] & commands.COUNTED:
        return BATCH_ROLLUP_LEVEL
    return RETENTION_GUARD_LEVEL if command[1] & commands.GUARDED else 0


@contextmanager
def told() -> Iterator[None]:
    """Machines with a level have it meanwhile."""
    usual = wiring.RaftNode
    wiring.RaftNode = _Node  # type: ignore[misc]
    try:
        yield
    finally:
        wiring.RaftNode = usual  # type: ignore[misc]


@contextmanager
def watched(deployment: Deployment) -> Iterator[None]:
    """A command that an older server would not understand fails the run."""
    usual = Applying.apply

    def apply(self: Applying, index: int, term: int, command: bytes) -> None:
        if (level := own_level()) and needed(command) > level:
            deployment.failed(f"a server of level {level} gets a command of level {needed(command)}, at {index}")
        usual(self, index, term, command)

    Applying.apply = apply  # type: ignore[method-assign]
    try:
        yield
    finally:
        Applying.apply = usual  # type: ignore[method-assign]
