"""Requests and publishes with extreme and random fields, through the whole of a node: each is answered, none with
"internal error", none gets a command into the log that is refused there, and streams and consumers go on."""

from __future__ import annotations

import asyncio
import copy
import json
from collections.abc import Iterator
from random import Random
from typing import Any

import pytest

from jetcluster.protocol import s2
from jetcluster.protocol.stream_archive import CONSUMER_PREFIX, END, MAGIC, STATE_NAME, encode
from testkit.sim.nodes import Cluster, Node, NoRespondersError
from testkit.sim.shared import virtual_time
from tests.unit.replica.test_mirror_host import serve_api, stop

NUMBERS = (0, -1, 1, 2**31, 2**32, 2**53, 2**63 - 1, 2**63, 2**64 - 1, 2**64, -(2**63), -(2**63) - 1, 2**68, 1.5, 1e308)
TIMES = (
    "9999-12-31T23:59:59.999999999Z", "0000-00-00T00:00:00Z", "0001-01-01T00:00:00Z", "2300-01-01T00:00:00Z",
    "2024-01-01T00:00:00+99:99", "1600-01-01T00:00:00Z", "1s",
)  # fmt: skip
TEXTS = (
    "", "a", "*", ">", "a.>", ".", "a..b", "a.", "a b", "$JS.API.>", "$SYS.>", "\0", "\ud800", "é" * 50, "a" * 5000,
    "x." + "y" * 70_000, "../../x", "{{wildcard(1)}}", "{{partition(0,1)}}", "{{split(1,)}}", "d\r\n",
)  # fmt: skip
VALUES: tuple[Any, ...] = (
    *NUMBERS, *TIMES, *TEXTS, None, True, False, [], {}, [[]], [None], ["a.>", "a.>"], {"x": 1}, [1, "a", None],
    ["*"] * 50, [{}],
)  # fmt: skip
STREAM = {
    "name": "Z", "subjects": ["z.>"], "retention": "limits", "max_msgs": 5, "max_bytes": -1, "max_age": 0,
    "max_msg_size": -1, "max_msgs_per_subject": 3, "storage": "memory", "num_replicas": 1, "discard": "old",
    "duplicate_window": 120_000_000_000, "republish": {"src": "z.>", "dest": "rz.>", "headers_only": True},
    "subject_transform": {"src": "z.*", "dest": "z.{{wildcard(1)}}"}, "metadata": {"a": "b"},
    "consumer_limits": {"max_ack_pending": 5, "inactive_threshold": 0}, "placement": {"cluster": "", "tags": []},
    "compression": "s2", "first_seq": 1, "allow_msg_ttl": True, "subject_delete_marker_ttl": 1_000_000_000,
    "allow_rollup_hdrs": True, "allow_atomic": True, "max_consumers": -1, "allow_direct": True,
}  # fmt: skip
LINK = {
    "name": "A", "opt_start_seq": 1, "filter_subject": "a.1", "subject_transforms": [{"src": "a.>", "dest": "b.>"}],
    "external": {"api": "X.API", "deliver": "d"}, "opt_start_time": "2024-01-01T00:00:00Z",
}  # fmt: skip
CONSUMER = {
    "name": "c2", "durable_name": "c2", "deliver_policy": "by_start_sequence", "opt_start_seq": 2,
    "ack_policy": "explicit", "ack_wait": 1_000_000_000, "max_deliver": 3, "backoff": [1, 2, 3],
    "filter_subject": "a.1", "filter_subjects": ["a.1"], "replay_policy": "instant", "rate_limit_bps": 100,
    "sample_freq": "50%", "max_waiting": 5, "max_ack_pending": 7, "flow_control": True,
    "idle_heartbeat": 1_000_000_000, "headers_only": True, "deliver_subject": "dd", "deliver_group": "g",
    "inactive_threshold": 5_000_000_000, "num_replicas": 1, "mem_storage": True, "metadata": {"k": "v"},
    "pause_until": "2030-01-01T00:00:00Z", "priority_groups": ["p"], "priority_policy": "overflow",
    "opt_start_time": "2024-01-01T00:00:00Z", "max_batch": 1, "max_expires": 1_000_000_000, "max_bytes": 1,
}  # fmt: skip
REQUESTS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("STREAM.CREATE.Z", STREAM),
    ("STREAM.UPDATE.A", {**STREAM, "name": "A", "subjects": ["a.>"], "storage": "file"}),
    ("STREAM.CREATE.Y", {"name": "Y", "sources": [LINK]}),
    ("STREAM.CREATE.W", {"name": "W", "mirror": LINK}),
    ("STREAM.UPDATE.Y", {"name": "Y", "sources": [LINK]}),
    ("STREAM.INFO.A", {"offset": 0, "subjects_filter": ">", "deleted_details": True}),
    ("STREAM.LIST", {"offset": 0, "subject": "a.>"}),
    ("STREAM.NAMES", {"offset": 0, "subject": "a.1"}),
    ("STREAM.PURGE.B", {"seq": 2, "keep": 0, "filter": "b.>"}),
    ("STREAM.MSG.GET.A", {"seq": 1, "last_by_subj": "a.1", "next_by_subj": "a.>", "start_time": TIMES[0]}),
    ("STREAM.MSG.DELETE.B", {"seq": 1, "no_erase": True}),
    ("CONSUMER.CREATE.A.c2", {"stream_name": "A", "action": "create", "config": CONSUMER}),
    ("CONSUMER.CREATE.A.c3", {"stream_name": "A", "config": {"name": "c3", "ack_policy": "none"}}),
    ("CONSUMER.DURABLE.CREATE.A.c4", {"stream_name": "A", "config": {**CONSUMER, "durable_name": "c4", "name": "c4"}}),
    ("CONSUMER.PAUSE.A.c", {"pause_until": TIMES[0]}),
    ("CONSUMER.RESET.A.c", {"seq": 1}),
    ("CONSUMER.UNPIN.A.c", {"group": "g"}),
    ("CONSUMER.LIST.A", {"offset": 0}),
    ("CONSUMER.NAMES.A", {"offset": 0}),
    ("CONSUMER.INFO.A.c", {}),
    ("CONSUMER.DELETE.A.c2", {}),
    ("CONSUMER.DELETE.A.c4", {}),
    ("STREAM.DELETE.Z", {}),
    ("STREAM.DELETE.W", {}),
    ("STREAM.DELETE.Y", {}),
    ("STREAM.RESTORE.V", {"config": {**STREAM, "name": "V"}, "state": {"messages": 1, "first_seq": 1, "last_seq": 2}}),
    ("STREAM.SNAPSHOT.B", {"deliver_subject": "_INBOX.snap", "chunk_size": 1024, "window_size": 1024}),
    ("STREAM.LEADER.STEPDOWN.A", {"placement": {"preferred": "x"}}),
    ("STREAM.PEER.REMOVE.A", {"peer": "x"}),
    ("ACCOUNT.INFO", {}),
    ("INFO", {}),
)
HEADERS = (
    "Nats-Expected-Last-Sequence", "Nats-Expected-Last-Subject-Sequence", "Nats-Expected-Last-Subject-Sequence-Subject",
    "Nats-Expected-Last-Msg-Id", "Nats-Expected-Stream", "Nats-TTL", "Nats-Incr", "Nats-Rollup", "Nats-Msg-Id",
    "Nats-Schedule", "Nats-Schedule-Target", "Nats-Schedule-TTL", "Nats-Schedule-Source", "Nats-Schedule-Time-Zone",
    "Nats-Scheduler", "Nats-Schedule-Next", "Nats-Batch-Id", "Nats-Batch-Sequence", "Nats-Batch-Commit",
    "Nats-Required-Api-Level",
)  # fmt: skip
HEADER_TEXTS = (
    *map(str, NUMBERS), *TIMES, *TEXTS, "never", "1h", "2540400h", "9999999999h", "9" * 400, "sub", "all", "purge",
    "@every 1s", "@every 2562047h47m16.854775807s", "@at 9999-12-31T23:59:59Z", "0 0 0 30 2 *", "*/0 * * * * *",
)  # fmt: skip


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in pairs:
        yield (*path, key)
        yield from places(inner, (*path, key))


def changed(random: Random, body: dict[str, Any]) -> dict[str, Any]:
    body = copy.deepcopy(body)
    for key in [key for key in body if random.random() < 0.4 and key not in ("name", "config", "stream_name")]:
        del body[key]
    for _ in range(random.choice((1, 1, 1, 2, 3))):
        found = list(places(body))
        if not found:
            break
        *path, last = random.choice(found)
        at: Any = body
        for key in path:
            at = at[key]
        if random.random() < 0.85:
            at[last] = copy.deepcopy(random.choice(VALUES))
        else:
            del at[last]
    return body


async def answered(node: Node, name: str, body: bytes) -> None:
    """With JSON, within what a client waits."""
    _, headers, payload = await node.request(f"$JS.API.{name}".encode(), body, seconds=9.0)
    assert b"internal error" not in payload, (name, body[:2000], payload)
    assert payload or headers, (name, body[:2000])


async def published(node: Node, random: Random) -> None:
    names = random.sample(HEADERS, random.choice((1, 1, 2, 3)))
    if "Nats-Batch-Id" in names and "Nats-Batch-Commit" not in names:
        names.append("Nats-Batch-Commit")
    values = {name: random.choice(HEADER_TEXTS) for name in names}
    lines = "".join(f"{key}: {value}\r\n" for key, value in values.items() if "\r" not in value)
    headers = f"NATS/1.0\r\n{lines}\r\n".encode("utf-8", "replace")
    subject = random.choice((b"a.1", b"b.1", b"all.x", b"cnt.x", b"z.x"))
    try:
        _, _, payload = await node.request(subject, random.choice((b"", b"x")), headers=headers)
    except NoRespondersError:
        return
    answer = json.loads(payload) if payload else {}
    assert answer.get("error", {}).get("err_code") != 10051, (headers, payload)


@pytest.mark.parametrize("seed", range(3))
@virtual_time
async def test_every_request_is_answered_and_none_stops_a_stream(seed: int) -> None:
    random = Random(seed)
    async with Cluster("A", clustered=False) as cluster:
        node = cluster["A"]
        api = serve_api(node)
        odd = {"allow_msg_ttl": True, "allow_rollup_hdrs": True, "allow_atomic": True}
        streams = {
            "A": {"subjects": ["a.>"], "allow_direct": True}, "B": {"subjects": ["b.>"], **odd},
            "ALL": {"subjects": ["all.>"], **odd, "allow_msg_schedules": True},
            "CNT": {"subjects": ["cnt.>"], "allow_msg_counter": True},
        }  # fmt: skip
        for name, config in streams.items():
            await answered(node, f"STREAM.CREATE.{name}", json.dumps({"name": name, **config}).encode())
        body = {"stream_name": "A", "config": {"name": "c", "durable_name": "c", "ack_policy": "explicit"}}
        await answered(node, "CONSUMER.CREATE.A.c", json.dumps(body).encode())
        for _ in range(220):
            await published(node, random)
            name, sound = random.choice(REQUESTS)
            raw = json.dumps(changed(random, sound)).encode()
            if random.random() < 0.1:
                raw = raw[: random.randrange(len(raw) + 1)]
            await answered(node, name, raw)
        for name in ("Z", "Y", "W", "V"):
            await node.request(f"$JS.API.STREAM.DELETE.{name}".encode(), seconds=9.0)
        for replica in node.js.replicas.values():
            assert (replica.failed, replica.applying.refusals, replica.failures.count) == ("", 0, 0)
        for line in node.log.lines:
            assert line[0] != "error", line
        for name in streams:
            rules = node.replica(name).machine.rules
            subjects = [subject.replace(b">", b"end").replace(b"*", b"end") for subject in rules.subjects]
            headers = b"NATS/1.0\r\nNats-Incr: 1\r\n\r\n" if rules.allow_msg_counter else b""
            stored = [await node.publish(subject, b"", headers) for subject in subjects]
            assert name == "A" or all("seq" in ack for ack in stored), stored
        await stop([api])


async def restored(node: Node, name: str, raw: bytes) -> dict[str, Any]:
    """The answer to the last chunk of an archive, or the first error."""
    request = {"config": {"name": name, "subjects": [name.lower()], "allow_msg_ttl": True}, "state": {}}
    _, _, begun = await node.request(f"$JS.API.STREAM.RESTORE.{name}".encode(), json.dumps(request).encode())
    subject = json.loads(begun)["deliver_subject"].encode()
    for chunk in (s2.STREAM_ID + b"".join(s2.encode(raw)), b""):
        _, _, payload = await node.request(subject, chunk, seconds=9.0)
        if payload:
            break
    answer: dict[str, Any] = json.loads(payload)
    return answer


MESSAGE = encode(b"v", 1_700_000_000_000_000_000, 1, b"", b"x")
TTL = b"NATS/1.0\r\nNats-TTL: 1h\r\n\r\n"


@pytest.mark.parametrize(
    ("entries", "code"),
    [
        (MESSAGE, 0),
        (MESSAGE + encode(b"v", 1 << 68, 2, b"", b"x"), 10062),
        (MESSAGE + encode(b"v", (1 << 63) - 1, 2, b"", b"x"), 10062),
        (MESSAGE + encode(b"v", -(1 << 63), 2, b"", b"x"), 10062),
        (MESSAGE + encode(b"v", (1 << 62) - 1, 2, TTL, b"x"), 0),
        (MESSAGE + encode(b"v", -(1 << 62) + 1, 2, TTL, b"x"), 0),
        (MESSAGE + encode(b"v", 5, (1 << 63) - 1, b"", b"x"), 0),
        (MESSAGE + encode(b"v", 5, 1, b"", b"x"), 10062),
        (encode(STATE_NAME, 0, 0, b"", b"[" * 5000) + MESSAGE, 10062),
        (encode(STATE_NAME, 0, 0, b"", b'{"last_seq":%d}' % (1 << 64)) + MESSAGE, 0),
        (
            encode(STATE_NAME, 0, 0, b"", b'{"last_seq":%d}' % ((1 << 63) - 1)) + MESSAGE,
            0,
        ),
        (
            MESSAGE + encode(CONSUMER_PREFIX + b"c", 0, 0, b"", b'{"config":{"a":' * 3000),
            10062,
        ),
        (MESSAGE + encode(CONSUMER_PREFIX + b"\xff.>", 0, 0, b"", b'{"config":5,"state":[]}'), 10062),
    ],
)
@virtual_time
async def test_an_archive_is_taken_in_or_refused_and_the_stream_goes_on(entries: bytes, code: int) -> None:
    async with Cluster("A", clustered=False) as cluster:
        node = cluster["A"]
        api = serve_api(node)
        answer = await restored(node, "V", MAGIC + entries + END)
        assert answer.get("error", {}).get("err_code", 0) == code, answer
        if not code:
            assert (await node.publish(b"v", b"y"))["seq"] == node.replica("V").store.last_seq
            replica = node.replica("V")
            assert (replica.failed, replica.applying.refusals, replica.failures.count) == ("", 0, 0)
        else:
            await asyncio.sleep(0.1)
            assert not node.has("V"), "what was begun is gone"
        assert "restore failed" not in node.log.events("error")
        await stop([api])
