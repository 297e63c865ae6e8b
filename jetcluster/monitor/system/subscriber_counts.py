"""Counts of the subscribers to a subject of an account, in the whole cluster: `$SYS.DEBUG.SUBSCRIBERS`.

The node that is asked counts its own and asks the others on `$SYS.REQ.ACCOUNT.NSUBS` {acc, subject, queue in base64}.
The account is the requester's: an account that imports the request gets its own counts alone (precedent:
debugSubscribers in nats-server's events.go).
"""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING, Any

from jetcluster.clock import TimerHandle
from jetcluster.node.node import Node
from jetcluster.protocol import headers as header_block
from jetcluster.protocol import subjects
from jetcluster.protocol.bus import Bus, Origin, Subscription, is_no_request

if TYPE_CHECKING:
    from jetcluster.server.accounts.router import Router

ASKED = b"$SYS.DEBUG.SUBSCRIBERS"
OF_NODE = b"$SYS.REQ.ACCOUNT.NSUBS"
ANSWER_SECONDS = 0.5
"""Seconds in which other nodes must answer."""
MAX_OPEN_COUNTS = 64
"""Questions under way; more are not answered."""


class SubscriberCounts:
    """The number of subscribers of a subject on all nodes, and their answers to each other."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._subscriptions: list[Subscription] = []
        self._open: set[_Count] = set()

    @property
    def _bus(self) -> Router:
        return self._node.server.account(self._node.options.system_account_name)

    def start(self) -> None:
        bus = self._bus
        self._subscriptions = [
            bus.subscribe(ASKED, self._asked, local_only=True),
            bus.subscribe(OF_NODE, self._asked_of_node),
        ]

    def stop(self) -> None:
        for subscription in self._subscriptions:
            self._bus.unsubscribe(subscription)
        for count in list(self._open):
            count.end()

    def count(self, account: str, subject: bytes, queue: bytes | None) -> int:
        return self._node.server.accounts.subscribers(account, subject, queue)

    def _asked(self, subject: bytes, reply: bytes, headers: bytes, payload: bytes, origin: Origin) -> None:
        if not reply or is_no_request(origin) or len(self._open) >= MAX_OPEN_COUNTS:
            return
        wanted, _, queue = payload.strip().partition(b" ")
        account = _asking(headers, origin)
        if not subjects.is_valid(wanted) or account is None:
            self._bus.publish(reply, b"0")
            return
        found = self.count(account, wanted, queue.strip() or None)
        others = self._bus.others_with_interest(OF_NODE)
        if not others:
            self._bus.publish(reply, b"%d" % found)
            return
        body: dict[str, Any] = {"acc": account, "subject": wanted.decode("utf-8", "replace")}
        if queue.strip():
            body["queue"] = base64.b64encode(queue.strip()).decode()
        self._open.add(_Count(self._open, self._bus, self._node, reply, found, others, json.dumps(body).encode()))

    def _asked_of_node(self, subject: bytes, reply: bytes, headers: bytes, payload: bytes, origin: Origin) -> None:
        """Answers another node, or an operator that asks all nodes."""
        if not reply or is_no_request(origin):
            return
        try:
            body = json.loads(payload)
            account, wanted = str(body["acc"]), str(body["subject"]).encode()
            queue = base64.b64decode(str(body.get("queue") or ""))
        except (ValueError, TypeError, KeyError, AttributeError):
            return
        if subjects.is_valid(wanted):
            self._bus.publish(reply, b"%d" % self.count(account, wanted, queue or None))


def _asking(headers: bytes, origin: Origin) -> str | None:
    """Returns the requester's account as the import names it, else the connection's; None when it cannot be read."""
    info = header_block.get(headers, b"Nats-Request-Info")
    if info is None:
        return origin.account
    try:
        found = json.loads(info)
        return str(found.get("svc") or found["acc"])
    except (ValueError, TypeError, KeyError, AttributeError):
        return None


class _Count:
    """A question to the other nodes."""

    def __init__(
        self, open_ones: set[_Count], bus: Bus, node: Node, reply: bytes, found: int, others: int, body: bytes
    ) -> None:
        self._open = open_ones
        self._bus = bus
        self._reply = reply
        self._found = found
        self._left = others
        inbox = b"_INBOX.%b" % node.server.rng.token(11).hex().encode()
        self._subscription = bus.subscribe(inbox, self._answered)
        self._timer: TimerHandle = node.server.timers.call_later(ANSWER_SECONDS, self._tell)
        bus.publish(OF_NODE, body, inbox)  # for the others: here it is no request

    def _answered(self, subject: bytes, reply: bytes, headers: bytes, payload: bytes, origin: Origin) -> None:
        if payload.isdigit() and len(payload) < 12:
            self._found += int(payload)
        self._left -= 1
        if not self._left:
            self._tell()

    def _tell(self) -> None:
        self.end()
        self._bus.publish(self._reply, b"%d" % self._found)

    def end(self) -> None:
        self._timer.cancel()
        self._bus.unsubscribe(self._subscription)
        self._open.discard(self)
