"""Commands that no server writes, in the logs of streams and of the meta group: a leader's mistake, or bytes that were
damaged before any checksum. Replicas refuse them alike, no server ends, and nothing acknowledged is lost."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Final

from jetcluster.raft.api import RaftError
from jetcluster.replica.proposals import OutcomeUnknownError
from testkit.sim.answers import BAD_META_COMMAND
from testkit.sim.machine import Machine
from testkit.sim.session import Msg, Session
from testkit.sim.trace import REFUSED
from tests.sim.cluster import foreign, replicas
from tests.sim.cluster.judges import Log
from tests.sim.cluster.workload import PASSING, Workload
from tests.sim.cluster.workloads.header_exam import HEADERS

STREAM, MIRROR, SOURCING = "FOREIGN", "FOREIGN-MIRROR", "FOREIGN-SOURCE"
"""Streams that the commands may not change. The last two copy the first one."""
ALL: Final[dict[str, Any]] = {
    "allow_msg_ttl": True, "allow_msg_schedules": True, "allow_rollup_hdrs": True, "allow_atomic": True,
    "allow_batched": True,
}  # fmt: skip
CONSUMERS: Final[dict[str, dict[str, Any]]] = {
    "explicit": {}, "all": {"ack_policy": "all"}, "none": {"ack_policy": "none"},
    "few": {"max_deliver": 2, "ack_wait": 1_000_000_000, "priority_groups": ["a"], "priority_policy": "pinned_client",
            "priority_timeout": 1_000_000_000},
}  # fmt: skip
WILD: Final[dict[str, dict[str, Any]]] = {
    "plain": ALL,
    "counted": {"allow_msg_counter": True},
    "full": {"max_msgs_per_subject": 2, "discard": "new", "discard_new_per_subject": True, "max_msg_size": 300},
    "small": {"max_bytes": 3_000, "max_msgs": 9, **ALL},
    "queue": {"retention": "workqueue"},
    "interest": {"retention": "interest"},
}
"""By name streams with which the commands may do what they like, as long as replicas stay alike."""
WAIT: Final = 3.0
"""Seconds until a command is applied, or its leader is gone."""
AT_ONCE: Final = 12


class ForeignCommands(Workload):
    name = "foreign-commands"
    weight = 0
    newest = True
    judges = (Log,)
    promises = (
        "a command that cannot be carried out is refused by all replicas alike, and the stream goes on",
        "the meta group refuses what it cannot carry out, and nothing of it has an effect",
    )

    async def prepare(self) -> None:
        self.deployment.expected |= {REFUSED, BAD_META_COMMAND}
        self.log = Log()
        self.admin = await self.session("admin")
        await self.create(self.admin, STREAM, subjects=["foreign.>"], **ALL)
        await self.create(self.admin, MIRROR, mirror={"name": STREAM})
        await self.create(self.admin, SOURCING, sources=[{"name": STREAM}])
        for name, config in CONSUMERS.items():
            await self.create_consumer(self.admin, STREAM, name, **config)
        self.kinds = self.rng.sample(sorted(WILD), 2)
        for kind in self.kinds:
            await self.create(self.admin, _wild(kind), subjects=[f"wild.{kind}.>"], **WILD[kind])
            for name in ("explicit",) if kind in ("queue", "interest") else CONSUMERS:
                await self.create_consumer(self.admin, _wild(kind), name, **CONSUMERS[name])
        self.blocks = [b"", *(
            f"NATS/1.0\r\n{name}: {value}\r\n\r\n".encode() for name, values in HEADERS.items() for value in values
        )]  # fmt: skip

    async def work(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._write())
            group.create_task(self._consume())
            group.create_task(self._foreign())

    async def _write(self) -> None:
        session = await self.session("write")
        async for count in self.turns(5.0):
            await self.store_logged(self.log, session, f"foreign.{count % 3}", str(count))

    async def _consume(self) -> None:
        session = await self.session("pull")

        async def take(msg: Msg) -> None:
            session.publish(msg.reply, b"+ACK")
            self.count("delivered")

        async for _ in self.turns(1.0):
            await self.pull(session, STREAM, "explicit", take, 5)

    async def _foreign(self) -> None:
        async for number in self.turns(3.0):
            match number % 5:
                case 0:
                    await self.on_streams(
                        [STREAM, MIRROR, SOURCING], lambda found: foreign.damaged(found.machine.clock)
                    )
                case 1:
                    await self.on_streams([STREAM], lambda found: foreign.void(self.rng, found))
                    await self.on_streams([MIRROR, SOURCING], foreign.copied)
                case 2:
                    await self.on_streams([STREAM], self._void_turns)
                    some = self.rng.choice(foreign.parts(1))
                    await self.propose(STREAM, some)
                case 3:
                    await self.on_meta()
                case 4:
                    for _ in range(AT_ONCE):
                        await self.on_streams([_wild(kind) for kind in self.kinds], self._wild_ones)

    def _void_turns(self, replica: Any) -> list[bytes]:
        states = list(replica.table.by_cid.values())
        return foreign.void_turns(replica, self.rng.choice(states)) if states else []

    def _wild_ones(self, replica: Any) -> list[bytes]:
        subjects = [f"wild.{kind}.{end}".encode() for kind in self.kinds for end in ("x", "y.z")]
        subjects = [one for one in subjects if _wild(one.split(b".")[1].decode()) == replica.assignment.name]
        subjects += [subjects[0] + b"." + b"t." * 60 + b"t"] if self.rng.random() < 0.1 else []
        return foreign.wild(self.rng, replica, self.blocks, subjects)

    async def on_streams(self, streams: Sequence[str], commands: Callable[[Any], list[bytes]]) -> None:
        """Has the leader of one of the streams propose some of the commands."""
        stream = self.rng.choice(streams)
        found = [one for one in replicas.replicas(self.deployment, stream).values() if one.leading]
        if found and (some := commands(found[0])):
            some = some if len(some) < 3 else self.rng.sample(some, min(AT_ONCE, len(some)))
            if all(map(foreign.is_known, some)):
                await self.propose(stream, some)

    async def propose(self, stream: str, some: Sequence[bytes]) -> None:
        """Has the leader propose these in a row, and waits until they are applied there."""
        for name, replica in replicas.replicas(self.deployment, stream).items():
            machine = self.deployment.machines[name]
            if replica.leading and machine.ready and not machine.paused:
                await self._applied(machine, replica.group, some)
                return

    async def _applied(self, machine: Machine, group: Any, some: Sequence[bytes]) -> bool:
        """True when they are applied by this leader."""
        told: list[int] = []
        loop = machine.loop
        if loop is None:
            return False

        def propose() -> None:
            try:
                told.extend(group.propose(command) for command in some)
            except RaftError:
                self.count("not proposed")

        loop.from_outside(propose)
        end = self.now + WAIT
        while self.now < end and (len(told) < len(some) or group.applied_index < told[-1]):
            await asyncio.sleep(0.05)
        is_so = len(told) == len(some) and group.applied_index >= told[-1]
        self.count("applied", len(some) * is_so)
        return is_so

    async def on_meta(self) -> None:
        """Has the meta leader propose some commands that must be refused, one after the other."""
        for name, jetstream in replicas.jetstreams(self.deployment):
            meta, machine = jetstream.meta, self.deployment.machines[name]
            own = next((one for one in meta.machine.all_assignments() if one.name == STREAM), None)
            if not meta.leading or own is None or not machine.ready or machine.paused:
                continue
            some = foreign.refused_by_meta(self.rng, own, meta.machine.nodes, meta.machine.removed)
            some = [*self.rng.sample(some, AT_ONCE), self.rng.choice(foreign.NO_COMMANDS)]
            await self._refused(machine, meta, some)
            return

    async def _refused(self, machine: Machine, meta: Any, some: Sequence[bytes]) -> None:
        told: list[tuple[bytes, dict[str, Any]]] = []
        loop = machine.loop
        if loop is None:
            return

        async def propose() -> None:
            try:
                told.extend([(command, await meta.propose(command)) for command in some])
            except (RaftError, OutcomeUnknownError):
                self.count("not proposed")

        loop.from_outside(lambda: loop.create_task(propose()))
        end = self.now + WAIT
        while self.now < end and not told:
            await asyncio.sleep(0.05)
        self.count("applied", len(told))
        for command, verdict in told:
            self.require("error" in verdict, f"the meta group has carried out {command!r}: {verdict}")

    async def check(self) -> None:
        await self.everywhere(STREAM, max(self.log.acked, default=0), self._look)
        await self.everywhere(MIRROR, max(self.log.acked, default=0), self._look)
        await self._copies()
        for kind in self.kinds:
            await self._is_of_use(kind)

    def _look(self, where: str, contents: dict[int, Msg]) -> None:
        self.stored(self.log, where, contents)

    async def _copies(self) -> None:
        texts = {text for seq, text in self.log.acked.items() if seq in set(self.log.kept)}

        async def whole() -> bool:
            found = await self.contents(self.admin, SOURCING)
            there = {msg.payload.decode() for msg in found.values()}
            self.require(there <= self.log.sent, f"{SOURCING} has what nobody sent: {there - self.log.sent}")
            return texts <= there

        await self.until(f"{SOURCING} has all of {STREAM}", whole)

    async def _is_of_use(self, kind: str) -> None:
        """A stream, whatever it has come to, is emptied, takes a message, gives it and is deleted."""
        session, stream = self.admin, _wild(kind)
        await self.insist(f"{stream} is emptied", lambda: session.api(f"STREAM.PURGE.{stream}"))
        if kind == "interest":
            await self.create_consumer(session, stream, "end")
        headers = {"Nats-Incr": "1"} if kind == "counted" else {}
        ack = await self.insist(f"{stream} goes on", lambda: session.js_publish(f"wild.{kind}.end", b"", headers))
        self.require(ack["stream"] == stream, f"{ack} is no ack of {stream}")
        await self.insist("what it has", lambda: self._has_end(session, stream, int(ack["seq"])))
        await self.insist(f"{stream} is deleted", lambda: self._delete(session, stream))

    async def _has_end(self, session: Session, stream: str, seq: int) -> None:
        answer = await session.api(f"STREAM.MSG.GET.{stream}", {"seq": seq})
        self.require(answer["message"]["seq"] == seq, f"{stream} has {answer} at {seq}")

    async def _delete(self, session: Session, stream: str) -> None:
        try:
            await session.api(f"STREAM.DELETE.{stream}")
        except PASSING as error:
            if "stream not found" not in repr(error):
                raise


def _wild(kind: str) -> str:
    return f"WILD-{kind.upper()}"
