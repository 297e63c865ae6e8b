"""Workloads: work of clients on the simulated cluster while faults happen, with what must be true then and afterwards.

Each module of `workloads/` holds one or more `Workload` classes; `found` has them by name.
"""

from __future__ import annotations

import asyncio
import base64
import functools
import importlib
import json
import pkgutil
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any, ClassVar, NamedTuple

from jetcluster.model.times import parse_rfc3339
from testkit.sim.deployment import Deployment, Violation
from testkit.sim.machine import EPOCH_NS
from testkit.sim.session import ApiError, Disconnected, Msg, NoResponders, Session
from tests.sim.cluster import workloads
from tests.sim.cluster.judges import Log

SECOND = 1_000_000_000
"""Nanoseconds, the unit of the API."""
UNAVAILABLE, NO_CONSUMER, NOT_FOUND, NO_STREAM = 10008, 10014, 10037, 10059
"""Error codes: nobody leads now; no such consumer, message, stream."""
PASSING = (Disconnected, NoResponders, ApiError, TimeoutError)
"""Errors that a client may meet while faults last, and after which it tries again."""
WINDOW = 3600 * SECOND
"""Nanoseconds for which ids of messages are known, unless a workload says otherwise."""
SETTLE = 60.0
"""Longest time, in seconds after the last fault, until everything must go again."""


class Workload:
    """One program of clients, on a machine of its own. `prepare` runs before faults begin, `work` beside them until
    `stopping`, `check` after the last one is over. All raise Violation."""

    name: ClassVar[str] = ""
    promises: ClassVar[tuple[str, ...]] = ()
    """The promises that it tries, in the words of docs/."""
    layout: ClassVar[str] = ""
    """A key of `layout.LAYOUTS` for a workload that needs that one and runs alone; "" for any of the usual ones."""
    newest: ClassVar[bool] = False
    """It begins with what older servers refuse, so none may be there (`upgrades`)."""
    examined: ClassVar[bool] = True
    """Exams may look at the cluster after it."""
    weight: ClassVar[int] = 1
    """Share of seeds that have it, compared with others: more for what is seldom in the one state that matters. 0 for
    what came later and is drawn apart (`Scenario.of`): seeds that have none of it stay as they were."""
    judges: ClassVar[tuple[type, ...]] = ()
    """Classes of `judges` that look at its history."""

    def __init__(self, deployment: Deployment, rng: Random) -> None:
        self.deployment = deployment
        self.rng = rng
        self.loop = deployment.client(self.name)
        self.stopping = False
        self.counts: dict[str, int] = {}
        """Counts of what was done, for the summary."""

    @classmethod
    def before(cls, deployment: Deployment, rng: Random) -> None:
        """Changes what servers are, before any of them starts."""

    async def prepare(self) -> None:
        raise NotImplementedError

    async def work(self) -> None:
        raise NotImplementedError

    async def check(self) -> None:
        raise NotImplementedError

    # ---- tools

    @property
    def now(self) -> float:
        """True seconds since the simulation began, which no machine knows."""
        return self.deployment.scheduler.now

    def wall(self, ahead: float) -> str:
        """RFC 3339 with microseconds: what clocks that are right say in so many seconds."""
        at = datetime.fromtimestamp(EPOCH_NS / 1e9, UTC) + timedelta(seconds=self.now + ahead)
        return at.isoformat(timespec="microseconds").replace("+00:00", "Z")

    @property
    def members(self) -> list[str]:
        """Servers of the main cluster with JetStream."""
        return [name for name in self.deployment.members() if self.deployment.servers[name].jetstream]

    async def create(self, session: Session, stream: str, **config: Any) -> dict[str, Any]:
        """A stream, of three replicas unless `config` says otherwise."""
        body = {"name": stream, "num_replicas": 3, "allow_direct": True} | config
        if not body.keys() & {"mirror", "max_age"}:  # outages may be longer than two minutes, and writers send again
            body.setdefault("duplicate_window", WINDOW)
        answer: dict[str, Any] = await self.insist(
            f"creating {stream}", lambda: session.api(f"STREAM.CREATE.{stream}", body)
        )
        return answer

    async def create_consumer(self, session: Session, stream: str, name: str, **config: Any) -> None:
        body = {"stream_name": stream, "config": {"durable_name": name, "ack_policy": "explicit"} | config}
        await self.insist(f"creating {name}", lambda: session.api(f"CONSUMER.DURABLE.CREATE.{stream}.{name}", body))

    async def store(
        self,
        session: Session,
        subject: str,
        text: str,
        headers: dict[str, str] | None = None,
        payload: bytes | None = None,
    ) -> dict[str, Any]:
        """The ack of a message that is sent under an id until it is acknowledged. Its payload is its text, unless
        another one is given."""
        headers = {"Nats-Msg-Id": text} | (headers or {})
        body = text.encode() if payload is None else payload
        while True:
            try:
                ack = await session.js_publish(subject, body, headers, seconds=2.0)
            except PASSING:
                self.count("publishes again")
                await asyncio.sleep(self.rng.uniform(0.05, 0.3))
                continue
            self.count("published")
            return ack

    async def contents(self, session: Session, stream: str, subject: str = ">") -> dict[int, Msg]:
        """All messages of a stream, as the server says that `session` is connected to: its own replica answers, where
        that is current. Raises what requests raise."""
        found: dict[int, Msg] = {}
        start = 1
        while True:
            request = {"seq": start, "batch": 1000, "next_by_subj": subject}
            some = await self.direct(session, stream, request)
            if not some:
                return found
            found |= {int(msg.headers["Nats-Sequence"]): msg for msg in some}
            start = max(found) + 1

    async def direct(self, session: Session, stream: str, request: dict[str, Any]) -> list[Msg]:
        """The messages of a Direct Get batch. Raises ApiError for an answer that is none."""
        found: list[Msg] = []
        with session.inbox() as (inbox, got):
            session.publish(f"$JS.API.DIRECT.GET.{stream}", json.dumps(request).encode(), inbox)
            while True:
                async with asyncio.timeout(5.0):
                    msg = await got.get()
                if not msg.status:
                    found.append(msg)
                elif msg.status[:3] in ("204", "404"):
                    return found
                else:
                    raise ApiError({"code": int(msg.status[:3]), "description": msg.status})

    async def cancelled(self, session: Session, stream: str) -> dict[str, Any] | None:
        """Takes back the change of the stream's place or number of replicas; returns the answer, or None where there is
        nothing to take back."""
        try:
            return await session.api(f"STREAM.CANCEL_MOVE.{stream}")
        except ApiError as error:
            if error.err_code != NOTHING_MOVES:
                raise
            self.count("nothing to cancel")
            return None

    async def delete_others(self, session: Session, kept: str) -> None:
        """Deletes all streams but one: whoever loses a majority of their servers loses them."""
        for name in (await session.api("STREAM.NAMES"))["streams"]:
            if name != kept:
                await session.api(f"STREAM.DELETE.{name}")

    def text_of(self, message: dict[str, Any]) -> str:
        """The payload in an answer of MSG.GET."""
        return base64.b64decode(message.get("data", "")).decode()

    async def everywhere(
        self,
        stream: str,
        last: int,
        look: Callable[[str, dict[int, Msg]], None],
        subject: str = ">",
        nodes: tuple[str, ...] = (),
    ) -> None:
        """Calls `look(server, contents)` with what each server says once it has come to sequence `last`: each of the
        main cluster, or of `nodes`."""
        for name in nodes or self.deployment.members():
            session = await self.session(f"check-{stream}-{name}", name)
            found: dict[int, Msg] = {}

            async def whole(session: Session = session, found: dict[int, Msg] = found) -> bool:
                info = await session.api(f"STREAM.INFO.{stream}")
                found.clear()
                found |= await self.contents(session, stream, subject)
                return int(info["state"]["last_seq"]) >= last

            await self.until(f"{name} answers for {stream} up to {last}", whole)
            look(name, found)
            await session.close()

    async def pull(
        self,
        session: Session,
        stream: str,
        consumer: str,
        take: Callable[[Msg], Awaitable[None]],
        batch: int = 10,
        inbox: str = "",
    ) -> None:
        """One pull request, for a second, with a new inbox or this one; `take` may raise what requests raise."""
        with session.inbox(inbox) as (inbox, got):
            try:
                request = json.dumps({"batch": batch, "expires": 1_000_000_000}).encode()
                session.publish(f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{consumer}", request, inbox)
                async with asyncio.timeout(1.5):
                    for _ in range(batch):
                        msg = await got.get()
                        if msg.status:
                            await asyncio.sleep(0.0 if msg.status.startswith("408") else 0.1)
                            break
                        await take(msg)
            except PASSING:
                await asyncio.sleep(0.1)

    async def store_logged(
        self, log: Log, session: Session, subject: str, text: str, headers: dict[str, str] | None = None
    ) -> dict[str, Any]:
        """Stores a message, and writes down in `log` that it was sent and acknowledged."""
        log.send(text, again=True)
        ack = await self.store(session, subject, text, headers)
        log.ack(int(ack["seq"]), text, self.now)
        return ack

    def stored(self, log: Log, where: str, contents: dict[int, Msg], removed: Iterable[int] = ()) -> None:
        """Shows `log` all that a server has in the end."""
        texts = {seq: msg.payload.decode() for seq, msg in contents.items()}
        times = {seq: parse_rfc3339(msg.headers["Nats-Time-Stamp"]) for seq, msg in contents.items()}
        log.stored(where, texts, removed, times)

    def turns(self, pace: float) -> Turns:
        """Numbers from 1 until `stopping`, `pace` of them in a second."""
        return Turns(self, pace)

    def count(self, what: str, number: int = 1) -> None:
        self.counts[what] = self.counts.get(what, 0) + number

    def note(self, what: str) -> None:
        """Writes into the trace."""
        self.deployment.trace.add(self.name, what)

    async def session(self, name: str, *nodes: str, user: str = "") -> Session:
        """Connected; to one of `nodes`, or of all in a random order. `user`: of `layout.ACCOUNTS`."""
        servers = self.deployment.addresses(*nodes)
        self.rng.shuffle(servers)
        session = Session(f"{self.name}-{name}", servers, user=user)
        await session.connect()
        return session

    async def insist(self, what: str, attempt: Callable[[], Awaitable[Any]], seconds: float = SETTLE) -> Any:
        """The first result; tries again as clients do. Raises Violation where it does not come in time."""
        end = self.loop.time() + seconds
        while True:
            try:
                return await attempt()
            except PASSING as error:
                self.note(f"{what} fails: {error!r}")
                if self.loop.time() > end:
                    raise Violation(f"{self.name}: {what} fails for {seconds} s: {error!r}") from error
            await asyncio.sleep(0.1)

    async def until(self, what: str, is_so: Callable[[], Awaitable[bool]], seconds: float = SETTLE) -> None:
        """Raises Violation where it does not come true in time."""
        end = self.loop.time() + seconds
        while True:
            try:
                if await is_so():
                    return
            except PASSING:
                pass
            if self.loop.time() > end:
                raise Violation(f"{self.name}: not after {seconds} s: {what}")
            await asyncio.sleep(0.2)

    def require(self, is_so: bool, what: str) -> None:
        if not is_so:
            raise Violation(f"{self.name}: {what}")


class Writers(Workload):
    """Clients that write into one stream, which must have what `log` says that was acknowledged."""

    stream: ClassVar[str]
    writers: ClassVar[int] = 2
    log: Log

    async def work(self) -> None:
        await together(*(self._write(number) for number in range(self.writers)))

    async def check(self) -> None:
        await self.everywhere(self.stream, max(self.log.acked, default=0), self._look)

    def _look(self, where: str, contents: dict[int, Msg]) -> None:
        self.stored(self.log, where, contents)


MAX_PAUSE = 20.0
"""Seconds between two turns, at most: a run that has become calm waits 60 s for the last one, and does it once more."""


class Turns:
    """Turns of a workload, at random moments."""

    def __init__(self, workload: Workload, pace: float) -> None:
        self._workload, self._pace, self._number = workload, pace, 0

    def __aiter__(self) -> Turns:
        return self

    async def __anext__(self) -> int:
        if self._workload.stopping:
            raise StopAsyncIteration
        await asyncio.sleep(min(self._workload.rng.expovariate(self._pace), MAX_PAUSE))
        self._number += 1
        return self._number


async def together(*parts: Coroutine[Any, Any, None]) -> None:
    """Runs all of them, until the last one ends or one fails."""
    async with asyncio.TaskGroup() as group:
        for part in parts:
            group.create_task(part)


NOTHING_MOVES = 10129
"""Error code of a CANCEL_MOVE without a change that it could take back."""
ACK_TOKENS = 9
"""Tokens of an ack subject of version 1."""


class Delivered(NamedTuple):
    """Contents of a message's ack subject."""

    count: int
    seq: int
    consumer_seq: int
    pending: int = 0

    @classmethod
    def of(cls, msg: Msg) -> Delivered:
        tokens = msg.reply.split(".")
        tokens = tokens[2:] if len(tokens) > ACK_TOKENS else tokens  # version 2 has a domain and an account before
        return cls(int(tokens[4]), int(tokens[5]), int(tokens[6]), int(tokens[8]))


@functools.cache
def found() -> dict[str, type[Workload]]:
    """All there are, by name."""
    classes: dict[str, type[Workload]] = {}
    for module in sorted(pkgutil.iter_modules(workloads.__path__), key=lambda one: one.name):
        loaded = importlib.import_module(f"{workloads.__name__}.{module.name}")
        for one in vars(loaded).values():
            if isinstance(one, type) and issubclass(one, Workload) and one.__module__ == loaded.__name__ and one.name:
                classes[one.name] = one
    return classes
