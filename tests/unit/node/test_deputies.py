"""Messages that a client has the server publish are no requests in that client's place, wherever they go: every way in
which the server publishes (the files that do are counted) times every name that a request can have."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import jetcluster
from tests.unit.node.isolation_cases import come
from tests.unit.node.test_websocket import node_of
from tests.unit.server.wire import Wire, errors, messages

CONFIG = """
jetstream {{ store_dir: "{store}", domain: hub }}
accounts {{
  A {{ jetstream: enabled, users: [ {{ user: owner, password: p }} ]
    exports: [ {{ service: "$JS.API.>", response_type: stream }} ] }}
  B {{ jetstream: enabled
    users: [
      {{ user: any, password: p }}, {{ user: watch, password: p }}
      {{ user: denied, password: p, permissions {{
         publish {{ deny: ["JSA.>", "$JS.API.STREAM.PURGE.>", "$JS.hub.API.STREAM.PURGE.>"] }} }} }} ]
    imports: [ {{ service: {{ account: A, subject: "$JS.API.>" }}, to: "JSA.>" }} ] }}
}}
"""
TARGETS = ["$JS.API.STREAM.PURGE.R", "$JS.hub.API.STREAM.PURGE.R", "JSA.STREAM.PURGE.V"]
API = "$JS.API."
SECOND = 1_000_000_000


async def push(wire: Wire, target: str, **more: Any) -> bytes:
    config = {"deliver_subject": target, "ack_policy": "none", "mem_storage": True, **more}
    return await ask(wire, API + "CONSUMER.CREATE.R", {"stream_name": "R", "config": config})


async def acked(wire: Wire, target: str) -> bytes:
    assert errors(await wire.ask("SUB take 7")) == []
    wire.publish(API + "CONSUMER.MSG.NEXT.R.pull", b"1", "take")
    while True:
        for frame in messages(await wire.settle()):
            if frame.reply.startswith("$JS.ACK"):
                wire.publish(frame.reply, b"+ACK", target)
                return b""
        await asyncio.sleep(0.01)


async def buried(wire: Wire, target: str) -> bytes:
    wish = {"subject": target, "on_term": True, "on_max_deliver": False}
    config = {"durable_name": "buries", "ack_policy": "explicit", "filter_subject": "r.0", "dead_letter": wish}
    answer = await ask(wire, API + "CONSUMER.CREATE.R.buries", {"stream_name": "R", "config": config})
    if b"err_code" in answer:
        return answer
    assert errors(await wire.ask("SUB given 6")) == []
    wire.publish(API + "CONSUMER.MSG.NEXT.R.buries", b"1", "given")
    while True:
        for frame in messages(await wire.settle()):
            if frame.sid == "6":
                wire.publish(frame.reply, b"+TERM")
                return b""
        await asyncio.sleep(0.01)


async def batch(wire: Wire, target: str) -> bytes:
    head = "NATS/1.0\r\nNats-Batch-Id: b\r\nNats-Batch-Sequence: 1\r\nNats-Batch-Commit: 1\r\n\r\n"
    return await told(wire, "r.batch", b"x", target, head.encode())


async def told(wire: Wire, subject: str, body: bytes, reply: str, head: bytes = b"") -> bytes:
    if head:
        wire.send(f"HPUB {subject} {reply} {len(head)} {len(head) + len(body)}".replace("  ", " "), head + body)
    else:
        wire.publish(subject, body, reply)
    return b"".join(error.encode() for error in errors(await wire.settle()))


async def republished(wire: Wire, target: str) -> bytes:
    config = {"name": "RE", "subjects": ["re"], "storage": "memory", "republish": {"src": "re", "dest": target}}
    answer = await ask(wire, API + "STREAM.CREATE.RE", config)
    await told(wire, "re", b"{}", "")
    return answer


async def traced(wire: Wire, target: str) -> bytes:
    return await told(wire, "r.t", b"{}", "", b"NATS/1.0\r\nNats-Trace-Dest: %b\r\n\r\n" % target.encode())


NEXT = API + "CONSUMER.MSG.NEXT.R."
WAYS: dict[str, Any] = {
    "answer": lambda wire, target: told(wire, API + "INFO", b"", target),
    "refusal": lambda wire, target: told(wire, API + "STREAM.INFO.none", b"", target),
    "message": lambda wire, target: told(wire, API + "STREAM.MSG.GET.R", b'{"seq":1}', target),
    "ack of a publish": lambda wire, target: told(wire, "r.x", b"{}", target),
    "ack of a batch": batch,
    "push, no acks": push,
    "push, acks": lambda wire, target: push(wire, target, ack_policy="explicit"),
    "flow control": lambda wire, target: push(wire, target, flow_control=True, idle_heartbeat=SECOND),
    "heartbeat": lambda wire, target: push(wire, target, filter_subject="r.none", idle_heartbeat=SECOND // 5),
    "pull": lambda wire, target: told(wire, NEXT + "pull", b'{"batch":2}', target),
    "pull, no acks": lambda wire, target: told(wire, NEXT + "plain", b"2", target),
    "pull, nothing there": lambda wire, target: told(wire, NEXT + "empty", b'{"no_wait":true}', target),
    "pull, nonsense": lambda wire, target: told(wire, NEXT + "pull", b'{"batch":-1}', target),
    "pull of a push consumer": lambda wire, target: told(wire, NEXT + "pushing", b"1", target),
    "answer to an ack": acked,
    "direct get": lambda wire, target: told(wire, API + "DIRECT.GET.R", b'{"seq":1}', target),
    "direct gets": lambda wire, target: told(wire, API + "DIRECT.GET.R", b'{"seq":1,"batch":2}', target),
    "snapshot": lambda wire, target: ask(
        wire, API + "STREAM.SNAPSHOT.R", {"deliver_subject": target, "chunk_size": 1024}
    ),
    "republish": republished,
    "trace": traced,
    "dead letter": buried,
    "object": lambda wire, target: told(wire, "$OBJ.k", b'{"name":"none"}', target),
    "own account": lambda wire, target: told(wire, "$SYS.REQ.ACCOUNT.PING.STATZ", b"", target),
    "subscribers": lambda wire, target: told(wire, "$SYS.REQ.USER.INFO", b"", target),
}
CHOSEN = {"push, no acks", "push, acks", "flow control", "heartbeat", "snapshot", "republish", "dead letter"}
"""Ways whose subject is a configuration's or a request's own, which is judged when it is asked for."""
NEVER_RESERVED = {"dead letter"}
"""Ways that nobody has lead to a subject of the server's own."""

PUBLISHERS: dict[str, str] = {
    "api/dispatch.py": "answer", "api/object_claims.py": "passes on what a client publishes",
    "api/relay.py": "refusal", "api/restore.py": "answer", "api/endpoints.py": "answer", "api/snapshot.py": "snapshot",
    "cluster/stream_requests.py": "object", "objects/host.py": "object",
    "objects/bucket.py": "tells watchers of a bucket, at its own subjects",
    "objects/uploads.py": "tells watchers of a bucket, at its own subjects",
    "consumer/owner/acks.py": "answer to an ack", "consumer/owner/context.py": "advisories, at their own subjects",
    "consumer/owner/letters.py": "dead letter",
    "consumer/owner/owner.py": "pull of a push consumer", "consumer/owner/pull.py": "pull, nothing there",
    "consumer/owner/pull_dispatch.py": "pull", "consumer/owner/push.py": "push, acks",
    "mirror/inflow.py": "answers an upstream's flow control, where that says",
    "monitor/system/claims.py": "answer", "monitor/system/subscriber_counts.py": "subscribers",
    "monitor/system/events.py": "events, at their own subjects", "monitor/system/requests.py": "own account",
    "replica/services.py": "advisories, at their own subjects",
    "replica/replica_state.py": "advisories, at their own subjects",
    "replica/reads/answers.py": "direct gets", "replica/reads/pages.py": "direct gets",
    "replica/reads/membership.py": "direct gets, handed on",
    "server/client/message_trace.py": "trace", "server/accounts/router.py": "is the bus",
    "stream/lead/answers.py": "ack of a publish", "stream/lead/atomic_stage.py": "ack of a batch",
    "stream/lead/duties.py": "republish", "stream/lead/fast_ingest.py": "ack of a batch",
    "stream/lead/ingest.py": "ack of a publish",
}  # fmt: skip
"""Files of the server that publish -> the way above, or why nobody chooses the subject."""
OUTSIDE = ("backup/", "cli/", "client/", "spark/", "pipeline/")


def test_every_publisher_of_the_server_is_tried() -> None:
    package = Path(jetcluster.__file__).parent
    call = re.compile(r"(?:\.|self\.)(?:publish|publish_many|publish_frames|deliver_many)\(|= \S+\.bus\.publish$", re.M)
    found = {
        str(file.relative_to(package)) for file in package.rglob("*.py")
        if not str(file.relative_to(package)).startswith(OUTSIDE) and call.search(file.read_text())
    }  # fmt: skip
    assert found == PUBLISHERS.keys()


async def ask(wire: Wire, subject: str, body: Any = "") -> bytes:
    wire.publish(subject, (body if isinstance(body, str) else json.dumps(body)).encode(), wire.inbox)
    async with asyncio.timeout(10):
        while not (found := [frame for frame in messages(await wire.settle()) if frame.sid == "1"]):
            await asyncio.sleep(0.005)
    return found[0].payload


@asynccontextmanager
async def watched(folder: Path) -> AsyncIterator[tuple[int, Wire, Wire]]:
    """The port, and wires that see all requests which are carried out in A and in B, and what comes to the targets."""
    async with node_of(folder, CONFIG.format(store=folder / "store")) as node:
        port = node.server.port
        owner, watch = await come(port, "owner"), await come(port, "watch")
        for wire, name, subject in ((owner, "V", "v"), (watch, "R", "r.*"), (watch, "OBJ_k", "$OBJ.k.>")):
            config = {"name": name, "subjects": [subject], "storage": "memory", "allow_direct": True}
            config |= {"allow_atomic": True} if name == "R" else {}
            assert b"error" not in await ask(wire, API + "STREAM.CREATE." + name, config)
        for number in range(3):
            await ask(watch, f"r.{number}", "{}")
        for name, more in (("pull", {}), ("plain", {"ack_policy": "none"}), ("empty", {"filter_subject": "r.none"}),
                           ("pushing", {"deliver_subject": "nowhere"})):  # fmt: skip
            config = {"durable_name": name, "ack_policy": "explicit", **more}
            answer = await ask(watch, API + f"CONSUMER.CREATE.R.{name}", {"stream_name": "R", "config": config})
            assert b"error" not in answer
        for wire in (owner, watch):
            assert errors(await wire.ask("SUB $JS.EVENT.ADVISORY.API 8")) == []
        for number, target in enumerate(TARGETS):
            assert errors(await watch.ask(f"SUB {target} t{number}")) == []
        yield port, owner, watch


async def seen(owner: Wire, watch: Wire, target: str) -> tuple[int, list[str]]:
    """The number of messages that came to the target, and the subjects of the purges that API advisories tell of."""
    frames = messages(await owner.settle()) + messages(await watch.settle())
    done = [json.loads(frame.payload)["subject"] for frame in frames if frame.sid == "8"]
    return sum(frame.sid == f"t{TARGETS.index(target)}" for frame in frames), [
        name for name in done if "STREAM.PURGE" in name
    ]


@pytest.mark.parametrize("target", TARGETS)
async def test_nothing_that_the_server_publishes_is_a_request(tmp_path: Path, target: str) -> None:
    async with watched(tmp_path) as (port, owner, watch):
        wire = await come(port, "any")
        for name, way in WAYS.items():
            said = await way(wire, target)
            if name in NEVER_RESERVED and target.startswith("$"):
                assert json.loads(said)["error"]["err_code"] == 10052, name
                continue
            came, done = await seen(owner, watch, target)
            async with asyncio.timeout(10):
                while not came:
                    await asyncio.sleep(0.02)
                    more, ran = await seen(owner, watch, target)
                    came, done = came + more, done + ran
            await asyncio.sleep(0.05)
            _, ran = await seen(owner, watch, target)
            assert (b"err_code" in said, done + ran) == (False, []), name
        wire.publish(target, b"{}", wire.inbox)
        await asyncio.sleep(0.1)
        assert (await seen(owner, watch, target))[1], "asked by the client itself it is carried out, and seen here"


@pytest.mark.parametrize("target", TARGETS)
async def test_nobody_has_the_server_publish_where_he_may_not(tmp_path: Path, target: str) -> None:
    async with watched(tmp_path) as (port, owner, watch):
        wire = await come(port, "denied")
        for name in sorted(CHOSEN):
            answer = await WAYS[name](wire, target)
            assert json.loads(answer)["error"]["err_code"] in {10112, 10015, 10052}, name
        wild = target.rpartition(".")[0] + ".{{wildcard(1)}}"
        config = {"name": "W", "subjects": ["w.*"], "republish": {"src": "w.*", "dest": wild}}
        assert b"not permitted" in await ask(wire, API + "STREAM.CREATE.W", config)
        assert await seen(owner, watch, target) == (0, [])
        config["republish"] = {"src": "w.*", "dest": "free.{{wildcard(1)}}"}
        assert b"error" not in await ask(wire, API + "STREAM.CREATE.W", config)
        assert b"error" not in await push(wire, "free.to")
