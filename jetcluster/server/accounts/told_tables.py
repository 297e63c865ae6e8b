"""`ToldTables`: for each connection of one account on this node, the streams that PubAcks told it of (`told.Told`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from jetcluster.clock import SECOND, Clock
from jetcluster.protocol.bus import TOLD_ANYTHING
from jetcluster.server.accounts.route import Route
from jetcluster.server.accounts.subscription import Sink
from jetcluster.server.accounts.told import Told, told, told_by

MAX_TAKERS: Final = 64
"""Connections with the same reply subject that are told apart."""


class ToldTables:
    """The tables of one account; those of clients are at their connections, and go with them."""

    def __init__(self, clock: Clock) -> None:
        self._uptime = clock.uptime
        """Counts from the boot: this server's wall clock may be off, and jump."""
        self._others = Told()
        """The table of all others than connections of clients: leaf nodes, other accounts, the server itself."""

    def note_run(self, owner: Sink, messages: Sequence[tuple[bytes, ...]], place: int, count: int) -> None:
        """Notes the PubAcks among `count` messages to a client's connection, from `place` on; the payload is the last
        part of each."""
        found = told_by(messages, place, count)
        if found:
            if owner.told is None:
                owner.told = Told()
            owner.told.note(found, int(self._uptime() * SECOND))

    def note(self, route: Route, payload: bytes) -> None:
        """Notes a message to all takers of a route that are on this node, if it is a PubAck."""
        ack = told(payload)
        if ack is None:
            return
        now = int(self._uptime() * SECOND)
        route = route.open or route
        owners = {client.owner for client in route.clients[:MAX_TAKERS]}
        if route.callbacks or route.leaves or route.queues or None in owners or len(route.clients) > MAX_TAKERS:
            self._others.note((ack,), now)
        for owner in owners:
            if owner is not None:
                self.note_run(owner, [(payload,)], 0, 1)

    def last(self, route: Route, stream: bytes, age: int) -> int:
        """See `Bus.told`; the route is that of the reply subject. What takers at other nodes were told is not known
        here, nor who takes a subject that nobody takes: a node that hands a request on is asked for its client."""
        groups = route.queues
        here = route.clients or route.callbacks or route.leaves or groups
        if not here or route.nodes or any(group.remote for group in groups):
            return TOLD_ANYTHING
        created = int(self._uptime() * SECOND) - age
        known = {client.owner.told for client in route.clients[:MAX_TAKERS] if client.owner is not None}
        return max([table.of(stream, created) for table in (self._others, *known) if table is not None])
