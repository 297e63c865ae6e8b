"""A cluster as scenarios need it: of local processes (local_cluster.py) or containers (docker_cluster.py)."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from chaos.drills import Drill
from chaos.edge import Edge
from chaos.links import Links
from testkit.shim import Shim


class Target(Protocol):
    """Nodes by name, in a fixed order. What a target cannot do is in `missing`: a need of nemeses -> why not."""

    names: list[str]
    missing: dict[str, str]
    links: Links | None
    edge: Edge | None
    """The server at the edge, where it is needed; `url` knows it by its name."""
    own_copies: bool
    """A node answers Direct Get from its own replica, with nobody else there."""
    most_files: int
    """Limit of file descriptors of each node; 0: what the machine allows."""
    small_disk: str | None
    """The node whose store is on a file system of its own that can be filled."""

    def url(self, name: str) -> str: ...
    def system_url(self, name: str) -> str:
        """With the system account's user where there is one (need `system`)."""
        ...

    def alive(self, name: str) -> bool: ...
    async def start(self, *names: str) -> None:
        """Starts dead nodes, all at once; returns when each is ready. Raises HarnessError."""
        ...

    async def kill(self, *names: str) -> None:
        """SIGKILL, all before the first is reaped."""
        ...

    async def pause(self, *names: str) -> None: ...
    async def resume(self, *names: str) -> None: ...
    async def disconnect(self, name: str) -> None:
        """From the other nodes and from all clients (containers only)."""
        ...

    async def reconnect(self, name: str) -> None: ...
    def store(self, name: str) -> Path:
        """The store of a local node."""
        ...

    def shim(self, name: str) -> Shim:
        """The shim of a local node, where `shim` is not missing."""
        ...

    def drill(self, name: str) -> Drill:
        """The drills of local nodes, where `drill` is not missing."""
        ...

    def log(self, name: str) -> str:
        """All of it."""
        ...

    def tail(self, name: str) -> str:
        """The end of its log."""
        ...
