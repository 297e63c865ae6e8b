"""Publishers of fast-ingest batches, and a log whose commands are applied when the test says so."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from jetcluster.raft.api import RaftError
from jetcluster.stream.lead.atomic_stage import AtomicStage, BatchLimits, BatchQuota
from jetcluster.stream.lead.ingest import Ingest
from jetcluster.stream.ports import PublishResult
from jetcluster.stream.rules import StreamRules
from testkit.twins.time import ManualTime
from tests.unit.stream.fake_store import FakeBus, block
from tests.unit.stream.test_ingest import CLIENT
from tests.unit.stream.test_machine import Stream

WRONG = block("Nats-Expected-Last-Sequence: 99")


class Rig:
    def __init__(self, limits: BatchLimits | None = None, **config: Any) -> None:
        config = {"allow_batched": True, **config}
        self.stream = Stream(**config)
        self.bus, self.time = FakeBus(), ManualTime()
        self.turn: list[Callable[[], None]] = []
        self.room = BatchQuota(limits)
        self.woken = 0
        self.error: RaftError | None = None
        self.proposed: list[tuple[int, bytes]] = []
        self.rules = StreamRules.from_config({"name": "S", **config})
        self.ingest = self.leader()

    def leader(self) -> Ingest:
        def wake() -> None:
            self.woken += 1

        stage = AtomicStage(self.rules, self.room, self.time, lambda *_: None, wake)
        return Ingest("S", self.propose, self.bus, self.time, self.turn.append, stage)

    def propose(self, command: bytes) -> int:
        if self.error is not None:
            raise self.error
        self.proposed.append((self.stream.index + len(self.proposed) + 1, command))
        return self.proposed[-1][0]

    def send(
        self, seq: int, operation: int | None = None, *, id: str = "b", flow: int = 2, gap: str = "ok",
        headers: bytes = b"", payload: bytes = b"x",
    ) -> None:  # fmt: skip
        operation = min(seq - 1, 1) if operation is None else operation
        reply = f"i.{id}.{flow}.{gap}.{seq}.{operation}.$FI".encode()
        self.ingest.on_message(b"a", reply, headers, payload, CLIENT)

    def end_turn(self) -> None:
        due, self.turn[:] = list(self.turn), []
        for callback in due:
            callback()

    def apply(self) -> None:
        proposed, self.proposed = self.proposed, []
        for index, command in proposed:
            result = self.stream.apply(command)
            assert self.stream.index == index
            if isinstance(result, PublishResult):
                self.ingest.on_applied(index, result)
            else:
                assert result == 0  # nothing but ends of batches

    def apply_alone(self) -> None:
        """The leader dies before it tells anybody."""
        proposed, self.proposed = self.proposed, []
        for _, command in proposed:
            self.stream.apply(command)
        self.ingest.clear()
        self.bus.sent.clear()

    def settle(self) -> None:
        self.end_turn()
        self.apply()

    def told(self, id: str = "b") -> list[Any]:
        """All that the publisher heard since the last call, in short."""
        heard = [body for subject, body, _ in self.bus.sent if subject.startswith(b"i.%b." % id.encode())]
        self.bus.sent = [each for each in self.bus.sent if not each[0].startswith(b"i.%b." % id.encode())]
        return [_short(json.loads(body)) for body in heard]

    def stored(self) -> int:
        return len(self.stream.store.rows)


def _short(answer: dict[str, Any]) -> tuple[Any, ...]:
    match answer:
        case {"type": "ack", "seq": seq, "msgs": messages}:
            return "ack", seq, messages
        case {"type": "gap", "last_seq": first, "seq": seq}:
            return "gap", first, seq
        case {"type": "err", "seq": seq, "error": {"err_code": code}}:
            return "err", seq, code
        case {"error": {"err_code": code}, "stream": "S", "seq": 0}:
            return "refused", code
        case {"batch": batch, "count": count, "seq": seq, "stream": "S"}:
            return "end", batch, count, seq
        case _:
            pytest.fail(f"not an answer: {answer}")
