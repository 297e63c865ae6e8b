"""Exam of owners of consumers: after an update what is delivered goes by the new configuration, to requests that wait
as well, and nothing is lost or comes too early while messages go, members refuse them, or clocks differ."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from typing import Any, Final

from testkit.sim.session import ApiError, Msg, Session
from tests.sim.cluster.exam import Exam
from tests.sim.cluster.judges import Exact
from tests.sim.cluster.workload import Delivered

STREAM: Final = "OWNED"
SECOND: Final = 1_000_000_000
PASSES: Final = 8.0
"""Seconds for which an owner that has nothing to deliver does not pass over what its consumer did not want."""
MOVES: Final = 6
"""Changes of a consumer's owner while eight messages are stored."""
SETTLES: Final = 3.0
"""Seconds within which what was removed waits for no ack."""
KEYS, SIZE = 6, 400
"""Messages of one key each, and their bytes."""
GUARDED: Final = 10
"""Messages of a stream with a guard."""
FULL: Final = 10077
"""The code of the error."""
MEETS: Final = 12.0
"""Seconds within which each of them comes again."""
AHEAD, TIMER = 0.4, 0.2
"""Seconds: that a clock is ahead, and that a redelivery may come earlier than by the client's clock."""
SOON: Final = 1.5
"""Seconds within which a request that waits gets what is there now."""


class OwnerExam(Exam):
    name = "exam-owners"
    weight = 0
    newest = True
    judges = (Exact,)
    promises = (
        "a consumer that is updated delivers what its new filters match, and tells how much of that is left",
        "limits, waits and orders that an update gives or takes away hold from the next delivery on, whoever owns it",
        "what a limit removes takes no room of max_ack_pending, also while one owner after the other delivers",
        "a message that is due and that a member had no room for comes again, and so does that of one that is gone",
        "ack_wait counts from the sending, also where the clocks of a consumer's owner and its stream's leader differ",
        "a consumer of an archive goes on with the number of times that a message was delivered",
        "a guard refuses messages when too many bytes wait for it, whatever limits remove meanwhile",
        "a request that waits while the owner changes is ended once; CONSUMER.INFO has what was delivered before it",
        "a request that waits while its consumer is updated gets what the update lets through, at once",
    )

    async def check(self) -> None:
        await self.examine([self._wider, self._narrower, self._order, self._headers, self._room, self._waits,
                            self._requests, self._push, self._removed, self._refused, self._leaves, self._clocks,
                            self._restored, self._guarded, self._ended, self._told], 5)  # fmt: skip

    # ---- tools

    async def _begin(self, session: Session, keys: str, most: int = -1, **config: Any) -> None:
        """A stream with a message for each of these letters, `most` of each at a time, and its consumer."""
        self.size = 3 if most > 0 else self.rng.choice([1, 3])
        self.sent = 0
        await self.create(session, STREAM, subjects=["owned.*"], num_replicas=self.size, max_msgs_per_subject=most)
        await self._store(session, keys)
        self.config = {"durable_name": "one", "ack_policy": "explicit", "ack_wait": 600 * SECOND} | config
        await self.create_consumer(session, STREAM, "one", **self.config)

    async def _store(self, session: Session, keys: str) -> None:
        for key in keys:
            self.sent += 1
            await self.store(session, f"owned.{key}", f"owned {self.sent}")

    async def _update(self, session: Session, **changes: Any) -> None:
        self.config |= changes
        body = {"stream_name": STREAM, "config": self.config, "action": "update"}
        await self.ask(session, f"CONSUMER.DURABLE.CREATE.{STREAM}.one", body)

    async def _may_move(self, session: Session) -> None:
        """Another server may deliver from here on."""
        if self.size > 1 and self.rng.random() < 0.3:
            self.elects()
            await self.ask(session, f"CONSUMER.LEADER.STEPDOWN.{STREAM}.one")

    async def _pull(self, session: Session, batch: int, seconds: float = 1.0) -> list[Msg]:
        request = {"batch": batch, "expires": int(seconds * SECOND)}
        return [msg for msg in await self.take(session, STREAM, "one", request) if not msg.status]

    async def _comes(self, session: Session, what: str, wanted: Sequence[int], left: int | None = None) -> list[Msg]:
        """These, in this order, and none besides; `left`: the last of them tells that so many follow."""
        found = await self._pull(session, len(wanted) + 1 if left is None else len(wanted))
        self.equal(what, [Delivered.of(msg).seq for msg in found], list(wanted))
        if left is not None:
            self.equal(f"{what}, and left", Delivered.of(found[-1]).pending, left)
        return found

    async def _end(self, session: Session) -> None:
        await self.ask(session, f"STREAM.DELETE.{STREAM}")

    # ---- what is delivered

    async def _wider(self, session: Session) -> None:
        await self._begin(session, "abbabb", filter_subject="owned.a")
        await self._comes(session, "of one filter", [1, 4])
        began = self.now
        await self._update(session, filter_subject="", filter_subjects=["owned.a", "owned.b"])
        found = await self._pull(session, 3)
        if self.now - began < PASSES:
            self.equal("behind the last delivery", [Delivered.of(msg).seq for msg in found], [5, 6])
        await self._store(session, "ab")
        await self._comes(session, "of both filters", [7, 8])
        await self._end(session)

    async def _narrower(self, session: Session) -> None:
        await self._begin(session, "aabbabac")
        await self._comes(session, "of all", [1], 7)
        await self._update(session, filter_subjects=["owned.b", "owned.c"])
        await self._may_move(session)
        await self._comes(session, "of two filters", [3], 3)
        await self._update(session, filter_subjects=["owned.a"])
        await self._comes(session, "of another filter", [5], 1)
        await self._comes(session, "the last one", [7], 0)
        await self._end(session)

    async def _order(self, session: Session) -> None:
        """Per key: with it the second message of a key waits for the first one's ack, and without it for none."""
        await self._begin(session, "aabac")
        await self._update(session, max_ack_pending_per_subject=1)
        found = await self._comes(session, "one of each key", [1, 3, 5])
        await self._may_move(session)
        await session.request(found[0].reply, b"+ACK")
        await self._comes(session, "the next of its key", [2])
        await self._update(session, max_ack_pending_per_subject=0)
        await self._comes(session, "without an order", [4])
        await self._store(session, "aab")
        await self._comes(session, "new ones", [6, 7, 8])
        await self._end(session)

    async def _headers(self, session: Session) -> None:
        await self._begin(session, "aaa")
        for only in (False, True, False):
            await self._update(session, headers_only=only)
            await self._may_move(session)
            (msg,) = await self._pull(session, 1)
            size = str(len(f"owned {Delivered.of(msg).seq}")) if only else None
            self.equal(f"headers only: {only}", (not msg.payload, msg.headers.get("Nats-Msg-Size")), (only, size))
        await self._end(session)

    # ---- limits

    async def _room(self, session: Session) -> None:
        """Updates of `max_ack_pending`: so many messages wait for their acks at most."""
        await self._begin(session, "aaaaaaaa", max_ack_pending=2)
        found = await self._comes(session, "two at most", [1, 2])
        await self._update(session, max_ack_pending=4)
        found += await self._comes(session, "two more", [3, 4])
        await self._update(session, max_ack_pending=3)
        await self._may_move(session)
        await session.request(found[0].reply, b"+ACK")
        await self._comes(session, "none while three wait", [])
        await session.request(found[1].reply, b"+ACK")
        await self._comes(session, "a third one", [5])
        await self._end(session)

    async def _removed(self, session: Session) -> None:
        """Deletions of messages that wait for an ack, while one owner gives way to the next."""
        await self._begin(session, "zabcde", most=1, max_ack_pending=5)
        found = await self._comes(session, "five at most", [1, 2, 3, 4, 5])
        await session.request(found[0].reply, b"+ACK")
        self.elects()

        async def moves() -> None:
            for _ in range(MOVES):
                await self.ask(session, f"CONSUMER.LEADER.STEPDOWN.{STREAM}.one")

        await self.at_once(self._store(session, "abcdabcd"), moves())
        await asyncio.sleep(SETTLES)
        await self._comes(session, "those that are there", [6, 11, 12, 13, 14])
        await self._end(session)

    async def _refused(self, session: Session) -> None:
        """Two members have room for one message at a time, and acknowledge none."""
        await self._keyed(session, SECOND)
        other = await self.session("member")
        counts: dict[int, int] = {}

        async def member(one: Session, name: str) -> None:
            async for msg in self._asking(one, name, {"batch": KEYS, "max_bytes": 2 * SIZE}, MEETS):
                counts[Delivered.of(msg).seq] = Delivered.of(msg).count

        await self.at_once(member(session, "one"), member(other, "two"))
        again = sorted(seq for seq, count in counts.items() if count > 1)
        self.equal("what comes again", again, list(range(1, KEYS + 1)))
        await other.close()
        await self._end(session)

    async def _leaves(self, session: Session) -> None:
        """One of three members asks no more, right before what it has is due; the others get that."""
        await self._keyed(session, SECOND // 2)
        other = await self.session("member")
        taken: set[int] = set()

        async def stays(name: str) -> None:
            async for msg in self._asking(session, name, {"batch": 1}, MEETS):
                await asyncio.sleep(0.1)
                await session.request(msg.reply, b"+ACK")
                taken.add(Delivered.of(msg).seq)

        async def leaves() -> None:
            async for msg in self._asking(other, "three", {"batch": 2}, 0.1):
                self.note(f"the one that leaves has {msg.reply}")

        await self.at_once(leaves(), stays("one"), stays("two"))
        self.equal("what those that stay get", taken, set(range(1, KEYS + 1)))
        await other.close()
        await self._end(session)

    async def _keyed(self, session: Session, wait: int) -> None:
        await self._begin(session, "", ack_wait=wait, max_ack_pending_per_subject=1)
        for at in range(KEYS):
            await self.store(session, f"owned.{at}", f"owned {at}", payload=bytes(SIZE))

    async def _asking(self, session: Session, name: str, request: dict[str, int], seconds: float) -> AsyncIterator[Msg]:
        """The messages that a member gets that asks for so long."""
        end, body = self.now + seconds, json.dumps(request | {"expires": SECOND}).encode()
        with session.inbox(f"_INBOX.{name:x<12}0000000000") as (inbox, got):  # as stock clients name theirs
            while self.now < end:
                session.publish(f"$JS.API.CONSUMER.MSG.NEXT.{STREAM}.one", body, inbox)
                left = request["batch"]
                async with asyncio.timeout(6.0):
                    while left and not (msg := await got.get()).status:
                        left -= 1
                        yield msg

    async def _clocks(self, session: Session) -> None:
        """The owner's clock is ahead, not so much that the others doubt it."""
        await self._begin(session, "", most=1, ack_wait=2 * SECOND)
        leader = (await self.ask(session, f"STREAM.INFO.{STREAM}"))["cluster"]["leader"]
        self.elects()
        while (owner := await self._owner(session)) == leader:
            await self.ask(session, f"CONSUMER.LEADER.STEPDOWN.{STREAM}.one")
        clock = self.deployment.machines[owner].clock
        clock.wall_ahead += AHEAD
        try:
            await asyncio.sleep(SETTLES)
            await self._store(session, "a")
            await self._pull(session, 1)
            began = self.now
            found: list[Msg] = []
            while not found and self.now < began + MEETS:
                found = await self._pull(session, 1, 0.1)
            Exact.between("it comes again after", self.now - began, 2.0 - TIMER, 2.0 + SOON)
        finally:
            clock.wall_ahead -= AHEAD
        await asyncio.sleep(SETTLES)
        await self._end(session)

    async def _restored(self, session: Session) -> None:
        """Out of an archive it goes on with the deliveries that a message has had."""
        await self._begin(session, "a", ack_wait=2 * SECOND, max_deliver=3)
        for _ in range(2):
            await self._pull(session, 1, 4.0)
        await self.archived(session, STREAM)
        counts: list[tuple[int, int]] = []
        end = self.now + MEETS
        while self.now < end:
            found = [Delivered.of(msg) for msg in await self._pull(session, 2, 3.0)]
            counts += [(one.seq, one.count) for one in found]
        await self._end(session)
        self.equal("what comes", sorted(counts), [(1, 3)])

    async def _guarded(self, session: Session) -> None:
        """A guard counts what waits for it, also while a limit removes what does not."""
        await self.create(session, STREAM, subjects=["owned"], num_replicas=self.rng.choice([1, 3]), max_msgs=GUARDED)
        await self.create_consumer(session, STREAM, "one", ack_wait=600 * SECOND)
        for _ in range(GUARDED):
            await session.js_publish("owned", bytes(SIZE))
        for msg in await self._pull(session, GUARDED // 2):
            await session.request(msg.reply, b"+ACK")
        info = await self.ask(session, f"STREAM.INFO.{STREAM}")
        size = info["state"]["bytes"] // GUARDED
        guard = {"consumer": "one", "max_bytes": (GUARDED - 2) * size + size // 2, "discard": "new"}
        await self.ask(session, f"STREAM.UPDATE.{STREAM}", info["config"] | {"retention_guard": guard})
        taken = 0
        try:
            for _ in range(GUARDED):
                await session.js_publish("owned", bytes(SIZE))
                taken += 1
        except ApiError as error:
            self.equal("it is full", error.err_code, FULL)
        self.equal("what it takes besides", taken, GUARDED // 2 - 2)
        await self._end(session)

    async def _ended(self, session: Session) -> None:
        """A request that waits while its owner changes is ended once, whoever comes after the next one."""
        await self._begin(session, "", most=1)
        self.elects()
        with session.inbox() as (inbox, got):
            session.publish(f"$JS.API.CONSUMER.MSG.NEXT.{STREAM}.one", b'{"batch": 1, "expires": 60000000000}', inbox)
            await session.flush()
            await asyncio.sleep(SOON)
            for _ in range(3):
                await self.ask(session, f"CONSUMER.LEADER.STEPDOWN.{STREAM}.one")
                await asyncio.sleep(SOON)
            told = [got.get_nowait().status for _ in range(got.qsize())]
        self.equal("what ends it", told, ["409 Leadership Change"])
        await self._end(session)

    async def _told(self, session: Session) -> None:
        """CONSUMER.INFO has what was delivered without acks right before."""
        await self._begin(session, "abaab", ack_policy="none", ack_wait=0)
        for batch, seq in ((2, 2), (1, 3), (2, 5)):
            await self._pull(session, batch)
            info = await self.ask(session, f"CONSUMER.INFO.{STREAM}.one")
            self.equal("delivered", (info["delivered"]["stream_seq"], info["num_pending"]), (seq, 5 - seq))
        await self._end(session)

    async def _owner(self, session: Session) -> str:
        return str((await self.ask(session, f"CONSUMER.INFO.{STREAM}.one"))["cluster"]["leader"])

    async def _waits(self, session: Session) -> None:
        """For acks: those of the next deliveries, and how many there are of a message."""
        await self._begin(session, "aa")
        await self._comes(session, "with a long wait", [1], 1)
        await self._update(session, ack_wait=2 * SECOND)
        await self._may_move(session)
        await self._comes(session, "with a short one", [2], 0)
        self.equal("not yet", await self._pull(session, 1, 1.0), [])
        found = await self._pull(session, 1, 4.0)
        self.equal("again", [(Delivered.of(msg).seq, Delivered.of(msg).count) for msg in found], [(2, 2)])
        await self._update(session, max_deliver=2)
        self.equal("no third time", await self._pull(session, 1, 4.0), [])
        await self._end(session)

    async def _requests(self, session: Session) -> None:
        """Limits of what is asked for, and a request that waits."""
        await self._begin(session, "aab", max_batch=3, filter_subject="owned.a")
        await self._comes(session, "three may be asked for", [1, 2])
        await self._update(session, max_batch=2)
        (refused,) = await self.take(session, STREAM, "one", {"batch": 3, "expires": SECOND})
        self.equal("three are too many", refused.status[:3], "409")
        began, waiting = self.now, asyncio.ensure_future(self._pull(session, 1, 6.0))
        await asyncio.sleep(0.5)
        await self._update(session, filter_subject="owned.b")
        found = await waiting
        self.equal("to a request that waits", [Delivered.of(msg).seq for msg in found], [3])
        Exact.between("it came", self.now - began, 0.5, 0.5 + SOON)
        await self._end(session)

    async def _push(self, session: Session) -> None:
        """Where it goes, and how many at a time."""
        got: dict[str, list[Msg]] = {subject: [] for subject in ("to.one", "to.two")}
        sids = [session.subscribe(subject, found.append) for subject, found in got.items()]
        await session.flush()
        await asyncio.sleep(SOON)
        await self._begin(session, "abaab", deliver_subject="to.one", max_ack_pending=2, filter_subject="owned.a")
        await asyncio.sleep(SOON)
        self.equal("two of one filter", [Delivered.of(msg).seq for msg in got["to.one"]], [1, 3])
        await self._update(session, max_ack_pending=3)
        await asyncio.sleep(SOON)
        self.equal("a third one", [Delivered.of(msg).seq for msg in got["to.one"]], [1, 3, 4])
        await self._update(session, max_ack_pending=9, filter_subject="")
        await asyncio.sleep(SOON)
        self.equal("of all", [Delivered.of(msg).seq for msg in got["to.one"]], [1, 3, 4, 5])
        session.unsubscribe(sids[0])
        await session.flush()
        await asyncio.sleep(SOON)
        await self._update(session, deliver_subject="to.two")
        await self._store(session, "a")
        await asyncio.sleep(SOON)
        self.equal("elsewhere", [[Delivered.of(msg).seq for msg in got[one]] for one in got], [[1, 3, 4, 5], [6]])
        await self._end(session)
