"""`$JS.API.>`: from a message on the bus to exactly one reply.

The node that a client is connected to takes the request (its subscriptions are local), checks it and asks the nodes
that must decide. Requests are control plane: a task each, in a bounded queue. Direct Get and CONSUMER.MSG.NEXT are not
served here: the nodes that can answer them subscribe to them, so that the client still sees "no responders" as 503.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Collection
from typing import TYPE_CHECKING, Any

from jetcluster import errors
from jetcluster.api import models
from jetcluster.api import request as api_request
from jetcluster.api.leader_gets import LeaderGets
from jetcluster.api.object_claims import NO_RESPONDERS, ObjectClaims
from jetcluster.api.request import ApiContext, Request, RequestCounters, check_api_level, check_size, renumbered
from jetcluster.budget import BusyError, Job, Work
from jetcluster.cancelling import cancelled
from jetcluster.cluster.requests import wait_until
from jetcluster.errors import ApiError, by_code
from jetcluster.model.advisory import API_AUDIT_SUBJECT, api_limit_reached
from jetcluster.model.codec import dumps, encoding, is_long
from jetcluster.ordered import OrderedSet
from jetcluster.protocol.bus import is_no_request

if TYPE_CHECKING:
    from jetcluster.api.endpoints import Endpoint
    from jetcluster.protocol.bus import Bus, Origin, Subscription

    Find = Callable[[list[str]], tuple[Endpoint, tuple[str, ...]] | None]
    """The endpoint of a subject's tokens, and its arguments; None for an unknown subject."""

MAX_QUEUED = 10_000
"""Requests waiting (nats-server's request_queue_limit); beyond it the oldest is dropped and counted."""
MAX_QUEUED_BYTES = 64 * 1024 * 1024
MAX_RUNNING = 256
SECONDS_PER_REQUEST = 0.0004
SECONDS_PER_BYTE = 2e-8
"""Seconds of the loop that a request, and a byte of its payload, probably need: they limit the number begun in a
turn."""
MAX_SESSIONS = 64
"""Snapshots and restores under way for one account on this node."""

SESSION_ENDPOINTS = ("STREAM.SNAPSHOT", "STREAM.RESTORE")
SYSTEM_TYPE = "io.nats.jetstream.api.v1.system_response"
OBJECTS = "$OBJ.*"
"""Subjects of the specification's object API; they exist below an API prefix, too."""
SUBJECTS = (
    "*",
    "ACCOUNT.INFO",
    "STREAM.>",
    "CONSUMER.CREATE.>",
    "CONSUMER.DURABLE.CREATE.>",
    "CONSUMER.INFO.>",
    "CONSUMER.DELETE.>",
    "CONSUMER.LIST.>",
    "CONSUMER.NAMES.>",
    "CONSUMER.PAUSE.>",
    "CONSUMER.RESET.>",
    "CONSUMER.UNPIN.>",
    "CONSUMER.LEADER.>",
    "CONSUMER.PEER.>",
    OBJECTS,
)
SYSTEM_SUBJECTS = ("META.>", "SERVER.>", "ACCOUNT.PURGE.*", "ACCOUNT.STREAM.>")
"""Taken from the system account alone."""


INFO = b"$JS.API.INFO"
INFO_TOKENS = (b".STREAM.INFO.", b".CONSUMER.INFO.")
MSG_GET = b".STREAM.MSG.GET."


class JetStreamApi:
    """The API of one account on one node. `start` subscribes, `stop` unsubscribes and cancels requests under way."""

    def __init__(
        self, context: ApiContext, bus: Bus, *, system: bool = False, max_queued: int = MAX_QUEUED,
        answers_elsewhere: Callable[[bytes], bool] = lambda subject: False,
    ) -> None:  # fmt: skip
        """`system`: of the system account. `answers_elsewhere` returns True for a request that the account imports as a
        service: then another one's API answers it."""
        self.max_queued = max_queued
        self._subjects = SUBJECTS + (SYSTEM_SUBJECTS if system else ())
        self.enabled = True
        """False when the account has no JetStream: every request is refused for that reason."""
        self.answers_elsewhere = answers_elsewhere
        self.counters = RequestCounters()
        self.dropped = 0
        """Requests thrown away because the queue was full."""
        self._dropped_told = 0
        self._context = context
        self._bus = bus
        self._advisories = context.advisories()
        self._claims = ObjectClaims(context.cluster, bus)
        self._domain = f"$JS.{context.domain}.API.".encode()
        self._msg_get = (b"$JS.API" + MSG_GET, self._domain[:-1] + MSG_GET)
        self.gets = LeaderGets(context, self._got, self._queue_up)
        self._subscriptions: list[Subscription] = []
        self._queue: deque[Request] = deque()
        self._queued_bytes = 0
        self._starting: Job[None] | None = None
        """Requests are being begun."""
        self._running: OrderedSet[asyncio.Task[None]] = OrderedSet()
        self._sessions: OrderedSet[asyncio.Task[None]] = OrderedSet()

    def start(self) -> None:
        prefixes = ["$JS.API."]
        if self._context.domain:
            prefixes.append(self._domain.decode())
        for prefix in prefixes:
            for subject in self._subjects:
                self._subscriptions.append(
                    self._bus.subscribe(f"{prefix}{subject}".encode(), self._receive, local_only=True)
                )
        if self._context.domain:
            keys = self._domain + b"$KV.>"
            self._subscriptions.append(self._bus.subscribe(keys, self._to_bucket, local_only=True))
        self._subscriptions.append(self._bus.subscribe(OBJECTS.encode(), self._receive, local_only=True))
        self._claims.start()

    async def stop(self) -> None:
        for subscription in self._subscriptions:
            self._bus.unsubscribe(subscription)
        self._subscriptions = []
        self._claims.stop()
        self.gets.stop()
        self._queue.clear()
        self._queued_bytes = 0
        if self._starting is not None:
            self._starting.cancel()
        await cancelled([*self._running, *self._sessions])

    def _receive(self, subject: bytes, reply: bytes, headers: bytes, payload: bytes, origin: Origin) -> None:
        """The bus's callback: only queues."""
        if is_no_request(origin):
            return
        if not self.enabled and self.answers_elsewhere(subject):
            return
        if not self.enabled and self.answers_elsewhere(INFO):
            # nats-server has nothing to say to an account that has taken another's API, or parts of it, for its own.
            if reply:
                self._bus.publish(reply, headers=NO_RESPONDERS)
            return
        bus = self._bus
        request = Request(bus.account, subject, (), reply, headers, payload, origin, bus, self._context.strict)
        if subject.startswith(self._msg_get) and self.enabled and self.gets.waiting < self.max_queued:
            stream = subject[subject.index(MSG_GET) + len(MSG_GET) :]
            if self.gets.take(request, stream):
                return
        self._queue_up((request,))

    def _queue_up(self, requests: Collection[Request]) -> None:
        self._queue += requests
        self._queued_bytes += sum(len(request.payload) for request in requests)
        while len(self._queue) > self.max_queued or self._queued_bytes > MAX_QUEUED_BYTES:
            self._queued_bytes -= len(self._queue.popleft().payload)
            self.dropped += 1
        self._run_more()

    def waiting(self) -> tuple[int, int]:
        """Requests whose turn has not come, and how many of them only ask for STREAM.INFO or CONSUMER.INFO."""
        infos = sum(1 for request in self._queue if any(kind in request.subject for kind in INFO_TOKENS))
        return len(self._queue) + self.gets.waiting, infos

    def _got(self, request: Request, response: bytes) -> None:
        """Ends a request that found its message; those are no events, and not audited."""
        self.counters.total += 1
        self._bus.publish(request.reply, response)

    def _to_bucket(self, subject: bytes, reply: bytes, headers: bytes, payload: bytes, origin: Origin) -> None:
        """A put to a key-value bucket by its domain's name: the stream knows it by its plain subject.
        Of leaf nodes it comes without the domain already."""
        if not self._bus.publish(subject[len(self._domain) :], payload, reply, headers) and reply:
            self._bus.publish(reply, headers=NO_RESPONDERS)

    def _run_more(self) -> None:
        """Begins queued requests while the loop has time for them; their cost shows in the loop's next turn."""
        if self._queue and self._starting is None and len(self._running) < MAX_RUNNING:
            try:
                steps, account = self._start_some(), self._bus.account
                job = self._context.budget.start(account, steps, self._started, self._not_started)
                self._starting = None if job.over else job
            except BusyError:
                if not self._running:  # else the next one that ends comes here again
                    self._start_next()
        if self.dropped > self._dropped_told and not self._queue:
            context = self._context
            context.advise(api_limit_reached(context.server_name, context.domain, self.dropped - self._dropped_told))
            self._dropped_told = self.dropped
            context.log.warning("API requests dropped", account=self._bus.account, total=self.dropped)

    def _start_some(self) -> Work[None]:
        while self._queue and len(self._running) < MAX_RUNNING:
            yield SECONDS_PER_REQUEST + self._start_next() * SECONDS_PER_BYTE

    def _start_next(self) -> int:
        """Bytes of its payload."""
        request = self._queue.popleft()
        size = len(request.payload)
        self._queued_bytes -= size
        task = asyncio.get_running_loop().create_task(self._serve(request))
        self._running.add(task)
        task.add_done_callback(self._done)
        return size

    def _started(self, _: None) -> None:
        self._starting = None

    def _not_started(self, error: Exception) -> None:
        self._starting = None
        self._context.log.error("API requests could not be begun", account=self._bus.account, error=repr(error))

    def _done(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        if self._subscriptions:
            self._run_more()

    async def _serve(self, request: Request) -> None:
        try:
            find = await load_endpoints()
        except Exception as error:  # noqa: BLE001 - as in `_answer`; the next request tries again
            self._context.log.error("API requests cannot be loaded", error=repr(error))  # noqa: TRY400
            self._bus.publish(request.reply, _envelope(SYSTEM_TYPE, by_code(errors.NOT_AVAILABLE), {}))
            return
        # "$JS.API.<...>" or "$JS.<domain>.API.<...>": the API token is the second or the third. Or "$OBJ.<bucket>".
        tokens = request.subject.decode("utf-8", "replace").split(".")
        if tokens[0] != "$OBJ":
            tokens = tokens[2:] if tokens[1] == "API" else tokens[3:]
        found = find(tokens)
        if found is None:
            code = errors.BAD_REQUEST if self.enabled else errors.NOT_ENABLED_FOR_ACCOUNT
            response = _envelope(SYSTEM_TYPE, by_code(code), {})
            self.counters.errors += 1
            ok = False
        else:
            endpoint, request.args = found
            response, ok = await self._answer(endpoint, request)
        self.counters.total += 1  # not before: $JS.API.INFO does not count itself
        if request.reply:
            self._bus.publish(request.reply, response)
        if request.answered is not None:
            request.answered()
        self._tell(request, response, audit=not (ok and found is not None and found[0].name == "STREAM.MSG.GET"))
        if request.follow is not None:
            session = asyncio.get_running_loop().create_task(self._follow(request.follow))
            self._sessions.add(session)
            session.add_done_callback(self._sessions.discard)

    async def _follow(self, session: Callable[[], Awaitable[None]]) -> None:
        try:
            await session()
        except Exception as error:  # noqa: BLE001 - nobody awaits this task
            account = self._bus.account
            self._context.log.error("what an API request began failed", account=account, error=repr(error))  # noqa: TRY400

    async def _answer(self, endpoint: Endpoint, request: Request) -> tuple[bytes, bool]:
        """The reply and whether it is a success. Never raises but for cancellation: a request is always answered."""
        try:
            self._check_enabled(endpoint)
            check_api_level(request.headers)
            check_size(request.payload)
            if endpoint.decodes:
                request.fields  # noqa: B018 - also of endpoints that look at none of them
            self._check_sessions(endpoint)
            seconds = endpoint.seconds or api_request.REQUEST_SECONDS
            wait_until(self._context.clock.monotonic() + seconds)
            async with asyncio.timeout(seconds):
                if endpoint.uses_models(request):
                    await models.load()
                fields = await endpoint.handler(self._context, request, self.counters)
                if isinstance(fields, dict) and is_long(fields):
                    reply = {"type": _type(endpoint), **fields}
                    fields = await self._context.budget.run(self._bus.account, encoding(reply))
        except ApiError as error:
            refusal = error
        except (TimeoutError, BusyError):
            refusal = by_code(errors.NOT_AVAILABLE)
        except Exception as error:  # noqa: BLE001 - a defect of ours must not leave a client without an answer
            subject = request.subject.decode("utf-8", "replace")
            self._context.log.error("API request failed", subject=subject, error=repr(error))  # noqa: TRY400
            refusal = by_code(errors.STREAM_GENERAL, err="internal error")
        else:
            return (fields if isinstance(fields, bytes) else _envelope(_type(endpoint), None, fields)), True
        self.counters.errors += 1
        if self._context.compat.seed_error_codes:
            refusal = renumbered(refusal)
        return _envelope(_type(endpoint), refusal, endpoint.in_error), False

    def _check_enabled(self, endpoint: Endpoint) -> None:
        if not self.enabled and not endpoint.name.startswith(("META.", "SERVER.", "ACCOUNT.PURGE", "ACCOUNT.STREAM")):
            raise by_code(errors.NOT_ENABLED_FOR_ACCOUNT)

    def _check_sessions(self, endpoint: Endpoint) -> None:
        if len(self._sessions) >= MAX_SESSIONS and endpoint.name in SESSION_ENDPOINTS:
            raise by_code(errors.STREAM_GENERAL, err="too many snapshots and restores are under way")

    def _tell(self, request: Request, response: bytes, *, audit: bool) -> None:
        bus = self._bus
        for event in request.events:
            if bus.has_interest(event.subject):
                bus.publish(event.subject, self._advisories.render(event, request.client()))
        if audit and bus.has_interest(API_AUDIT_SUBJECT):
            subject_text = request.subject.decode("utf-8", "replace")
            audit_event = self._advisories.api_audit(subject_text, request.payload, response, request.client())
            bus.publish(API_AUDIT_SUBJECT, audit_event)


def _type(endpoint: Endpoint) -> str:
    return "io.nats.jetstream.api.v1." + endpoint.type if endpoint.type else ""


def _envelope(type: str, error: ApiError | None, fields: Any) -> bytes:
    reply: dict[str, Any] = {"type": type} if type else {}
    if error is not None:
        reply["error"] = error.to_dict()
    return dumps(reply | fields)


async def load_endpoints() -> Find:
    """Loads `endpoints.find` and with it the handlers, but not the models: once, in a thread, so that heartbeats and
    data go on. `node.warm_up` asks for it first of all."""
    if not _loaded:
        _loaded.append(await asyncio.to_thread(_import_find))
    return _loaded[0]


def _import_find() -> Find:
    from jetcluster.api.endpoints import find

    return find


_loaded: list[Find] = []
