"""Interest between nodes: connects the router (`protocol.interest.Switchboard`) to the mesh.

A new link is told all interest of this node before anything else; afterwards every change goes out, in order, to every
link. The mesh is full, so a message is sent to a peer once and never forwarded again by it (a queue group whose last
member just left is the router's one exception, see `protocol.interest.FORWARDED`).
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Collection
from typing import Final

from jetcluster.clock import Clock, TimerHandle, Timers
from jetcluster.mesh.api import NodeInfo
from jetcluster.mesh.core import MeshCore
from jetcluster.mesh.frames import FrameError, encode_notice, encode_sub
from jetcluster.mesh.peer_link import PeerLink
from jetcluster.protocol.interest import Switchboard

REPEAT_SECONDS: Final = 1.0
HEED_SECONDS: Final = 3.0
MAX_CLOSED: Final = 65_536
"""Closed valves of one node that others heed; publishers do not wait for what is beyond."""

VALVE: Final = "valve"
_HEAD = struct.Struct("!BH")  # what it is, length of the account
OPEN: Final = 0
REPEATED: Final = 2
"""Closed, as long as it is repeated."""

_LOG = logging.getLogger("jetcluster.mesh")
_MAX_COUNT = 0xFFFFFFFF


class ToldValve:
    """The valve of one taker of this node, as the other nodes are told of it."""

    def __init__(self, mesh: MeshCore, account: str, timers: Timers) -> None:
        self._mesh = mesh
        self._account = account
        self._timers = timers
        self._told: set[bytes] = set()
        self._repeat: TimerHandle | None = None

    def closed_for(self, subjects: Collection[bytes]) -> None:
        """The valve is closed for what is published to `subjects`, and for nothing else any more."""
        closed, told = set(subjects), self._told
        if closed == told:
            return
        self._told = closed
        self._tell(told - closed, OPEN)
        self._tell(closed - told, REPEATED)
        if not closed and self._repeat is not None:
            self._repeat.cancel()
            self._repeat = None
        elif closed and self._repeat is None:
            self._repeat = self._timers.call_later(REPEAT_SECONDS, self._again)

    def _again(self) -> None:
        self._tell(self._told, REPEATED)
        self._repeat = self._timers.call_later(REPEAT_SECONDS, self._again)

    def _tell(self, subjects: set[bytes], what: int) -> None:
        raw = self._account.encode()
        for subject in sorted(subjects):
            frame = encode_notice(VALVE.encode(), _HEAD.pack(what, len(raw)) + raw + subject)
            for link in self._mesh.links.values():
                link.send_urgent(frame)  # what it is to stop must not be in front of it


class FarValves:
    """The valves of all other nodes, as they have told them: clients wait here, too, for what takes no more there
    (`protocol.bus`). One per node.

    A taker's node tells when its valve closes and opens, and repeats "closed" every `REPEAT_SECONDS` while it
    is. A node that has not heard so for `HEED_SECONDS` lets its clients go on: publishers must not wait for
    ever for a word that never comes. Members of the cluster are heard, and nobody else: streams are theirs.

    Of a silent node nobody waits (`MeshCore.set_silent`): others may take its place by then. What it had closed is
    closed again as soon as it is heard."""

    def __init__(self, mesh: MeshCore, switchboard: Switchboard, clock: Clock, timers: Timers) -> None:
        self._mesh = mesh
        self._switchboard = switchboard
        self._clock = clock
        self._timers = timers
        self._closed: dict[str, dict[tuple[str, bytes], float]] = {}
        """Peer -> (account, subject) -> until when the valve is closed if that is not repeated."""
        self._looks = False
        mesh.on_notice(VALVE, self._told)
        mesh.on_silence = self._silence
        mesh.on_peers(lambda info: None, self._down)

    def _told(self, peer: str, payload: bytes) -> None:
        link = self._mesh.links.get(peer)
        if link is None:
            return
        if len(payload) < _HEAD.size:
            raise FrameError("malformed notice of a valve")
        what, length = _HEAD.unpack_from(payload)
        end = _HEAD.size + length
        account, subject = payload[_HEAD.size : end].decode(errors="replace"), payload[end:]
        closed = self._closed.setdefault(peer, {})
        if what == OPEN:
            closed.pop((account, subject), None)
        elif len(closed) >= MAX_CLOSED and (account, subject) not in closed:
            return
        else:
            closed[account, subject] = self._clock.monotonic() + HEED_SECONDS
            if not self._looks:
                self._looks = True
                self._timers.call_later(REPEAT_SECONDS, self._look)
        self._switchboard.valve_told(link, account, subject, what != OPEN)

    def _look(self) -> None:
        """Opens what nobody has confirmed."""
        now = self._clock.monotonic()
        for peer, closed in self._closed.items():
            for account, subject in [key for key, until in closed.items() if until <= now]:
                del closed[account, subject]
                link = self._mesh.links.get(peer)
                if link is not None:
                    self._switchboard.valve_told(link, account, subject, False)
        self._looks = any(self._closed.values())
        if self._looks:
            self._timers.call_later(REPEAT_SECONDS, self._look)

    def _silence(self, link: PeerLink) -> None:
        for account, subject in list(self._closed.get(link.peer_id, ())):
            self._switchboard.valve_told(link, account, subject, not link.silent)

    def _down(self, info: NodeInfo) -> None:
        self._closed.pop(info.peer_id, None)


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

    def _greet(self, link: PeerLink) -> None:
        frames = (_encode(*interest) for interest in self._switchboard.interests())
        link.greet(frame for frame in frames if frame is not None)


def _encode(account: str, subject: bytes, queue: bytes | None, count: int) -> bytes | None:
    """None, with a log line, for names that no frame can hold: they stay local to this node."""
    if max(len(account) * 4, len(subject), len(queue or b"")) >= 0xFFFF or not subject:
        _LOG.warning("Interest in a subject or queue of more than 65,534 bytes is not told to other nodes")
        return None
    return encode_sub(account, subject, queue, min(count, _MAX_COUNT))
