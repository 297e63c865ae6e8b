"""How long commands that remove very many messages hold a replica: in one step, and in pieces (docs/limits.md).

    python -m scripts.bench_long_commands [--messages 300000] [--consumers 2] [--only NAME]

Processor time inside `apply`, on one replica of a stream in RocksDB, blocks of 500 messages, each on its own subject.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

from jetcluster.consumer import turn
from jetcluster.consumer.table import ConsumerTable
from jetcluster.consumer.turn import Op
from jetcluster.store.batch import Batch
from jetcluster.store.block_store import BlockStore
from jetcluster.store.rocks_kv import RocksKv
from jetcluster.stream import commands
from jetcluster.stream.machine import StreamMachine
from jetcluster.stream.rules import StreamRules

T0 = 1_700_000_000_000_000_000
BLOCK = 500
MINE = "k.>"
"""The filter of the consumer that all messages are for."""


class Bench:
    def __init__(self, path: Path, messages: int, consumers: int, retention: str, *, sliced: bool) -> None:
        self.kv = RocksKv(path)
        self.store = BlockStore(self.kv, 1, memory=False)
        self.table = ConsumerTable(self.store)
        self.machine = StreamMachine("S", StreamRules.from_config({}), self.store, self.table)
        self.index = 0
        self.sliced = sliced
        self.times: list[float] = []
        self.update(retention=retention)
        self.consumer("mine", MINE, "explicit")
        self.consumer("none", MINE, "none")
        for number in range(consumers - 2):
            self.consumer(f"other{number}", f"other.{number}.*", "explicit")
        for start in range(0, messages, BLOCK):
            subjects = [b"k.%d" % seq for seq in range(start, start + BLOCK)]
            self.run(commands.encode_publish(T0, Batch.encode(subjects, [], [b"x" * 32] * BLOCK)))
            self.kv.commit()
        self.times.clear()

    def run(self, command: bytes) -> None:
        self.index += 1
        begun = time.process_time()
        self.machine.apply(self.index, 1, command)
        self.times.append(time.process_time() - begun)

    def update(self, **config: Any) -> None:
        wanted = {"name": "S", "storage": "file", "subjects": [">"], "num_replicas": 1, **config}
        command = commands.encode_update_config(T0, wanted)
        self.run(command if self.sliced else commands.placeless(command))

    def extended(self, kind: int, fields: dict[str, Any]) -> None:
        self.run(commands.encode_extended(T0, kind, json.dumps(fields).encode(), sifted=self.sliced))

    def consumer(self, name: str, subject_filter: str, acks: str) -> None:
        config = {
            "name": name,
            "deliver_policy": "all",
            "ack_policy": acks,
            "ack_wait": 30_000_000_000,
            "max_deliver": -1,
            "replay_policy": "instant",
            "max_waiting": 512,
            "max_ack_pending": 1000,
            "num_replicas": 0,
            "filter_subject": subject_filter,
        }
        fields = {"name": name, "config": config, "action": "", "created": T0, "owner": "BENCHbch", "request": ""}
        self.extended(commands.CONSUMER_CREATE, fields)

    def op(self, name: str, kind: int, value: Any) -> None:
        state = self.table.by_name[name]
        body = turn.encode(b"BENCHbch", self.index, 1, [Op(state.cid, state.epoch, kind, value)], first=True)
        self.run(commands.encode_extended(T0, commands.CONSUMER_TURN, body))

    def delete(self, name: str) -> None:
        self.extended(commands.CONSUMER_DELETE, {"name": name, "cid": 0})

    def finish(self) -> None:
        while self.machine.jobs:
            self.run(commands.encode_continue(T0))


def prepare(bench: Bench, name: str) -> None:
    if name == "interest":
        bench.delete("mine")
        bench.delete("none")
        bench.consumer("mine", "other.>", "explicit")
    elif name == "ADVANCE":
        bench.delete("mine")
        bench.consumer("mine", "other.>", "explicit")
        bench.finish()
    else:
        bench.delete("none")
        bench.consumer("none", "other.>", "none")
        bench.finish()


def measured(bench: Bench, name: str) -> None:
    last = bench.store.last_seq
    if name == "interest":
        bench.update(retention="interest")
    elif name == "CONSUMER.DELETE":
        bench.delete("mine")
    elif name == "filters":
        bench.consumer("mine", "other.>", "explicit")
    elif name == "CONSUMER.RESET":
        bench.extended(commands.CONSUMER_RESET, {"name": "mine", "seq": last + 1})
    else:
        bench.op("none", turn.ADVANCE, (last, last))


NAMES = ("interest", "CONSUMER.DELETE", "filters", "CONSUMER.RESET", "ADVANCE")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=300_000)
    parser.add_argument("--consumers", type=int, default=2)
    parser.add_argument("--only", choices=NAMES)
    args = parser.parse_args()
    print("| command | way | longest | commands | together | left |\n|---|---|---|---|---|---|")
    for name in [args.only] if args.only else NAMES:
        for sliced in (False, True):
            with tempfile.TemporaryDirectory() as path:
                retention = "limits" if name == "interest" else "interest"
                bench = Bench(Path(path) / "kv", args.messages, args.consumers, retention, sliced=sliced)
                prepare(bench, name)
                bench.times.clear()
                measured(bench, name)
                bench.finish()
                times, way = bench.times, "pieces" if sliced else "one step"
                row = f"{max(times):.3f} s | {len(times)} | {sum(times):.2f} s | {bench.store.messages}"
                print(f"| {name} | {way} | {row} |", flush=True)


if __name__ == "__main__":
    main()
