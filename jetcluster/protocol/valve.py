"""`Valve`: where publishers wait while what they publish into takes no more.

A taker of messages (a stream's ingest, a link to another node) closes its valve when it has enough to do and opens
it when that is done. A publisher that meets a closed valve is not refused: its message is taken, and nothing more is
read from it until its turn comes. So what a client sends too fast stays in its own connection (TCP), and neither in
this server's memory nor in front of others' messages.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Protocol


class Waiter(Protocol):
    """A publisher that can wait: a client's connection."""

    def wait_at(self, valve: Valve) -> None:
        """Told for each message that was sent while `valve` was closed; from inside a read."""
        ...


class Valve:
    __slots__ = ("changed", "closed", "due", "first", "listed", "opened", "waiting")

    def __init__(self, changed: Callable[[bool], None] | None = None) -> None:
        """`changed` is told with each change whether it is closed now."""
        self.closed = False
        self.changed = changed
        self.waiting: OrderedDict[Waiter, None] = OrderedDict()
        """In the order in which they came."""
        self.first: OrderedDict[Waiter, None] = OrderedDict()
        """Those that had sent little: they have their turn before the others."""
        self.due = 0
        """The number of those that waited when it opened last and have not had their turn. They have it even if it
        closes again at once: of two nodes that wait for a third, the slower one would never find it open."""
        self.listed = False
        """Its owner (`opened`) knows that somebody waits."""
        self.opened: Callable[[Valve], None] | None = None
        """Set by the governor, which gives those that wait their turns; called when it opens and somebody waits."""

    def __len__(self) -> int:
        return len(self.waiting) + len(self.first)

    def __bool__(self) -> bool:
        return True

    def leave(self, who: Waiter) -> None:
        """`who` waits here no more."""
        place = self.first if who in self.first else self.waiting
        del place[who]
        self.due = min(self.due, len(self))

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            if self.changed is not None:
                self.changed(True)

    def open(self) -> None:
        if self.closed:
            self.closed = False
            self.due = len(self.first) + bool(self.waiting)
            if self.opened is not None and len(self):
                self.opened(self)
            if self.changed is not None:
                self.changed(False)
