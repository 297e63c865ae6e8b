"""Measures how long commands that remove very many messages hold a replica, piece by piece (docs/limits.md).

    python -m bench long_commands [--messages 300000] [--consumers 2] [--only NAME]

Processor time inside `apply`, on one replica of a stream in RocksDB, blocks of 500 messages, each on its own subject
where the command's name does not say otherwise.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jetcluster.consumer.owner.delivery import MESSAGES_PER_STEP
from jetcluster.consumer.state import turn
from jetcluster.consumer.state.table import ConsumerTable
from jetcluster.consumer.state.turn import Op
from jetcluster.store.batch import Batch
from jetcluster.store.block_store import BlockStore
from jetcluster.store.rocks_kv import RocksKv
from jetcluster.stream.apply.machine import StreamMachine
from jetcluster.stream.log import commands
from jetcluster.stream.rules import StreamRules

T0 = 1_700_000_000_000_000_000
BLOCK = 500
MINE = "k.>"
"""The filter of the consumer that all messages are for."""


NEVER = b"NATS/1.0\r\nNats-TTL: never\r\n\r\n"
ROLLUP = b"NATS/1.0\r\nNats-Rollup: all\r\n\r\n"
ROLLUP_SUB = b"NATS/1.0\r\nNats-Rollup: sub\r\n\r\n"


class Bench:
    def __init__(self, path: Path, case: Case, messages: int, consumers: int) -> None:
        self.kv = RocksKv(path)
        self.store = BlockStore(self.kv, 1, memory=False)
        self.table = ConsumerTable(self.store)
        self.machine = StreamMachine("S", StreamRules.from_config({}), self.store, self.table)
        self.index = 0
        self.now = T0
        self.times: list[float] = []
        self.update(**case.config)
        if case.consumers:
            self.consumer("mine", MINE, "explicit")
            self.consumer("none", MINE, "none")
            for number in range(consumers - 2):
                self.consumer(f"other{number}", f"other.{number}.*", "explicit")
        numbers = list(range(messages))
        if case.shuffled:
            random.Random(1).shuffle(numbers)
        for start in range(0, messages, BLOCK):
            subjects = [b"k.%d" % (number % case.subjects) for number in numbers[start : start + BLOCK]]
            self.publish(subjects, [case.header] * len(subjects) if case.header else [])
            self.kv.commit()
        self.times.clear()

    def publish(self, subjects: list[bytes], headers: list[bytes], *, rolls_up: bool = False) -> None:
        batch = Batch.encode(subjects, headers, [b"x" * 32] * len(subjects))
        self.run(commands.encode_publish(self.now, batch, rolls_up=rolls_up))

    def purge(self, subject_filter: bytes, seq: int = 0) -> None:
        self.run(commands.encode_purge(self.now, subject_filter, seq))

    def expire(self) -> None:
        self.now += 7200 * 10**9
        self.run(commands.encode_expire(self.now))
        while (due := self.machine.next_expiry) is not None and due <= self.now:
            self.run(commands.encode_expire(self.now))

    def run(self, command: bytes) -> None:
        self.index += 1
        begun = time.process_time()
        self.machine.apply(self.index, 1, command)
        self.times.append(time.process_time() - begun)

    def update(self, **config: Any) -> None:
        wanted = {"name": "S", "storage": "file", "subjects": [">"], "num_replicas": 1, **config}
        self.run(commands.encode_update_config(self.now, wanted))

    def extended(self, kind: int, fields: dict[str, Any]) -> None:
        self.run(commands.encode_extended(T0, kind, json.dumps(fields).encode()))

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

    def reset(self) -> None:
        self.extended(commands.CONSUMER_RESET, {"name": "mine", "seq": self.store.last_seq + 1})

    def finish(self) -> None:
        while self.machine.jobs:
            self.run(commands.encode_continue(T0))


@dataclass(frozen=True)
class Case:
    name: str
    measured: Callable[[Bench], None]
    before: Callable[[Bench], None] = lambda bench: None
    config: dict[str, Any] = field(default_factory=dict)
    consumers: bool = False
    subjects: int = 1 << 40
    shuffled: bool = False
    header: bytes = b""


def no_one_wants(bench: Bench) -> None:
    bench.delete("mine")
    bench.delete("none")
    bench.consumer("mine", "other.>", "explicit")


def one_wants(bench: Bench) -> None:
    """The consumer without acks wants nothing."""
    bench.delete("none")
    bench.consumer("none", "other.>", "none")
    bench.finish()


def the_other_wants(bench: Bench) -> None:
    bench.delete("mine")
    bench.consumer("mine", "other.>", "explicit")
    bench.finish()


def advance(bench: Bench) -> None:
    """In the steps of an owner."""
    for seq in range(MESSAGES_PER_STEP, bench.store.last_seq + MESSAGES_PER_STEP, MESSAGES_PER_STEP):
        last = min(seq, bench.store.last_seq)
        bench.op("none", turn.ADVANCE, (last, MESSAGES_PER_STEP - seq + last))


INTEREST = {"retention": "interest"}
CASES = (
    Case("PURGE by a filter, all go", lambda b: b.purge(b"k.*")),
    Case("PURGE in random order", lambda b: b.purge(b"k.*"), shuffled=True),
    Case("PURGE that matches nothing", lambda b: b.purge(b"*.other")),
    Case("PURGE up to the middle", lambda b: b.purge(b"", b.store.last_seq // 2)),
    Case("max_msgs_per_subject, nothing goes", lambda b: b.update(max_msgs_per_subject=5)),
    Case("max_msgs_per_subject, 100 subjects", lambda b: b.update(max_msgs_per_subject=10), subjects=100),
    Case(
        "Nats-Rollup: sub, 2 subjects",
        lambda b: b.publish([b"k.1"], [ROLLUP_SUB], rolls_up=True),
        config={"allow_rollup_hdrs": True},
        subjects=2,
    ),
    Case("Nats-Rollup: all", lambda b: b.publish([b"k.1"], [ROLLUP]), config={"allow_rollup_hdrs": True}),
    Case("EXPIRE, all never", Bench.expire, config={"allow_msg_ttl": True, "max_age": 3600 * 10**9}, header=NEVER),
    Case("interest", lambda b: b.update(**INTEREST), no_one_wants, consumers=True),
    Case("CONSUMER.DELETE", lambda b: b.delete("mine"), one_wants, INTEREST, consumers=True),
    Case("filters", lambda b: b.consumer("mine", "other.>", "explicit"), one_wants, INTEREST, consumers=True),
    Case("CONSUMER.RESET", Bench.reset, one_wants, INTEREST, consumers=True),
    Case("ADVANCE", advance, the_other_wants, INTEREST, consumers=True),
)  # fmt: skip


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--messages", type=int, default=300_000)
    parser.add_argument("--consumers", type=int, default=2)
    parser.add_argument("--only", choices=[case.name for case in CASES])


def main(args: argparse.Namespace) -> None:
    print("| command | longest | commands | together | left |\n|---|---|---|---|---|")
    for case in CASES:
        if args.only in (None, case.name):
            with tempfile.TemporaryDirectory() as path:
                print(row(case, Path(path) / "kv", args.messages, args.consumers), flush=True)


def row(case: Case, path: Path, messages: int, consumers: int) -> str:
    bench = Bench(path, case, messages, consumers)
    case.before(bench)
    bench.times.clear()
    case.measured(bench)
    bench.finish()
    times = bench.times
    figures = f"{max(times):.3f} s | {len(times)} | {sum(times):.2f} s | {bench.store.messages}"
    return f"| {case.name} | {figures} |"
