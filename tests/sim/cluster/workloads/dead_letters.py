"""A stream whose consumer gives messages up, and the one that its dead letters go to, which may come later or be full;
the consumer is reset, and gets another subject for its letters."""

from __future__ import annotations

import asyncio
from typing import Any

from testkit.sim.session import ApiError, Msg, Session
from tests.sim.cluster.judges import Log
from tests.sim.cluster.letter_judge import Letter, Letters
from tests.sim.cluster.workload import PASSING, SECOND, SETTLE, Workload

STREAM = "GIVEN"
TARGET = "DEAD"
CONSUMER = "quitter"
GONE = (10043, 10057)
"""Codes of the error of what is not there to delete."""
TARGETS = ("dead", "buried")
FAR = {"Nats-Dead-Letter-Hops": "9"}
"""The headers of a message that was a dead letter too often."""
MOST_HOPS = 8
AGAIN = 32.0
"""Seconds within which a letter that was refused is looked at again."""
ROOM = 5
"""Letters that a full target has room for at first, and how many more it gets at a time."""
NARROW = 2_000
"""Bytes of a letter with its headers that a narrow target takes."""
WINDOWS = (120 * SECOND, 120 * SECOND, 20 * SECOND)
"""The target's duplicate_window. The short one is longer than a publish is on its way here."""


class DeadLetters(Workload):
    name = "dead-letters"
    newest = True
    judges = (Log, Letters)
    promises = (
        "each message that is given up has one dead letter, and none is lost",
        "a work queue or interest stream frees a message when it is acknowledged, or its letter is stored",
    )

    async def prepare(self) -> None:
        self.log = Log()
        self.judge = Letters()
        self.far: list[int] = []
        """Messages whose dead letters may not be sent, until they are removed."""
        self.room = ROOM
        self.admin = await self.session("admin")
        self.copies = self.rng.choice([1, 3, 3])
        self.retention = self.rng.choice(["workqueue", "workqueue", "interest"])
        config = {"subjects": ["given.>"], "num_replicas": self.copies, "retention": self.retention}
        await self.create(self.admin, STREAM, **config)
        self.most = self.rng.choice([1, 2])
        await self.create_consumer(self.admin, STREAM, CONSUMER, **self._wish(TARGETS[0]))
        self.later = self.rng.random() < 0.4
        self.full = self.rng.random() < 0.5
        self.window = self.rng.choice(WINDOWS)
        self.narrow = self.rng.random() < 0.3
        """The target does not take the letters of large messages yet."""
        if not self.later:
            await self._target(ROOM if self.full else -1)

    def _wish(self, target: str) -> dict[str, Any]:
        wish = {"subject": target + ".{subject}", "on_term": True}
        config = {"durable_name": CONSUMER, "ack_policy": "explicit", "ack_wait": SECOND, "max_deliver": self.most}
        return {**config, "dead_letter": wish}

    def _config(self, most: int) -> dict[str, Any]:
        config = {"name": TARGET, "subjects": [f"{one}.>" for one in TARGETS], "num_replicas": self.copies}
        size = NARROW if self.narrow else -1
        config |= {"allow_direct": True, "duplicate_window": self.window, "max_msg_size": size}
        return config | {"discard": "new", "max_msgs": most}

    async def _target(self, most: int, how: str = "CREATE") -> None:
        await self.insist(f"{how} of {TARGET}", lambda: self.admin.api(f"STREAM.{how}.{TARGET}", self._config(most)))

    async def work(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._write())
            group.create_task(self._change())
            for number in range(2):
                group.create_task(self._consume(number))

    async def _write(self) -> None:
        session = await self.session("write")
        async for count in self.turns(8.0):
            text, headers = f"given-{count}", dict(FAR if self.rng.random() < 0.05 else {})
            if self.narrow and self.rng.random() < 0.3:
                text += " " + "x" * NARROW
            ack = await self.store_logged(self.log, session, f"given.{count % 5}", text, headers)
            if headers:
                self.far.append(int(ack["seq"]))
                self.judge.acking(text)  # its letter goes out without it

    async def _change(self) -> None:
        """Resets the consumer, gives its letters another subject, and makes room for them. What fails in a fault may
        have happened or not."""
        async for _ in self.turns(0.25):
            change = self.rng.choice(("reset", "target", "room", "nothing"))
            try:
                await self._one_change(change)
            except PASSING:
                continue
            self.count(change)

    async def _one_change(self, change: str) -> None:
        if change == "reset":
            self.judge.resets += 1
            await self.admin.api(f"CONSUMER.RESET.{STREAM}.{CONSUMER}")
        elif change == "target":
            body = {"stream_name": STREAM, "config": self._wish(self.rng.choice(TARGETS))}
            await self.admin.api(f"CONSUMER.DURABLE.CREATE.{STREAM}.{CONSUMER}", body)
        elif change == "room" and self.full and not self.later:
            self.room += ROOM
            await self.admin.api(f"STREAM.UPDATE.{TARGET}", self._config(self.room))

    async def _consume(self, number: int) -> None:
        session = await self.session(f"pull{number}")
        while not self.stopping:
            await self._pull(session, self.rng.choice([1, 5]))
        await session.close()

    async def _pull(self, session: Session, batch: int) -> None:
        async def take(msg: Msg) -> None:
            self.count("delivered")
            act = self.rng.choice(("ack", "term", "forget"))
            if act == "ack":
                self.judge.acking(msg.payload.decode())
                session.publish(msg.reply, b"+ACK")
            elif act == "term":
                session.publish(msg.reply, b"+TERM because")

        await self.pull(session, STREAM, CONSUMER, take, batch)

    async def _delete(self, session: Session, seq: int) -> None:
        """Unless it was acknowledged, and is gone."""
        try:
            await session.api(f"STREAM.MSG.DELETE.{STREAM}", {"seq": seq})
        except ApiError as error:
            if error.err_code not in GONE:
                raise

    async def check(self) -> None:
        session = await self.session("rest")
        narrow, self.narrow = self.narrow, False
        if self.later or self.full or narrow:
            await self._target(-1, "CREATE" if self.later else "UPDATE")
        for seq in self.far:
            await self.insist(f"deleting {seq}", lambda seq=seq: self._delete(session, seq))

        async def empty() -> bool:
            await self._pull(session, 20)
            info = await session.api(f"STREAM.INFO.{STREAM}")
            return bool(info["state"]["messages"] == 0)

        await self.until("the stream is empty", empty, SETTLE)
        if self.far:  # their letters go out now
            await asyncio.sleep(AGAIN)
        letters = await self.contents(session, TARGET)
        self.count("letters", len(letters))
        hops = [int(msg.headers["Nats-Dead-Letter-Hops"]) for msg in letters.values()]
        self.require(max(hops, default=0) <= MOST_HOPS, f"a message was a dead letter {max(hops, default=0)} times")
        found = [
            Letter(msg.headers["Nats-Subject"].split(".")[0], msg.headers["Nats-Msg-Id"], _text_of(msg))
            for msg in letters.values()
        ]
        self.judge.complete(self.log.acked.values(), found)


def _text_of(letter: Msg) -> str:
    """One whose message was removed has its own id for a text."""
    return (
        letter.payload.decode() if "Nats-Dead-Letter-Removed" not in letter.headers else letter.headers["Nats-Msg-Id"]
    )
