"""A replica of a stream with its consumers in memory, driven command by command."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from jetcluster.consumer.state import turn
from jetcluster.consumer.state.state import ConsumerState
from jetcluster.consumer.state.table import ConsumerTable
from jetcluster.consumer.state.turn import Op, TurnResult, Value
from jetcluster.store.batch import Batch
from jetcluster.store.block_store import BlockStore
from jetcluster.stream.apply.machine import StreamMachine
from jetcluster.stream.log import commands
from jetcluster.stream.ports import Result
from jetcluster.stream.rules import StreamRules
from testkit.twins.mem_kv import MemKv
from tests.unit.store.shipping import ship

T0 = 1_790_000_000_000_000_000
SECOND = 1_000_000_000
OWNER = b"OWNERone"


class Node:
    """Commands go in with the time `now`, which the test moves; every turn is one of OWNER's only session."""

    def __init__(self, config: dict[str, Any] | None = None) -> None:
        self.kv = MemKv()
        self.index = 0
        self.now = T0
        self.serial = 0
        self.open()
        self.configure(config or {})

    def open(self) -> None:
        self.store = BlockStore(self.kv, 7, memory=False)
        self.table = ConsumerTable(self.store)
        self.machine = StreamMachine("S", StreamRules.from_config({}), self.store, self.table)

    def restart(self) -> None:
        """Starts again with all that was committed, which is everything."""
        self.kv.commit()
        self.open()

    def install(self, source: Node) -> None:
        """The snapshot of another replica in place of all that is here, into the same table."""
        ship(source.store.export(), self.store, self.kv)
        self.machine = StreamMachine("S", StreamRules.from_config({}), self.store, self.table)
        self.index, self.now, self.serial = source.index, source.now, source.serial

    def everything(self) -> object:
        """All rows and the hash: what replicas must agree on."""
        self.kv.commit()
        return list(self.kv.scan(b"", b"\xff" * 64)), self.store.state, self.machine.hash

    def apply(self, command: bytes) -> Result:
        self.index += 1
        return self.machine.apply(self.index, 1, command)

    def configure(self, config: dict[str, Any]) -> Result:
        config = {"name": "S", "storage": "file", "subjects": [">"], "num_replicas": 1, **config}
        return self.apply(commands.encode_update_config(self.now, config))

    def publish(self, *subjects: bytes) -> Result:
        self.now += len(subjects)
        return self.apply(commands.encode_publish(self.now, Batch.encode(subjects, [], [b"x"] * len(subjects))))

    def extended(self, kind: int, body: dict[str, Any]) -> Any:
        return self.apply(commands.encode_extended(self.now, kind, json.dumps(body).encode()))

    def create(
        self, name: str = "C", action: str = "", request: str = "", owner: str = "OWNERone", **config: Any
    ) -> Any:
        body = {"name": name, "config": consumer(name, **config), "action": action, "created": self.now}
        return self.extended(commands.CONSUMER_CREATE, body | {"owner": owner, "request": request})

    def delete(self, name: str = "C", cid: int = 0) -> Any:
        return self.extended(commands.CONSUMER_DELETE, {"name": name, "cid": cid})

    def turn(self, ops: Iterable[Op]) -> TurnResult:
        self.serial += 1
        body = turn.encode(OWNER, 1, self.serial, ops, first=self.serial == 1)
        result = self.apply(commands.encode_extended(self.now, commands.CONSUMER_TURN, body))
        assert isinstance(result, TurnResult)
        return result

    def op(self, kind: int, value: Value, name: str = "C") -> Any:
        """The outcome of one op in a turn of its own."""
        state = self.state(name)
        result = self.turn([Op(state.cid, state.epoch, kind, value)])
        assert result.accepted
        return result.outcomes[0]

    def deliver(self, *seqs: int, name: str = "C") -> Any:
        return self.op(turn.DELIVER, seqs, name)

    def ack(self, *seqs: int, name: str = "C") -> Any:
        return self.op(turn.ACK, seqs, name)

    def state(self, name: str = "C") -> ConsumerState:
        return self.table.by_name[name]

    def floors(self, name: str = "C") -> tuple[int, int, int, int]:
        """Delivered and ack floor, each as (consumer, stream) sequence."""
        state = self.state(name)
        return state.delivered_cseq, state.delivered_sseq, state.floor_cseq, state.floor_sseq

    def stored(self) -> list[int]:
        return [message.seq for message in self.store.queries.scan(b">", 1)]


def consumer(name: str, **config: Any) -> dict[str, Any]:
    """A configuration as the edge normalises it."""
    normal = {
        "name": name,
        "deliver_policy": "all",
        "ack_policy": "explicit",
        "ack_wait": 30 * SECOND,
        "max_deliver": -1,
        "replay_policy": "instant",
        "max_waiting": 512,
        "max_ack_pending": 1000,
        "num_replicas": 0,
    }
    return normal | config


def subjects(prefix: str, numbers: Sequence[int]) -> list[bytes]:
    return [f"{prefix}.{number}".encode() for number in numbers]
