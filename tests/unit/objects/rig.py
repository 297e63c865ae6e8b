"""A bucket on a stream of one replica: real state machine, ingest and object service; log, bus and time are twins.

What is proposed is applied when the test says so (`commit`), so that a test can look in between, or lose the leader.
"""

from __future__ import annotations

import json
from base64 import urlsafe_b64encode
from hashlib import sha256
from typing import Any

from jetcluster.objects.bucket import Bucket
from jetcluster.objects.host import BucketHost, Done, ObjectLimits
from jetcluster.protocol.bus import Bus, Origin
from jetcluster.store.api import DamagedError
from jetcluster.stream.apply.machine import StreamMachine
from jetcluster.stream.lead.atomic_stage import AtomicStage, BatchQuota
from jetcluster.stream.lead.ingest import Ingest
from jetcluster.stream.log import commands
from jetcluster.stream.ports import BatchResult, PublishResult, Result
from jetcluster.stream.rules import StreamRules
from testkit.twins.time import ManualTime
from tests.unit.stream.fake_store import ClientOrigin, FakeBus, NaiveStore, block

Json = dict[str, Any]


def digest(data: bytes) -> str:
    return "sha-256=" + urlsafe_b64encode(sha256(data).digest()).decode()


class Rig:
    def __init__(self, *subjects: str, limits: ObjectLimits | None = None, **config: object) -> None:
        self.time = ManualTime()
        self.store = NaiveStore()
        self.bus = FakeBus()
        self.machine = StreamMachine("OBJ_b", StreamRules.from_config({}), self.store)
        self.index = 0
        self.log: list[tuple[int, bytes]] = []
        """Proposed and not applied."""
        self.full = False
        """Nothing can be proposed."""
        self.damage: list[DamagedError] = []
        self.limits = limits or ObjectLimits()
        self.configure(*subjects, **config)
        self._lead()

    def configure(self, *subjects: str, **config: object) -> None:
        wire = {"name": "OBJ_b", "subjects": list(subjects or ("$OBJ.b.>",)), **config}
        self.index += 1
        self.machine.apply(self.index, 1, commands.encode_update_config(self.time.time_ns(), wire))

    def _lead(self) -> None:
        bus: Bus = self.bus  # type: ignore[assignment]
        host = BucketHost(
            "OBJ_b", self.store, bus, self.time, self.time.call_soon,
            lambda *message: self.ingest.on_message(*message), self.propose,
            lambda msg_id: self.machine.seq_of_id(msg_id), self.damage.append, lambda: self.limits,
        )  # fmt: skip
        self.bucket = Bucket(host)
        stage = AtomicStage(self.machine.rules, BatchQuota(), self.time, lambda batch_id, reason: None)
        self.ingest = Ingest("OBJ_b", self._append, self.bucket.replies, self.time, self.time.call_soon, stage)
        self.proposed: dict[int, Done] = {}
        """Index in the log -> the callback for when the command there is applied."""
        self.bucket.begin(self.machine.rules)

    def new_leader(self, keep: int = 0) -> None:
        """The leader dies; the first `keep` of what it proposed are committed by the next one, the others are lost."""
        self.index -= len(self.log[keep:])
        for index, command in self.log[:keep]:
            self.machine.apply(index, 1, command)
        self.log.clear()
        self.bucket.end()
        self._lead()

    # ---- the log

    def _append(self, command: bytes) -> int:
        self.index += 1
        self.log.append((self.index, command))
        return self.index

    def propose(self, command: bytes, done: Done) -> bool:
        if self.full:
            return False
        self.proposed[self._append(command)] = done
        return True

    def commit(self, count: int = 1_000_000) -> None:
        """Applies so much of what was proposed, and what that brings about."""
        self.time.advance(0)
        while self.log and count:
            count -= 1
            index, command = self.log.pop(0)
            self._applied(index, self.machine.apply(index, 1, command))
            self.time.advance(0)

    def _applied(self, index: int, result: Result) -> None:
        if isinstance(result, PublishResult | BatchResult):
            self.ingest.on_applied(index, result)
            return
        done = self.proposed.pop(index, None)
        if done is not None:
            self.time.call_soon(done, result)

    def scan(self) -> None:
        while self.bucket.uploads is not None and self.bucket.uploads.scans:
            self.bucket.scan()
        self.commit()

    def tick(self, seconds: float = 2.0) -> None:
        self.time.advance(seconds)
        self.bucket.tick()
        self.commit()

    # ---- as a client

    def publish(
        self, subject: str, payload: bytes = b"", reply: bytes = b"r", fields: tuple[str, ...] = (),
        origin: Origin | None = None,
    ) -> None:  # fmt: skip
        headers = block(*fields) if fields else b""
        self.bucket.on_message(subject.encode(), reply, headers, payload, origin or ClientOrigin())

    def told(self, reply: bytes = b"r") -> list[Json]:
        """Everything sent to a reply subject since the last call."""
        found = [json.loads(body) for subject, body, _ in self.bus.sent if subject == reply]
        self.bus.sent = [message for message in self.bus.sent if message[0] != reply]
        return found

    def ask(self, subject: str, payload: bytes = b"", *fields: str) -> Json:
        """Publishes, commits; the one answer."""
        self.publish(subject, payload, b"ask", fields)
        self.commit()
        (answer,) = self.told(b"ask")
        return answer

    def code(self, subject: str, payload: bytes = b"", *fields: str) -> int:
        return int(self.ask(subject, payload, *fields)["error"]["err_code"])

    def begin(self, nonce: str = "n", data: bytes = b"", chunks: int = 1, name: str = "o", **more: Any) -> Json:
        return self.ask(f"$OBJ.b.info.{name}", meta(nonce, data, chunks, name, **more))

    def chunk(self, payload: bytes, nonce: str = "n", *fields: str) -> Json:
        return self.ask(f"$OBJ.b.chunks.{nonce}", payload, *fields)

    def put(self, name: str, data: bytes, nonce: str, size: int = 4, **more: Any) -> Json:
        parts = [data[at : at + size] for at in range(0, len(data), size)]
        answer = self.begin(nonce, data, len(parts), name, **more)
        for part in parts:
            answer = self.chunk(part, nonce)
        return answer

    def delete(self, name: str) -> object:
        answers: list[bytes | None] = []
        self.bucket.delete(name, answers.append)
        self.commit()
        (answer,) = answers
        return answer and json.loads(answer)

    def seen(self, prefix: bytes = b"$OBJ.b.info.") -> list[Json]:
        """Infos that core subscribers of the bucket's infos have seen since the last call."""
        found = [json.loads(body) for subject, body, _ in self.bus.sent if subject.startswith(prefix)]
        self.bus.sent = [message for message in self.bus.sent if not message[0].startswith(prefix)]
        return found

    def stored(self) -> list[str]:
        """Subjects of all stored messages, without the bucket's prefix."""
        return [m.subject.decode().removeprefix("$OBJ.b.") for _, m in sorted(self.store.rows.items())]


def meta(nonce: str, data: bytes, chunks: int, name: str = "o", **more: Any) -> bytes:
    return json.dumps({"name": name, "nonce": nonce, "chunks": chunks, "size": len(data), **more}).encode()
