"""`Durability`: what the servers of the cluster wait for before they acknowledge, where that is not the same.

An acknowledged message is on the disks of as many servers as wait for them. Where one of three has no `sync_interval`
and the others have one, an operator may believe that all have it, or none: while it is changed server by server that is
as it should be, for good it is a mistake. Raft goes by the laxest of a group's voters (`raft.core.group_state.Credit`).
"""

from __future__ import annotations

from typing import Final

from jetcluster.logs import Log
from jetcluster.mesh.api import NodeInfo
from jetcluster.mesh.core import MeshCore

MAX_TOLD: Final = 1024
"""Peers of which it is remembered that they were told of."""


class Durability:
    """One per server with JetStream."""

    def __init__(self, mesh: MeshCore, log: Log) -> None:
        self._mesh = mesh
        self._log = log
        self._told: dict[str, float] = {}
        mesh.on_peers(self._peer_up, lambda info: None)

    def _peer_up(self, info: NodeInfo) -> None:
        """Says once of each interval of a server that is not this server's."""
        own, other = self._mesh.me.sync_interval, info.sync_interval
        if other is None or other == own:
            self._told.pop(info.peer_id, None)
        elif other != self._told.get(info.peer_id):
            if len(self._told) >= MAX_TOLD:
                self._told.clear()
            self._told[info.peer_id] = other
            what = "servers differ in sync_interval: what is acknowledged is only as safe as at the laxest of them"
            self._log.warning(what, here=said(own), server=info.name, there=said(other))

    @property
    def differing(self) -> list[str]:
        """The names of linked servers whose interval is not this server's, sorted."""
        own, peers = self._mesh.me.sync_interval, self._mesh.peers.values()
        return sorted(peer.name for peer in peers if peer.sync_interval is not None and peer.sync_interval != own)


def said(interval: float | None) -> str:
    """As the configuration says it."""
    return f"{interval:g}s" if interval else "always"
