"""Random commands: two replicas, one of which restarts now and then, stay identical in every byte, and do what a naive
model of the rules does, message by message."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jetcluster.errors import ApiError
from jetcluster.store.batch import Batch
from jetcluster.store.block_store import BlockStore
from jetcluster.store.mem_kv import MemKv
from jetcluster.stream import commands
from jetcluster.stream.machine import StreamMachine
from jetcluster.stream.ports import MachineStore
from jetcluster.stream.fields import nats_fields
from jetcluster.stream.results import Duplicate, PublishResult, Result
from jetcluster.stream.rules import StreamRules
from tests.unit.stream.twins import NaiveStore, block, fits

SUBJECTS = [b"a.x", b"a.y", b"b"]
T0 = 1_700_000_000_000_000_000


@dataclass
class Model:
    """The rules once more, without batches: every message is checked, stored and followed by evictions."""

    config: dict[str, Any]
    messages: dict[int, tuple[int, bytes, bytes, bytes]] = field(default_factory=dict)
    last_seq: int = 0
    clock: int = 0
    ids: dict[bytes, tuple[int, int]] = field(default_factory=dict)
    last_id: bytes = b""

    def limit(self, key: str) -> int:
        return max(self.config.get(key) or 0, 0)

    def publish(self, ts: int, messages: list[tuple[bytes, bytes, bytes]]) -> list[object]:
        base = max(ts, self.clock + 1)
        self.clock = base + len(messages) - 1
        stored, verdicts = 0, []
        for message in messages:
            before = self.last_seq
            verdicts.append(self.publish_one(base, base + stored, *message))
            stored += self.last_seq - before
        return verdicts

    def publish_one(self, now: int, ts: int, subject: bytes, headers: bytes, payload: bytes) -> object:
        get = nats_fields(headers).get
        if self.config.get("sealed"):
            return 10109
        if 0 < self.limit("max_msg_size") < len(headers) + len(payload):
            return 10054
        msg_id, window = get(b"Nats-Msg-Id"), self.limit("duplicate_window")
        if msg_id and window and msg_id in self.ids and self.ids[msg_id][1] > now - window:
            return Duplicate(self.ids[msg_id][0])
        expected = get(b"Nats-Expected-Last-Sequence")
        if expected and int(expected) != self.last_seq:
            return 10071
        expected = get(b"Nats-Expected-Last-Subject-Sequence")
        if expected:
            of = get(b"Nats-Expected-Last-Subject-Sequence-Subject") or subject
            if int(expected) != max((s for s, m in self.messages.items() if fits(of, m[1])), default=0):
                return 10071
        rollup = get(b"Nats-Rollup")
        if rollup and not self.config.get("allow_rollup_hdrs"):
            return 10111
        if self.config.get("discard") == "new" and not self.has_room(subject, headers, payload, rollup):
            return 10077
        expected = get(b"Nats-Expected-Last-Msg-Id")
        if expected and expected != self.last_id:
            return 10070
        self.last_seq += 1
        self.last_id = msg_id or b""
        self.messages[self.last_seq] = (ts, subject, headers, payload)
        if msg_id and window:
            self.ids[msg_id] = (self.last_seq, now)
        self.evict()  # as nats-server: limits while storing, the rollup after it
        if rollup:
            self.messages = {
                s: m for s, m in self.messages.items()
                if s == self.last_seq or (rollup == b"sub" and m[1] != subject)
            }  # fmt: skip
        return self.last_seq

    def has_room(self, subject: bytes, headers: bytes, payload: bytes, rollup: bytes | None) -> bool:
        of_subject = sum(m[1] == subject for m in self.messages.values())
        at_limit = 0 < self.limit("max_msgs_per_subject") <= of_subject
        if at_limit and self.config.get("discard_new_per_subject") and not rollup:
            return False
        if at_limit:
            return True
        size = 30 + len(subject) + len(headers) + len(payload) + (4 if headers else 0)
        if 0 < self.limit("max_msgs") <= len(self.messages):
            return False
        return not self.limit("max_bytes") or self.bytes() + size <= self.limit("max_bytes")

    def bytes(self) -> int:
        return sum(30 + len(m[1]) + len(m[2]) + len(m[3]) + (4 if m[2] else 0) for m in self.messages.values())

    def evict(self) -> None:
        per_subject = 0 if self.config.get("discard_new_per_subject") else self.limit("max_msgs_per_subject")
        for subject in SUBJECTS:
            seqs = sorted(s for s, m in self.messages.items() if m[1] == subject)
            for seq in seqs[:-per_subject] if per_subject else ():
                del self.messages[seq]
        if self.config.get("discard") != "new":
            while (0 < self.limit("max_msgs") < len(self.messages)) or (0 < self.limit("max_bytes") < self.bytes()):
                del self.messages[min(self.messages)]

    def apply(self, kind: str, ts: int, *args: Any) -> object:
        if kind == "publish":
            return self.publish(ts, *args)
        self.clock = max(self.clock, ts)
        before = len(self.messages)
        if kind == "delete":
            if self.config.get("sealed"):
                return 10109
            if not 0 < args[0] <= self.last_seq:
                return 10057
            return 1 if self.messages.pop(args[0], None) else 10043
        if kind == "purge":
            refused = self.purge(*args)
            return refused or before - len(self.messages)
        if kind == "update":
            self.config = args[0]
            if not self.limit("duplicate_window"):
                self.ids.clear()
            self.evict()
        if self.limit("max_age"):
            self.messages = {s: m for s, m in self.messages.items() if m[0] > self.clock - self.limit("max_age")}
        return before - len(self.messages)

    def purge(self, filter: bytes, seq: int, keep: int) -> int:
        if self.config.get("sealed"):
            return 10109
        if seq and keep:
            return 10003
        matching = sorted(s for s, m in self.messages.items() if fits(filter, m[1]) and (not seq or s < seq))
        for each in matching[: max(len(matching) - keep, 0)]:
            del self.messages[each]
        if seq > 1 and filter in (b"", b">"):
            self.last_seq = max(self.last_seq, seq - 1)
        return 0


def headers_of(draw: st.DrawFn) -> bytes:
    """Mostly none or a message id; now and then an expectation that has a fair chance to hold."""
    small = st.integers(0, 12).map(str)
    fields = {
        "Nats-Msg-Id": st.sampled_from("12345678"),
        "Nats-Expected-Last-Sequence": small,
        "Nats-Expected-Last-Subject-Sequence": small,
        "Nats-Expected-Last-Subject-Sequence-Subject": st.sampled_from(["a.x", "a.*", "b", ">"]),
        "Nats-Expected-Last-Msg-Id": st.sampled_from("1234"),
        "Nats-Rollup": st.sampled_from(["sub", "all"]),
        "X": st.just("1"),
    }
    names = draw(st.sets(st.sampled_from(["", "", "", "Nats-Msg-Id", "Nats-Msg-Id", *fields]), max_size=2)) - {""}
    if "Nats-Expected-Last-Subject-Sequence-Subject" in names:
        names.add("Nats-Expected-Last-Subject-Sequence")
    return block(*[f"{name}: {draw(fields[name])}" for name in sorted(names)]) if names else b""


@st.composite
def configs(draw: st.DrawFn) -> dict[str, Any]:
    config: dict[str, Any] = {"name": "S", "duplicate_window": draw(st.sampled_from([0, 20, 1000]))}
    options = {
        "max_msgs": st.integers(1, 8),
        "max_msgs_per_subject": st.integers(1, 3),
        "max_bytes": st.integers(60, 400),
        "max_age": st.integers(10, 60),
        "max_msg_size": st.just(40),
        "allow_rollup_hdrs": st.just(True),
        "discard": st.just("new"),
        "sealed": st.sampled_from([False, False, False, True]),
    }
    for name in draw(st.sets(st.sampled_from(sorted(options)), max_size=4)):
        config[name] = draw(options[name])
    if "max_bytes" in config and "max_msgs_per_subject" in config and "discard" not in config:
        # Evicting for bytes before or after a message of the same command was replaced are different answers, both
        # right: a command is stored in one step, so ours keeps more. The model is message by message.
        del config["max_bytes"]
    if config.get("discard") == "new" and "max_msgs_per_subject" in config:
        config["discard_new_per_subject"] = draw(st.booleans())
    return config


@st.composite
def steps(draw: st.DrawFn) -> tuple[Any, ...]:
    kind = draw(st.sampled_from(["publish"] * 6 + ["delete", "purge", "expire", "update", "restart"]))
    if kind == "publish":
        plain = draw(st.booleans())
        return kind, [
            (draw(st.sampled_from(SUBJECTS)), b"" if plain else headers_of(draw), b"x" * draw(st.integers(0, 45)))
            for _ in range(draw(st.integers(1, 6)))
        ]
    if kind == "delete":
        return kind, draw(st.integers(0, 12))
    if kind == "purge":
        filter = draw(st.sampled_from([b"", b">", b"a.*", b"a.x", b"zz"]))
        return kind, filter, draw(st.sampled_from([0, 0, 2, 5, 20])), draw(st.sampled_from([0, 0, 0, 1, 3]))
    return (kind, draw(configs())) if kind == "update" else (kind,)


def encode(kind: str, ts: int, *args: Any) -> bytes:
    if kind == "publish":
        subjects, headers, payloads = zip(*args[0], strict=True)
        return commands.encode_publish(ts, Batch.encode(subjects, headers, payloads))
    functions = {"delete": commands.encode_delete_msg, "purge": commands.encode_purge}
    functions |= {"expire": commands.encode_expire, "update": commands.encode_update_config}  # type: ignore[dict-item]
    return functions[kind](ts, *args)


def plain(result: Result) -> object:
    """A result in the model's terms: codes instead of errors, one verdict per message."""
    if isinstance(result, ApiError):
        return result.err_code
    if isinstance(result, PublishResult):
        verdicts = result.verdicts or list(range(result.first_seq, result.first_seq + result.count))
        return [v.err_code if isinstance(v, ApiError) else v for v in verdicts]
    return result


class Block:
    """A `BlockStore` on a `MemKv`, with what the test asks of any store."""

    def __init__(self) -> None:
        self.kv = MemKv()
        self.store = BlockStore(self.kv, 7, memory=False)

    def reopen(self) -> MachineStore:
        self.kv.commit()
        self.store = BlockStore(self.kv, 7, memory=False)
        return self.store

    def everything(self) -> object:
        self.kv.commit()
        return list(self.kv.scan(b"", b"\xff" * 64)), self.store.state


class Naive:
    def __init__(self) -> None:
        self.store = NaiveStore()
        self.reopen, self.everything = self.store.reopen, self.store.everything


@pytest.mark.parametrize("kind_of_store", [Naive, Block])
@settings(max_examples=200, deadline=None)
@given(config=configs(), history=st.lists(st.tuples(st.integers(-5, 30), steps()), max_size=25))
def test_replicas_agree_with_each_other_and_with_the_model(
    kind_of_store: type[Naive] | type[Block], config: dict[str, Any], history: list[tuple[int, tuple[Any, ...]]]
) -> None:
    rules = StreamRules.from_config({})
    nodes = [kind_of_store(), kind_of_store()]
    machines = [StreamMachine("S", rules, node.store) for node in nodes]
    for machine in machines:
        machine.apply(1, 1, commands.encode_update_config(0, config))
    model = Model(config)
    now = T0
    for index, (delay, (kind, *args)) in enumerate(history, 2):
        now += delay
        if kind == "restart":
            machines[1] = StreamMachine("S", rules, nodes[1].reopen())
            continue
        command = encode(kind, now, *args)
        results = [machine.apply(index, 1, command) for machine in machines]
        assert results[0] == results[1]
        assert plain(results[0]) == model.apply(kind, now, *args)
        assert nodes[0].everything() == nodes[1].everything()
        assert machines[0].hash == machines[1].hash
        assert {m.seq: m[1:] for m in machines[0].store.scan(b">", 1)} == model.messages
        assert machines[0].store.last_seq == model.last_seq
