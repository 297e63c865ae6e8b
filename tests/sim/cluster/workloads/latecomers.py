"""Consumers that come to a stream with interest when others have got something of it, begin anew, and count what is
left for them. One client does it all, so that each number is known."""

from __future__ import annotations

import functools
from typing import Any

from testkit.sim.session import ApiError, Msg
from tests.sim.cluster.judges import Exact
from tests.sim.cluster.workload import NO_CONSUMER, SECOND, Delivered, Workload

STREAM = "LATE"
WINDOW = 600 * SECOND
FEW = 3
"""Messages at a time."""


class Latecomers(Workload):
    name = "latecomers"
    weight = 0
    judges = (Exact,)
    promises = (
        "a consumer that comes later gets all that is stored from then on, whatever others acknowledge",
        "a consumer that is reset has nothing pending",
        "a consumer of the last messages of subjects counts those that are there",
    )

    async def prepare(self) -> None:
        self.sent = self.cycle = 0
        self.admin = await self.session("admin")
        await self.create(self.admin, STREAM, subjects=["late.>"], retention="interest", duplicate_window=WINDOW)

    async def work(self) -> None:
        async for _ in self.turns(0.5):
            await self._once()

    async def check(self) -> None:
        await self._once()
        await self._begins_anew()
        await self._counts()

    async def _once(self) -> None:
        self.cycle += 1
        first, other, late = (f"{name}-{self.cycle}" for name in ("first", "other", "late"))
        await self._consumer(first, "late.a")
        await self._consumer(other, "late.b")
        await self._send("late.b", FEW)
        await self._send("late.a", FEW)
        await self._take_all(first)
        await self._consumer(late, "late.a")
        seqs = await self._send("late.a", FEW)
        await self._take_all(first)
        Exact.equal(f"{self.name}: what {late} gets", sorted(await self._take_all(late)), seqs)
        for name in (first, other, late):
            await self.insist(f"deleting {name}", functools.partial(self._delete, name))
        self.count("cycles")

    async def _begins_anew(self) -> None:
        """Messages wait for their acks when the consumer is reset, and nothing happens to it any more."""
        await self._consumer("anew", "late.d")
        await self._send("late.d", FEW)

        async def taken() -> bool:
            await self.pull(self.admin, STREAM, "anew", self._leave, batch=FEW)
            return int((await self._info("anew"))["num_ack_pending"]) == FEW

        await self.until("messages wait for their acks", taken)
        await self.insist("a reset", lambda: self.admin.api(f"CONSUMER.RESET.{STREAM}.anew"))
        info = await self.insist("INFO", lambda: self._info("anew"))
        Exact.equal(f"{self.name}: pending after a reset", (info["num_ack_pending"], info["num_pending"]), (0, FEW))

    async def _counts(self) -> None:
        await self._consumer("keeper", "late.c.>")
        seqs = [seq for number in range(FEW) for seq in await self._send(f"late.c.{number}", 1)]
        await self._consumer("lasts", "late.c.*", deliver_policy="last_per_subject")
        for left, seq in ((FEW, 0), (FEW - 1, seqs[1])):
            if seq:
                await self.insist("a deletion", functools.partial(self._remove, seq))
            info = await self.insist("INFO", lambda: self._info("lasts"))
            Exact.equal(f"{self.name}: left without {seq}", info["num_pending"], left)

    # ---- requests

    async def _consumer(self, name: str, subject: str, **config: Any) -> None:
        await self.create_consumer(self.admin, STREAM, name, filter_subject=subject, ack_wait=600_000_000_000, **config)

    async def _send(self, subject: str, number: int) -> list[int]:
        seqs = []
        for _ in range(number):
            self.sent += 1
            seqs.append(int((await self.store(self.admin, subject, str(self.sent)))["seq"]))
        return seqs

    async def _take_all(self, name: str) -> set[int]:
        """Everything that comes, acknowledged until nothing is left."""
        found: set[int] = set()

        async def take(msg: Msg) -> None:
            found.add(Delivered.of(msg).seq)
            await self.admin.request(msg.reply, b"-NAK" if self.rng.random() < 0.1 else b"+ACK", seconds=1.0)

        async def is_empty() -> bool:
            await self.pull(self.admin, STREAM, name, take, batch=FEW)
            info = await self._info(name)
            if info["num_ack_pending"]:  # its delivery or its ack was lost, and it would come again in ten minutes
                await self.admin.api(f"CONSUMER.RESET.{STREAM}.{name}", seconds=2.0)
            return bool(info["num_pending"] == info["num_ack_pending"] == 0)

        await self.until(f"nothing is left for {name}", is_empty)
        return found

    async def _leave(self, msg: Msg) -> None:
        self.count("left waiting")

    async def _info(self, name: str) -> dict[str, Any]:
        info: dict[str, Any] = await self.admin.api(f"CONSUMER.INFO.{STREAM}.{name}", seconds=2.0)
        return info

    async def _delete(self, name: str) -> None:
        try:
            await self.admin.api(f"CONSUMER.DELETE.{STREAM}.{name}")
        except ApiError as error:
            if error.err_code != NO_CONSUMER:
                raise

    async def _remove(self, seq: int) -> None:
        try:
            await self.admin.api(f"STREAM.MSG.DELETE.{STREAM}", {"seq": seq})
        except ApiError as error:
            if error.err_code != 10043:
                raise
