"""JetStream of another account: one account exports its API, acks and what consumers deliver, another imports them and
works with its streams by an API prefix. The same program at both servers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import nats
import pytest
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy, KeyValueConfig, StreamConfig

from testkit.harness import Node, find_server, free_ports

pytestmark = [pytest.mark.cluster, pytest.mark.thorough]

ACK_V2 = "feature_flags: {js_ack_fc_v2: true}\n"

CONFIG = """
accounts {
  A {
    jetstream: {max_streams: 3}
    users: [ {user: a, password: p} ]
    exports: [
      {service: "$JS.API.>", response_type: stream}
      {service: "$JS.ACK.>"}
      {service: "$JS.FC.>"}
      {service: "orders.>"}
      {service: "$KV.>"}
      {stream: "deliver.>"}
      {stream: "news.>"}
    ]
  }
  B {
    jetstream: enabled
    users: [ {user: b, password: p} ]
    imports: [
      {service: {account: A, subject: "$JS.API.>"}, to: "JS.acc.API.>"}
      {service: {account: A, subject: "$JS.ACK.>"}}
      {service: {account: A, subject: "$JS.FC.>"}}
      {service: {account: A, subject: "orders.>"}}
      {service: {account: A, subject: "$KV.>"}}
      {stream: {account: A, subject: "deliver.>"}}
      {stream: {account: A, subject: "news.>"}, prefix: from.a}
      {service: {account: "$SYS", subject: "$SYS.REQ.ACCOUNT.B.CONNZ"}, to: my.connections}
      {service: {account: "$SYS", subject: "$SYS.DEBUG.SUBSCRIBERS"}}
    ]
  }
  C {
    users: [ {user: c, password: p} ]
    imports: [ {service: {account: A, subject: "$JS.API.>"}}, {service: {account: A, subject: "$JS.ACK.>"}} ]
  }
  D { users: [ {user: d, password: p} ] }
  "$SYS" {
    users: [ {user: s, password: p} ]
    exports: [
      {service: "$SYS.REQ.ACCOUNT.*.CONNZ", account_token_position: 4, response_type: stream}
      {service: "$SYS.DEBUG.SUBSCRIBERS"}
    ]
  }
}
"""


@asynccontextmanager
async def running(kind: str, folder: Path, config: str = "") -> AsyncIterator[int]:
    command = find_server(kind)
    if command is None:
        pytest.skip(f"{kind} is not on this machine: run `make tools`")
    (port,) = free_ports(1)
    folder.mkdir()
    (folder / "s.conf").write_text(CONFIG + config + f'jetstream {{ store_dir: "{folder}/js" }}\n')
    node = Node(kind, command, folder, port, ["-a", "127.0.0.1", "-p", str(port), "-c", str(folder / "s.conf")])
    await node.start()
    try:
        yield port
    finally:
        node.kill9()


async def story(port: int) -> list[Any]:
    """All that the client of the importing account sees, step by step."""
    seen: list[Any] = []
    nc = await nats.connect(f"nats://b:p@127.0.0.1:{port}", name="nc", max_reconnect_attempts=0)
    owner = await nats.connect(f"nats://a:p@127.0.0.1:{port}", max_reconnect_attempts=0)
    try:
        js = nc.jetstream(prefix="JS.acc.API", timeout=5)
        await js.add_stream(StreamConfig("ORDERS", subjects=["orders.>"], allow_direct=True))
        for number in range(6):
            ack = await js.publish(f"orders.{number % 2}", b"%d" % number, headers={"K": "v"})
            seen.append(("ack", ack.stream, ack.seq))
        info = await js.stream_info("ORDERS")
        seen.append(("info", info.state.messages, info.config.subjects))
        seen.append(("own streams", [s.config.name for s in await owner.jetstream().streams_info()]))
        seen.append(("streams of the importer", await nc.jetstream().streams_info()))
        for direct in (True, False):
            got = await js.get_msg("ORDERS", seq=2, direct=direct)
            seen.append(("get", got.subject, got.data, got.headers and got.headers.get("K")))
            seen.append(("stored headers", sorted(k for k in got.headers or {} if k.startswith("Nats-Request"))))
        last = await js.get_last_msg("ORDERS", "orders.1", direct=True)
        seen.append(("last", last.seq, last.data))
        seen += await _pulled(js)
        seen += await _pushed(nc, js)
        seen += await _buckets(js)
        seen += await _errors(nc, js)
        seen += await _imported_into_a_stream(nc, owner)
        seen += await _mirrored(nc)
        seen += await _system(nc, owner)
        await owner.publish("orders.9", b"late")
        await owner.flush()
        seen += await _without_jetstream(port)
    finally:
        await nc.close()
        await owner.close()
    return seen


async def _pulled(js: Any) -> list[Any]:
    await js.add_consumer("ORDERS", ConsumerConfig(durable_name="pull", ack_policy=AckPolicy.EXPLICIT))
    sub = await js.pull_subscribe_bind("pull", "ORDERS")
    seen: list[Any] = []
    for message in await sub.fetch(3, timeout=5):
        seen.append(("pulled", message.subject, message.data, _form(message.reply)))
        await message.ack_sync()
    info = await js.consumer_info("ORDERS", "pull")
    seen.append(("floor", info.ack_floor.stream_seq, info.num_ack_pending))
    rest = await sub.fetch(10, timeout=1)
    seen.append(("rest", [message.data for message in rest]))
    await rest[0].nak()
    (again,) = await sub.fetch(1, timeout=5)
    seen.append(("again", again.data, again.metadata.num_delivered))
    try:
        await sub.fetch(1, timeout=0.3)
    except nats.errors.TimeoutError:
        seen.append("nothing left")
    await sub.unsubscribe()
    return seen


def _form(reply: str) -> list[str]:
    """The tokens of a reply subject, without the time of the message."""
    tokens = reply.split(".")
    return [*tokens[:-2], "time", tokens[-1]]


async def _pushed(nc: Any, js: Any) -> list[Any]:
    got: list[Any] = []

    async def take(message: Any) -> None:
        if message.data:
            got.append(("pushed", message.subject, message.data, _form(message.reply)))
            await message.ack()

    await nc.subscribe("deliver.d", cb=take)
    config = ConsumerConfig(
        durable_name="push",
        deliver_subject="deliver.d",
        ack_policy=AckPolicy.EXPLICIT,
        deliver_policy=DeliverPolicy.ALL,
        filter_subject="orders.1",
    )
    await js.add_consumer("ORDERS", config)
    for _ in range(250):
        info = await js.consumer_info("ORDERS", "push")
        if info.ack_floor.stream_seq == 6:
            break
        await asyncio.sleep(0.02)
    return [*got, ("push floor", info.ack_floor.stream_seq, info.push_bound)]


async def _buckets(js: Any) -> list[Any]:
    bucket = await js.create_key_value(KeyValueConfig("b", direct=True))
    first = await bucket.put("x.y", b"one")
    second = await bucket.update("x.y", b"two", last=first)
    entry = await bucket.get("x.y")
    seen: list[Any] = [("kv", second, entry.value, entry.revision)]
    await bucket.delete("x.y")
    seen.append(("keys", (await bucket.status()).values))
    return seen


async def _errors(nc: Any, js: Any) -> list[Any]:
    """Limits are the exporter's."""
    seen: list[Any] = []
    for name in ("S2", "S3"):
        reply = await nc.request(
            f"JS.acc.API.STREAM.CREATE.{name}",
            json.dumps({"name": name, "subjects": [f"q.{name}"]}).encode(),
            timeout=5,
        )
        seen.append(("create", json.loads(reply.data).get("error", {}).get("err_code")))
    missing = await nc.request("JS.acc.API.STREAM.INFO.nobody", b"", timeout=5)
    seen.append(("missing", json.loads(missing.data)["error"]["err_code"]))
    account = json.loads((await nc.request("JS.acc.API.INFO", b"", timeout=5)).data)
    seen.append(("account", account["limits"]["max_streams"], account["streams"]))
    return seen


async def _imported_into_a_stream(nc: Any, owner: Any) -> list[Any]:
    """A stream of the importing account stores what it imports."""
    own = nc.jetstream()
    await own.add_stream(StreamConfig("NEWS", subjects=["from.a.news.>"]))
    await owner.publish("news.x", b"hello")
    await owner.flush()
    for _ in range(250):
        info = await own.stream_info("NEWS")
        if info.state.messages:
            break
        await asyncio.sleep(0.02)
    got = await own.get_last_msg("NEWS", "from.a.news.x")
    return [("news", info.state.messages, got.subject, got.data)]


async def _mirrored(nc: Any) -> list[Any]:
    """A stream of the importer that mirrors one of the exporter, and one that has it as a source."""
    seen: list[Any] = []
    external = {"api": "JS.acc.API", "deliver": "deliver.m"}
    for name, link in (("MIRROR", {"mirror": {"name": "ORDERS", "external": external}}),
                       ("SOURCED", {"sources": [{"name": "ORDERS", "external": external}]})):  # fmt: skip
        body = json.dumps({"name": name, **link}).encode()
        created = json.loads((await nc.request(f"$JS.API.STREAM.CREATE.{name}", body, timeout=5)).data)
        seen.append((name, created.get("error")))
        info: dict[str, Any] = {}
        for _ in range(500):
            info = json.loads((await nc.request(f"$JS.API.STREAM.INFO.{name}", b"", timeout=5)).data)
            if info.get("state", {}).get("messages") == 6:
                break
            await asyncio.sleep(0.02)
        seen.append((name, info["state"]["messages"]))
        last = await nc.jetstream().get_last_msg(name, "orders.1")
        seen.append((name, last.seq, last.data))
    return seen


async def _system(nc: Any, owner: Any) -> list[Any]:
    """Requests of the system account: each account gets its own numbers."""
    seen: list[Any] = []
    for subject in ("my.connections", "$SYS.REQ.ACCOUNT.PING.CONNZ"):
        found = json.loads((await nc.request(subject, b"{}", timeout=5)).data)["data"]
        seen.append((subject, [one["name"] for one in found["connections"]]))
    who = json.loads((await nc.request("$SYS.REQ.USER.INFO", b"", timeout=5)).data)["data"]
    seen.append((who["user"], who["account"]))
    for at in range(3):
        await nc.subscribe("count.me", queue="q" if at else "")
        await owner.subscribe("count.>")
    await nc.flush()
    await owner.flush()
    for wanted in (b"count.me", b"count.me q", b"count.>", b"nobody"):
        counted = await nc.request("$SYS.DEBUG.SUBSCRIBERS", wanted, timeout=5)
        seen.append((wanted, counted.data))
    try:
        await owner.request("$SYS.DEBUG.SUBSCRIBERS", b"count.me", timeout=1)
    except nats.errors.NoRespondersError:
        seen.append("not imported")
    return seen


async def _without_jetstream(port: int) -> list[Any]:
    """An account that has none uses another's API as if it were its own; one that imports nothing gets an error."""
    seen: list[Any] = []
    for user in ("c", "d"):
        nc = await nats.connect(f"nats://{user}:p@127.0.0.1:{port}", max_reconnect_attempts=0)
        inbox = await nc.subscribe("answers")
        for subject in ("INFO", "STREAM.INFO.ORDERS", "CONSUMER.INFO.ORDERS.pull"):
            await nc.publish(f"$JS.API.{subject}", reply="answers")
            answer = json.loads((await inbox.next_msg(timeout=5)).data)
            seen.append((user, subject, answer.get("error", {}).get("err_code")))
        if user == "c":
            sub = await nc.jetstream().pull_subscribe_bind("pull", "ORDERS")
            seen.append([message.data for message in await sub.fetch(1, timeout=5)])
        await asyncio.sleep(0.1)
        seen.append(("answers beyond the first", inbox.pending_msgs))
        await nc.close()
    return seen


@pytest.mark.parametrize("config", ["", ACK_V2], ids=["v1", "v2"])
async def test_the_importer_works_with_streams_of_the_exporter(tmp_path: Path, newest_peer: None, config: str) -> None:
    async with running("nats-server", tmp_path / "theirs", config) as port:
        expected = await story(port)
    async with running("jetcluster", tmp_path / "ours", config) as port:
        found = await story(port)
    assert found == expected
    (form,) = {len(seen[3]) for seen in found if seen[0] == "pulled"}
    assert form == (11 if config else 9)
