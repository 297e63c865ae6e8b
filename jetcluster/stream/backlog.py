"""`Backlog`: what a stream's leader has proposed and not yet applied, and how much of that is enough.

A client that publishes a message and waits for its ack waits for all that was proposed before it. So the amount is
bounded by time, not by size: the window is what was lately applied within `TARGET` seconds, learned from how long
proposals take. While it is full the valve is closed, and publishers wait (`protocol.valve`). How long a proposal takes
with hardly anything in front of it (a slow disk, a far majority) is not held against those in front.
"""

from __future__ import annotations

from typing import Final

from jetcluster.protocol.valve import Valve

PENDING_BYTES: Final = 128 << 20
PENDING_MESSAGES: Final = 100_000
"""nats-server's max_buffered_size and max_buffered_msgs: more may not wait for being applied."""

TARGET: Final = 0.1
"""Seconds that a proposal may wait for those in front of it."""
PER_MESSAGE: Final = 512
"""Bytes that a message weighs besides its own."""
FIRST: Final = 1 << 20
LEAST: Final = 512 << 10
MOST: Final = 4 << 20
"""Bytes: the window at the beginning, and its limits. What is in front of a publisher in the window is in front of
heartbeats and of `Valve` notices on the links as well."""
NEAR: Final = 0.02
"""Seconds of `_base` up to which MOST is the limit; of a far majority, or a slow disk, it is more in proportion."""
MOST_BASE: Final = 1.0


class Backlog:
    def __init__(self, max_messages: int = PENDING_MESSAGES, max_bytes: int = PENDING_BYTES) -> None:
        self.max_messages = max_messages
        self.max_bytes = max_bytes
        self.messages = 0
        self.bytes = 0
        self.window = FIRST
        self.valve = Valve()
        self._base = 0.0
        """Seconds that a proposal takes with hardly anything in front of it."""
        self.full = False
        """Nothing more may wait."""

    @property
    def weight(self) -> int:
        return self.bytes + self.messages * PER_MESSAGE

    def add(self, messages: int, size: int) -> int:
        """Returns the weight of all that waits."""
        self.messages += messages
        self.bytes += size
        self.full = self.messages >= self.max_messages or self.bytes >= self.max_bytes
        weight = self.bytes + self.messages * PER_MESSAGE
        if weight >= self.window:
            self.valve.close()
        return weight

    def remove(self, messages: int, size: int) -> None:
        self.messages -= messages
        self.bytes -= size
        self.full = self.messages >= self.max_messages or self.bytes >= self.max_bytes
        if self.valve.closed and self.weight <= self.window // 2:
            self.valve.open()

    def applied(self, messages: int, size: int, weight: int, seconds: float) -> None:
        """A proposal was applied `seconds` after it was made, when `weight` waited with it."""
        if weight >= self.window >> 1:
            queued = seconds - self._base
            if queued > TARGET:
                self.window = max(LEAST, int(weight * TARGET / queued))
            else:
                most = MOST if self._base <= NEAR else int(MOST * self._base / NEAR)
                self.window = min(most, self.window + (size >> 4))
        elif weight < LEAST:
            news = min(seconds, MOST_BASE) - self._base
            self._base += news / 2 if news < 0 else news / 64
        self.messages -= messages
        self.bytes -= size
        if self.full or self.valve.closed:
            self.remove(0, 0)
