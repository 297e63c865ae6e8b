"""Random atomic batches among everything else: two replicas, one of which restarts now and then (also between the parts
of a batch), stay identical in every byte, and do what a plain model does that first checks and then stores."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jetcluster.store.batch import Batch
from jetcluster.stream import commands
from jetcluster.stream.fields import nats_fields
from jetcluster.stream.machine import StreamMachine
from jetcluster.stream.results import BatchResult
from jetcluster.stream.rules import StreamRules
from tests.unit.stream.test_model import T0, Block, Model, Naive, encode, plain
from tests.unit.stream.twins import block, fits

Message = tuple[bytes, bytes, bytes]
SUBJECTS = [b"a.x", b"a.y", b"b"]
PART = 150
"""Bytes: most batches here go in parts."""


class AtomicModel(Model):
    def atomic(self, ts: int, messages: list[Message], *, allow_msg_id: bool) -> object:
        now = max(ts, self.clock + 1)
        error = self.atomic_error(now, messages, allow_msg_id=allow_msg_id)
        if error is not None:
            self.clock = now
            return error
        self.clock = now + len(messages) - 1
        for i, message in enumerate(messages):
            self.atomic_store(now, now + i, *message)
        return self.last_seq

    def atomic_error(self, now: int, messages: list[Message], *, allow_msg_id: bool) -> int | None:
        if self.config.get("sealed"):
            return 10109
        if not self.config.get("allow_atomic"):
            return 10174
        before: list[Message] = []
        for message in messages:
            error = self.atomic_check(now, message, before, allow_msg_id=allow_msg_id)
            if error is not None:
                return error
            before.append(message)
        return None

    def atomic_check(self, now: int, message: Message, before: list[Message], *, allow_msg_id: bool) -> int | None:
        subject, headers, payload = message
        get = nats_fields(headers).get
        written = [m[0] for m in before]
        window = self.limit("duplicate_window")
        if 0 < self.limit("max_msg_size") < len(headers) + len(payload):
            return 10054
        if get(b"Nats-Expected-Last-Msg-Id"):
            return 10177
        msg_id = get(b"Nats-Msg-Id")
        if msg_id and not allow_msg_id:
            return 10177
        if msg_id and window:
            if any(nats_fields(m[1]).get(b"Nats-Msg-Id") == msg_id for m in before):
                return 10201
            if msg_id in self.ids and self.ids[msg_id][1] > now - window:
                return 10201
        expected = get(b"Nats-Expected-Last-Sequence")
        if expected:
            if int(expected) != self.last_seq + len(before):
                return 10071
            if before:
                return 10164
        expected = get(b"Nats-Expected-Last-Subject-Sequence")
        if expected:
            of = get(b"Nats-Expected-Last-Subject-Sequence-Subject") or subject
            if of in written:
                return 10164
            if int(expected) != max((s for s, m in self.messages.items() if fits(of, m[1])), default=0):
                return 10071
        rollup = get(b"Nats-Rollup")
        if rollup and not self.config.get("allow_rollup_hdrs"):
            return 10111
        if rollup == b"sub" and subject in written:
            return 10111
        if rollup == b"all" and before:
            return 10111
        return 10077 if self.config.get("discard") == "new" and self.atomic_full(message, before, rollup) else None

    def atomic_full(self, message: Message, before: list[Message], rollup: bytes | None) -> bool:
        sizes = [30 + len(s) + len(h) + len(p) + (4 if h else 0) for s, h, p in [*before, message]]
        if 0 < self.limit("max_msgs") < len(self.messages) + len(sizes):
            return True
        if 0 < self.limit("max_bytes") < self.bytes() + sum(sizes):
            return True
        if not self.config.get("discard_new_per_subject") or rollup:
            return False
        held = sum(m[1] == message[0] for m in self.messages.values()) + sum(m[0] == message[0] for m in before)
        return held >= self.limit("max_msgs_per_subject")

    def atomic_store(self, now: int, ts: int, subject: bytes, headers: bytes, payload: bytes) -> None:
        get = nats_fields(headers).get
        msg_id, rollup = get(b"Nats-Msg-Id"), get(b"Nats-Rollup")
        self.last_seq += 1
        self.last_id = msg_id or b""
        self.messages[self.last_seq] = (ts, subject, headers, payload)
        if msg_id and self.limit("duplicate_window"):
            self.ids[msg_id] = (self.last_seq, now)
        self.evict()
        if rollup:
            self.messages = {
                s: m for s, m in self.messages.items()
                if s == self.last_seq or (rollup == b"sub" and m[1] != subject)
            }  # fmt: skip


def bare(headers: bytes) -> bool:
    return headers.count(b"\r\nNats-") == 2


@st.composite
def headers(draw: st.DrawFn) -> bytes:
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
    names = draw(st.sets(st.sampled_from(["", "", "", "", "Nats-Msg-Id", *fields]), max_size=2)) - {""}
    if "Nats-Expected-Last-Subject-Sequence-Subject" in names:
        names.add("Nats-Expected-Last-Subject-Sequence")
    return block(*[f"{name}: {draw(fields[name])}" for name in sorted(names)]) if names else b""


@st.composite
def batches(draw: st.DrawFn) -> tuple[Any, ...]:
    few = draw(st.booleans())
    messages = []
    for i in range(1, draw(st.integers(1, 6)) + 1):
        own = block("Nats-Batch-Id: b", f"Nats-Batch-Sequence: {i}")
        more = b"" if few else draw(headers())[len(b"NATS/1.0\r\n") :]
        whole = own[:-2] + more if more else own
        messages.append((draw(st.sampled_from(SUBJECTS)), whole, b"x" * draw(st.integers(0, 45))))
    return "atomic", messages, draw(st.booleans()), draw(st.integers(0, 5))


@st.composite
def configs(draw: st.DrawFn) -> dict[str, Any]:
    config: dict[str, Any] = {
        "name": "S",
        "duplicate_window": draw(st.sampled_from([0, 20, 1000])),
        "allow_atomic": draw(st.sampled_from([True, True, True, False])),
    }
    options = {
        "max_msgs": st.integers(1, 8),
        "max_msgs_per_subject": st.integers(1, 3),
        "max_bytes": st.integers(180, 1200),
        "max_age": st.integers(10, 60),
        "max_msg_size": st.just(150),
        "allow_rollup_hdrs": st.just(True),
        "sealed": st.sampled_from([False, False, False, True]),
    }
    if draw(st.booleans()):
        config["discard"] = "new"
    for name in draw(st.sets(st.sampled_from(sorted(options)), max_size=4)):
        config[name] = draw(options[name])
    if "max_bytes" in config and "max_msgs_per_subject" in config and "discard" not in config:
        del config["max_bytes"]  # eviction inside a command may then differ from one by one (see test_model)
    if config.get("discard") == "new" and "max_msgs_per_subject" in config:
        config["discard_new_per_subject"] = draw(st.booleans())
    return config


@st.composite
def others(draw: st.DrawFn) -> tuple[Any, ...]:
    """What else happens to a stream."""
    kind = draw(st.sampled_from(["publish", "publish", "delete", "purge", "expire", "update", "restart", "cut", "cut"]))
    if kind == "publish":
        return kind, [
            (draw(st.sampled_from(SUBJECTS)), draw(headers()), b"x" * draw(st.integers(0, 45)))
            for _ in range(draw(st.integers(1, 4)))
        ]
    if kind == "delete":
        return kind, draw(st.integers(0, 12))
    if kind == "purge":
        return kind, draw(st.sampled_from([b"", b"a.*", b"zz"])), draw(st.sampled_from([0, 2, 5])), 0
    return (kind, draw(configs())) if kind == "update" else (kind,)


@pytest.mark.parametrize("kind_of_store", [Naive, Block])
@settings(max_examples=150, deadline=None)
@given(
    config=configs(),
    history=st.lists(st.tuples(st.integers(-5, 30), st.one_of(batches(), batches(), others())), max_size=20),
)
def test_whole_or_not_at_all_on_all_replicas_alike(
    kind_of_store: type[Naive] | type[Block], config: dict[str, Any], history: list[tuple[int, tuple[Any, ...]]]
) -> None:
    rules = StreamRules.from_config({})
    nodes = [kind_of_store(), kind_of_store()]
    machines = [StreamMachine("S", rules, node.store) for node in nodes]
    index = 1
    for machine in machines:
        machine.apply(index, 1, commands.encode_update_config(0, config))
    model = AtomicModel(config)
    now, cut = T0, False
    for delay, (kind, *args) in history:
        now += delay
        if kind == "restart":
            machines[1] = StreamMachine("S", rules, nodes[1].reopen())
            continue
        if kind == "cut":  # the leader goes before it has proposed the commit of the next batch
            cut = True
            continue
        if kind == "atomic":
            messages, allow_msg_id, restart_at = args
            subjects, blocks, payloads = zip(*messages, strict=True)
            encoded = Batch.encode(subjects, blocks, payloads)
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(commands, "PART_BYTES", PART)
                proposed = commands.encode_atomic(now, encoded, plain=all(map(bare, blocks)), allow_msg_id=allow_msg_id)
            if cut:
                proposed = proposed[:-1]
        else:
            proposed, restart_at = [encode(kind, now, *args)], 9
        before = copy.deepcopy(model.messages)
        for n, command in enumerate(proposed):
            index += 1
            results = [machine.apply(index, 1, command) for machine in machines]
            assert results[0] == results[1]
            if n + 1 < len(proposed):
                assert {m.seq: m[1:] for m in machines[0].store.scan(b">", 1)} == before, "part of a batch is visible"
            if n == restart_at:
                machines[1] = StreamMachine("S", rules, nodes[1].reopen())
        if kind == "atomic" and cut:
            cut = False
        elif kind == "atomic":
            result = results[0]
            assert isinstance(result, BatchResult)
            given = result.error.err_code if result.error is not None else result.last_seq
            assert given == model.atomic(now, messages, allow_msg_id=allow_msg_id)
        else:
            assert plain(results[0]) == model.apply(kind, now, *args)
        assert nodes[0].everything() == nodes[1].everything()
        assert machines[0].hash == machines[1].hash
        assert {m.seq: m[1:] for m in machines[0].store.scan(b">", 1)} == model.messages
        assert machines[0].store.last_seq == model.last_seq
