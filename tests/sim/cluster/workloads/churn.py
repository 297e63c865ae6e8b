"""Streams and consumers that come, change and go: created, scaled, moved, their leaders sent away, deleted."""

from __future__ import annotations

import asyncio
from random import Random

from testkit.sim.deployment import Deployment
from testkit.sim.session import ApiError, Msg, Session
from tests.sim.cluster.invariants import jetstream_of
from tests.sim.cluster.judges import Log
from tests.sim.cluster.workload import NO_STREAM, PASSING, UNAVAILABLE, Workload, together

OWNERS = 2
WINDOW = 60.0
"""Seconds of the `duplicate_window` that some get."""
AT_ONCE = 1.0
"""Seconds between INFO and the answer of a cancel in which nobody else's change begins and ends."""


class Churn(Workload):
    name = "churn"
    weight = 2
    judges = (Log,)
    promises = (
        "an acknowledged message is kept while its stream is scaled, moved to other servers and led by others",
        "a stream whose creation was acknowledged is there, one whose deletion was acknowledged is not",
        "a request for a deletion that servers repeat among each other has one outcome",
        "a change of the number of replicas that is cancelled goes back to the number that INFO has named",
    )

    def __init__(self, deployment: Deployment, rng: Random) -> None:
        super().__init__(deployment, rng)
        self.logs: dict[str, Log] = {}
        self.deleted: list[str] = []

    async def prepare(self) -> None:
        self.paces = [self.rng.uniform(0.5, 3.0) for _ in range(OWNERS)]

    async def work(self) -> None:
        await together(*(self._own(number) for number in range(OWNERS)))

    async def _own(self, number: int) -> None:
        """One stream after the other, whose names are never used again: a late retry of a deletion hits nobody."""
        session = await self.session(f"own{number}")
        life = 0
        while not self.stopping:
            life += 1
            stream = f"CHURN_{number}_{life}"
            await self.create_own(session, stream, self.rng.choice([1, 3]))
            scales = [self._scale, self._scale_and_cancel]
            acts = [*scales, self._stepdown, self._remove_peer, self._consumer, self._update]
            for _ in range(self.rng.randint(2, 8)):
                if self.stopping:
                    break
                await self._write(session, stream)
                try:
                    await self.rng.choice(acts)(session, stream)
                except PASSING:
                    self.count("uncertain")
                await asyncio.sleep(self.rng.expovariate(self.paces[number]))
            if not self.stopping and self.rng.random() < 0.7:
                await self._delete(session, stream)
        await session.close()

    async def create_own(self, session: Session, stream: str, copies: int) -> None:
        config = {"name": stream, "subjects": [f"{stream}.>"], "allow_direct": True}

        async def create() -> None:
            try:
                await session.api(f"STREAM.CREATE.{stream}", config | {"num_replicas": copies})
            except ApiError as error:
                if error.err_code != UNAVAILABLE or not self.is_lost(stream):
                    raise
            if self.is_lost(stream):
                self.count("lost before they were created")
                await session.api(f"STREAM.DELETE.{stream}")
                await create()

        with self.deployment.resizing(copies) as copies:
            await self.insist(f"creating {stream}", create)
        self.logs[stream] = Log()
        self.count("created")

    def is_lost(self, stream: str) -> bool:
        """Its one replica was given to a server that had just lost its disk, which the others found out after seconds.
        An empty stream elsewhere would hide a loss, so such a stream stays as it is, and docs/membership/rescue.md asks
        for it to be deleted and created again. No message of it was ever acknowledged: the disk where it was is spared.
        Its creation may have been: it is decided once the meta group knows the stream, led or not."""
        lost = {peer for machine in self.deployment.machines.values() for peer in machine.lost_peers}
        found = [jetstream for machine in self.deployment.running if (jetstream := jetstream_of(machine)) is not None]
        assigned = [
            next((one for one in jetstream.meta.machine.all_assignments() if one.name == stream), None)
            for jetstream in found
        ]
        return any(one is not None and len(one.peers) == 1 and lost.issuperset(one.peers) for one in assigned)

    async def _write(self, session: Session, stream: str) -> None:
        log = self.logs[stream]
        for _ in range(self.rng.randint(1, 10)):
            text = f"{len(log.sent)}"
            await self.store_logged(log, session, f"{stream}.x", text)

    async def _change(self, session: Session, stream: str, **changes: object) -> None:
        config = (await session.api(f"STREAM.INFO.{stream}"))["config"]
        await session.api(f"STREAM.UPDATE.{stream}", config | changes)

    async def _scale(self, session: Session, stream: str) -> None:
        sizes = [1, 3, 5] if len(self.members) >= 5 else [1, 3]
        with self.deployment.resizing(self.rng.choice(sizes)) as copies:
            await self._change(session, stream, num_replicas=copies)
        self.count("scaled")

    async def _scale_and_cancel(self, session: Session, stream: str) -> None:
        await self._scale(session, stream)
        await asyncio.sleep(self.rng.choice([0.0, 0.05, 0.5]))
        with self.deployment.resizing(1) as copies:
            if copies == 1:  # it may come to have one replica
                await self._cancel(session, stream)

    async def _cancel(self, session: Session, stream: str) -> None:
        began = self.now
        desired = (await session.api(f"STREAM.INFO.{stream}"))["cluster"].get("desired")
        found = await self.cancelled(session, stream)
        if found is None:
            return
        self.count("scaled, and cancelled")
        back = found["config"]["num_replicas"]
        if desired is None or self.deployment.asked or self.now - began > AT_ONCE:
            return  # it may be somebody else's change
        origin = desired["origin"]["replicas"]
        self.require(back == origin, f"{stream} has {back} replicas after a cancel, and was to have {origin} again")

    async def _update(self, session: Session, stream: str) -> None:
        self.logs[stream].remembers = WINDOW  # from some time on, also where no answer says so
        await self._change(session, stream, description=f"at {self.now:.0f}", duplicate_window=int(WINDOW * 1e9))
        self.count("updated")

    async def _stepdown(self, session: Session, stream: str) -> None:
        await session.api(f"STREAM.LEADER.STEPDOWN.{stream}")
        self.count("stepped down")

    async def _remove_peer(self, session: Session, stream: str) -> None:
        await session.api(f"STREAM.PEER.REMOVE.{stream}", {"peer": self.rng.choice(self.members)})
        self.count("peers removed")

    async def _consumer(self, session: Session, stream: str) -> None:
        name = self.rng.choice(["one", "two"])
        if self.rng.random() < 0.5:
            config = {"durable_name": name, "ack_policy": "explicit"}
            body = {"stream_name": stream, "config": config}
            await session.api(f"CONSUMER.DURABLE.CREATE.{stream}.{name}", body)
            self.count("consumers created")
        elif self.rng.random() < 0.5:
            await session.api(f"CONSUMER.LEADER.STEPDOWN.{stream}.{name}")
        else:
            await session.api(f"CONSUMER.DELETE.{stream}.{name}")
            self.count("consumers deleted")

    async def _delete(self, session: Session, stream: str) -> None:
        times = 0

        async def delete() -> None:
            nonlocal times
            times += 1
            try:
                await session.api(f"STREAM.DELETE.{stream}")
            except ApiError as error:
                if error.err_code != NO_STREAM:
                    raise
                # Servers ask again by themselves when a leader of the meta group is gone: one outcome.
                self.require(times > 1, f"{stream} is deleted once, and not found")

        del self.logs[stream]
        await self.insist(f"deleting {stream}", delete)
        self.deleted.append(stream)
        self.count("deleted")

    async def check(self) -> None:
        for stream, log in self.logs.items():

            def look(where: str, contents: dict[int, Msg], log: Log = log, stream: str = stream) -> None:
                self.stored(log, f"{where}, {stream}", contents)

            await self.everywhere(stream, max(log.acked, default=0), look)
        session = await self.session("check")
        names = await self.insist("STREAM.NAMES", lambda: session.api("STREAM.NAMES"))
        there = [name for name in self.deleted if name in (names["streams"] or ())]
        self.require(not there, f"{there} were deleted and are there")
        await session.close()
