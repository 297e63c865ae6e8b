"""The message bus of one account, as the rooms above `protocol` see it.

`server.accounts.router` implements it on top of client connections and the mesh; tests have an in-memory twin. Code in
`stream`, `cluster` and `api` talks to clients only through this interface.

`Valve` makes publishers wait. A taker of messages (a stream's ingest, a link to another node) closes its valve when it
has enough work and opens it when that is done. A publisher that meets a closed valve is not refused: its message is
taken, and no more is read from its connection until its turn comes. So the excess of a fast client stays in its own TCP
connection, and neither in this server's memory nor in front of other clients' messages.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol


class Waiter(Protocol):
    """A publisher that can wait: a client's connection."""

    def wait_at(self, valve: Valve) -> None:
        """Called for each message published while `valve` was closed, from inside a read."""


class Valve:
    """The publishers that wait for one taker."""

    __slots__ = ("changed", "closed", "due", "first", "listed", "opened", "waiting")

    def __init__(self, changed: Callable[[bool], None] | None = None) -> None:
        """`changed` is called with True when the valve closes, and with False when it opens."""
        self.closed = False
        self.changed = changed
        self.waiting: OrderedDict[Waiter, None] = OrderedDict()
        """Waiting publishers in the order of their arrival."""
        self.first: OrderedDict[Waiter, None] = OrderedDict()
        """Waiting publishers that had sent little: their turns come first."""
        self.due = 0
        """Number of publishers that waited at the last opening and have not had their turn. They get it even if the
        valve closes again at once: of two nodes that wait for a third, the slower one would never find it open."""
        self.listed = False
        """The governor (`opened`) knows of the waiting publishers."""
        self.opened: Callable[[Valve], None] | None = None
        """Set by the governor, which gives the turns; called when the valve opens while publishers wait."""

    def __len__(self) -> int:
        return len(self.waiting) + len(self.first)

    def __bool__(self) -> bool:
        return True

    def leave(self, who: Waiter) -> None:
        """Remove `who` from the waiting publishers."""
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
    """The source of a message: a client connection, a peer node, or the server itself. The defaults suit nodes and the
    server, which are refused nothing; connections override them."""

    __slots__ = ()

    kind: str
    """`client`, `peer`; for the server itself `internal`, or `asker` for its own requests (`Bus.ask`)."""

    account: str

    rtt: float = 0.0
    """Seconds; 0.0 if unknown."""

    def client_info(self) -> dict[str, Any]:
        """The client as an advisory's `client` object; {} when it is no client of this node."""
        return {}

    def wait_at(self, valve: Valve) -> None:
        """See `Waiter`: other nodes and the server itself do not wait."""

    def may_be_answered_at(self, reply: bytes) -> bool:
        """True when the server may publish an answer for it to `reply`."""
        return True

    def may_deliver_to(self, subject: bytes) -> bool:
        """True when the server may publish for it to `subject`, which may be a filter."""
        return True

    def may_publish_mapped(self, subject: bytes) -> bool:
        """True when it may publish to this subject, into which a mapping changed its own. If not, it gets the error."""
        return True


def is_no_request(origin: Origin) -> bool:
    """True for a message that the server publishes and that is no request: an answer, a delivery, a copy or a report. A
    client may have had it sent to a service's subject in place of a request of its own; only the origin shows that, as
    the client chooses the subject, and often the payload and reply."""
    return origin.kind == "internal"


Callback = Callable[[bytes, bytes, bytes, bytes, Origin], None]
"""(subject, reply, headers, payload, origin). `reply` and `headers` are b"" when absent; `headers` is the whole block
from `NATS/1.0` to the empty line. Called synchronously from the read loop: never block, never raise."""


TOLD_ANYTHING: Final = (1 << 64) - 1
"""The answer of `Bus.told` where somebody may have been told of any sequence: no copy of a stream has so much."""

Outgoing = tuple[bytes, bytes, bytes, bytes]
"""(subject shown, reply, header block or b"", payload) of a message that is routed by another subject."""


BulkCallback = Callable[[list[Outgoing], Origin], int]
"""(messages, origin): as if a `Callback` was called with each. Returns how many it took, at least one; the others come
again. If it raises, only the first one is taken: what may raise or close a valve is taken alone."""


class Subscription(Protocol):
    """A subscription of the server itself."""

    subject: bytes
    queue: bytes | None


class Bus(Protocol):
    """The messages of one account, as the rooms below the router see them."""

    account: str

    def subscribe(
        self,
        subject: bytes,
        callback: Callback,
        queue: bytes | None = None,
        *,
        local_only: bool = False,
        exclusive: bool = False,
        bulk: BulkCallback | None = None,
    ) -> Subscription:
        """Add an internal subscription. `local_only`: other nodes do not learn of it, so it gets messages of this
        node's clients only. `exclusive` (with `local_only`, without a queue): it gets these messages instead of all
        other takers, like a service import, and none of the server's own and of peers. `bulk` may be called instead of
        `callback` with several messages in a row, none of which has headers."""

    def unsubscribe(self, subscription: Subscription) -> None: ...

    def publish(self, subject: bytes, payload: bytes = b"", reply: bytes = b"", headers: bytes = b"") -> int:
        """Route one message like a client's PUB; return the number of takers, local and remote."""

    def ask(self, subject: bytes, payload: bytes = b"", reply: bytes = b"", headers: bytes = b"") -> int:
        """Publish a request of the server itself, or one that it forwards for a client. Its own services take no other
        message of the server for a request (`is_no_request`)."""

    def publish_many(self, messages: Sequence[tuple[bytes, bytes]]) -> None:
        """Route many (subject, payload) pairs without headers: the fast path of PubAcks, which `told` remembers."""

    def told(self, reply: bytes, stream: bytes, age: int) -> int:
        """The highest sequence that PubAcks told those here who take `reply`, of the stream that was created so many
        nanoseconds ago, as this server's wall clock may be off; 0 for none, TOLD_ANYTHING where that was forgotten
        or where not all of those who take it are here.
        `stream`: its name, as `stream.lead.answers.PubAcks.stream`."""

    def publish_answers(self, answers: list[tuple[bytes, bytes, bytes]]) -> None:
        """Route many (subject, header block, payload): the answers to requests that came together."""

    def publish_frames(self, subject: bytes, frames: Sequence[tuple[bytes, bytes]]) -> int:
        """Route many (header block or b"", payload) pairs to one subject, in order: the parts of a batched answer.
        Return the number of takers of the last one."""

    def backlog(self, subject: bytes) -> int:
        """Bytes waiting at the slowest connection that takes `subject` here, a client's or a peer's; -1 without a
        taker. A sender of much to one reply subject waits while this is large."""

    def has_listener(self, subject: bytes) -> bool:
        """True when a client of this node has subscribed to exactly this subject."""

    def is_guarded(self, filter: bytes) -> bool:
        """True when `filter` takes a subject to which the server publishes only for clients that may publish there: one
        of its own (`$JS`, `$KV`, `$SYS`, ...), or one that leads to another account."""

    def has_interest(self, subject: bytes) -> bool:
        """True when a publish to `subject` would find a taker: events are built only then."""
