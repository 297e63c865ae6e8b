"""Attempts of account B on streams and consumers of account A: every API subject of the code's own table, and every
other subject to which the server or clients give a meaning. They serve for one node here, and for a cluster in
tests/cluster."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from typing import Any

from tests.unit.server.wire import Wire, errors, messages

HIDDEN = b"hidden"
"""The text in descriptions, payloads, subjects and names of A, and in nothing that B sends."""
CONFIG = """
jetstream {{ store_dir: "{store}", domain: hub }}
accounts {{
  A {{ jetstream: enabled, users: [ {{ user: hidden-user, password: p }} ] }}
  B {{ jetstream: enabled, users: [ {{ user: b, password: p }} ] }}
}}
"""
STREAM = {
    "name": "S", "subjects": ["s.>", "hidden.>"], "description": "hidden", "storage": "memory", "allow_direct": True,
    "max_age": 0,
}  # fmt: skip
BUCKET = {"name": "KV_b", "subjects": ["$KV.b.>"], "description": "hidden", "storage": "memory", "allow_direct": True}
CONSUMER = {"durable_name": "C", "ack_policy": "explicit", "description": "hidden", "ack_wait": 60_000_000_000}

NONE = 10059
"""err_code: B has no such stream."""
NOBODY = "503"
EMPTY = "empty"
SILENT = "silent"
OWN = "own"
"""Works, and makes something of B's own."""


@dataclass(frozen=True)
class Row:
    args: str
    """Tokens behind the endpoint's name."""
    body: Any
    expected: int | str


API: dict[str, Row] = {
    "INFO": Row("", "", EMPTY),
    "ACCOUNT.INFO": Row("", "", EMPTY),
    "STREAM.CREATE": Row("M", {"name": "M", "mirror": {"name": "S"}, "storage": "memory"}, OWN),
    "STREAM.UPDATE": Row("S", {"name": "S", "subjects": ["x"]}, NONE),
    "STREAM.INFO": Row("S", {"subjects_filter": ">"}, NONE),
    "STREAM.DELETE": Row("S", "", NONE),
    "STREAM.NAMES": Row("", {"subject": ">"}, EMPTY),
    "STREAM.LIST": Row("", "", EMPTY),
    "STREAM.PURGE": Row("S", "", NONE),
    "STREAM.MSG.GET": Row("S", {"seq": 1}, NONE),
    "STREAM.MSG.DELETE": Row("S", {"seq": 1}, NONE),
    "STREAM.LEADER.STEPDOWN": Row("S", "", "error"),
    "STREAM.SNAPSHOT": Row("S", {"deliver_subject": "_INBOX.b.2"}, NONE),
    "STREAM.RESTORE": Row("S", {"config": {"name": "other"}, "state": {}}, "error"),
    "STREAM.PEER.REMOVE": Row("S", {"peer": "n1"}, "error"),
    "STREAM.PEER.EVACUATE": Row("S", {"peer": "n1"}, "error"),
    "STREAM.CANCEL_MOVE": Row("S", "", "error"),
    "CONSUMER.NAMES": Row("S", "", NONE),
    "CONSUMER.LIST": Row("S", "", NONE),
    "CONSUMER.CREATE": Row("S.x", {"stream_name": "S", "config": {"name": "x", "ack_policy": "none"}}, NONE),
    "CONSUMER.DURABLE.CREATE": Row("S.C", {"stream_name": "S", "config": CONSUMER}, NONE),
    "CONSUMER.INFO": Row("S.C", "", NONE),
    "CONSUMER.DELETE": Row("S.C", "", NONE),
    "CONSUMER.PAUSE": Row("S.C", {"pause_until": "2100-01-01T00:00:00Z"}, NONE),
    "CONSUMER.RESET": Row("S.C", "", NONE),
    "CONSUMER.UNPIN": Row("S.C", {"group": "g"}, NONE),
    "CONSUMER.LEADER.STEPDOWN": Row("S.C", "", "error"),
    "CONSUMER.PEER.REMOVE": Row("S.C", {"peer": "n1"}, "error"),
    "CONSUMER.PEER.EVACUATE": Row("S.C", {"peer": "n1"}, "error"),
    "$OBJ": Row("b", {"name": "x"}, "error"),
    "ACCOUNT.PURGE": Row("A", "", SILENT),
    "META.LEADER.STEPDOWN": Row("", "", SILENT),
    "META.RESCUE": Row("", {"quorum_needed": 1}, SILENT),
    "SERVER.REMOVE": Row("", {"peer": "n1"}, SILENT),
    "SERVER.EVACUATE": Row("", {"peer": "n1"}, SILENT),
}
"""Rows by the endpoint's name in jetcluster/api/endpoints.py: a new endpoint without a row fails the test."""

OTHERS: list[tuple[str, Any, str]] = [
    ("$JS.API.CONSUMER.MSG.NEXT.S.C", {"batch": 1, "no_wait": True}, NOBODY),
    ("$JS.API.DIRECT.GET.S", {"seq": 1}, NOBODY),
    ("$JS.API.DIRECT.GET.S", {"multi_last": [">"]}, NOBODY),
    ("$JS.API.DIRECT.GET.S.s.1", "", NOBODY),
    ("$JS.API.DIRECT.GET.LAST.S.s.1", "", NOBODY),
    ("$JS.API.DIRECT.PEER.S.n1", {"seq": 1}, NOBODY),
    ("$JS.hub.API.DIRECT.GET.S", {"seq": 1}, NOBODY),
    ("$JS.API.DIRECT.GET.KV_b.$KV.b.k", "", NOBODY),
    ("$JS.ACK.S.C.1.1.1.1700000000000000000.0", "+ACK", NOBODY),
    ("$JS.ACK.S.C.1.1.1.1700000000000000000.0", "+TERM", NOBODY),
    ("$JS.ACK._.A.S.C.1.1.1.1700000000000000000.0.x", "-NAK", NOBODY),
    ("$JS.FC.S.C.abcd", "", NOBODY),
    ("$JS.SNAPSHOT.ACK.S.abcd", "", NOBODY),
    ("$JS.SNAPSHOT.RESTORE.S.abcd", "", NOBODY),
    ("s.1", "of B", NOBODY),
    ("$KV.b.k", "of B", NOBODY),
    ("$O.b.C.x", "of B", NOBODY),
    ("$O.b.M.x", "of B", NOBODY),
    ("$OBJ.b", {"name": "x"}, ""),
    ("$JS.hub.API.$KV.b.k", "of B", NOBODY),
    ("$SRV.PING", "", NOBODY),
    ("$SRV.INFO.service", "", NOBODY),
    ("_INBOX.a.1", "of B", NOBODY),
    ("$JS.EVENT.ADVISORY.API", "of B", NOBODY),
    ("$JS.EVENT.METRIC.CONSUMER.ACK.S.C", "of B", NOBODY),
    ("$SYS.REQ.SERVER.PING", "", NOBODY),
    ("$SYS.REQ.SERVER.PING.VARZ", "", NOBODY),
    ("$SYS.REQ.SERVER.PING.JSZ", "", NOBODY),
    ("$SYS.REQ.SERVER.{id}.VARZ", "", NOBODY),
    ("$SYS.REQ.SERVER.{id}.RELOAD", "", NOBODY),
    ("$SYS.REQ.SERVER.{id}.LDM", "", NOBODY),
    ("$SYS.REQ.SERVER.{id}.KICK", {"cid": 1}, NOBODY),
    ("$SYS.REQ.ACCOUNT.A.CONNZ", "", NOBODY),
    ("$SYS.REQ.ACCOUNT.A.SUBSZ", "", NOBODY),
    ("$SYS.REQ.ACCOUNT.A.JSZ", "", NOBODY),
    ("$SYS.REQ.ACCOUNT.A.INFO", "", NOBODY),
    ("$SYS.REQ.ACCOUNT.A.CONNS", "", NOBODY),
    ("$SYS.REQ.CLAIMS.LIST", "", NOBODY),
    ("$SYS.REQ.CLAIMS.UPDATE", "x", NOBODY),
    ("$SYS.DEBUG.SUBSCRIBERS", "s.1", NOBODY),
    ("$SYS.ACCOUNT.A.CONNECT", "of B", NOBODY),
    # Those four that everybody has: of the own account, whatever is asked for.
    ("$SYS.REQ.SERVER.PING.CONNZ", {"acc": "A", "subscriptions": True}, ""),
    ("$SYS.REQ.SERVER.PING.CONNZ", {"auth": True, "state": 2}, ""),
    ("$SYS.REQ.ACCOUNT.PING.CONNZ", {"acc": "A"}, ""),
    ("$SYS.REQ.ACCOUNT.PING.STATZ", {"accounts": ["A"]}, ""),
    ("$SYS.REQ.USER.INFO", "", ""),
]


async def come(port: int, user: str) -> Wire:
    wire = await Wire.open(port)
    assert errors(await wire.log_in(user=user, **{"pass": "p"})) == []
    wire.inbox = f"_INBOX.{user}.1"
    assert errors(await wire.ask(f"SUB {wire.inbox} 1")) == []
    return wire


async def ask(wire: Wire, subject: str, body: Any = "", patience: float = 3.0) -> bytes:
    """The answer, b"" for none."""
    payload = (body if isinstance(body, str) else json.dumps(body)).encode()
    wire.publish(subject, payload, wire.inbox)
    until = asyncio.get_running_loop().time() + patience
    while True:
        frames = await wire.settle()
        if found := errors(frames):
            return found[0].encode()
        if answers := [frame for frame in messages(frames) if frame.sid == "1"]:
            return answers[0].payload
        if asyncio.get_running_loop().time() > until:
            return b""
        await asyncio.sleep(0.005)


async def set_up(a: Wire, replicas: int = 1) -> None:
    for config in (STREAM, BUCKET):
        made = json.loads(await ask(a, f"$JS.API.STREAM.CREATE.{config['name']}", {**config, "num_replicas": replicas}))
        assert "error" not in made, made
    for subject in ("s.1", "hidden.1", "$KV.b.k"):
        assert b'"seq"' in await ask(a, subject, "hidden")
    body = {"stream_name": "S", "config": {**CONSUMER, "num_replicas": replicas}}
    made = json.loads(await ask(a, "$JS.API.CONSUMER.DURABLE.CREATE.S.C", body))
    assert "error" not in made, made
    await a.ask("SUB _INBOX.fetch 9")
    a.publish("$JS.API.CONSUMER.MSG.NEXT.S.C", b'{"batch":1}', "_INBOX.fetch")
    while not messages(await a.settle()):
        await asyncio.sleep(0.005)


async def state_of(a: Wire) -> Any:
    """State of all that A has: what B may not change."""
    stream = json.loads(await ask(a, "$JS.API.STREAM.INFO.S"))
    bucket = json.loads(await ask(a, "$JS.API.STREAM.INFO.KV_b"))
    consumer = json.loads(await ask(a, "$JS.API.CONSUMER.INFO.S.C"))
    names = json.loads(await ask(a, "$JS.API.STREAM.NAMES"))
    kept = ("ack_floor", "num_ack_pending", "num_redelivered", "num_pending", "config", "paused")
    return (
        [{key: one[key] for key in ("config", "state")} for one in (stream, bucket)],
        {key: consumer.get(key) for key in kept},
        names["streams"],
        {one.get("cluster", {}).get("leader") for one in (stream, bucket, consumer)},
    )


def verdict(answer: bytes) -> int | str:
    """The verdict on an answer, in the terms of the tables."""
    if not answer:
        return SILENT
    if answer.startswith(b"NATS/1.0 503"):
        return NOBODY
    try:
        value = json.loads(answer[answer.find(b"{") :])
    except ValueError:
        return answer.decode()
    if not isinstance(value, dict):
        return OWN
    if isinstance(value.get("error"), dict):
        return int(value["error"].get("err_code", 0))
    if value.get("total") == 0 or value.get("streams") == 0:
        return EMPTY
    return OWN
