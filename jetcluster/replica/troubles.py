"""`Troubles` keeps what hinders catch-up, and says when that is worth a line in the log that an operator reads."""

from __future__ import annotations

from jetcluster.clock import Clock
from jetcluster.logs import Log
from jetcluster.mesh.api import MeshError, MeshRefusedError

PATIENCE = 30.0
"""Links that are lost and leaders that change are no trouble: they are over sooner than that."""
PAUSE = 60.0
"""Between two lines about the same peer, with any trouble and number of groups."""
NO_METHOD = ": no such method"
"""The end of the answer of a node that does not know what it was asked (`mesh.rpc`)."""


class Troubles:
    """One per node. It keeps one entry per group that tries, and one per peer."""

    def __init__(self, clock: Clock, log: Log) -> None:
        self._clock = clock
        self._log = log
        self._failing: dict[int, tuple[float, float]] = {}
        """Group -> when it failed first and last, of failures without a longer pause between them."""
        self._told: dict[str, float] = {}
        """Peer -> when it was last written about."""

    def failed(self, gid: int, peer: str, error: MeshError) -> None:
        """The group could not fetch its state from `peer`."""
        now = self._clock.monotonic()
        first, last = self._failing.get(gid, (now, now))
        if now - last > PATIENCE:
            first = now
        self._failing[gid] = first, now
        if isinstance(error, MeshRefusedError) and str(error).endswith(NO_METHOD):
            self.other_version(gid, peer, "it cannot be fetched from there")
        elif now - first < PATIENCE or not self._due(peer):
            self._log.debug("catch-up interrupted", gid=gid, peer=peer, error=str(error))
        else:
            self._log.warning("catch-up does not come on", gid=gid, peer=peer, error=str(error))

    def other_version(self, gid: int, peer: str, text: str) -> None:
        """States do not travel between nodes of these two versions."""
        if self._due(peer):
            self._log.warning("a state waits until both nodes run the same version", gid=gid, peer=peer, reason=text)

    def over(self, gid: int) -> None:
        """The group has its state, or is gone."""
        self._failing.pop(gid, None)

    def _due(self, peer: str) -> bool:
        now = self._clock.monotonic()
        if now - self._told.get(peer, -PAUSE) < PAUSE:
            return False
        self._told[peer] = now
        return True
