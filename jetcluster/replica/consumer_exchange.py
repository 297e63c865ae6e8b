"""The messages between nodes about the consumers of a stream: turns on their way to the leader, claims of ownership,
and what only an owner knows.

Turns are notices: they keep their order on a link and cost no task. What gets lost on the way, the operation log finds.
"""

from __future__ import annotations

import asyncio
import json
import struct
from collections.abc import Awaitable, Callable
from typing import Any

from jetcluster.clock import Clock
from jetcluster.consumer.state import turn
from jetcluster.mesh.api import MeshError
from jetcluster.mesh.frames import FrameError
from jetcluster.raft.api import RaftError, Role
from jetcluster.replica.consumer_host import ConsumerHost
from jetcluster.replica.context import NodeContext
from jetcluster.replica.replica_state import ReplicaState
from jetcluster.stream.log.commands import CONSUMER_TURN, HEAD

Body = dict[str, Any]

TURN_NOTICE = "consumer.turn"
REFUSED_NOTICE = "consumer.refused"
LEAVE_NOTICE = "consumer.leave"
ANSWERED_NOTICE = "consumer.answered"
ASK_METHOD = "consumer.ask"
STARTED_SECONDS = 2.0
"""Seconds that a node waits for an owner to start, or to be gone."""
FLUSH_SECONDS = 0.4
PAUSE = 0.001

_GID = struct.Struct("<I")
_REFUSED = struct.Struct("<IQ")
_LEAVE = struct.Struct("<I?")
_ANSWERED = struct.Struct("<II")


class ConsumerExchange:
    """One per node. `host`: of the replica of a group here; None when there is none."""

    def __init__(self, context: NodeContext, host: Callable[[int], ConsumerHost | None]) -> None:
        self._context = context
        self._host = host
        self._peer = context.me.encode()
        mesh = context.mesh
        mesh.on_notice(TURN_NOTICE, self._on_turn)
        mesh.on_notice(REFUSED_NOTICE, self._on_refused)
        mesh.on_notice(LEAVE_NOTICE, self._on_leave)
        mesh.on_notice(ANSWERED_NOTICE, self._on_answered)
        mesh.serve(ASK_METHOD, self._serve)

    # -- turns

    def send_turn(self, host: ConsumerHost, session: int, body: bytes) -> bool:
        """See `ConsumerOperationLog`."""
        replica = host.replica
        if replica.group.role is Role.LEADER:
            if not self._propose(replica, body):
                host.turns.refused(session)
            return True
        leader = replica.group.leader
        if leader is None or leader not in self._context.mesh.peers:
            return False
        self._context.mesh.notify(leader, TURN_NOTICE, _GID.pack(replica.assignment.gid) + body)
        return True

    def _on_turn(self, peer: str, payload: bytes) -> None:
        if len(payload) < _GID.size + 16 or payload[4:12] != peer.encode():
            return
        (gid,) = _GID.unpack_from(payload)
        host = self._host(gid)
        body = payload[_GID.size :]
        if host is None or not turn.is_sound(body) or not self._propose(host.replica, body):
            (session,) = struct.unpack_from("<Q", payload, _GID.size + 8)
            self._context.mesh.notify(peer, REFUSED_NOTICE, _REFUSED.pack(gid, session))

    def _propose(self, replica: ReplicaState, body: bytes) -> bool:
        if self._context.turn_commit.failing:
            return False
        try:
            replica.group.propose(HEAD.pack(CONSUMER_TURN, 0, self._context.clock.time_ns()) + body)
        except RaftError:
            return False
        return True

    def _on_refused(self, peer: str, payload: bytes) -> None:
        if len(payload) != _REFUSED.size:
            raise FrameError("malformed refusal of a turn")
        gid, session = _REFUSED.unpack(payload)
        host = self._host(gid)
        if host is not None:
            host.turns.refused(session)

    # -- who leaves

    def tell_leaving(self, host: ConsumerHost, leaving: bool) -> None:
        """Tells everybody, since anybody may lead the stream next, that this node wants to own nothing of it, or that
        it does again."""
        self._leave(host, self._context.me, leaving=leaving)
        self._context.mesh.notify(None, LEAVE_NOTICE, _LEAVE.pack(host.replica.assignment.gid, leaving))

    def _on_leave(self, peer: str, payload: bytes) -> None:
        if len(payload) != _LEAVE.size:
            raise FrameError("malformed notice of who leaves")
        gid, leaving = _LEAVE.unpack(payload)
        host = self._host(gid)
        if host is not None:
            self._leave(host, peer, leaving=leaving)

    def _leave(self, host: ConsumerHost, peer: str, *, leaving: bool) -> None:
        host.replica.wake()
        if leaving:
            host.policy.leave(peer)
            host.moves.move()
        else:
            host.policy.stay(peer)

    # -- who has been answered

    def answered(self, owner: str, gid: int, cid: int) -> None:
        """Tells `owner` that who asked for consumer `cid` of group `gid` has been answered, here: what it sends to a
        client of this node from now on comes after that."""
        if owner != self._context.me:
            self._context.mesh.notify(owner, ANSWERED_NOTICE, _ANSWERED.pack(gid, cid))
            return
        host = self._host(gid)
        if host is not None:
            host.answered(cid)

    def _on_answered(self, peer: str, payload: bytes) -> None:
        if len(payload) != _ANSWERED.size:
            raise FrameError("malformed notice of an answer")
        self.answered(self._context.me, *_ANSWERED.unpack(payload))

    # -- what only an owner knows

    async def ask(self, peer: str, gid: int, kind: str, body: Body, seconds: float) -> Body:
        """Asks the node that owns consumers (it may be this one). Raises MeshError."""
        payload = json.dumps({"gid": gid, "kind": kind, **body}).encode()
        answer: Body = json.loads(await self._context.mesh.call(peer, ASK_METHOD, payload, seconds))
        return answer

    async def _serve(self, peer: str, payload: bytes) -> bytes:
        body = json.loads(payload)
        host = self._host(int(body["gid"]))
        handler = _HANDLERS.get(body["kind"])
        if host is None or handler is None:
            raise MeshError(f"no replica of group {body['gid']} here")
        return json.dumps(await handler(self, host, body)).encode()

    async def _started(self, host: ConsumerHost, body: Body) -> Body:
        """The owner of consumer `cid` runs here, and every node knows where its subjects lead."""
        cid = int(body["cid"])

        def settled() -> bool:
            state = host.table.by_cid.get(cid)
            if host.replica.machine.applied_index < body["index"]:
                return False
            return host.owner(cid) is not None or state is None or state.owner != self._context.me

        await self._until(settled, STARTED_SECONDS)
        await self._sync_interest()
        return self._live_of(host, [cid])

    async def _gone(self, host: ConsumerHost, body: Body) -> Body:
        """The owner of consumer `cid` is gone from here, and every node knows."""
        await self._until(lambda: host.owner(int(body["cid"])) is None, STARTED_SECONDS)
        await self._sync_interest()
        return {}

    async def _live(self, host: ConsumerHost, body: Body) -> Body:
        """(waiting, bound) of consumers, by a replica that has come to `index`; what those without acks have delivered
        is in the log up to the answer's."""
        await self._until(lambda: host.replica.machine.applied_index >= body["index"], FLUSH_SECONDS)
        owners = [owner for owner in map(host.owner, body["cids"]) if owner is not None]
        for owner in owners:
            owner.flush()
        await self._settled(host)
        if any(not owner.state.rules.acks for owner in owners):
            await self._settled(host)  # what was sent while an ADVANCE was in flight comes with the next one
        return {**self._live_of(host, body["cids"]), "index": host.replica.machine.applied_index}

    async def _unpin(self, host: ConsumerHost, body: Body) -> Body:
        owner = host.owner(int(body["cid"]))
        if owner is None:
            raise MeshError("the consumer has another owner")
        owner.unpin(str(body["group"]).encode())
        await self._settled(host)
        return {}

    async def _settled(self, host: ConsumerHost) -> None:
        """Waits until the operations that the owners here have submitted so far are applied, or lost."""
        turns = host.turns
        target = turns.submitted
        await self._until(lambda: not turns.is_open or turns.told >= target, FLUSH_SECONDS)

    def _live_of(self, host: ConsumerHost, cids: list[int]) -> Body:
        """`live`: consumer id -> (pulls that wait, bound); `since`: consumer id -> when its owner began."""
        live, since = {}, {}
        for cid in cids:
            hosted = host.running.get(cid)
            if hosted is not None:
                live[str(cid)] = [hosted.owner.num_waiting, int(hosted.owner.push_bound)]
                since[str(cid)] = hosted.since
        return {"live": live, "since": since}

    async def _sync_interest(self) -> None:
        try:
            await self._context.mesh.sync_interest(STARTED_SECONDS)
        except MeshError as error:
            self._context.log.debug("a node has not confirmed a consumer's subjects", error=str(error))

    async def _until(self, condition: Callable[[], bool], seconds: float) -> None:
        await until(condition, self._context.clock, seconds)


async def until(condition: Callable[[], bool], clock: Clock, seconds: float) -> None:
    """Returns when `condition` holds, or after `seconds`."""
    end = clock.monotonic() + seconds
    while True:
        if condition() or clock.monotonic() >= end:
            return
        await asyncio.sleep(PAUSE)


_HANDLERS: dict[str, Callable[[ConsumerExchange, ConsumerHost, Body], Awaitable[Body]]] = {
    "started": ConsumerExchange._started,
    "gone": ConsumerExchange._gone,
    "live": ConsumerExchange._live,
    "unpin": ConsumerExchange._unpin,
}
