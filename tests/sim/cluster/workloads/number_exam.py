"""Exam of the numbers of CONSUMER.INFO: after each step of a random history of one consumer they are what its client
knows. Messages may wait for their acks while limits, purges and deletions take them away, and a consumer is set back to
where nothing is any more."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final

from testkit.sim.session import Session
from tests.sim.cluster.consumer_numbers import ConsumerNumbers, Numbers
from tests.sim.cluster.exam import Exam
from tests.sim.cluster.judges import Exact
from tests.sim.cluster.workload import SECOND, Delivered

STREAM, LETTERS = "NUMBERS", "NUMBERLETTERS"
KEYS: Final = ("a", "b", "c")
STEPS: Final = 24
MOST: Final = 9
"""Messages of the stream that has a limit."""
SETTLES: Final = 3.0
"""Seconds within which what was removed waits for no ack: the owner has to hear of it."""


class NumberExam(Exam):
    name = "exam-numbers"
    weight = 0
    judges = (Exact,)
    promises = (
        "CONSUMER.INFO tells what was delivered and acknowledged, what waits and what is to come, whatever is removed",
        "a consumer that is set back tells where it begins, also where a purge has been",
        "+TERM settles all below under the policy all, with a letter for the one that it is of",
        "what was given up, and is taken after a reset, keeps nothing in a stream with interest",
    )

    async def check(self) -> None:
        own = [self._plain, self._limited, self._filtered, self._purged, self._terminated, self._given_up]
        await self.examine(own, 3)

    # ---- histories

    async def _plain(self, session: Session) -> None:
        await self._history(session, [])

    async def _filtered(self, session: Session) -> None:
        await self._history(session, list(KEYS[:2]))

    async def _limited(self, session: Session) -> None:
        await self._history(session, [], max_msgs=MOST)

    async def _purged(self, session: Session) -> None:
        """Purged messages count as delivered, until a reset."""
        await self._begin(session, [])
        for step in (self._store, self._take, self._purge_all, self._reset_back, self._store, self._take, self._ack):
            await step(session)
            await self._right(session, step.__name__)
        await self.ask(session, f"STREAM.DELETE.{STREAM}")

    async def _terminated(self, session: Session) -> None:
        """Under the policy `all`, with dead letters."""
        await self.create(session, LETTERS, subjects=["letters.>"], num_replicas=1)
        tells = self.rng.choice([True, False])
        letter = {"subject": "letters.{subject}", "on_term": tells}
        await self._begin(session, [], ack_policy="all", max_deliver=5, dead_letter=letter)
        await self._store(session)
        await self._store(session)
        await self._comes(session, self.known.to_come)
        seq = self.rng.choice(sorted(self.known.waiting))
        await session.request(self.replies[seq], b"+TERM")
        for below in range(1, seq + 1):
            self.known.ack(below)
        await self._right(session, "a term")
        await asyncio.sleep(SETTLES)
        told = (await self.ask(session, f"STREAM.INFO.{LETTERS}"))["state"]["messages"]
        self.equal("letters", told, int(tells))
        for stream in (STREAM, LETTERS):
            await self.ask(session, f"STREAM.DELETE.{stream}")

    async def _given_up(self, session: Session) -> None:
        """Another consumer takes all of it after that."""
        await self._begin(session, [], retention="interest", max_deliver=1, ack_wait=SECOND)
        await self.create_consumer(session, STREAM, "other")
        await self._store(session)
        await self._comes(session, self.known.to_come)
        await asyncio.sleep(SETTLES)
        there = sorted(self.known.there)
        self.equal("what was given up stays", sorted(await self.contents(session, STREAM)), there)
        await self._set_back(session, {"seq": 1}, 1)
        for seq in there:
            await self._comes(session, [seq])
            await session.request(self.replies[seq], b"+ACK")
        self.equal("what another one wants", sorted(await self.contents(session, STREAM)), there)
        for msg in await self.take(session, STREAM, "other", {"batch": len(there), "expires": 5 * SECOND}):
            await session.request(msg.reply, b"+ACK")

        async def is_empty() -> bool:
            return not await self.contents(session, STREAM)

        await self.until("a stream of which all is acknowledged is empty", is_empty, 5.0)
        await self.ask(session, f"STREAM.DELETE.{STREAM}")

    async def _history(self, session: Session, wanted: list[str], **config: Any) -> None:
        await self._begin(session, wanted, **config)
        steps: list[Callable[[Session], Awaitable[None]]] = [
            self._store, self._store, self._take, self._take, self._ack, self._ack, self._again, self._delete,
            self._purge, self._purge_all, self._reset, self._reset_back, self._moves,
        ]  # fmt: skip
        weights = [6, 6, 6, 6, 6, 6, 4, 3, 2, 1, 1, 1, 1]
        for step in self.rng.choices(steps, weights, k=STEPS):
            await step(session)
            await self._right(session, step.__name__)
        await self.ask(session, f"STREAM.DELETE.{STREAM}")

    async def _begin(
        self, session: Session, wanted: list[str], max_msgs: int = 0, retention: str = "limits", **config: Any
    ) -> None:
        """`config`: of the consumer."""
        self.most = max_msgs
        self.size = self.rng.choice([1, 3])
        self.known = ConsumerNumbers(f"numbers.{key}" for key in wanted)
        self.replies: dict[int, str] = {}
        bounds = {"max_msgs": max_msgs or -1, "retention": retention}
        await self.create(session, STREAM, subjects=["numbers.*"], num_replicas=self.size, **bounds)
        filters = {"filter_subjects": [f"numbers.{key}" for key in wanted]} if wanted else {}
        await self.create_consumer(session, STREAM, "one", **({"ack_wait": 600 * SECOND} | filters | config))

    async def _right(self, session: Session, step: str) -> None:
        end = self.now + SETTLES
        while (found := await self._told(session)) != self.known.expected() and self.now < end:
            await asyncio.sleep(0.2)
        self.equal(f"after {step.strip('_')}", found, self.known.expected())

    async def _told(self, session: Session) -> Numbers:
        found = Numbers.of(await self.ask(session, f"CONSUMER.INFO.{STREAM}.one"))
        self.known.pass_over(found)
        return found

    # ---- steps

    async def _store(self, session: Session) -> None:
        for _ in range(self.rng.randint(1, 5)):
            subject = f"numbers.{self.rng.choice(KEYS)}"
            self.turn += 1
            ack = await self.store(session, subject, f"numbers {self.turn}")
            self.known.store(int(ack["seq"]), subject)
            if self.most:
                self.known.remove(sorted(self.known.there)[: -self.most])

    turn = 0

    async def _take(self, session: Session) -> None:
        wanted = self.known.to_come[: self.rng.randint(1, 6)]
        await self._comes(session, wanted)

    async def _comes(self, session: Session, wanted: list[int]) -> None:
        if not wanted:
            return
        found = await self.take(session, STREAM, "one", {"batch": len(wanted), "expires": 5 * SECOND})
        self.equal("deliveries", [Delivered.of(msg).seq for msg in found if not msg.status], wanted)
        for msg in found:
            seq = Delivered.of(msg).seq
            self.known.deliver(seq)
            self.replies[seq] = msg.reply

    async def _ack(self, session: Session) -> None:
        waiting = sorted(self.known.waiting)
        for seq in self.rng.sample(waiting, self.rng.randint(0, min(4, len(waiting)))):
            await session.request(self.replies[seq], self.rng.choice([b"+ACK", b"+ACK", b"+TERM"]))
            self.known.ack(seq)

    async def _again(self, session: Session) -> None:
        """One of them is refused, and comes again before anything new."""
        if self.known.waiting:
            seq = self.rng.choice(sorted(self.known.waiting))
            await session.request(self.replies[seq], b"-NAK")
            await self._comes(session, [seq])

    async def _delete(self, session: Session) -> None:
        if self.known.there:
            seq = self.rng.choice(sorted(self.known.there))
            await self.ask(session, f"STREAM.MSG.DELETE.{STREAM}", {"seq": seq})
            self.known.remove([seq])

    async def _purge(self, session: Session) -> None:
        subject = f"numbers.{self.rng.choice(KEYS)}"
        await self.ask(session, f"STREAM.PURGE.{STREAM}", {"filter": subject})
        self.known.remove([seq for seq, one in self.known.there.items() if one == subject])

    async def _purge_all(self, session: Session) -> None:
        await self.ask(session, f"STREAM.PURGE.{STREAM}")
        self.known.purge()

    async def _reset(self, session: Session) -> None:
        """Behind its ack floor."""
        await self._set_back(session, {}, self.known.expected().ack_floor[1] + 1)

    async def _reset_back(self, session: Session) -> None:
        """To any sequence, also of what is gone."""
        seq = self.rng.randint(1, max([1, *self.known.there, self.known.expected().delivered[1]]))
        await self._set_back(session, {"seq": seq}, seq)

    async def _set_back(self, session: Session, body: dict[str, int], seq: int) -> None:
        answer = await self.ask(session, f"CONSUMER.RESET.{STREAM}.one", body)
        self.equal("it begins at", answer["reset_seq"], seq)
        self.known.reset(seq)
        self.equal("the answer to a reset", Numbers.of(answer), self.known.expected())

    async def _moves(self, session: Session) -> None:
        """Another server delivers it, and says the same."""
        if self.size > 1:
            self.elects()
            await self.ask(session, f"CONSUMER.LEADER.STEPDOWN.{STREAM}.one")
