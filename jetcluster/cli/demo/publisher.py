"""`PatientPublisher`: publishes until every order is acked, whatever becomes of the servers meanwhile."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from jetcluster.cli.demo.copies import DemoError
from jetcluster.cli.demo.orders import Order
from jetcluster.client.connection import Connection
from jetcluster.client.reconnect import Reconnecting
from jetcluster.client.reply import Reply, RequestTimeoutError
from jetcluster.client.servers import ServerOptions
from jetcluster.errors import PassingError

CHUNK: Final = 250
"""Publishes without an ack at a time."""
ACK_PATIENCE: Final = 0.5
"""Seconds without an ack after which a message is sent again, with the same Nats-Msg-Id."""
GIVE_UP_SECONDS: Final = 20.0


@dataclass
class PatientPublisher:
    """A publisher with an account of its acks: `seqs` has the acked sequence of every order, 0 without an ack."""

    servers: ServerOptions
    orders: Sequence[Order]
    seqs: list[int] = field(init=False)
    resent: set[int] = field(default_factory=set)
    """Orders that were sent more than once."""
    duplicates: int = 0
    """Acks of orders that had been stored already when they were sent again."""
    resumed: float = 0.0
    """When the first ack came (`time.monotonic`) of what was sent after the disturbance."""

    def __post_init__(self) -> None:
        self.seqs = [0] * len(self.orders)
        self._connection = Reconnecting(self.servers, lambda _text: None, patient=True)
        self._disturbed = False

    def close(self) -> None:
        self._connection.close()

    def publish(self, numbers: range, disturb: Callable[[], None] | None = None) -> None:
        """Returns when the orders are acked. `disturb` is called once, when the first ack has come and the others of
        the chunk are under way. Raises DemoError when an order gets no ack for long, ServerError for a refused user."""
        for start in range(numbers.start, numbers.stop, CHUNK):
            self._chunk(list(range(start, min(start + CHUNK, numbers.stop))), disturb)
            disturb = None

    def _chunk(self, missing: list[int], disturb: Callable[[], None] | None) -> None:
        give_up = time.monotonic() + GIVE_UP_SECONDS
        batch = missing
        while missing:
            if time.monotonic() > give_up:
                raise DemoError(f"{len(missing)} orders got no ack for {GIVE_UP_SECONDS:.0f} s")
            try:
                connection = self._connection.connection(ACK_PATIENCE)
                self._exchange(connection, batch, disturb)
            except RequestTimeoutError:
                self._connection.close()  # a late ack must not be taken for one of what is sent again
            except PassingError:
                self._connection.next()
            if disturb is not None:
                disturb, self._disturbed = None, True
            before, missing = missing, [n for n in missing if not self.seqs[n]]
            if missing:  # while the stream has no leader, one order asks for all of them
                batch = missing if len(missing) < len(before) else missing[:1]
                self.resent.update(batch)
                time.sleep(0.01)

    def _exchange(self, connection: Connection, numbers: list[int], disturb: Callable[[], None] | None) -> None:
        """Sends the orders and books the answers. Raises PassingError when some do not come."""
        sent = {}
        for n in numbers:
            order = self.orders[n]
            sent[connection.publish_acked(order.subject, order.payload, {"Nats-Msg-Id": f"order-{n}"})] = n
        while sent:
            for number, reply in connection.acks(down_to=len(sent) - 1, timeout=ACK_PATIENCE):
                self._book(sent.pop(number), reply)
            if disturb is not None:
                disturb()
                disturb = None

    def _book(self, n: int, reply: Reply) -> None:
        """An order that was answered by an error stays without a sequence."""
        ack = {} if reply.status else reply.json()
        if "seq" not in ack:
            return
        self.seqs[n] = int(ack["seq"])
        self.duplicates += bool(ack.get("duplicate"))
        if self._disturbed and not self.resumed:
            self.resumed = time.monotonic()
