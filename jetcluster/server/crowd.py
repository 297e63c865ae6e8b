"""`Crowd`: the choice of connections that are closed or refused when file descriptors run short.

Connections that nobody has logged in on go first, the oldest of them; who comes when there is none is refused. Both
happen before the reserve of the store is touched (`health.descriptors`).
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from jetcluster.clock import Clock
from jetcluster.health.descriptors import DescriptorWatch

if TYPE_CHECKING:
    from jetcluster.server.connection import Connection

log = logging.getLogger("jetcluster.server")

IDLE: Final = 1.0
"""Seconds without a word after which a connection that is not logged in may be closed for another one."""
LOG_EVERY: Final = 10.0


class Crowd:
    """The connections of one server, by descriptors."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.watch: DescriptorWatch | None = None
        """None: descriptors are not looked at."""
        self.strangers: dict[int, Connection] = {}
        """Those that have sent no CONNECT, by cid, the oldest first."""
        self.refused = 0
        self.closed = 0
        """Strangers that went for others."""
        self._told = -LOG_EVERY
        self._untold = 0

    def trouble(self) -> str:
        """A `node_health.Check`."""
        return "" if self.watch is None else self.watch.trouble()

    def is_crowded(self, client: Connection) -> bool:
        socket = client.transport.get_extra_info("socket")
        return socket is not None and self.watch is not None and self.watch.crowded(socket.fileno())

    def has_room_for(self, client: Connection) -> bool:
        return not self.is_crowded(client) or self.make_room()

    def has_room_at(self, descriptor: int) -> bool:
        """The same of a connection that is only a socket yet."""
        return self.watch is None or not self.watch.crowded(descriptor) or self.make_room()

    def make_room(self) -> bool:
        """Closes a client that has not logged in, for somebody else; False when there is none."""
        silent_since = self._clock.monotonic() - IDLE
        oldest = next(iter(self.strangers.values()), None)
        found = oldest is not None and oldest.last_activity <= silent_since
        if found and oldest is not None:
            self.closed += 1
            oldest.close("Maximum Connections Exceeded", "maximum connections exceeded", linger=False)
        else:
            self.refused += 1
        self._tell()
        return found

    def _tell(self) -> None:
        self._untold += 1
        now = self._clock.monotonic()
        if now - self._told >= LOG_EVERY:
            assert self.watch is not None
            log.error(
                "File descriptors run short (limit %d, %d of them for the store): %d connections were refused, or "
                "closed because they had not logged in",
                self.watch.limit, self.watch.reserve, self._untold,
            )  # fmt: skip
            self._told, self._untold = now, 0
