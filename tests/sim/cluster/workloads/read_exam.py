"""Direct Get and MSG.GET of a stream with holes: pages, the last of each subject, times, sizes, and what is refused."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

from testkit.sim.session import ApiError, Msg, NoResponders, Session
from tests.sim.cluster.exam import Exam
from tests.sim.cluster.judges import Exact
from tests.sim.cluster.workloads.deliver_exam import matches

STREAM = "READS"
MESSAGES = 16
FILTERS = (">", "r.a", "r.*", "r.>", "r.b.x", "r.*.x", "r.none")


class Stored(NamedTuple):
    seq: int
    subject: str
    text: str
    time: str

    @property
    def size(self) -> int:
        """Bytes as `max_bytes` counts them: it has no headers."""
        return len(self.subject) + len(self.text)


class ReadExam(Exam):
    name = "exam-reads"
    judges = (Exact,)
    promises = (
        "pages of a Direct Get follow each other without a gap, and tell what is left and what came before",
        "multi_last finds the last message of each subject, as of a sequence or a time, and start_time the first since",
        "a read that asks for nothing, for too much, or for what is not there, gets an error",
    )

    async def check(self) -> None:
        session = await self.session("fill")
        size, storage = self.rng.choice([1, 3]), self.rng.choice(["file", "file", "memory"])
        await self.create(session, STREAM, subjects=["r.>"], num_replicas=size, storage=storage)
        self.stored: list[Stored] = []
        for at in range(1, MESSAGES + 1):
            subject, text = self.rng.choice(["r.a", "r.b", "r.c", "r.b.x", "r.c.x"]), f"{at}" * self.rng.randint(1, 9)
            await self.insist("a publish", lambda s=subject, t=text, n=at: self._put(session, s, t, n))  # type: ignore[misc]
            message = (await self.ask(session, f"STREAM.MSG.GET.{STREAM}", {"seq": at}))["message"]
            self.stored.append(Stored(at, subject, text, message["time"]))
        for one in self.rng.sample(self.stored, 4):
            await self.ask(session, f"STREAM.MSG.DELETE.{STREAM}", {"seq": one.seq})
            self.stored.remove(one)
        parts: list[Callable[[Session], Awaitable[None]]] = [
            self._pages, self._sizes, self._lasts, self._times, self._single, self._refusals, self._mirrored
        ]  # fmt: skip
        await self.examine(parts, 5)
        await session.close()

    async def _put(self, session: Session, subject: str, text: str, expected: int) -> None:
        """Once, without a header that would be stored."""
        last = int((await session.api(f"STREAM.INFO.{STREAM}"))["state"]["last_seq"])
        if last < expected:
            await session.js_publish(subject, text.encode())

    async def _get(self, session: Session, stream: str = STREAM, **request: Any) -> tuple[list[Msg], Msg]:
        """The messages, and the status at the end."""
        found: list[Msg] = []
        with session.inbox() as (inbox, got):
            session.publish(f"$JS.API.DIRECT.GET.{stream}", json.dumps(request).encode() if request else b"", inbox)
            async with asyncio.timeout(5.0):
                while not (msg := await got.get()).status:
                    found.append(msg)
                    if not request.get("batch") and not request.get("multi_last"):
                        break
        return found, msg

    def _are(self, what: str, found: list[Msg], wanted: list[Stored], last: int = 0, left: int | None = None) -> None:
        """`left`: behind the last one; None where the answer does not tell. `last`: before the first one."""
        told = [
            Stored(
                int(msg.headers["Nats-Sequence"]), msg.headers["Nats-Subject"], msg.payload.decode(),
                msg.headers["Nats-Time-Stamp"],
            )
            for msg in found
        ]  # fmt: skip
        self.equal(what, told, wanted)
        if left is None:
            return
        counts = [(int(msg.headers["Nats-Num-Pending"]), int(msg.headers["Nats-Last-Sequence"])) for msg in found]
        before = [last, *(one.seq for one in wanted)]
        self.equal(f"{what}: counts", counts, [(left + len(wanted) - 1 - at, before[at]) for at in range(len(wanted))])

    def _end(self, what: str, end: Msg, left: int, last: int) -> None:
        told = (end.status[:3], end.headers.get("Nats-Num-Pending"), end.headers.get("Nats-Last-Sequence"))
        self.equal(f"{what}: its end", told, ("204", str(left), str(last)))

    async def _pages(self, session: Session) -> None:
        """All of a filter, page by page."""
        for pattern in self.rng.sample(FILTERS, 4):
            own = [one for one in self.stored if matches(one.subject, pattern)]
            start, batch = self.rng.randint(1, MESSAGES), self.rng.choice([1, 3, 5, 50])
            own = [one for one in own if one.seq >= start]
            while own:
                page, own = own[:batch], own[batch:]
                what = f"{pattern} from {start}, {batch}"
                found, end = await self._get(session, seq=start, batch=batch, next_by_subj=pattern)
                self._are(what, found, page, left=len(own))
                self._end(what, end, len(own), page[-1].seq)
                start = page[-1].seq + 1
            found, end = await self._get(session, seq=start, batch=batch, next_by_subj=pattern)
            self.equal(f"{pattern} from {start}", (found, end.status[:3]), ([], "404"))

    async def _sizes(self, session: Session) -> None:
        """A page ends with the message that fills it, and has one at least."""
        for room in (1, self.rng.randint(2, 60), self.stored[0].size):
            page = [one for one in self.stored if self._before(one) < room]
            found, end = await self._get(session, seq=1, batch=100, max_bytes=room)
            self._are(f"{room} bytes", found, page, left=len(self.stored) - len(page))
            self._end(f"{room} bytes", end, len(self.stored) - len(page), page[-1].seq)

    def _before(self, one: Stored) -> int:
        return sum(other.size for other in self.stored if other.seq < one.seq)

    def _lasts_of(self, patterns: list[str], up_to: int) -> list[Stored]:
        last = {
            one.subject: one
            for one in self.stored
            if one.seq <= up_to and any(matches(one.subject, pattern) for pattern in patterns)
        }
        return sorted(last.values())

    async def _lasts(self, session: Session) -> None:
        for patterns in (["r.>"], ["r.a", "r.b"], ["r.*.x", "r.c"], ["r.none"]):
            up_to = self.rng.choice([0, self.rng.randint(1, MESSAGES)])
            wanted = self._lasts_of(patterns, up_to or MESSAGES)
            more: dict[str, Any] = {"up_to_seq": up_to} if up_to else {}
            found, end = await self._get(session, multi_last=patterns, **more)
            if not wanted:
                self.equal(f"{patterns} up to {up_to}", (found, end.status[:3]), ([], "404"))
                continue
            self._are(f"{patterns} up to {up_to}", found, wanted, left=0)
            self._end(f"{patterns} up to {up_to}", end, 0, wanted[-1].seq)
            self.equal("up to", end.headers.get("Nats-UpTo-Sequence"), str(up_to or MESSAGES))
            if len(wanted) > 2:
                first, _ = await self._get(session, multi_last=patterns, batch=2, **more)
                self._are(f"two of {patterns}", first, wanted[:2], left=len(wanted) - 2)
                rest, _ = await self._get(session, multi_last=patterns, seq=wanted[1].seq + 1, **more)
                self._are(f"the rest of {patterns}", rest, wanted[2:], left=0)

    async def _times(self, session: Session) -> None:
        for one in self.rng.sample(self.stored, 3):
            since = [other for other in self.stored if other.seq >= one.seq]
            found, _ = await self._get(session, start_time=one.time, batch=3)
            self._are(f"since {one.time}", found, since[:3], left=len(since) - len(since[:3]))
            own = [other for other in since if other.subject == one.subject]
            found, _ = await self._get(session, start_time=one.time, batch=9, next_by_subj=one.subject)
            self._are(f"{one.subject} since {one.time}", found, own, left=0)
            found, _ = await self._get(session, multi_last=["r.>"], up_to_time=one.time)
            self._are(f"up to {one.time}", found, self._lasts_of(["r.>"], one.seq), left=0)

    async def _single(self, session: Session) -> None:
        for one in self.rng.sample(self.stored, 3):
            last = next(other for other in reversed(self.stored) if other.subject == one.subject)
            for wanted, request in (
                (one, {"seq": one.seq}),
                (last, {"last_by_subj": one.subject}),
                (one, {"seq": one.seq, "next_by_subj": one.subject}),
                (one, {"start_time": one.time}),
                (self._lasts_of(["r.>"], MESSAGES)[-1], {"last_by_subj": "r.>"}),
            ):
                found, _ = await self._get(session, **request)
                self._are(f"{request}", found, [wanted])
                message = (await self.ask(session, f"STREAM.MSG.GET.{STREAM}", request))["message"]
                told = Stored(message["seq"], message["subject"], self.text_of(message), message["time"])
                self.equal(f"MSG.GET {request}", told, wanted)
            found, _ = await self._get(session, seq=one.seq, no_hdr=True)
            self.equal("without headers", [(msg.headers, msg.payload) for msg in found], [({}, one.text.encode())])
            direct = await session.request(f"$JS.API.DIRECT.GET.{STREAM}.{one.subject}")
            self._are(f"the last of {one.subject}", [direct], [last])

    async def _refusals(self, session: Session) -> None:
        gone = next(seq for seq in range(1, MESSAGES + 1) if all(one.seq != seq for one in self.stored))
        for request, status in (
            ({}, "408"),
            ({"batch": 3}, "408"),
            ({"seq": 1, "start_time": self.stored[0].time}, "408"),
            ({"last_by_subj": "r.a", "seq": 1}, "408"),
            ({"multi_last": ["r.>"], "up_to_seq": 3, "up_to_time": self.stored[0].time}, "408"),
            ({"seq": gone}, "404"),
            ({"seq": MESSAGES + 1}, "404"),
            ({"last_by_subj": "r.none"}, "404"),
        ):
            found, end = await self._get(session, **request)
            self.equal(f"{request}", (found, end.status[:3]), ([], status))
        subject = f"STREAM.MSG.GET.{STREAM}"
        self.equal("what was deleted", await self.refused(session, subject, {"seq": gone}), 10037)
        self.equal("no request", await self.refused(session, subject, {}), 10003)
        self.equal("two ways", await self.refused(session, subject, {"seq": 1, "last_by_subj": "r.a"}), 10003)
        await self.ask(session, f"STREAM.UPDATE.{STREAM}", await self._config(session) | {"allow_direct": False})
        await asyncio.sleep(1.5)
        try:
            await self._get(session, seq=self.stored[0].seq)
        except TimeoutError:
            self.require(False, "nobody hears that a stream without allow_direct does not answer")
        except (NoResponders, ApiError):
            pass
        await self.ask(session, f"STREAM.UPDATE.{STREAM}", await self._config(session) | {"allow_direct": True})
        await asyncio.sleep(1.5)

    async def _config(self, session: Session) -> dict[str, Any]:
        found: dict[str, Any] = (await self.ask(session, f"STREAM.INFO.{STREAM}"))["config"]
        return found

    async def _mirrored(self, session: Session) -> None:
        """A mirror has the holes of its upstream, and answers Direct Gets in its name."""
        await self.create(session, "READS-M", mirror={"name": STREAM}, mirror_direct=True, num_replicas=1)

        async def is_there() -> bool:
            return int((await session.api("STREAM.INFO.READS-M"))["state"]["last_seq"]) >= self.stored[-1].seq

        await self.until("the mirror is complete", is_there, 30.0)
        found, end = await self._get(session, "READS-M", seq=1, batch=100)
        self._are("of the mirror", found, self.stored, left=0)
        self._end("of the mirror", end, 0, self.stored[-1].seq)
        state = (await self.ask(session, "STREAM.INFO.READS-M"))["state"]
        first = self.stored[0].seq
        told = (state["messages"], state["first_seq"], state["last_seq"])
        self.equal("its state", told, (len(self.stored), first, self.stored[-1].seq))
        await self.ask(session, "STREAM.DELETE.READS-M")
