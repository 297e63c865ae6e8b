"""Reads that say how fresh their answer must be, in all forms, of replicas, of mirrors, and of a mirror at a leaf."""

from __future__ import annotations

import asyncio
import base64
import json
import math
from typing import Any, NamedTuple

from jetcluster.model import durations
from jetcluster.pipeline.checkers.fresh import EVENTUAL, LINEARIZABLE, SESSION, Demand, FinalMessage, Look
from testkit.sim.session import ApiError, Msg, NoResponders, Session
from tests.sim.cluster.judges import Fresh
from tests.sim.cluster.workload import PASSING, Workload, together

STREAM, COPY, EDGE = "FRESH", "FRESHCOPY", "FRESHEDGE"
KEYS = tuple(f"fresh.{letter}" for letter in "abcd")
WRITERS = 3
LEADER_READERS = 2
"""Connections that ask the leader all the time, so that it has a lease."""
PATIENCE = 5.0
TOGETHER = 4
"""Requests in one piece."""
AGES = (0.0, 0.05, 0.3, 2.0)
"""Seconds of max_staleness."""
WEAKER: dict[str, tuple[Any, str]] = {
    "consistency": (EVENTUAL, EVENTUAL),
    "min_last_seq": (1, "1"),
    "max_staleness": (3_600 * 10**9, "1h"),
    "read_info": (False, "false"),
}
"""Weaker wishes than any other, in the body and as a header."""
DEFAULTS = {"": SESSION, "default": SESSION, "session": SESSION, "weak": EVENTUAL, "strong": LINEARIZABLE}
"""The level that a stream's read_consistency gives to those who do not ask."""
NOT_FOUND, MIN_LAST_SEQ = 10037, 10180


class Asked(NamedTuple):
    """A request, besides its wishes."""

    fields: dict[str, Any]
    look: dict[str, Any]
    """Fields of its `Look`."""
    single: bool = True
    """It has one answer, also at MSG.GET."""
    key: str = ""
    """It may name this subject in its own subject."""


class Freshness(Workload):
    name = "freshness"
    weight = 4
    judges = (Fresh,)
    promises = (
        "a read finds everything that its consistency, min_last_seq and max_staleness ask for, or an error",
        "an answer that tells its applied sequence and its staleness lacks nothing up to there",
        "no read shows what was never written, and one of several messages shows them as of one moment",
        "a read is refused for what it asked for, and for nothing when all servers are well",
    )

    async def prepare(self) -> None:
        self.judge = Fresh()
        self.tokens: list[int] = []
        """Sequences that were acknowledged to somebody, which anybody may ask for."""
        self.leaf = [name for name, server in self.deployment.servers.items() if server.leaf_of]
        admin = await self.session("admin")
        rng = self.rng
        self.default = DEFAULTS[said := rng.choice(["", "default", "session", "weak", "strong"])]
        option = {"read_consistency": said} if said else {}
        await self.create(admin, STREAM, subjects=["fresh.>"], num_replicas=rng.choice([1, 3, 3]), **option)
        mirror = {"mirror_direct": True, "num_replicas": rng.choice([1, 3])}
        await self.create(admin, COPY, mirror={"name": STREAM}, **mirror)
        if self.leaf:
            there = await self.session("leaf", *self.leaf)
            size = 1 if len(self.leaf) == 1 else rng.choice([1, 3])
            if rng.random() < 0.5:  # it must not be taken for the upstream
                await self.create(there, STREAM, subjects=["fresh-there.>"], num_replicas=size)
            upstream = {"name": STREAM, "external": {"api": "$JS.hub.API"}}
            await self.create(there, EDGE, num_replicas=size, mirror=upstream)

    async def work(self) -> None:
        clients = [_Client(self, f"c{number}").run() for number in range(WRITERS)]
        leaders = [_Client(self, f"l{number}").read_leader() for number in range(LEADER_READERS)]
        edge = [_Client(self, "edge").read_edge()] if self.leaf else []
        await together(*clients, *leaders, *edge)

    async def check(self) -> None:
        await self._nothing_is_refused()
        copies: list[dict[int, FinalMessage]] = []

        def look(where: str, contents: dict[int, Msg]) -> None:
            copies.append(
                {seq: FinalMessage(msg.headers["Nats-Subject"], msg.payload.decode()) for seq, msg in contents.items()}
            )
            self.require(copies[-1] == copies[0], f"{where} has something else than another one")
            self.judge.complete(copies[-1])

        await self.everywhere(STREAM, max(self.judge.acked, default=0), look)

    async def _nothing_is_refused(self) -> None:
        """All servers are well: whatever is asked for is answered."""
        for name in self.deployment.members():
            client = _Client(self, f"calm-{name}", calm=True)
            client.session = await self.session(f"calm-{name}", name)
            for wish in _WISHES:

                async def answered(client: _Client = client, wish: Demand = wish) -> bool:
                    before = self.counts.get("refused", 0)
                    await client.look(wish)
                    return self.counts.get("refused", 0) == before

                await self.until(f"{name} answers {wish}", answered)
            await client.session.close()


_WISHES = (
    Demand(EVENTUAL),
    Demand(SESSION),
    Demand(LINEARIZABLE),
    Demand("", 1),
    Demand("", 0, 0.3),
)


class _Client:
    """One connection, and what it was told."""

    session: Session

    def __init__(self, workload: Freshness, name: str, *, calm: bool = False) -> None:
        self.workload, self.name = workload, name
        self.rng = workload.rng
        self.calm = calm
        self.connects = self.own = self.written = self.plain = 0
        self.unanswered: list[str] = []
        """Texts that were sent on this connection, and what came of them is not known."""

    async def run(self) -> None:
        """Writes and reads, of all kinds."""
        self.session = await self.workload.session(self.name)
        await self._go_on(10.0, lambda: self.write() if self.rng.random() < 0.35 else self.look(self.wish()))

    async def read_leader(self) -> None:
        self.session = await self.workload.session(self.name)
        await self._go_on(25.0, lambda: self.look(Demand(""), leader=True))

    async def read_edge(self) -> None:
        """Reads of a mirror that keeps the sequences of its upstream, wherever that is."""
        self.session = await self.workload.session(self.name, *self.workload.leaf)
        await self._go_on(5.0, lambda: self.look(self._token(self.wish()), mirror=EDGE))

    async def _go_on(self, pace: float, act: Any) -> None:
        workload = self.workload
        while not workload.stopping:
            await asyncio.sleep(self.rng.expovariate(pace))
            if self.session.connects != self.connects:
                self.own, self.connects = 0, self.session.connects
                self.unanswered.clear()
            try:
                await act()
            except PASSING:
                workload.count("unknown")

    async def write(self) -> None:
        workload, connects = self.workload, self.session.connects
        self.written += 1
        text = f"{self.name}-{self.written}"
        workload.judge.send(text, workload.now)
        self.unanswered.append(text)
        ack = await self.session.js_publish(self.rng.choice(KEYS), text.encode(), seconds=2.0)
        if text in self.unanswered:
            self.unanswered.remove(text)
        seq = int(ack["seq"])
        workload.judge.ack(seq, text, workload.now)
        workload.tokens.append(seq)
        workload.count("written")
        if self.session.connects == connects:
            self.own = max(self.own, seq)

    # ---- what is asked for

    def wish(self) -> Demand:
        rng = self.rng
        consistency = rng.choice(["", "", EVENTUAL, SESSION, LINEARIZABLE])
        wish = Demand(consistency, 0, rng.choice(AGES) if rng.random() < 0.3 else math.inf)
        return self._token(wish) if rng.random() < 0.35 else wish

    def _token(self, wish: Demand) -> Demand:
        known = self.workload.tokens[-3:]
        return wish._replace(min_last_seq=self.rng.choice(known)) if known else wish

    def _asked(self, *, single: bool) -> Asked:
        rng, key = self.rng, self.rng.choice(KEYS)
        known = max(self.workload.tokens, default=1)
        start = max(1, known - rng.choice([0, 0, 1, 5, 1000]))
        kind = rng.choice(["last", "last", "subject", "next", "seq"] + ([] if single else ["batch", "multi", "multi"]))
        if kind in ("last", "subject"):
            return Asked({"last_by_subj": key}, {"lasts": (key,)}, key=key if kind == "subject" else "")
        if kind == "next":
            return Asked({"seq": start, "next_by_subj": key}, {"subject": key, "start": start})
        if kind == "seq":
            return Asked({"seq": start}, {"start": start})
        if kind == "multi":
            return Asked({"multi_last": ["fresh.>"], "batch": 100}, {"lasts": KEYS, "most": 100}, single=False)
        count = rng.choice([1, 3, 1000])
        return Asked({"seq": start, "batch": count}, {"start": start, "most": count}, single=False)

    def _holds(self, wish: Demand, *, leader: bool, own_name: bool) -> Demand:
        """The wish that holds for a request that said `wish`."""
        if leader:
            return wish._replace(consistency=LINEARIZABLE)
        if own_name:  # consistency is of the mirror's own stream; its age counts its upstream
            return wish._replace(consistency=EVENTUAL)
        default = EVENTUAL if wish.max_staleness < math.inf else self.workload.default
        return wish._replace(consistency=wish.consistency or default)

    # ---- asking

    async def look(self, wish: Demand, *, leader: bool = False, mirror: str = "") -> None:
        """One read, written down. Raises what requests raise, and TimeoutError for one without an answer."""
        workload, rng = self.workload, self.rng
        direct_leader = not mirror and rng.random() < (0.3 if leader else 0.1)
        msg_get = not direct_leader and not mirror and (leader or rng.random() < 0.1)
        if not (leader or mirror or msg_get or direct_leader or self.calm) and rng.random() < 0.1:
            mirror = COPY
        asked = self._asked(single=msg_get)
        informed = rng.random() < 0.6
        holds = self._holds(wish, leader=msg_get or direct_leader, own_name=bool(mirror))
        body, headers = self._written(asked, wish, informed)
        connects, own, began = self.session.connects, self.own, workload.now
        unanswered = tuple(self.unanswered)
        if not (msg_get or direct_leader or body.keys() - asked.fields.keys() or headers) and asked.single:
            self.plain += 1
            if self.plain % 2 == 0:
                await self._look_together(asked, holds, mirror)
                return
        if msg_get:
            found, head = await self._ask_msg_get(body, headers)
        else:
            api = "DIRECT_LEADER.GET" if direct_leader else "DIRECT.GET"
            subject = f"$JS.API.{api}.{mirror or STREAM}"
            if asked.key:
                subject, body = f"{subject}.{asked.key}", {k: v for k, v in body.items() if k != "last_by_subj"}
            found, head = await self._ask(subject, body, headers, single=asked.single)
        if self.session.connects != connects:
            return
        told = {} if head.refused and "Nats-Applied-Sequence" not in head.headers else _told(head.headers)
        if mirror and head.refused and wish.consistency:
            holds = holds._replace(consistency=wish.consistency)  # which was a cause
        if informed and not head.refused:
            workload.require("applied" in told, f"{body} {headers} asked for read_info: {head}")
        workload.count("refused" if head.refused else holds.consistency)
        if head.refused:
            workload.count(f"refused: {head.refused}")
        workload.judge.looks.append(
            Look(
                self.name, began, workload.now, holds, own, found=found, refused=head.refused, unanswered=unanswered,
                **asked.look, **told,
            )
        )  # fmt: skip

    async def _look_together(self, asked: Asked, holds: Demand, mirror: str) -> None:
        """Requests without wishes that come to their server in one piece."""
        connects, own, began = self.session.connects, self.own, self.workload.now
        subject, body = f"$JS.API.DIRECT.GET.{mirror or STREAM}", json.dumps(asked.fields).encode()
        if asked.key:
            subject, body = f"{subject}.{asked.key}", b""
        with self.session.inbox() as (inbox, got):
            self.session.publish(subject, body, inbox, times=TOGETHER)
            for _ in range(TOGETHER):
                async with asyncio.timeout(PATIENCE):
                    msg = await got.get()
                if self.session.connects != connects:
                    return
                if msg.status == "503":
                    self.workload.count("refused")
                    continue
                if msg.status[:3] not in ("", "404"):
                    raise AssertionError(f"{subject} {body!r}: {msg.status}")
                found = () if msg.status else ((int(msg.headers["Nats-Sequence"]), msg.payload.decode()),)
                self.workload.count("read together")
                self.workload.judge.looks.append(
                    Look(self.name, began, self.workload.now, holds, own, found=found, refused="", **asked.look)
                )

    def _written(self, asked: Asked, wish: Demand, informed: bool) -> tuple[dict[str, Any], dict[str, str]]:
        """Body and headers of a request: each wish in one of them, and of two or four wishes a weaker one in the other:
        the stricter counts."""
        body, headers = dict(asked.fields), {}
        wishes: list[tuple[str, Any, str, str]] = []
        if wish.consistency:
            wishes.append(("consistency", wish.consistency, "Nats-Read-Consistency", wish.consistency))
        if wish.min_last_seq:
            wishes.append(("min_last_seq", wish.min_last_seq, "Nats-Min-Last-Sequence", str(wish.min_last_seq)))
        if wish.max_staleness < math.inf:
            age = wish.max_staleness
            wishes.append(("max_staleness", int(age * 1e9), "Nats-Max-Staleness", f"{age * 1000:.0f}ms"))
        if informed:
            wishes.append(("read_info", True, "Nats-Read-Info", "true"))
        for field, value, header, text in wishes:
            both = len(wishes) % 2 == 0
            if self.rng.random() < 0.5:
                body[field] = value
                headers |= {header: WEAKER[field][1]} if both else {}
            else:
                headers[header] = text
                body |= {field: WEAKER[field][0]} if both else {}
        return body, headers

    async def _ask(
        self, subject: str, body: dict[str, Any], headers: dict[str, str], *, single: bool
    ) -> tuple[tuple[tuple[int, str], ...], _Head]:
        found: list[tuple[int, str]] = []
        with self.session.inbox() as (inbox, got):
            self.session.publish(subject, json.dumps(body).encode() if body else b"", inbox, headers or None)
            while True:
                async with asyncio.timeout(PATIENCE):
                    msg = await got.get()
                if msg.status[:3] == "503" and not msg.status[3:]:
                    raise NoResponders(subject)
                if msg.status[:3] not in ("", "204", "404", "503"):
                    raise AssertionError(f"{subject} {body} {headers}: {msg.status}")
                if not msg.status:
                    found.append((int(msg.headers["Nats-Sequence"]), msg.payload.decode()))
                if msg.status or single:
                    return tuple(found), _Head(msg.status if msg.status.startswith("503") else "", msg.headers)

    async def _ask_msg_get(
        self, body: dict[str, Any], headers: dict[str, str]
    ) -> tuple[tuple[tuple[int, str], ...], _Head]:
        subject = f"$JS.API.STREAM.MSG.GET.{STREAM}"
        answer = json.loads((await self.session.request(subject, json.dumps(body).encode(), 2.0, headers)).payload)
        if error := answer.get("error"):
            if error["err_code"] == MIN_LAST_SEQ:
                raise ApiError(error)  # it says no more; that it came for a cause is what `check` sees
            if error["err_code"] == NOT_FOUND and not body.get("read_info") and "Nats-Read-Info" not in headers:
                return (), _Head("", {})
            raise ApiError(error)
        message, info = answer["message"], answer.get("freshness", {})
        text = base64.b64decode(message.get("data", "")).decode()
        told: dict[str, str] = {}
        if info:
            told = {"Nats-Applied-Sequence": str(info["applied_seq"]), "Nats-Staleness": f"{info['staleness']}ns"}
        return ((int(message["seq"]), text),), _Head("", told)


class _Head(NamedTuple):
    refused: str
    headers: dict[str, str]


def _told(headers: dict[str, str]) -> dict[str, Any]:
    """Fields of a `Look`: what an answer tells of itself."""
    applied, age = headers.get("Nats-Applied-Sequence"), headers.get("Nats-Staleness", "unknown")
    found: dict[str, Any] = {} if applied is None else {"applied": int(applied)}
    if age != "unknown":
        nanoseconds = durations.parse(age.encode())
        assert nanoseconds is not None, age
        found["age"] = nanoseconds / 1e9
    return found
