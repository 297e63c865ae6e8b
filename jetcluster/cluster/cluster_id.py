"""The cluster's id, made with the meta group, so that two clusters are never taken for one.

Nodes that found a meta group agree on its first peers (cluster/bootstrap.py). Peer ids are random, and a node founds
once with its id, so the hash of the set is an id that all founders compute alike and no other cluster has. The meta
group's leader puts it into the meta log first of all, and every node keeps it in `node.json`. Nodes send it in INFO. A
link between nodes of different clusters is refused, as Raft frames and requests mean something else in the other.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import TYPE_CHECKING

from jetcluster.mesh.core import MeshCore

if TYPE_CHECKING:
    from jetcluster.logs import Log

Save = Callable[[str, bool], None]
"""Writes (cluster id, member). Durable on return. Raises OSError."""


def founded(cluster_name: str, peers: tuple[str, ...]) -> str:
    """Returns the id of the cluster whose meta group begins with `peers`: 16 hexadecimal digits."""
    text = "\0".join((cluster_name, *sorted(peers)))
    return hashlib.blake2b(text.encode(), digest_size=8, person=b"jetcluster").hexdigest()


class ClusterId:
    """This node's cluster id; `value` is "" until the node founded or met a cluster."""

    def __init__(self, mesh: MeshCore, save: Save, log: Log) -> None:
        self._mesh = mesh
        self._save = save
        self._log = log
        self._saved: tuple[str, bool] | None = None

    @property
    def value(self) -> str:
        return self._mesh.me.cluster_id

    def found(self, cluster_id: str) -> None:
        """Takes the id of the cluster that this node creates. It is written only when the meta log confirms it: until
        then the founders may all lose power at once, and found the cluster anew with other peers."""
        self._take(cluster_id)

    def join(self, cluster_id: str) -> None:
        """Takes and writes the id that a running member reported: this node must not enter another cluster."""
        self._take(cluster_id)
        self._keep(member=False)

    def confirm(self, cluster_id: str) -> None:
        """Takes the id from the meta log, which is on this node's disk."""
        if self.value and cluster_id and self.value != cluster_id:
            self._log.error("the meta group is of another cluster than node.json", meta=cluster_id, node=self.value)
        self._take(cluster_id or self.value)
        self._keep(member=True)

    def _take(self, cluster_id: str) -> None:
        if cluster_id != self.value:
            self._mesh.join_cluster(cluster_id)

    def _keep(self, *, member: bool) -> None:
        state = (self.value, member)
        if state == self._saved or self._saved == (self.value, True):
            return
        try:
            self._save(*state)
        except OSError as error:
            # Retried at the next start, from the meta group's state; within this run the guard is in memory.
            self._log.error("the cluster id could not be written", error=str(error))
            return
        self._saved = state
