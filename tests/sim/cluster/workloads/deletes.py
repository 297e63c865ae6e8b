"""Messages that are deleted and purged: gone for good on every replica, and nothing else with them."""

from __future__ import annotations

from testkit.sim.session import ApiError, Msg, Session
from tests.sim.cluster.judges import Log
from tests.sim.cluster.workload import PASSING, Writers, together

STREAM = "DELETE"
SUBJECTS = "abcd"
NO_MESSAGE = 10043
NOT_FOUND = 10037


class Deletes(Writers):
    name = "deletes"
    stream = STREAM
    judges = (Log,)
    promises = (
        "a message whose MSG.DELETE was acknowledged is gone, from every replica and every read",
        "a purge removes what was stored before it, and nothing that it does not name",
    )

    async def prepare(self) -> None:
        self.log = Log()
        self.subjects: dict[int, str] = {}
        self.gone: set[int] = set()
        """Removed for sure."""
        self.doubtful: set[int] = set()
        """Named by a removal whose answer never came."""
        admin = await self.session("admin")
        await self.create(admin, STREAM, subjects=["delete.*"], num_replicas=self.rng.choice([1, 3, 3]))

    async def work(self) -> None:
        await together(self._write(), self._remove(), self._read())

    async def _write(self) -> None:
        session = await self.session("write")
        async for count in self.turns(10.0):
            subject, text = f"delete.{self.rng.choice(SUBJECTS)}", str(count)
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
            await self._try(session, "PURGE", {"filter": subject, "seq": before}, named)

    async def _try(self, session: Session, verb: str, body: dict[str, object], named: set[int]) -> None:
        self.doubtful |= named
        try:
            await session.api(f"STREAM.{verb}.{STREAM}", body, seconds=3.0)
        except ApiError as error:
            if error.err_code != NO_MESSAGE:
                return
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

    def _look(self, where: str, contents: dict[int, Msg]) -> None:
        unknown = {seq for seq in self.doubtful if seq not in contents}
        self.stored(self.log, where, contents, self.gone | unknown)
