"""Registers: read at the leader, compare-and-set with Nats-Expected-Last-Subject-Sequence, read by Direct Get
(checkers/register.py). A `client` is one connection. A mirror of the stream is there and may answer Direct Gets too:
own writes must be seen in it as well."""

from __future__ import annotations

import asyncio
import base64
import json
import random

from chaos.workloads.base import Session, Workload, outcome
from testkit.client import Client

KEYS = 4
PAUSE = 0.01
NO_MESSAGE = 10037


class Register(Workload):
    name = "register"
    workers = 3

    async def create(self, client: Client, replicas: int) -> None:
        await super().create(client, replicas)
        name = f"{self.stream}_COPY"
        body = {
            "name": name, "mirror": {"name": self.stream}, "mirror_direct": True, "allow_direct": True,
            "num_replicas": replicas, "storage": self.storage,
        }  # fmt: skip
        await client.api(f"STREAM.CREATE.{name}", body)

    async def step(self, session: Session, worker: str, turn: int, dice: random.Random) -> None:
        client = await session.client()
        worker = f"{worker}/{session.number}"
        key = f"register.{dice.randrange(KEYS)}"
        version = await self._read(client, worker, key)
        if version is not None and dice.random() < 0.6:
            await self._swap(client, worker, key, f"{worker}-{turn}", version)
        if dice.random() < 0.5:
            await self._direct(client, worker, key)
        await asyncio.sleep(PAUSE)

    async def _read(self, client: Client, worker: str, key: str) -> int | None:
        """The version that the leader says; None when it refused."""
        invoked = self.history.invoke(self.name, "read", worker, subject=key)
        request = json.dumps({"last_by_subj": key}).encode()
        msg = await self.ask(client, invoked, f"$JS.API.STREAM.MSG.GET.{self.stream}", request)
        if msg.status:
            self.history.end(invoked, "fail", error=f"status {msg.status}")
            return None
        reply = msg.json()
        if error := reply.get("error"):
            if error.get("err_code") == NO_MESSAGE:
                self.history.end(invoked, "ok")
                return 0
            self.history.end(invoked, "fail", error=f"{error.get('err_code')} {error.get('description')}")
            return None
        message = reply["message"]
        value = base64.b64decode(message["data"]).decode()
        self.history.end(invoked, "ok", seq=message["seq"], msg_id=value)
        return int(message["seq"])

    async def _swap(self, client: Client, worker: str, key: str, value: str, version: int) -> None:
        invoked = self.history.invoke(self.name, "cas", worker, subject=key, msg_id=value, expect=version)
        headers = {"Nats-Expected-Last-Subject-Sequence": str(version)}
        kind, more = outcome(await self.ask(client, invoked, key, value.encode(), headers))
        self.history.end(invoked, kind, **more)

    async def _direct(self, client: Client, worker: str, key: str) -> None:
        invoked = self.history.invoke(self.name, "direct", worker, subject=key)
        request = json.dumps({"last_by_subj": key}).encode()
        msg = await self.ask(client, invoked, f"$JS.API.DIRECT.GET.{self.stream}", request)
        if msg.status == 404:
            self.history.end(invoked, "ok")
        elif msg.status:
            self.history.end(invoked, "fail", error=f"status {msg.status}")
        else:
            self.history.end(invoked, "ok", seq=int(msg.get("Nats-Sequence") or 0), msg_id=msg.data.decode())
