"""Requests about consumers on the leader of their stream: create, info, list, delete, pause, ... (`StreamRequests`).

The log decides; the live fields of a reply come from the consumer's owner, on whichever node it runs. A consumer can be
pulled from, through every connected node, by the time its create request is answered.

Consumers unused for their inactive_threshold are reported by their owners and deleted by the leader (`ConsumerExpiry`).
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

from jetcluster.cluster.once import carry_out
from jetcluster.cluster.requests import LIST_BYTES, LIST_STEP_BYTES, REPEATED, check_wanted, left_for
from jetcluster.cluster.stepdown import nobody, successors
from jetcluster.consumer.info import consumer_info
from jetcluster.consumer.state.rules import ConsumerRules
from jetcluster.consumer.state.state import ConsumerState
from jetcluster.errors import (
    CONSUMER_EXISTS,
    CONSUMER_NAME_EXISTS,
    CONSUMER_NOT_FOUND,
    INVALID_RESET,
    PEER_NOT_MEMBER,
    PEER_REMAP,
    ApiError,
    by_code,
    invalid_config,
)
from jetcluster.mesh.api import MeshError
from jetcluster.model import dead_letters
from jetcluster.model.advisory import consumer_action
from jetcluster.model.consumer_rules import is_beyond
from jetcluster.model.limits import FARTHEST_SEQ
from jetcluster.model.order_per_key import KeySharing
from jetcluster.records import NamedTuple
from jetcluster.replica.consumer_exchange import until
from jetcluster.replica.proposals import OutcomeUnknownError
from jetcluster.stream.log import commands
from jetcluster.stream.log.levels import DEAD_LETTER_LEVEL, NEWEST_RESET_LEVEL, ORDER_PER_KEY_LEVEL

if TYPE_CHECKING:
    from jetcluster.consumer.state.rules import ConsumerRules
    from jetcluster.meta.state import Assignment
    from jetcluster.replica.consumer_exchange import ConsumerExchange
    from jetcluster.replica.rounds import Background
    from jetcluster.replica.services import Runtime
    from jetcluster.replica.stream_replica import StreamReplica

Body = dict[str, Any]


class LiveConsumer(NamedTuple):
    """Facts of a consumer that only its owner knows."""

    waiting: int
    """Number of waiting pulls."""
    bound: bool
    """True when a subscription takes the deliveries of a push consumer."""
    since: int
    """Unix nanoseconds when the owner began."""
    sharing: KeySharing = KeySharing()
    """State of its order per key."""
    letter_error: str = ""
    """The failure of its dead letters, "" without one."""


Live = dict[int, LiveConsumer]
"""By consumer id."""

PROPOSE_SECONDS = 4.0
STARTED_SECONDS = 2.5
LIVE_SECONDS = 0.5
"""Longest wait of INFO and LIST for an owner; a silent owner's consumers show no waiting pulls."""
INFOS_PER_SLICE = 16
CONSUMERS_PER_SLICE = 1000
"""Consumers examined before the loop yields."""
MAX_NAMED_CONSUMERS = 100
"""Most consumers that an error names."""
MOVE_TRIES = 4
_COUNTS = ("delivered", "ack_floor", "num_ack_pending", "num_redelivered", "num_pending")
NO_GROUP = 10160


class ConsumerRequests:
    """Handlers of the requests about consumers, by kind."""

    def __init__(self, runtime: Runtime, exchange: ConsumerExchange) -> None:
        self._runtime = runtime
        self._exchange = exchange
        self._turns: WeakValueDictionary[tuple[int, str], asyncio.Lock] = WeakValueDictionary()
        self.handlers: dict[str, Callable[[StreamReplica, Body], Awaitable[Body]]] = {
            "consumer_create": self._create,
            "consumers_beyond": self._beyond,
            "consumer_info": self._info,
            "consumer_list": self._list,
            "consumer_names": self._names,
            "consumer_delete": self._delete,
            "consumer_expire": self._expire,
            "consumer_pause": self._pause,
            "consumer_reset": self._reset,
            "consumer_unpin": self._unpin,
            "consumer_stepdown": self._stepdown,
            "consumer_leave": self._leave,
        }

    # -- create, delete

    async def _create(self, replica: StreamReplica, body: Body) -> Body:
        rules = ConsumerRules("", body["config"])
        await self._prepare(replica, rules.filters, 0)
        held = (body.get("restored") or {}).get("held")
        if (rules.keys is not None or held) and replica.level < ORDER_PER_KEY_LEVEL:
            raise invalid_config("max_ack_pending_per_subject requires a newer version on each server of the stream")
        letters = rules.letters is not None or (body.get("restored") or {}).get("letters")
        if letters and replica.level < DEAD_LETTER_LEVEL:
            raise invalid_config("dead_letter requires a newer version on each server of the stream")
        policy = replica.consumers.policy
        name, created = str(body["name"]), int(body.get("created") or self._runtime.clock.time_ns())
        target = str(body["config"].get("deliver_subject") or "")
        near = str(body.get("asker") or "")
        owner = policy.choose(replica.consumers.moves.able_peers(), near, push=bool(target))
        fields = {
            "name": name,
            "config": body["config"],
            "action": body.get("action") or "",
            "created": created,
            "owner": owner,
            "request": body.get("request") or "",
            "max_consumers": int(body.get("max_consumers") or 0),
        }
        if body.get("restored") is not None:
            fields["restored"] = body["restored"]
        with policy.promise(owner):
            if target or body.get("anew"):
                await self._create_in_turn(replica, fields, target, anew=bool(body.get("anew")))
            else:
                await self._propose(replica, commands.CONSUMER_CREATE, fields)
        state = _state(replica, name)
        # Counted now: the owner may deliver before its start is reported, and clients that subscribed earlier expect
        # `num_pending` to be the messages that they will get (KV watches).
        before = self._info_of(replica, state, {})
        restoring = replica.machine.rules.restoring  # nothing is delivered until the restore is over
        info = self._info_of(replica, state, {} if restoring else await self._started(replica, state))
        info.update({key: before[key] for key in _COUNTS})
        again = bool(body.get(REPEATED)) and state.request == fields["request"] != ""
        made = {"info": info, "created": state.created == created or again}
        return {**made, "owner": state.owner, "cid": state.cid} if target else made

    async def _create_in_turn(self, replica: StreamReplica, fields: Body, target: str, *, anew: bool) -> None:
        """Creates one consumer per name at a time: of clients that bind the same durable at once the first gets it, and
        the others are refused. `anew`: refuse unless the existing consumer is of this request."""
        name = fields["name"]
        turn = self._turns.setdefault((replica.assignment.gid, name), asyncio.Lock())
        async with turn:
            known = replica.consumers.table.by_name.get(name)
            if known is not None and anew and known.request != fields["request"]:
                raise by_code(CONSUMER_EXISTS)
            if known is not None and target and fields["action"] != "create":
                _refuse_new_target(replica, known, target)
            await self._propose(replica, commands.CONSUMER_CREATE, fields)

    async def _started(self, replica: StreamReplica, state: ConsumerState) -> Live:
        """Waits until the owner serves the consumer, as long as the asker waits. A silent owner is not an error: the
        consumer is decided by now, and an owner that dies has a successor soon."""
        gid, index = replica.assignment.gid, replica.machine.applied_index
        for _ in range(MOVE_TRIES):
            owner, body = state.owner, {"cid": state.cid, "index": index}
            seconds = left_for(self._runtime.clock, STARTED_SECONDS)
            if not seconds:
                break
            try:
                answer = await self._exchange.ask(owner, gid, "started", body, seconds)
            except MeshError as error:
                self._runtime.log.debug("a consumer's owner does not answer", consumer=state.name, error=str(error))
                await asyncio.sleep(0.1)
                continue
            live = _live(answer)
            if state.cid in live or state.cid not in replica.consumers.table.by_cid:
                return live
        return {}

    async def _delete(self, replica: StreamReplica, body: Body) -> Body:
        state = replica.consumers.table.by_name.get(str(body["name"]))
        try:
            # Once only: meanwhile another consumer may have that name.
            await self._once(replica, commands.CONSUMER_DELETE, {"name": body["name"], "cid": 0}, body)
        except ApiError as error:
            if body.get(REPEATED) and error.err_code == CONSUMER_NOT_FOUND:
                return {}  # deleted by the first attempt, whose outcome was lost with its leader
            raise
        if state is not None:
            await self._wait_gone(replica, state.owner, state.cid)
        return {}

    async def _expire(self, replica: StreamReplica, body: Body) -> Body:
        """Deletes a consumer that its owner found unused for longer than its inactive_threshold."""
        state = replica.consumers.table.by_name.get(str(body["name"]))
        if state is None or state.cid != int(body["cid"]):
            return {"deleted": False}
        try:
            await self._propose(replica, commands.CONSUMER_DELETE, {"name": body["name"], "cid": body["cid"]})
        except ApiError:
            return {"deleted": False}
        replica.events.tell(replica.assignment.account, consumer_action(replica.assignment.name, state.name, "delete"))
        return {"deleted": True}

    async def _wait_gone(self, replica: StreamReplica, owner: str, cid: int) -> None:
        try:
            await self._exchange.ask(owner, replica.assignment.gid, "gone", {"cid": cid}, LIVE_SECONDS)
        except MeshError as error:
            self._runtime.log.debug("a former owner does not answer", error=str(error))

    # -- what there is

    async def _beyond(self, replica: StreamReplica, body: Body) -> Body:
        """Returns the names of the first consumers, in order, that `consumer_limits` would not permit, and of those
        that would get their own dead letters if the stream's configuration was `taking`."""
        names: list[str] = []
        cyclic: list[str] = []
        for looked, (name, state) in enumerate(sorted(replica.consumers.table.by_name.items()), 1):
            if is_beyond(state.rules.config, body["consumer_limits"]):
                names.append(name)
            if body.get("taking") and _is_cyclic(state.rules, body["taking"]):
                cyclic.append(name)
            if max(len(names), len(cyclic)) == MAX_NAMED_CONSUMERS:
                break
            if not looked % CONSUMERS_PER_SLICE:
                await asyncio.sleep(0)
        return {"names": names, **({"cyclic": cyclic} if cyclic else {})}

    async def _info(self, replica: StreamReplica, body: Body) -> Body:
        state = _state(replica, str(body["name"]))
        live = await self._live(replica, [state])
        await self._prepare_for(replica, state)
        return self._info_of(replica, _state(replica, state.name), live)

    async def _list(self, replica: StreamReplica, body: Body) -> Body:
        names, total = _page(replica, body)
        states = [replica.consumers.table.by_name[name] for name in names]
        live = await self._live(replica, states)
        peers = replica.infos.all()
        found: list[Body] = []
        size = 0
        for number, state in enumerate(states):
            await self._prepare_for(replica, state)
            if state.cid in replica.consumers.table.by_cid:
                info = self._info_of(replica, state, live, peers)
                size += len(json.dumps(info["config"]))
                if found and size > LIST_BYTES:
                    return {"total": total, "consumers": found, "limit": number}
                found.append(info)
            if not len(found) % INFOS_PER_SLICE or size > LIST_STEP_BYTES:
                await asyncio.sleep(0)
        return {"total": total, "consumers": found}

    async def _names(self, replica: StreamReplica, body: Body) -> Body:
        names, total = _page(replica, body)
        return {"total": total, "names": names}

    async def _live(self, replica: StreamReplica, states: Iterable[ConsumerState]) -> Live:
        """Asks the owners, one call per node, after they have applied what is applied here. Deliveries without acks
        that they report are applied here before this returns."""
        by_owner: dict[str, list[int]] = {}
        for state in states:
            by_owner.setdefault(state.owner, []).append(state.cid)
        calls = [self._live_at(replica, owner, cids) for owner, cids in by_owner.items()]
        found: Live = {}
        for live in await asyncio.gather(*calls):
            found |= live
        return found

    async def _live_at(self, replica: StreamReplica, owner: str, cids: list[int]) -> Live:
        gid = replica.assignment.gid
        try:
            body = {"cids": cids, "index": replica.machine.applied_index}
            answer = await self._exchange.ask(owner, gid, "live", body, LIVE_SECONDS)
        except MeshError as error:
            self._runtime.log.debug("an owner of consumers does not answer", error=str(error))
            return {}
        await until(lambda: replica.machine.applied_index >= answer["index"], self._runtime.clock, LIVE_SECONDS)
        return _live(answer)

    async def _prepare_for(self, replica: StreamReplica, state: ConsumerState) -> None:
        if state.rules.filtered:
            await self._prepare(replica, state.rules.filters, state.delivered_sseq + 1)

    async def _prepare(self, replica: StreamReplica, filters: Sequence[bytes], seq: int) -> None:
        """Runs the long part of counting the messages that match from `seq` on, in turns with other work."""
        if filters != (b">",):
            await self._runtime.budget.run(replica.assignment.account, replica.store.queries.preparing(filters, seq))

    def _info_of(
        self, replica: StreamReplica, state: ConsumerState, live: Live, peers: list[Any] | None = None
    ) -> Body:
        # An owner that has not begun reports nothing, and the next client must not take the consumer for free.
        known = live.get(state.cid) or LiveConsumer(0, _is_bound(replica, state.rules), 0)
        return consumer_info(
            replica.assignment.name,
            state,
            replica.store,
            self._runtime.clock.time_ns(),
            replica.machine.rules,
            num_waiting=known.waiting,
            push_bound=known.bound,
            sharing=known.sharing,
            letter_error=known.letter_error,
            cluster=replica.infos.consumer_cluster(
                state, replica.infos.all() if peers is None else peers, leader_since_ns=known.since
            ),
        )

    # -- changes

    async def _pause(self, replica: StreamReplica, body: Body) -> Body:
        state = replica.consumers.table.by_name.get(str(body["name"]))
        before = 0 if state is None else state.rules.pause_until
        fields = {"name": body["name"], "pause_until": int(body.get("pause_until") or 0)}
        await self._propose(replica, commands.CONSUMER_PAUSE, fields)
        await self._live(replica, [_state(replica, str(body["name"]))])  # waits for its owner to apply the pause
        return {"changed": before != fields["pause_until"]}

    async def _reset(self, replica: StreamReplica, body: Body) -> Body:
        fields = {"name": body["name"], "seq": int(body.get("seq") or 0), "done": bool(body.get("done"))}
        if not 0 <= fields["seq"] <= FARTHEST_SEQ:
            raise by_code(INVALID_RESET, err="no such sequence")
        if replica.level >= NEWEST_RESET_LEVEL:
            fields["newest"] = True
        start = await self._once(replica, commands.CONSUMER_RESET, fields, body)
        state = _state(replica, str(body["name"]))
        live = await self._live(replica, [state])
        await self._prepare_for(replica, state)
        return {"info": self._info_of(replica, state, live), "reset_seq": start}

    async def _unpin(self, replica: StreamReplica, body: Body) -> Body:
        state = _state(replica, str(body["name"]))
        if str(body["group"]).encode() not in state.rules.priority_groups:
            raise by_code(NO_GROUP)
        fields = {"cid": state.cid, "group": body["group"]}
        try:
            await self._exchange.ask(state.owner, replica.assignment.gid, "unpin", fields, STARTED_SECONDS)
        except MeshError as error:
            raise OutcomeUnknownError(str(error)) from error
        return {}

    async def _stepdown(self, replica: StreamReplica, body: Body) -> Body:
        """Moves the consumer to another replica; does nothing when there is no other."""
        state = _state(replica, str(body["name"]))
        voters = replica.group.peers
        placement = body.get("placement") or {"preferred": body.get("preferred")}
        if voters == (state.owner,):
            return {}  # as for streams: a success, whatever the placement
        wanted = successors(voters, state.owner, replica.known.machine.nodes, placement, replica.network.cluster_name)
        able = [peer for peer in replica.consumers.moves.able_peers() if peer in wanted]
        if not able and any(placement.values()):
            raise nobody()
        if able:
            await self._move(replica, state, able)
        return {}

    async def _leave(self, replica: StreamReplica, body: Body) -> Body:
        """Moves the consumer off a server. All replicas of its stream have its state, so only one that is to have one
        replica has a place of its own. Raises ApiError 10040 for a server that does not have it, 10075 when it would
        lack a replica."""
        state = _state(replica, str(body["name"]))
        voters, nodes, wanted = replica.group.peers, replica.known.machine.nodes, body["peer"]
        left = next((peer for peer in voters if wanted == peer or (peer in nodes and nodes[peer].name == wanted)), None)
        alone = state.rules.config.get("num_replicas") == 1 and replica.assignment.config["retention"] == "limits"
        if left is None or (alone and left != state.owner):
            raise by_code(PEER_NOT_MEMBER)
        able = [peer for peer in replica.consumers.moves.able_peers() if peer != left]
        if not alone or not able:
            raise by_code(PEER_REMAP)
        await self._move(replica, state, able)
        return {}

    async def _move(self, replica: StreamReplica, state: ConsumerState, able: list[str]) -> None:
        """Gives the consumer to one of these servers, and waits until it has begun there."""
        heir = replica.consumers.policy.choose(able)
        await self._propose(replica, commands.CONSUMER_OWNER, {"moves": [[state.cid, state.epoch, heir]]})
        await self._started(replica, state)

    async def _propose(self, replica: StreamReplica, kind: int, fields: Body) -> int:
        """Returns the command's outcome. Raises ApiError for a refusal, RaftError, OutcomeUnknownError."""
        check_wanted(self._runtime.clock)
        result = await replica.propose(self._command(kind, fields), PROPOSE_SECONDS)
        if isinstance(result, ApiError):
            raise result
        return int(result)

    async def _once(self, replica: StreamReplica, kind: int, fields: Body, body: Body) -> int:
        """Proposes a command that must be carried out only once (`once`); raises as `_propose`."""
        return await carry_out(replica, self._command(kind, fields), body, self._runtime.clock)

    def _command(self, kind: int, fields: Body) -> bytes:
        body = json.dumps(fields, separators=(",", ":"), ensure_ascii=False).encode()
        flags = commands.NEWEST if kind == commands.CONSUMER_RESET and fields.get("newest") else 0
        return commands.encode_extended(self._runtime.clock.time_ns(), kind, body, flags)


def _refuse_new_target(replica: StreamReplica, state: ConsumerState, deliver_subject: str) -> None:
    """Raises ApiError 10013 for a new deliver subject while the present one has interest."""
    rules = state.rules
    if deliver_subject.encode() != rules.deliver_subject and _is_bound(replica, rules):
        raise by_code(CONSUMER_NAME_EXISTS)


def _is_bound(replica: StreamReplica, rules: ConsumerRules) -> bool:
    """True when a subscription takes the deliveries of this push consumer."""
    if not rules.push:
        return False
    if rules.deliver_group:
        return replica.bus.queue_interest(rules.deliver_subject, rules.deliver_group)
    return replica.bus.has_interest(rules.deliver_subject)


def _is_cyclic(rules: ConsumerRules, stream: Body) -> bool:
    """True when the consumer could get its own dead letters from a stream of this configuration."""
    if rules.letters is None:
        return False
    try:
        dead_letters.check_cycle(rules.letters, rules.config, stream)
    except ApiError:
        return True
    return False


def _state(replica: StreamReplica, name: str) -> ConsumerState:
    """Returns the consumer `name`. Raises ApiError 10014."""
    state = replica.consumers.table.by_name.get(name)
    if state is None:
        raise by_code(CONSUMER_NOT_FOUND)
    return state


def _page(replica: StreamReplica, body: Body) -> tuple[list[str], int]:
    names = sorted(name for name, state in replica.consumers.table.by_name.items() if not state.rules.direct)
    offset = max(0, int(body.get("offset") or 0))
    return names[offset : offset + int(body["limit"])], len(names)


def _live(answer: Body) -> Live:
    since, errors = answer.get("since") or {}, answer.get("letter_errors") or {}
    keys, members = answer.get("keys") or {}, answer.get("members") or {}  # an older server tells no members
    return {
        int(cid): LiveConsumer(
            waiting,
            bool(bound),
            int(since.get(cid) or 0),
            KeySharing(int(keys.get(cid) or 0), *map(int, members.get(cid) or ())),
            str(errors.get(cid) or ""),
        )
        for cid, (waiting, bound) in answer["live"].items()
    }


Ask = Callable[["Assignment", str, dict[str, Any]], Awaitable[dict[str, Any]]]
"""`JetStream.stream_request`."""


class ConsumerExpiry:
    """Deletes unused consumers, one request at a time per stream; the owner reports again after a failure."""

    def __init__(self, replicas: Mapping[int, StreamReplica], ask: Ask, background: Background) -> None:
        self._replicas = replicas
        self._ask = ask
        self._background = background
        self._running: set[int] = set()

    def look(self, gid: int) -> None:
        """Begins to delete the reported consumers, unless that is under way. Called at once when there are some: a
        threshold may be shorter than the time between ticks."""
        replica = self._replicas.get(gid)
        if replica is not None and replica.consumers.unused and gid not in self._running:
            self._running.add(gid)
            self._background.spawn(self._expire(gid, replica))

    async def _expire(self, gid: int, replica: StreamReplica) -> None:
        unused = replica.consumers.unused
        try:
            while unused:
                cid, state = unused.popitem()
                owner = replica.consumers.owner(cid)
                if owner is not None and not owner.num_waiting and not owner.push_bound:
                    await self._ask(replica.assignment, "consumer_expire", {"name": state.name, "cid": cid})
        except ApiError:
            return  # no leader: the owner reports it again
        finally:
            self._running.discard(gid)
