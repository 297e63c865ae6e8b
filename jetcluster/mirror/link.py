"""`UpstreamLink`: a mirror's or source's link to its upstream, on the leader of the stream that it feeds.

It requests the upstream's STREAM.INFO, creates a push consumer there that begins after the stored messages, and puts
deliveries into the log (`inflow`). An upstream that removes messages once consumers have acknowledged them (retention
workqueue or interest) gets a durable consumer, and acknowledgements of what is committed here. Anything unexpected - a
missing delivery, a heartbeat that counts more, silence, a refusal - ends the attempt; the next one begins after the
stored messages. So only the order within one attempt must be right.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, Final

from jetcluster import errors
from jetcluster.clock import TimerHandle
from jetcluster.errors import ApiError
from jetcluster.mirror.inflow import Inflow
from jetcluster.mirror.ports import LinkDependencies, LinkLog, Pace
from jetcluster.mirror.upstream import MAX_ACK_PENDING, SourcedFrom, Start, Upstream, count_in, newest_of, start_of
from jetcluster.model.limits import FARTHEST_SEQ
from jetcluster.protocol import headers as header_block
from jetcluster.protocol.bus import Origin, Subscription
from jetcluster.store.api import DamagedError
from jetcluster.stream.log.bodies import LATEST_TIME
from jetcluster.stream.rules import LIMITS, StreamRules, short_hash

RESPONSE_SECONDS: Final = 5.0
FLOW_PREFIXES: Final = (b"$JS.FC.", b"$JS.ACK.")
"""Subjects at which servers take answers to flow control, and acknowledgements."""
NOBODYS_INBOX: Final = b"_INBOX.nobody"
SILENCE_SECONDS: Final = 5.0
"""Time without a message or a heartbeat (one per second) after which the consumer counts as gone."""
QUIET_SECONDS: Final = 2.5
"""Longest silence between two heartbeats, with one lost or late."""
LATE_SECONDS: Final = 2.0
"""Age at which a message comes that is no delay yet: it is of two servers' clocks."""
FIRST_RETRY_SECONDS: Final = 0.25
MAX_RETRY_SECONDS: Final = 10.0
NOBODY_RETRY_SECONDS: Final = 1.0
"""Longest delay when the upstream's API has no subscriber (a leaf link is down): such an attempt is cheap."""
FULL_RETRY_SECONDS: Final = 1.0
"""Longest delay when the fed stream is full; a removal from it causes an attempt at once."""
ROOM_SECONDS: Final = 0.1
"""Least distance of such attempts, as messages may go one by one."""
SETTLED_SECONDS: Final = 5.0
"""Life of a link after which it begins anew without a pause."""
CURRENT_MESSAGES: Final = 10
"""Messages left in the upstream below which the mirror is current."""
MAX_EARLY_MESSAGES: Final = 65_536
"""Messages kept that arrive before the answer about their consumer."""

_CONTROL: Final = b"NATS/1.0 100"
_TOKENS: Final = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
Message = tuple[bytes, bytes, bytes, bytes]


class UpstreamLink:
    """One link. It proposes messages in the order of the upstream's sequences, and begins again after the last stored
    one; so each message is stored once, even if it is delivered twice."""

    def __init__(self, around: LinkDependencies, upstream: Upstream, log: LinkLog) -> None:
        self.upstream = upstream
        self.error: ApiError | None = None
        """Error of the last attempt; None once one succeeded."""
        self.lag = 0
        self.seq = 0
        """The upstream's sequence of the last message."""
        self.last_ts = 0
        """Time of the last message, Unix nanoseconds; 0 when nothing follows it."""
        from jetcluster.mirror.origin import OriginQuestions  # late: few servers have links
        from jetcluster.mirror.stall import Stall

        self.origin = OriginQuestions(around, upstream)
        self._stall = Stall(lambda error: self._log.failed(self.upstream.name, str(error)))
        self._around = around
        self._log = log
        self._heard = 0.0
        """Time of the last sign of the consumer; 0: never."""
        self._made = around.clock.monotonic()
        self._fails = 0
        self._life = 0
        """Number of the attempt: callbacks of earlier ones are ignored."""
        self._began = 0.0
        self._timer: TimerHandle | None = None
        self._subscriptions: list[Subscription] = []
        self._consumer = ""
        self._durable = False
        """The consumer stays when an attempt ends: the upstream must keep unacknowledged messages."""
        self._start = Start(0)
        self._identity = b""
        self._inflow: Inflow | None = None
        """None unless live."""
        self._early: list[Message] = []
        self._dseq = self._highest = 0
        """Delivery and upstream sequence of this attempt's last message."""
        self._waiting = False
        """Waits for the next attempt."""
        self._queued = False
        """Waits for its turn among the links of the node."""
        self._nobody = False
        """The last request had no subscriber."""
        self._refused = False
        """`error` is from the fed stream, which refused a message; a new consumer does not clear it."""
        self._full: tuple[int, StreamRules] | None = None
        """Removals and rules of the fed stream when it was too full for a message."""

    # -- life -----------------------------------------------------------------------------------------------------

    @property
    def live(self) -> bool:
        return self._inflow is not None

    def begin(self, delay: float = 0.0) -> None:
        """Begins the first attempt after `delay` seconds."""
        if delay:
            self._timer = self._around.timers.call_later(delay, self._attempt, self._life)
        else:
            self._attempt(self._life)

    def end(self, *, forever: bool = False) -> None:
        """Ends the link. `forever`: the stream has this link no more."""
        self.stop(forever=forever)
        self._close()

    def stop(self, *, forever: bool = False) -> None:
        """Stops all work; `end` must follow, which unsubscribes."""
        if forever:
            self._durable = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._life += 1
        self._waiting = False
        self.origin.end()
        if self._inflow is not None:
            self._inflow.close()
            self._inflow = None

    def tick(self) -> None:
        """Looks for silence and for reasons to retry; call it a few times per second."""
        now = self._around.clock.monotonic()
        if self._inflow is not None and now - max(self._heard, self._began) > SILENCE_SECONDS:
            self._again("nothing heard of the upstream")
        elif self._inflow is not None and not self._durable and self.origin.keeps_unacked():
            self._again("the upstream keeps what is not acknowledged")
        elif self._waiting and (self._has_room or self._has_come):
            self._queue(self._around.paces.retries)

    def applied(self, index: int, result: object) -> None:
        """Takes the outcome of the command at `index`, whether it is this link's or not."""
        inflow = self._inflow
        if inflow is not None:
            inflow.applied(index, result)
            if self._refused and inflow.done and self._inflow is inflow:
                self._refused, self.error = False, None
        elif self._full is not None and self._waiting and not self._queued and self._has_room:
            self._queue(self._around.paces.retries)

    def newest(self) -> int:
        """Log index of the last message received if it is not applied; 0 for none, or when the upstream has many more:
        then no reader can expect the upstream's newest message here."""
        inflow = self._inflow
        return inflow.newest() if inflow is not None and self.lag < CURRENT_MESSAGES else 0

    def behind(self, stored: Callable[[str], int]) -> bool:
        """See `Links.behind`. A link with filters cannot know."""
        upstream, config = self.upstream, self.upstream.config
        if self._inflow is None or upstream.external or config.get("filter_subject") or upstream.transforms:
            return False
        return 0 < stored(upstream.name) - max(self.seq, self._around.target.store.last_seq) < CURRENT_MESSAGES

    def info(self) -> dict[str, Any]:
        """The link's part of STREAM.INFO."""
        upstream, config = self.upstream, self.upstream.config
        found: dict[str, Any] = {"name": upstream.name}
        if upstream.external:
            found["external"] = dict(config["external"])
        found["lag"] = self.lag
        if self.seq and not upstream.mirror:
            found["seq"] = self.seq
        found["active"] = int((self._around.clock.monotonic() - self._heard) * 1e9) if self._heard else -1
        if self.error is not None:
            found["error"] = self.error.to_dict()
        if config.get("filter_subject"):
            found["filter_subject"] = config["filter_subject"]
        if config.get("subject_transforms"):
            found["subject_transforms"] = config["subject_transforms"]
        return found

    @property
    def lag_seconds(self) -> float:
        """Age of the newest message here while the upstream has more; of the last word from a silent upstream, which
        may have had more since; the age at which the newest message came (what is under way on a narrow link counts
        as delivered there), until a heartbeat says that nothing follows it. Else 0."""
        silent = self.silent_seconds
        known = silent if silent > QUIET_SECONDS else 0.0
        if not self.last_ts:
            return known
        age = (self._around.clock.time_ns() - self.last_ts) / 1e9
        late = age - silent
        return max(known, age if self.lag else late if late > LATE_SECONDS else 0.0)

    @property
    def silent_seconds(self) -> float:
        """Age of the last word from the upstream, a heartbeat too; without any, of this link."""
        return self._around.clock.monotonic() - (self._heard or self._made)

    @property
    def _has_room(self) -> bool:
        """True when the fed stream, which was full, has had removals or new rules (at most every ROOM_SECONDS)."""
        if self._full is None or self._around.clock.monotonic() - self._began < ROOM_SECONDS:
            return False
        removals, rules = self._full
        return self._around.target.store.removals != removals or self._around.target.rules is not rules

    @property
    def _has_come(self) -> bool:
        """True when the upstream did not exist at the last attempt, and does now."""
        missing = self.error is not None and self.error.is_stream_not_found and not self.upstream.external
        return missing and self._around.target.knows(self.upstream.name)

    def _close(self) -> None:
        around = self._around
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for subscription in self._subscriptions:
            around.bus.unsubscribe(subscription)
        self._subscriptions.clear()
        if self._consumer and not self._durable and self.upstream.consumer is None:
            # With an unused reply: a node without JetStream passes no request on without one.
            around.bus.ask(self.upstream.delete_subject(self._consumer), b"", NOBODYS_INBOX)
            self._consumer = ""
        if self._inflow is not None:
            self._inflow.close()
            self._inflow = None
        self._early.clear()
        self._waiting = False

    def _again(self, why: str) -> None:
        """Ends the attempt for a reason that is no error."""
        self._log.again(self.upstream.name, why)
        self._retry()

    def _fail(self, error: ApiError) -> None:
        if self.error != error:
            self._log.failed(self.upstream.name, str(error))
        self.error = error
        self._retry()

    def _refuse(self, error: ApiError) -> None:
        """Ends the attempt because the fed stream refused a message."""
        if error.err_code == errors.BAD_REQUEST:
            self._again("the log lost what came before")
            return
        self._refused = True
        if error.err_code == errors.STORE_FAILED:
            target = self._around.target
            self._full = target.store.removals, target.rules
        self._fail(error)

    def _retry(self) -> None:
        """Schedules the next attempt, with exponential backoff."""
        around = self._around
        lived = self._inflow is not None and around.clock.monotonic() - self._began >= SETTLED_SECONDS
        self._close()
        self._life += 1
        self._fails = 0 if lived else self._fails + 1
        longest = (
            NOBODY_RETRY_SECONDS
            if self._nobody
            else FULL_RETRY_SECONDS
            if self._full is not None
            else MAX_RETRY_SECONDS
        )
        delay = min(FIRST_RETRY_SECONDS * 2 ** min(self._fails, 10), longest) * around.rng.uniform(0.8, 1.2)
        self._waiting = True
        pace = around.paces.returns if lived else around.paces.retries
        self._timer = around.timers.call_later(0.0 if lived else delay, self._queue, pace)

    def _queue(self, pace: Pace) -> None:
        """Makes another attempt as soon as the node has a turn for one."""
        if not self._queued:
            self._queued = True
            pace.turn(self._around.timers, self._around.target, self._turn)

    def _turn(self) -> None:
        self._queued = False
        if self._waiting:
            self._attempt(self._life)

    # -- setting up -----------------------------------------------------------------------------------------------

    def _attempt(self, life: int) -> None:
        if life != self._life:
            return
        self._close()
        self._life += 1
        self._full = None
        self._began = self._around.clock.monotonic()
        self._ask(self.upstream.info_subject(), b"", self._informed, self._uninformed)

    def _ask(
        self, subject: bytes, body: bytes, answered: Callable[[dict[str, Any]], None], silent: Callable[[], None],
        refused: ApiError | Callable[[ApiError], None] | None = None,
    ) -> None:  # fmt: skip
        """Sends a request once, for this attempt only. An error in the answer fails it, with `refused` if set, which
        may be a call in place of that."""
        around, life = self._around, self._life
        inbox = b"_INBOX.JSL." + self._token()

        def unheard() -> None:
            if life != self._life:
                return
            around.bus.unsubscribe(subscription)
            try:
                silent()
            except DamagedError as damage:
                around.target.report_damage(damage)
                self._fail(self.upstream.setup_error("what is stored here cannot be read"))
            except ValueError as wrong:  # the configuration has a subject that cannot be subscribed to
                self._fail(self.upstream.setup_error(str(wrong)))

        def receive(subject: bytes, reply: bytes, block: bytes, payload: bytes, origin: Origin) -> None:
            around.bus.unsubscribe(subscription)
            if life != self._life:
                return
            if self._timer is not None:
                self._timer.cancel()
            if not payload and block.startswith(b"NATS/1.0 503"):
                unheard()
                return
            try:
                answer = json.loads(payload)
                failed = answer.get("error")
                error = ApiError(failed["code"], failed["err_code"], failed["description"]) if failed else None
                if error is None:
                    answered(answer)
                elif callable(refused):
                    refused(error)
                    error = None
                else:
                    error = refused or error
            except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as wrong:
                error = self.upstream.setup_error(f"not an answer: {type(wrong).__name__}")
            except DamagedError as damage:
                around.target.report_damage(damage)
                error = self.upstream.setup_error("what is stored here cannot be read")
            if error is not None:
                self._fail(error)

        subscription = around.bus.subscribe(inbox, receive)
        self._subscriptions.append(subscription)
        if self._timer is not None:
            self._timer.cancel()
        self._timer = around.timers.call_later(RESPONSE_SECONDS, unheard)
        self._nobody = not around.bus.ask(subject, body, inbox)
        if self._nobody:
            around.timers.call_soon(unheard)

    def _token(self) -> bytes:
        return bytes(_TOKENS[byte % 62] for byte in self._around.rng.token(8))

    def _uninformed(self) -> None:
        cursor = self._around.target.cursor(self.upstream.key)
        if self.upstream.external and (cursor is None or not cursor.identity):
            self._create(b"")  # its imports may permit only the creation of consumers
        else:  # one that has answered before may be a queue, which loses what it delivers to who needs no acks
            self._fail(self.upstream.setup_error(f"stream {self.upstream.name} does not answer"))

    def _informed(self, info: dict[str, Any]) -> None:
        identity = short_hash(str(info["created"]).encode())
        last_seq = count_in(info["state"]["last_seq"])
        self.origin.answers = True
        self._durable = info["config"].get("retention", LIMITS) != LIMITS
        target, upstream = self._around.target, self.upstream
        cursor = target.cursor(upstream.key)
        seen = target.store.last_seq if upstream.mirror else cursor.seq if cursor is not None else 0
        renewed = cursor is not None and cursor.identity not in (b"", identity)
        if renewed and upstream.mirror and seen:
            self._verify(identity, seen)
        elif last_seq < seen and not renewed:
            text = f"stream {upstream.name} went back to sequence {last_seq}, {seen} was read"
            self._fail(upstream.setup_error(text))
        elif cursor is None and not upstream.mirror and (origin := self._earlier(identity)) is not None:
            self._recognize(identity, origin)
        else:
            self._create(identity)

    def _earlier(self, identity: bytes) -> SourcedFrom | None:
        """The newest message of a source that came from an upstream created at another time, None for none. Raises
        DamagedError."""
        store = self._around.target.store
        found = newest_of(self.upstream, store) if store.messages else None
        return found if found is not None and found.identity not in (b"", identity) else None

    def _recognize(self, identity: bytes, origin: SourcedFrom) -> None:
        """Begins where this stream stands if the upstream has the message that came last from an earlier one: it is the
        same stream then, and both were restored. Otherwise begins at its first message."""

        def compare(answer: dict[str, Any]) -> None:
            same = self.upstream.is_origin(answer["message"], origin)
            self._create(identity, origin.identity if same else b"")

        def create(error: ApiError | None = None) -> None:
            self._create(identity)

        body = b'{"seq":%d}' % origin.seq
        self._ask(self.upstream.get_subject(), body, compare, create, refused=create)

    def _verify(self, identity: bytes, seen: int) -> None:
        """Checks an upstream that was created anew. A mirror shares its sequences, so it goes on only if that is the
        same stream, restored: if it has the message stored last here."""
        own = self._around.target.store.reader.read([seen])
        error = self.upstream.setup_error(f"stream {self.upstream.name} was deleted and created again")

        def compare(answer: dict[str, Any]) -> None:
            if own and self.upstream.is_same(answer["message"], own[0]):
                self._create(identity)
            else:
                self._fail(error)

        body = b'{"seq":%d}' % seen
        self._ask(self.upstream.get_subject(), body, compare, lambda: self._fail(error), refused=error)

    def _create(self, identity: bytes, same: bytes = b"") -> None:
        """Creates the consumer; `same` as for `start_of`."""
        upstream, around = self.upstream, self._around
        self._identity = identity
        self._start = start_of(upstream, around.target, identity, same)
        if upstream.consumer is not None:
            self._bind_given(upstream.consumer)
            return
        if self._durable:
            self._bind()
            return
        name = b"JS_%b_%b-%b" % (b"MIRROR" if upstream.mirror else b"SRC", short_hash(self._own), self._token())
        self._consumer = name.decode()
        deliver = upstream.deliver.encode() + self._token()
        self._dseq = self._highest = 0
        self._subscriptions.append(around.bus.subscribe(deliver, self._receiver()))
        body = upstream.create_request(self._consumer, deliver, self._start, around.bus.account)
        self._ask(upstream.create_subject(self._consumer), body, self._created, self._uncreated)

    def _bind(self, max_ack_pending: int = MAX_ACK_PENDING) -> None:
        """Creates or finds the durable consumer, with a new deliver subject without a subscriber, and resets it to what
        was acknowledged: then deliveries come in order, and only unacknowledged ones come again. Where the upstream's
        limits permit fewer of these, with its default (0)."""
        upstream, around = self.upstream, self._around
        kind = "MIRROR" if upstream.mirror else "SRC"
        self._consumer = f"JS_{kind}_{short_hash(around.target.origin + b' ' + upstream.key).decode()}"
        deliver = upstream.deliver.encode() + self._token()
        self._dseq = self._highest = 0

        def bound(answer: dict[str, Any]) -> None:
            if answer["delivered"]["consumer_seq"]:
                self._ask(upstream.reset_subject(self._consumer), b"", begun, self._uncreated)
            else:
                begun(answer)

        def begun(answer: dict[str, Any]) -> None:
            self._subscriptions.append(around.bus.subscribe(deliver, self._receiver()))
            self._created(answer)

        def refused(error: ApiError) -> None:
            if max_ack_pending and error.err_code == errors.MAX_ACK_PENDING_EXCESS:
                self._bind(0)
            else:
                self._fail(error)

        body = upstream.durable_request(self._consumer, deliver, around.bus.account, max_ack_pending)
        self._ask(upstream.create_subject(self._consumer, durable=True), body, bound, self._uncreated, refused)

    def _bind_given(self, consumer: Mapping[str, str]) -> None:
        """Resets the user's own consumer (ADR-60) to what was acknowledged, and subscribes to its deliver subject."""
        upstream, around = self.upstream, self._around
        self._durable = True
        self._consumer = consumer["name"]
        self._dseq = self._highest = 0

        def begun(answer: dict[str, Any]) -> None:
            if answer["config"]["ack_policy"] != "flow_control":
                self._fail(errors.by_code(10214 if upstream.mirror else 10217))
                return
            deliver = consumer["deliver_subject"].encode()
            self._subscriptions.append(around.bus.subscribe(deliver, self._receiver()))
            self._created(answer)

        self._ask(upstream.reset_subject(self._consumer), b"", begun, self._uncreated)

    @property
    def _own(self) -> bytes:
        return b"%b %b" % (self.upstream.stream.encode(), self.upstream.key)

    def _uncreated(self) -> None:
        self._fail(self.upstream.setup_error(f"no answer about a consumer of stream {self.upstream.name}"))

    def _created(self, answer: dict[str, Any]) -> None:
        delivered, pending = answer["delivered"], count_in(answer["num_pending"])
        # After a delivery this is not the consumer's start any more, and the delivery may be under way.
        began = count_in(delivered["stream_seq"]) if not delivered["consumer_seq"] else 0
        self._consumer = str(answer["name"])
        around, start = self._around, self._start
        self._inflow = Inflow(around, self.upstream, self._identity, start.after, self._refuse)
        if not self._inflow.begin(began if began > start.after else 0, pending):
            self._again("the log takes nothing now")
            return
        if not self._refused:
            self.error = None
        self._heard = around.clock.monotonic()
        self.lag = pending
        early, self._early = self._early, []
        for message in early:
            self._take(*message)

    # -- live -----------------------------------------------------------------------------------------------------

    def _receiver(self) -> Callable[[bytes, bytes, bytes, bytes, Origin], None]:
        life = self._life

        def receive(subject: bytes, reply: bytes, headers: bytes, payload: bytes, origin: Origin) -> None:
            if life != self._life:
                return
            if self._inflow is None:
                if len(self._early) < MAX_EARLY_MESSAGES:
                    self._early.append((subject, reply, headers, payload))
                return
            self._take(subject, reply, headers, payload)

        return receive

    def _take(self, subject: bytes, reply: bytes, headers: bytes, payload: bytes) -> None:
        inflow = self._inflow
        if inflow is None:
            return
        self._heard = self._around.clock.monotonic()
        if headers.startswith(_CONTROL) and not payload:
            self._control(inflow, reply, headers)
            return
        tokens = reply.split(b".")
        count = len(tokens)
        at = 4 if count == 9 else 6
        try:
            deliveries, seq, dseq, ts, pending = map(int, tokens[at : at + 5])
        except ValueError:
            self._again("not a delivery")
            return
        if deliveries > 1:
            return
        if dseq != self._dseq + 1:
            self._again(f"delivery {dseq} follows {self._dseq}")
            return
        if not (self._highest < seq <= FARTHEST_SEQ and abs(ts) <= LATEST_TIME and 0 <= pending <= FARTHEST_SEQ):
            # No replica could apply it.
            self._fail(self.upstream.setup_error(f"message {seq} at {ts} ns, {pending} behind it, is out of bounds"))
            return
        self._highest = seq
        self._dseq = dseq
        self.seq, self.last_ts = seq, ts
        self.lag = pending - 1 if pending else 0
        if self._durable and seq <= self._start.after:
            return  # committed by an earlier attempt, but not acknowledged
        inflow.take(seq, ts, subject, headers, payload, pending)

    def _control(self, inflow: Inflow, reply: bytes, headers: bytes) -> None:
        if reply:
            self._question(inflow, reply)
            return
        last = header_block.get(headers, b"Nats-Last-Consumer")
        if last is not None and last != b"%d" % self._dseq:
            self._again(f"heartbeat says {last.decode(errors='replace')}, {self._dseq} came")
            return
        self._fails = 0
        stalled = header_block.get(headers, b"Nats-Consumer-Stalled")
        self.error = self._stall.after(stalled or b"", self.error)
        if stalled:
            self._question(inflow, stalled)
            return
        cursor = self._around.target.cursor(self.upstream.key)
        if inflow.settled:
            self.lag = self.last_ts = 0
            self._refused, self.error = False, None
            if cursor is not None and cursor.lag >= CURRENT_MESSAGES:
                inflow.tell(0)  # an idle heartbeat: nothing is left

    def _question(self, inflow: Inflow, reply: bytes) -> None:
        """Answers flow control in its turn. The upstream chooses the subject and this account publishes to it, so only
        subjects at which servers take such answers are accepted."""
        if not reply.startswith(FLOW_PREFIXES):
            self._fail(self.upstream.setup_error("flow control is to be answered at a subject of another kind"))
            return
        inflow.question(reply, self._handled())

    def _handled(self) -> bytes:
        """Headers of an answer to flow control, which acknowledge the messages so far."""
        if not self._durable or not self._dseq:
            return b""
        return b"NATS/1.0\r\nNats-Last-Consumer: %d\r\nNats-Last-Stream: %d\r\n\r\n" % (self._dseq, self.seq)
