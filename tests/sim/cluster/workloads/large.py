"""A stream with more messages than a command removes at once: purges and limits that go on in pieces, whoever leads."""

from __future__ import annotations

import asyncio

from testkit.sim.session import Msg
from tests.sim.cluster.judges import Exact
from tests.sim.cluster.workload import PASSING, Workload

STREAM = "LARGE"
COUNT = 4_400
"""More than `jetcluster.stream.apply.jobs.MAX_DIRECT_REMOVALS`."""
AT_ONCE = 400
SUBJECTS = 4


class Large(Workload):
    name = "large"
    judges = (Exact,)
    promises = ("a purge or a limit that takes thousands of messages leaves exactly what it is to, on every replica",)

    async def prepare(self) -> None:
        self.kept: dict[int, str] = {}
        """The texts that are there now, by sequence."""
        self.most = self.per_subject = 0
        """Limits, once they are there."""
        self.kind = self.rng.randrange(3)
        """The kind of the purge."""
        self.admin = await self.session("admin")
        await self.create(self.admin, STREAM, subjects=["large.*"])
        for start in range(1, COUNT + 1, AT_ONCE):
            await asyncio.gather(*(self.write(number) for number in range(start, start + AT_ONCE)))

    async def write(self, number: int) -> None:
        subject = f"large.{number % SUBJECTS}"
        ack = await self.store(self.admin, subject, str(number))
        self.kept[int(ack["seq"])] = f"{subject} {number}"

    async def work(self) -> None:
        await asyncio.sleep(self.rng.uniform(0.0, 6.0))
        await self.insist("the cut", self.rng.choice([self._purge, self.limit, self.limit_subjects]))
        number = COUNT
        async for _ in self.turns(2.0):
            number += 1
            await self.write(number)

    async def _purge(self) -> None:
        """The same each time that it is asked for: up to a sequence, or by subject, some of the newest kept."""
        seqs = sorted(self.kept)
        request, gone = self._purge_of(seqs)
        await self.admin.api(f"STREAM.PURGE.{STREAM}", request, seconds=4.0)
        for seq in gone:
            del self.kept[seq]
        self.count("purged", len(gone))

    def _purge_of(self, seqs: list[int]) -> tuple[dict[str, object], list[int]]:
        if self.kind == 0:
            up_to = seqs[-100]
            return {"seq": up_to}, [seq for seq in seqs if seq < up_to]
        if self.kind == 1:
            return {"keep": 50}, seqs[:-50]
        own = [seq for seq in seqs if self.kept[seq].startswith("large.1 ")]
        return {"filter": "large.1", "keep": 10}, own[:-10]

    async def limit(self) -> None:
        await self._update(max_msgs=120)
        self.most = 120

    async def limit_subjects(self) -> None:
        await self._update(max_msgs_per_subject=20)
        self.per_subject = 20

    async def _update(self, **changes: int) -> None:
        config = (await self.admin.api(f"STREAM.INFO.{STREAM}"))["config"]
        await self.admin.api(f"STREAM.UPDATE.{STREAM}", config | changes, seconds=4.0)
        self.count("limited")

    def _left(self) -> dict[int, str]:
        seqs = sorted(self.kept)
        if self.most:
            seqs = seqs[-self.most :]
        if self.per_subject:
            by_subject: dict[str, list[int]] = {}
            for seq in seqs:
                by_subject.setdefault(self.kept[seq].split(" ")[0], []).append(seq)
            seqs = sorted(seq for own in by_subject.values() for seq in own[-self.per_subject :])
        return {seq: self.kept[seq] for seq in seqs}

    def _is_undone(self) -> bool:
        """An administrator may have written the configuration of before, without the limit."""
        limits = {"max_msgs": self.most or -1, "max_msgs_per_subject": self.per_subject or -1}
        asked = self.deployment.configs.get(STREAM, ())
        return any(body[key] != limit for body in asked for key, limit in limits.items())

    async def check(self) -> None:
        if (self.most or self.per_subject) and self._is_undone():
            await self.insist("the limit, again", self.limit if self.most else self.limit_subjects)
        wanted = self._left()

        async def is_cut() -> bool:
            try:
                info = await self.admin.api(f"STREAM.INFO.{STREAM}")
            except PASSING:
                return False
            return int(info["state"]["messages"]) <= len(wanted)

        await self.until(f"{len(wanted)} messages are left", is_cut)

        def look(where: str, contents: dict[int, Msg]) -> None:
            found = {seq: f"{msg.headers['Nats-Subject']} {msg.payload.decode()}" for seq, msg in contents.items()}
            extra, missing = sorted(found.keys() - wanted.keys()), sorted(wanted.keys() - found.keys())
            Exact.equal(f"{where}: sequences too many and too few", (extra[:5], missing[:5]), ([], []))
            Exact.equal(f"{where}: what is left", found, wanted)

        await self.everywhere(STREAM, max(wanted), look)
