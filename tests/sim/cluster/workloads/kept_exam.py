"""Exam of what a stream keeps for somebody: for the consumer that is its retention guard, and in an archive for its
consumers, its timers and the publishers that send again."""

from __future__ import annotations

import asyncio
import json
from typing import Any, Final

from testkit.sim.session import ApiError, Msg, Session
from tests.sim.cluster.exam import SPREAD, Exam
from tests.sim.cluster.judges import Exact
from tests.sim.cluster.workload import SECOND

STREAM, DEAD, GUARD = "HELD", "HELDDEAD", "archive"
FULL, WRONG = 10077, 10052
"""Codes of errors."""
SIZE: Final = 1000
"""Bytes of a payload."""
MOST: Final = 10
"""Messages of that size, and no more of them, wait for a guard."""
LIMIT: Final = 3
AHEAD: Final = 9.0
"""Seconds after which a message of an archive fires, or is gone."""
AGAIN: Final = 40.0
"""Seconds within which a letter is sent whose target comes later."""
BURST = 5
"""Messages that are published at once."""


class KeptExam(Exam):
    name = "exam-kept"
    newest = True
    weight = 0
    judges = (Exact,)
    promises = (
        "a stream with a guard refuses what is beyond its bounds, or gives up the oldest, tells so, and counts it",
        "a restored stream expires, fires, knows duplicates and sends letters as the one of its archive would",
        "a restored consumer goes on with what is pending, and with the keys that wait",
    )

    async def check(self) -> None:
        if self.deployment.relaxed:
            return
        await self.examine([self._refuses, self._gives_up, self._grows_old, self._timers, self._consumers], 4)

    # ---- guards

    async def _guarded(self, session: Session, **guard: Any) -> None:
        wanted = {"consumer": GUARD} | guard
        await self.create(
            session, STREAM, subjects=["held.>"], num_replicas=self.rng.choice([1, 3]), max_msgs=LIMIT,
            retention_guard=wanted, duplicate_window=SECOND,
        )  # fmt: skip
        self.told: list[Msg] = []
        session.subscribe(f"$JS.EVENT.ADVISORY.STREAM.*.{STREAM}", self.told.append)
        await session.flush()
        await asyncio.sleep(SPREAD)

    async def _put(self, session: Session, size: int = SIZE) -> int:
        """Code of the error, 0 for none."""
        try:
            await session.js_publish("held.x", b"x" * size)
        except ApiError as error:
            return error.err_code
        return 0

    async def _info(self, session: Session) -> tuple[dict[str, Any], dict[str, Any]]:
        info = await self.ask(session, f"STREAM.INFO.{STREAM}")
        return info["state"], info["retention_guard"]

    async def _of_guard(self, session: Session, **wanted: Any) -> dict[str, Any]:
        _, found = await self._info(session)
        self.equal("of the guard", {key: found.get(key) for key in wanted}, wanted)
        return found

    async def _done_to(self, session: Session, seq: int) -> None:
        """The guard has all before."""
        await self.ask(session, f"CONSUMER.RESET.{STREAM}.{GUARD}", {"seq": seq})

    async def _refuses(self, session: Session) -> None:
        """Publishers are refused until the guard goes on; then the stream's limits hold."""
        await self._guarded(session, max_bytes=MOST * (SIZE + 100))
        self.equal("before the guard is there", [await self._put(session) for _ in range(2)], [0, 0])
        await self._of_guard(session, found=False, num_waiting=2, ack_floor=0)
        await self.create_consumer(session, STREAM, GUARD)
        codes = [await self._put(session) for _ in range(MOST + 2)]
        refused = codes.count(FULL)
        self.equal("what is refused", codes, [0] * (len(codes) - refused) + [FULL] * refused)
        self.require(2 < refused < MOST, f"{refused} of {codes} are refused")
        stored = 2 + len(codes) - refused
        found = await self._of_guard(session, found=True, num_waiting=stored, ack_floor=0)
        await asyncio.sleep(SPREAD)
        self.require("maximum bytes" in found.get("refuses", ""), f"it does not say that it refuses: {found}")
        refusal = await self.refused(session, f"CONSUMER.DELETE.{STREAM}.{GUARD}")
        self.equal("a consumer that is a guard", refusal, WRONG)
        await self._done_to(session, 4)
        self.equal("it has gone on", await self._put(session), 0)
        await self._of_guard(session, num_waiting=stored + 1 - 3, refuses=None)
        await self._done_to(session, stored + 2)
        self.equal("all is done", [await self._put(session) for _ in range(4)], [0] * 4)
        await self._done_to(session, stored + 6)
        self.equal("a message of any size", await self._put(session, 2 * MOST * SIZE), 0)
        await self._done_to(session, stored + 7)

        async def limited() -> bool:
            state, _ = await self._info(session)
            return bool(state["messages"] == LIMIT)

        await self.until("the stream's limit holds", limited, 10.0)
        await asyncio.sleep(SPREAD)
        self.equal("it is told", [self._kind(msg) for msg in self.told].count("GUARD_REFUSES"), 1)
        await self._without_guard(session)

    async def _gives_up(self, session: Session) -> None:
        """Beyond its bytes the oldest are given up, and counted."""
        await self._guarded(session, max_bytes=MOST * (SIZE + 100), discard="old")
        await self.create_consumer(session, STREAM, GUARD)
        codes = [await self._put(session) for _ in range(2 * MOST)]
        self.equal("nothing is refused", codes, [0] * len(codes))
        state, found = await self._info(session)
        over = found.get("overrun") or {}
        self.equal("what is given up", over.get("messages"), over.get("below_seq", 0) - 1)
        self.equal("what waits", found["num_waiting"], 2 * MOST - over.get("messages", 0))
        self.require(state["messages"] <= MOST + 1, f"{state} of a guard of {MOST} messages")
        await asyncio.sleep(SPREAD)
        told = [json.loads(msg.payload) for msg in self.told if self._kind(msg) == "GUARD_OVERRUN"]
        self.require(bool(told) and sum(one["messages"] for one in told) <= over["messages"], f"told: {told}, {over}")
        await self._other_guard(session, max_bytes=2 * MOST * (SIZE + 100), discard="old")
        _, found = await self._info(session)
        self.equal("of another guard", found["num_waiting"], state["messages"])
        self.equal("it stays counted", (found.get("overrun") or {}).get("messages"), over["messages"])
        await self._without_guard(session)

    async def _grows_old(self, session: Session) -> None:
        """A message that waits for too long is given up, or nothing more is taken."""
        discard = self.rng.choice(["old", "new"])
        await self._guarded(session, max_age=4 * SECOND, discard=discard)
        await self.create_consumer(session, STREAM, GUARD)
        self.equal("at first", [await self._put(session) for _ in range(LIMIT + 2)], [0] * (LIMIT + 2))
        await self._of_guard(session, num_waiting=LIMIT + 2)
        await asyncio.sleep(6.0)
        if discard == "new":
            self.equal("when it is old", await self._put(session), FULL)
            await self._of_guard(session, num_waiting=LIMIT + 2)
            await self._done_to(session, LIMIT + 3)
            self.equal("when it is done", await self._put(session), 0)
        else:
            await self._of_guard(session, num_waiting=0)
            state, found = await self._info(session)
            self.equal("given up", (found.get("overrun") or {}).get("messages"), LIMIT + 2)
            self.equal("what is left", state["messages"], LIMIT)
        await self._without_guard(session)

    async def _other_guard(self, session: Session, **guard: Any) -> None:
        config = (await self.ask(session, f"STREAM.INFO.{STREAM}"))["config"]
        metadata = {key: value for key, value in config["metadata"].items() if "guard" not in key}
        config |= {"metadata": metadata, "retention_guard": {"consumer": GUARD} | guard if guard else None}
        await self.ask(session, f"STREAM.UPDATE.{STREAM}", config)

    async def _without_guard(self, session: Session) -> None:
        """Then its consumer may go, and the stream's limit holds."""
        await self._other_guard(session)
        await self.ask(session, f"CONSUMER.DELETE.{STREAM}.{GUARD}")
        info = await self.ask(session, f"STREAM.INFO.{STREAM}")
        self.equal("without a guard", ("retention_guard" in info, info["state"]["messages"] <= LIMIT), (False, True))
        await self.ask(session, f"STREAM.DELETE.{STREAM}")

    def _kind(self, msg: Msg) -> str:
        return msg.subject.split(".")[-2]

    # ---- archives

    async def _timers(self, session: Session) -> None:
        """Times to live, schedules and ids."""
        await self.create(
            session, STREAM, subjects=["held.>"], num_replicas=self.rng.choice([1, 3]), allow_msg_ttl=True,
            allow_msg_schedules=True, allow_rollup_hdrs=True, duplicate_window=60 * SECOND,
        )  # fmt: skip
        await self.store(session, "held.short", "short", {"Nats-TTL": f"{AHEAD:.0f}s"})
        await self.store(session, "held.long", "long", {"Nats-TTL": "1h"})
        await self.store(session, "held.never", "never", {"Nats-TTL": "never"})
        once = {"Nats-Schedule": f"@at {self.wall(AHEAD)}", "Nats-Schedule-Target": "held.fired"}
        await self.store(session, "held.plan", "plan", once)
        later = {"Nats-Schedule": "@every 1h", "Nats-Schedule-Target": "held.later"}
        await self.store(session, "held.other", "other", later)
        await self.store(session, "held.plain", "plain")
        burst = [f"burst {number}" for number in range(BURST)]  # which the archive has in one piece
        for text in burst:
            session.publish("held.burst", text.encode(), headers={"Nats-Msg-Id": text})
        await self.store(session, "held.burst", "behind it")
        began = self.now
        before = await self.contents(session, STREAM)
        await self.archived(session, STREAM)
        after = await self.insist("its messages", lambda: self.contents(session, STREAM))
        if self.now < began + AHEAD - 2.0:
            same = [{seq: (m.headers, m.payload) for seq, m in found.items()} for found in (before, after)]
            self.equal("its messages", same[1], same[0])
        for text, seq in (("plain", 6), ("long", 2), *((text, 7 + number) for number, text in enumerate(burst))):
            ack = await session.js_publish("held.plain", b"again", {"Nats-Msg-Id": text})
            self.equal(f"{text} comes again", (ack["seq"], ack.get("duplicate")), (seq, True))
        await asyncio.sleep(max(began + AHEAD + 3.0 - self.now, 0.0))
        found = await self.insist("what is left", lambda: self.contents(session, STREAM))
        subjects = sorted(msg.headers["Nats-Subject"] for msg in found.values())
        kept = ["held.fired", "held.long", "held.never", "held.other", "held.plain"]
        self.equal("in time", subjects, ["held.burst"] * (BURST + 1) + kept)
        await self.ask(session, f"STREAM.DELETE.{STREAM}")

    async def _consumers(self, session: Session) -> None:
        """Messages that are pending, keys that wait, and letters whose target comes later."""
        await self.create(session, STREAM, subjects=["held.>"], num_replicas=self.rng.choice([1, 3]))
        wait = {"ack_wait": 4 * SECOND}
        await self.create_consumer(session, STREAM, "plain", **wait)
        await self.create_consumer(session, STREAM, "keyed", max_ack_pending_per_subject=1, key="subject", **wait)
        letters = {"dead_letter": {"subject": "dead.{subject}", "on_term": True}, "max_deliver": 5}
        await self.create_consumer(session, STREAM, "quitter", **letters)
        for at in range(6):
            await self.store(session, f"held.{'aabbab'[at]}", f"held {at}")
        for name, batch in (("plain", 4), ("keyed", 6), ("quitter", 3)):
            got = await self.take(session, STREAM, name, {"batch": batch, "expires": 2 * SECOND})
            found = [msg for msg in got if not msg.status]
            if name == "keyed":
                self.equal("of each key one", [msg.payload for msg in found], [b"held 0", b"held 2"])
            for at, msg in enumerate(found):
                if name == "quitter" or (name == "plain" and at == 0):
                    await session.request(msg.reply, b"+TERM for a reason" if name == "quitter" else b"+ACK")
        before = {name: await self._told(session, name) for name in ("plain", "keyed", "quitter")}
        await self.archived(session, STREAM)
        after = {name: await self._told(session, name) for name in before}
        self.equal("what its consumers say", after, before)
        await self.create(session, DEAD, subjects=["dead.>"], num_replicas=1)
        for name in ("plain", "keyed"):
            await self._rest(session, name)

        async def sent() -> bool:
            return len(await self.contents(session, DEAD)) == 3

        await self.until("all letters are sent", sent, AGAIN)
        texts = [msg.payload.decode() for msg in (await self.contents(session, DEAD)).values()]
        self.equal("the letters", sorted(texts), ["held 0", "held 1", "held 2"])
        for name in (STREAM, DEAD):
            await self.ask(session, f"STREAM.DELETE.{name}")

    async def _told(self, session: Session, name: str) -> tuple[Any, ...]:
        info = await self.ask(session, f"CONSUMER.INFO.{STREAM}.{name}")
        floor = info["ack_floor"]["stream_seq"]
        if name == "quitter":  # letters that wait are of no number that all have
            return info["delivered"]["stream_seq"], info["num_pending"]
        return info["delivered"]["stream_seq"], floor, info["num_ack_pending"], info["num_pending"]

    async def _rest(self, session: Session, name: str) -> None:
        """All that was not acknowledged comes, of each key in order."""
        order: dict[str, list[str]] = {}
        end = self.now + AGAIN
        while self.now < end and sum(map(len, order.values())) < (5 if name == "plain" else 6):
            for msg in await self.take(session, STREAM, name, {"batch": 2, "expires": 2 * SECOND}):
                if not msg.status:
                    await session.request(msg.reply, b"+ACK")
                    order.setdefault(msg.subject, []).append(msg.payload.decode())
        if name == "keyed":
            wanted = {"held.a": ["held 0", "held 1", "held 4"], "held.b": ["held 2", "held 3", "held 5"]}
            self.equal(f"what {name} gets", order, wanted)
        else:
            got = sorted(text for texts in order.values() for text in texts)
            self.equal(f"what {name} gets", got, [f"held {at}" for at in range(1, 6)])
        info = await self.ask(session, f"CONSUMER.INFO.{STREAM}.{name}")
        self.equal(f"what {name} waits for", (info["num_ack_pending"], info["num_pending"]), (0, 0))
