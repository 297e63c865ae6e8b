"""A running node as the monitor reads it, and small things that all pages render alike."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from jetcluster.clock import Clock
from jetcluster.config.options import Options
from jetcluster.model import durations
from jetcluster.model.times import rfc3339
from jetcluster.monitor.page_counters import PageCounters

if TYPE_CHECKING:
    from jetcluster.api.dispatch import JetStreamApi
    from jetcluster.auth.known_accounts import KnownAccounts
    from jetcluster.auth.resolver import Resolver
    from jetcluster.cluster.jetstream import JetStream
    from jetcluster.mesh.core import MeshCore
    from jetcluster.mesh.peer_link import LinkStats, PeerLink
    from jetcluster.raft.writer import DiskWaits
    from jetcluster.server.client.client_connection import ClientConnection
    from jetcluster.server.leaf.connection import LeafConnection
    from jetcluster.server.leaf.nodes import LeafNodes
    from jetcluster.server.server import Server


class CapacityView(Protocol):
    """`node.capacity.Capacity`; bytes."""

    @property
    def max_memory(self) -> int: ...
    @property
    def max_storage(self) -> int: ...


class JetStreamView(Protocol):
    """`node.node_jetstream.NodeJetStream`, whose `mesh` is there on a node without JetStream too."""

    mesh: MeshCore
    jetstream: JetStream | None
    cluster_port: int
    store_dir: str

    @property
    def apis(self) -> dict[str, JetStreamApi]: ...
    @property
    def capacity(self) -> CapacityView | None: ...
    @property
    def disk_waits(self) -> DiskWaits | None: ...


class OperatorView(Protocol):
    """`node.operator_mode.NodeOperator`."""

    known: KnownAccounts
    resolver: Resolver

    def update(self, key: str, text: str) -> bool: ...
    def remove(self, key: str) -> None: ...


class NodeView(Protocol):
    """`node.node.Node`, which stands above the monitor and passes itself in."""

    config_load_ns: int
    """When the configuration was last taken over; 0: at the start."""
    page_counters: PageCounters
    monitor_port: int
    """The port of the monitoring; 0 before it is open, or without one."""
    options: Options
    server: Server
    leafnodes: LeafNodes | None

    @property
    def clock(self) -> Clock: ...
    @property
    def jetstream(self) -> JetStreamView | None: ...
    @property
    def operator(self) -> OperatorView | None: ...


def mesh_of(node: NodeView) -> MeshCore | None:
    """None before the node has one."""
    return None if node.jetstream is None else node.jetstream.mesh


def engine_of(node: NodeView) -> JetStream | None:
    """None when JetStream is off or not up yet."""
    return None if node.jetstream is None else node.jetstream.jetstream


def apis_of(node: NodeView) -> dict[str, JetStreamApi]:
    """By account, those where JetStream is on."""
    return {} if node.jetstream is None else node.jetstream.apis


def links_of(node: NodeView) -> list[PeerLink]:
    mesh = mesh_of(node)
    return [] if mesh is None else list(mesh.links.values())


def figures(counted: ClientConnection | LeafConnection | LinkStats) -> dict[str, int]:
    """The messages and bytes of one connection, by nats-server's names."""
    return {
        "in_msgs": counted.in_msgs,
        "out_msgs": counted.out_msgs,
        "in_bytes": counted.in_bytes,
        "out_bytes": counted.out_bytes,
    }


def now_text(node: NodeView) -> str:
    return rfc3339(node.clock.time_ns())


def wall_time(node: NodeView, monotonic: float) -> str:
    """A monotonic moment as RFC 3339."""
    return rfc3339(node.clock.time_ns() - int((node.clock.monotonic() - monotonic) * 1e9))


def uptime(seconds: float) -> str:
    """`3d2h1m0s`, in whole seconds, leading zero units left out, as nats-top shows it."""
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
