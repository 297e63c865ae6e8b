"""The object service, one request after the other: wrong digests and sizes, lists, replacements, deletions."""

from __future__ import annotations

import base64
import hashlib
import json
from typing import Any

from testkit.sim.session import ApiError, Session
from tests.sim.cluster.exam import Exam
from tests.sim.cluster.judges import Exact

BUCKET = "exam"
STREAM = f"OBJ_{BUCKET}"
MISMATCH, DIGEST, NO_OBJECT, DELETED = 11003, 11004, 11001, 11006


def digest_of(content: bytes) -> str:
    return "sha-256=" + base64.urlsafe_b64encode(hashlib.sha256(content).digest()).decode()


class ObjectExam(Exam):
    name = "exam-objects"
    judges = (Exact,)
    promises = (
        "an object is there once all its chunks are, with its digest, and not when size, chunks or digest are wrong",
        "a list has the newest of each object; one that is replaced or deleted leaves nothing of it in the stream",
    )

    async def check(self) -> None:
        session = await self.session("fill")
        await self.create(session, STREAM, subjects=[f"$OBJ.{BUCKET}.>"], num_replicas=self.rng.choice([1, 3]))
        self.number = 0
        await self.examine([self._replaced, self._wrong, self._listed, self._repeated, self._holes])
        await session.close()

    async def _upload(self, session: Session, name: str, chunks: list[bytes], **about: Any) -> dict[str, Any]:
        """The answer to the last chunk. Raises ApiError."""
        self.number += 1
        nonce = f"u{self.number}"
        meta = {"name": name, "nonce": nonce, "chunks": len(chunks), "size": sum(map(len, chunks))} | about
        subject = f"$OBJ.{BUCKET}.info.{name}"
        found = await session.js_publish(subject, json.dumps(meta).encode(), {"Nats-Msg-Id": f"{nonce}-meta"})
        for at, chunk in enumerate(chunks):
            headers = {"Nats-Msg-Id": f"{nonce}-{at}"}
            found = await session.js_publish(f"$OBJ.{BUCKET}.chunks.{nonce}", chunk, headers)
        return found

    async def _service(self, session: Session, **body: Any) -> dict[str, Any]:
        """Raises ApiError."""
        payload = json.dumps(body).encode()
        msg = await self.insist("the service", lambda: session.request(f"$OBJ.{BUCKET}", payload), 10.0)
        answer: dict[str, Any] = json.loads(msg.payload)
        if "error" in answer:
            raise ApiError(answer["error"])
        return answer

    async def _code(self, session: Session, **body: Any) -> int:
        try:
            await self._service(session, **body)
        except ApiError as error:
            return error.err_code
        return 0

    async def _messages(self, session: Session, subject: str) -> int:
        info = await self.ask(session, f"STREAM.INFO.{STREAM}", {"subjects_filter": subject})
        return sum((info["state"].get("subjects") or {}).values())

    async def _replaced(self, session: Session) -> None:
        first, second = [b"one", b"two"], [b"three" * 100, b"four", b"five"]
        for chunks in (first, second):
            content = b"".join(chunks)
            found = await self._upload(session, "thing", chunks, digest=digest_of(content), description="d")
            told = (found["digest"].rstrip("="), found["size"], found["chunks"], found["description"])
            self.equal("the answer", told, (digest_of(content).rstrip("="), len(content), len(chunks), "d"))
        chunks_there = await self._messages(session, f"$OBJ.{BUCKET}.chunks.u{self.number}")
        self.equal("chunks of the newest", chunks_there, 3)
        before = await self._messages(session, f"$OBJ.{BUCKET}.chunks.u{self.number - 1}")
        self.equal("chunks of the one before", before, 0)
        self.equal("uploads", await self._messages(session, f"$OBJ.{BUCKET}.upload.>"), 0)
        await self._service(session, name="thing", action="delete")
        chunks_there = await self._messages(session, f"$OBJ.{BUCKET}.chunks.u{self.number}")
        self.equal("chunks of a deleted one", chunks_there, 0)
        gone = await self._service(session, name="thing")
        self.equal("it is deleted", gone["deleted"], True)

    async def _wrong(self, session: Session) -> None:
        cases: list[tuple[dict[str, Any], int]] = [({"digest": digest_of(b"other")}, DIGEST), ({"size": 5}, MISMATCH)]
        for about, code in cases:
            try:
                found = await self._upload(session, "wrong", [b"abc", b"def"], **about)
            except ApiError as error:
                self.equal(f"with {about}", error.err_code, code)
            else:
                self.require(False, f"an object with {about} is stored: {found}")
        self.equal("it is not there", await self._code(session, name="wrong"), NO_OBJECT)
        self.equal("its chunks", await self._messages(session, f"$OBJ.{BUCKET}.chunks.u{self.number}"), 0)

    async def _listed(self, session: Session) -> None:
        before = await self._service(session)
        names = [f"list{number}" for number in range(4)]
        for name in names:
            await self._upload(session, name, [name.encode()])
        listed = await self._service(session)
        own = [one["name"] for one in listed["objects"] if one["name"].startswith("list")]
        self.equal("a list", own, names)
        self.equal("its total", listed["total"], before["total"] + len(names))
        part = await self._service(session, action="list", offset=before["total"], limit=2)
        self.equal("a part of a list", len(part["objects"]), 2)
        await self._service(session, action="delete", name=names[0])
        left = await self._service(session)
        self.equal("a total without what is deleted", left["total"], before["total"] + len(names) - 1)

    async def _holes(self, session: Session) -> None:
        """A chunk is deleted before the last one comes."""
        self.number += 1
        nonce = f"u{self.number}"
        meta = {"name": "holes", "nonce": nonce, "chunks": 3, "size": 6}
        await session.js_publish(f"$OBJ.{BUCKET}.info.holes", json.dumps(meta).encode())
        acks = [await session.js_publish(f"$OBJ.{BUCKET}.chunks.{nonce}", text) for text in (b"ab", b"cd")]
        await self.ask(session, f"STREAM.MSG.DELETE.{STREAM}", {"seq": int(acks[0]["seq"])})
        try:
            found = await session.js_publish(f"$OBJ.{BUCKET}.chunks.{nonce}", b"ef")
        except ApiError:
            pass
        else:
            self.require(False, f"an object without one of its chunks is stored: {found}")
        self.equal("it is not there", await self._code(session, name="holes"), NO_OBJECT)

    async def _repeated(self, session: Session) -> None:
        """A chunk that comes twice counts once, and the last one is answered like the first time."""
        self.number += 1
        nonce = f"u{self.number}"
        meta = {"name": "again", "nonce": nonce, "chunks": 3, "size": 6}
        await session.js_publish(f"$OBJ.{BUCKET}.info.again", json.dumps(meta).encode())
        found: dict[str, Any] = {}
        for at in (0, 0, 1, 1, 2, 2):
            headers = {"Nats-Msg-Id": f"{nonce}-{at}"}
            found = await session.js_publish(f"$OBJ.{BUCKET}.chunks.{nonce}", b"%d%d" % (at, at), headers)
        self.equal("the answer", found["digest"].rstrip("="), digest_of(b"001122").rstrip("="))
