"""`SnapshotOwner`: the replica of a group, a stream's or the meta group's, as `CatchUp` sees it."""

from __future__ import annotations

from typing import Protocol

from jetcluster.raft.membership import Config
from jetcluster.records import dataclass
from jetcluster.store.api import DamagedError
from jetcluster.store.transfer import Giver, Taker


@dataclass(slots=True, frozen=True)
class Cut:
    """One consistent state of a group: everything applied up to `index`, nothing after."""

    index: int
    term: int
    config: Config
    """As of `index`, not as of now: a newer one may never be committed."""
    giver: Giver
    size: int = 0
    """About as many bytes, in all."""
    messages: int = 0
    """In all; 0 when it is not a stream's."""


class SnapshotOwner(Protocol):
    """A replica as its peers take snapshots from it and give it theirs."""

    @property
    def state_index(self) -> int:
        """The last command that the own state holds: nothing older is taken."""
        ...

    @property
    def wants_state(self) -> bool:
        """Another state is still what brings this replica on."""
        ...

    @property
    def keeps_state(self) -> bool:
        """The own state has something that the giver's may lack (both may be damaged): it is not given up before the
        giver has shown that it can give everything."""
        ...

    def export_failed(self, error: DamagedError) -> None:
        """The own state cannot be read to its end."""
        ...

    def snapshot_export(self) -> Cut:
        """Raises MeshError when this replica has no state that others should build upon, and KvError."""
        ...

    def snapshot_fetched(self, peer: str, index: int) -> None:
        """`peer` is being given the state of `index` and will need the log behind it."""
        ...

    def snapshot_begin(self) -> Taker:
        """Gives up the own state, for what is to take its place; nothing is applied from here on until `snapshot_end`.
        Raises KvError."""
        ...

    async def snapshot_room(self, size: int) -> None:
        """Before `size` bytes are taken: frees what was given up, if need be. Raises KvFullError when the disk cannot
        take it."""
        ...

    async def snapshot_abandon(self) -> None:
        """The disk cannot take all of it: what has come leaves the disk again. Raises KvError."""
        ...

    async def snapshot_end(self, index: int, term: int, config: Config) -> None:
        """Makes the imported state durable and current, and continues the group after `index`."""
        ...
