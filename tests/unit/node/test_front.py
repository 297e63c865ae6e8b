"""A cluster with a node that has no JetStream (api/relay.py, cluster/joining.py): the one that clients connect to."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

from jetcluster import logs
from jetcluster.config.options import ClusterOptions, JetStreamOptions, Options
from jetcluster.monitor.start import NodeMonitoring
from jetcluster.node.node import Node
from testkit.harness import free_ports


async def ask(node: Node, endpoint: str, reply: bytes, **body: Any) -> dict[str, Any]:
    """Asks the API as a client of this node does; {} when nobody takes the request."""
    bus = node.server.account("$G")
    done: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
    inbox = bus.subscribe(reply, lambda *message: done.done() or done.set_result(message[3]))
    try:
        if not bus.ask(b"$JS.API." + endpoint.encode(), json.dumps(body).encode() if body else b"", reply):
            return {}
        answer: dict[str, Any] = json.loads(await asyncio.wait_for(done, 10))
        return answer
    finally:
        bus.unsubscribe(inbox)


async def test_a_node_without_jetstream_is_no_part_of_the_meta_group_and_serves_its_api(tmp_path: Path) -> None:
    """nats.js runs tests on a cluster of this kind (its setupDataConnCluster)."""
    ports = free_ports(4)
    nodes = []
    for number, port in enumerate(ports):
        routes = [f"nats://127.0.0.1:{other}" for other in ports if other != port]
        options = Options(
            server_name=f"n{number}", host="127.0.0.1", port=-1,
            cluster=ClusterOptions(name="C", host="127.0.0.1", port=port, routes=routes),
            jetstream=JetStreamOptions(enabled=number > 0, store_dir=str(tmp_path / str(number))),
        )  # fmt: skip
        nodes.append(Node(options, logs.get_logger("test"), monitoring=NodeMonitoring))
    await asyncio.gather(*(node.start() for node in nodes))
    front = nodes[0]
    try:
        for attempt in range(200):
            answer = await ask(front, "INFO", b"_INBOX.i%d" % attempt)
            if answer and "error" not in answer:
                break
            await asyncio.sleep(0.05)
        else:
            raise AssertionError(answer)
        body = {"name": "S", "subjects": ["s"], "num_replicas": 3}
        created = await ask(front, "STREAM.CREATE.S", b"_INBOX.c", **body)
        assert "error" not in created, created
        names = {created["cluster"]["leader"], *(peer["name"] for peer in created["cluster"]["replicas"])}
        assert names == {"n1", "n2", "n3"}
        assert (await ask(front, "STREAM.NAMES", b"_INBOX.n"))["streams"] == ["S"]
    finally:
        await asyncio.gather(*(node.stop() for node in nodes))
