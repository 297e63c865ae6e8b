"""Counters: increments that are sent again until they are acknowledged."""

from __future__ import annotations

import json

from testkit.sim.session import Msg
from tests.sim.cluster.judges import Sums
from tests.sim.cluster.workload import Workload, together

STREAM = "COUNT"
WRITERS = 3
NAMES = "ab"


class Counters(Workload):
    name = "counters"
    judges = (Sums,)
    promises = ("an acknowledged increment of a counter counts once, and its total is the one that was acknowledged",)

    async def prepare(self) -> None:
        self.sums = {name: Sums() for name in NAMES}
        self.last = 0
        admin = await self.session("admin")
        await self.create(admin, STREAM, subjects=["count.*"], allow_msg_counter=True)

    async def work(self) -> None:
        await together(*(self._write(number) for number in range(WRITERS)))

    async def _write(self, number: int) -> None:
        session = await self.session(f"w{number}")
        async for count in self.turns(5.0):
            name, text, increment = self.rng.choice(NAMES), f"{number}-{count}", self.rng.randint(-5, 100)
            self.sums[name].send(text, increment)
            headers = {"Nats-Incr": f"{increment:+d}"}
            ack = await self.store(session, f"count.{name}", text, headers, b"")
            self.last = max(self.last, int(ack["seq"]))
            if not ack.get("duplicate"):
                self.sums[name].ack(text, int(ack["seq"]), int(ack["val"]))

    async def check(self) -> None:
        await self.everywhere(STREAM, self.last, self._look)

    def _look(self, where: str, contents: dict[int, Msg]) -> None:
        for name, sums in self.sums.items():
            own = [
                (seq, contents[seq].headers["Nats-Msg-Id"], int(json.loads(contents[seq].payload)["val"]))
                for seq in sorted(contents)
                if contents[seq].headers["Nats-Subject"] == f"count.{name}"
            ]
            sums.stored(f"{where}, {name}", own)
