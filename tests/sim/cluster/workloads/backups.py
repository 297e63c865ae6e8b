"""Archives of a stream that is written to, read and deleted from (STREAM.SNAPSHOT), and the streams that are made of
them (STREAM.RESTORE)."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from typing import Any

from testkit.sim.session import ApiError, Disconnected, Msg, Session
from tests.sim.cluster.backup_judge import Backup, Stored
from tests.sim.cluster.workload import NO_STREAM, PASSING, SETTLE, UNAVAILABLE, Delivered, Workload, together

STREAM = "ORIGINAL"
CONSUMER = "reader"
COPIES = 3
"""Streams that are made, at most, and as many attempts again that may fail."""
FILLER = 1500
"""Bytes of a message beside its text, at most: an archive is to have some chunks."""
OWN = ("Own", "Nats-Msg-Id")
GIVEN_UP = 25.0
"""Seconds until a restore that nobody goes on with is deleted, the choice of a leader among them."""


@dataclass(slots=True)
class Archive:
    judge: Backup
    config: dict[str, Any]
    state: dict[str, Any]
    chunks: list[bytes] = field(default_factory=list)


class Backups(Workload):
    name = "backups"
    judges = (Backup,)
    promises = (
        "a restored stream has exactly the messages at its snapshot, with sequences, times and headers, and goes on",
        "a restored consumer delivers what was not acknowledged at the snapshot, and nothing that was",
        "a restore that was not finished leaves no stream",
    )

    async def prepare(self) -> None:
        self.stored: dict[int, bytes] = {}
        self.removing: set[int] = set()
        self.removed: set[int] = set()
        self.acking: set[int] = set()
        self.confirmed: set[int] = set()
        self.copies: dict[str, Archive] = {}
        """The contents that are there, by the name of the stream."""
        self.uncertain: dict[str, Archive] = {}
        """Contents of streams whose last answer did not come."""
        self.unfinished: list[str] = []
        self.attempts = 0
        admin = await self.session("admin")
        await self.create(admin, STREAM, subjects=["original.>"], num_replicas=self.rng.choice([1, 3, 3]))
        await self.create_consumer(admin, STREAM, CONSUMER, ack_wait=2_000_000_000, max_ack_pending=50)

    async def work(self) -> None:
        await together(self._write(), self._consume(), self._remove(), self._archive())

    # ---- what goes on in the stream

    async def _write(self) -> None:
        session = await self.session("write")
        async for count in self.turns(6.0):
            payload = f"{count}:".encode() + b"." * self.rng.randrange(FILLER)
            ack = await self.store(session, f"original.{count % 5}", str(count), {"Own": str(count)}, payload)
            self.stored[int(ack["seq"])] = payload

    async def _consume(self) -> None:
        session = await self.session("pull")

        async def take(msg: Msg) -> None:
            if self.rng.random() < 0.3:
                return
            seq = Delivered.of(msg).seq
            self.acking.add(seq)
            await session.request(msg.reply, b"+ACK", seconds=1.0)
            self.confirmed.add(seq)

        while not self.stopping:
            await self.pull(session, STREAM, CONSUMER, take)

    async def _remove(self) -> None:
        session = await self.session("remove")
        async for _ in self.turns(0.7):
            if left := sorted(self.stored.keys() - self.removing):
                seq = self.rng.choice(left)
                self.removing.add(seq)
                try:
                    await session.api(f"STREAM.MSG.DELETE.{STREAM}", {"seq": seq}, seconds=2.0)
                except PASSING:
                    continue
                self.removed.add(seq)

    # ---- archives

    async def _archive(self) -> None:
        session = await self.session("archive")
        while not self.stopping and self.attempts < 2 * COPIES and len(self.copies) < COPIES:
            await asyncio.sleep(self.rng.uniform(0.5, 8.0))
            try:
                await self._restore(session, await self._snapshot(session))
            except PASSING as error:
                self.note(f"no backup: {error!r}")
                self.count("failed")

    async def _snapshot(self, session: Session) -> Archive:
        """Raises what requests raise."""
        judge = Backup(self._still_there(), self.removed, self.confirmed)
        connects = session.connects
        with session.inbox() as (inbox, got):
            request = {"deliver_subject": inbox, "chunk_size": 4096, "window_size": self.rng.choice([4096, 32768])}
            answer = await session.api(f"STREAM.SNAPSHOT.{STREAM}", request)
            judge.opened(answer["state"], self.removing, self.acking)
            archive = Archive(judge, answer["config"], answer["state"])
            while True:
                async with asyncio.timeout(8.0):
                    msg = await got.get()
                if msg.status and not msg.status.startswith("204"):
                    raise ApiError({"code": int(msg.status[:3]), "description": msg.status})
                if not msg.payload:
                    break
                archive.chunks.append(msg.payload)
                if msg.reply:
                    number = int(msg.reply.rpartition(".")[2])
                    if number != len(archive.chunks):
                        raise Disconnected  # chunks were lost on their way
                    session.publish(msg.reply)
            if session.connects != connects:
                raise Disconnected
        self.count("snapshots")
        self.count("chunks", len(archive.chunks))
        return archive

    def _still_there(self) -> dict[int, bytes]:
        return {seq: payload for seq, payload in self.stored.items() if seq not in self.removing}

    async def _restore(self, session: Session, archive: Archive) -> None:
        """Raises what requests raise; then the stream is not to be there, or it is uncertain."""
        with self.deployment.resizing(self.rng.choice([1, 3])) as copies:
            await self._restore_with(copies, session, archive)

    async def _restore_with(self, copies: int, session: Session, archive: Archive) -> None:
        self.attempts += 1
        name = f"COPY_{self.attempts}"
        config = archive.config | {
            "name": name,
            "subjects": [f"copy.{self.attempts}"],
            "num_replicas": copies,
        }
        self.unfinished.append(name)
        answer = await session.api(f"STREAM.RESTORE.{name}", {"config": config, "state": archive.state})
        subject = answer["deliver_subject"]
        for chunk in archive.chunks:
            await self._send(session, subject, chunk)
        self.unfinished.remove(name)
        self.uncertain[name] = archive
        try:
            await self._send(session, subject, b"")
        except ApiError as error:
            if error.err_code != UNAVAILABLE:  # else its last step may have been done all the same
                del self.uncertain[name]
                self.unfinished.append(name)
            raise
        del self.uncertain[name]
        self.copies[name] = archive
        self.count("restored")

    async def _send(self, session: Session, subject: str, chunk: bytes) -> None:
        """Returns with the server's answer. Raises ApiError where that is an error."""
        msg = await session.request(subject, chunk, seconds=8.0)
        if msg.payload and "error" in (answer := json.loads(msg.payload)):
            raise ApiError(answer["error"])

    # ---- afterwards

    async def check(self) -> None:
        session = await self.session("check")

        async def once_more() -> None:
            await self._restore(session, await self._snapshot(session))

        await self.insist("a backup, now that all is calm", once_more)
        for name in self.unfinished:
            await self.until(f"{name}, whose restore was not finished, is gone", lambda n=name: self._gone(session, n))
        for name, archive in self.uncertain.items():
            await self._decided(session, name, archive)
        original: dict[int, Stored] = {}
        await self.everywhere(STREAM, max(self.stored, default=0), lambda _, found: original.update(_messages(found)))
        for name, archive in self.copies.items():
            await self._compare(session, name, archive, original)
        await session.close()

    async def _gone(self, session: Session, name: str) -> bool:
        try:
            await session.api(f"STREAM.INFO.{name}")
        except ApiError as error:
            return error.err_code == NO_STREAM
        return False

    async def _decided(self, session: Session, name: str, archive: Archive) -> None:
        """It was restored, or has gone when half restored streams have."""
        await asyncio.sleep(GIVEN_UP)
        if not await self.insist(f"what has become of {name}", lambda: self._gone(session, name)):
            self.copies[name] = archive
            self.count("restored without an answer")

    async def _compare(self, session: Session, name: str, archive: Archive, original: dict[int, Stored]) -> None:
        judge = archive.judge
        gone = {seq: self.stored[seq] for seq in self.removing}

        def look(where: str, contents: dict[int, Msg]) -> None:
            judge.restored(f"{where}, {name}", _messages(contents), original, gone)

        await self.everywhere(name, archive.state["last_seq"], look)
        given: set[int] = set()

        async def take(msg: Msg) -> None:
            given.add(Delivered.of(msg).seq)
            await session.request(msg.reply, b"+ACK", seconds=1.0)

        async def all_done() -> bool:
            await self.pull(session, name, CONSUMER, take, 100)
            info = await session.api(f"CONSUMER.INFO.{name}.{CONSUMER}")
            return bool(info["num_ack_pending"] == 0 and info["num_pending"] == 0)

        await self.until(f"nothing is pending in {name}", all_done, SETTLE)
        judge.delivered(name, given)
        ack = await self.store(session, f"copy.{name.rpartition('_')[2]}", f"after {name}")
        judge.went_on(name, int(ack["seq"]))


def _messages(contents: dict[int, Msg]) -> dict[int, Stored]:
    return {
        seq: Stored(
            msg.headers["Nats-Subject"],
            msg.headers["Nats-Time-Stamp"],
            tuple((key, msg.headers[key]) for key in OWN if key in msg.headers),
            msg.payload,
        )
        for seq, msg in contents.items()
    }
