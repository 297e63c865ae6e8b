"""150 ms between two places: a mirror at the edge answers for a stream of the hub, with the hub or without it."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import statistics
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import nats
import nats.errors
import pytest
from nats.aio.client import Client as NATS

from testkit.harness import ProcessCluster, eventually, find_server, free_ports

from .leaf_pair import OURS, THEIRS, LeafPair, Relay, linked

pytestmark = [pytest.mark.cluster, pytest.mark.thorough]

DELAY = 0.15
"""Seconds each way."""
ROUND_TRIP = 2 * DELAY
FAR = "$JS.hub.API"
NEAR = "$JS.API"
PAIRS = [(OURS, THEIRS), (THEIRS, OURS)]


async def api(client: NATS, subject: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
    reply = await client.request(subject, json.dumps(body).encode() if body else b"", timeout=5)
    found = json.loads(reply.data)
    assert "error" not in found, found
    return dict(found)


async def read(client: NATS, subject: str, prefix: str = NEAR) -> tuple[float, bytes]:
    """Direct Get of ORIGIN's newest message on `subject`: seconds, payload."""
    start = time.monotonic()
    reply = await client.request(f"{prefix}.DIRECT.GET.ORIGIN.{subject}", timeout=5)
    assert reply.headers is not None
    assert "Status" not in reply.headers, reply.headers
    assert reply.headers["Nats-Subject"] == subject
    return time.monotonic() - start, reply.data


async def read_all(client: NATS, last: int) -> list[tuple[int, bytes]]:
    """(sequence, payload) of what a Direct Get batch of ORIGIN has."""
    inbox = client.new_inbox()
    subscription = await client.subscribe(inbox)
    await client.publish(f"{NEAR}.DIRECT.GET.ORIGIN", b'{"seq":1,"batch":%d}' % (last + 1), reply=inbox)
    found: list[tuple[int, bytes]] = []
    while True:
        msg = await subscription.next_msg(timeout=10)
        assert msg.headers is not None
        if "Status" in msg.headers:
            await subscription.unsubscribe()
            assert msg.headers["Status"] == "204", msg.headers
            return found
        found.append((int(msg.headers["Nats-Sequence"]), msg.data))


class Orders:
    """Publishes at the hub, one message after the other, until stopped. The payload of sequence n is n."""

    def __init__(self, client: NATS) -> None:
        self._jetstream = client.jetstream()
        self.acked = 0
        self._going = True
        self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        while self._going:
            number = self.acked + 1
            ack = await self._jetstream.publish(f"orders.{number}", b"%d" % number, timeout=10)
            assert ack.seq == number
            self.acked = number
            await asyncio.sleep(0.005)

    async def reach(self, count: int) -> None:
        async def there() -> bool:
            if self._task.done():
                self._task.result()
            return self.acked >= count

        await eventually(there, 60, f"{count} orders are not published")

    async def stop(self) -> None:
        self._going = False
        await self._task


async def median_read(client: NATS, subject: str) -> float:
    return statistics.median([(await read(client, subject))[0] for _ in range(9)])


async def story(above: NATS, below: Sequence[NATS], relays: Sequence[Relay], replicas: int) -> None:
    """`below` are clients of the edge's nodes, `relays` its links."""
    origin = {"name": "ORIGIN", "subjects": ["orders.>"], "allow_direct": True, "num_replicas": replicas}
    await api(above, f"{NEAR}.STREAM.CREATE.ORIGIN", origin)
    orders = Orders(above)
    await orders.reach(100)
    mirror = {"name": "ORIGIN", "external": {"api": FAR}}
    copy = {"name": "COPY", "mirror": mirror, "mirror_direct": True, "num_replicas": len(below)}
    await api(below[0], f"{NEAR}.STREAM.CREATE.COPY", copy)

    async def served(client: NATS, number: int) -> bool:
        with contextlib.suppress(nats.errors.NoRespondersError, AssertionError):
            return (await read(client, f"orders.{number}"))[1] == b"%d" % number
        return False

    for client in below:
        await eventually(functools.partial(served, client, 100), 30, "the mirror does not answer for its upstream")
        assert await median_read(client, "orders.7") < DELAY
        # What is asked of the hub by its domain's name is answered there.
        assert (await read(client, "orders.7", FAR))[0] >= ROUND_TRIP
    for relay in relays:
        await relay.cut()
    at_cut = orders.acked
    await orders.reach(at_cut + 100)
    for client in below:
        for number in range(1, 101):
            assert (await read(client, f"orders.{number}"))[1] == b"%d" % number
        assert await median_read(client, "orders.7") < DELAY
        with pytest.raises(nats.errors.NoRespondersError):
            await read(client, "orders.7", FAR)
    for relay in relays:
        await relay.open()
    await orders.reach(at_cut + 200)
    await orders.stop()
    last = orders.acked
    for client in below:
        await eventually(functools.partial(served, client, last), 60, "the mirror has not gone on")
        assert await read_all(client, last) == [(n, b"%d" % n) for n in range(1, last + 1)]
        assert await median_read(client, f"orders.{last}") < DELAY
    info = await api(below[0], f"{NEAR}.STREAM.INFO.COPY")
    assert info["state"]["messages"] == info["state"]["last_seq"] == last


@pytest.mark.parametrize("kinds", PAIRS, ids=lambda pair: f"{pair[0]}-hub-{pair[1]}-edge")
async def test_one_server_each(kinds: tuple[str, str], tmp_path: Path) -> None:
    if find_server(THEIRS) is None and THEIRS in kinds:
        pytest.skip("nats-server is not on this machine: run `make tools`")
    async with LeafPair(*kinds, tmp_path, delay=DELAY) as pair:
        await story(pair.at_hub, [pair.at_leaf], [pair.relay], 1)


@pytest.fixture
async def stack() -> AsyncIterator[AsyncExitStack]:
    async with AsyncExitStack() as found:
        yield found


async def test_clusters(stack: AsyncExitStack) -> None:
    """Three nodes each; every node of the edge has a link of its own, to another node of the hub."""
    ports = free_ports(3)
    hub = ProcessCluster(config="jetstream { domain: hub }\n", name="HUB", monitor=True)
    edge = ProcessCluster(config="jetstream { domain: edge }\n", name="EDGE", monitor=True)
    relays = [Relay(port, DELAY) for port in ports]
    for above, below, relay, port in zip(hub.nodes, edge.nodes, relays, ports, strict=True):
        await relay.open()
        stack.push_async_callback(relay.cut)
        with (above.root / "server.conf").open("a") as file:
            file.write(f'leafnodes {{ listen: "127.0.0.1:{port}", no_advertise: true }}\n')
        with (below.root / "server.conf").open("a") as file:
            file.write(f'leafnodes {{ reconnect: "500ms", remotes [ {{ url: "nats://127.0.0.1:{relay.port}" }} ] }}\n')
    for cluster in (hub, edge):
        await stack.enter_async_context(cluster)
    for node in (*hub.nodes, *edge.nodes):
        await linked(node)
    clients = [await nats.connect(node.url) for node in (hub.nodes[0], *edge.nodes)]
    for client in clients:
        stack.push_async_callback(client.close)
    await story(clients[0], clients[1:], relays, 3)
