"""Requests that only a stream's leader can answer: INFO, PURGE, MSG.GET, MSG.DELETE, stepdown, readiness.

Each runs on the node that leads the stream, wherever the client is connected (`cluster.requests`); `StreamRequests`
describes bodies and results. `ObjectRequests` answers those to a bucket `$OBJ.<bucket>`: list, info, delete, get.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any

from jetcluster.budget import BusyError, at_once
from jetcluster.cluster.consumer_requests import ConsumerRequests
from jetcluster.cluster.once import carry_out, number_of
from jetcluster.cluster.requests import REPEATED, check_wanted
from jetcluster.cluster.stepdown import hand_over
from jetcluster.errors import MIN_LAST_SEQUENCE, NOT_AVAILABLE, TOO_MANY_REQUESTS, ApiError, by_code
from jetcluster.mesh.api import MeshError
from jetcluster.objects.bucket import SUCCESS, Bucket
from jetcluster.objects.catalog import Content
from jetcluster.objects.metadata import dump, invalid
from jetcluster.raft.api import NotLeaderError
from jetcluster.replica.consumer_exchange import until
from jetcluster.replica.members import carried_without
from jetcluster.replica.proposals import OutcomeUnknownError
from jetcluster.replica.services import Network, Runtime
from jetcluster.replica.stream_archives import StreamArchives
from jetcluster.replica.stream_replica import StreamReplica
from jetcluster.store.api import DamagedError
from jetcluster.stream.log import commands
from jetcluster.stream.read import direct_get, msg_get
from jetcluster.stream.read.get_request import GetRequest, SetBackError
from jetcluster.stream.read.msg_get import SubjectsPage, state_object, subjects_page

if TYPE_CHECKING:
    from jetcluster.replica.stream_replica import StreamReplica

DELETE_SECONDS = 4.0
MAX_LISTS = 16
"""Lists under construction at the same time for one bucket; each holds the names of all its objects."""


class ObjectRequests:
    """Requests to the buckets whose streams this node leads."""

    def __init__(self) -> None:
        self._lists: dict[int, int] = {}
        """By stream id, the number of lists under construction."""

    async def handle(self, replica: StreamReplica, body: Body) -> Body:
        """Returns `{"answer": JSON text}`; "" for a get, which the leader has answered itself before the chunks. Raises
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
        """Deletes once only: meanwhile another object may have that name."""
        request = number_of(replica, body, replica.runtime.clock.time_ns())
        if request and replica.machine.asked.get(request) is not None:
            return SUCCESS
        check_wanted(replica.runtime.clock)
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
            raise by_code(NOT_AVAILABLE)  # chunks of a first attempt may have been sent, and would mix
        download = bucket.catalog.download(body["name"])
        deliver, reply = body["deliver"].encode("utf-8", "replace"), body["reply"].encode("latin-1")
        if not replica.reads.answers.pages.has_room:
            raise by_code(TOO_MANY_REQUESTS)
        if reply:
            replica.bus.publish(reply, b"", b"", download.head())
        replica.reads.answers.pages.send(deliver, Content(replica.store, download))
        return b""


Body = dict[str, Any]
PROPOSE_SECONDS = 4.0
GONE = 10043
"""Error code of the refusal to delete a missing message."""
READY_SECONDS = 3.0
ABOUT_TO_LEAD_SECONDS = 0.5
LIMITED_SECONDS = 1.0
"""An update that narrows limits is answered once they hold, or after this time while very many messages go."""
MAX_UNHEARD = 1024
"""Streams of which it is remembered that their newest configuration did not come; then all are forgotten."""
CAUGHT_UP_SECONDS = 0.5
CATCH_UP_TURNS = 3
"""Loop turns that an ack needs from the client to the log."""
_LOOKS = frozenset(("info", "consumer_info", "consumer_list"))
_CHANGES = frozenset(
    (
        "standing",
        "purge",
        "msg_delete",
        "consumer_create",
        "consumer_delete",
        "consumer_expire",
        "consumer_pause",
        "consumer_reset",
        "consumer_unpin",
        "consumer_stepdown",
    )
)
"""Requests that write to the log, or precede a write; the leader must first prove that it leads. An entry of a leader
without a majority may be committed once the others are back, long after its asker saw a failure."""


class StreamRequests:
    """The leader's answers. Each body also has `revision`, that of the asker's assignment, and `asker`.

    | kind | body | result |
    |---|---|---|
    | ready | | as `info`, once the configuration of `revision` is in force and the stream can be
      published to from every connected node |
    | info | subjects_filter, deleted_details, offset, linearizable | state, cluster, page [total, offset, limit], links
      (`mirror` or `sources` as STREAM.INFO shows them, or {}), `freshness` if `linearizable`, and
      `assignment` (to_dict) when the leader's is newer than `revision` |
    | purge | filter, seq, keep (0 or "": not given) | purged |
    | msg_get | payload, headers (bytes as latin-1) | response (the whole JSON reply); linearizable |
    | msg_delete | seq, no_erase | deleted |
    | standing | | as `info`, by a leader that a majority follows: before the meta group decides something of the stream
    | members | | voters, learners: by the group's newest committed configuration |
    | stepdown | placement (cluster, tags, preferred; {}: any) | {} |
    | object | action, name, deliver, offset, limit, reply (`objects.request`) | answer (JSON text, "" when the
      leader has answered to `reply` itself) |
    | consumer_create | name, config (with defaults), action, request, max_consumers (0: any number)
      | info, created |
    | consumer_info | name | the info object |
    | consumer_list | offset, limit | total, consumers [info objects], limit if these are long |
    | consumer_names | offset, limit | total, names (sorted) |
    | consumer_delete | name | {} |
    | consumer_pause | name, pause_until (Unix ns, 0: go on) | changed |
    | consumer_reset | name, seq (0: to the ack floor) | info, reset_seq |
    | consumer_unpin | name, group | {} |
    | consumer_stepdown | name, preferred (server name or "") | {} |

    A consumer's info object is that of CONSUMER.INFO without `type`; its `config` is the replicated one, of which
    `model.consumer_rules.shown` makes the form that clients see.
    """

    def __init__(
        self,
        runtime: Runtime,
        network: Network,
        replicas: Mapping[int, StreamReplica],
        archives: StreamArchives,
        consumers: ConsumerRequests,
    ) -> None:
        self._runtime, self._network = runtime, network
        self._replicas = replicas
        self._unheard: dict[int, int] = {}
        """Stream's group -> revision that the meta log did not bring in time: after a rescue it may never."""
        self._more_handlers = {
            **consumers.handlers,
            "snapshot": archives.snapshot,
            "snapshot_next": archives.snapshot_next,
            "snapshot_close": archives.snapshot_close,
            "restore": archives.restore,
            "restore_end": archives.restore_end,
            "object": ObjectRequests().handle,
        }

    async def handle(self, gid: int, kind: str, body: Body) -> Body:
        """Returns the result. Raises ApiError for a refusal; RaftError, OutcomeUnknownError to ask elsewhere."""
        replica = await self._leading(gid)
        more = self._more_handlers.get(kind)
        handler = _HANDLERS.get(kind)
        if kind in _LOOKS:
            await self._catch_up(replica)
        elif kind in _CHANGES and not await replica.confirm_leadership():
            raise NotLeaderError(replica.group.leader)
        try:
            if more is not None:
                return await more(replica, body)
            if handler is None:
                raise ApiError(400, 10003, f"unknown stream request {kind}")
            return await handler(self, replica, body)
        except DamagedError as error:
            # Not a "not found": the message exists, but this replica cannot read it.
            replica.report_damage(error)
            raise by_code(10008) from error
        except BusyError as error:
            raise by_code(10008) from error

    async def _catch_up(self, replica: StreamReplica) -> None:
        """Waits until earlier publishes and acks of clients here are applied. A client that publishes without waiting
        for PubAcks, flushes its connection and asks finds them with nats-server, which stores at once."""
        for _ in range(CATCH_UP_TURNS):
            await asyncio.sleep(0)
        group = replica.group
        index = group.last_index  # maybe the no-op of the term, which the machine never sees
        await until(
            lambda: group.applied_index >= index or not replica.leading,
            self._runtime.clock,
            CAUGHT_UP_SECONDS,
        )

    async def _leading(self, gid: int) -> StreamReplica:
        """Returns the replica if it leads, and waits for one that is about to (assigned, elected, its no-op not applied
        yet): the asker would only come back. Raises NotLeaderError."""
        end = self._runtime.clock.monotonic() + ABOUT_TO_LEAD_SECONDS
        while True:
            replica = self._replicas.get(gid)
            if replica is not None and replica.leading:
                return replica
            leader = replica.group.leader if replica is not None else None
            elsewhere = leader is not None and leader != self._network.me
            if elsewhere or self._runtime.clock.monotonic() >= end:
                raise NotLeaderError(leader)
            await asyncio.sleep(0.002)

    async def _ready(self, replica: StreamReplica, body: Body) -> Body:
        end = self._runtime.clock.monotonic() + READY_SECONDS
        while not (
            replica.leading
            and replica.assignment.revision >= body["revision"]
            and replica.config_is_current()
            and replica.listening.complete
        ):
            if self._runtime.clock.monotonic() >= end:
                raise NotLeaderError(replica.group.leader)
            await asyncio.sleep(0.001)
        try:
            await self._network.mesh.sync_interest(READY_SECONDS)
        except MeshError as error:
            self._runtime.log.debug("a node has not confirmed the stream's subjects", error=str(error))
        await until(
            lambda: not (replica.machine.limiting and replica.leading), self._runtime.clock, LIMITED_SECONDS
        )  # as nats-server, whose answer shows what is left
        return await self._info(replica, {})

    async def _info(self, replica: StreamReplica, body: Body) -> Body:
        await self._hear_of_update(replica)
        subjects: dict[str, int] = {}
        page = SubjectsPage(0, 0, 0)
        wanted = body.get("subjects_filter") or ""
        if wanted:
            found = subjects_page(replica.store, wanted.encode(), int(body.get("offset") or 0))
            subjects, page = await self._runtime.budget.run(replica.assignment.account, found)
            if not replica.leading or not replica.sound:
                raise NotLeaderError(replica.group.leader)  # the counted state may have been replaced
        proves, began = bool(body.get("linearizable")), self._runtime.clock.uptime()
        if proves and not await replica.may_read():
            raise NotLeaderError(replica.group.leader)
        if details := bool(body.get("deleted_details")):
            msg_get.check_deleted(replica.store)
        answer: Body = {
            "state": state_object(
                replica.store,
                consumers=replica.machine.consumer_count,
                deleted_details=details,
                subjects=subjects,
            ),
            "cluster": replica.infos.cluster_object(),
            "page": list(page),
            "links": replica.mirrors.links.info(),
        }
        guard = replica.machine.guard.info(self._runtime.clock.time_ns())
        if guard is not None:
            answer["guard"] = guard
        if proves:
            age = replica.reads.own.demands.age(began)
            proof = msg_get.freshness_object(replica.store.last_seq, self._network.name, age)
            answer["freshness"] = {**proof, "last_message": msg_get.last_message(replica.store)}
        if replica.assignment.revision > int(body.get("revision") or 0):
            # The asker has not applied the newest update yet: it shows the leader's configuration.
            answer["assignment"] = replica.assignment.to_dict()
        return answer

    async def _hear_of_update(self, replica: StreamReplica) -> None:
        """Waits for the configuration that is in force, which a new leader may know from the stream's log sooner than
        from the meta log: INFO through a node that lags as well would show an older one than the update's answer."""
        gid, revision = replica.assignment.gid, replica.machine.config_revision
        if replica.assignment.revision >= revision or self._unheard.get(gid) == revision:
            return
        await until(
            lambda: replica.assignment.revision >= replica.machine.config_revision or not replica.leading,
            self._runtime.clock,
            CAUGHT_UP_SECONDS,
        )
        if not replica.leading:
            raise NotLeaderError(replica.group.leader)
        if replica.assignment.revision < revision:
            if len(self._unheard) >= MAX_UNHEARD:
                self._unheard.clear()
            self._unheard[gid] = revision

    async def _members(self, replica: StreamReplica, body: Body) -> Body:
        """Returns the members by the newest committed configuration. `members` also has those of the one in force,
        which may not be committed yet; `commit` is the commit index, `behind` are voters that lag or are not heard."""
        if not await replica.confirm_leadership():
            raise NotLeaderError(replica.group.leader)
        group = replica.group
        config, newest = group.members_at(group.commit_index), group.members_at(group.last_index)
        voters, carried = carried_without(group, "")
        return {
            "voters": config.electorate,
            "outgoing": config.outgoing,
            "learners": config.learners,
            "members": sorted({*config.members, *newest.members}),
            "commit": group.commit_index,
            "behind": sorted(set(voters).difference(carried)),
        }

    async def _purge(self, replica: StreamReplica, body: Body) -> Body:
        now = self._runtime.clock.time_ns()
        filter, seq, keep = (body.get("filter") or "").encode(), int(body.get("seq") or 0), int(body.get("keep") or 0)
        command = commands.encode_purge(now, filter, seq, keep)
        return {"purged": await carry_out(replica, command, body, self._runtime.clock)}

    async def _msg_delete(self, replica: StreamReplica, body: Body) -> Body:
        seq, erase = int(body["seq"]), not body.get("no_erase")
        command = commands.encode_delete_msg(self._runtime.clock.time_ns(), seq, erase=erase)
        try:
            return {"deleted": await self._outcome(replica, command)}
        except ApiError as error:
            if body.get(REPEATED) and error.err_code == GONE and 0 < seq <= replica.store.last_seq:
                return {"deleted": 0}  # deleted by the first attempt, whose outcome was lost with its leader
            raise

    async def _msg_get(self, replica: StreamReplica, body: Body) -> Body:
        strict = bool(body.get("strict"))
        request = msg_get.decode(body["payload"].encode("latin-1"), body["headers"].encode("latin-1"), strict=strict)
        steps = direct_get.preparing(replica.store, request)
        if steps is not None:
            await self._runtime.budget.run(replica.assignment.account, steps)
        demands, staleness = replica.reads.own.demands, request.fresh.max_staleness
        reached = await demands.has_sequence(request.fresh.min_last_seq)
        asked = self._runtime.clock.uptime()
        young = staleness < 0 or not reached or await demands.has_upstream(staleness, asked)
        began = self._runtime.clock.uptime()
        if not await replica.may_read():
            raise NotLeaderError(replica.group.leader)
        if not reached:
            raise by_code(MIN_LAST_SEQUENCE)
        age = demands.age(began)  # before the look, and before others have a turn
        if not young or (staleness >= 0 and not demands.upstream_is_within(staleness, asked)):
            raise by_code(NOT_AVAILABLE)
        if request.msg_id_prefixes:
            return {"response": (await self._search(replica, request)).decode()}
        message = msg_get.found(replica.store, request)
        last_seq = replica.store.last_seq  # before others have a turn
        rendering = msg_get.rendering(message, no_headers=request.no_hdr)
        if len(message.headers) < msg_get.LONG_HEADER_BYTES:
            response = at_once(rendering)
        else:
            response = await self._runtime.budget.run(replica.assignment.account, rendering)
        if request.fresh.info:
            response = msg_get.with_freshness(response, last_seq, self._network.name, age)
        return {"response": response.decode()}

    async def _search(self, replica: StreamReplica, request: GetRequest) -> bytes:
        """Others have turns between its steps: the replica may be none that can say what is not stored any more."""
        try:
            found = await self._runtime.budget.run(replica.assignment.account, msg_get.search(replica.store, request))
        except SetBackError as error:
            raise NotLeaderError(replica.group.leader) from error
        if not await replica.may_read():
            raise NotLeaderError(replica.group.leader)
        return found

    async def _stepdown(self, replica: StreamReplica, body: Body) -> Body:
        check_wanted(self._runtime.clock)
        gid, nodes = replica.assignment.gid, replica.known.machine.nodes
        await hand_over(self._network, nodes, replica.group, gid, body.get("placement") or {})
        return {}

    async def _outcome(self, replica: StreamReplica, command: bytes) -> int:
        check_wanted(self._runtime.clock)
        result = await replica.propose(command, PROPOSE_SECONDS)
        if isinstance(result, ApiError):
            raise result
        assert isinstance(result, int)
        return result


_HANDLERS: dict[str, Callable[[StreamRequests, StreamReplica, Body], Awaitable[Body]]] = {
    "ready": StreamRequests._ready,
    "info": StreamRequests._info,
    "standing": StreamRequests._info,
    "members": StreamRequests._members,
    "purge": StreamRequests._purge,
    "msg_delete": StreamRequests._msg_delete,
    "msg_get": StreamRequests._msg_get,
    "stepdown": StreamRequests._stepdown,
}
