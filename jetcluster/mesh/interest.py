"""Interest between nodes: connects the router (`protocol.interest.Switchboard`) to the mesh.

A new link first gets all interest of this node; afterwards each change is sent, in order, on every link. The mesh is
full, so a message is sent to a peer once and never forwarded by it (the router's one exception is a queue group whose
last member just left, see `protocol.interest.FORWARDED`).
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
MAX_CLOSED_VALVES: Final = 65_536
"""Closed valves of one node that others respect; publishers do not wait for further ones."""

VALVE: Final = "valve"
_HEAD = struct.Struct("!BH")  # state, length of the account
OPEN: Final = 0
CLOSED: Final = 2
"""Closed, as long as it is repeated."""

_LOG = logging.getLogger("jetcluster.mesh")
_MAX_COUNT = 0xFFFFFFFF


class AnnouncedValve:
    """The valve of one local taker, as announced to the other nodes."""

    def __init__(self, mesh: MeshCore, account: str, timers: Timers) -> None:
        self._mesh = mesh
        self._account = account
        self._timers = timers
        self._told: set[bytes] = set()
        self._repeat: TimerHandle | None = None

    def closed_for(self, subjects: Collection[bytes]) -> None:
        """Closes the valve for publishes to `subjects`, and opens it for all others."""
        closed, told = set(subjects), self._told
        if closed == told:
            return
        self._told = closed
        self._tell(told - closed, OPEN)
        self._tell(closed - told, CLOSED)
        if not closed and self._repeat is not None:
            self._repeat.cancel()
            self._repeat = None
        elif closed and self._repeat is None:
            self._repeat = self._timers.call_later(REPEAT_SECONDS, self._again)

    def _again(self) -> None:
        self._tell(self._told, CLOSED)
        self._repeat = self._timers.call_later(REPEAT_SECONDS, self._again)

    def _tell(self, subjects: set[bytes], what: int) -> None:
        raw = self._account.encode()
        for subject in sorted(subjects):
            frame = encode_notice(VALVE.encode(), _HEAD.pack(what, len(raw)) + raw + subject)
            for link in self._mesh.links.values():
                link.send_urgent(frame)  # the messages that it must stop could be in front of it


class RemoteValves:
    """The valves of all other nodes, as announced by them: local publishers also wait for takers there
    (`protocol.bus`). One per node.

    A taker's node announces when its valve closes and opens, and repeats "closed" every `REPEAT_SECONDS`. Without a
    repeat for `HEED_SECONDS` a valve counts as open: publishers must not wait for ever for a lost notice. Only members
    of the cluster are heard: streams are theirs.

    Publishers do not wait for a silent node (`MeshCore.set_silent`), whose place others may take. Its valves count
    again once it is heard.
    """

    def __init__(self, mesh: MeshCore, switchboard: Switchboard, clock: Clock, timers: Timers) -> None:
        self._mesh = mesh
        self._switchboard = switchboard
        self._clock = clock
        self._timers = timers
        self._closed: dict[str, dict[tuple[str, bytes], float]] = {}
        """By peer and (account, subject), the monotonic time at which the valve opens unless closing is repeated."""
        self._looks = False
        mesh.on_notice(VALVE, self._told)
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
        elif len(closed) >= MAX_CLOSED_VALVES and (account, subject) not in closed:
            return
        else:
            closed[account, subject] = self._clock.monotonic() + HEED_SECONDS
            if not self._looks:
                self._looks = True
                self._timers.call_later(REPEAT_SECONDS, self._look)
        self._switchboard.valve_told(link, account, subject, what != OPEN)

    def _look(self) -> None:
        """Opens valves whose closing was not repeated."""
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

    def silence(self, link: PeerLink) -> None:
        for account, subject in list(self._closed.get(link.peer_id, ())):
            self._switchboard.valve_told(link, account, subject, not link.silent)

    def _down(self, info: NodeInfo) -> None:
        self._closed.pop(info.peer_id, None)


class MeshInterest:
    """The connection of router and mesh. Create it once, when both exist; no other reference is needed."""

    def __init__(self, mesh: MeshCore, switchboard: Switchboard, clock: Clock, timers: Timers) -> None:
        self._mesh = mesh
        self._switchboard = switchboard
        switchboard.listen(self.interest_changed)
        mesh.attach(switchboard, self._greet, RemoteValves(mesh, switchboard, clock, timers).silence)

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
    """Returns None, with a log line, for names that no frame can hold; such interest stays local to this node."""
    if max(len(account) * 4, len(subject), len(queue or b"")) >= 0xFFFF or not subject:
        _LOG.warning("Interest in a subject or queue of more than 65,534 bytes is not told to other nodes")
        return None
    return encode_sub(account, subject, queue, min(count, _MAX_COUNT))
