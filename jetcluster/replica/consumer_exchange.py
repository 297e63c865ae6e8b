"""Messages between nodes about the consumers of a stream: turns on their way to the leader, claims of ownership, and
questions that only an owner can answer.

Turns are notices: they keep their order on a link and need no task. The operation log detects lost ones.
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
from jetcluster.replica.replica_state import ReplicaState
from jetcluster.replica.services import Network, Runtime
from jetcluster.replica.turn_commit import TurnCommit
from jetcluster.stream.log.commands import CONSUMER_TURN, HEAD

Body = dict[str, Any]
FindHost = Callable[[int], ConsumerHost | None]

TURN_NOTICE = "consumer.turn"
REFUSED_NOTICE = "consumer.refused"
LEAVE_NOTICE = "consumer.leave"
ANSWERED_NOTICE = "consumer.answered"
ASK_METHOD = "consumer.ask"
STARTED_SECONDS = 2.0
"""Longest wait for an owner to start or to end."""
FLUSH_SECONDS = 0.4
PAUSE_SECONDS = 0.001

_GID = struct.Struct("<I")
_REFUSED = struct.Struct("<IQ")
_LEAVE = struct.Struct("<I?")
_ANSWERED = struct.Struct("<II")


class ConsumerExchange:
    """The messages of all streams of a node. `host`: a group's consumer host here. `unused`: `ConsumerExpiry.look`."""

    def __init__(
        self, runtime: Runtime, network: Network, commits: TurnCommit, host: FindHost, unused: Callable[[int], None]
    ) -> None:
        self._runtime, self._network, self._commits = runtime, network, commits
        self._host = host
        self.unused = unused
        self._peer = network.me.encode()
        mesh = network.mesh
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
        if leader is None or leader not in self._network.mesh.peers:
            return False
        self._network.mesh.notify(leader, TURN_NOTICE, _GID.pack(replica.assignment.gid) + body)
        return True

    def _on_turn(self, peer: str, payload: bytes) -> None:
        if len(payload) < _GID.size + 16 or payload[4:12] != peer.encode():
            return
        (gid,) = _GID.unpack_from(payload)
        host = self._host(gid)
        body = payload[_GID.size :]
        if host is None or not turn.is_sound(body) or not self._propose(host.replica, body):
            (session,) = struct.unpack_from("<Q", payload, _GID.size + 8)
            self._network.mesh.notify(peer, REFUSED_NOTICE, _REFUSED.pack(gid, session))

    def _propose(self, replica: ReplicaState, body: bytes) -> bool:
        """Put a sound turn into the log, unless a member would stop at it: one of an older version that came since
        its owner decided, or that only the leader has heard."""
        if self._commits.failing or ((level := turn.level_of(body)) and replica.level < level):
            return False
        try:
            replica.group.propose(HEAD.pack(CONSUMER_TURN, 0, self._runtime.clock.time_ns()) + body)
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
        """Notify all peers, since each may lead the stream next, that this node can, or cannot, own its consumers."""
        self._leave(host, self._network.me, leaving=leaving)
        self._network.mesh.notify(None, LEAVE_NOTICE, _LEAVE.pack(host.replica.assignment.gid, leaving))

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

    # -- answers to creators of consumers

    def answered(self, owner: str, gid: int, cid: int) -> None:
        """Notify `owner` that the creator of consumer `cid` of group `gid` was answered here: messages that the owner
        sends to clients of this node from now on arrive after that answer."""
        if owner != self._network.me:
            self._network.mesh.notify(owner, ANSWERED_NOTICE, _ANSWERED.pack(gid, cid))
            return
        host = self._host(gid)
        if host is not None:
            host.answered(cid)

    def _on_answered(self, peer: str, payload: bytes) -> None:
        if len(payload) != _ANSWERED.size:
            raise FrameError("malformed notice of an answer")
        self.answered(self._network.me, *_ANSWERED.unpack(payload))

    # -- questions to owners

    async def ask(self, peer: str, gid: int, kind: str, body: Body, seconds: float) -> Body:
        """Ask the node `peer`, which may be this one, as the owner of consumers. Raises MeshError."""
        payload = json.dumps({"gid": gid, "kind": kind, **body}).encode()
        answer: Body = json.loads(await self._network.mesh.call(peer, ASK_METHOD, payload, seconds))
        return answer

    async def _serve(self, peer: str, payload: bytes) -> bytes:
        body = json.loads(payload)
        host = self._host(int(body["gid"]))
        handler = _HANDLERS.get(body["kind"])
        if host is None or handler is None:
            raise MeshError(f"no replica of group {body['gid']} here")
        return json.dumps(await handler(self, host, body)).encode()

    async def _started(self, host: ConsumerHost, body: Body) -> Body:
        """Wait until the owner of consumer `cid` runs here and every node routes its subjects here."""
        cid = int(body["cid"])

        def settled() -> bool:
            state = host.table.by_cid.get(cid)
            if host.replica.machine.applied_index < body["index"]:
                return False
            return host.owner(cid) is not None or state is None or state.owner != self._network.me

        await self._until(settled, STARTED_SECONDS)
        await self._sync_interest()
        return self._live_of(host, [cid])

    async def _gone(self, host: ConsumerHost, body: Body) -> Body:
        """Wait until the owner of consumer `cid` has ended here and every node has removed its routes."""
        await self._until(lambda: host.owner(int(body["cid"])) is None, STARTED_SECONDS)
        await self._sync_interest()
        return {}

    async def _live(self, host: ConsumerHost, body: Body) -> Body:
        """(waiting pulls, bound) of consumers, as of log index `index` or later. Deliveries of consumers without acks
        are in the log up to the index of the answer."""
        await self._until(lambda: host.replica.machine.applied_index >= body["index"], FLUSH_SECONDS)
        owners = [owner for owner in map(host.owner, body["cids"]) if owner is not None]
        for owner in owners:
            owner.flush()
        await self._settled(host)
        if any(not owner.state.rules.acks for owner in owners):
            await self._settled(host)  # deliveries made while an ADVANCE was in flight come with the next one
        return {**self._live_of(host, body["cids"]), "index": host.replica.machine.applied_index}

    async def _unpin(self, host: ConsumerHost, body: Body) -> Body:
        owner = host.owner(int(body["cid"]))
        if owner is None:
            raise MeshError("the consumer has another owner")
        owner.unpin(str(body["group"]).encode())
        await self._settled(host)
        return {}

    async def _settled(self, host: ConsumerHost) -> None:
        """Wait until the operations that the owners here have submitted are applied or lost."""
        turns = host.turns
        target = turns.submitted
        await self._until(lambda: not turns.is_open or turns.told >= target, FLUSH_SECONDS)

    def _live_of(self, host: ConsumerHost, cids: list[int]) -> Body:
        """`live`: consumer id -> (waiting pulls, bound). `since`: consumer id -> time when its owner began. `keys`:
        consumer id -> keys whose messages wait, if there are some. `members`: consumer id -> (members that share them,
        messages that spilled). `letter_errors`: why its dead letters fail."""
        live, since, keys, members, errors = {}, {}, {}, {}, {}
        for cid in cids:
            hosted = host.running.get(cid)
            if hosted is not None:
                live[str(cid)] = [hosted.owner.num_waiting, int(hosted.owner.push_bound)]
                since[str(cid)] = hosted.since
                if any(sharing := hosted.owner.key_sharing):
                    keys[str(cid)], members[str(cid)] = sharing.waiting, sharing[1:]
                if error := hosted.owner.letter_trouble:
                    errors[str(cid)] = error
        return {"live": live, "since": since, "keys": keys, "members": members, "letter_errors": errors}

    async def _sync_interest(self) -> None:
        try:
            await self._network.mesh.sync_interest(STARTED_SECONDS)
        except MeshError as error:
            self._runtime.log.debug("a node has not confirmed a consumer's subjects", error=str(error))

    async def _until(self, condition: Callable[[], bool], seconds: float) -> None:
        await until(condition, self._runtime.clock, seconds)


async def until(condition: Callable[[], bool], clock: Clock, seconds: float) -> None:
    """Return when `condition` holds, or after `seconds`."""
    end = clock.monotonic() + seconds
    while True:
        if condition() or clock.monotonic() >= end:
            return
        await asyncio.sleep(PAUSE_SECONDS)


_HANDLERS: dict[str, Callable[[ConsumerExchange, ConsumerHost, Body], Awaitable[Body]]] = {
    "started": ConsumerExchange._started,
    "gone": ConsumerExchange._gone,
    "live": ConsumerExchange._live,
    "unpin": ConsumerExchange._unpin,
}
