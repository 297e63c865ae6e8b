"""Requests to `$OBJ.<bucket>` on the leader of the bucket's stream: list, info, delete, get (`api.endpoints` asks)."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from jetcluster.cluster.once import number_of
from jetcluster.cluster.requests import REPEATED, check_wanted
from jetcluster.errors import NOT_AVAILABLE, TOO_MANY_REQUESTS, by_code
from jetcluster.objects.bucket import SUCCESS, Bucket
from jetcluster.objects.catalog import Content
from jetcluster.objects.metadata import dump, invalid
from jetcluster.raft.api import NotLeaderError
from jetcluster.replica.proposals import OutcomeUnknownError

if TYPE_CHECKING:
    from jetcluster.replica.stream_replica import StreamReplica

Body = dict[str, Any]
DELETE_SECONDS = 4.0
MAX_LISTS = 16
"""Lists being put together at once for one bucket; one holds the names of all its objects."""


class ObjectRequests:
    def __init__(self) -> None:
        self._lists: dict[int, int] = {}
        """Number of requests under way, by the id of the stream."""

    async def handle(self, replica: StreamReplica, body: Body) -> Body:
        """`{"answer": JSON text}`; that of a get is "": the leader has answered itself, before the chunks. Raises
        ApiError, NotLeaderError, OutcomeUnknownError, DamagedError."""
        if not await replica.confirm_leadership():
            raise NotLeaderError(replica.group.leader)
        if replica.objects is None or replica.objects.bucket.layout is None:
            raise invalid("bucket layout")
        bucket, action, name = replica.objects.bucket, body["action"], body["name"]
        if action == "list":
            answer = await self._list(replica, bucket, int(body["offset"]), int(body["limit"]))
        elif action == "info":
            answer = dump(bucket.catalog.find(name).wire())
        elif action == "delete":
            answer = await self._delete(replica, bucket, body)
        else:
            answer = self._get(replica, bucket, body)
        return {"answer": answer.decode()}

    async def _list(self, replica: StreamReplica, bucket: Bucket, offset: int, limit: int) -> bytes:
        gid = replica.assignment.gid
        if self._lists.get(gid, 0) >= MAX_LISTS:
            raise by_code(TOO_MANY_REQUESTS)
        self._lists[gid] = self._lists.get(gid, 0) + 1
        try:
            listing = bucket.catalog.listing(offset, limit)
            for _ in listing:
                await asyncio.sleep(0)
        finally:
            self._lists[gid] -= 1
            if not self._lists[gid]:
                del self._lists[gid]
        return listing.answer

    async def _delete(self, replica: StreamReplica, bucket: Bucket, body: Body) -> bytes:
        """Once: meanwhile there may be another object of that name."""
        request = number_of(replica, body, replica.context.clock.time_ns())
        if request and replica.machine.asked.get(request) is not None:
            return SUCCESS
        check_wanted(replica.context.clock)
        future: asyncio.Future[bytes | None] = asyncio.get_running_loop().create_future()

        def respond(answer: bytes | None) -> None:
            if not future.done():
                future.set_result(answer)

        bucket.delete(body["name"], respond, request=request)
        try:
            async with asyncio.timeout(DELETE_SECONDS):
                answer = await future
        except TimeoutError:
            raise OutcomeUnknownError(f"the deletion is not committed within {DELETE_SECONDS} s") from None
        if answer is None:
            raise OutcomeUnknownError("leadership lost")
        return answer

    def _get(self, replica: StreamReplica, bucket: Bucket, body: Body) -> bytes:
        if body.get(REPEATED):
            raise by_code(NOT_AVAILABLE)  # chunks of the first attempt may have been sent: all again would mix
        download = bucket.catalog.download(body["name"])
        deliver, reply = body["deliver"].encode("utf-8", "replace"), body["reply"].encode("latin-1")
        if not replica.reads.answers.pages.has_room:
            raise by_code(TOO_MANY_REQUESTS)
        if reply:
            replica.bus.publish(reply, b"", b"", download.head())
        replica.reads.answers.pages.send(deliver, Content(replica.store, download))
        return b""
