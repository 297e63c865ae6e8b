"""Interest between nodes: connects the router (`protocol.interest.Switchboard`) to the mesh.

A new link is told all interest of this node before anything else; afterwards every change goes out, in order, to every
link. The mesh is full, so a message is sent to a peer once and never forwarded again by it (a queue group whose last
member just left is the router's one exception, see `protocol.interest.FORWARDED`).
"""

from __future__ import annotations

import logging
import struct

from jetcluster.cluster.mesh_core import MeshCore, PeerLink
from jetcluster.cluster.mesh_frames import encode_notice, encode_sub
from jetcluster.protocol.interest import Switchboard

_LOG = logging.getLogger("jetcluster.mesh")
_MAX_COUNT = 0xFFFFFFFF

_VALVE = "valve"
_VALVE_HEAD = struct.Struct("!?H")  # closed, length of the account


def tell_valve(mesh: MeshCore, account: str, subject: bytes, closed: bool) -> None:
    """Tells all nodes whether this one's taker of (account, subject) has enough to do (`Switchboard.valve_told`)."""
    raw = account.encode()
    frame = encode_notice(_VALVE.encode(), _VALVE_HEAD.pack(closed, len(raw)) + raw + subject)
    for link in mesh.links.values():
        link.send_urgent(frame)  # what it is to stop must not be in front of it


class MeshInterest:
    """Create it once, when both the router and the mesh exist; no other reference is needed."""

    def __init__(self, mesh: MeshCore, switchboard: Switchboard) -> None:
        self._mesh = mesh
        self._switchboard = switchboard
        switchboard.listener = self.interest_changed
        mesh.attach(switchboard, self._greet)
        mesh.on_notice(_VALVE, self._valve_told)

    def _valve_told(self, peer: str, payload: bytes) -> None:
        link = self._mesh.links.get(peer)
        if link is None or len(payload) < _VALVE_HEAD.size:
            return
        closed, length = _VALVE_HEAD.unpack_from(payload)
        end = _VALVE_HEAD.size + length
        account = payload[_VALVE_HEAD.size : end].decode(errors="replace")
        self._switchboard.valve_told(link, account, payload[end:], closed)

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
        for account, subject, queue, count in self._switchboard.interests():
            frame = _encode(account, subject, queue, count)
            if frame is not None:
                link.send(frame)


def _encode(account: str, subject: bytes, queue: bytes | None, count: int) -> bytes | None:
    """None, with a log line, for names that no frame can hold: they stay local to this node."""
    if max(len(account) * 4, len(subject), len(queue or b"")) >= 0xFFFF or not subject:
        _LOG.warning("Interest in a subject or queue of more than 65,534 bytes is not told to other nodes")
        return None
    return encode_sub(account, subject, queue, min(count, _MAX_COUNT))
