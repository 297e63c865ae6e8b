"""A workload: a stream, and workers that each keep one connection and write down what they did."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from typing import Any, ClassVar

from chaos.history import History
from chaos.target import Target
from jetcluster.pipeline.checkers.event import Event
from testkit.client import Client, ClientError, Msg, create_stream

TROUBLE = (ClientError, OSError, TimeoutError)
PATIENCE = 1.0
"""Seconds until an operation counts as unanswered."""
RETRY = 0.05


class Session:
    """One worker's connection: to one node until there is trouble, then to the next."""

    def __init__(self, target: Target, dice: random.Random, names: Sequence[str] = ()) -> None:
        """`names`: of the nodes; all of the target's by default."""
        self._target = target
        self.names = names or target.names
        self._at = dice.randrange(len(self.names))
        self._client: Client | None = None
        self.number = 0
        """The number of the connection."""

    async def client(self) -> Client:
        """Raises one of `TROUBLE`; the next call tries another node."""
        if self._client is None or self._client.closed.is_set():
            url = self._target.url(self.names[self._at % len(self.names)])
            self._at += 1
            self._client = None
            self._client = await Client.connect(url, within=PATIENCE)
            self.number += 1
        return self._client

    def leave(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None


class Workload:
    """Subclasses say what one worker does in `step`, until `stop` is set."""

    name: ClassVar[str]
    workers: ClassVar[int] = 2
    config: ClassVar[dict[str, Any]] = {}
    """The configuration of the stream, besides its name, subjects (`<name>.>`) and replicas."""
    read_back: ClassVar[bool] = True
    """Every replica is read after the run: nothing is ever deleted."""
    patience: ClassVar[float] = PATIENCE
    """Seconds that `ask` waits."""
    after: ClassVar[tuple[str, ...]] = ()
    """Workloads that this one cannot do without."""

    def __init__(self, target: Target, history: History, seed: int) -> None:
        self.target = target
        self.history = history
        self.seed = seed
        self.stop = asyncio.Event()
        self.storage = "file"

    @property
    def stream(self) -> str:
        return self.name.upper()

    async def create(self, client: Client, replicas: int) -> None:
        await create_stream(client, self.stream, [f"{self.name}.>"], replicas, self.storage, **self.config)

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            for number in range(self.workers):
                group.create_task(self._work(number))

    def session(self, number: int, dice: random.Random) -> Session:
        """The session of a worker."""
        return Session(self.target, dice)

    async def _work(self, number: int) -> None:
        dice = random.Random(f"{self.seed} {self.name} {number}")
        session = self.session(number, dice)
        worker = f"{self.name}-{number}"
        turn = 0
        try:
            while not self.stop.is_set():
                try:
                    await self.step(session, worker, turn, dice)
                except TROUBLE:
                    session.leave()
                    await asyncio.sleep(RETRY)
                turn += 1
        finally:
            session.leave()

    async def step(self, session: Session, worker: str, turn: int, dice: random.Random) -> None:
        """May raise `TROUBLE`: the worker goes to another node."""
        raise NotImplementedError

    async def finish(self, client: Client) -> None:
        """After the last fault is healed, before the replicas are read."""

    async def ask(
        self, client: Client, invoked: Event, subject: str, data: bytes, headers: dict[str, str] | None = None
    ) -> Msg:
        """A request whose operation is `invoked`; without an answer that ends as `info`, and the error goes on."""
        try:
            return await client.request(subject, data, self.patience, headers)
        except TROUBLE as error:
            self.history.end(invoked, "info", error=str(error) or type(error).__name__)
            raise

    async def publish(self, session: Session, worker: str, subject: str, values: Sequence[str], *, tries: int) -> None:
        """All at once, each with its value as payload and Nats-Msg-Id; what is not acked is sent again, to another node
        if need be. What is not acked after so many tries stays unknown."""
        left = list(values)
        for _ in range(tries):
            answered = 0
            try:
                client = await session.client()
                sent = [(self._send(client, worker, subject, value)) for value in left]
                await asyncio.wait([future for _, future in sent], timeout=PATIENCE)
            except TROUBLE:
                session.leave()
                await asyncio.sleep(RETRY)
                continue
            left = []
            for invoked, future in sent:
                kind: str = "info"
                more: dict[str, Any] = {}
                if future.done() and not future.cancelled() and future.exception() is None:
                    kind, more = outcome(future.result())
                    answered += 1
                self.history.end(invoked, kind, **more)
                if kind != "ok":
                    left.append(invoked.msg_id)
            if not left:
                return
            if not answered:
                session.leave()
            await asyncio.sleep(RETRY)

    def _send(self, client: Client, worker: str, subject: str, value: str) -> tuple[Event, asyncio.Future[Msg]]:
        invoked = self.history.invoke(self.name, "publish", worker, subject=subject, msg_id=value)
        return invoked, client.request_soon(subject, value.encode(), {"Nats-Msg-Id": value})


def outcome(msg: Msg) -> tuple[str, dict[str, Any]]:
    """(kind, fields) of a publish's answer. An error, or nobody who listens, is a definite no."""
    if msg.status:
        return "fail", {"error": f"status {msg.status}"}
    reply = msg.json()
    if error := reply.get("error"):
        return "fail", {"error": f"{error.get('err_code')} {error.get('description')}"}
    return "ok", {"seq": int(reply["seq"])}
