"""A hub and an edge on one loop, with a bridge in the place of a leaf link; a test cuts it and makes it slow."""

from __future__ import annotations

import functools
import itertools
import json
from typing import Any

from jetcluster.protocol.bus import Origin
from testkit.sim.nodes import Node
from tests.unit.replica.test_mirror_host import ApiCluster

API = b"$JS.hub.API."
MIRROR: dict[str, Any] = {"name": "UP", "external": {"api": "$JS.hub.API"}}


class Bridge:
    """Carries requests of the edge to the hub's API, with answers, and deliveries of the hub with what answers them."""

    def __init__(self, hub: Node, edge: list[Node], *, keeps_headers: bool = True) -> None:
        """`keeps_headers`: False makes the hub one that takes no notice of a request's headers, as nats-server's."""
        self.open = True
        self.delay = 0.001
        """Seconds each way."""
        self._hub, self._edge = hub, edge
        self._keeps_headers = keeps_headers
        self._numbers = itertools.count()
        self.asked = 0
        """Questions for STREAM.INFO that came by."""
        for node in edge:
            node.bus.subscribe(API + b">", self._request, local_only=True)
            node.bus.subscribe(b"$JS.FC.>", self._to_hub, local_only=True)

    def _later(self, call: Any, *args: Any) -> None:
        if self.open:
            self._hub.cluster.loop.call_later(self.delay, self._arrive, call, args)

    def _arrive(self, call: Any, args: Any) -> None:
        if self.open:
            call(*args)

    def _request(self, subject: bytes, reply: bytes, headers: bytes, payload: bytes, origin: Origin) -> None:
        self.asked += subject.startswith(API + b"STREAM.INFO.")
        if b".CONSUMER.CREATE." in subject:
            target = json.loads(payload)["config"]["deliver_subject"].encode()
            self._hub.bus.subscribe(target, functools.partial(self._deliver, target))
        inbox = b"_INBOX.bridge.%d" % next(self._numbers)

        def answer(_: bytes, again: bytes, block: bytes, body: bytes, of: Origin) -> None:
            self._later(self._edge[0].bus.publish, reply, body, b"", block)

        def ask() -> None:
            self._hub.bus.subscribe(inbox, answer)
            head = headers if self._keeps_headers else b""
            self._hub.bus.ask(b"$JS.API." + subject[len(API) :], payload, inbox, head)

        self._later(ask)

    def _to_hub(self, subject: bytes, reply: bytes, headers: bytes, payload: bytes, origin: Origin) -> None:
        self._later(self._hub.bus.publish, subject, payload, reply, headers)

    def _deliver(
        self, target: bytes, subject: bytes, reply: bytes, headers: bytes, payload: bytes, origin: Origin
    ) -> None:
        self._later(self._edge[0].bus.deliver_many, target, [(subject, reply, headers, payload)])


class Edge:
    """UP on a hub of one node, and its mirror M at an edge of three."""

    def __init__(self, **options: Any) -> None:
        self._options = options
        self.hub = ApiCluster("H", clustered=False)
        self.cluster = ApiCluster()

    async def __aenter__(self) -> Edge:
        await self.hub.__aenter__()
        await self.cluster.__aenter__()
        self.origin = self.hub["H"]
        self.bridge = Bridge(self.origin, list(self.cluster), **self._options)
        await self.hub.create("UP", 1)
        await self.put(3)
        await self.cluster.create("M", subjects=[], mirror=MIRROR, mirror_direct=True)
        await self.copied(3)
        await self.cluster.until(self.joined, what="all replicas of the mirror answer for its upstream")
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.cluster.__aexit__(*error)
        await self.hub.__aexit__(*error)

    async def put(self, count: int) -> None:
        await self.origin.requests(b"up", [b"%d" % number for number in range(count)])

    async def copied(self, last: int) -> None:
        def has() -> bool:
            return all(node.has("M") and node.replica("M").store.last_seq >= last for node in self.cluster)

        await self.cluster.until(has, what=f"the mirror at {last}")

    def joined(self) -> bool:
        members = [node.replica("M").reads.upstream for node in self.cluster]
        return all(member is not None and member.joined for member in members)
