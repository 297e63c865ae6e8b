"""In-memory twin for the API's tests: a cluster with the real meta machine behind it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

from jetcluster.api.dispatch import JetStreamApi
from jetcluster.api.request import ApiContext
from jetcluster.budget import LoopBudget
from jetcluster.clock import SystemClock
from jetcluster.cluster.meta_service import MetaService
from jetcluster.errors import ApiError, by_code
from jetcluster.meta.machine import MetaMachine
from jetcluster.meta.state import Assignment
from jetcluster.model.limits import UNLIMITED, AccountLimits
from jetcluster.stream.log.levels import LEVEL
from testkit.twins.bus import MemBus
from testkit.twins.log import ListLog
from testkit.twins.time import ManualTime, SeededRng

EMPTY_STATE = {
    "messages": 0,
    "bytes": 0,
    "first_seq": 0,
    "first_ts": "0001-01-01T00:00:00Z",
    "last_seq": 0,
    "last_ts": "0001-01-01T00:00:00Z",
    "consumer_count": 0,
}


class FakeCluster:
    """Three nodes n1..n3 (one when not clustered); commands apply at once, stream leaders answer what a test wants."""

    def __init__(self, *, clustered: bool = True) -> None:
        self.clustered = clustered
        self.level = LEVEL
        self.time = ManualTime()
        self.machine = MetaMachine()
        self.lagging = False
        """This node's own meta replica knows nothing."""
        self.refuse: dict[str, ApiError | None] = {}
        """Stream name -> error of its leader; None never answers."""
        self.asked: list[tuple[str, str, dict[str, Any]]] = []
        self.settled: list[int] = []
        self.heard_of: list[int] = []
        self.answers: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
            "consumers_beyond": lambda body: {"names": []}
        }
        self._index = 0
        self.online = {"n1", "n2", "n3"} if clustered else {"n1"}
        for peer in sorted(self.online):
            node = {"kind": "node", "request": peer, "peer": peer, "name": peer.upper(), "tags": [], "jetstream": True}
            self.apply(json.dumps(node).encode())
        self.service = MetaService(
            self.machine,
            clock=self.time,
            propose=self._propose,
            barrier=self._barrier,
            online=lambda: self.online,
            cluster_name="C1" if clustered else "",
            clustered=clustered,
        )

    def apply(self, command: bytes) -> dict[str, Any]:
        """Commits a command of the meta group; its result."""
        self._index += 1
        return self.machine.apply(self._index, 1, command)[0]

    async def _propose(self, command: bytes) -> dict[str, Any]:
        return self.apply(command)

    async def _barrier(self) -> None:
        return None

    def assignment(self, account: str, name: str) -> Assignment | None:
        return None if self.lagging else self.machine.assignment(account, name)

    def led(self, account: str, name: str) -> None:
        """No stream is led here: the stream's leader answers as a test wants (`stream_request`)."""

    def offline(self, assignment: Assignment) -> bool:
        return self.online.isdisjoint(assignment.peers)

    def mirrors_of(self, account: str, name: str) -> list[str]:
        links = [(a.name, a.config.get("mirror")) for a in self.machine.assignments(account)]
        return [stream for stream, mirror in links if mirror and mirror["name"] == name]

    async def meta_request(self, kind: str, body: dict[str, Any]) -> dict[str, Any]:
        # As over the mesh: what is not JSON must not get through.
        result: dict[str, Any] = json.loads(json.dumps(await self.service.handle(kind, json.loads(json.dumps(body)))))
        return result

    async def stream_request(
        self,
        assignment: Assignment,
        kind: str,
        body: dict[str, Any],
        under_way: Callable[[], None] | None = None,
        seconds: float = 3.5,
    ) -> dict[str, Any]:
        self.asked.append((assignment.name, kind, body))
        led = self.machine.by_gid(assignment.gid)
        if led is None:
            raise by_code(10008)
        if assignment.name in self.refuse:
            error = self.refuse[assignment.name]
            if error is None:
                await asyncio.Event().wait()
            assert error is not None
            raise error
        if kind in self.answers:
            return self.answers[kind](body)
        assert kind in {"info", "ready", "standing"}, kind
        cluster = {"name": "C1", "leader": "N1"} if self.clustered else {"leader": "N1"}
        answer = {"state": EMPTY_STATE, "cluster": cluster, "page": [7, 0, 100_000]}
        return {**answer, "assignment": led.to_dict()} if led.revision > body["revision"] else answer

    async def settle(self, revision: int) -> None:
        self.settled.append(revision)

    async def heard(self, revision: int) -> None:
        self.heard_of.append(revision)

    async def used(self, account: str) -> tuple[int, int, int]:
        return 0, 300, 4

    async def used_by_tier(self, account: str) -> dict[int, tuple[int, int, int]]:
        return {1: (0, 100, 3), 3: (0, 200, 1)}


class LoopTimers:
    """Timers of whichever loop runs."""

    def call_soon(self, callback: Callable[..., Any], *args: Any) -> asyncio.Handle:
        return asyncio.get_running_loop().call_soon(callback, *args)

    def call_later(self, delay: float, callback: Callable[..., Any], *args: Any) -> asyncio.Handle:
        return asyncio.get_running_loop().call_later(delay, callback, *args)


class Client:
    """A client of one node: requests by subject suffix, decoded replies."""

    def __init__(self, *, clustered: bool = True, domain: str = "", limits: AccountLimits = UNLIMITED) -> None:
        self.cluster = FakeCluster(clustered=clustered)
        self.bus = MemBus()
        self.log = ListLog()
        budget = LoopBudget(SystemClock(), LoopTimers())
        self.context = ApiContext(
            self.cluster, self.cluster.time, SeededRng(1), self.log, "N1", budget, domain, limits=lambda account: limits
        )
        self.api = JetStreamApi(self.context, self.bus)
        self.api.start()
        self._inbox = 0

    async def raw(self, subject: str, payload: bytes = b"", headers: bytes = b"") -> bytes:
        self._inbox += 1
        future: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        inbox = b"_INBOX.%d" % self._inbox
        subscription = self.bus.subscribe(inbox, lambda s, r, h, p, o: future.set_result(p))
        assert self.bus.publish(subject.encode(), payload, inbox, headers), f"no responders on {subject}"
        async with asyncio.timeout(5):
            reply = await future
        self.bus.unsubscribe(subscription)
        return reply

    async def ask(self, suffix: str, body: Any = None, headers: bytes = b"") -> dict[str, Any]:
        payload = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
        reply: dict[str, Any] = json.loads(await self.raw("$JS.API." + suffix, payload, headers))
        return reply

    async def create(self, name: str, **fields: Any) -> dict[str, Any]:
        return await self.ask(f"STREAM.CREATE.{name}", {"name": name, **fields})
