"""Objects of the server's own object service: uploads in chunks, replaced and read back whole."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
from typing import Any

from testkit.sim.session import ApiError, Session
from tests.sim.cluster.judges import Registers
from tests.sim.cluster.workload import PASSING, Workload, together

STREAM = "OBJ_sim"
NAMES = "ab"
TRIES = 8


class Objects(Workload):
    name = "objects"
    judges = (Registers,)
    promises = (
        "an object is read whole, as one of its uploads, and never older than one that was acknowledged as complete",
    )

    async def prepare(self) -> None:
        self.judge = Registers()
        self.digests: set[str] = set()
        self.names = list(NAMES)
        admin = await self.session("admin")
        await self.create(admin, STREAM, subjects=["$OBJ.sim.>"], num_replicas=self.rng.choice([1, 3, 3]))

    async def work(self) -> None:
        await together(*(self._write(name) for name in NAMES), self._read())

    # ---- uploads: one writer per name

    async def _write(self, name: str) -> None:
        session = await self.session(f"write-{name}")
        letter = name
        async for nonce in self.turns(1.5):
            chunks = [f"{name}-{nonce}-{n}".encode() * self.rng.randint(1, 40) for n in range(self.rng.randint(1, 6))]
            content = b"".join(chunks)
            digest = "sha-256=" + base64.urlsafe_b64encode(hashlib.sha256(content).digest()).decode()
            self.digests.add(digest)
            try:
                found = await self._upload(session, name, str(nonce), chunks)
            except PASSING:
                self.count("given up")
                name = f"{letter}{nonce}"  # it may end yet, and after the next one
                self.names.append(name)
                continue
            self.count("uploaded")
            self.require(found["digest"].rstrip("=") == digest.rstrip("="), f"{name} is not what was uploaded")
            self.judge.learn(name, nonce, found["digest"])

    async def _upload(self, session: Session, name: str, number: str, chunks: list[bytes]) -> dict[str, Any]:
        """The object. Raises what requests raise."""
        nonce = f"{name}-{number}"
        about = {"name": name, "nonce": nonce, "chunks": len(chunks), "size": sum(map(len, chunks))}
        found = await self._insist(session, f"$OBJ.sim.info.{name}", json.dumps(about).encode(), nonce)
        for at, chunk in enumerate(chunks):
            found = await self._insist(session, f"$OBJ.sim.chunks.{nonce}", chunk, f"{nonce}-{at}")
        return found

    async def _insist(self, session: Session, subject: str, payload: bytes, msg_id: str) -> dict[str, Any]:
        for left in reversed(range(TRIES)):
            try:
                return await session.js_publish(subject, payload, {"Nats-Msg-Id": msg_id}, seconds=2.0)
            except PASSING:
                if not left:
                    raise
                await asyncio.sleep(0.3)
        raise AssertionError("unreachable")

    # ---- reads

    async def _read(self) -> None:
        session = await self.session("read")
        async for _ in self.turns(3.0):
            try:
                await self._read_one(session, self.rng.choice(self.names))
            except PASSING:
                self.count("reads failed")

    async def _read_one(self, session: Session, name: str) -> None:
        newest = self.judge.newest(name)
        answer = json.loads((await session.request("$OBJ.sim", json.dumps({"name": name}).encode(), 3.0)).payload)
        if "error" in answer:
            if answer["error"]["code"] == 404:
                self.judge.read(name, newest, 0, "")
            return
        self.judge.read(name, newest, int(answer["nonce"].rpartition("-")[2]), answer["digest"])
        self.count("looked at")
        content, digest = await self._get(session, name)
        told = "sha-256=" + base64.urlsafe_b64encode(hashlib.sha256(content).digest()).decode()
        self.require(told.rstrip("=") == digest.rstrip("="), f"{name}: {len(content)} bytes are not {digest}")
        self.require(told in self.digests, f"{name} was never uploaded like that")
        self.count("read")

    async def _get(self, session: Session, name: str) -> tuple[bytes, str]:
        """Content and digest that the server tells."""
        with session.inbox() as (inbox, got):
            body = json.dumps({"name": name, "deliver_subject": inbox}).encode()
            head = await session.request("$OBJ.sim", body, 3.0)
            if "Nats-Object-Size" not in head.headers:
                raise ApiError({"description": head.payload.decode()})
            parts = []
            for _ in range(int(head.headers["Nats-Object-Chunks"])):
                async with asyncio.timeout(4.0):
                    parts.append((await got.get()).payload)
            return b"".join(parts), head.headers["Nats-Object-Digest"]

    async def check(self) -> None:
        session = await self.session("check", self.rng.choice(self.members))
        for name in self.names:
            if self.judge.newest(name):
                await self.insist(f"reading {name}", lambda name=name: self._read_one(session, name))  # type: ignore[misc]
