"""The message bus of one account, as the rooms above `protocol` see it.

`server.accounts.router` implements it on top of client connections and the mesh; `tests` have an in-memory twin.
Code in `stream`, `cluster` and `api` talks to clients only through this interface.

`Valve`: where publishers wait while what they publish into takes no more.

A taker of messages (a stream's ingest, a link to another node) closes its valve when it has enough to do and opens
it when that is done. A publisher that meets a closed valve is not refused: its message is taken, and nothing more is
read from it until its turn comes. So what a client sends too fast stays in its own connection (TCP), and neither in
this server's memory nor in front of others' messages.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any, Protocol


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


class Origin:
    """Where a message came from: a client connection, a peer node, or the server itself. The defaults are those of
    nodes and the server, of whom no more is known and nothing is refused; connections replace them."""

    __slots__ = ()

    kind: str
    """`client`, `peer`, or of the server itself `internal`, and `asker` for what it asks for (`Bus.ask`)."""

    account: str

    rtt: float = 0.0
    """Seconds; 0.0 while it is not known."""

    def client_info(self) -> dict[str, Any]:
        """The client, as the `client` of an advisory has it; {} when it is no client of this node."""
        return {}

    def wait_at(self, valve: Valve) -> None:
        """See `Waiter`: other nodes and the server itself do not wait."""

    def may_be_answered_at(self, reply: bytes) -> bool:
        """May the server publish an answer to this subject for it?"""
        return True

    def may_deliver_to(self, subject: bytes) -> bool:
        """May it have the server publish to this subject, or to all that it takes as a filter, in its place?"""
        return True

    def may_publish_mapped(self, subject: bytes) -> bool:
        """May it publish to this subject, which a mapping made of the one that it named? It has been told if not."""
        return True


def is_no_request(origin: Origin) -> bool:
    """True for what the server publishes without asking for anything: answers, deliveries, copies and reports, which
    somebody may have had sent to a service's subject in place of a request of his own. Only the origin tells, as
    who has something delivered chooses its subject, and often its payload and reply."""
    return origin.kind == "internal"


Callback = Callable[[bytes, bytes, bytes, bytes, Origin], None]
"""(subject, reply, headers, payload, origin). `reply` and `headers` are b"" when absent; `headers` is the whole block
from `NATS/1.0` to the empty line. Called synchronously from the read loop: never block, never raise."""


Outgoing = tuple[bytes, bytes, bytes, bytes]
"""(subject shown, reply, header block or b"", payload) of a message that is routed by another subject."""


class Subscription(Protocol):
    subject: bytes
    queue: bytes | None


class Bus(Protocol):
    account: str

    def subscribe(
        self,
        subject: bytes,
        callback: Callback,
        queue: bytes | None = None,
        *,
        local_only: bool = False,
        exclusive: bool = False,
    ) -> Subscription:
        """Adds an internal subscription. `local_only` interest is not told to other nodes: it then sees only what
        clients of this node publish. An `exclusive` one, which is `local_only` and in no queue, takes what clients of
        this node publish instead of all other takers, like a service import; what the server itself publishes, and
        what comes from peers, passes it by."""
        ...

    def unsubscribe(self, subscription: Subscription) -> None: ...

    def publish(self, subject: bytes, payload: bytes = b"", reply: bytes = b"", headers: bytes = b"") -> int:
        """Routes one message like a client's PUB; returns how many takers it found (local and remote)."""
        ...

    def ask(self, subject: bytes, payload: bytes = b"", reply: bytes = b"", headers: bytes = b"") -> int:
        """As `publish`, of a request that the server makes itself, or hands on in a client's name: of all that the
        server publishes only this is taken for a request by its own services (`is_no_request`)."""
        ...

    def publish_many(self, messages: Sequence[tuple[bytes, bytes]]) -> None:
        """Routes many (subject, payload) pairs without headers: the fast path of PubAcks."""
        ...

    def publish_frames(self, subject: bytes, frames: Sequence[tuple[bytes, bytes]]) -> int:
        """Routes many (header block or b"", payload) to one subject, in order: the parts of a batched answer.
        Returns how many takers the last of them found."""
        ...

    def backlog(self, subject: bytes) -> int:
        """Bytes waiting at the slowest connection of this node that takes `subject`, a client's or a peer's: a client
        that sends much to one reply subject waits while this is large. -1 when nobody takes it."""
        ...

    def has_listener(self, subject: bytes) -> bool:
        """True when a client of this node has subscribed to this very subject, not only with a wildcard."""
        ...

    def is_guarded(self, filter: bytes) -> bool:
        """True when `filter` takes a subject that the server does not publish to in the place of somebody who may not
        publish there himself: one of its own (`$JS`, `$KV`, `$SYS`, ...), or one that asks another account."""
        ...

    def has_interest(self, subject: bytes) -> bool:
        """True when a publish to `subject` would find a taker (events are built only if somebody listens)."""
        ...
