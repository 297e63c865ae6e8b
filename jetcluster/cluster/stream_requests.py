"""Requests that only a stream's leader can answer: INFO, PURGE, MSG.GET, MSG.DELETE, stepdown, and "is it ready".

Each runs on the node that leads the stream, wherever the client is connected (`cluster.requests`); bodies and results
are described in `api.cluster`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from jetcluster.cluster.context import NodeContext
from jetcluster.cluster.mesh_api import MeshError
from jetcluster.cluster.replica_info import cluster_object
from jetcluster.cluster.stream_replica import StreamReplica
from jetcluster.errors import ApiError, by_code
from jetcluster.model.stream_info import message_wire, state_wire, subject_page
from jetcluster.raft.api import NotLeaderError
from jetcluster.store.api import DamagedError
from jetcluster.stream import commands
from jetcluster.stream.direct_get import find_one
from jetcluster.stream.get_request import GetRequest

Body = dict[str, Any]
PROPOSE_SECONDS = 4.0
READY_SECONDS = 3.0
MAX_DELETED_DETAILS = 100_000


class StreamRequests:
    def __init__(self, context: NodeContext, replicas: Mapping[int, StreamReplica]) -> None:
        self._context = context
        self._replicas = replicas

    async def handle(self, gid: int, kind: str, body: Body) -> Body:
        """Raises ApiError for a refusal, RaftError or OutcomeUnknownError when another node must be asked."""
        replica = self._replicas.get(gid)
        if replica is None or not replica.leading:
            raise NotLeaderError(replica.group.leader if replica is not None else None)
        handler = _HANDLERS.get(kind)
        if handler is None:
            raise ApiError(400, 10003, f"unknown stream request {kind}")
        try:
            return await handler(self, replica, body)
        except DamagedError as error:
            # Not a "not found": what is asked for exists, this replica cannot read it.
            replica.report_damage(error)
            raise by_code(10008) from error

    async def _ready(self, replica: StreamReplica, body: Body) -> Body:
        end = self._context.clock.monotonic() + READY_SECONDS
        while not (replica.leading and replica.assignment.revision >= body["revision"] and replica.config_is_current()):
            if self._context.clock.monotonic() >= end:
                raise NotLeaderError(replica.group.leader)
            await asyncio.sleep(0.003)
        try:
            await self._context.mesh.sync_interest(READY_SECONDS)
        except MeshError as error:
            self._context.log.debug("a node has not confirmed the stream's subjects", error=str(error))
        return await self._info(replica, {})

    async def _info(self, replica: StreamReplica, body: Body) -> Body:
        store = replica.store
        wanted = body.get("subjects_filter") or ""
        subjects, page = {}, {"total": 0, "offset": 0, "limit": 0}
        if wanted:
            counts = {subject.decode(errors="replace"): s.count for subject, s in store.subjects(wanted.encode())}
            subjects, page = subject_page(counts, int(body.get("offset") or 0))
        state = store.state
        deleted = store.deleted(MAX_DELETED_DETAILS) if body.get("deleted_details") and state.num_deleted else None
        fields = state._asdict()
        if not state.messages:
            fields["first_ts"] = 0
        return {
            "state": state_wire(**fields, subjects=subjects, deleted=deleted),
            "cluster": cluster_object(self._context, replica),
            **page,
        }

    async def _purge(self, replica: StreamReplica, body: Body) -> Body:
        now = self._context.clock.time_ns()
        filter, seq, keep = (body.get("filter") or "").encode(), int(body.get("seq") or 0), int(body.get("keep") or 0)
        return {"purged": await self._outcome(replica, commands.encode_purge(now, filter, seq, keep))}

    async def _msg_delete(self, replica: StreamReplica, body: Body) -> Body:
        await self._outcome(replica, commands.encode_delete_msg(self._context.clock.time_ns(), int(body["seq"])))
        return {}

    async def _msg_get(self, replica: StreamReplica, body: Body) -> Body:
        if not await replica.confirm_leadership():
            raise NotLeaderError(replica.group.leader)
        request = GetRequest()
        request.seq = int(body.get("seq") or 0)
        request.last_by_subj = (body.get("last_by_subj") or "").encode("utf-8", "surrogateescape")
        request.next_by_subj = (body.get("next_by_subj") or "").encode("utf-8", "surrogateescape")
        request.start_time = body.get("start_time")
        found = find_one(replica.store, request)
        if found is None:
            raise by_code(10037)
        seq, ts, subject, headers, payload = found
        return {"message": message_wire(subject, seq, ts, headers, payload, no_hdr=bool(body.get("no_hdr")))}

    async def _stepdown(self, replica: StreamReplica, body: Body) -> Body:
        wanted = body.get("preferred") or ""
        peer = next((p for p, node in self._context.nodes().items() if node.name == wanted), None) if wanted else None
        if not replica.group.transfer(peer):
            raise by_code(10005, err="no replacement peer connected")
        for _ in range(200):
            leader = self._context.leaders.get(replica.assignment.gid)
            if leader is not None and leader != self._context.me:
                break
            await asyncio.sleep(0.01)
        return {}

    async def _outcome(self, replica: StreamReplica, command: bytes) -> int:
        result = await replica.propose(command, PROPOSE_SECONDS)
        if isinstance(result, ApiError):
            raise result
        assert isinstance(result, int)
        return result


_HANDLERS: dict[str, Callable[[StreamRequests, StreamReplica, Body], Awaitable[Body]]] = {
    "ready": StreamRequests._ready,
    "info": StreamRequests._info,
    "purge": StreamRequests._purge,
    "msg_delete": StreamRequests._msg_delete,
    "msg_get": StreamRequests._msg_get,
    "stepdown": StreamRequests._stepdown,
}
