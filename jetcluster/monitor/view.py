"""The monitor's view of a running node, and the values that all pages and all `$SYS` answers render alike."""

from __future__ import annotations

import heapq
from collections.abc import Set
from typing import TYPE_CHECKING, NamedTuple

from jetcluster import REPORTED_VERSION
from jetcluster.config import feature_flags
from jetcluster.model import durations
from jetcluster.model.times import rfc3339
from jetcluster.monitor.source import Json
from jetcluster.node.node import Node

if TYPE_CHECKING:
    from jetcluster.api.dispatch import JetStreamApi
    from jetcluster.cluster.jetstream import JetStream
    from jetcluster.config.options import LeafRemoteOptions
    from jetcluster.mesh.core import MeshCore
    from jetcluster.mesh.peer_link import LinkStats, PeerLink
    from jetcluster.meta.state import Assignment
    from jetcluster.server.client.clients import ClosedClient
    from jetcluster.server.client.connection import ClientConnection
    from jetcluster.server.leaf.connection import LeafConnection


def mesh_of(node: Node) -> MeshCore | None:
    """Returns None before the node has a mesh."""
    return None if node.jetstream is None else node.jetstream.mesh


def engine_of(node: Node) -> JetStream | None:
    """Returns None when JetStream is off or not yet up."""
    return None if node.jetstream is None else node.jetstream.jetstream


def apis_of(node: Node) -> dict[str, JetStreamApi]:
    """Returns the APIs of the accounts with JetStream."""
    return {} if node.jetstream is None else node.jetstream.apis


class UntoldStreams(NamedTuple):
    """The streams, by gid, that no server that is there can tell of."""

    lost: Set[int]
    """No server of the cluster has a replica: its server was removed, or came back without its store."""
    away: Set[int]
    """The servers of all replicas are in the cluster, and this one has no link to any of them."""


def untold_streams(engine: JetStream) -> UntoldStreams:
    machine, network = engine.meta.machine, engine.network
    lost = machine.without(machine.nodes.keys())
    return UntoldStreams(lost, machine.without({network.me, *network.mesh.peers}) - lost)


def assignments_of(engine: JetStream, gids: Set[int], most: int) -> list[Assignment]:
    """Returns the first `most` of these streams, by gid."""
    found = map(engine.meta.machine.by_gid, heapq.nsmallest(most, gids))
    return [one for one in found if one is not None]


def links_of(node: Node) -> list[PeerLink]:
    mesh = mesh_of(node)
    return [] if mesh is None else list(mesh.links.values())


def leaf_links(node: Node) -> list[LeafConnection]:
    """Returns the links to hubs and leaves, in the order of their connection ids."""
    return [] if node.leafnodes is None else sorted(node.leafnodes.links, key=lambda link: int(link.cid))


def disconnected_remotes(node: Node) -> list[LeafRemoteOptions]:
    """Returns the hubs of the configuration to which there is no link now."""
    connected = {id(link.remote) for link in leaf_links(node)}
    remotes = node.leafnodes.state.options.remotes if node.leafnodes is not None else ()
    return [remote for remote in remotes if not remote.disabled and id(remote) not in connected]


def figures(counted: ClientConnection | ClosedClient | LeafConnection | LinkStats) -> dict[str, int]:
    """Returns the messages and bytes of one connection, by nats-server's names."""
    return {
        "in_msgs": counted.in_msgs,
        "out_msgs": counted.out_msgs,
        "in_bytes": counted.in_bytes,
        "out_bytes": counted.out_bytes,
    }


def now_text(node: Node) -> str:
    return rfc3339(node.clock.time_ns())


def wall_time(node: Node, monotonic: float) -> str:
    """Returns a time of the monotonic clock, in seconds, as RFC 3339."""
    return rfc3339(node.clock.time_ns() - int((node.clock.monotonic() - monotonic) * 1e9))


def uptime(seconds: float) -> str:
    """Returns `3d2h1m0s`, in whole seconds, without leading zero units, as nats-top shows it."""
    minutes, second = divmod(int(max(seconds, 0)), 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    if days:
        return f"{days}d{hour}h{minute}m{second}s"
    if hour:
        return f"{hour}h{minute}m{second}s"
    return f"{minute}m{second}s" if minute else f"{second}s"


def rtt(seconds: float) -> str:
    return durations.render(round(seconds * 1e6) * 1000)


def text(value: bytes) -> str:
    return value.decode(errors="replace")


JETSTREAM_FLAG = 1


class ServerBlock:
    """The `server` object of every `$SYS` reply and event: the server that sends it. `seq` counts these messages."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._seq = 0

    def make(self) -> Json:
        options, server = self._node.options, self._node.server
        self._seq += 1
        found: Json = {"name": server.name, "host": options.host, "id": server.server_id}
        if options.is_clustered:
            found["cluster"] = options.cluster_name
        if options.domain:
            found["domain"] = options.domain
        found["ver"] = REPORTED_VERSION
        if options.server_tags:
            found["tags"] = list(options.server_tags)
        if options.server_metadata:
            found["metadata"] = dict(options.server_metadata)
        found["feature_flags"] = feature_flags.merged(options.feature_flags)
        enabled = options.jetstream.enabled
        found |= {"jetstream": enabled, "flags": JETSTREAM_FLAG if enabled else 0}
        return found | {"seq": self._seq, "time": rfc3339(self._node.clock.time_ns())}
