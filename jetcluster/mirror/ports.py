"""`LinkDependencies` and `LinkTarget`: the services of a node, and the stream, that a link works for."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from jetcluster.clock import Clock, Rng, Timers
from jetcluster.logs import Log
from jetcluster.mirror.pace import Paces
from jetcluster.protocol.bus import Bus
from jetcluster.store.api import DamagedError
from jetcluster.store.block_store import BlockStore
from jetcluster.stream.rules import StreamRules
from jetcluster.stream.sourced import Cursor


class LinkTarget(Protocol):
    """The stream that is fed, on its leader."""

    @property
    def rules(self) -> StreamRules: ...

    @property
    def store(self) -> BlockStore: ...

    def cursor(self, key: bytes) -> Cursor | None: ...

    def propose(self, command: bytes) -> int | None:
        """Puts a SOURCED command into the log; its index. None: not now."""
        ...

    def report_damage(self, error: DamagedError) -> None:
        """A stored record cannot be read here."""
        ...

    @property
    def origin(self) -> bytes:
        """Name that tells this stream from all others that may read the same upstream, wherever they are."""
        ...

    def knows(self, name: str) -> bool:
        """Is there such a stream in the account?"""
        ...


class LinkDependencies(NamedTuple):
    """The services of the node and the stream that one link uses."""

    bus: Bus
    clock: Clock
    timers: Timers
    rng: Rng
    log: Log
    target: LinkTarget
    paces: Paces
