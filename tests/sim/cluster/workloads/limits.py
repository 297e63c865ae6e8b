"""Streams that keep some messages only: so many per subject, what rollups leave, or no more than there is room for."""

from __future__ import annotations

import contextlib

from testkit.sim.session import ApiError, Msg, Session
from tests.sim.cluster.judges import Kept, Log
from tests.sim.cluster.workload import PASSING, SECOND, Writers

STREAM = "KEEP"
FULL = "FULL"
SUBJECTS = 4
ROOM = 40
WINDOW = 600 * SECOND
"""The duplicate_window: longer than a message is sent again and again."""


class Limits(Writers):
    name = "limits"
    stream = STREAM
    judges = (Kept, Log)
    promises = (
        "max_msgs_per_subject and Nats-Rollup leave exactly the messages that they are to, on every replica",
        "what a message rolls up is gone when it is acknowledged",
    )

    async def prepare(self) -> None:
        per_subject = self.rng.choice([1, 3, 10, 1000])
        self.kept = Kept(per_subject)
        self.log = Log()
        self.rollups = self.rng.random() < 0.6
        admin = await self.session("admin")
        config = {"max_msgs_per_subject": per_subject, "allow_rollup_hdrs": self.rollups, "duplicate_window": WINDOW}
        await self.create(admin, STREAM, subjects=["keep.*"], **config)

    async def _write(self, number: int) -> None:
        session = await self.session(f"w{number}")
        often = self.rng.choice([1.0, 1.0, 0.1])  # seldom: many messages of a subject go at a time
        async for count in self.turns(8.0):
            subject, text = f"keep.{self.rng.randrange(SUBJECTS)}", f"{number}-{count}"
            rollup = self.rng.choice(["", "", "", "sub", "all"]) if self.rollups and self.rng.random() < often else ""
            ack = await self.store_logged(self.log, session, subject, text, {"Nats-Rollup": rollup} if rollup else None)
            self.kept.ack(int(ack["seq"]), subject, rollup)
            if rollup == "sub" and not ack.get("duplicate"):
                await self._older_is_gone(session, subject, int(ack["seq"]))

    async def _older_is_gone(self, session: Session, subject: str, seq: int) -> None:
        """Asks the leader for the oldest message of a subject after the ack of one that rolled it up."""
        with contextlib.suppress(*PASSING):
            body = {"seq": 1, "next_by_subj": subject}
            found = (await session.api(f"STREAM.MSG.GET.{STREAM}", body, seconds=2.0))["message"]["seq"]
            self.require(
                found >= seq, f"{found} of {subject} is there after {seq}, which rolled it up, was acknowledged"
            )
            self.count("looked")

    def _look(self, where: str, contents: dict[int, Msg]) -> None:
        texts = {seq: msg.payload.decode() for seq, msg in contents.items()}
        self.kept.stored(where, texts)
        self.stored(self.log, where, contents, self.log.acked.keys() - self.kept.left())


class DiscardNew(Writers):
    name = "discard-new"
    stream = FULL
    judges = (Log,)
    promises = ("a full stream with discard new refuses messages, and removes none",)

    async def prepare(self) -> None:
        self.log = Log()
        admin = await self.session("admin")
        await self.create(admin, FULL, subjects=["full"], max_msgs=ROOM, discard="new")

    async def _write(self, number: int) -> None:
        session = await self.session(f"w{number}")
        async for count in self.turns(4.0):
            text = f"{number}-{count}"
            self.log.send(text)
            try:
                ack = await session.js_publish("full", text.encode(), seconds=2.0)
            except ApiError as error:
                if error.err_code == 10077:
                    self.count("refused")
                    self.log.refuse(text)
            except PASSING:
                self.count("unknown")
            else:
                self.count("stored")
                self.log.ack(int(ack["seq"]), text, self.now)

    def _look(self, where: str, contents: dict[int, Msg]) -> None:
        self.require(len(contents) <= ROOM, f"{where}: {len(contents)} messages where {ROOM} have room")
        self.stored(self.log, where, contents)
