"""The commands of a client connection but CONNECT: PUB and HPUB, SUB, UNSUB, PING, PONG."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Iterator
from typing import TypeVar

from jetcluster.model.subjects import MAX_TOKENS
from jetcluster.protocol import subjects, writer
from jetcluster.protocol.connection_states import BEING_CHECKED, CONNECTED, OPEN, ConnectionEvent
from jetcluster.protocol.parser import CONNECT, PING, PONG, PUB, SUB, UNSUB, Command
from jetcluster.protocol.valve import Valve
from jetcluster.server.accounts.route import RESERVED_REPLIES, RESERVED_SUBJECTS, SYSTEM_QUEUE
from jetcluster.server.accounts.router import Router
from jetcluster.server.accounts.subscription import ClientSubscription, is_marked
from jetcluster.server.client.login import ClientLogin, text_of
from jetcluster.server.fairness import CHUNK_BYTES, HEAVY_READ, LINE_BYTES, MAX_QUANTUM, PORTION_SECONDS, SMALL_READ
from jetcluster.server.permissions import first_foreign

log = logging.getLogger("jetcluster.server")

_T = TypeVar("_T")

TRACE_DEST = b"Nats-Trace-Dest"

PORTION_OUTPUT = 8192
PORTION_MESSAGES = MAX_QUANTUM
"""Bytes of answers and messages after which the rest of what a client sent waits for the loop's next turn. What is
answered goes out meanwhile, so that client and server work at the same time, not by turns; and one client's 256 KiB
do not keep the others waiting (`fairness.Governor` says who comes next)."""
QUANTUM_BYTES = 512
"""For each message of a portion: so many bytes end it as well."""
WORK = {SUB: 8, UNSUB: 8, PING: 1, PONG: 1, CONNECT: 64}
"""So many messages of a portion a command is worth, beside what its line is (`governor.LINE_BYTES`)."""
TAKERS = 4
"""For each so many that a message goes to it is worth one message more."""
NODES = 16
"""So many nodes of the index that are looked at for a subject which no cache has are worth one message."""
REFUSED = 8
"""So many a publish is worth that may not be."""
FEW = 64
"""Lines; a read that has no more is worked on at once, however much others have sent, if it is not `HEAVY_READ`."""
LIGHT = 4
"""Messages; who has sent no more before it met a closed valve goes on before the others."""
NARROW = 128 * 1024
"""Bytes that the kernel takes in for a connection that sends much in a flood (`Governor.flooded`), for as long as it
lives: 1.3 MB/s over 100 ms (docs/limits.md). Linux would let it grow to 6 MB each, all of which is worked on after the
end of the flood, before anything new."""

_CONNECT_BEGINS = (b"C", b"c")


class Client(ClientLogin):
    """One connection of a client of the `STANDARD` type; `ws.port.WsClient` is the other one."""

    trace_kind = "cid"

    # ---- input

    def data_received(self, data: bytes) -> None:
        if self.close_reason:
            return
        try:
            self._process(data)
        except Exception:  # noqa: BLE001 - it is told there
            self._failed()

    def connection_lost(self, exc: Exception | None) -> None:
        self._holds.add("over")  # the transport is gone: nothing pauses or resumes it
        if self.state in BEING_CHECKED:
            self._forget_input()  # behind a CONNECT that nobody has agreed to yet
        if self._has_input and not self.close_reason:
            self._lost = (exc,)  # what it had published counts; when its turn comes, as always
            self._depart()
        else:
            super().connection_lost(exc)

    def _depart(self) -> None:
        """Nothing reaches this client any more: it takes nothing, and no time limit is for it."""
        self._blocked = True
        for name in list(self._timers):
            self._disarm(name)
        self._drop_subscriptions()
        self._silence()
        self.parts.clients.departs(self)
        self.sockets.discard(self)

    def _silence(self) -> None:
        self.out.clear()
        self.pending = 0

    def _arm(self, name: str, delay: float, callback: object, *args: object) -> None:
        if self._lost is None:
            super()._arm(name, delay, callback, *args)

    @property
    def _has_input(self) -> bool:
        """Something has been read and waits for its turn."""
        return bool(self._rest or self._parser.waiting)

    def _forget_input(self) -> None:
        self._rest.clear()
        self._parser.drop()

    def ended(self) -> None:
        self._forget_input()
        if self._queued:
            self._queued = False
            self.parts.governor.leave(self, self._valve)
        super().ended()

    def _attempt(self, work: Callable[[_T], None], what: _T) -> None:
        try:
            work(what)
        except Exception:  # noqa: BLE001 - it is told there
            self._failed()

    def _failed(self) -> None:
        """A fault of ours with one client's input must not reach the loop or another client."""
        log.exception("cid %d: internal error, closing the connection", self.cid)
        self.close("Internal Error")

    def _process(self, data: bytes) -> None:
        self.last_activity = self.server.clock.monotonic()
        if self.state is OPEN and data[:1] not in _CONNECT_BEGINS and self._is_guarded:
            # Told by its first byte: a PUB of a stranger is not read to its end.
            self.close("Authentication Failure", "Authorization Violation")
            return
        self._parser.push(data)
        if self._queued or self._rest:
            return  # reading is paused, but this may have been under way
        size, known = len(data), self._router is not None
        if known and (size < SMALL_READ or (size < HEAVY_READ and data.count(b"\n") <= FEW)):
            self._run([])
            return
        heavy = known and size >= HEAVY_READ
        if not self.parts.governor.admits(heavy=heavy):
            self._rest = self._parsed(1)
            if self._has_input:
                self._queue(None, light=not heavy)
                return
        self._run([])  # which is also told at once what is no command at all

    def _parsed(self, size: int = CHUNK_BYTES) -> list[Command]:
        """The next commands of what was read."""
        commands = self._parser.take(size)
        if self.server.tracer is not None:
            self.server.tracer.received(self.head(), commands)
        return commands

    def _run(self, commands: list[Command], quantum: int = MAX_QUANTUM) -> None:
        """Runs commands, then what has been read behind them, up to the end of this turn's portion; the others follow
        when this client's turn comes."""
        router, parser = self._router, self._parser
        end = 0.0
        in_bytes = 0
        in_msgs = 0
        mark = self.pending + PORTION_OUTPUT
        most_bytes = quantum * QUANTUM_BYTES
        self._valve = None
        left: Iterator[Command] = iter(commands or self._parsed())
        while True:
            for kind, a, b, c, d in left:
                if self.close_reason:
                    break
                if router is None and kind != CONNECT:
                    router = self._serve_unconnected()
                    if router is None:
                        if self.state in BEING_CHECKED:
                            left = itertools.chain([(kind, a, b, c, d)], left)
                        break
                if kind == PUB and router is not None:
                    in_msgs += 1
                    in_bytes += len(c) + len(d)
                    if (
                        self._careful
                        or (c and (not self.headers or TRACE_DEST in c))
                        or (b and not b.startswith(b"_INBOX."))
                    ) and not self._may_publish(a, b, c, d):
                        quantum -= REFUSED + self._spent
                        self._spent = 0
                        if self.pending > mark or in_msgs >= quantum:
                            break
                        continue
                    route = router.literals.get(a)
                    if route is None:
                        walked = router.index.walked
                        route = router.lookup(a)
                        quantum -= (router.index.walked - walked) // NODES
                    try:
                        callback = route.single
                        if callback is not None:
                            callback(a, b, c, d, self)
                        elif route.reserved:
                            self._refuse("Publish to", a)
                        else:
                            quantum -= route.takers // TAKERS
                            if not router.deliver(route, a, b, c, d, self) and b and self.no_responders:
                                self._tell_no_responders(router, a, b)
                    except Exception:  # a callback's contract is not to raise; its mistake costs one message, not all
                        log.exception("cid %d: error in a subscription to %r", self.cid, a)
                    if self.pending > mark or in_msgs >= quantum or in_bytes >= most_bytes or self._valve is not None:
                        break
                else:
                    self._command(kind, a, b, c)
                    if self.state in BEING_CHECKED:  # this CONNECT again, and what is behind it, once that is known
                        left = itertools.chain([(kind, a, b, c, d)], left)
                        break
                    router = self._router
                    quantum -= WORK[kind] + len(a) // LINE_BYTES
                    if self.pending > mark or in_msgs >= quantum:
                        break
            else:  # all of this chunk; the next one, if this portion has time
                if parser.waiting and in_msgs < quantum and not self.close_reason:
                    now = self.server.clock.monotonic()
                    end = end or now + PORTION_SECONDS
                    if now < end:
                        left = iter(self._parsed())
                        continue
            break
        self.in_msgs += in_msgs
        self.in_bytes += in_bytes
        if self.close_reason:
            return
        self._rest = list(left)
        if self.state in BEING_CHECKED:
            self.pause_reading("login")
            return
        if self._rest or parser.waiting or self._valve is not None:
            self._queue(self._valve, light=in_msgs <= LIGHT and not self._has_input)
            return
        if self._holds:
            self.resume_reading("portion")
        if parser.error is not None:
            log.debug("cid %d: %s", self.cid, parser.error)
            self.close(parser.error.reason, parser.error.text)

    def _continue(self) -> None:
        rest, self._rest = self._rest, []
        if rest and not self.close_reason:
            self._attempt(self._run, rest)

    # ---- turns

    def wait_at(self, valve: Valve) -> None:
        """See `valve.Waiter`: this message is the last of its portion."""
        self._valve = valve

    def _queue(self, valve: Valve | None, *, light: bool) -> None:
        self._queued = True
        self._valve = valve
        self.pause_reading("portion")
        self.parts.governor.wait(self, valve, light)
        if not light and not self._narrowed and self.parts.governor.flooded:
            self._narrowed = True
            self.bound_input(NARROW)

    def take_turn(self, quantum: int) -> None:
        """See `fairness.Governed`."""
        self._queued = False
        rest, self._rest = self._rest, []
        if not self.close_reason:
            self._attempt(lambda commands: self._run(commands, quantum), rest)
        if self._lost is not None:
            self._silence()
            if not self._queued:
                super().connection_lost(*self._lost)

    def _command(self, kind: int, a: bytes, b: bytes, c: bytes) -> None:
        if kind == CONNECT:
            self._connect(a)
        elif self._lost is not None:
            return  # nobody is there to be answered
        elif kind == PING:
            self.send(writer.PONG)
            if self.state is CONNECTED and self.protocol >= 1:
                self.advance(ConnectionEvent.PING)
                self.send(writer.info(self.info(first=False)))
        elif kind == PONG:
            self.pong_received()
        elif kind == SUB:
            self._subscribe(a, b or None, c)
        elif kind == UNSUB:
            self._unsubscribe(a, b)

    # ---- publish

    def _may_publish(self, subject: bytes, reply: bytes, headers: bytes, payload: bytes) -> bool:
        """The checks of a publish that is not of the plainest kind, in nats-server's order. False when it may not, or
        has gone out already."""
        if headers and not self.headers:
            self.close("Message Header Violation")
            return False
        if self._pedantic and not subjects.is_valid_literal(subject):
            self.send(writer.err("Invalid Publish Subject"))
        if not self._may_publish_to(subject):
            return False
        if headers and not self._may_schedule(headers):
            return False
        if reply and (reply.startswith(RESERVED_REPLIES) or not self.may_be_answered_at(reply)):
            self._refuse("Publish with Reply of", reply)
            return False
        if self._verbose:
            self.send(writer.OK)
        return not (headers and TRACE_DEST in headers and self._traced(subject, reply, headers, payload))

    def _may_schedule(self, headers: bytes) -> bool:
        foreign = None if self._permissions is None else first_foreign(self._permissions.of_user, headers)
        if foreign is not None:
            self._refuse(*foreign)
        return foreign is None

    def may_be_answered_at(self, reply: bytes) -> bool:
        """The server answers many requests itself: who may not publish to its own subjects ($JS, $KV, $SYS, ...) may
        not have it publish there either."""
        return reply[:1] != b"$" or self._permissions is None or self._permissions.can_publish(reply)

    def may_deliver_to(self, subject: bytes) -> bool:
        if self._permissions is None or self._router is None or not self._router.is_guarded(subject):
            return True
        return self._permissions.can_publish_all(subject)

    def _may_publish_to(self, subject: bytes) -> bool:
        """False when it may not, and has been told. The subject that a mapped one is mapped to is judged later, by
        `may_publish_mapped`."""
        if self._permissions is None or (self._router is not None and self._router.mapping_of(subject) is not None):
            return True
        return self.may_publish_mapped(subject)

    def may_publish_mapped(self, subject: bytes) -> bool:
        """False when it may not, and has been told."""
        if self._permissions is None or self._permissions.can_publish(subject):
            return True
        self._refuse("Publish to", self._permissions.judged(subject))
        return False

    def _traced(self, subject: bytes, reply: bytes, headers: bytes, payload: bytes) -> bool:
        """True when the message has gone out with a report of its way, or may not because of where that would go."""
        from jetcluster.server.client import message_trace

        target, router = message_trace.destination(headers), self._router
        if target is None or router is None or subject.startswith(RESERVED_SUBJECTS):
            return False
        if self._permissions is not None and not self._permissions.can_publish(target):
            self._refuse("Publish to", target)
            return True
        taken = message_trace.publish_traced(self, router, target, subject, reply, headers, payload)
        if not taken and reply and self.no_responders:
            self._tell_no_responders(router, subject, reply)
        return True

    def _tell_no_responders(self, router: Router, subject: bytes, reply: bytes) -> None:
        """The 503 frame, if this connection listens on its own reply subject."""
        subscription = router.subscription_of(self, reply)
        if subscription is not None:
            mapping = router.mapping_of(subject)
            shown = subject if mapping is None else mapping.last
            self.send(writer.no_responders(reply, subscription.sid, shown))
            self.out_msgs += 1

    def _refuse(self, what: str, subject: bytes, queue: bytes | None = None) -> None:
        text = f'Permissions Violation for {what} "{text_of(subject)}"'
        if queue is not None:
            text += f' using queue "{text_of(queue)}"'
        log.info("cid %d: %s", self.cid, text)
        self.send(writer.err(text))

    # ---- subscribe

    def _subscribe(self, subject: bytes, queue: bytes | None, sid: bytes) -> None:
        router = self._router
        options = self.server.options
        permissions = self._permissions
        assert router is not None
        if queue == SYSTEM_QUEUE or (permissions is not None and not permissions.can_subscribe(subject, queue)):
            self._refuse("Subscription to", subject, queue)
            return
        if subject.count(b".") >= (options.max_sub_tokens or MAX_TOKENS):
            text = f'Permissions Violation for Subscription to "{text_of(subject)}", too many tokens'
            self.send(writer.err(text))
            return
        if 0 <= self._max_subscriptions <= len(self.subscriptions):
            self.send(writer.err("maximum subscriptions exceeded"))
            return
        # A live sid is kept: the second SUB is ignored.
        if sid not in self.subscriptions:
            names = (subject,) if queue is None else (subject, queue)
            if not all(map(subjects.is_valid, names)) or (queue is not None and is_marked(queue)):
                self.send(writer.err("Invalid Subject"))
                return
            special = permissions is not None and permissions.watches_deliveries
            subscription = ClientSubscription(self, subject, queue, sid, special)
            self.subscriptions[sid] = subscription
            router.add_client(subscription)
        if self._verbose:
            self.send(writer.OK)

    def _unsubscribe(self, sid: bytes, maximum: bytes) -> None:
        subscription = self.subscriptions.get(sid)
        if subscription is not None:
            limit = int(maximum) if maximum.isdigit() and len(maximum) < 10 else 0
            if limit > subscription.delivered:
                assert self._router is not None
                self._router.limit_client(subscription, limit)
            else:
                self.expire(subscription)
        if self._verbose:
            self.send(writer.OK)

    def admits(self, subject: bytes, reply: bytes, queue: bytes | None) -> bool:
        return self._permissions is None or self._permissions.admits(subject, reply, queue)
