"""`Commands`: a client's input, run in portions, in turns with other heavy senders (`fairness.Governor`)."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Iterator
from typing import Final

from jetcluster import native
from jetcluster.model.subjects import MAX_TOKENS
from jetcluster.protocol import subjects, writer
from jetcluster.protocol.connection_states import BEING_CHECKED, CONNECTED, OPEN, ConnectionEvent
from jetcluster.protocol.parser import CONNECT, PING, PONG, PUB, SUB, UNSUB, Command, Parser
from jetcluster.records import NamedTuple
from jetcluster.server.accounts.route import RESERVED_REPLIES, RESERVED_SUBJECTS, SYSTEM_QUEUE, Route
from jetcluster.server.accounts.router import Router
from jetcluster.server.accounts.subscription import ClientSubscription, is_marked
from jetcluster.server.client.clients import ServerParts
from jetcluster.server.client.connection import ClientConnection, text_of
from jetcluster.server.client.login import Login
from jetcluster.server.fairness import CHUNK_BYTES, HEAVY_READ, LINE_BYTES, MAX_QUANTUM, PORTION_SECONDS, SMALL_READ
from jetcluster.server.permissions import first_foreign

log = logging.getLogger("jetcluster.server")

TRACE_DEST = b"Nats-Trace-Dest"

PORTION_OUTPUT_BYTES: Final = 8192
"""Bytes of output after which the rest of a client's input waits for the loop's next turn, as after `MAX_QUANTUM`
messages. The answers are written meanwhile: client and server work in parallel, and a large read delays no others."""
MESSAGE_BYTES: Final = 512
"""Bytes of messages per message of quantum: a portion ends at either limit."""
TAKERS_PER_MESSAGE: Final = 4
"""Takers of a message for which it is charged one message more."""
INDEX_NODES_PER_MESSAGE: Final = 16
"""Index nodes visited for an uncached subject for which one message more is charged."""
REFUSED_MESSAGES: Final = 8
"""Messages charged for a refused publish."""
MAX_LIGHT_LINES: Final = 64
"""A read with at most so many lines, smaller than `HEAVY_READ`, is processed at once, however many others wait."""
MAX_LIGHT_MESSAGES: Final = 4
"""A client that has sent no more messages before it met a closed valve has its turn before the others."""
NARROW_BYTES: Final = 128 * 1024
"""Receive buffer in the kernel, for the rest of its life, of a connection that sends much in a flood
(`Governor.flooded`): 1.3 MB/s over 100 ms (docs/limits.md). Linux would let it grow to 6 MB, and these backlogs would
be processed after the flood before anything new."""

_CONNECT_BEGINS = (b"C", b"c")


class Portion:
    """The work of a client in one turn of the loop, in messages; expensive work is charged as several messages."""

    # No __init__, which saves a call: `Commands._work` makes a portion for each read.
    __slots__ = ("bytes", "in_bytes", "in_msgs", "messages", "output", "over")

    messages: int
    bytes: int
    output: int
    """The numbers of messages, of their bytes, and of the client's `pending` bytes that end the portion."""
    in_msgs: int
    in_bytes: int
    """The portion's messages so far, and their bytes."""
    over: bool
    """True once compiled code has found the portion's end."""

    def charge(self, messages: int) -> None:
        """Shortens the portion by work that costs as much as so many messages."""
        self.messages -= messages


class Commands:
    """The input of one client. `login` handles CONNECT."""

    __slots__ = ("_client", "_login", "_narrowed", "_parser", "_parts", "_queued", "_rest", "_session")

    def __init__(self, client: ClientConnection, parts: ServerParts, parser: Parser, login: Login) -> None:
        self._client = client
        self._session = client.session
        self._parts = parts
        self._parser = parser
        self._login = login
        self._rest: list[Command] = []
        """Parsed commands that wait for a turn."""
        self._queued = False
        """True while the client waits for a turn (`fairness.Governor`)."""
        self._narrowed = False
        """True once the receive buffer was limited (NARROW_BYTES)."""

    # ---- reads

    def receive(self, data: bytes) -> None:
        """Runs the input now or when the client's turn comes. Never raises."""
        client = self._client
        client.last_activity = client.server.clock.monotonic()
        try:
            if client.state is OPEN and self._is_early(data) and self._login.is_guarded:
                # The first byte decides: the PUB of a client that has not logged in is not read to its end.
                client.close("Authentication Failure", "Authorization Violation")
                return
            self._parser.push(data)
            if self._queued or self._rest:
                return  # reading is paused, but this read was in progress
            size = len(data)
            light = size < SMALL_READ or (size < HEAVY_READ and data.count(b"\n") <= MAX_LIGHT_LINES)
            if (light and self._session.router is not None) or self._is_admitted(size):
                self._work([])
        except Exception:  # noqa: BLE001 - logged there
            self._failed()

    def _is_early(self, data: bytes) -> bool:
        """Returns True when the client begins with another command than CONNECT, of which a read may be a part."""
        return data[:1] not in _CONNECT_BEGINS and not (self._parser.buffered or self.has_input)

    def _is_admitted(self, size: int) -> bool:
        """Returns False when this read must wait behind others."""
        heavy = self._session.router is not None and size >= HEAVY_READ
        if self._parts.governor.admits(heavy=heavy):
            return True
        self._rest = self._parsed(1)
        if not self.has_input:
            return True  # a syntax error is answered at once
        self._client.valve = None
        self._queue(light=not heavy)
        return False

    def _parsed(self, size: int) -> list[Command]:
        """Returns the commands that begin in the next `size` bytes of input."""
        commands = self._parser.take(size)
        if self._client.server.tracer is not None:
            self._client.server.tracer.received(self._client.head(), commands)
        return commands

    @property
    def has_input(self) -> bool:
        """True when input waits for a turn."""
        return bool(self._rest or self._parser.waiting)

    def forget(self) -> None:
        """Drops the input that waits."""
        self._rest.clear()
        self._parser.drop()

    def end(self) -> None:
        """Drops the input of a client that is gone, and its place in the queue."""
        self.forget()
        if self._queued:
            self._queued = False
            self._parts.governor.leave(self._client, self._client.valve)

    def _failed(self) -> None:
        """Closes the client after an unexpected exception, which must not affect the loop or other clients."""
        log.exception("cid %d: internal error, closing the connection", self._client.cid)
        self._client.close("Internal Error")

    # ---- turns

    def _queue(self, *, light: bool) -> None:
        client, governor = self._client, self._parts.governor
        self._queued = True
        client.pause_reading("portion")
        governor.wait(client, client.valve, light)
        if not light and not self._narrowed and governor.flooded:
            self._narrowed = True
            client.bound_input(NARROW_BYTES)

    def take_turn(self, quantum: int) -> bool:
        """Processes at most `quantum` messages of the waiting input. False when no input waits any more."""
        self._queued = False
        rest, self._rest = self._rest, []
        if not self._client.close_reason:
            try:
                self._work(rest, quantum)
            except Exception:  # noqa: BLE001 - logged there
                self._failed()
        return self._queued

    def go_on(self) -> None:
        """Processes the input that waited for a slow login."""
        if self._rest:
            self.take_turn(MAX_QUANTUM)

    def _work(self, commands: list[Command], quantum: int = MAX_QUANTUM) -> None:
        """Runs `commands` and the input after them up to the end of this turn's portion; the rest waits for a turn."""
        client, parser, portion = self._client, self._parser, Portion()
        portion.messages, portion.bytes = quantum, quantum * MESSAGE_BYTES
        portion.output = client.pending + PORTION_OUTPUT_BYTES
        portion.in_msgs = portion.in_bytes = 0
        portion.over = False
        client.valve = None
        end = 0.0
        while True:
            rest = self._run(iter(commands or self._next(portion)), portion)
            over = rest is not None or portion.over or portion.in_msgs >= portion.messages
            if over or not parser.waiting or client.close_reason:
                break
            now = client.server.clock.monotonic()  # the clock is not read when one chunk is all
            end = end or now + PORTION_SECONDS
            if now >= end:
                break
            commands = []
        client.in_msgs += portion.in_msgs
        client.in_bytes += portion.in_bytes
        if client.close_reason:
            return
        self._rest = rest or []
        if client.state in BEING_CHECKED:
            client.pause_reading("login")
        elif rest or parser.waiting or client.valve is not None:
            self._queue(light=portion.in_msgs <= MAX_LIGHT_MESSAGES and not self.has_input)
        else:
            if client.holds:
                client.resume_reading("portion")
            if parser.error is not None:
                log.debug("cid %d: %s", client.cid, parser.error)
                client.close(parser.error.reason, parser.error.text)

    def _next(self, portion: Portion) -> list[Command]:
        """Runs what compiled code can of the next CHUNK_BYTES of input; returns the commands to run after it."""
        client, session, parser = self._client, self._session, self._parser
        size = 1 if session.router is None else CHUNK_BYTES  # what comes behind CONNECT is parsed by its limits
        if native.publish_lines is not None and session.router is not None and session.plain:
            begin = parser.at
            if parser.waiting and client.server.tracer is None:
                native.publish_lines(self, portion, parser, size, client, session.router)
                if portion.over or not parser.waiting or parser.at - begin >= size:
                    return []
                if parser.at > begin:
                    size = 1  # one command that is not plain: those after it may be
        commands = parser.take(size)
        if client.server.tracer is not None:
            client.server.tracer.received(client.head(), commands)
        return commands

    def _run(self, commands: Iterator[Command], portion: Portion) -> list[Command] | None:
        """Runs commands. Returns the rest if the portion or the connection ends first, None if all have run."""
        client, session = self._client, self._session
        router = session.router
        in_msgs, in_bytes, most_bytes, most_output = portion.in_msgs, portion.in_bytes, portion.bytes, portion.output
        ended = True
        for kind, subject, reply, headers, payload in commands:
            if client.close_reason:
                break
            if router is None and kind != CONNECT:
                router = self._login.serve_unconnected()
                if router is None:
                    if client.state in BEING_CHECKED:
                        commands = itertools.chain([(kind, subject, reply, headers, payload)], commands)
                    break
            if kind != PUB or router is None:
                row = _ROWS[kind]
                if row.always or not client.is_lost:
                    row.run(self, subject, reply, headers)
                if client.state in BEING_CHECKED:  # this CONNECT runs again after the check, then those after it
                    commands = itertools.chain([(kind, subject, reply, headers, payload)], commands)
                    break
                router = session.router
                portion.charge(row.messages + len(subject) // LINE_BYTES)
                if client.pending > most_output or in_msgs >= portion.messages:
                    break
                continue
            in_msgs += 1
            in_bytes += len(headers) + len(payload)
            if (
                session.careful
                or (headers and (not client.headers or TRACE_DEST in headers))
                or (reply and not reply.startswith(b"_INBOX."))
            ) and not self.may_publish(subject, reply, headers, payload):
                portion.charge(REFUSED_MESSAGES + session.spent)
                session.spent = 0
                if client.pending > most_output or in_msgs >= portion.messages:
                    break
                continue
            route = router.literals.get(subject)
            if route is None:
                route = self.look_up(router, subject, portion)
            callback = route.single
            if callback is not None:
                try:
                    callback(subject, reply, headers, payload, client)
                except Exception:  # noqa: BLE001 - logged there
                    self.lost(subject)
            else:
                self.deliver(router, route, subject, reply, headers, payload, portion)
            if (
                client.pending > most_output
                or in_msgs >= portion.messages
                or in_bytes >= most_bytes
                or client.valve is not None
            ):
                break
        else:
            ended = False
        portion.in_msgs, portion.in_bytes = in_msgs, in_bytes
        return list(commands) if ended else None

    # ---- PUB

    def look_up(self, router: Router, subject: bytes, portion: Portion) -> Route:
        """Returns the route of a subject that is not cached, and charges for the search."""
        walked = router.index.walked
        route = router.lookup(subject)
        portion.messages -= (router.index.walked - walked) // INDEX_NODES_PER_MESSAGE
        return route

    def deliver(
        self,
        router: Router,
        route: Route,
        subject: bytes,
        reply: bytes,
        headers: bytes,
        payload: bytes,
        portion: Portion,
    ) -> None:
        """Delivers to the takers of a route, however many there are. Never raises."""
        client = self._client
        try:
            if route.reserved:
                client.refuse("Publish to", subject)
                return
            portion.messages -= route.takers // TAKERS_PER_MESSAGE
            taken = router.deliver(route, subject, reply, headers, payload, client)
            if not taken and reply and client.no_responders:
                self._send_no_responders(router, subject, reply)
        except Exception:  # noqa: BLE001 - logged there
            self.lost(subject)

    def lost(self, subject: bytes) -> None:
        """Logs the error of a callback, which must not raise; if one does, only this message is lost."""
        log.exception("cid %d: error in a subscription to %r", self._client.cid, subject)

    def may_publish(self, subject: bytes, reply: bytes, headers: bytes, payload: bytes) -> bool:
        """Checks a publish off the fast path, in nats-server's order. False when refused, or delivered with a trace."""
        client, session = self._client, self._session
        if headers and not client.headers:
            client.close("Message Header Violation")
            return False
        if session.pedantic and not subjects.is_valid_literal(subject):
            client.send(writer.err("Invalid Publish Subject"))
        if not self._may_publish_to(subject):
            return False
        if headers and not self._may_schedule(headers):
            return False
        if reply and (reply.startswith(RESERVED_REPLIES) or not client.may_be_answered_at(reply)):
            client.refuse("Publish with Reply of", reply)
            return False
        if session.verbose:
            client.send(writer.OK)
        return not (headers and TRACE_DEST in headers and self._traced(subject, reply, headers, payload))

    def _may_publish_to(self, subject: bytes) -> bool:
        """Returns False after an -ERR. For a mapped subject, `may_publish_mapped` checks the target later."""
        router = self._session.router
        if self._session.permissions is None or (router is not None and router.mapping_of(subject) is not None):
            return True
        return self._client.may_publish_mapped(subject)

    def _may_schedule(self, headers: bytes) -> bool:
        permissions = self._session.permissions
        foreign = None if permissions is None else first_foreign(permissions.of_user, headers)
        if foreign is not None:
            self._client.refuse(*foreign)
        return foreign is None

    def _traced(self, subject: bytes, reply: bytes, headers: bytes, payload: bytes) -> bool:
        """Delivers a message with a trace report, or refuses the report's subject. False when it is not traced."""
        from jetcluster.server.client import message_trace

        client, router, permissions = self._client, self._session.router, self._session.permissions
        target = message_trace.destination(headers)
        if target is None or router is None or subject.startswith(RESERVED_SUBJECTS):
            return False
        if permissions is not None and not permissions.can_publish(target):
            client.refuse("Publish to", target)
            return True
        taken = message_trace.publish_traced(client, router, target, subject, reply, headers, payload)
        if not taken and reply and client.no_responders:
            self._send_no_responders(router, subject, reply)
        return True

    def _send_no_responders(self, router: Router, subject: bytes, reply: bytes) -> None:
        """Sends the 503 frame if this connection subscribes to its reply subject."""
        client = self._client
        subscription = router.subscription_of(client, reply)
        if subscription is not None:
            mapping = router.mapping_of(subject)
            shown = subject if mapping is None else mapping.last
            client.send(writer.no_responders(reply, subscription.sid, shown))
            client.out_msgs += 1

    # ---- the other commands: rows of `_ROWS`

    def connect(self, text: bytes, *_: bytes) -> None:
        self._login.connect(text)

    def ping(self, *_: bytes) -> None:
        client = self._client
        client.send(writer.PONG)
        if client.state is CONNECTED and client.protocol >= 1:
            client.advance(ConnectionEvent.PING)
            client.send(writer.info(client.info(first=False)))

    def pong(self, *_: bytes) -> None:
        self._client.pong_received()

    def subscribe(self, subject: bytes, queue_or_none: bytes, sid: bytes) -> None:
        client, router, permissions = self._client, self._session.router, self._session.permissions
        queue = queue_or_none or None
        assert router is not None
        if queue == SYSTEM_QUEUE or (permissions is not None and not permissions.can_subscribe(subject, queue)):
            client.refuse("Subscription to", subject, queue)
            return
        if subject.count(b".") >= (client.server.options.max_sub_tokens or MAX_TOKENS):
            text = f'Permissions Violation for Subscription to "{text_of(subject)}", too many tokens'
            client.send(writer.err(text))
            return
        if 0 <= client.max_subscriptions <= len(client.subscriptions):
            client.send(writer.err("maximum subscriptions exceeded"))
            return
        # A live sid is kept: the second SUB is ignored.
        if sid not in client.subscriptions:
            names = (subject,) if queue is None else (subject, queue)
            if not all(map(subjects.is_valid, names)) or (queue is not None and is_marked(queue)):
                client.send(writer.err("Invalid Subject"))
                return
            special = permissions is not None and permissions.watches_deliveries
            subscription = ClientSubscription(client, subject, queue, sid, special)
            client.subscriptions[sid] = subscription
            router.add_client(subscription)
        if self._session.verbose:
            client.send(writer.OK)

    def unsubscribe(self, sid: bytes, maximum: bytes, _: bytes) -> None:
        client, router = self._client, self._session.router
        subscription = client.subscriptions.get(sid)
        if subscription is not None:
            limit = int(maximum) if maximum.isdigit() and len(maximum) < 10 else 0
            if limit > subscription.delivered:
                assert router is not None
                router.limit_client(subscription, limit)
            else:
                client.expire(subscription)
        if self._session.verbose:
            client.send(writer.OK)


class _Row(NamedTuple):
    """The effect of a command other than PUB, and its cost to a portion, beside its line (`LINE_BYTES`)."""

    run: Callable[[Commands, bytes, bytes, bytes], None]
    messages: int
    always: bool = False
    """True for a command that also runs when the connection is gone."""


_ROWS: Final = {
    CONNECT: _Row(Commands.connect, 64, always=True),
    SUB: _Row(Commands.subscribe, 8),
    UNSUB: _Row(Commands.unsubscribe, 8),
    PING: _Row(Commands.ping, 1),
    PONG: _Row(Commands.pong, 1),
}
