"""Exam of what overlaps: removals of one stream that are asked for side by side, changes that a consumer does not
permit, deliveries that are set back, and batches whose messages want too much."""

from __future__ import annotations

import asyncio
import json
from typing import Any, Final

from testkit.sim.session import Msg, Session
from tests.sim.cluster.judges import Exact
from tests.sim.cluster.workloads.batch_exam import BatchExam, plain

STREAM, COPY = "OVERLAP", "OVERLAPCOPY"
CREATION, RESET, BACKOFF = 10012, 10204, 10116
NO_EXPLICIT, NOT_UNIQUE, TWO, NOT_ALL, NOT_AS_MANY = 10098, 10100, 10099, 10101, 10134
"""Codes of errors."""
LEVEL: Final = {"Nats-Required-Api-Level": "99"}
MET: Final = {"Nats-Required-Api-Level": "1"}
HIGH: Final = 10185
"""Code of the error of a level that is not there."""
KEYS: Final = 5
EACH: Final = 9
"""Subjects, and messages of each."""


class OverlapExam(BatchExam):
    name = "exam-overlaps"
    stream = "OVERLAP"
    weight = 0
    judges = (Exact,)
    promises = (
        "purges that are asked for side by side leave what each of them leaves, and count each message once",
        "limits that come while a purge is under way leave what they are to",
        "a consumer refuses changes and resets that it does not permit, and is as before",
        "messages that nobody acknowledges are there in the end, also those that a stream republishes into another one",
    )

    number = 0

    async def check(self) -> None:
        parts = [self._purges, self._limits, self._interest, self._consumers, self._queues, self._resets, self._levels,
                 self._unasked]  # fmt: skip
        await self.examine(parts, 5)

    async def _codes(self, session: Session, *rows: tuple[str, Any, int]) -> None:
        for subject, body, code in rows:
            self.equal(f"{subject} {body}", await self.refused(session, subject, body), code)

    async def _filled(self, session: Session, **config: Any) -> None:
        """KEYS subjects, each with EACH messages, in turn."""
        await self.create(session, STREAM, subjects=["overlap.>"], num_replicas=self.rng.choice([1, 3]), **config)
        for at in range(KEYS * EACH):
            session.publish(f"overlap.{at % KEYS}", b"overlap %d" % at)
        await self._there(session, STREAM, KEYS * EACH)

    async def _there(self, session: Session, stream: str, count: int) -> None:
        """All that was published is stored; who is not asked for an ack may be told nothing of the loss, and loses
        nothing here."""

        async def stored() -> bool:
            return bool((await session.api(f"STREAM.INFO.{stream}"))["state"]["last_seq"] == count)

        await self.until(f"{stream} has {count} messages", stored, 10.0)

    async def _left(self, session: Session, **wanted: int) -> None:
        """Messages of each subject that are left, and the newest of them."""
        found = await self.insist("what is left", lambda: self.contents(session, STREAM))
        texts: dict[str, list[int]] = {}
        for msg in found.values():
            texts.setdefault(msg.headers["Nats-Subject"], []).append(int(msg.payload.split()[1]))
        all_of = {f"overlap.{key}": list(range(key, KEYS * EACH, KEYS)) for key in range(KEYS)}
        left = {subject: texts_[len(texts_) - wanted.get(subject[-1], EACH) :] for subject, texts_ in all_of.items()}
        self.equal("what is left", texts, {subject: some for subject, some in left.items() if some})

    async def _all(self, session: Session, *requests: tuple[str, Any]) -> list[dict[str, Any]]:
        """The answers to requests that are sent at once; each may be sent again where nobody could answer."""
        asked = [self.ask(session, subject, body) for subject, body in requests]
        return list(await asyncio.gather(*asked))

    async def _purges(self, session: Session) -> None:
        await self._filled(session)
        purge = f"STREAM.PURGE.{STREAM}"
        kept = {"0": 2, "1": EACH, "2": 0, "3": 4, "4": self.rng.choice([0, 3])}
        wishes: list[dict[str, Any]] = [
            *({"filter": "overlap.0", "keep": keep} for keep in (5, 2, 7)),
            *({"filter": "overlap.2"} for _ in range(3)),
            *({"filter": "overlap.3", "seq": seq} for seq in (KEYS * 2 + 1, KEYS * (EACH - 4) + 1)),
            {"filter": "overlap.4", "keep": kept["4"]} if kept["4"] else {"filter": "overlap.4"},
        ]
        self.rng.shuffle(wishes)
        answers = await self._all(session, *((purge, wish) for wish in wishes))
        self.equal("all are done", [one["success"] for one in answers], [True] * len(wishes))
        self.equal("what they count", sum(one["purged"] for one in answers), sum(EACH - kept[key] for key in kept))
        await self._left(session, **kept)
        last = [{"keep": 3}, {"keep": 1}, {}, {"seq": KEYS * EACH}]
        await self._all(session, *((purge, wish) for wish in self.rng.sample(last, len(last))))
        state = (await self.ask(session, f"STREAM.INFO.{STREAM}"))["state"]
        self.equal("nothing is left", (state["messages"], state["last_seq"]), (0, KEYS * EACH))
        await self.ask(session, f"STREAM.DELETE.{STREAM}")

    async def _limits(self, session: Session) -> None:
        await self._filled(session)
        config = (await self.ask(session, f"STREAM.INFO.{STREAM}"))["config"]
        of_each = self.rng.choice([1, 3])
        purge = f"STREAM.PURGE.{STREAM}"
        await self._all(
            session,
            (purge, {"filter": "overlap.0", "keep": 6}),
            (f"STREAM.UPDATE.{STREAM}", config | {"max_msgs_per_subject": of_each}),
            (purge, {"filter": "overlap.1"}),
            (purge, {"filter": "overlap.0", "keep": 4}),
        )

        async def limited() -> bool:
            state = (await session.api(f"STREAM.INFO.{STREAM}"))["state"]
            return bool(state["messages"] == of_each * (KEYS - 1))

        await self.until("the limit holds", limited, 10.0)
        await self._left(session, **{key: 0 if key == "1" else of_each for key in "01234"})
        most = 2
        await self.ask(session, f"STREAM.UPDATE.{STREAM}", config | {"max_msgs_per_subject": of_each, "max_msgs": most})

        async def fewer() -> bool:
            state = (await session.api(f"STREAM.INFO.{STREAM}"))["state"]
            return bool(state["messages"] == most)

        await self.until("the other limit holds", fewer, 10.0)
        await self._left(session, **{"0": 0, "1": 0, "2": 0, "3": 1, "4": 1})
        await self.ask(session, f"STREAM.DELETE.{STREAM}")

    async def _interest(self, session: Session) -> None:
        """A message that no consumer takes any more goes with the consumer that did, or with its last filter."""
        await self.create(
            session, STREAM, subjects=["overlap.>"], num_replicas=self.rng.choice([1, 3]), retention="interest"
        )
        for name, own in (("a", ["overlap.0", "overlap.1"]), ("b", ["overlap.1", "overlap.2"]), ("c", ["overlap.3"])):
            await self.create_consumer(session, STREAM, name, filter_subjects=own)
        for at in range(KEYS * EACH):
            session.publish(f"overlap.{at % KEYS}", b"overlap %d" % at)
        await self._there(session, STREAM, KEYS * EACH)
        await self._left(session, **{"4": 0})
        update = {"stream_name": STREAM, "config": {"durable_name": "b", "ack_policy": "explicit",
                  "filter_subjects": ["overlap.1"]}}  # fmt: skip
        await self._all(
            session,
            (f"CONSUMER.DURABLE.CREATE.{STREAM}.b", update),
            (f"CONSUMER.DELETE.{STREAM}.c", None),
            (f"STREAM.PURGE.{STREAM}", {"filter": "overlap.0", "keep": 4}),
        )
        await self._settles(session, **{"0": 4, "2": 0, "3": 0, "4": 0})
        await self.ask(session, f"CONSUMER.DELETE.{STREAM}.a")
        await self._settles(session, **{"0": 0, "2": 0, "3": 0, "4": 0})
        await self.ask(session, f"CONSUMER.DELETE.{STREAM}.b")
        await self._settles(session, **dict.fromkeys("01234", 0))
        await self.ask(session, f"STREAM.DELETE.{STREAM}")

    async def _settles(self, session: Session, **wanted: int) -> None:
        count = sum(wanted.get(str(key), EACH) for key in range(KEYS))

        async def left() -> bool:
            return bool((await session.api(f"STREAM.INFO.{STREAM}"))["state"]["messages"] == count)

        await self.until(f"{count} messages are left", left, 10.0)
        await self._left(session, **wanted)

    # ---- consumers

    def _own(self, name: str, **config: Any) -> tuple[str, dict[str, Any]]:
        body = {"stream_name": STREAM, "config": {"durable_name": name, "ack_policy": "explicit"} | config}
        return f"CONSUMER.DURABLE.CREATE.{STREAM}.{name}", body

    async def _consumers(self, session: Session) -> None:
        await self._filled(session)
        wait = {"backoff": [10**9, 2 * 10**9], "max_deliver": 3}
        await self.ask(session, *self._own("pull", **wait))
        await self.ask(session, *self._own("push", deliver_subject="overlap-out"))
        before = {name: await self._config(session, name) for name in ("pull", "push")}
        for name, config, code in (
            ("pull", wait | {"deliver_subject": "overlap-out"}, CREATION),
            ("push", {}, CREATION),
            ("pull", wait | {"max_waiting": 7}, CREATION),
            ("pull", wait | {"max_deliver": 1}, BACKOFF),
            ("pull", wait | {"replay_policy": "original"}, CREATION),
            ("pull", wait | {"opt_start_seq": 4, "deliver_policy": "by_start_sequence"}, CREATION),
        ):
            await self._codes(session, (*self._own(name, **config), code))
        after = {name: await self._config(session, name) for name in before}
        self.equal("as before", after, before)
        await self.ask(session, f"STREAM.DELETE.{STREAM}")

    async def _config(self, session: Session, name: str) -> Any:
        return (await self.ask(session, f"CONSUMER.INFO.{STREAM}.{name}"))["config"]

    async def _queues(self, session: Session) -> None:
        """Each message of a work queue belongs to one consumer."""
        size = self.rng.choice([1, 3])
        await self.create(session, STREAM, subjects=["overlap.>"], num_replicas=size, retention="workqueue")
        await self._codes(
            session,
            (*self._own("none", ack_policy="all"), NO_EXPLICIT),
            (*self._own("new", deliver_policy="new"), NOT_ALL),
            *([(*self._own("few", num_replicas=1), NOT_AS_MANY)] if size == 3 else []),
        )
        await self.ask(session, *self._own("one", filter_subject="overlap.1"))
        await self.ask(session, *self._own("two", filter_subject="overlap.2"))
        await self._codes(
            session,
            (*self._own("all"), TWO),
            (*self._own("other", filter_subject="overlap.*"), NOT_UNIQUE),
            (*self._own("two", filter_subject="overlap.1"), NOT_UNIQUE),
        )
        names = (await self.ask(session, f"CONSUMER.NAMES.{STREAM}"))["consumers"]
        self.equal("consumers", names, ["one", "two"])
        await self.ask(session, f"STREAM.DELETE.{STREAM}")

    async def _resets(self, session: Session) -> None:
        """A consumer is set back to where it could have begun, and not before."""
        await self._filled(session)
        half = await self._time_of(session, 20)
        await self.ask(session, *self._own("seq", deliver_policy="by_start_sequence", opt_start_seq=20))
        for name, time in (("time", half), ("first", "2000-01-01T00:00:00Z")):
            await self.ask(session, *self._own(name, deliver_policy="by_start_time", opt_start_time=time))
        await self.ask(session, *self._own("new", deliver_policy="new"))
        reset = f"CONSUMER.RESET.{STREAM}"
        await self._codes(
            session,
            (f"{reset}.seq", {"seq": 19}, RESET),
            (f"{reset}.time", {"seq": 19}, RESET),
            (f"{reset}.new", {"seq": 5}, RESET),
            (f"{reset}.seq", {"seq": 1 << 63}, RESET),
        )
        for name, seq in (("seq", 25), ("seq", 20), ("time", 30), ("first", 5)):
            answer = await self.ask(session, f"{reset}.{name}", {"seq": seq})
            self.equal(f"{name} at {seq}", (answer["reset_seq"], answer["num_pending"]), (seq, KEYS * EACH + 1 - seq))
        got = await self.take(session, STREAM, "seq", {"batch": 1, "expires": 2_000_000_000})
        self.equal("what comes next", [msg.payload for msg in got], [b"overlap 19"])
        await self.ask(session, f"STREAM.DELETE.{STREAM}")

    async def _time_of(self, session: Session, seq: int) -> str:
        found = await self.ask(session, f"STREAM.MSG.GET.{STREAM}", {"seq": seq})
        return str(found["message"]["time"])

    # ---- publishes

    async def _levels(self, session: Session) -> None:
        """A message of a batch that wants a higher level than there is ends the batch; one that is met is taken."""
        name, s = await self._stream(session, allow_batched=True)
        parts = plain(f"{s}.a", f"{s}.b", f"{s}.c")
        too_high = [*parts[:2], (f"{s}.c", "high", LEVEL)]
        self.equal("an atomic batch", (await self._batch(session, too_high))[0], -HIGH)
        self.equal("one in the middle", (await self._batch(session, [parts[0], too_high[2], parts[1]]))[0] < 0, True)
        await self._is(session, name, "nothing of them", [])
        met = [parts[0], (f"{s}.b", "met", MET), (f"{s}.c", "met", MET)]
        self.equal("a level that is met", await self._batch(session, met), (3, 3))
        answers = await self._fast_one(session, s, LEVEL)
        self.equal("a fast one", [one.get("error", {}).get("err_code") for one in answers if "error" in one], [HIGH])
        answers = await self._fast_one(session, s, MET)
        self.equal("a fast one that is met", [one["error"] for one in answers if "error" in one], [])
        found = await self._is(session, name, "and no more", [1, 2, 3, 4])
        kept = [key for msg in found.values() for key in msg.headers if key == "Nats-Required-Api-Level"]
        self.equal("the level is not stored", kept, [])

    async def _fast_one(self, session: Session, s: str, headers: dict[str, str]) -> list[dict[str, Any]]:
        """The answers to a fast batch of one message."""
        self.number += 1
        got: list[Msg] = []
        inbox = session.new_inbox()
        sid = session.subscribe(f"{inbox}.>", got.append)
        session.publish(f"{s}.a", b"fast", f"{inbox}.fast{self.number}.1.fail.1.2.$FI", headers)
        await session.flush()
        await asyncio.sleep(2.0)
        session.unsubscribe(sid)
        return [json.loads(msg.payload) for msg in got]

    async def _unasked(self, session: Session) -> None:
        """Messages without an ack, into two streams: one republishes into the other one."""
        await self.create(session, COPY, subjects=["copied.>"], num_replicas=self.rng.choice([1, 3]))
        await self._filled(session, republish={"src": "overlap.>", "dest": "copied.>"})
        await self._there(session, COPY, KEYS * EACH)
        found = await self.insist("the copies", lambda: self.contents(session, COPY))
        texts = [found[seq].payload.decode() for seq in sorted(found)]
        self.equal("copies, in order", texts, [f"overlap {at}" for at in range(KEYS * EACH)])
        ids = [int(found[seq].headers["Nats-Sequence"]) for seq in sorted(found)]
        self.equal("their own sequences", ids, list(range(1, KEYS * EACH + 1)))
        for name in (STREAM, COPY):
            await self.ask(session, f"STREAM.DELETE.{name}")
