"""`Levels`: which commands the nodes of a group understand, as each tells of itself with every heartbeat."""

from __future__ import annotations

from jetcluster.raft.membership import Config


class Levels:
    """One per node, whose own state machines are of level `own`."""

    def __init__(self, me: str, own: int) -> None:
        self.own = own
        self._me = me
        self._told: dict[str, int] = {}
        """By peer, over all links: a node that comes back is what it was, or later."""

    def heard(self, peer: str, level: int) -> None:
        self._told[peer] = level

    def of(self, config: Config) -> int:
        """The level that all members understand; 0 for who was not heard yet, or is of a version that tells nothing."""
        return min((self._told.get(peer, 0) for peer in config.others(self._me)), default=self.own)
