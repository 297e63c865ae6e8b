"""The cluster's id, made when the meta group is, so that two clusters are never taken for one.

Nodes that found a meta group agree on its first peers (cluster/bootstrap.py). Peer ids are random, and a node founds
with its id once, so the hash of the set is an id that all founders compute alike and no other cluster has. It is the
first thing that the meta group's leader puts into the meta log, and every node keeps it in `node.json`. Nodes tell it
in INFO: a link between nodes of different clusters is refused, because Raft frames, leaders and requests of one cluster
mean something else in the other.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import TYPE_CHECKING

from jetcluster.mesh.core import MeshCore

if TYPE_CHECKING:
    from jetcluster.logs import Log

Save = Callable[[str, bool], None]
"""(cluster id, member) -> durable. Raises OSError."""


def founded(cluster_name: str, peers: tuple[str, ...]) -> str:
    """The id of the cluster whose meta group begins with `peers`: 16 hexadecimal digits."""
    text = "\0".join((cluster_name, *sorted(peers)))
    return hashlib.blake2b(text.encode(), digest_size=8, person=b"jetcluster").hexdigest()


class ClusterId:
    """This node's; `value` is "" until it founded or met a cluster."""

    def __init__(self, mesh: MeshCore, save: Save, log: Log) -> None:
        self._mesh = mesh
        self._save = save
        self._log = log
        self._saved: tuple[str, bool] | None = None

    @property
    def value(self) -> str:
        return self._mesh.me.cluster_id

    def found(self, cluster_id: str) -> None:
        """This node creates the cluster. Kept on disk only when the meta log says so too: until then the founders may
        lose power all at once, and found it anew with other peers."""
        self._take(cluster_id)

    def join(self, cluster_id: str) -> None:
        """A member says that the cluster runs: from now on this node must not get into another one."""
        self._take(cluster_id)
        self._keep(member=False)

    def confirm(self, cluster_id: str) -> None:
        """The meta log says it; it is on this node's disk."""
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
            # Told again with the next start, from the meta group's state; the guard of this run is in memory.
            self._log.error("the cluster id could not be written", error=str(error))
            return
        self._saved = state
