"""Random commands: two replicas, one of which restarts now and then, stay identical in every byte, and do what a naive
model of the rules does, message by message."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jetcluster.errors import ApiError
from jetcluster.model import times
from jetcluster.store.batch import Batch
from jetcluster.store.block_store import BlockStore
from jetcluster.stream.apply.machine import StreamMachine
from jetcluster.stream.fields import nats_fields
from jetcluster.stream.log import commands
from jetcluster.stream.ports import Counted, Duplicate, PublishResult, Result
from jetcluster.stream.rules import StreamRules
from testkit.twins.mem_kv import MemKv
from tests.unit.store.shipping import ship
from tests.unit.stream.fake_store import NaiveStore, block, fits

SUBJECTS = [b"a.x", b"a.y", b"b"]
T0 = 1_700_000_000_000_000_000
SECOND = 1_000_000_000
MILLISECOND = 1_000_000
Message = tuple[int, bytes, bytes, bytes]
"""Time, subject, header block, payload."""


def record(subject: bytes, headers: bytes, payload: bytes) -> int:
    """Bytes of a stored message, as `max_bytes` counts them."""
    return 30 + len(subject) + len(headers) + len(payload) + (4 if headers else 0)


@dataclass
class Model:
    """The rules once more, without batches: every message is checked, stored and followed by evictions."""

    config: dict[str, Any]
    messages: dict[int, Message] = field(default_factory=dict)
    last_seq: int = 0
    clock: int = 0
    ids: dict[bytes, tuple[int, int]] = field(default_factory=dict)
    last_id: bytes = b""
    ends: dict[int, int] = field(default_factory=dict)
    """Sequence of a message with a TTL -> the time when it expires."""
    schedules: dict[int, int] = field(default_factory=dict)
    """Sequence of a schedule -> the time when it is due."""

    def limit(self, key: str) -> int:
        return max(self.config.get(key) or 0, 0)

    def sweep(self, now: int, *, looks: bool) -> None:
        """Forgets the ids before the window for good, if the command `looks` at ids: a longer window that comes later
        does not bring them back."""
        window = self.limit("duplicate_window")
        if window and looks:
            self.ids = {msg_id: found for msg_id, found in self.ids.items() if found[1] > now - window}

    def publish(self, ts: int, messages: list[tuple[bytes, bytes, bytes]]) -> list[object]:
        base = max(ts, self.clock + 1)
        self.sweep(base, looks=any(headers for _, headers, _ in messages))
        self.clock = base + len(messages) - 1
        stored, verdicts = 0, []
        for subject, headers, payload in messages:
            before = self.last_seq
            if "subject_transform" in self.config and subject.startswith(b"a."):
                subject = b"b." + subject[2:]
            verdicts.append(self.publish_one(base, base + stored, subject, headers, payload))
            stored += self.last_seq - before
        return verdicts

    def publish_one(self, now: int, ts: int, subject: bytes, headers: bytes, payload: bytes) -> object:
        get = nats_fields(headers).get
        if self.config.get("sealed"):
            return 10109
        if 0 < self.limit("max_msg_size") < len(headers) + len(payload):
            return 10054
        counting, incr = self.config.get("allow_msg_counter"), get(b"Nats-Incr")
        if incr and not counting:
            return 10168
        if incr and payload:
            return 10170
        if incr and any(b"Expected" in name or b"Rollup" in name for name in nats_fields(headers)):
            return 10171
        if get(b"Nats-TTL") and not self.config.get("allow_msg_ttl"):
            return 10166
        msg_id, window = get(b"Nats-Msg-Id"), self.limit("duplicate_window")
        if msg_id and window and msg_id in self.ids and self.ids[msg_id][1] > now - window:
            return Duplicate(self.ids[msg_id][0])
        total: int | None = None
        if counting:
            last = max((s for s, m in self.messages.items() if m[1] == subject), default=0)
            if not incr:
                return 10169
            if last and not self.messages[last][3].startswith(b'{"val"'):
                return 10172
            total = int(incr) + (json.loads(self.messages[last][3])["val"] and int(
                json.loads(self.messages[last][3])["val"]
            ) if last else 0)  # fmt: skip
            payload = b'{"val":"%d"}' % total
            if 0 < self.limit("max_msg_size") < len(headers) + len(payload):
                return 10054
        headers = self.rewritten(headers)
        expected = get(b"Nats-Expected-Last-Sequence")
        if expected and int(expected) != self.last_seq:
            return 10071
        expected = get(b"Nats-Expected-Last-Subject-Sequence")
        if expected:
            of = get(b"Nats-Expected-Last-Subject-Sequence-Subject") or subject
            if int(expected) != max((s for s, m in self.messages.items() if fits(of, m[1])), default=0):
                return 10071
        if get(b"Nats-Schedule"):
            if not self.config.get("allow_msg_schedules"):
                return 10188
            if subject == TARGET:
                return 10190
            if get(b"Nats-Rollup") == b"all":
                return 10192
        rollup = nats_fields(headers).get(b"Nats-Rollup")
        if rollup and not self.config.get("allow_rollup_hdrs"):
            return 10111
        if self.config.get("discard") == "new" and not self.has_room(subject, headers, payload, rollup):
            return 10077
        expected = get(b"Nats-Expected-Last-Msg-Id")
        if expected and expected != self.last_id:
            return 10070
        seq = self.store(ts, subject, headers, payload)
        if msg_id and window:
            self.ids[msg_id] = (seq, now)
        return seq if total is None else Counted(seq, b"%d" % total)

    def rewritten(self, headers: bytes) -> bytes:
        fields = nats_fields(headers)
        least = self.limit("subject_delete_marker_ttl") // SECOND
        ttl = fields.get(b"Nats-TTL", b"never")
        if least and self.limit("max_msgs_per_subject") != 1 and ttl != b"never" and int(ttl) < least:
            headers = headers.replace(b"Nats-TTL: %b\r\n" % ttl, b"")[:-2] + b"Nats-TTL: %d\r\n\r\n" % least
        if b"Nats-Schedule" in fields and b"Nats-Rollup" not in fields:
            headers = headers[:-2] + b"Nats-Rollup: sub\r\n\r\n"
        return headers

    def store(self, ts: int, subject: bytes, headers: bytes, payload: bytes) -> int:
        fields = nats_fields(headers)
        self.last_seq += 1
        seq = self.last_seq
        self.last_id = fields.get(b"Nats-Msg-Id", b"")
        self.messages[seq] = (ts, subject, headers, payload)
        ttl = fields.get(b"Nats-TTL")
        if ttl and ttl != b"never":
            end = ts + int(ttl.rstrip(b"s")) * SECOND
            self.ends[seq] = -(-end // MILLISECOND) * MILLISECOND
        if b"Nats-Schedule" in fields:
            self.schedules[seq] = rounded(ts) + SECOND if b"@every" in headers else T0 + 2 * SECOND
        self.evict()  # as nats-server: limits while storing, the rollup after it
        rollup = fields.get(b"Nats-Rollup") if self.config.get("allow_rollup_hdrs") else None
        if rollup:
            self.messages = {
                s: m for s, m in self.messages.items()
                if s == self.last_seq or (rollup == b"sub" and m[1] != subject)
            }  # fmt: skip
        if fields.get(b"Nats-Schedule-Next") == b"purge":
            self.messages = {s: m for s, m in self.messages.items() if m[1] != fields[b"Nats-Scheduler"]}
        return self.last_seq

    def has_room(self, subject: bytes, headers: bytes, payload: bytes, rollup: bytes | None) -> bool:
        of_subject = sum(m[1] == subject for m in self.messages.values())
        at_limit = 0 < self.limit("max_msgs_per_subject") <= of_subject
        if at_limit and self.config.get("discard_new_per_subject") and not rollup:
            return False
        size = record(subject, headers, payload)
        if not self.limit("max_bytes") or self.bytes() + size <= self.limit("max_bytes"):
            return at_limit or not 0 < self.limit("max_msgs") <= len(self.messages)
        oldest = next((record(*m[1:]) for _, m in sorted(self.messages.items()) if m[1] == subject), 0)
        return at_limit and size <= oldest

    def bytes(self) -> int:
        return sum(record(*m[1:]) for m in self.messages.values())

    def evict(self) -> None:
        per_subject = self.limit("max_msgs_per_subject")
        for subject in {m[1] for m in self.messages.values()}:
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
        if kind == "delete":
            if self.config.get("sealed"):
                return 10109
            if not 0 < args[0] <= self.last_seq:
                return 10057
            return 1 if self.messages.pop(args[0], None) else 10043
        if kind == "fire":
            return self.fire(ts)
        before = len(self.messages)
        if kind == "purge":
            refused = self.purge(*args)
            return refused or before - len(self.messages)
        if kind == "update":
            self.config = args[0]
            if not self.limit("duplicate_window"):
                self.ids.clear()
            self.evict()
        return before - len(self.messages) + self.expire(ts)

    def expire(self, now: int) -> int:
        max_age = self.limit("max_age")
        doomed = {seq for seq, end in self.ends.items() if end <= now}
        self.ends = {seq: end for seq, end in self.ends.items() if end > now}
        if max_age:
            doomed |= {s for s, m in self.messages.items() if m[0] <= now - max_age and b"TTL: never" not in m[2]}
        doomed &= self.messages.keys()
        marked: list[bytes] = []
        for seq in sorted(doomed):
            _, subject, headers, _ = self.messages.pop(seq)
            if b"Marker-Reason" not in headers and all(m[1] != subject for m in self.messages.values()):
                marked.append(subject)
        ttl = self.limit("subject_delete_marker_ttl") // SECOND
        if marked and ttl and not self.config.get("sealed"):
            headers = block("Nats-Marker-Reason: MaxAge", f"Nats-TTL: {ttl}s", "Nats-Rollup: sub")
            self.store_own([(subject, headers, b"") for subject in marked])
        return len(doomed)

    def fire(self, now: int) -> int:
        made = []
        for due, seq in sorted((due, seq) for seq, due in self.schedules.items() if due <= now):
            del self.schedules[seq]
            if seq not in self.messages or any(
                s > seq and m[1] == self.messages[seq][1] for s, m in self.messages.items()
            ):
                continue
            _, subject, headers, payload = self.messages[seq]
            following = "purge"
            if b"@every" in headers:
                after = rounded(due) + SECOND if rounded(due) + SECOND >= now else rounded(now) + SECOND
                self.schedules[seq] = after
                following = times.rfc3339(after)
            own = ["X: 1"] if b"\nX: 1" in headers else []
            made.append(
                (
                    TARGET,
                    block(*own, f"Nats-Scheduler: {subject.decode()}", f"Nats-Schedule-Next: {following}"),
                    payload,
                )
            )
        return self.store_own(made)

    def store_own(self, messages: list[tuple[bytes, bytes, bytes]]) -> int:
        stored, base = 0, self.clock + 1
        self.clock += len(messages)
        for subject, headers, payload in messages:
            rollup = nats_fields(headers).get(b"Nats-Rollup")
            if self.config.get("discard") != "new" or self.has_room(subject, headers, payload, rollup):
                self.store(base + stored, subject, headers, payload)
                stored += 1
        return stored

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


TARGET = b"b.target"


def rounded(ts: int) -> int:
    return (ts + SECOND // 2) // SECOND * SECOND


PROFILES = {
    "plain": ({}, ["Nats-Msg-Id"]),
    "ttl": ({"allow_msg_ttl": True, "max_age": 2 * SECOND}, ["Nats-TTL"]),
    "markers": ({"subject_delete_marker_ttl": SECOND}, ["Nats-TTL"]),
    "counter": ({"allow_msg_counter": True}, ["Nats-Incr"]),
    "schedules": ({"allow_msg_schedules": True}, ["Nats-Schedule"]),
}
"""Name of a theme -> a part of every configuration of the history, and headers that its messages mostly have."""


SMALL = [str(number) for number in range(13)]
FIELDS = {
    "Nats-Msg-Id": "12345678",
    "Nats-Expected-Last-Sequence": SMALL,
    "Nats-Expected-Last-Subject-Sequence": SMALL,
    "Nats-Expected-Last-Subject-Sequence-Subject": ["a.x", "a.*", "b", ">"],
    "Nats-Expected-Last-Msg-Id": "1234",
    "Nats-Rollup": ["sub", "all"],
    "Nats-TTL": ["1", "2", "5", "never"],
    "Nats-Incr": ["1", "-7", "1000"],
    "Nats-Schedule": ["@every 1s", "@at 2023-11-14T22:13:22Z"],
    "X": "1",
}
"""Header names and the values they have."""


class HeaderBlocks:
    """Header blocks of at most two of `fields`, mostly none or of the names in `usual`, in two draws. A strategy
    made for every draw costs more than the test of what it draws."""

    def __init__(self, usual: Sequence[str], fields: Mapping[str, Sequence[str]]) -> None:
        self._fields = fields
        names = [*usual, *fields]
        pairs = [tuple(sorted({one, other} - {""})) for one in names for other in names]
        few = [(), *((name,) if name else () for name in names)] * (len(names) // 2)
        self._names = st.sampled_from(few + pairs)
        self._blocks: dict[tuple[str, ...], st.SearchStrategy[bytes]] = {}

    def draw(self, draw: st.DrawFn) -> bytes:
        names = draw(self._names)
        if not names:
            return b""
        if names not in self._blocks:
            self._blocks[names] = self._having(names)
        return draw(self._blocks[names])

    def _having(self, names: tuple[str, ...]) -> st.SearchStrategy[bytes]:
        known = set(names)
        if "Nats-Expected-Last-Subject-Sequence-Subject" in known:
            known.add("Nats-Expected-Last-Subject-Sequence")
        more = [f"Nats-Schedule-Target: {TARGET.decode()}"] if "Nats-Schedule" in known else []
        lines = [[f"{name}: {value}" for value in self._fields[name]] for name in sorted(known)]
        return st.sampled_from([block(*each, *more) for each in itertools.product(*lines)])


HEADERS = {profile: HeaderBlocks(["", "", *usual * 9], FIELDS) for profile, (_, usual) in PROFILES.items()}
"""Profile -> now and then an expectation that has a fair chance to hold, too."""


def consistent(config: dict[str, Any]) -> dict[str, Any]:
    """Takes out what `model.stream_rules` refuses, so that no replica ever sees it."""
    if "allow_msg_counter" in config:
        for name in ("allow_msg_schedules", "allow_msg_ttl", "subject_delete_marker_ttl"):
            config.pop(name, None)
    if "subject_delete_marker_ttl" in config:
        config |= {"allow_msg_ttl": True, "allow_rollup_hdrs": True}
    if "allow_msg_schedules" in config:
        config["allow_rollup_hdrs"] = True
    if "allow_msg_counter" in config or "allow_msg_schedules" in config:
        config.pop("discard", None)
        config.pop("discard_new_per_subject", None)
    if "max_bytes" in config and "max_msgs_per_subject" in config and "discard" not in config:
        # Evicting for bytes before or after a message of the same command was replaced are different answers, both
        # right: a command is stored in one step, so ours keeps more. The model is message by message.
        del config["max_bytes"]
    return config


def updated(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """`new`, with what an update cannot change left as it was."""
    lasting = ("allow_msg_counter", "allow_msg_schedules", "allow_msg_ttl")
    kept = {name: old[name] for name in lasting if name in old}
    return consistent({key: value for key, value in new.items() if key != "allow_msg_counter"} | kept)


WINDOWS = st.sampled_from([0, 20, 1000])
OPTIONS: dict[str, st.SearchStrategy[Any]] = {
    "max_msgs": st.integers(1, 8),
    "max_msgs_per_subject": st.integers(1, 3),
    "max_bytes": st.integers(60, 400),
    "max_age": st.sampled_from([*range(10, 61), *[2 * SECOND] * 51]),
    "allow_msg_ttl": st.just(True),
    "subject_delete_marker_ttl": st.sampled_from([SECOND, 2 * SECOND]),
    "allow_msg_counter": st.just(True),
    "allow_msg_schedules": st.just(True),
    "subject_transform": st.just({"src": "a.*", "dest": "b.$1"}),
    "max_msg_size": st.just(40),
    "allow_rollup_hdrs": st.just(True),
    "discard": st.just("new"),
    "sealed": st.sampled_from([False, False, False, True]),
}
CHOSEN = st.sets(st.sampled_from(sorted(OPTIONS)), max_size=4)
DIGITS = st.integers(0, 9)
KINDS = st.sampled_from(["publish"] * 6 + ["expire"] * 2 + ["delete", "purge", "update", "restart", "install", "fire"])
BOOLEANS = st.booleans()
COUNTS = st.integers(1, 6)
SUBJECT = st.sampled_from(SUBJECTS)
PAYLOADS = st.integers(-20, 45).map(lambda size: b"x" * max(size, 0))
SEQS = st.integers(0, 12)
PURGES = st.tuples(
    st.sampled_from([b"", b">", b"a.*", b"a.x", b"zz"]),
    st.sampled_from([0, 0, 2, 5, 20]),
    st.sampled_from([0, 0, 0, 1, 3]),
)
DELAYS = st.sampled_from([*range(-5, 31), *[SECOND // 3, SECOND, 3 * SECOND] * 12])


def draw_config(draw: st.DrawFn, profile: str) -> dict[str, Any]:
    config: dict[str, Any] = {"name": "S", "duplicate_window": draw(WINDOWS)}
    config["subjects"] = ["a.*", "b.>", "b"]
    for name in sorted(draw(CHOSEN)):
        config[name] = draw(OPTIONS[name])
    if draw(DIGITS):
        config |= PROFILES[profile][0]
    consistent(config)
    if config.get("discard") == "new" and "max_msgs_per_subject" in config:
        config["discard_new_per_subject"] = draw(BOOLEANS)
    return config


def draw_step(draw: st.DrawFn, profile: str) -> tuple[Any, ...]:
    kind = draw(KINDS)
    if kind == "publish":
        plain = draw(BOOLEANS)
        headers = HEADERS[profile]
        return kind, [
            (draw(SUBJECT), b"" if plain else headers.draw(draw), draw(PAYLOADS)) for _ in range(draw(COUNTS))
        ]
    if kind == "delete":
        return kind, draw(SEQS)
    if kind == "purge":
        return (kind, *draw(PURGES))
    return (kind, draw_config(draw, profile)) if kind == "update" else (kind,)


@st.composite
def steps(draw: st.DrawFn, profile: str) -> tuple[int, tuple[Any, ...]]:
    """The time before a step, and the step."""
    return draw(DELAYS), draw_step(draw, profile)


HISTORIES = {profile: st.lists(steps(profile), min_size=5, max_size=30) for profile in sorted(PROFILES)}
PROFILE = st.sampled_from(sorted(PROFILES))


@st.composite
def scenarios(draw: st.DrawFn) -> tuple[dict[str, Any], list[tuple[int, tuple[Any, ...]]]]:
    """A configuration, then steps with the time before each."""
    profile = draw(PROFILE)
    return draw_config(draw, profile), draw(HISTORIES[profile])


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

    def reopen(self) -> BlockStore:
        self.kv.commit()
        self.store = BlockStore(self.kv, 7, memory=False)
        return self.store

    def install(self, source: Block) -> BlockStore:
        """The snapshot of another replica in place of all that is here."""
        ship(source.store.export(), self.store, self.kv)
        return self.store

    def everything(self) -> object:
        self.kv.commit()
        return list(self.kv.scan(b"", b"\xff" * 64)), self.store.state


class Naive:
    def __init__(self) -> None:
        self.store = NaiveStore()
        self.reopen, self.everything = self.store.reopen, self.store.everything

    def install(self, source: Naive) -> BlockStore:
        return self.reopen()


@pytest.mark.parametrize("kind_of_store", [Naive, Block])
@settings(max_examples=200, deadline=None)
@given(scenario=scenarios())
def test_replicas_agree_with_each_other_and_with_the_model(
    kind_of_store: type[Naive] | type[Block], scenario: tuple[dict[str, Any], list[tuple[int, tuple[Any, ...]]]]
) -> None:
    config, history = scenario
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
        if kind == "install":
            machines[1] = StreamMachine("S", rules, nodes[1].install(nodes[0]))  # type: ignore[arg-type]
            continue
        if kind == "update":
            args = [updated(model.config, *args)]
        command = machines[0].fire_command(now) if kind == "fire" else encode(kind, now, *args)
        if command is None:
            assert model.config.get("sealed") or all(due > now for due in model.schedules.values())
            continue
        results = [machine.apply(index, 1, command) for machine in machines]
        assert results[0] == results[1]
        assert plain(results[0]) == model.apply(kind, now, *args)
        assert nodes[0].everything() == nodes[1].everything()
        assert machines[0].hash == machines[1].hash
        assert {m.seq: m[1:] for m in machines[0].store.queries.scan(b">", 1)} == model.messages
        assert machines[0].store.last_seq == model.last_seq
