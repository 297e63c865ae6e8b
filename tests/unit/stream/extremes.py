"""Commands with extreme and random fields, one builder per kind (`COMMANDS`) and per op of a turn (`OPS`).

Half of what comes out is sound, so that there is a state for the rest to do harm to. All of it is what could stand in a
log: a leader of any version wrote it, or an attacker got it past one.
"""

from __future__ import annotations

import json
import struct
import zlib
from functools import partial
from random import Random
from typing import Any

from jetcluster.consumer.state import turn
from jetcluster.store.batch import MAX_SUBJECT, Batch
from jetcluster.stream.log import bodies, commands
from jetcluster.stream.log.bodies import Run, encode_runs
from jetcluster.stream.log.commands import Firing
from jetcluster.stream.log.fast_parts import FastPart, FastRun

T0 = 1_700_000_000_000_000_000
U64 = 1 << 64
NUMBERS = (0, 1, 2, 3, 7, 1 << 31, 1 << 32, 1 << 53, (1 << 62) - 1, 1 << 62, (1 << 63) - 1, 1 << 63, U64 - 2, U64 - 1)
ODD: tuple[Any, ...] = (
    *NUMBERS, -1, -(1 << 63), 1 << 70, -(1 << 70), 0.5, 1e300, float("nan"), True, None, "", "x", "-1", "9" * 30, "\0",
    "\ud800", "a" * 70_000, "ä" * 40_000, [], {}, [[]], [None], {"a": {"b": [1]}}, "a.>", "*", "1h", "50%",
)  # fmt: skip
MANY = 2000
"""Tokens: as many as the longest line of a client has room for."""
SUBJECTS = (b"a.x", b"a.y", b"a.z", b"b", b"c.d.e")
ODD_SUBJECTS = (
    b"", b">", b"*", b"a..b", b".", b"a.", b"a b", b"\0", b"a.\0", b"\xff\xfe", b"a." * 100 + b"x", b"x" * MAX_SUBJECT,
    b"$JS.API.X", b"a.*", b"a.>", b"a.>.b", b"_", "ä.ö".encode(),
    b"a" + b".x" * MANY, b"a" + b".x" * (MANY - 1) + b".y", b"a" + b".*" * MANY, b"a" + b".*.x" * (MANY // 2),
)  # fmt: skip
NAMES = ("c1", "c2", "c3")
OWNERS = (b"ownerAAA", b"ownerBBB")
HEADER_VALUES = {
    b"Nats-Msg-Id": (b"1", b"2", b"x" * 66_000, b"\0", b""),
    b"Nats-Expected-Last-Sequence": (b"0", b"1", b"%d" % (U64 - 1), b"9" * 400, b"-1", b"x"),
    b"Nats-Expected-Last-Subject-Sequence": (b"0", b"1", b"%d" % U64, b"x"),
    b"Nats-Expected-Last-Subject-Sequence-Subject": (
        b"a.>", b"a.x", b"*", b"..", b"\xff", b"a" + b".*" * MANY, b"a" + b".*.x" * (MANY // 2), b"a.*" * (MANY // 2),
    ),
    b"Nats-Expected-Last-Msg-Id": (b"1", b"\xff"),
    b"Nats-Expected-Stream": (b"S", b"T"),
    b"Nats-TTL": (b"1", b"1s", b"never", b"0", b"-1", b"%d" % ((1 << 63) - 1), b"%d" % (1 << 63), b"2540400h", b"1e9"),
    b"Nats-Rollup": (b"sub", b"all", b"SUB", b"x"),
    b"Nats-Incr": (b"1", b"-1", b"+0", b"9" * 4096, b"-" + b"9" * 5000, b"1.5", b"x"),
    b"Nats-Schedule": (
        b"@every 1s", b"@every 1ns", b"@every 9999999h", b"@at 2040-01-01T00:00:00Z", b"@at 9999-12-31T23:59:59Z",
        b"@at 0001-01-01T00:00:00Z", b"* * * * * *", b"0 0 0 30 2 *", b"@daily", b"x",
    ),
    b"Nats-Schedule-Time-Zone": (b"Europe/Berlin", b"Local", b"x", b"../x"),
    b"Nats-Schedule-Target": (b"a.y", b"b", b"q", b">", b""),
    b"Nats-Schedule-Source": (b"a.z", b"a.>", b"b"),
    b"Nats-Schedule-TTL": (b"1s", b"never", b"0", b"%d" % (1 << 62)),
    b"Nats-Schedule-Rollup": (b"sub", b"all"),
    b"Nats-Schedule-Next": (b"purge", b"x"),
    b"Nats-Scheduler": (b"a.x", b"a.>", b"\xff"),
    b"Nats-Batch-Id": (b"x",),
    b"Nats-Stream-Source": (b"UP 1 > >", b"x", b"UP 7 > > a.x id", b"UP 1 > > \xff\xed\xa0\x80 id"),
    b"Nats-Counter-Sources": (
        b'{"UP":{"a.x":"5"}}', b"x", b"[]", b"{}", b'{"UP":null,"V":{"b":"-3"}}', b'{"UP":{"a.x":"?"}}',
        b'{"a":' * 5000,
        b'{"UP":{"a.x":"' + b"9" * 4096 + b'"}}', b'{"UP":{"\\ud800":"1","' + b"y" * 32_000 + b'":"1"}}', b"{" * 40_000,
    ),
    b"Nats-Marker-Reason": (b"MaxAge",),
    b"KV-Operation": (b"PURGE", b"DEL"),
}  # fmt: skip
PAYLOADS = (
    b"", b"x", b'{"val":"5"}', b'{"val":"-12"}', b'{"val":"\\ud800"}', b'{"val":"' + b"9" * 4096 + b'"}', b'{"val":5}',
    b"[" * 500, b"y" * 5000,
)  # fmt: skip
COUNTING = {
    "allow_msg_counter": True, "retention": "limits",
    "sources": [{"name": "UP"}, {"name": "UP", "filter_subject": "a"}],
}  # fmt: skip
CONFIG = {
    "max_msgs": (5, 100), "max_bytes": (500, 100_000), "max_msgs_per_subject": (1, 3), "max_msg_size": (200,),
    "max_age": (1_000_000_000, 3_600_000_000_000), "duplicate_window": (1_000_000_000, 120_000_000_000),
    "discard": ("new", "old"), "discard_new_per_subject": (True,), "retention": ("limits", "interest", "workqueue"),
    "allow_rollup_hdrs": (True,), "allow_atomic": (True,),
    "allow_batched": (True,), "allow_msg_ttl": (True,), "allow_msg_counter": (True,),
    "allow_msg_schedules": (True,), "subject_delete_marker_ttl": (1_000_000_000,), "deny_purge": (True,),
    "deny_delete": (True,), "sealed": (True,), "restoring": (True,), "first_seq": (10, 1 << 62), "num_replicas": (1, 3),
    "mirror": ({"name": "UP"},), "sources": ([{"name": "UP"}], [{"name": "UP", "filter_subject": "a"}, {"name": "V"}]),
    "subject_transform": (
        {"src": "a.*", "dest": "b.{{wildcard(1)}}"}, {"src": ">", "dest": "z." + "y" * 65_534 + ".>"},
        {"src": "a.*", "dest": "{{random(3)}}"},
    ),
    "republish": ({"src": ">", "dest": "r.>"}, {"src": "a.*", "dest": "r." + "{{wildcard(1)}}" * 50}),
    "max_consumers": (1, 5), "subjects": (["a.>", "b", "c.>"],), "metadata": ({"k": "v"},),
    "retention_guard": (
        {"consumer": "c1", "max_bytes": 2000, "max_age": 0, "discard": "new"},
        {"consumer": "c1", "max_bytes": 600, "max_age": 2_000_000_000, "discard": "old"},
        {"consumer": "", "max_bytes": 1 << 62, "max_age": 1 << 62, "discard": "old"},
    ),
}  # fmt: skip
CONSUMER = {
    "deliver_policy": ("all", "last", "new", "by_start_sequence", "by_start_time", "last_per_subject"),
    "ack_policy": ("none", "all", "explicit", "flow_control"), "opt_start_seq": NUMBERS, "opt_start_time_ns": NUMBERS,
    "ack_wait": (1, 30_000_000_000, (1 << 63) - 1), "backoff": ([1, 2], [1 << 62]), "max_deliver": (1, 5, -1),
    "filter_subject": ("a.x", "a.>", ">", "a" + ".*" * MANY), "filter_subjects": (["a.x", "b"],),
    "max_ack_pending": (1, -1),
    "max_waiting": (1, 512), "num_replicas": (0, 1, 3), "priority_groups": (["g"],), "priority_policy": ("overflow",),
    "pause_until_ns": NUMBERS, "direct": (True,), "durable_name": ("c1",), "sample_freq": ("50%", "x"),
    "deliver_subject": ("d",), "replay_policy": ("original",), "inactive_threshold": (1, 1 << 62),
    "dead_letter": ({"subject": "dead.{consumer}", "on_term": True}, {"subject": 5}, {"x": 1}),
}  # fmt: skip


class Extremes:
    """`command` draws from `random`. `last` is about the stream's last sequence, `ts` about its clock."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.pick = random.choice
        self.ts = T0
        self.last = 0
        self.serials: dict[bytes, tuple[int, int]] = {}
        self.counting = False
        """The last configuration is that of a counter with sources."""
        self.read: dict[bytes, int] = {}
        """Link key -> sequence up to which it has read, if nothing was wrong with what it brought."""

    def odd(self, chance: float = 0.3) -> bool:
        return self.random.random() < chance

    def command(self, kind: int) -> list[bytes]:
        """Commands that belong together; mostly one."""
        found = COMMANDS[kind](self)
        if self.odd(0.15):
            found = [*found[:-1], self.spoilt(found[-1], may_change=kind != commands.BATCH_PART)]
        return found

    def spoilt(self, raw: bytes, *, may_change: bool) -> bytes:
        """Cut off, longer, or with some bytes changed; never kind or flags."""
        head, body = raw[: commands.HEAD.size], bytearray(raw[commands.HEAD.size :])
        how = self.random.randrange(4 if may_change else 2)
        if how == 0:
            return head + bytes(body[: self.random.randrange(len(body) + 1)])
        if how == 1:
            return head + bytes(body) + self.random.randbytes(self.random.choice((1, 7, 8, 100)))
        if how == 2:
            return head + self.random.randbytes(len(body) % 300)
        for _ in range(self.random.randint(1, 4) if body else 0):
            body[self.random.randrange(len(body))] = self.random.randrange(256)
        return sealed(head + bytes(body))

    def time(self) -> int:
        self.ts += self.random.choice((0, 1, 1000, 2_000_000_000))
        return self.number() if self.odd(0.04) else self.ts

    def number(self) -> int:
        return self.pick(NUMBERS)

    def seq(self) -> int:
        if self.odd():
            return self.number()
        return max(0, min(U64 - 1, self.last + self.random.randint(-6, 3)))

    def seqs(self) -> list[int]:
        found = [self.seq() for _ in range(self.random.randrange(5))]
        return found if self.odd() else sorted(set(found))

    def subject(self) -> bytes:
        return self.pick(ODD_SUBJECTS if self.odd(0.15) else SUBJECTS)

    def headers(self) -> bytes:
        if self.counting and self.odd(0.8):
            names = [b"Nats-Incr"]
            names += self.random.sample((b"Nats-Stream-Source", b"Nats-Counter-Sources"), self.pick((0, 1, 1, 2)))
            lines = [b"%b: %b\r\n" % (name, self.pick(HEADER_VALUES[name])) for name in names]
            return b"NATS/1.0\r\n%b\r\n" % b"".join(lines)
        if self.odd(0.5):
            return b""
        if self.odd(0.05):
            return self.pick((b"x", b"NATS/1.0", b"NATS/1.0\r\nNats-TTL", b"\r\nNats-:\r\n\r\n", b"y" * 70_000))
        names = self.random.sample(sorted(HEADER_VALUES), self.random.choice((1, 1, 2, 3)))
        lines = [b"%b: %b\r\n" % (name, self.pick(HEADER_VALUES[name])) for name in names]
        return b"NATS/1.0\r\n%b\r\n" % b"".join(lines)

    def batch(self, count: int = 0) -> bytes:
        count = count or self.pick((1, 1, 1, 2, 5))
        subjects = [self.subject() or b"_" for _ in range(count)]
        headers = [self.headers() for _ in range(count)] if self.odd(0.95 if self.counting else 0.6) else []
        raw = Batch.encode(subjects, headers, [self.pick(PAYLOADS) for _ in range(count)])
        self.last += count
        return self.spoilt_batch(raw) if self.odd(0.06) else raw

    def spoilt_batch(self, raw: bytes) -> bytes:
        changed = bytearray(raw)
        for _ in range(self.random.randint(1, 3)):
            changed[self.random.randrange(2, len(changed))] = self.random.randrange(256)  # not version and flags
        return sealed_batch(bytes(changed))

    def runs(self) -> bytes:
        runs: list[Run] = []
        seq = self.last
        for _ in range(self.random.randrange(4)):
            seq = self.number() if self.odd(0.2) else seq + self.random.choice((1, 2, 9))
            ts = self.number() if self.odd(0.1) else self.ts
            batch = Batch.of(*zip(*[(self.subject() or b"_", self.headers(), b"p")] * self.pick((1, 3)), strict=True))
            runs.append(Run(seq % U64, self.pick((1, 1, -1)) * (ts % (1 << 63)), batch))
            seq += batch.count - 1
        self.last = max(self.last, seq % U64)
        return encode_runs(runs)

    def fields(self, of: dict[str, tuple[Any, ...]], most: int) -> dict[str, Any]:
        names = self.random.sample(sorted(of), self.random.randrange(most))
        found = {name: self.pick(of[name]) for name in names}
        if self.odd(0.2) and found:
            found[self.pick(names)] = self.pick(ODD)
        if self.odd(0.05) and found:
            value = found[self.pick(names)]
            inner = value[0] if isinstance(value, list) and value and isinstance(value[0], dict) else value
            if isinstance(inner, dict) and inner:
                inner = dict(inner)
                inner[self.pick(sorted(inner))] = self.pick(ODD)
                found[self.pick(names)] = inner
        return found

    def body(self, fields: dict[str, Any]) -> bytes:
        if self.odd(0.1):
            fields[self.pick(sorted(fields))] = self.pick(ODD)
        if self.odd(0.05):
            del fields[self.pick(sorted(fields))]
        if self.odd(0.02):
            return self.pick((b"", b"[]", b"1", b"[" * 5000, b'{"a":' * 5000, b'"' + b"[" * 5000 + b'"', b"\xff"))
        return json.dumps(fields).encode()

    def head(self, kind: int, flags: tuple[int, ...] = (0,)) -> bytes:
        return commands.HEAD.pack(kind, self.pick(flags), self.time())


def sealed(command: bytes) -> bytes:
    """With checksums that are right: that a leader writes them so is nothing that apply looks at again."""
    try:
        found: Any = commands.decode(command)
    except commands.CommandError:
        return command
    batches = [run.batch for run in getattr(found, "runs", ())]
    batches += [one for one in map(partial(getattr, found), ("batch", "body"), (None, None)) if isinstance(one, Batch)]
    for batch in batches:
        command = command.replace(batch.raw, sealed_batch(batch.raw))
    return command


def sealed_batch(raw: bytes) -> bytes:
    if len(raw) < 12:
        return raw
    return raw[:4] + struct.pack("<I", zlib.crc32(raw[12:], zlib.crc32(raw[:4]))) + raw[8:]


def _publish(x: Extremes) -> list[bytes]:
    return [commands.encode_publish(x.time(), x.batch())]


def _fast_publish(x: Extremes) -> list[bytes]:
    """In the order of the command, as a leader writes it, or with runs that overlap and go beyond it."""
    batch = x.batch()
    messages = struct.unpack_from("<H", batch + b"....", 2)[0] or 1
    parts, at = [], 0
    for _ in range(x.random.randint(1, 3)):
        runs = []
        for _ in range(x.random.randint(1, 3)):
            count = x.random.randint(0, 3)
            start = x.pick((0, messages, (1 << 32) - 1)) if x.odd(0.1) else min(at, max(0, messages - count))
            seq = x.number() if x.odd(0.2) else x.random.randint(1, 5)
            runs.append(FastRun(start, count, seq))
            at += count
        stem, batch_id = x.pick((b"_INBOX.a.id", b"", b"s" * 65_535)), x.pick((b"id", b"other", b"", b"\xff" * 65_535))
        ends = x.odd(0.3)
        runs = runs if ends == x.odd(0.1) else []
        parts.append(FastPart(batch_id, stem, x.pick((0, 1, 100, 65_535)), x.odd(0.5), x.odd(0.3), runs, ends))
    if x.odd(0.2):
        return [commands.encode_fast(x.time(), [part._replace(runs=(), ends=True) for part in parts], b"")]
    return [commands.encode_fast(x.time(), parts, batch)]


def _batch_part(x: Extremes) -> list[bytes]:
    data = x.batch()
    number = x.pick((0, 0, 1, 65_535))
    part = x.head(commands.BATCH_PART) + struct.pack("<H", number) + data[: len(data) // 2]
    if x.odd(0.5):
        return [part]
    rest = struct.pack("<BxH", x.pick((0, 1, 2, 3)), x.pick((1, 1, 2, 65_535))) + data[len(data) // 2 :]
    return [part, x.head(commands.BATCH_COMMIT) + rest]


def _batch_commit(x: Extremes) -> list[bytes]:
    return [x.head(commands.BATCH_COMMIT) + struct.pack("<BxH", x.pick((0, 1, 2, 3)), x.pick((0, 0, 0, 1))) + x.batch()]


def _named(x: Extremes, command: bytes) -> list[bytes]:
    return [commands.named(command, x.number()) if x.odd() else command]


def _purge(x: Extremes) -> list[bytes]:
    seq, keep = x.pick(((x.seq(), 0), (0, x.seq()), (0, 0), (x.number(), x.number())))
    return _named(x, commands.encode_purge(x.time(), x.pick((b"", x.subject())), seq, keep))


def _delete(x: Extremes) -> list[bytes]:
    return [commands.encode_delete_msg(x.time(), x.seq(), erase=x.odd(0.5))]


def _expire(x: Extremes) -> list[bytes]:
    return [x.head(commands.EXPIRE, (0, 1, 4, 5))]


def _update(x: Extremes) -> list[bytes]:
    config = {"name": "S", "storage": "file", "subjects": ["a.>", "b", "c.>"], **x.fields(CONFIG, 7)}
    x.counting = x.odd(0.7 if x.counting else 0.1)
    if x.counting:
        config |= COUNTING
    revision = 0 if x.odd(0.9) else x.number()
    return [x.head(commands.UPDATE_CONFIG, (0, 1, 2, 5, 13)) + struct.pack("<Q", revision) + x.body(config)]


def _sourced(x: Extremes) -> list[bytes]:
    if x.counting and x.odd(0.8):
        return [_counted(x)]
    key = x.pick((b"", b"UP > >", b"UP a >", b"x" * 70))
    after = x.pick((0, x.seq()))
    rows: dict[str, Any] = {}
    if key and x.odd(0.7):
        count = x.pick((1, 3))
        rows = {"seqs": [x.seq() for _ in range(count)], "batch": x.batch(count)}
    identity = x.pick((b"", b"id", b"other", b"i" * 255))
    body = bodies.encode_sourced(key, identity, x.number(), after, x.pick((0, x.seq())), **rows)
    return [commands.encode_sourced(x.time(), body + (x.runs() if not key else b""))]


def _counted(x: Extremes) -> bytes:
    """Sourced messages that follow on those before."""
    key = x.pick((b"UP > >", b"UP a >"))
    after = x.read.get(key)
    if after is None:
        x.read[key] = 0
        return commands.encode_sourced(x.time(), bodies.encode_sourced(key, b"id", 0, 0, 0))
    count = x.pick((1, 1, 3))
    x.read[key] = after + x.pick((count, count, 0))
    seqs = range(after + 1, after + count + 1)
    batch = x.batch(count)
    if x.odd(0.6):
        line = b"NATS/1.0\r\nNats-Incr: 1\r\nNats-Stream-Source: %b\r\n\r\n"
        headers = [line % x.pick((b"UP 7 > > a.x id", b"UP 7 > > \xff id", b"V 1 > > b")) for _ in seqs]
        payloads = [x.pick((b'{"val":"5"}', b'{"val":"-12"}', b'{"val":"' + b"9" * 4096 + b'"}')) for _ in seqs]
        batch = Batch.encode([x.pick(SUBJECTS) for _ in seqs], headers, payloads)
    return commands.encode_sourced(x.time(), bodies.encode_sourced(key, b"id", 0, after, seqs[-1], (), seqs, batch))


def _fire(x: Extremes) -> list[bytes]:
    firings = [
        Firing(
            x.seq(), x.pick((x.number(), x.ts)), x.number(), x.odd(), x.pick((b"purge", b"", b"\r\n\r\n", b"x" * 200))
        )
        for _ in range(x.random.randrange(4))
    ]
    return [commands.encode_fire(x.time(), firings)]


def _restore(x: Extremes) -> list[bytes]:
    return [commands.encode_restore(x.time(), x.runs())]


def _restore_end(x: Extremes) -> list[bytes]:
    return [x.head(commands.RESTORE_END) + struct.pack("<QQ", x.seq(), x.pick((x.ts, x.number())))]


def _replace(x: Extremes) -> list[bytes]:
    guards = [(x.subject(), x.pick((0, x.seq()))) for _ in range(x.random.randrange(3))]
    body = bodies.encode_replace(guards, [x.subject() for _ in range(x.random.randrange(3))], x.pick((b"", x.batch())))
    return _named(x, x.head(commands.REPLACE) + body)


def _continue(x: Extremes) -> list[bytes]:
    return [x.head(commands.CONTINUE)]


def _create(x: Extremes) -> list[bytes]:
    fields: dict[str, Any] = {
        "name": x.pick(NAMES), "config": x.fields(CONSUMER, 6), "action": x.pick(("", "create", "update")),
        "created": x.ts, "owner": x.pick(OWNERS).decode(), "request": x.pick(("", "r1", "r2")),
        "max_consumers": x.pick((0, 2)),
    }  # fmt: skip
    if x.odd(0.2):
        numbers = [x.pick((x.seq(), x.number())) for _ in range(4)]
        pending = [[x.seq(), x.number(), x.number(), x.pick((1, 2, x.number()))] for _ in range(x.random.randrange(4))]
        restored = {"delivered": numbers[:2], "floor": numbers[2:], "pending": pending}
        fields["restored"] = restored
        if x.odd():
            restored[x.pick(("delivered", "floor", "pending"))] = x.pick((*ODD, [1, "x"], [-1, 1.5], [[1, 2]]))
    return [x.head(commands.CONSUMER_CREATE) + x.body(fields)]


def _by_fields(kind: int, **more: Any) -> Any:
    def build(x: Extremes) -> list[bytes]:
        fields = {"name": x.pick(NAMES), **{key: make(x) for key, make in more.items()}}
        command = x.head(kind) + x.body(fields)
        return _named(x, command) if kind in (commands.CONSUMER_DELETE, commands.CONSUMER_RESET) else [command]

    return build


def _moves(x: Extremes) -> list[bytes]:
    moves: list[Any] = [
        [x.pick((1, 2, 3, x.number())), x.pick((1, 2, 3, x.number())), x.pick(OWNERS).decode()]
        for _ in range(x.random.randrange(4))
    ]
    if x.odd():
        moves.append(x.pick(ODD))
    return [x.head(commands.CONSUMER_OWNER) + x.body({"moves": moves})]


def _turn(x: Extremes) -> list[bytes]:
    owner = x.pick(OWNERS)
    session, serial = x.serials.get(owner, (0, 0))
    first = not session or x.odd(0.1)
    session, serial = (session + 1, x.number()) if first else (session, serial + 1)
    x.serials[owner] = session, serial
    if x.odd(0.05):
        session, serial = x.number(), x.number()
    parts = [struct.pack("<8sQQB", owner, session % U64, serial % U64, first)]
    for _ in range(x.random.randrange(5)):
        kind = x.pick(sorted(OPS))
        body = OPS[kind](x)
        cid, epoch = x.pick((1, 1, 2, 3, x.number() % (1 << 32))), x.pick((1, 1, 1, 2, x.number() % (1 << 32)))
        parts.append(struct.pack("<IIBI", cid, epoch, kind, len(body)) + body)
    return [x.head(commands.CONSUMER_TURN) + b"".join(parts)]


def _op_seqs(x: Extremes) -> bytes:
    seqs = [seq % U64 for seq in x.seqs()]
    return struct.pack(f"<{len(seqs)}Q", *seqs)


def _op_pairs(x: Extremes) -> bytes:
    return b"".join(struct.pack("<QQ", x.seq(), x.number()) for _ in range(x.random.randrange(4)))


def _op_text(x: Extremes) -> bytes:
    return x.pick((b"", b"reply", b"r" * 70_000, b"\xff\0"))


def _op_letters(x: Extremes) -> bytes:
    items = []
    for _ in range(x.random.randrange(4)):
        text = x.pick((b"", b"why", b"w" * 256, b"w" * 257, b"\xff\0"))
        items.append(struct.pack("<QBH", x.seq() % U64, x.pick((1, 2, 1, 2, 0, 255)), len(text)) + text)
    return b"".join(items)


OPS = {
    **dict.fromkeys(
        (
            turn.DELIVER,
            turn.REDELIVER,
            turn.ACK,
            turn.TERM,
            turn.PROGRESS,
            turn.EXHAUSTED,
            turn.GONE,
            turn.RELEASE,
            turn.BURIED,
        ),
        _op_seqs,
    ),
    turn.DELIVER_SOME: lambda x: struct.pack("<Q", x.pick((0, 1, 2, x.number()))) + _op_seqs(x),
    turn.NAK: _op_pairs,
    turn.BURY: _op_letters,
    turn.ADVANCE: lambda x: struct.pack("<QQ", x.seq(), x.pick((1, 2, x.number()))),
    turn.SKIP: lambda x: struct.pack("<Q", x.seq()),
    turn.WAIT: _op_text,
    turn.UNWAIT: _op_text,
    turn.PIN: lambda x: x.pick((b"\1g", b"\1gpin", b"\1g" + b"p" * 300, b"\0", b"\xffx", b"")),
}

COMMANDS = {
    commands.PUBLISH: _publish,
    commands.FAST_PUBLISH: _fast_publish,
    commands.PURGE: _purge,
    commands.DELETE_MSG: _delete,
    commands.EXPIRE: _expire,
    commands.UPDATE_CONFIG: _update,
    commands.BATCH_PART: _batch_part,
    commands.BATCH_COMMIT: _batch_commit,
    commands.SOURCED: _sourced,
    commands.FIRE: _fire,
    commands.RESTORE: _restore,
    commands.RESTORE_END: _restore_end,
    commands.REPLACE: _replace,
    commands.CONTINUE: _continue,
    commands.CONSUMER_CREATE: _create,
    commands.CONSUMER_DELETE: _by_fields(
        commands.CONSUMER_DELETE, cid=lambda x: x.pick((0, 1, x.pick(ODD)))
    ),
    commands.CONSUMER_PAUSE: _by_fields(commands.CONSUMER_PAUSE, pause_until=lambda x: x.pick((0, x.pick(ODD)))),
    commands.CONSUMER_RESET: _by_fields(
        commands.CONSUMER_RESET, seq=lambda x: x.pick((0, x.seq(), x.pick(ODD))),
        done=lambda x: x.odd(),
    ),
    commands.CONSUMER_OWNER: _moves,
    commands.CONSUMER_TURN: _turn,
}  # fmt: skip
"""Kind -> its commands."""
