"""Messages that are deleted and purged: gone for good on every replica, and nothing else with them."""

from __future__ import annotations

import asyncio
from typing import Any

from testkit.sim.machine import Machine
from testkit.sim.session import ApiError, Msg, Session
from tests.sim.cluster.judges import Log
from tests.sim.cluster.machine_faults import restart, start
from tests.sim.cluster.workload import NOT_FOUND, PASSING, Writers, together

STREAM = "DELETE"
SUBJECTS = "abcd"
AT_ONCE = (1, 1, 1, 1, 1, 1, 1, 8)
"""Messages at a time: those that come together are stored together."""
NO_MESSAGE = 10043
ERASED = 120.0
"""Seconds after which what was erased is on no disk any more: twice what the documentation says, for slow disks."""
LOOK = 10.0
"""Seconds between two looks at all disks."""
SECRETS = 3
FLUSHED = 40.0
"""Seconds after which a server has done most of what an erasure leaves to do."""
BESIDE = 60
"""Messages that are stored while a server is away: logs may have forgotten the erasure then."""


class Deletes(Writers):
    name = "deletes"
    stream = STREAM
    judges = (Log,)
    promises = (
        "a message whose MSG.DELETE was acknowledged is gone, from every replica and every read",
        "a purge removes what was stored before it, and nothing that it does not name",
        "what MSG.DELETE erases is on no disk any more after a while",
        "a deletion that servers repeat among each other says that it is done",
    )

    async def prepare(self) -> None:
        self.log = Log()
        self.subjects: dict[int, str] = {}
        self.gone: set[int] = set()
        """Removed for sure."""
        self.doubtful: set[int] = set()
        """Named by a removal whose answer never came."""
        size = self.rng.choice([1, 3, 3])
        self.purged: dict[str, int] = {}
        """By subject, the sequence below which a purge may have removed what was not known to be stored yet."""
        admin = await self.session("admin")
        await self.create(admin, STREAM, subjects=["delete.*"], num_replicas=size)

    async def work(self) -> None:
        await together(self._write(), self._remove(), self._read())

    async def _write(self) -> None:
        session = await self.session("write")
        async for count in self.turns(10.0):
            texts = [f"{count}.{number}" for number in range(self.rng.choice(AT_ONCE))]
            await asyncio.gather(*(self._store(session, text) for text in texts))

    async def _store(self, session: Session, text: str) -> None:
        subject = f"delete.{self.rng.choice(SUBJECTS)}"
        ack = await self.store_logged(self.log, session, subject, text)
        self.subjects[int(ack["seq"])] = subject

    async def _remove(self) -> None:
        session = await self.session("remove")
        async for _ in self.turns(3.0):
            there = sorted(self.subjects.keys() - self.gone - self.doubtful)
            if not there:
                continue
            if self.rng.random() < 0.8:
                seq = self.rng.choice(there)
                body = {"seq": seq, "no_erase": self.rng.random() < 0.5}
                await self._try(session, "MSG.DELETE", body, {seq})
                continue
            subject, before = self.rng.choice(sorted(set(self.subjects.values()))), self.rng.choice(there)
            named = {seq for seq in there if seq < before and self.subjects[seq] == subject}
            self.purged[subject] = max(self.purged.get(subject, 0), before)
            await self._try(session, "PURGE", {"filter": subject, "seq": before}, named)

    async def _try(self, session: Session, verb: str, body: dict[str, object], named: set[int]) -> None:
        self.doubtful |= named
        try:
            await session.api(f"STREAM.{verb}.{STREAM}", body, seconds=3.0)
        except ApiError as error:
            if error.err_code != NO_MESSAGE:
                return
            # Servers ask again by themselves when a leader is gone: one outcome. Nobody else removes anything.
            purged = any(seq < self.purged.get(self.subjects[seq], 0) for seq in named)
            self.require(purged, f"{named} is deleted once, and not found")
        except PASSING:
            return
        self.count(verb)
        self.doubtful -= named
        self.gone |= named

    async def _read(self) -> None:
        session = await self.session("read")
        async for _ in self.turns(5.0):
            if not self.subjects:
                continue
            seq = self.rng.choice(sorted(self.subjects))
            gone = seq in self.gone
            text: str | None = None
            try:
                answer = await session.api(f"STREAM.MSG.GET.{STREAM}", {"seq": seq}, seconds=2.0)
                text = self.text_of(answer["message"])
            except ApiError as error:
                if error.err_code != NOT_FOUND:
                    continue
            except PASSING:
                continue
            self.count("read")
            if gone:
                self.require(text is None, f"{seq} was deleted and is read")
            elif seq not in self.gone | self.doubtful:
                self.log.read(seq, text)

    async def check(self) -> None:
        await self._erase()
        await super().check()

    async def _erase(self) -> None:
        """Messages are stored, one alone and others together with some that stay, and erased."""
        session = await self.session("erase")
        secrets = [f"secret {self.rng.getrandbits(64):016x}".encode() for _ in range(SECRETS)]
        acks: list[dict[str, Any]] = []
        for some in (secrets[:1], secrets[1:]):
            storing = asyncio.gather(
                *(self.store(session, "delete.a", secret.decode()[:12], payload=secret) for secret in some)
            )
            await asyncio.gather(*(self._store(session, f"beside {number}") for number in range(3 * (len(some) - 1))))
            acks += await storing
        away = await self._one_leaves(session)
        for ack in acks:
            await self.insist("an erasure", lambda seq=ack["seq"]: self._delete(session, seq))
        if away is not None:
            await self._return(session, away)
        await self._end_some()
        end = self.now + ERASED
        while found := self._found(secrets):
            self.require(self.now < end, f"what was erased {ERASED:g} s ago is in {found}")
            await asyncio.sleep(LOOK)
        await session.close()

    async def _one_leaves(self, session: Session) -> Machine | None:
        """Where the others are a majority a server may be away while messages are erased."""
        cluster = (await self.insist("its replicas", lambda: session.api(f"STREAM.INFO.{STREAM}")))["cluster"]
        if len(cluster.get("replicas") or ()) < 2 or self.rng.random() < 0.3:  # a fault may have scaled it
            return None
        await asyncio.sleep(self.rng.uniform(0.0, FLUSHED))
        machine = self.deployment.machines[self.rng.choice(self.members)]
        if not machine.runs or len(self.members) < 3:
            return None
        self.deployment.off.add(machine.name)
        machine.kill()
        return machine

    async def _return(self, session: Session, away: Machine) -> None:
        """It comes back when the others have flushed, and their logs may not reach back to the erasure."""
        for number in range(BESIDE):
            await self._store(session, f"meanwhile {number}")
        await asyncio.sleep(self.rng.uniform(FLUSHED, 3 * FLUSHED))
        self.deployment.off.discard(away.name)
        start(away)
        self.count("erases while one is away")
        while not away.ready:
            await asyncio.sleep(0.1)

    async def _end_some(self) -> None:
        """Servers end before, while or after they have done what an erasure leaves to do."""
        await asyncio.sleep(self.rng.uniform(0.0, FLUSHED))
        for machine in list(self.deployment.machines.values()):
            how = self.rng.choice(("stays", "is stopped", "is killed"))
            if how == "stays" or not machine.runs:
                continue
            if how == "is stopped":
                await restart(machine, self.rng)
            else:
                machine.kill()
                await asyncio.sleep(self.rng.uniform(0.0, 1.0))
                start(machine)
            self.count(f"erases, and one {how}")
            while not machine.ready:
                await asyncio.sleep(0.1)

    async def _delete(self, session: Session, seq: int) -> None:
        try:
            await session.api(f"STREAM.MSG.DELETE.{STREAM}", {"seq": seq}, seconds=3.0)
        except ApiError as error:
            if error.err_code != NO_MESSAGE:  # done, and its answer was lost
                raise

    def _found(self, secrets: list[bytes]) -> list[str]:
        """Files that have one of them."""
        return [
            f"{machine.name}:{path}"
            for machine in self.deployment.machines.values()
            for path, file in machine.disk.tree()
            if any(secret in data for data in (file.read(0, file.size),) for secret in secrets)
        ]

    def _look(self, where: str, contents: dict[int, Msg]) -> None:
        unknown = {seq for seq in self.doubtful if seq not in contents}
        self.stored(self.log, where, contents, self.gone | unknown)
