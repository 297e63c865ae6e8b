"""Commands that no server writes, for the logs of streams and of the meta group: damaged, out of place or refused. All
replicas must refuse them alike, and go on."""

from __future__ import annotations

import itertools
import json
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from random import Random
from typing import Any, Final

from jetcluster.consumer.state import creation, turn
from jetcluster.consumer.state.letters import MAX_DELIVER, TERMINATED
from jetcluster.consumer.state.state import ConsumerState
from jetcluster.meta.state import Assignment, Node
from jetcluster.model.limits import FARTHEST_SEQ
from jetcluster.replica.stream_replica import StreamReplica
from jetcluster.store.batch import Batch
from jetcluster.stream.log import bodies, commands
from jetcluster.stream.log.bodies import LATEST_TIME, Run
from jetcluster.stream.log.commands import HEAD, UnknownCommandError
from jetcluster.stream.log.fast_parts import FastPart, FastRun

FAR: Final = 1 << 40
"""A sequence that no stream of a run reaches."""
NOBODY: Final = b"nobody00"
"""A peer id that owns no consumers."""
ODD: Final[tuple[Any, ...]] = (None, -1, 1 << 70, "x", [], {}, True, 1.5)
"""Values that a field may have instead of its own."""
DEEP: Final = b"[" * 200
Ops = list[tuple[int, Any]]


def _head(kind: int, ts: int, flags: int = 0) -> bytes:
    return HEAD.pack(kind, flags, ts)


def is_known(command: bytes) -> bool:
    """False for a command of a newer version, at which a replica stops."""
    try:
        decoded = commands.decode(command)
        if isinstance(decoded, commands.Extended):
            if decoded.kind == commands.CONSUMER_TURN:
                turn.decode(decoded.body)
            elif decoded.kind == commands.CONSUMER_CREATE:
                creation.decode(decoded.body)
            else:
                return commands.CONSUMER_DELETE <= decoded.kind <= commands.CONSUMER_OWNER
    except UnknownCommandError:
        return False
    except commands.CommandError:
        return True
    return True


def damaged(ts: int) -> list[bytes]:
    """Return commands that cannot be decoded."""
    batch = Batch.encode([b"foreign.damaged"], [], [b"damaged"])
    json_of = {"config": {}, "name": "x", "created": 1, "owner": "", "request": "", "action": ""}
    creates: list[Any] = [{**json_of, field: value} for field, value in itertools.product(json_of, ODD[:4])]
    creates += [{**json_of, "config": []}, {**json_of, "restored": 7}, {**json_of, "max_consumers": "x"}, [], {}]
    parts = [
        FastPart(b"id", b"stem", 1, gap_ok=False, commits=False, runs=runs)
        for runs in ([FastRun(0, 2, 1)], [FastRun(0, 0, 1)], [FastRun(0, 1, 0)],
                     [FastRun(0, 1, 5), FastRun(0, 1, 4)])
    ]  # fmt: skip
    fast = commands.encode_fast(ts, [FastPart(b"id", b"stem", 0, False, False, [FastRun(0, 1, 1)])], batch)
    sourced = bodies.encode_sourced(b"key", b"id", 0, 0, 9, (), [5], batch)
    run = struct.Struct("<QqI")
    found = [
        bytes((commands.PURGE,)), _head(commands.PUBLISH, LATEST_TIME + 1), _head(commands.PURGE, ts, commands.NAMED),
        _head(commands.EXPIRE, ts) + b"x", _head(commands.CONTINUE, ts) + b"x", _head(commands.PURGE, ts) + b"x",
        commands.encode_delete_msg(ts, 1) + b"xy", _head(commands.DELETE_MSG, ts), commands.encode_fire(ts, []) + b"x",
        commands.encode_fire(ts, [commands.Firing(1, 1, 1, True, b"")])[:-2] + b"\2\0",
        commands.encode_fire(ts, [commands.Firing(1, 1, 1, True, b"xy")])[:-1], _head(commands.BATCH_PART, ts),
        *(_head(commands.UPDATE_CONFIG, ts) + bytes(8) + text for text in (DEEP, b"[]", b"{", b"\xff")),
        _head(commands.PUBLISH, ts) + batch[:-1], _head(commands.PUBLISH, ts) + batch + b"x",
        _head(commands.PUBLISH, ts),
        commands.encode_atomic(ts, batch, plain=True, allow_msg_id=False)[0][:-1], _head(commands.BATCH_COMMIT, ts),
        _head(commands.RESTORE_END, ts) + b"x", _head(commands.RESTORE, ts) + b"x",
        _head(commands.RESTORE, ts) + (run.pack(5, 5, len(batch)) + batch) * 2,
        commands.encode_sourced(ts, sourced)[:20], commands.encode_sourced(ts, sourced)[:-1],
        commands.encode_sourced(ts, bodies.encode_sourced(b"key", b"id", 0, 0, 9, (), [5, 6], batch)),
        commands.encode_replace(ts, [(b"foreign.x", 1)], [b"foreign.x"])[:-1], _head(commands.REPLACE, ts),
        *(commands.encode_fast(ts, [part], batch) for part in parts), fast, fast[:-1], fast[:20],
        commands.encode_fast(ts, [FastPart(b"id", b"stem", 1, False, False, ends=True)], b"")[:-1],
        _fast(ts, b"\1\0" + struct.pack("<BHHHH", 9, 1, 0, 0, 0)), _fast(ts, bytes(3)),
        *(commands.encode_extended(ts, commands.CONSUMER_CREATE, json.dumps(one).encode()) for one in creates),
        *(commands.encode_extended(ts, kind, body) for kind in (19, 21, 22, 23) for body in _wrong_fields()),
        *(commands.encode_extended(ts, commands.CONSUMER_TURN, body) for body in wrong_turns()),
    ]  # fmt: skip
    return [command for command in found if is_known(command) and not _is_create(command)]


def _is_create(command: bytes) -> bool:
    """A consumer that can be created."""
    if command[0] != commands.CONSUMER_CREATE:
        return False
    try:
        creation.decode(command[HEAD.size :])
    except commands.CommandError:
        return False
    return True


def _fast(ts: int, marks: bytes) -> bytes:
    return _head(commands.FAST_PUBLISH, ts) + struct.pack("<I", len(marks)) + marks


def _wrong_fields() -> list[bytes]:
    whole: dict[str, Any] = {"name": "nobody", "cid": 1, "pause_until": 1, "seq": 1, "moves": [[FAR, 0, "x"]]}
    found: list[Any] = [{}, []]
    found += [{**whole, field: value} for field in ("cid", "pause_until", "seq", "moves") for value in ODD[:4]]
    return [b"{", DEEP, *(json.dumps(one).encode() for one in found)]


def wrong_turns() -> list[bytes]:
    """Return bodies of CONSUMER_TURN that cannot be decoded."""
    head = turn.encode(NOBODY, 1, 1, [], first=True)
    op = struct.Struct("<IIBI")
    shapes = [(turn.ACK, b"1234567"), (turn.NAK, bytes(15)), (turn.ADVANCE, bytes(8)), (turn.SKIP, bytes(16)),
              (turn.PIN, b""), (turn.PIN, b"\5a"), (turn.DELIVER_SOME, b""), (turn.DELIVER_SOME, b"\7" + bytes(7)),
              (turn.BURY, b"1"), (turn.BURY, bytes(8) + b"\xff\0\0"), (turn.BURY, bytes(8) + b"\1\xff\0")]  # fmt: skip
    return [b"", head[:-1], head + b"x", head + op.pack(1, 1, turn.ACK, 80),
            *(head + op.pack(1, 1, kind, len(body)) + body for kind, body in shapes)]  # fmt: skip


def void(rng: Random, replica: StreamReplica) -> list[bytes]:
    """Return commands that can be decoded, and change nothing in this stream: it is not being restored, has no mirror
    and no source, no message of the subjects of `damaged`, and no consumer with the names of `_wrong_fields`."""
    ts, last = replica.machine.clock, replica.store.last_seq
    batch = Batch.of([b"foreign.void"], [], [b"void"])
    raw = Batch.encode([b"foreign.void"], [], [b"void"])
    found = [
        commands.encode_restore(ts, bodies.encode_runs([Run(last + 1, ts, batch)])),
        commands.encode_restore_end(ts, last + 5, ts), commands.encode_continue(ts), commands.encode_expire(ts),
        commands.encode_sourced(ts, bodies.encode_sourced(b"key", b"id", 0, 0, 9, (), [5], raw)),
        commands.encode_sourced(ts, bodies.encode_sourced(b"", b"id", 0, last, last + 1, [Run(last + 1, ts, batch)])),
        commands.encode_replace(ts, [(b"foreign.void", FAR)], [b"foreign.>"], raw),
        commands.encode_purge(ts, b"foreign.void"), commands.encode_purge(ts, b"", 5, 5),
        commands.encode_purge(ts, b"", 1), commands.encode_purge(ts, b"", FARTHEST_SEQ + 1),
        commands.encode_delete_msg(ts, FAR), commands.encode_delete_msg(ts, 0, erase=False),
        commands.encode_fire(ts, [commands.Firing(FAR, 5, 9, rng.random() < 0.5, b"purge")]),
        commands.named(commands.encode_purge(ts, b"foreign.void"), rng.getrandbits(63)),
        commands.encode_update_config(ts, {**replica.machine.config, "max_age": 1}, 1),
        commands.encode_fast(ts, [FastPart(b"i" * 9, b"stem", 1, True, False, ends=True)], b""),
        *(commands.encode_extended(ts, kind, json.dumps(fields).encode()) for kind, fields in _strangers()),
        *(_turn(ts, NOBODY, session, serial, first=False) for session, serial in ((0, 0), (1 << 60, 1))),
    ]  # fmt: skip
    return [command for command in found if is_known(command)]


def _strangers() -> Iterator[tuple[int, dict[str, Any]]]:
    """Commands for consumers that are not there."""
    yield commands.CONSUMER_DELETE, {"name": "nobody", "cid": 0}
    yield commands.CONSUMER_PAUSE, {"name": "nobody", "pause_until": 5}
    yield commands.CONSUMER_RESET, {"name": "nobody", "seq": 5}
    yield commands.CONSUMER_OWNER, {"moves": [[FAR, 0, "x"]]}
    wish = {"name": "nobody", "config": {"durable_name": "nobody"}, "action": "update", "created": 1, "owner": ""}
    yield commands.CONSUMER_CREATE, {**wish, "request": "r"}
    yield commands.CONSUMER_CREATE, {**wish, "config": {"num_replicas": 99}, "action": "", "request": "r"}


def parts(ts: int) -> list[list[bytes]]:
    """Return runs of commands, each to be proposed in a row, of atomic batches that do not fit together."""
    raw = Batch.encode([b"foreign.parts"], [], [b"parts"])
    part = [_head(commands.BATCH_PART, ts) + struct.pack("<H", number) + raw[:9] for number in range(3)]
    commit = [_head(commands.BATCH_COMMIT, ts) + struct.pack("<BxH", 1, count) for count in range(4)]
    return [
        [commit[1] + raw], [part[1], commit[1] + raw], [part[0], part[2], commit[2] + raw],
        [part[0], part[0], commit[2] + raw], [part[0], commands.encode_expire(ts), commit[1] + raw],
        [part[0], bytes((commands.PURGE,)), commit[1] + raw], [part[0], commit[1] + b"garbage"], [part[0], part[1]],
    ]  # fmt: skip


def void_turns(replica: StreamReplica, state: ConsumerState) -> list[bytes]:
    """Return turns of who owns nothing, with ops that do not fit this consumer: each begins a session of its own."""
    ts, session = replica.machine.clock, replica.table.session_of(NOBODY)
    begin = 1 if session is None else session[0] + 1
    return [
        _turn(ts, NOBODY, begin + at, 1, turn.Op(state.cid, state.epoch, kind, value))
        for at, (kind, value) in enumerate(unfit(state))
    ] + [
        _turn(ts, NOBODY, begin - 1, 1),
        _turn(ts, NOBODY, FAR, 1, turn.Op(state.cid, state.epoch + 7, turn.ACK, [1])),
        _turn(ts, NOBODY, FAR, 2, turn.Op(FAR & 0xFFFF_FFFF, 1, turn.ACK, [1]), first=False),
    ]


def unfit(state: ConsumerState) -> Ops:
    """Return ops, with their values, that change nothing of the consumer."""
    done = state.delivered_sseq
    ops: Ops = [
        (turn.DELIVER, []), (turn.DELIVER, [done]), (turn.DELIVER, [FAR]), (turn.REDELIVER, [FAR]),
        (turn.DELIVER_SOME, ([], [])), (turn.DELIVER_SOME, ([FAR], [FAR])), (turn.DELIVER_SOME, ([FAR], [])),
        (turn.RELEASE, [FAR]), (turn.ACK, []), (turn.ACK, [FAR]), (turn.TERM, [FAR]), (turn.NAK, [(FAR, 5)]),
        (turn.PROGRESS, [FAR]), (turn.EXHAUSTED, [FAR]), (turn.GONE, [FAR]), (turn.SKIP, FAR), (turn.SKIP, 0),
        (turn.BURY, []), (turn.BURY, [(FAR, TERMINATED, b"text"), (FAR, MAX_DELIVER, b"")]), (turn.BURIED, [FAR]),
        (turn.UNWAIT, b"nobody"), (turn.PIN, (b"nogroup", b"pin")), (turn.ADVANCE, (FAR, 1)), (turn.ADVANCE, (0, 0)),
        (turn.DELIVER, [done + 2, done + 1]),
    ]  # fmt: skip
    return ops


def _turn(ts: int, owner: bytes, session: int, serial: int, *ops: turn.Op, first: bool = True) -> bytes:
    body = turn.encode(owner, session, serial, ops, first=first)
    return commands.encode_extended(ts, commands.CONSUMER_TURN, body)


def copied(replica: StreamReplica) -> list[bytes]:
    """Return commands of the link of a mirror or of a source that bring nothing new."""
    ts, last = replica.machine.clock, replica.store.last_seq
    batch, raw = Batch.of([b"foreign.copied"], [], [b"c"]), Batch.encode([b"foreign.copied"], [], [b"c"])
    found: list[bytes] = []
    for key in replica.machine.rules.links:
        cursor = replica.machine.cursor(key)
        seq, identity = (cursor.seq, cursor.identity) if cursor is not None else (0, b"")
        if key:
            found += [
                bodies.encode_sourced(key, identity, 0, FAR, FAR + 1, (), [FAR + 1], raw),
                *([bodies.encode_sourced(key, identity, 0, max(seq - 1, 0), seq, (), [seq], raw)] if seq else ()),
            ]
        else:
            found += [
                bodies.encode_sourced(key, identity, 0, FAR, FAR + 1, [Run(FAR + 1, ts, batch)]),
                bodies.encode_sourced(key, identity, 0, 0, FARTHEST_SEQ + 1),
                bodies.encode_sourced(key, identity, 0, 0, last, [Run(FARTHEST_SEQ + 1, ts, batch)]),
                *([bodies.encode_sourced(key, identity, 0, 0, last, [Run(last, ts, batch)])] if last else ()),
            ]
    return [commands.encode_sourced(ts, body) for body in found]


def wild(rng: Random, replica: StreamReplica, headers: Sequence[bytes], subjects: Sequence[bytes]) -> list[bytes]:
    """Return commands, to be proposed in a row, that may do anything to this stream that its log permits. `headers`:
    blocks of messages. Those that reach into a consumer give it to its owner anew, which has not seen them."""
    ts, last = replica.machine.clock, replica.store.last_seq
    count = rng.choice([1, 1, 2, 5])
    raw = Batch.encode(rng.choices(subjects, k=count), rng.choices(headers, k=count), [b"wild"] * count)
    states = list(replica.table.by_cid.values())
    places = [rng.randint(0, last + 1) for _ in range(rng.choice([1, 2, 3]))]
    there = [seq for seq in places if replica.store.contains(seq)]  # what is not is noticed when it is due again
    if states and there and rng.random() < 0.5:
        return [*_into(rng, replica, rng.choice(states), there)]
    marks = [FastPart(b"wild", b"stem", 1, rng.random() < 0.5, False, [FastRun(0, count, rng.randint(1, 5))])]
    found = [
        commands.encode_publish(ts, raw), commands.encode_publish(ts, raw), commands.encode_fast(ts, marks, raw),
        commands.encode_fast(ts, [*marks, *marks], raw),
        commands.encode_atomic(ts, raw, plain=rng.random() < 0.3, allow_msg_id=rng.random() < 0.5)[0],
        commands.encode_purge(ts, rng.choice(subjects), *rng.choice([(0, 0), (places[0], 0), (0, 1)])),
        commands.encode_delete_msg(ts, places[0], erase=rng.random() < 0.5),
        commands.encode_replace(ts, [(subjects[0], places[0])], [rng.choice(subjects)], raw),
        commands.encode_fire(ts, [commands.Firing(seq, ts, 0, False, b"purge") for seq in places]),
    ]  # fmt: skip
    command = rng.choice(found)
    if rng.random() < 0.3:
        at = rng.randrange(HEAD.size, len(command))
        way = rng.randrange(2 if raw in command else 3)  # a batch that does not validate is no replica's mistake
        command = (command[:at], command + b"x", command[:at] + bytes((command[at] ^ (1 << rng.randrange(8)),)))[way]
    return [command]


def _into(rng: Random, replica: StreamReplica, state: ConsumerState, places: Sequence[int]) -> Iterator[bytes]:
    ts, known = replica.machine.clock, replica.table.session_of(NOBODY)
    if rng.random() < 0.2:
        body = json.dumps({"name": state.name, "seq": places[0], "done": rng.random() < 0.5}).encode()
        yield commands.encode_extended(ts, commands.CONSUMER_RESET, body)
        return
    yield _turn(ts, NOBODY, 1 if known is None else known[0] + 1, 1, *_ops(rng, state, places))
    body = json.dumps({"moves": [[state.cid, state.epoch, state.owner]]}).encode()
    yield commands.encode_extended(ts, commands.CONSUMER_OWNER, body)


def _ops(rng: Random, state: ConsumerState, places: Sequence[int]) -> list[turn.Op]:
    kinds: Ops = [
        (turn.DELIVER, sorted(set(places))), (turn.REDELIVER, places), (turn.ACK, places), (turn.TERM, places),
        (turn.NAK, [(seq, rng.choice([0, 5, 1 << 63])) for seq in places]), (turn.PROGRESS, places),
        (turn.EXHAUSTED, places), (turn.GONE, places), (turn.SKIP, places[0]), (turn.WAIT, b"_INBOX.nobody"),
        (turn.UNWAIT, b"_INBOX.nobody"),
        (turn.BURY, [(seq, rng.choice([TERMINATED, MAX_DELIVER]), b"t") for seq in places]),
        (turn.BURIED, places), (turn.ADVANCE, (places[0], len(places))), (turn.DELIVER_SOME, (places[:1], places[1:])),
        (turn.RELEASE, places),
    ]  # fmt: skip
    return [turn.Op(state.cid, state.epoch, kind, value) for kind, value in rng.choices(kinds, k=rng.choice([1, 3]))]


def refused_by_meta(rng: Random, own: Assignment, nodes: Mapping[str, Node], removed: Iterable[str]) -> list[bytes]:
    """Return commands for the meta group that it must refuse: of a stream that is there, and of servers."""
    new: dict[str, Any] = {**own.config, "name": f"{own.name}NEW", "subjects": [f"{own.name}.new"]}
    peers = list(own.peers)
    free = {"max_streams": -1, "max_memory": -1, "max_storage": -1}
    create = {"kind": "stream_create", "account": own.account, "config": new, "limits": free, "peers": peers,
              "leader": peers[0], "created": 5}  # fmt: skip
    update = {"kind": "stream_update", "account": own.account, "config": own.config, "limits": free}
    of = {"account": own.account, "name": own.name}
    few = {**own.config, "num_replicas": 1 if len(peers) > 1 else 3}
    keys = {peer: node.key for peer, node in nodes.items() if node.key}
    found: list[dict[str, Any]] = [
        {"kind": "nothing"}, {"kind": "stream_create"}, {**create, "config": {**new, "name": own.name}},
        {**create, "peers": []}, {**create, "peers": [*peers, peers[0]]}, {**create, "leader": "nobody"},
        {**create, "account": ""}, {**create, "created": "x"}, {**create, "config": 7}, {**create, "limits": {}},
        {**create, "limits": {**free, "max_streams": 0}},
        {**create, "config": {**new, "max_bytes": 9}, "limits": {**free, "max_memory": 1, "max_storage": 1}},
 {**create, "config": {**new, "subjects": own.config["subjects"]}},
        *({**create, "config": {**new, field: value}} for field, value in _wrong_configs()),
        *({**create, "config": {k: v for k, v in new.items() if k != field}}
          for field in ("retention", "sealed", "storage")),
        {**update, "config": {**own.config, "name": "NOBODY"}}, {**update, "config": few},
        {**update, "config": few, "peers": ["a"], "from": ["nobody"]}, {**update, "config": few, "peers": ["a", "b"]},
        {**update, "config": few, "peers": ["a"] * few["num_replicas"]},
        {**update, "config": few, "peers": ["a", "b", "c"][: few["num_replicas"]]},
        {"kind": "stream_move_cancel", **of, "revision": -1}, {"kind": "stream_move_cancel", **of},
        {"kind": "stream_restored", **of, "gid": own.gid}, {"kind": "stream_restored", **of, "gid": own.gid + 1},
        {"kind": "stream_delete", **of, "gid": own.gid + 1}, {"kind": "stream_delete", **of, "name": "NOBODY"},
        {"kind": "stream_peers", **of, "gid": own.gid + 1, "peers": peers},
        {"kind": "stream_peers", **of, "gid": own.gid, "peers": []},
        {"kind": "stream_peers", **of, "gid": own.gid, "peers": [*peers, peers[0]]},
        {"kind": "stream_peers", **of, "gid": own.gid, "peers": peers, "from": ["nobody"]},
        {"kind": "node", "peer": "nobody", "name": "x", "tags": [], "jetstream": True, "key": "x"},
        {"kind": "node", "peer": "nobody", "name": "x", "tags": 7, "jetstream": True},
        *({"kind": "node", "peer": peer, "name": "x", "tags": [], "jetstream": True} for peer in removed),
        *({"kind": "node", "peer": peer, "name": "x", "tags": [], "jetstream": True, "key": key}
          for (peer, own_key), key in itertools.product(keys.items(), keys.values()) if own_key != key),
        {"kind": "node_drain", "peer": "nobody", "draining": True}, {"kind": "node_remove", "peer": "nobody"},
        {"kind": "node_replace", "peer": "nobody", "by": "nobody"},
        *({"kind": "node_replace", "peer": peer, "by": by} for peer in list(nodes)[:1] for by in (peer, "nobody")),
        {"kind": "rescue", "rescue": {"number": 1}}, {"kind": "rescue", "rescue": 7},
        {"kind": "stream_rescue", **of, "gid": own.gid + 1, "number": 9, "kept": peers[0], "peers": peers},
        {"kind": "stream_rescue", **of, "gid": own.gid, "number": 9, "kept": peers[0], "peers": ["a", "a"]},
        {"kind": "stream_rescue", **of, "gid": own.gid, "number": -1, "kept": "nobody", "peers": peers},
    ]  # fmt: skip
    return [json.dumps({**one, "request": f"foreign-{rng.getrandbits(60):x}"}).encode() for one in found]


def _wrong_configs() -> list[tuple[str, Any]]:
    return [
        ("storage", "tape"), ("subjects", [7]), ("subjects", {"a": 1}), ("num_replicas", "3"), ("max_bytes", 1.5),
        ("metadata", []),
    ]  # fmt: skip


NO_COMMANDS: Final = (b"x", b"[]", b"{}", b"{", b"\xff", DEEP, b'{"request": "foreign"}', b'{"kind": 7, "request": 7}')
"""Bytes that the meta group cannot read as a command at all."""
