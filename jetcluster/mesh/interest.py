"""Interest between nodes: connects the router (`protocol.interest.Switchboard`) to the mesh.

A new link is told all interest of this node before anything else; afterwards every change goes out, in order, to every
link. The mesh is full, so a message is sent to a peer once and never forwarded again by it (a queue group whose last
member just left is the router's one exception, see `protocol.interest.FORWARDED`).
"""

from __future__ import annotations

import logging

from jetcluster.clock import Clock, Timers
from jetcluster.mesh.core import MeshCore
from jetcluster.mesh.frames import encode_sub
from jetcluster.mesh.peer_link import PeerLink
from jetcluster.mesh.valves import FarValves
from jetcluster.protocol.interest import Switchboard

_LOG = logging.getLogger("jetcluster.mesh")
_MAX_COUNT = 0xFFFFFFFF


class MeshInterest:
    """Create it once, when both the router and the mesh exist; no other reference is needed."""

    def __init__(self, mesh: MeshCore, switchboard: Switchboard, clock: Clock, timers: Timers) -> None:
        self._mesh = mesh
        self._switchboard = switchboard
        switchboard.listener = self.interest_changed
        mesh.attach(switchboard, self._greet)
        FarValves(mesh, switchboard, clock, timers)

    def interest_changed(self, account: str, subject: bytes, queue: bytes | None, count: int) -> None:
        links = self._mesh.links
        if links:
            frame = _encode(account, subject, queue, count)
            if frame is not None:
                for link in links.values():
                    link.send(frame)

    async def sync_interest(self, timeout: float = 5.0) -> None:  # noqa: ASYNC109
        """See `MeshCore.sync_interest`."""
        await self._mesh.sync_interest(timeout)

    def _greet(self, link: PeerLink) -> None:
        frames = (_encode(*interest) for interest in self._switchboard.interests())
        link.greet(frame for frame in frames if frame is not None)


def _encode(account: str, subject: bytes, queue: bytes | None, count: int) -> bytes | None:
    """None, with a log line, for names that no frame can hold: they stay local to this node."""
    if max(len(account) * 4, len(subject), len(queue or b"")) >= 0xFFFF or not subject:
        _LOG.warning("Interest in a subject or queue of more than 65,534 bytes is not told to other nodes")
        return None
    return encode_sub(account, subject, queue, min(count, _MAX_COUNT))
