"""`Levels`: which commands the nodes of a group understand, as each tells of itself with every heartbeat.

Who was not heard in this life is what is on record of it (`recorded`: the meta group's list of nodes), so that a leader
that restarts while another node is down need not take that for one of before.
"""

from __future__ import annotations

from collections.abc import Callable

from jetcluster.raft.membership import Config


class Levels:
    """One per node, whose own state machines are of level `own`."""

    def __init__(self, me: str, own: int) -> None:
        self.own = own
        self.recorded: Callable[[str], int] = lambda peer: 0
        """Level of a peer as heard in earlier lives, here or elsewhere; 0 when it never was."""
        self._me = me
        self._told: dict[str, int] = {}
        """By peer, over all links: a node that comes back is what it was, or later."""

    def heard(self, peer: str, level: int) -> None:
        self._told[peer] = level

    def forget(self, peer: str) -> None:
        """It went, and belongs to nothing."""
        self._told.pop(peer, None)

    def told(self, peer: str) -> int | None:
        """By `peer` itself, in this life, or what this node is; None when it was not heard."""
        return self.own if peer == self._me else self._told.get(peer)

    def of(self, config: Config) -> int:
        """The level that all members understand; 0 for who was never heard, or is of a version that tells nothing."""
        return min(map(self._of, config.others(self._me)), default=self.own)

    def _of(self, peer: str) -> int:
        told = self._told.get(peer)
        return self.recorded(peer) if told is None else told
