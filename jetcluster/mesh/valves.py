"""Valves between nodes (`protocol.valve`): the others' clients wait, too, for what takes no more here.

A taker's node tells when its valve closes and opens, and repeats "closed" every `EVERY` seconds while it is. A node
that has not heard so for `LASTS` seconds lets its clients go on: publishers must not wait for ever for a word that
never comes. A node of before repeats nothing: its valve is open again by then. Members of the cluster are heard, and
nobody else: streams are theirs.

Of a silent node nobody waits (`MeshCore.set_silent`): others may take its place by then. What it had closed is closed
again as soon as it is heard.
"""

from __future__ import annotations

import struct
from collections.abc import Collection
from typing import Final

from jetcluster.clock import Clock, TimerHandle, Timers
from jetcluster.mesh.api import NodeInfo
from jetcluster.mesh.core import MeshCore
from jetcluster.mesh.frames import FrameError, encode_notice
from jetcluster.mesh.peer_link import PeerLink
from jetcluster.protocol.interest import Switchboard

EVERY: Final = 1.0
LASTS: Final = 3.0
MOST: Final = 65_536
"""Closed valves of one node that others heed; publishers do not wait for what is beyond."""

VALVE: Final = "valve"
_HEAD = struct.Struct("!BH")  # what it is, length of the account
OPEN: Final = 0
REPEATED: Final = 2
"""Closed, as long as it is repeated. Nodes of before say 1 and do not repeat it, and read this as 1."""


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
            self._repeat = self._timers.call_later(EVERY, self._again)

    def _again(self) -> None:
        self._tell(self._told, REPEATED)
        self._repeat = self._timers.call_later(EVERY, self._again)

    def _tell(self, subjects: set[bytes], what: int) -> None:
        raw = self._account.encode()
        for subject in sorted(subjects):
            frame = encode_notice(VALVE.encode(), _HEAD.pack(what, len(raw)) + raw + subject)
            for link in self._mesh.links.values():
                link.send_urgent(frame)  # what it is to stop must not be in front of it


class FarValves:
    """The valves of all other nodes, as they have told them; one per node."""

    def __init__(self, mesh: MeshCore, switchboard: Switchboard, clock: Clock, timers: Timers) -> None:
        self._mesh = mesh
        self._switchboard = switchboard
        self._clock = clock
        self._timers = timers
        self._closed: dict[str, dict[tuple[str, bytes], float]] = {}
        """By peer, account and subject: until when, if it is not repeated."""
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
        elif len(closed) >= MOST and (account, subject) not in closed:
            return
        else:
            closed[account, subject] = self._clock.monotonic() + LASTS
            if not self._looks:
                self._looks = True
                self._timers.call_later(EVERY, self._look)
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
            self._timers.call_later(EVERY, self._look)

    def _silence(self, link: PeerLink) -> None:
        for account, subject in list(self._closed.get(link.peer_id, ())):
            self._switchboard.valve_told(link, account, subject, not link.silent)

    def _down(self, info: NodeInfo) -> None:
        self._closed.pop(info.peer_id, None)
