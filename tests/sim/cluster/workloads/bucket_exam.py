"""Exam of buckets: random histories of objects in either layout or both, with each answer, list, download and message
to watchers as a model has it."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
from dataclasses import dataclass, field
from typing import Any, Final

from testkit.sim.session import ApiError, Msg, Session
from tests.sim.cluster.exam import Exam
from tests.sim.cluster.judges import Exact

BUCKET: Final = "shelf"
STREAM: Final = f"OBJ_{BUCKET}"
NO_OBJECT, DELETED, MISMATCH, OTHER_LAYOUT = 11001, 11006, 11003, 11005
NAMES: Final = ("a", "b.c", "with space", "\u00e9", "z")
STEPS: Final = 14
LAYOUTS: Final = {
    "own": [f"$OBJ.{BUCKET}.>"],
    "both": [f"$OBJ.{BUCKET}.>", f"$O.{BUCKET}.C.>", f"$O.{BUCKET}.M.>"],
    "stock": [f"$O.{BUCKET}.>"],
}


def encoded(name: str) -> str:
    return base64.urlsafe_b64encode(name.encode()).decode()


def digest_of(content: bytes) -> str:
    return "sha-256=" + base64.urlsafe_b64encode(hashlib.sha256(content).digest()).decode()


@dataclass
class Shown:
    """An object as its bucket shows it."""

    name: str
    nonce: str
    parts: list[bytes]
    about: dict[str, Any]
    """All else that its client has said of it."""
    real: bool
    """It came in the layout of stock clients."""
    deleted: bool = False

    @property
    def fields(self) -> dict[str, Any]:
        content = b"".join(self.parts)
        parts = [] if self.deleted else self.parts
        return {
            "name": self.name, "description": self.about.get("description", ""), "nonce": self.nonce,
            "bucket": BUCKET, "chunks": len(parts), "size": sum(map(len, parts)),
            "digest": "" if self.deleted else digest_of(content), "deleted": self.deleted,
            **{key: self.about[key] for key in ("headers", "metadata") if self.about.get(key)},
        }  # fmt: skip


@dataclass
class Shelf:
    """The model of a bucket."""

    own: bool
    real: bool
    objects: dict[str, Shown] = field(default_factory=dict)
    owned: dict[str, Shown] = field(default_factory=dict)
    """The last ones in the specification's layout, also behind newer ones of stock clients."""
    told: list[dict[str, Any]] = field(default_factory=list)
    """Messages that watchers of the specification's layout get."""

    def listed(self) -> list[dict[str, Any]]:
        return [self.objects[name].fields for name in sorted(self.objects) if not self.objects[name].deleted]


class BucketExam(Exam):
    name = "exam-buckets"
    weight = 0
    judges = (Exact,)
    promises = (
        "an object is what was put last, in whichever layout, and a list has each one once, in pages, and counts all",
        "an object is sent as its chunks; one that is deleted, replaced or has lost chunks is not, with its error",
        "who watches a bucket is told of each object that is finished or deleted, once",
    )

    async def check(self) -> None:
        await self.examine([self._own, self._both, self._stock], 2)

    async def _own(self, session: Session) -> None:
        await self._history(session, "own")

    async def _both(self, session: Session) -> None:
        await self._history(session, "both")

    async def _stock(self, session: Session) -> None:
        await self._history(session, "stock")

    async def _history(self, asked: Session, layout: str) -> None:
        """By a client of a server with JetStream: where there is none, watchers also see how uploads begin."""
        session = await self.session("own", *self.members)
        self.number = 0
        shelf = Shelf(layout != "stock", layout != "own")
        replicas = self.rng.choice([1, 3])
        config = {"allow_rollup_hdrs": True, "num_replicas": replicas}
        await self.create(session, STREAM, subjects=LAYOUTS[layout], **config)
        watched: list[dict[str, Any]] = []
        sid = session.subscribe(f"$OBJ.{BUCKET}.info.>", lambda msg: watched.append(self._seen(msg)))
        await session.flush()
        for _ in range(STEPS):
            name = self.rng.choice(NAMES)
            there = shelf.objects.get(name)
            step = self.rng.random()
            if step < 0.6 or there is None:
                await (self._put_stock if self._is_stock(shelf) else self._put_own)(session, shelf, name)
            elif step < 0.9:
                await self._delete(session, shelf, name)
            else:
                await self._lose(session, shelf, name)
            await self._look(session, shelf, name)
        await self._lists(session, shelf)

        async def told() -> bool:
            return len(watched) >= len(shelf.told)

        await self.until("watchers are told", told, 5.0)
        self.equal("watchers", watched, shelf.told)
        await self._stored(session, shelf)
        session.unsubscribe(sid)
        await self.ask(session, f"STREAM.DELETE.{STREAM}")
        await session.close()

    def _is_stock(self, shelf: Shelf) -> bool:
        return shelf.real and not (shelf.own and self.rng.random() < 0.5)

    def _seen(self, msg: Msg) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(msg.payload)
        return found

    # ---- steps

    def _drawn(self, name: str, *, real: bool) -> Shown:
        self.number += 1
        parts = [self.rng.randbytes(self.rng.randrange(1, 60)) for _ in range(self.rng.randrange(4))]
        about: dict[str, Any] = {}
        if self.rng.random() < 0.5:
            about = {"description": f"d{self.number}", "headers": {"H": ["1"]}, "metadata": {"m": "2"}}
        return Shown(name, f"n{self.number}", parts, about, real)

    async def _put_own(self, session: Session, shelf: Shelf, name: str) -> None:
        one = self._drawn(name, real=False)
        content = b"".join(one.parts)
        meta = {"name": name, "nonce": one.nonce, "chunks": len(one.parts), "size": len(content), **one.about}
        last = name if self.rng.random() < 0.5 and " " not in name else encoded(name)
        with session.inbox() as (inbox, got):
            session.publish(f"$OBJ.{BUCKET}.info.{last}", json.dumps(meta).encode(), inbox)
            async with asyncio.timeout(5.0):
                answer = json.loads((await got.get()).payload)
                if not one.parts:  # all of it is there: that is the second answer
                    answer = json.loads((await got.get()).payload)
        for at, part in enumerate(one.parts):
            answer = await session.js_publish(
                f"$OBJ.{BUCKET}.chunks.{one.nonce}", part, {"Nats-Msg-Id": f"{one.nonce}-{at}"}
            )
        shelf.objects[name] = shelf.owned[name] = one
        found = {key: value for key, value in answer.items() if key in one.fields}
        self.equal(f"{name} is put", (found, answer["stream"]), (one.fields, STREAM))
        shelf.told.append(one.fields)

    async def _put_stock(self, session: Session, shelf: Shelf, name: str) -> None:
        """As stock clients put it."""
        one = self._drawn(name, real=True)
        for part in one.parts:
            await session.js_publish(f"$O.{BUCKET}.C.{one.nonce}", part)
        await self._meta(session, one)
        shelf.objects[name] = one

    async def _delete(self, session: Session, shelf: Shelf, name: str) -> None:
        one = shelf.objects[name]
        if not shelf.own:
            await self._delete_stock(session, one)
            return
        plain = " " not in name
        way = self.rng.choice(["service", "op", "header", "metadata", *(["subject"] if plain else [])])
        if way == "service":
            answer = await self._service(session, {"name": name, "action": "delete"})
        elif way == "op":
            answer = await self._service(session, {"name": name, "op": "delete"})
        elif way == "header":
            answer = await self._service(session, {"name": name}, {"Nats-Object-Operation": "delete"})
        else:
            kind = "delete" if way == "subject" else "info"
            meta = {"name": name, "nonce": "x", "chunks": 0, "size": 0, "deleted": True}
            body = b"" if way == "subject" else json.dumps(meta).encode()
            answer = json.loads(
                (await session.request(f"$OBJ.{BUCKET}.{kind}.{name if plain else encoded(name)}", body)).payload
            )
        self.equal(f"{name} is deleted, {way}", answer, {"success": True})
        if not one.deleted and (told := shelf.owned.get(name)) is not None:
            told.deleted = True
            shelf.told.append(told.fields)
        one.deleted = True

    async def _delete_stock(self, session: Session, one: Shown) -> None:
        """As stock clients delete, who share no bucket with the service's."""
        code = await self._code(session, {"name": one.name, "action": "delete"})
        self.equal(f"{one.name} is not the service's", code, OTHER_LAYOUT)
        if one.deleted:
            return
        one.deleted = True
        await self._meta(session, one)
        await self.ask(session, f"STREAM.PURGE.{STREAM}", {"filter": f"$O.{BUCKET}.C.{one.nonce}"})

    async def _meta(self, session: Session, one: Shown) -> None:
        fields = one.fields
        meta = {"nuid": fields.pop("nonce"), **fields, "mtime": "0001-01-01T00:00:00Z"}
        await session.js_publish(
            f"$O.{BUCKET}.M.{encoded(one.name)}", json.dumps(meta).encode(), {"Nats-Rollup": "sub"}
        )

    async def _lose(self, session: Session, shelf: Shelf, name: str) -> None:
        """A chunk of the object goes: it is still told, and not sent; then the object is put again."""
        one = shelf.objects[name]
        if one.deleted or not one.parts:
            return
        subject = f"$O.{BUCKET}.C.{one.nonce}" if one.real else f"$OBJ.{BUCKET}.chunks.{one.nonce}"
        await self.ask(session, f"STREAM.PURGE.{STREAM}", {"filter": subject, "keep": len(one.parts) - 1})
        self.equal(f"{name} with a chunk less", await self._code(session, {"name": name, "deliver_subject": "d"}),
                   MISMATCH)  # fmt: skip
        await (self._put_stock if one.real else self._put_own)(session, shelf, name)

    # ---- looks

    async def _service(
        self, session: Session, body: dict[str, Any], headers: dict[str, str] | None = None
    ) -> dict[str, Any]:
        """Raises ApiError."""
        msg = await session.request(f"$OBJ.{BUCKET}", json.dumps(body).encode(), 5.0, headers=headers)
        answer: dict[str, Any] = json.loads(msg.payload)
        if "error" in answer:
            raise ApiError(answer["error"])
        return answer

    async def _code(self, session: Session, body: dict[str, Any]) -> int:
        try:
            await self._service(session, body)
        except ApiError as error:
            return error.err_code
        return 0

    async def _look(self, session: Session, shelf: Shelf, name: str) -> None:
        """One object, and one that is not there."""
        one = shelf.objects[name]
        found = await self._service(session, {"name": name})
        found.pop("mtime")
        self.equal(f"{name} is told", found, one.fields)
        self.equal("what is not there", await self._code(session, {"name": "none"}), NO_OBJECT)
        if one.deleted:
            self.equal(f"{name} is sent", await self._code(session, {"name": name, "deliver_subject": "d"}), DELETED)
            return
        with session.inbox() as (inbox, got):
            body = json.dumps({"name": name, "deliver_subject": inbox}).encode()
            head = await session.request(f"$OBJ.{BUCKET}", body, 5.0)
            parts: list[bytes] = []
            async with asyncio.timeout(5.0):
                while len(parts) < len(one.parts):
                    parts.append((await got.get()).payload)
        fields = one.fields
        wanted = {"Nats-Object-Size": str(fields["size"]), "Nats-Object-Chunks": str(fields["chunks"]),
                  "Nats-Object-Digest": fields["digest"]}  # fmt: skip
        self.equal(f"{name} is announced", {key: head.headers.get(key) for key in wanted}, wanted)
        self.equal(f"{name} is sent", parts, one.parts)

    async def _lists(self, session: Session, shelf: Shelf) -> None:
        everything = shelf.listed()
        for offset, limit in ((0, 0), (0, 2), (1, 2), (2, 1), (len(everything), 1), (1, 0), (0, 99)):
            answer = await self._service(session, {"action": "list", "offset": offset, "limit": limit})
            for one in answer["objects"]:
                one.pop("mtime")
            wanted = everything[offset : offset + limit if limit else None]
            what = f"a list from {offset}, up to {limit}"
            self.equal(what, answer["objects"], wanted)
            self.equal(f"{what}: total", (answer["bucket"], answer["total"]), (BUCKET, len(everything)))

    async def _stored(self, session: Session, shelf: Shelf) -> None:
        """The stream has the chunks of what is there, and nothing of an upload."""
        info = await self.ask(session, f"STREAM.INFO.{STREAM}", {"subjects_filter": ">"})
        subjects = info["state"].get("subjects") or {}
        chunks = {subject: count for subject, count in subjects.items() if f".{BUCKET}.chunks." in subject
                  or f"$O.{BUCKET}.C." in subject or ".upload." in subject}  # fmt: skip
        wanted = {}
        for one in shelf.objects.values():
            if one.parts and not one.deleted:
                subject = f"$O.{BUCKET}.C.{one.nonce}" if one.real else f"$OBJ.{BUCKET}.chunks.{one.nonce}"
                wanted[subject] = len(one.parts)
        if not shelf.real:  # stock clients remove the chunks of what they replace
            self.equal("chunks", chunks, wanted)
        else:
            self.equal("chunks that are there", {key: chunks.get(key) for key in wanted}, wanted)
