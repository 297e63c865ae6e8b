"""Registers whose readers say how fresh the answer must be, and that have a mirror which answers for them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable

from testkit.sim.session import Msg
from tests.sim.cluster.workload import together
from tests.sim.cluster.workloads.registers import STREAM, Client, RegistersWorkload

STALE = 1.0
"""Seconds that an answer may be old where `max_staleness` is asked for."""
SLACK = 1.0
"""Seconds more: clocks run fast and slow."""
SAMPLE = 0.1


class WishfulClient(Client):
    """Asks with wishes, in JSON or in headers."""

    workload: Wishes

    def acts(self) -> list[Callable[[str], Awaitable[None]]]:
        wishes = [self._linearizable, self._at_leader, self._at_least, self._not_older, self._eventual]
        return [self._set, self._set, self._direct, self._multi, *wishes]

    async def _ask(self, key: str, field: str, header: str, value: object, text: str, api: str = "DIRECT") -> Msg:
        subject = f"$KV.sim.{key}"
        if self.rng.random() < 0.5:
            asked = {field: value, "read_info": True} if field else {}
            if self.rng.random() < 0.5:
                return await self._send(f"{api}.GET.{STREAM}.{subject}", json.dumps(asked).encode())
            return await self._send(f"{api}.GET.{STREAM}", json.dumps(asked | {"last_by_subj": subject}).encode())
        headers = {header: text} if header else None
        return await self._send(f"{api}.GET.{STREAM}.{subject}", b"", headers)

    async def _send(self, subject: str, body: bytes, headers: dict[str, str] | None = None) -> Msg:
        return await self.session.request(f"$JS.API.{subject}", body, 5.0, headers)

    def _found(self, key: str, msg: Msg, newest: int, what: str) -> None:
        """An answer finds nothing older than `newest`; a refusal finds nothing at all."""
        if msg.status[:3] not in ("", "404"):
            self.workload.count(f"{what} refused")
            return
        self.workload.count(what)
        self.workload.judge.read(key, newest, int(msg.headers.get("Nats-Sequence", "0")), msg.payload.decode())

    async def _linearizable(self, key: str) -> None:
        newest = self.workload.judge.newest(key)
        msg = await self._ask(key, "consistency", "Nats-Read-Consistency", "linearizable", "linearizable")
        self._found(key, msg, newest, "linearizable")

    async def _at_leader(self, key: str) -> None:
        newest = self.workload.judge.newest(key)
        self._found(key, await self._ask(key, "", "", "", "", "DIRECT_LEADER"), newest, "at the leader")

    async def _at_least(self, key: str) -> None:
        newest = self.workload.judge.newest(key)
        msg = await self._ask(key, "min_last_seq", "Nats-Min-Last-Sequence", newest, str(newest))
        self._found(key, msg, newest, "at least")

    async def _not_older(self, key: str) -> None:
        newest = self.workload.known_before(key, self.workload.now - STALE - SLACK)
        msg = await self._ask(key, "max_staleness", "Nats-Max-Staleness", int(STALE * 1e9), f"{STALE:g}s")
        self._found(key, msg, newest, "not older")

    async def _eventual(self, key: str) -> None:
        msg = await self._ask(key, "consistency", "Nats-Read-Consistency", "eventual", "eventual")
        self._found(key, msg, 0, "eventual")


class Wishes(RegistersWorkload):
    client = WishfulClient
    name = "wishes"
    weight = 2
    promises = (
        "a Direct Get that is to be linearizable, or at the leader, finds all that was known before it was asked",
        "a Direct Get with min_last_seq finds what is stored there, one with max_staleness what was stored so long ago",
        "all of that holds where a mirror answers for its upstream",
    )

    async def prepare(self) -> None:
        await super().prepare()
        self.samples: list[tuple[float, dict[str, int]]] = []
        """Times, and the newest revisions that were known then."""
        if self.rng.random() < 0.5:
            admin = await self.session("mirror")
            mirror = {"mirror": {"name": STREAM}, "mirror_direct": True}
            await self.create(admin, "COPY", num_replicas=self.rng.choice([1, 3]), **mirror)
            await admin.close()

    async def work(self) -> None:
        await together(super().work(), self._sample())

    async def _sample(self) -> None:
        while not self.stopping:
            self.samples.append((self.now, {key: self.judge.newest(key) for key in "abc"}))
            await asyncio.sleep(SAMPLE)

    def known_before(self, key: str, time: float) -> int:
        """The newest revision that anybody knew then."""
        return next((known[key] for at, known in reversed(self.samples) if at <= time), 0)
