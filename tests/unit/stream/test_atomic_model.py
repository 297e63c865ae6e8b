"""Random atomic batches among everything else: two replicas, one of which restarts now and then (also between the parts
of a batch), stay identical in every byte, and do what a plain model does that first checks and then stores."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jetcluster.store.batch import Batch
from jetcluster.stream.apply.machine import StreamMachine
from jetcluster.stream.fields import nats_fields
from jetcluster.stream.log import commands
from jetcluster.stream.ports import BatchResult
from jetcluster.stream.rules import StreamRules
from tests.unit.stream.fake_store import block, fits
from tests.unit.stream.test_model import FIELDS, T0, Block, HeaderBlocks, Model, Naive, encode, plain

Message = tuple[bytes, bytes, bytes]
SUBJECTS = [b"a.x", b"a.y", b"b"]
PART = 150
"""Bytes: most batches here go in parts."""


class AtomicModel(Model):
    def atomic(self, ts: int, messages: list[Message], *, allow_msg_id: bool) -> object:
        now = max(ts, self.clock + 1)
        self.sweep(now, looks=not all(bare(headers) for _, headers, _ in messages))
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


UNUSED = {"Nats-TTL", "Nats-Incr", "Nats-Schedule"}
HEADERS = HeaderBlocks(
    ["", "", "", "", "Nats-Msg-Id"], {name: values for name, values in FIELDS.items() if name not in UNUSED}
)
"""Mostly none or a message id; now and then an expectation that has a fair chance to hold."""
BOOLEANS = st.booleans()
SUBJECT = st.sampled_from(SUBJECTS)
PAYLOADS = st.integers(0, 45).map(lambda size: b"x" * size)
BATCH_SIZES = st.integers(1, 6)
PUBLISH_SIZES = st.integers(1, 4)
RESTARTS = st.integers(0, 5)
WINDOWS = st.sampled_from([0, 20, 1000])
ALLOWED = st.sampled_from([True, True, True, False])
OPTIONS: dict[str, st.SearchStrategy[Any]] = {
    "max_msgs": st.integers(1, 8),
    "max_msgs_per_subject": st.integers(1, 3),
    "max_bytes": st.integers(180, 1200),
    "max_age": st.integers(10, 60),
    "max_msg_size": st.just(150),
    "allow_rollup_hdrs": st.just(True),
    "sealed": st.sampled_from([False, False, False, True]),
}
CHOSEN = st.sets(st.sampled_from(sorted(OPTIONS)), max_size=4)
KINDS = st.sampled_from(
    ["atomic"] * 18 + ["publish", "publish", "delete", "purge", "expire", "update", "restart", "cut", "cut"]
)
"""Two thirds are batches; the rest is what else happens to a stream."""
SEQS = st.integers(0, 12)
PURGES = st.tuples(st.sampled_from([b"", b"a.*", b"zz"]), st.sampled_from([0, 2, 5]))
DELAYS = st.integers(-5, 30)


def draw_batch(draw: st.DrawFn) -> tuple[Any, ...]:
    few = draw(BOOLEANS)
    messages = []
    for i in range(1, draw(BATCH_SIZES) + 1):
        own = block("Nats-Batch-Id: b", f"Nats-Batch-Sequence: {i}")
        more = b"" if few else HEADERS.draw(draw)[len(b"NATS/1.0\r\n") :]
        messages.append((draw(SUBJECT), own[:-2] + more if more else own, draw(PAYLOADS)))
    return "atomic", messages, draw(BOOLEANS), draw(RESTARTS)


@st.composite
def configs(draw: st.DrawFn) -> dict[str, Any]:
    config: dict[str, Any] = {"name": "S", "duplicate_window": draw(WINDOWS), "allow_atomic": draw(ALLOWED)}
    if draw(BOOLEANS):
        config["discard"] = "new"
    for name in sorted(draw(CHOSEN)):
        config[name] = draw(OPTIONS[name])
    if "max_bytes" in config and "max_msgs_per_subject" in config and "discard" not in config:
        del config["max_bytes"]  # eviction inside a command may then differ from one by one (see test_model)
    if config.get("discard") == "new" and "max_msgs_per_subject" in config:
        config["discard_new_per_subject"] = draw(BOOLEANS)
    return config


CONFIGS = configs()


@st.composite
def steps(draw: st.DrawFn) -> tuple[int, tuple[Any, ...]]:
    """The time before a step, and the step."""
    delay, kind = draw(DELAYS), draw(KINDS)
    if kind == "atomic":
        return delay, draw_batch(draw)
    if kind == "publish":
        messages = [(draw(SUBJECT), HEADERS.draw(draw), draw(PAYLOADS)) for _ in range(draw(PUBLISH_SIZES))]
        return delay, (kind, messages)
    if kind == "delete":
        return delay, (kind, draw(SEQS))
    if kind == "purge":
        return delay, (kind, *draw(PURGES), 0)
    return delay, (kind, draw(CONFIGS)) if kind == "update" else (kind,)


@pytest.mark.parametrize("kind_of_store", [Naive, Block])
@settings(max_examples=150, deadline=None)
@given(config=CONFIGS, history=st.lists(steps(), max_size=20))
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
                assert {m.seq: m[1:] for m in machines[0].store.queries.scan(b">", 1)} == before, (
                    "part of a batch is visible"
                )
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
        assert {m.seq: m[1:] for m in machines[0].store.queries.scan(b">", 1)} == model.messages
        assert machines[0].store.last_seq == model.last_seq
