"""Consumers on whole nodes in one process: clients of them, and where things are."""

from __future__ import annotations

from typing import Any

from jetcluster.consumer.state.state import ConsumerState
from jetcluster.replica.consumer_host import ConsumerHost
from testkit.sim.nodes import ACCOUNT, Cluster, Message, Node

SECOND = 1_000_000_000


class Puller:
    """A client of `node`: what its pulls get, in order."""

    def __init__(self, node: Node, stream: str, consumer: str) -> None:
        self.node = node
        self.next = f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{consumer}".encode()
        self.inbox = b"_INBOX.p%d" % next(node.cluster.inboxes)
        self.got: list[tuple[bytes, bytes, bytes]] = []
        """(subject, ack subject, payload)."""
        self.statuses: list[bytes] = []
        node.bus.subscribe(self.inbox, self._take)

    def _take(self, subject: bytes, reply: bytes, headers: bytes, payload: bytes, origin: object) -> None:
        if headers.startswith(b"NATS/1.0 "):
            self.statuses.append(headers.split(b"\r\n")[0][9:])
        else:
            self.got.append((subject, reply, payload))

    def pull(self, batch: int = 1, expires: float = 5.0, *, no_wait: bool = False) -> int:
        body = b'{"batch":%d,"expires":%d}' % (batch, int(expires * SECOND))
        if no_wait:
            body = b'{"batch":%d,"no_wait":true}' % batch
        return self.node.bus.publish(self.next, body, self.inbox)

    async def fetch(self, batch: int, seconds: float = 5.0) -> list[tuple[bytes, bytes, bytes]]:
        before = len(self.got)
        assert self.pull(batch), "nobody takes the pull"
        await self.node.cluster.until(lambda: len(self.got) >= before + batch, seconds, f"{batch} messages")
        return self.got[before:]

    async def ack(self, message: tuple[bytes, bytes, bytes], word: bytes = b"+ACK") -> Message:
        """Returns when it is confirmed."""
        return await self.node.request(message[1], word)


async def ask(node: Node, stream: str, kind: str, **body: Any) -> dict[str, Any]:
    assignment = node.js.assignment(ACCOUNT, stream)
    assert assignment is not None
    return await node.js.stream_request(assignment, kind, body)


async def consumer(node: Node, name: str, *, stream: str = "S", **config: Any) -> dict[str, Any]:
    """Creates one and returns the reply."""
    wire = {
        "name": name,
        "durable_name": name,
        "deliver_policy": "all",
        "ack_policy": "explicit",
        "ack_wait": 30 * SECOND,
        "max_deliver": -1,
        "max_ack_pending": 1000,
        "max_waiting": 512,
        "replay_policy": "instant",
        **config,
    }
    request = f"r{next(node.cluster.inboxes)}"
    return await ask(node, stream, "consumer_create", name=name, config=wire, action="", request=request)


def host(node: Node, stream: str = "S") -> ConsumerHost:
    return node.replica(stream).consumers


def state(node: Node, name: str = "c", stream: str = "S") -> ConsumerState:
    return host(node, stream).table.by_name[name]


def owner(cluster: Cluster, name: str = "c", stream: str = "S") -> Node:
    """The node on which the consumer's owner runs."""
    found = [
        node
        for node in cluster
        if node.has(stream) and name in host(node, stream).table.by_name
        if host(node, stream).owner(state(node, name, stream).cid) is not None
    ]
    assert len(found) == 1, [node.name for node in found]
    return found[0]


async def owned_by(cluster: Cluster, name: str, on: Node) -> None:
    """Until `on` owns the consumer."""
    if owner(cluster, name) is not on:  # who owns it already is no answer to a stepdown
        await ask(next(iter(cluster)), "S", "consumer_stepdown", name=name, preferred=on.name)
    assert owner(cluster, name) is on


async def owned_by_a_follower(cluster: Cluster) -> tuple[Node, Node]:
    """Makes the consumer c of S: the leader of S, and another node, which owns c."""
    leader = await cluster.led("S")
    await consumer(leader, "c")
    home = cluster.followers("S")[0]
    await owned_by(cluster, "c", home)
    return leader, home


async def filled(cluster: Cluster, messages: int, replicas: int = 3) -> None:
    await cluster.create("S", replicas)
    await cluster.led("S")
    for number in range(messages):
        await cluster["A"].publish(b"s", b"%d" % number)
