"""Registers read with every strength, beside a mirror that answers for them (jetcluster/pipeline/checkers/fresh.py). A
`client` is one connection; a token is a sequence that any connection was told of."""

from __future__ import annotations

import asyncio
import base64
import json
import math
import random
from typing import Any

from chaos.history import History
from chaos.target import Target
from chaos.workloads.base import Session, Workload, outcome
from jetcluster.model import durations
from jetcluster.pipeline.checkers.event import Event
from jetcluster.pipeline.checkers.fresh import EVENTUAL, LINEARIZABLE, SESSION, Demand
from testkit.client import Client, Msg

KEYS = 3
PAUSE = 0.01
AGES = (0.0, 0.05, 0.3, 2.0)
"""Seconds of `max_staleness`."""
TOKENS = 3
"""The newest ones that are asked for."""
NO_MESSAGE = 10037


class Freshness(Workload):
    name = "freshness"
    workers = 4

    def __init__(self, target: Target, history: History, seed: int) -> None:
        super().__init__(target, history, seed)
        self._tokens: list[int] = []

    async def create(self, client: Client, replicas: int) -> None:
        await super().create(client, replicas)
        name = f"{self.stream}_COPY"
        body = {
            "name": name, "mirror": {"name": self.stream}, "mirror_direct": True, "num_replicas": replicas,
            "storage": self.storage,
        }  # fmt: skip
        await client.api(f"STREAM.CREATE.{name}", body)

    async def step(self, session: Session, worker: str, turn: int, dice: random.Random) -> None:
        client = await session.client()
        key, value = f"{self.name}.{dice.randrange(KEYS)}", f"{worker}/{session.number}-{turn}"
        worker = f"{worker}/{session.number}"
        if dice.random() < 0.4:
            await self._write(client, worker, key, value)
        else:
            await self._look(session, client, worker, key, dice)
        await asyncio.sleep(PAUSE)

    async def _write(self, client: Client, worker: str, key: str, value: str) -> None:
        invoked = self.history.invoke(self.name, "publish", worker, subject=key, msg_id=value)
        kind, more = outcome(await self.ask(client, invoked, key, value.encode()))
        self.history.end(invoked, kind, **more)
        if kind == "ok":
            self._tokens = [*self._tokens[1 - TOKENS :], more["seq"]]

    def api(self, session: Session, consistency: str, dice: random.Random) -> str:
        """The request that a session reads with, between `$JS.API.` and the stream."""
        if dice.random() < 0.5 or consistency != LINEARIZABLE:
            return "DIRECT.GET"
        return dice.choice(("STREAM.MSG.GET", "DIRECT_LEADER.GET"))

    async def _look(self, session: Session, client: Client, worker: str, key: str, dice: random.Random) -> None:
        consistency = dice.choice((EVENTUAL, SESSION, LINEARIZABLE, LINEARIZABLE))
        token = dice.choice(self._tokens) if self._tokens and dice.random() < 0.4 else 0
        wanted = Demand(consistency, token, dice.choice(AGES) if dice.random() < 0.4 else math.inf)
        api = self.api(session, consistency, dice)
        bound = -1.0 if wanted.max_staleness == math.inf else wanted.max_staleness
        invoked = self.history.invoke(
            self.name, "fresh", worker, subject=key, wish=consistency, expect=token, bound=bound
        )
        subject = f"$JS.API.{api}.{self.stream}"
        if api != "STREAM.MSG.GET" and dice.random() < 0.5:
            answer = await self.ask(client, invoked, f"{subject}.{key}", b"", headers_of(wanted))
        else:
            answer = await self.ask(client, invoked, subject, json.dumps(fields_of(wanted, key)).encode())
        self._note(invoked, answer, of_leader=api == "STREAM.MSG.GET")

    def _note(self, invoked: Event, msg: Msg, *, of_leader: bool) -> None:
        if of_leader and not msg.status:
            kind, more = message_of(msg.json())
        elif msg.status == 404:
            kind, more = "ok", told(msg.get("Nats-Applied-Sequence"), msg.get("Nats-Staleness"))
        elif msg.status:
            line = msg.header[9 : msg.header.index(b"\r\n")].decode()
            kind, more = "fail", {"error": line} | told(msg.get("Nats-Applied-Sequence"), None)
        else:
            kind, more = "ok", told(msg.get("Nats-Applied-Sequence"), msg.get("Nats-Staleness"))
            more |= {"seq": int(msg.get("Nats-Sequence") or 0), "msg_id": msg.data.decode()}
        self.history.end(invoked, kind, **more)


def headers_of(wanted: Demand) -> dict[str, str]:
    found = {"Nats-Read-Consistency": wanted.consistency, "Nats-Read-Info": "true"}
    if wanted.min_last_seq:
        found["Nats-Min-Last-Sequence"] = str(wanted.min_last_seq)
    if wanted.max_staleness < math.inf:
        found["Nats-Max-Staleness"] = f"{wanted.max_staleness * 1000:.0f}ms"
    return found


def fields_of(wanted: Demand, key: str) -> dict[str, Any]:
    found = {"last_by_subj": key, "consistency": wanted.consistency, "read_info": True}
    if wanted.min_last_seq:
        found["min_last_seq"] = wanted.min_last_seq
    if wanted.max_staleness < math.inf:
        found["max_staleness"] = int(wanted.max_staleness * 1e9)
    return found


def told(applied: str | None, age: str | None) -> dict[str, Any]:
    """Fields of an event: what an answer tells of itself."""
    found: dict[str, Any] = {} if applied is None else {"applied": int(applied)}
    nanoseconds = durations.parse(age.encode()) if age else None  # None for "unknown"
    return found if nanoseconds is None else found | {"age": nanoseconds / 1e9}


def message_of(reply: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """(kind, fields) of an answer of MSG.GET."""
    if error := reply.get("error"):
        if error.get("err_code") == NO_MESSAGE:
            return "ok", {}
        return "fail", {"error": f"{error.get('err_code')} {error.get('description')}"}
    message, info = reply["message"], reply["freshness"]
    fields = told(str(info["applied_seq"]), f"{info['staleness']}ns")
    return "ok", fields | {"seq": int(message["seq"]), "msg_id": base64.b64decode(message["data"]).decode()}
