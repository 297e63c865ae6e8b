"""What the monitor reads of a running node, and small things all endpoints render alike.

The monitor and the server are neighbours that do not import each other; the node passes itself in. The parts are `Any`
here because their classes live next door; the attributes used are those of `server.server.Server`,
`server.client.Client`, `mesh.core.MeshCore` and `cluster.jetstream.JetStream`.
"""

from __future__ import annotations

from typing import Any, Protocol

from jetcluster.clock import Clock
from jetcluster.config.options import Options
from jetcluster.config.units import format_duration
from jetcluster.model.times import rfc3339


class NodeView(Protocol):
    """`node.node.Node`."""

    config_load_ns: int
    """When the configuration was last taken over; 0: at the start."""
    monitor_source: Any
    """`NodeSource`, once it is wanted (`node_source.source_of`)."""

    @property
    def options(self) -> Options: ...
    @property
    def clock(self) -> Clock: ...
    @property
    def server(self) -> Any: ...
    @property
    def jetstream(self) -> Any:
        """`NodeJetStream` or None."""
        ...

    @property
    def monitor(self) -> Any:
        """`Monitor`, whose `port` is the bound one, or None."""
        ...


def mesh_of(node: NodeView) -> Any:
    """`MeshCore`, or None before the node has one."""
    return getattr(node.jetstream, "mesh", None)


def engine_of(node: NodeView) -> Any:
    """`cluster.jetstream.JetStream`, or None when JetStream is off or not up yet."""
    return getattr(node.jetstream, "jetstream", None)


def links_of(node: NodeView) -> list[Any]:
    mesh = mesh_of(node)
    return [] if mesh is None else list(mesh.links.values())


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
    return format_duration(round(seconds * 1e6) * 1000)


def text(value: bytes) -> str:
    return value.decode(errors="replace")
