"""A client that answers as the server of a stream does, for mirrors and sources that have it for their upstream; and,
while it lies, now and then as no server would. What it never does is to tell of messages that it has not.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
from collections.abc import Callable
from random import Random
from typing import Any, NamedTuple

from jetcluster.model.times import parse_rfc3339, rfc3339
from testkit.sim.machine import EPOCH_NS
from testkit.sim.session import Disconnected, Msg, Session

BEAT = 1.0
"""Seconds between two heartbeats."""
TURN = 0.05
"""Seconds between two looks at what is to be delivered."""
AT_ONCE = 7
"""Messages of a turn."""
ANSWERED = 3.0
"""Seconds after which a question of flow control counts as lost."""
LIES = 0.15
"""Share of answers that are wrong while it lies."""
WRONG_BEAT = 0.02
"""Share of turns in which a consumer does something wrong."""
SILENCE = 7.0
"""Seconds of a consumer that says nothing: longer than links wait."""
NO_MESSAGE = {"error": {"code": 404, "err_code": 10037, "description": "no message found"}}
ERRORS = (
    {"error": {"code": 404, "err_code": 10059, "description": "stream not found"}},
    {"error": {"code": 503, "err_code": 10008, "description": "JetStream system temporarily unavailable"}},
    {"error": {"code": 500}},
    {"error": "no"},
)
NO_ANSWERS = (b"", b"{", b"[]", b"null", b"7", b"{}", b"\xff\xfe", b'{"a":' * 200)


class Kept(NamedTuple):
    text: str
    ns: int
    """Unix nanoseconds."""


class Fed:
    """A consumer that it has."""

    def __init__(self, name: str, deliver: str, after: int) -> None:
        self.name, self.deliver = name, deliver
        self.seq = after
        """The last sequence that it delivered."""
        self.dseq = 0
        self.floor = after
        """The last sequence that was acknowledged; counts for one that is durable."""
        self.question = ""
        """The subject at which it waits for an answer."""
        self.asked = 0.0
        self.task: asyncio.Task[None] | None = None

    def end(self) -> None:
        if self.task is not None:
            self.task.cancel()


class Pretender:
    """The stream `name` with the API `api`. Deliveries of a client have the subject that they are delivered at."""

    def __init__(self, session: Session, rng: Random, now: Callable[[], float], name: str, api: str) -> None:
        self.name = name
        self.lying = False
        self.loses = False
        """The next delivery of the newest message is lost on its way."""
        self.deaf = False
        """No answer to flow control comes, whoever sends one."""
        self.retention = "limits"
        self.subject = ""
        """The subject that it says its messages have."""
        self.kept: dict[int, Kept] = {}
        self.counts: dict[str, int] = {}
        self.may_be_restored = False
        """It may say to have been created at another time."""
        self._session, self._rng, self._now, self._api = session, rng, now, api
        self._created = 1
        self._fed: dict[str, Fed] = {}
        session.subscribe(f"{api}.>", self._ask)
        session.subscribe(f"$JS.FC.{name}.*", self._answered)

    @property
    def last(self) -> int:
        return max(self.kept, default=0)

    def store(self, text: str) -> None:
        self.kept[self.last + 1] = Kept(text, EPOCH_NS + int(self._now() * 1e9))

    def restored(self) -> None:
        """The same messages, in a stream that was created at another time."""
        self._created += 1

    def anew(self) -> None:
        """Another stream with its name, without a message."""
        self.restored()
        self.kept = {}
        self.close()

    def close(self) -> None:
        for fed in self._fed.values():
            fed.end()
        self._fed.clear()

    def stall(self) -> None:
        """Consumers wait for answers that get lost, from here on until `hear`."""
        self.deaf = True
        for fed in self._fed.values():
            fed.question, fed.asked = f"$JS.FC.{self.name}.lost", self._now() - ANSWERED

    def hear(self) -> None:
        """Answers come again, and nobody waits for an earlier one."""
        self.deaf = False
        for fed in self._fed.values():
            fed.question = ""

    def count(self, what: str) -> None:
        self.counts[what] = self.counts.get(what, 0) + 1

    # ---- requests

    def _ask(self, msg: Msg) -> None:
        tokens = msg.subject.removeprefix(f"{self._api}.").split(".")
        body = json.loads(msg.payload) if msg.payload else {}
        kind = ".".join(tokens[: 3 if tokens[1] == "MSG" else 2])
        lies = self.lying and self._rng.random() < LIES
        answer = {
            "STREAM.INFO": self._info,
            "STREAM.MSG.GET": self._get,
            "CONSUMER.CREATE": self._create,
            "CONSUMER.RESET": self._reset,
            "CONSUMER.DELETE": self._delete,
        }[kind](tokens, body, lies)
        if lies and self._rng.random() < 0.6:
            answer = self._rng.choice([None, self._rng.choice(NO_ANSWERS), self._rng.choice(ERRORS)])
        if answer is None or not msg.reply:
            return
        said = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
        if lies:
            self.count("lies")
        with contextlib.suppress(Disconnected):
            self._session.publish(msg.reply, said)

    def _info(self, tokens: list[str], body: Any, lies: bool) -> Any:
        created, retention, last = self._created, self.retention, self.last
        if lies and self.may_be_restored and self._rng.random() < 0.5:
            created += self._rng.randint(1, 3)
        elif lies:
            retention = self._rng.choice(["limits", "workqueue", "interest"])
        info: dict[str, Any] = {
            "config": {"name": self.name, "retention": retention},
            "created": rfc3339(EPOCH_NS - 10**12 + created * 10**9),
            "state": {"messages": len(self.kept), "last_seq": last},
        }
        if lies:
            way = self._rng.randrange(6)
            if way == 0:
                del info[self._rng.choice(list(info))]
            elif way == 1:
                info["state"]["last_seq"] = self._rng.choice([-1, "7", None, True, 1 << 70])
            elif way == 2:
                info["state"]["last_seq"] = self._rng.randrange(last + 1)
        return info

    def _get(self, tokens: list[str], body: Any, lies: bool) -> Any:
        kept = self.kept.get(body["seq"])
        if kept is None:
            return NO_MESSAGE
        text = base64.b64encode(kept.text.encode()).decode()
        return {"message": {"subject": self.subject or "x", "seq": body["seq"], "data": text, "time": rfc3339(kept.ns)}}

    def _create(self, tokens: list[str], body: Any, lies: bool) -> Any:
        config = body["config"]
        durable = config.get("durable_name", "")
        fed = self._fed.get(durable) if durable else None
        if fed is None:
            fed = Fed(durable or config["name"], config["deliver_subject"], self._after(config))
        self._replace(fed, config["deliver_subject"])
        return self._told(fed, lies, begins=not fed.dseq)

    def _after(self, config: dict[str, Any]) -> int:
        if start := config.get("opt_start_seq"):
            return int(start) - 1
        if (since := config.get("opt_start_time")) is not None:
            ns = parse_rfc3339(since)
            return min((seq for seq, kept in self.kept.items() if kept.ns >= ns), default=self.last + 1) - 1
        return 0

    def _replace(self, fed: Fed, deliver: str) -> None:
        """One consumer for each place that it delivers to, and none but the newest for a link."""
        for name, other in list(self._fed.items()):
            if other is not fed and (self._rng.random() < 0.5 or len(self._fed) > 2):
                other.end()
                del self._fed[name]
        fed.end()
        fed.deliver = deliver
        self._fed[fed.name] = fed

    def give(self, name: str, deliver: str) -> None:
        """A durable consumer that somebody has made for a link."""
        self._fed[name] = Fed(name, deliver, 0)

    def _reset(self, tokens: list[str], body: Any, lies: bool) -> Any:
        fed = self._fed.get(tokens[3])
        if fed is None:
            return {"error": {"code": 404, "err_code": 10014, "description": "consumer not found"}}
        fed.end()
        fed.seq, fed.dseq, fed.question = fed.floor, 0, ""
        return self._told(fed, lies, begins=True)

    def _told(self, fed: Fed, lies: bool, *, begins: bool) -> Any:
        """Return the answer about a consumer, which delivers from then on."""
        policy = self._rng.choice(["none", "explicit"]) if lies else "flow_control"
        answer: dict[str, Any] = {
            "name": fed.name,
            "stream_name": self.name,
            "config": {"ack_policy": policy},
            "delivered": {"consumer_seq": fed.dseq, "stream_seq": fed.seq},
            "num_pending": self.last - fed.seq,
        }
        if lies:
            way = self._rng.randrange(4)
            if way == 0:
                del answer[self._rng.choice(list(answer))]
            elif way == 1:
                answer["num_pending"] = self._rng.choice([-1, "1", None, 1 << 70])
        if begins:
            fed.task = asyncio.get_running_loop().create_task(self._feed(fed))
            if lies:
                self._some(fed)  # before the answer about it
        return answer

    def _delete(self, tokens: list[str], body: Any, lies: bool) -> Any:
        if (fed := self._fed.pop(tokens[3], None)) is not None:
            fed.end()
        return {"success": True}

    # ---- deliveries

    async def _feed(self, fed: Fed) -> None:
        """Deliver as a push consumer does, for as long as it is there."""
        beat = self._now()
        with contextlib.suppress(Disconnected):
            while True:
                await asyncio.sleep(TURN)
                if self.lying and self._rng.random() < WRONG_BEAT:
                    self.count("lies")
                    await self._misbehave(fed)
                if fed.question and self._now() < fed.asked + ANSWERED:
                    continue  # it has told all that may be under way
                if self._some(fed):
                    beat = self._now()
                    self._question(fed)
                elif self._now() >= beat + BEAT:
                    beat = self._now()
                    self._beat(fed, fed.dseq)

    def _some(self, fed: Fed) -> int:
        found = range(fed.seq + 1, min(fed.seq + AT_ONCE, self.last) + 1)
        for seq in found:
            lost = self.loses and seq == self.last
            self.loses = self.loses and not lost
            self._deliver(fed, seq, skip=lost)
        return len(found)

    def _deliver(self, fed: Fed, seq: int, *, skip: bool = False, **wrong: Any) -> None:
        fed.dseq += 1
        fed.seq = seq
        kept = self.kept[seq]
        told = {"times": 1, "seq": seq, "dseq": fed.dseq, "ns": kept.ns, "pending": self.last - seq} | wrong
        reply = f"far.ACK.{self.name}.{fed.name}." + ".".join(map(str, told.values()))
        if not skip:
            self._session.publish(fed.deliver, kept.text.encode(), reply)

    def _beat(self, fed: Fed, dseq: int, **more: str) -> None:
        headers = {"Nats-Last-Consumer": str(dseq), "Nats-Last-Stream": str(fed.seq)} | more
        if fed.question:
            headers["Nats-Consumer-Stalled"] = fed.question
        self._session.publish(fed.deliver, headers=headers, status="100 Idle Heartbeat")

    def _question(self, fed: Fed, prefix: str = "$JS.FC.") -> None:
        if not self.deaf and self._rng.random() < 0.3:
            fed.question, fed.asked = f"{prefix}{self.name}.{self._rng.getrandbits(32)}", self._now()
            self._session.publish(fed.deliver, reply=fed.question, status="100 FlowControl Request")

    def _answered(self, msg: Msg) -> None:
        for fed in () if self.deaf else self._fed.values():
            if fed.question == msg.subject:
                fed.question = ""
                fed.floor = max(fed.floor, int(msg.headers.get("Nats-Last-Stream", "0")))

    async def _misbehave(self, fed: Fed) -> None:
        rng, following = self._rng, fed.seq + 1
        way = rng.randrange(8)
        if way == 0:
            await asyncio.sleep(SILENCE)
        elif way == 1:
            self._beat(fed, fed.dseq + rng.choice([-1, 1, 7]))
        elif way == 2:
            self._session.publish(fed.deliver, reply="away.with.it", status="100 FlowControl Request")
        elif way == 3:
            fed.question, fed.asked = f"$JS.FC.{self.name}.0", self._now()
            for _ in range(5):  # each time its answer was lost
                fed.question = f"$JS.FC.{self.name}.0"
                self._beat(fed, fed.dseq)
                await asyncio.sleep(TURN)
            fed.question = ""
        elif following not in self.kept:
            self._session.publish(fed.deliver, b"nonsense", rng.choice(["", "a.b", "far.ACK.a.b.c.d.e.f.g"]))
        elif way == 4:
            self._deliver(fed, following, skip=True)
        elif way == 5:
            fed.dseq += 1
            self._deliver(fed, following)
        elif way == 6:
            self._deliver(fed, following, times=2)
            fed.dseq, fed.seq = fed.dseq - 1, following - 1
        else:
            wrong = rng.choice([{"ns": 1 << 70}, {"pending": -1}, {"seq": 1 << 70}, {"seq": 0}, {"dseq": "x"}])
            self._deliver(fed, following, **wrong)
