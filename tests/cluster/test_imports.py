"""Accounts that share, in a cluster: requester, responder, importer and stream on different nodes; the same on
nats-server. Reload of what is shared."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import nats
import pytest
from nats.js.api import AckPolicy, ConsumerConfig, StreamConfig

from testkit.harness import Node, ProcessCluster, eventually

pytestmark = pytest.mark.cluster

CONFIG = """accounts {
  A { jetstream: enabled, users: [{user: a, password: p}]
    exports: [ {service: "$JS.API.>", response_type: stream}, {service: "$JS.ACK.>"}, {service: "orders.>"}
      {service: "req.>"}, {stream: "pub.>"}, {stream: "deliver.>"} ] }
  B { users: [{user: b, password: p}]
    imports: [ {service: {account: A, subject: "$JS.API.>"}, to: "JS.acc.API.>"}
      {service: {account: A, subject: "$JS.ACK.>"}}, {service: {account: A, subject: "orders.>"}}
      {service: {account: A, subject: "req.x"}, to: ask}, {stream: {account: A, subject: "pub.>"}, prefix: imp}
      {stream: {account: A, subject: "deliver.>"}} ]
    mappings { alias: ask } }
}
no_auth_user: a
"""


async def connect(node: Node, user: str) -> Any:
    return await nats.connect(f"nats://{user}:p@127.0.0.1:{node.port}", max_reconnect_attempts=0)


async def test_accounts_share_across_nodes(server: str) -> None:
    async with ProcessCluster(3, server, config=CONFIG) as cluster:
        importers = [await connect(node, "b") for node in cluster.nodes]
        exporter = await connect(cluster[2], "a")
        try:
            await _core(importers, exporter)
            await _jetstream(importers)
            if server == "jetcluster":  # a reload is the same for both, once is enough
                await _reload(cluster, importers, exporter)
        finally:
            for client in (*importers, exporter):
                await client.close()


async def _core(importers: list[Any], exporter: Any) -> None:
    async def serve(message: Any) -> None:
        await message.respond(b"yes " + message.data)

    await exporter.subscribe("req.*", cb=serve)
    reader = await importers[1].subscribe("imp.pub.>")
    members = [await importer.subscribe("imp.pub.q", "workers") for importer in importers]
    await _settled(*importers, exporter)
    for at, importer in enumerate(importers):
        for subject in ("ask", "alias"):
            answer = await importer.request(subject, b"%d" % at, timeout=5)
            assert answer.data == b"yes %d" % at
    with pytest.raises(nats.errors.NoRespondersError):
        await importers[0].request("req.x", b"", timeout=5)
    await exporter.publish("pub.x", b"news")
    message = await reader.next_msg(timeout=5)
    assert (message.subject, message.data) == ("imp.pub.x", b"news")
    for _ in range(12):
        await exporter.publish("pub.q", b"work")
    await _settled(*importers, exporter)
    assert sum(member.pending_msgs for member in members) == 12


async def _settled(*clients: Any) -> None:
    """Interest and messages have gone through: they travel in order with what is asked here."""
    for _ in range(3):
        for client in clients:
            await client.flush()
        await asyncio.sleep(0.1)


async def _jetstream(importers: list[Any]) -> None:
    contexts = [client.jetstream(prefix="JS.acc.API", timeout=10) for client in importers]
    config = StreamConfig("ORDERS", subjects=["orders.>"], num_replicas=3, allow_direct=True)
    await contexts[0].add_stream(config)
    for at, js in enumerate(contexts):
        assert (await js.publish(f"orders.{at}", b"%d" % at)).seq == at + 1
    await contexts[0].add_consumer("ORDERS", ConsumerConfig(durable_name="pull", ack_policy=AckPolicy.EXPLICIT))
    for at, js in enumerate(contexts):
        sub = await js.pull_subscribe_bind("pull", "ORDERS")
        (message,) = await sub.fetch(1, timeout=5)
        assert (message.subject, message.data) == (f"orders.{at}", b"%d" % at)
        await message.ack_sync(timeout=5)
        assert (await js.get_msg("ORDERS", seq=at + 1, direct=True)).data == b"%d" % at
    info = await contexts[1].consumer_info("ORDERS", "pull")
    assert (info.ack_floor.stream_seq, info.num_ack_pending, info.num_pending) == (3, 0, 0)
    pushed = await importers[2].subscribe("deliver.d")
    push = ConsumerConfig(durable_name="push", deliver_subject="deliver.d", ack_policy=AckPolicy.EXPLICIT)
    await contexts[0].add_consumer("ORDERS", push)
    for at in range(3):
        message = await pushed.next_msg(timeout=5)
        assert (message.subject, message.data) == (f"orders.{at}", b"%d" % at)
        await message.ack_sync(timeout=5)


async def _reload(cluster: ProcessCluster, importers: list[Any], exporter: Any) -> None:
    for node in cluster.nodes:
        file = node.store.parent / "server.conf"
        file.write_text(file.read_text().replace("prefix: imp", "prefix: new").replace("to: ask", "to: please"))
        node.signal(1)
    for node in cluster.nodes:
        await eventually(partial(_has_reloaded, node), 10, "no reload", node)
    renamed = await importers[0].subscribe("new.pub.>")
    await _settled(*importers, exporter)
    await exporter.publish("pub.x", b"again")
    assert (await renamed.next_msg(timeout=5)).subject == "new.pub.x"
    assert (await importers[0].request("please", b"", timeout=5)).data == b"yes "
    with pytest.raises(nats.errors.NoRespondersError):
        await importers[1].request("ask", b"", timeout=5)


async def _has_reloaded(node: Node) -> bool:
    return "Reloaded server configuration" in node.log()
