"""A server with leaf links whose other ends are played by the test."""

from __future__ import annotations

import json
from typing import Any

from jetcluster.config.options import LeafOptions, LeafRemoteOptions
from jetcluster.server.leaf.link import LeafLink
from jetcluster.server.leaf.nodes import LeafNodes
from testkit.server_rig import FakeTransport, ServerRig

HELLO = {"server_id": "NLEAF", "name": "L", "cluster": "L", "domain": "edge", "headers": True, "protocol": 3}


class LeafRig:
    """One server with leaf links whose other ends are played by the test."""

    def __init__(self, *, leafnodes: LeafOptions | None = None, rig: ServerRig | None = None, **options: Any) -> None:
        self.rig = rig or ServerRig(leafnodes=leafnodes or LeafOptions(port=1), **options)
        self.router = self.rig.router
        self.leafnodes = LeafNodes(self.rig.server.parts)

    def open(self, remote: LeafRemoteOptions | None = None) -> End:
        return End(self, LeafLink(self.leafnodes.link_parts, remote, remote.urls[0] if remote else ""))

    def leaf(self, **hello: Any) -> End:
        """An accepted link that is through the handshake."""
        end = self.open()
        end.send(b"CONNECT " + json.dumps(HELLO | hello).encode() + b"\r\n")
        end.read()
        return end

    def hub(self, **info: Any) -> End:
        """A solicited link that is through the handshake."""
        end = self.open(LeafRemoteOptions(urls=["nats://u:p@h:7422"]))
        first = {"server_id": "NHUB", "server_name": "H", "leafnode_urls": [], "info_on_connect": True} | info
        end.send(b"INFO " + json.dumps(first).encode() + b"\r\n")
        end.send(b"INFO " + json.dumps(first | {"connect_info": True, "remote_account": "$G"}).encode() + b"\r\n")
        end.read()
        return end


class End:
    def __init__(self, leaf_rig: LeafRig, link: LeafLink) -> None:
        self.leaf_rig = leaf_rig
        self.link = link
        self.transport = FakeTransport()
        self.transport.protocol = link
        link.connection_made(self.transport)

    def send(self, *lines: bytes) -> None:
        self.link.data_received(b"".join(lines))

    def read(self) -> bytes:
        self.leaf_rig.rig.time.advance(0)
        data = bytes(self.transport.written)
        self.transport.written.clear()
        return data


def mark_of(leaf_rig: LeafRig) -> bytes:
    return leaf_rig.leafnodes.state.loop_mark("$G")
