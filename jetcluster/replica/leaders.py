"""The leaders of all groups, as far as this node knows them.

Members of a group learn its leader from Raft. Other nodes learn it from the leader, which notifies all peers when it
takes over, sends a peer its whole list when a link comes up, and answers questions. A hint may be stale: a node that is
asked by mistake says so, and the asker forgets the hint and asks all peers (`wait`).
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable

from jetcluster.mesh.api import NodeInfo
from jetcluster.mesh.core import MeshCore
from jetcluster.mesh.frames import FrameError
from jetcluster.records import NamedTuple

_NOTICE = "lead"
_ASK = "lead?"
_ENTRY = struct.Struct("<IQ")
_GID = struct.Struct("<I")
ASK_AGAIN_SECONDS = 0.2
"""Least time between two questions to the peers for the leader of one group, however many callers wait for it."""
MAX_ENTRIES_PER_NOTICE = 4096


class Hint(NamedTuple):
    """A peer's word about a group: its newest leader known there, and that leader's term."""

    term: int
    leader: str


class _Waiters:
    """The callers that wait for news of one group's leader, and the time of the last question to the peers."""

    __slots__ = ("asked", "futures")

    def __init__(self) -> None:
        self.futures: list[asyncio.Future[None]] = []
        self.asked = float("-inf")


class LeaderTable:
    """Hints of who leads which group. One per node."""

    def __init__(self, mesh: MeshCore, local: Callable[[int], str | None], on_led: Callable[[int, int], None]) -> None:
        """`local(gid)`: the leader that this node's own replica of the group follows, None without one. `on_led` is
        called with (group, term) when a peer reports that it leads the group."""
        self._mesh = mesh
        self._local, self.on_led = local, on_led
        self._me = mesh.me.peer_id
        self._leaders: dict[int, Hint] = {}
        self._mine: dict[int, int] = {}
        self._waiters: dict[int, _Waiters] = {}
        mesh.on_notice(_NOTICE, self._on_notice)
        mesh.on_notice(_ASK, self._on_question)
        mesh.on_peers(self._peer_up, self._peer_down)

    def get(self, gid: int) -> str | None:
        """Peer id of the group's leader, this node's own id included; None when unknown."""
        hint = self.hint(gid)
        return hint.leader if hint is not None else None

    def hint(self, gid: int) -> Hint | None:
        """The leader as the object that `suspect` takes."""
        known = self._leaders.get(gid)
        if known is None and (leader := self._local(gid)) is not None:
            known = self._leaders[gid] = Hint(0, leader)
        return known

    def led_by_me(self) -> tuple[int, ...]:
        return tuple(self._mine)

    def lead(self, gid: int, term: int) -> None:
        """Note that this node leads the group, and notify every peer."""
        self._mine[gid] = term
        self._learn(gid, term, self._me)
        self._mesh.notify(None, _NOTICE, _ENTRY.pack(gid, term))

    def follow(self, gid: int, term: int, leader: str | None) -> None:
        """Take over the leader that this node's own replica of the group follows."""
        self._mine.pop(gid, None)
        if leader is not None:
            self._learn(gid, term, leader)
        elif self.get(gid) == self._me:
            self._leaders.pop(gid, None)

    def forget(self, gid: int) -> None:
        self._mine.pop(gid, None)
        self._leaders.pop(gid, None)

    def suspect(self, gid: int, hint: Hint) -> None:
        """Forget `hint`, whose node does not lead (yet), unless a newer one was learned. The same leader learned again
        counts as newer: the node may have been asked a moment before it was ready."""
        if self._leaders.get(gid) is hint and gid not in self._mine:
            del self._leaders[gid]

    async def wait(self, gid: int, seconds: float) -> None:
        """Return when a hint of the group's leader arrives, or after `seconds`. Where none is known all peers are
        asked: a leader does not repeat its notice by itself, and this node may have forgotten it."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        waiters = self._waiters.setdefault(gid, _Waiters())
        waiters.futures.append(future)
        # Not where a leader is known: its answer would wake the callers that wait for another one, over and over.
        if self.hint(gid) is None and loop.time() - waiters.asked >= ASK_AGAIN_SECONDS:
            waiters.asked = loop.time()
            self._mesh.notify(None, _ASK, _GID.pack(gid))
        try:
            async with asyncio.timeout(seconds):
                await future
        except TimeoutError:
            pass
        finally:
            if future in waiters.futures:
                waiters.futures.remove(future)
            if not waiters.futures and self._waiters.get(gid) is waiters:
                del self._waiters[gid]

    def _learn(self, gid: int, term: int, leader: str) -> None:
        known = self._leaders.get(gid)
        if known is not None and known.term > term:
            return
        self._leaders[gid] = Hint(term, leader)
        waiters = self._waiters.pop(gid, None)
        for future in waiters.futures if waiters is not None else ():
            if not future.done():
                future.set_result(None)

    def _on_notice(self, peer: str, payload: bytes) -> None:
        if len(payload) % _ENTRY.size or len(payload) > _ENTRY.size * MAX_ENTRIES_PER_NOTICE:
            raise FrameError("malformed list of groups")
        for gid, term in _ENTRY.iter_unpack(payload):
            self._learn(gid, term, peer)
            self.on_led(gid, term)

    def _on_question(self, peer: str, payload: bytes) -> None:
        """Answer a question for the leader of one group; an empty one asks for all groups that this node leads."""
        if not payload:
            self._tell(peer)
            return
        if len(payload) != _GID.size:
            raise FrameError("malformed question for a leader")
        (gid,) = _GID.unpack(payload)
        if gid in self._mine:
            self._mesh.notify(peer, _NOTICE, _ENTRY.pack(gid, self._mine[gid]))

    def ask(self, peer: str) -> None:
        """Ask `peer` again for the groups it leads: its list was ignored while it was not known as a member."""
        self._mesh.notify(peer, _ASK, b"")

    def _peer_up(self, info: NodeInfo) -> None:
        self._tell(info.peer_id)

    def _tell(self, peer: str) -> None:
        entries = [_ENTRY.pack(gid, term) for gid, term in self._mine.items()]
        for start in range(0, len(entries), MAX_ENTRIES_PER_NOTICE):
            self._mesh.notify(peer, _NOTICE, b"".join(entries[start : start + MAX_ENTRIES_PER_NOTICE]))

    def _peer_down(self, info: NodeInfo) -> None:
        gone = [gid for gid, hint in self._leaders.items() if hint.leader == info.peer_id]
        for gid in gone:
            del self._leaders[gid]
