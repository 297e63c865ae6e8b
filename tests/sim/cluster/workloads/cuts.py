"""A stream out of which much goes at a time, one thing behind the other before the first is done: limits become
narrower twice, subjects are rolled up, purges leave a few. One client does it all, so that all that stays is known."""

from __future__ import annotations

import asyncio
from typing import Any

from testkit.sim.session import Msg, Session
from tests.sim.cluster.judges import Kept, require
from tests.sim.cluster.workload import SECOND, Workload

STREAM = "CUTS"
WINDOW = 600 * SECOND
"""The duplicate_window: longer than a message is sent again and again."""
MANY = (10, 40, 80)
"""Messages of a cycle, before most of them go."""
AT_ONCE = (4, 20, 20)
"""Messages that come together, so that several are stored together."""
UNLIMITED = 1_000_000


class Cuts(Workload):
    name = "cuts"
    weight = 0
    judges = (Kept,)
    promises = (
        "limits that become narrower, rollups and purges leave exactly the messages that they are to, also one behind "
        "the other",
        "a stream's bytes are those of its messages",
    )

    async def prepare(self) -> None:
        self.sent = 0
        self.there: dict[int, str] = {}
        """The subject of each message that the stream has."""
        self.admin = await self.session("admin")
        self.limit = UNLIMITED
        await self.create(self.admin, STREAM, **self._config(UNLIMITED))

    def _config(self, limit: int) -> dict[str, Any]:
        config = {"max_msgs_per_subject": limit, "allow_rollup_hdrs": True, "duplicate_window": WINDOW}
        return config | {"name": STREAM, "subjects": ["cuts.*"], "num_replicas": 3, "allow_direct": True}

    async def work(self) -> None:
        acts = [self._narrow, self._roll_up, self._leave_few]
        async for _ in self.turns(1.0):
            act, subjects, at_once = self.rng.choice(acts), self.rng.choice(["a", "ab"]), self.rng.choice(AT_ONCE)
            for _ in range(self.rng.choice(MANY) // at_once + 1):
                await self._store(*(self.rng.choice(subjects) for _ in range(at_once)))
            await act()
            await self._compare()
            await self._begin_again()

    async def _store(self, *subjects: str, then: str = "", apart: float = 0.0) -> None:
        """Messages that are sent at once, and others a little later. A capital rolls up its subject: all before it are
        gone."""
        first, self.sent = self.sent, self.sent + len(subjects) + len(then)
        letters = [*subjects, *then]

        async def send(at: int) -> tuple[int, str]:
            await asyncio.sleep(0.0 if at < len(subjects) else apart)
            letter = letters[at]
            headers = {"Nats-Rollup": "sub"} if letter.isupper() else None
            ack = await self.store(self.admin, f"cuts.{letter.lower()}", f"{first + at:08d}", headers)
            return int(ack["seq"]), letter

        for seq, letter in sorted(await asyncio.gather(*map(send, range(len(letters))))):
            subject = letter.lower()
            if letter.isupper():
                self._drop(subject, 0)
            self.there[seq] = subject
            self._drop(subject, self.limit)

    def _drop(self, subject: str, keep: int) -> None:
        """All but the newest messages of a subject are gone."""
        seqs = sorted(seq for seq, one in self.there.items() if one == subject)
        for seq in seqs[: len(seqs) - min(keep, len(seqs))]:
            del self.there[seq]

    async def _update(self, limit: int) -> None:
        await self.insist(
            f"a limit of {limit}", lambda: self.admin.api(f"STREAM.UPDATE.{STREAM}", self._config(limit), seconds=3.0)
        )

    async def _narrow(self) -> None:
        """The second limit comes while there is still work for the first one; it is the one that is left."""
        await asyncio.gather(self._update(8), self._update(2))
        await self._update(2)
        self.limit = 2
        for subject in set(self.there.values()):
            self._drop(subject, self.limit)
        self.count("narrowed")

    async def _roll_up(self) -> None:
        """Messages of another subject come between two that roll up the first one."""
        apart = self.rng.choice([0.0, self.rng.uniform(0.0, 0.01)])
        await self._store(*self.rng.choice(["A", "Aaaaaaa"]), then="bAb", apart=apart)
        self.count("rolled up")
        oldest = min(seq for seq, subject in self.there.items() if subject == "a")
        body = {"seq": 1, "next_by_subj": "cuts.a"}
        answer = await self.insist("the oldest", lambda: self.admin.api(f"STREAM.MSG.GET.{STREAM}", body, seconds=2.0))
        found = answer["message"]["seq"]
        require(found == oldest, f"{self.name}: {found} is there when {oldest} is acknowledged, which rolled it up")

    async def _leave_few(self) -> None:
        keep = self.rng.randint(1, 5)
        seqs = sorted(self.there)
        body = {"keep": keep} if self.rng.random() < 0.5 else {"seq": seqs[-keep]}
        await self.insist("a purge", lambda: self.admin.api(f"STREAM.PURGE.{STREAM}", body, seconds=3.0))
        self.there = {seq: self.there[seq] for seq in seqs[-keep:]}
        self.count("purged")

    async def _begin_again(self) -> None:
        await self.insist("a purge of all", lambda: self.admin.api(f"STREAM.PURGE.{STREAM}", seconds=3.0))
        self.there = {}
        await self._update(UNLIMITED)
        self.limit = UNLIMITED

    async def _compare(self) -> None:
        """Long work is done in pieces; once it is, just what is to stay is there."""

        async def is_so() -> bool:
            state = (await self.admin.api(f"STREAM.INFO.{STREAM}", seconds=2.0))["state"]
            return int(state["messages"]) == len(self.there)

        await self.until(f"{len(self.there)} messages are left", is_so)

    async def check(self) -> None:
        await self._store(*"ab" * 20)
        await self._leave_few()
        await self._compare()
        await self.everywhere(STREAM, max(self.there), self._look)
        await self._bytes(self.admin)

    def _look(self, where: str, contents: dict[int, Msg]) -> None:
        found = {seq: msg.headers["Nats-Subject"].partition(".")[2] for seq, msg in contents.items()}
        require(found == self.there, f"{self.name}: {where} has {found}, and {self.there} are to be there")

    async def _bytes(self, session: Session) -> None:
        """All messages are as long, so that they are as many times the bytes of one."""
        state = await self.insist("INFO", lambda: self._state(session))
        await self.insist("a purge", lambda: session.api(f"STREAM.PURGE.{STREAM}", {"keep": 1}))
        one = await self.insist("INFO of one", lambda: self._state(session))
        wanted = one["bytes"] * state["messages"]
        require(
            state["bytes"] == wanted,
            f"{self.name}: {state['messages']} messages of {one['bytes']} bytes have {state['bytes']} bytes",
        )

    async def _state(self, session: Session) -> dict[str, Any]:
        state: dict[str, Any] = (await session.api(f"STREAM.INFO.{STREAM}"))["state"]
        return state
