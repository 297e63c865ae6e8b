"""A client of the object service on the nodes of `nodes`: uploads, requests, a reader of downloads."""

from __future__ import annotations

import asyncio
import json
from base64 import urlsafe_b64encode
from hashlib import sha256
from typing import Any

from testkit.sim.nodes import Cluster, Node

API = b"$JS.API.$OBJ.b."
"""Subjects to which a client's node passes on what the client publishes to `$OBJ.b.` (`api.object_claims`)."""
DATA = bytes(range(256)) * 40


def digest(data: bytes) -> str:
    return "sha-256=" + urlsafe_b64encode(sha256(data).digest()).decode()


async def begin(node: Node, nonce: str, data: bytes = DATA, chunks: int = 4, name: str = "o") -> dict[str, Any]:
    body = json.dumps({"name": name, "nonce": nonce, "chunks": chunks, "size": len(data)}).encode()
    return await node.publish(API + b"info." + name.encode(), body)


def pieces(data: bytes = DATA, count: int = 4) -> list[bytes]:
    size = -(-len(data) // count)
    return [data[at : at + size] for at in range(0, len(data), size)]


async def put(node: Node, nonce: str, data: bytes = DATA, name: str = "o") -> dict[str, Any]:
    await begin(node, nonce, data, len(pieces(data)), name)
    subject = API + b"chunks." + nonce.encode()
    replies = await node.requests(subject, pieces(data), 5.0)
    return next(found for found in map(json.loads, (reply[2] for reply in replies)) if "digest" in found)


async def ask(node: Node, action: str, name: str = "", **more: Any) -> dict[str, Any]:
    """Asks the leader of the bucket's stream, as `api.endpoints` does. Raises ApiError."""
    assignment = node.js.assignment("$G", "OBJ_b")
    assert assignment is not None
    body = {"action": action, "name": name, "offset": 0, "limit": 0, "deliver": "", "reply": "", **more}
    answer = (await node.js.stream_request(assignment, "object", body))["answer"]
    return json.loads(answer) if answer else {}


class Reader:
    """Listens on node's deliver subject."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.heads: list[bytes] = []
        self.chunks: list[bytes] = []
        node.bus.subscribe(b"head", lambda s, r, h, p, o: self.heads.append(h))
        node.bus.subscribe(b"deliver", lambda s, r, h, p, o: self.chunks.append(p))

    async def get(self, name: str = "o") -> None:
        await asyncio.sleep(0.01)  # the interest is on its way
        await ask(self.node, "get", name, deliver="deliver", reply="head")


async def bucket(cluster: Cluster, replicas: int = 3, **config: Any) -> Node:
    await cluster.create("OBJ_b", replicas, subjects=["$OBJ.b.>"], **config)
    await asyncio.sleep(0.01)
    return await cluster.led("OBJ_b")
