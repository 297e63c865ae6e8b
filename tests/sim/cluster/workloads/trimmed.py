"""Consumers of a stream from which messages go that wait for their acks; they are updated, deleted, and made again."""

from __future__ import annotations

import asyncio
import functools

from testkit.sim.session import ApiError, Msg, Session
from tests.sim.cluster.judges import Exact
from tests.sim.cluster.workload import PASSING, Delivered, Workload, together

STREAM = "TRIM"
ROOM = 80
SUBJECTS = 4
NEW = 3
"""Messages that come when nobody takes any."""
CONSUMERS = ("one", "two", "three")
FILTERS: tuple[list[str], ...] = ([], ["trim.1"], ["trim.1", "trim.2"], ["trim.*"])


class Trimmed(Workload):
    name = "trimmed"
    judges = (Exact,)
    promises = (
        "a consumer counts as pending what its stream still has of what its filters match, and no more",
        "a consumer that is made again under the name of one that was deleted begins anew",
    )

    async def prepare(self) -> None:
        self.sent = 0
        self.filters: dict[str, list[str]] = {}
        """Filters of each consumer that is there, as far as is known; uncertain ones are made certain at the end."""
        self.admin = await self.session("admin")
        await self.create(self.admin, STREAM, subjects=["trim.*"], max_msgs=ROOM)
        for name in CONSUMERS:
            await self.insist(f"creating {name}", functools.partial(self._make, name))

    async def _make(self, name: str) -> None:
        filters = self.rng.choice(FILTERS)
        config = {"durable_name": name, "ack_policy": "explicit", "ack_wait": 2_000_000_000, "max_ack_pending": 1_000,
                  "filter_subjects": filters}  # fmt: skip
        body = {"stream_name": STREAM, "config": config, "action": ""}
        await self.admin.api(f"CONSUMER.DURABLE.CREATE.{STREAM}.{name}", body, seconds=2.0)
        self.filters[name] = filters

    async def work(self) -> None:
        await together(self._write(), self._change(), *(self._consume(name) for name in CONSUMERS))

    async def _write(self) -> None:
        session = await self.session("write")
        async for _ in self.turns(2.0):
            texts = [str(self.sent + at) for at in range(self.rng.choice([1, 5, 30]))]
            self.sent += len(texts)
            await asyncio.gather(*(self.store(session, f"trim.{int(text) % SUBJECTS}", text) for text in texts))
        await session.close()

    async def _change(self) -> None:
        """Messages go, consumers change; what comes of a request that is not answered shows at the end."""
        async for _ in self.turns(1.0):
            try:
                await self.rng.choice([self._remove, self._remove, self._renew, self._update])()
            except PASSING:
                self.count("uncertain")

    async def _remove(self) -> None:
        state = (await self.admin.api(f"STREAM.INFO.{STREAM}", seconds=2.0))["state"]
        seq = self.rng.randint(state["first_seq"], max(state["last_seq"], state["first_seq"]))
        await self.admin.api(f"STREAM.MSG.DELETE.{STREAM}", {"seq": seq}, seconds=2.0)
        self.count("deleted")

    async def _renew(self) -> None:
        name = self.rng.choice(CONSUMERS)
        await self.admin.api(f"CONSUMER.DELETE.{STREAM}.{name}", seconds=2.0)
        await self._make(name)
        self.count("made again")

    async def _update(self) -> None:
        await self._make(self.rng.choice(CONSUMERS))
        self.count("updated")

    async def _consume(self, name: str) -> None:
        """Acknowledges some of what comes: the rest waits, comes again, or goes with its message."""
        session = await self.session(f"pull-{name}")

        async def take(msg: Msg) -> None:
            self.count("delivered")
            if self.rng.random() < 0.3:
                await session.request(msg.reply, self.rng.choice([b"+ACK", b"-NAK", b"+WPI"]), seconds=1.0)

        while not self.stopping:
            await self.pull(session, STREAM, name, take, batch=self.rng.choice([10, 100]))
        await session.close()

    # ---- afterwards

    async def check(self) -> None:
        """All is as a stream with these messages has it: what may wait, what is waited for, and nothing else."""
        for name in CONSUMERS:
            await self.insist(f"{name} is there", functools.partial(self._as_it_is, name))
        session = await self.session("check")
        for _ in range(NEW):
            await self.store(session, "trim.1", str(self.sent))
            self.sent += 1
        there = await self.insist("what is left", lambda: self.contents(session, STREAM))
        for name in CONSUMERS:
            await self._counts(session, name, there)
        seq = max(there) - 1  # which nobody has got yet, and all are to
        await self.insist("MSG.DELETE", lambda: session.api(f"STREAM.MSG.DELETE.{STREAM}", {"seq": seq}))
        del there[seq]
        for name in CONSUMERS:
            await self._counts(session, name, there)
            await self._drain(session, name, there)
        names = await self.insist("CONSUMER.NAMES", lambda: session.api(f"CONSUMER.NAMES.{STREAM}"))
        Exact.equal("the consumers", sorted(names["consumers"]), sorted(CONSUMERS))
        await session.close()

    async def _as_it_is(self, name: str) -> None:
        try:
            info = await self.admin.api(f"CONSUMER.INFO.{STREAM}.{name}")
        except ApiError as error:
            if error.err_code != 10014:
                raise
            await self._make(name)
        else:
            self.filters[name] = info["config"].get("filter_subjects") or []

    def _matching(self, name: str, there: dict[int, Msg]) -> list[int]:
        filters = self.filters[name]
        return [
            seq
            for seq, msg in there.items()
            if not filters or "trim.*" in filters or msg.headers["Nats-Subject"] in filters
        ]

    async def _counts(self, session: Session, name: str, there: dict[int, Msg]) -> None:
        info = await self.insist("CONSUMER.INFO", lambda: session.api(f"CONSUMER.INFO.{STREAM}.{name}"))
        delivered = info["delivered"]["stream_seq"]
        pending = [seq for seq in self._matching(name, there) if seq > delivered]
        Exact.equal(f"{name}: num_pending behind {delivered}", info["num_pending"], len(pending))
        before = [seq for seq in there if seq <= delivered]
        Exact.between(f"{name}: num_ack_pending", info["num_ack_pending"], 0, len(before))
        Exact.between(f"{name}: num_redelivered", info["num_redelivered"], 0, info["num_ack_pending"])

    async def _drain(self, session: Session, name: str, there: dict[int, Msg]) -> None:
        """Everything that waits comes, and nothing that is gone."""

        async def take(msg: Msg) -> None:
            seq = Delivered.of(msg).seq
            self.require(seq in there, f"{name}: {seq} is delivered, and is gone")
            await session.request(msg.reply, b"+ACK", seconds=1.0)

        async def is_empty() -> bool:
            await self.pull(session, STREAM, name, take, batch=100)
            info = await session.api(f"CONSUMER.INFO.{STREAM}.{name}")
            return bool(info["num_pending"] == info["num_ack_pending"] == info["num_redelivered"] == 0)

        await self.until(f"nothing is pending for {name}", is_empty)
