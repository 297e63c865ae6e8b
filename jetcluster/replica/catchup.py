"""Bringing up a replica whose next log entry no peer's journal holds any more.

The replica pulls (`pull.py`): it opens a snapshot at a peer, fetches what differs from what it has, makes that durable,
and only then tells its Raft group to continue after the snapshot's index. The peer gives what it is asked for from a
fixed view of its store (`exports.py`) and keeps serving; what it does also keeps its log from being forgotten, if it
leads. Nothing on its side grows with the stream's size.

A transfer that is broken off, by a link that is lost for long, a restart of either side or another leader, goes on
where it was: what has come is equal by then. So does the next one, when the log that follows the state was forgotten
meanwhile.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from functools import partial

from jetcluster.clock import Clock, Rng
from jetcluster.logs import Log
from jetcluster.mesh.api import MeshError
from jetcluster.mesh.core import MeshCore
from jetcluster.replica.exports import CLOSE, OPEN, Exports, Opened
from jetcluster.replica.pull import RETRY_PAUSE, Pull, Transfer
from jetcluster.replica.snapshot_owner import SnapshotOwner
from jetcluster.replica.troubles import Troubles
from jetcluster.store.api import DamagedError
from jetcluster.store.kv import KvError, KvFullError
from jetcluster.store.transfer import Taker

FULL_SECONDS = 30.0
"""A state that did not fit on the disk is not fetched again for so long, unless it is half as large by then."""


class CatchUp:
    """Serves this node's snapshots and pulls those of peers. One pull per group at a time."""

    def __init__(self, mesh: MeshCore, clock: Clock, rng: Rng, owners: dict[int, SnapshotOwner], log: Log) -> None:
        self._mesh = mesh
        self._clock = clock
        self._owners = owners
        self._log = log
        self._troubles = Troubles(clock, log)
        self._exports = Exports(mesh, clock, rng, owners, log, self._troubles)
        self._pulls: dict[int, asyncio.Task[None]] = {}
        self._stopped = False
        self.transfers: dict[int, Pull] = {}
        """The running pulls, by group, with what they have received."""
        self._too_large: dict[int, tuple[int, float]] = {}
        """Group -> the size of a state that did not fit, and until when that counts."""

    def pull(self, gid: int, peer: str, index: int) -> None:
        """Starts to bring group `gid` to at least `index` from `peer`. While a pull is running it does nothing, but for
        one that waits for another peer that is out of reach: that ends, so that the next call finds none."""
        task = self._pulls.get(gid)
        if task is not None:
            running = self.transfers.get(gid)
            if running is not None and running.stalled and running.peer != peer:
                task.cancel()
        elif not self._stopped:
            task = asyncio.get_running_loop().create_task(self._pull(gid, peer, index), name=f"catch-up {gid}")
            self._pulls[gid] = task
            task.add_done_callback(lambda _: self._pulls.pop(gid, None))

    def running(self, gid: int) -> bool:
        return gid in self._pulls

    def progress(self) -> list[tuple[Pull, float]]:
        """The transfers to this node and how many seconds each runs (for monitoring)."""
        now = self._clock.monotonic()
        return [(pull, now - pull.began) for _, pull in sorted(self.transfers.items())]

    def missing(self, gid: int, peer: str) -> int | None:
        """Messages that `peer`, which fetches the state of the group from here, lacks, about; None when it does not
        fetch it."""
        return self._exports.missing(gid, peer)

    @property
    def exports(self) -> int:
        """Snapshots being read here (for monitoring); each pins a view of the data store."""
        return len(self._exports)

    def forget(self, gid: int) -> None:
        """The replica goes away: its pull ends before it takes another step, nobody reads its state any more."""
        self._too_large.pop(gid, None)
        self._troubles.over(gid)
        task = self._pulls.get(gid)
        if task is not None:
            task.cancel()
        self._exports.forget(gid)

    def tick(self) -> None:
        self._exports.tick()

    async def stop(self) -> None:
        self._stopped = True
        tasks = list(self._pulls.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._exports.clear()

    async def _pull(self, gid: int, peer: str, index: int) -> None:
        """Never raises: the group asks again (`on_snapshot_needed`) as long as it cannot go on. A half import is marked
        as such in the store and is never served."""
        try:
            await self._fetch(self._owners[gid], gid, peer, index)
        except MeshError as error:
            self._troubles.failed(gid, peer, error)
            await asyncio.sleep(RETRY_PAUSE)
        except (DamagedError, KvError) as error:
            self._log.error("catch-up failed", gid=gid, peer=peer, error=str(error) or repr(error))
            await asyncio.sleep(RETRY_PAUSE)
        except Exception as error:  # noqa: BLE001 - nobody awaits this task; silence would look like a slow peer
            self._log.error("catch-up failed", gid=gid, peer=peer, error=repr(error))
            await asyncio.sleep(RETRY_PAUSE)
        finally:
            self.transfers.pop(gid, None)

    async def _fetch(self, owner: SnapshotOwner, gid: int, peer: str, index: int) -> None:
        opened = await self._open(owner, gid, peer, index)
        if owner.keeps_state:
            await self._transfer(owner, gid, peer, opened, None)
            opened = await self._open(owner, gid, peer, index)
        try:
            pull = await self._transfer(owner, gid, peer, opened, partial(self._begin, owner, opened))
            await owner.snapshot_end(opened.index, opened.term, opened.config)
        except KvFullError:
            # Others need what is left: no half of it is kept, and no whole one fetched again and again.
            self._too_large[gid] = opened.size, self._clock.monotonic() + FULL_SECONDS
            await owner.snapshot_abandon()
            raise
        self._too_large.pop(gid, None)
        self._troubles.over(gid)
        took = round(self._clock.monotonic() - pull.began, 3)
        figures = {"compared": pull.compared, "fetched": pull.fetched, "seconds": took}
        self._log.info("caught up from a snapshot", gid=gid, peer=peer, index=opened.index, **figures)

    async def _open(self, owner: SnapshotOwner, gid: int, peer: str, index: int) -> Opened:
        request = json.dumps({"gid": gid, "index": max(index, owner.state_index)}).encode()
        opened = Opened.decode(await self._mesh.call(peer, OPEN, request))
        size, until = self._too_large.get(gid, (0, 0.0))
        refused = _overtaken(owner, opened)
        if not refused and opened.size > size // 2 and self._clock.monotonic() < until:
            refused = "there is no room for it yet"
        if refused:
            self._mesh.notify(peer, CLOSE, opened.id.encode())
            raise MeshError(refused)
        return opened

    def _begin(self, owner: SnapshotOwner, opened: Opened) -> Taker:
        """The peer has shown that it gives what it opened, and that the two sides understand each other."""
        if refused := _overtaken(owner, opened):
            raise MeshError(refused)
        return owner.snapshot_begin()

    async def _transfer(
        self, owner: SnapshotOwner, gid: int, peer: str, opened: Opened, begin: Callable[[], Taker] | None
    ) -> Pull:
        """Without `begin` it is only seen that the peer can read all of it."""
        pull = Pull(gid, peer, self._clock.monotonic(), opened.size, opened.messages)
        self.transfers[gid] = pull
        try:
            await Transfer(self._mesh, self._clock, pull, opened.id).run(owner, begin)
        finally:
            self._mesh.notify(peer, CLOSE, opened.id.encode())
        return pull


def _overtaken(owner: SnapshotOwner, opened: Opened) -> str:
    return "the log was faster" if opened.index < owner.state_index or not owner.wants_state else ""
