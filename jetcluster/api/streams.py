"""Handlers of `$JS.API.STREAM.>`: one coroutine per endpoint, request in, fields of the success reply out.

A refusal is an ApiError, rendered by `api.dispatch`. Order of checks and shapes are nats-server's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from jetcluster import API_LEVEL, REPORTED_VERSION, errors
from jetcluster.api import models
from jetcluster.api import request as api_request
from jetcluster.api.request import ApiContext, Request
from jetcluster.cancelling import cancelled
from jetcluster.errors import ApiError, by_code, invalid_config
from jetcluster.meta.state import Assignment
from jetcluster.model import link_rules, retention_guard, stream_rules, subjects
from jetcluster.model.limits import AccountLimits
from jetcluster.model.times import rfc3339
from jetcluster.stream.read import freshness
from jetcluster.stream.read.freshness import Freshness, FreshnessError
from jetcluster.stream.rules import RESTORING

Fields = dict[str, Any]

NAMES_LIMIT = 1024
LIST_LIMIT = 256
LIST_SECONDS = 3.0
"""Time that a LIST waits for the streams' leaders; names of streams that did not answer go to `missing`."""
MAX_LISTED_AT_ONCE = 64
_TAKING = ("subjects", "mirror", "sources", "subject_transform")
"""Keys that decide which messages a stream gets."""
STANDING_SECONDS = 2.0
"""Seconds in which a stream's leader must confirm itself; the request to the meta group then has its own time."""


async def create(context: ApiContext, request: Request) -> Fields:
    config = _parse_config(context, request)
    limits = context.limits(request.account)
    stream_rules.check_config(config, limits.of(config["num_replicas"]))
    link_rules.check_upstreams(config, _finder(context, request))
    check_republish(request, config)
    result = await meta(
        context, "stream_create", request, config=config, **new_limits(context, request.account, config)
    )
    assignment = Assignment.from_dict(result["assignment"])
    created = bool(result["created"])
    info = await (decided(context, assignment, _nothing(context, config)) if created else ready(context, assignment))
    if created:
        request.tell(assignment.name, "create")
    fields = stream_info(context, assignment, info)
    if not context.cluster.clustered:
        fields.pop("cluster", None)  # only STREAM.INFO shows it on a standalone server (seen on nats-server 2.15)
    # A repeated create is told apart only in a cluster, as upstream.
    return {**fields, "did_create": True} if created or not context.cluster.clustered else fields


async def update(context: ApiContext, request: Request) -> Fields:
    config = _parse_config(context, request, update=True)
    # Unknown streams first: what else is wrong with the request would only distract.
    known = await find(context, request)
    limits = context.limits(request.account)
    stream_rules.check_config(config, limits.of(config["num_replicas"]))
    link_rules.check_upstreams(config, _finder(context, request))
    if not request.may_republish(config):
        # Only where the stream republishes to now may stay, and this node may not have another's update yet.
        known = await _lookup(context, request)
    check_republish(request, config, known.config)
    known = await _updatable(context, request, known, config)
    before = await _standing(context, request, known)
    known = _newest(known, before)
    await _check_consumers(context, known, config)
    moves = config.get("placement") != known.config.get("placement")
    if context.cluster.clustered and (moves or config["num_replicas"] != known.replicas):
        await _check_settled(context, request, moves=moves)
    result = await meta(context, "stream_update", request, config=config, **meta_limits(limits, config))
    assignment = Assignment.from_dict(result["assignment"])
    info = await decided(context, assignment, before)
    request.tell(assignment.name, "modify")
    fields = stream_info(context, assignment, info)
    if not context.cluster.clustered:
        fields.pop("cluster", None)
    return fields


async def _updatable(context: ApiContext, request: Request, known: Assignment, config: Fields) -> Assignment:
    """Raises ApiError for what the stream, as it is now, cannot become: apply decides, and this is for the reason only.
    This node may not have an update yet that another node answered, so the meta leader is asked before it refuses."""
    try:
        stream_rules.merge_update(known.config, config)
    except ApiError:
        known = await _lookup(context, request)
        stream_rules.merge_update(known.config, config)
    return known


async def _check_consumers(context: ApiContext, known: Assignment, config: Fields) -> None:
    """Raises ApiError 10069 for limits of consumers that one of the stream's consumers exceeds, and for subjects
    by which one could get its own dead letters."""
    limits = config.get("consumer_limits") or {}
    taking = {key: config.get(key) for key in _TAKING}
    taken = any(value and value != known.config.get(key) for key, value in taking.items())
    if not taken and not any(limit > 0 for limit in limits.values()):
        return
    asked = {"consumer_limits": limits, **({"taking": taking} if taken else {})}
    answer = await context.cluster.stream_request(known, "consumers_beyond", asked)
    if answer["names"]:
        raise by_code(errors.UPDATE_FAILED, err=f"change to limits violates consumers: {', '.join(answer['names'])}")
    if cyclic := answer.get("cyclic"):
        raise by_code(errors.UPDATE_FAILED, err=f"dead letters would come back to consumers: {', '.join(cyclic)}")


async def _check_settled(context: ApiContext, request: Request, *, moves: bool) -> None:
    """Raises ApiError for a stream that is already moving to other peers."""
    known = await _lookup(context, request)
    if (known.origin is not None or moves) and await _under_way(context, known):
        raise by_code(errors.MOVE_IN_PROGRESS if known.origin is not None else errors.RECONFIGURATION_IN_PROGRESS)


async def _under_way(context: ApiContext, assignment: Assignment) -> list[str]:
    """The members of the stream's group from before a change that is under way; empty when there is none."""
    answer = await context.cluster.stream_request(assignment, "members", {"revision": assignment.revision})
    changes = answer["learners"] or answer["outgoing"] or set(answer["voters"]) != set(assignment.peers)
    return list(answer["outgoing"] or answer["voters"]) if changes else []


async def cancel_move(context: ApiContext, request: Request) -> Fields:
    """Gives the stream back its previous peers, placement and number of replicas; replicas that have moved already move
    back. So it does with a replica that was to leave a server, not with those that a stream gets for lost ones."""
    if not context.cluster.clustered:
        raise by_code(errors.CLUSTER_REQUIRED)
    known = await _lookup(context, request)
    before = await _standing(context, request, known)
    members = await _under_way(context, known)
    back = known.origin is None and set(members) == set(known.peers)  # only learners have to go
    if not members or back or (known.origin is None and not known.may_return_to(len(members))):
        raise by_code(errors.NO_RECONFIGURATION)
    wanted: Fields = {"name": known.name, "revision": known.revision}
    if known.origin is not None:
        result = await meta(context, "stream_move_cancel", request, **wanted)
    else:
        config = {**known.config, "num_replicas": len(members)}
        wanted |= {"peers": members, **meta_limits(context.limits(request.account), config)}
        result = await meta(context, "stream_stay", request, **wanted)
    return await _placed(context, request, result, before)


async def move(context: ApiContext, request: Request, wanted: models.ServerMoveRequest) -> Fields:
    """Lets the stream leave a server of this cluster. Raises ApiError 10044 for a server that is not known."""
    known = await _lookup(context, request)
    if wanted.server and wanted.domain not in {"", context.domain}:
        raise by_code(errors.SERVER_NOT_MEMBER)
    before = await _standing(context, request, known)
    body = {"name": known.name, "server": wanted.server, "cluster": wanted.cluster, "tags": wanted.tags or []}
    return await _placed(context, request, await meta(context, "stream_leave", request, **body), before)


async def _placed(context: ApiContext, request: Request, result: Fields, before: Fields) -> Fields:
    """The stream with other peers, as the meta group decided."""
    assignment = Assignment.from_dict(result["assignment"])
    info = await decided(context, assignment, before)
    request.tell(assignment.name, "modify")
    return stream_info(context, assignment, info)


async def info(context: ApiContext, request: Request) -> Fields:
    body: Fields = {"subjects_filter": "", "deleted_details": False, "offset": 0}
    if request.payload:
        wanted = models.StreamInfoRequest.from_fields(request.fields, strict=request.strict)
        body = wanted.model_dump(include=set(body))
    if request.headers and _wishes(request).consistency == freshness.LINEARIZABLE:
        body["linearizable"] = True
    assignment, answer = await on_leader(context, request, "info", body)
    assignment = _newest(assignment, answer)
    total, offset, limit = answer.get("page") or (0, 0, 0)
    if not body["subjects_filter"] or not total:
        total = offset = limit = 0
    page = {"total": total, "offset": offset, "limit": limit}
    fields = {**page, **stream_info(context, assignment, answer)}
    if "freshness" in answer:
        fields["freshness"] = answer["freshness"]
    mirrors = context.cluster.mirrors_of(request.account, request.stream) if context.cluster.clustered else []
    if mirrors:
        # Between `cluster` and `ts`, as upstream; all are in this cluster, so none is nearer than another.
        place = {"domain": context.domain} if context.domain else {}
        place["cluster"] = (answer.get("cluster") or {}).get("name", "")
        ts = fields.pop("ts")
        fields |= {"alternates": [{"name": name, **place} for name in (request.stream, *mirrors)], "ts": ts}
    return fields


def _wishes(request: Request) -> Freshness:
    try:
        return freshness.of_headers(request.headers)
    except FreshnessError as error:
        raise by_code(10025, err=error) from error


async def delete(context: ApiContext, request: Request) -> Fields:
    if request.payload.strip() not in {b"", b"{}"}:
        raise by_code(errors.NOT_EMPTY_REQUEST)
    result = await meta(context, "stream_delete", request, name=request.stream)
    await context.cluster.settle(int(result["revision"]))
    request.tell(request.stream, "delete")
    return {"success": True}


async def names(context: ApiContext, request: Request) -> Fields:
    wanted = models.PageRequest.from_fields(request.fields, strict=request.strict)
    result = await _page(context, "names", request, wanted, NAMES_LIMIT)
    return {
        "total": result["total"],
        "offset": result["offset"],
        "limit": NAMES_LIMIT,
        "streams": result["names"],
    }


async def list_streams(context: ApiContext, request: Request) -> Fields:
    wanted = models.PageRequest.from_fields(request.fields, strict=request.strict)
    result = await _page(context, "list", request, wanted, LIST_LIMIT)
    assignments = [Assignment.from_dict(item) for item in result["assignments"]]
    answers = await _gather_info(context, assignments, LIST_SECONDS)
    fields: Fields = {
        "total": result["total"],
        "offset": result["offset"],
        "limit": result.get("limit", LIST_LIMIT),
        "streams": [
            stream_info(context, _newest(a, answers[a.gid]), answers[a.gid]) for a in assignments if a.gid in answers
        ],
    }
    if not context.cluster.clustered:
        for stream in fields["streams"]:
            stream.pop("cluster", None)  # as for CREATE
    missing = [a.name for a in assignments if a.gid not in answers]
    return {**fields, "missing": missing} if missing else fields


async def purge(context: ApiContext, request: Request) -> Fields:
    wanted = models.PurgeRequest.from_fields(request.fields, strict=request.strict)
    if (wanted.seq and wanted.keep) or (wanted.filter and not subjects.is_valid(wanted.filter)):
        await find(context, request)
        raise by_code(errors.BAD_REQUEST)
    body = {"filter": wanted.filter, "seq": wanted.seq, "keep": wanted.keep}
    async with asyncio.timeout(api_request.REQUEST_SECONDS) as limit:
        # A purge under way is waited for as long as its leader reports progress.
        _, answer = await on_leader(context, request, "purge", body, under_way=lambda: limit.reschedule(None))
    return {"success": True, "purged": answer["purged"]}


async def msg_get(context: ApiContext, request: Request) -> bytes:
    """The leader renders the whole reply: a message's bytes are turned into JSON once, where they are."""
    body = {
        "payload": request.payload.decode("latin-1"),
        "headers": request.headers.decode("latin-1"),
        "strict": request.strict,
    }
    _, answer = await on_leader(context, request, "msg_get", body)
    response: str = answer["response"]
    return response.encode()


async def msg_delete(context: ApiContext, request: Request) -> Fields:
    if request.payload.strip() in {b"", b"{}"}:
        await find(context, request)
        raise by_code(errors.BAD_REQUEST)
    wanted = models.MsgDeleteRequest.from_fields(request.fields, strict=request.strict)
    await on_leader(context, request, "msg_delete", {"seq": wanted.seq, "no_erase": wanted.no_erase})
    return {"success": True}


async def leader_stepdown(context: ApiContext, request: Request) -> Fields:
    if not context.cluster.clustered:
        raise by_code(errors.CLUSTER_REQUIRED)
    wanted = models.StepdownRequest.from_fields(request.fields, strict=request.strict)
    placement = wanted.placement.model_dump() if wanted.placement is not None else {}
    await on_leader(context, request, "stepdown", {"placement": placement})
    return {"success": True}


async def peer_remove(context: ApiContext, request: Request) -> Fields:
    """Success says that the removal has begun: the replica goes once its successor has all that it had. So EVACUATE,
    which nats-server distinguishes by that, is the same."""
    if not context.cluster.clustered:
        raise by_code(errors.CLUSTER_REQUIRED)
    wanted = models.PeerRequest.from_fields(request.fields, strict=request.strict)
    if not wanted.peer:
        raise by_code(errors.BAD_REQUEST)
    await meta(context, "stream_peer_remove", request, name=request.stream, peer=wanted.peer)
    return {"success": True}


def stream_info(context: ApiContext, assignment: Assignment, answer: Fields) -> Fields:
    """The stream info object, keys in wire order. `answer` is the leader's: `state`, `cluster`, `links`."""
    config = dict(assignment.config)
    config.pop(RESTORING, None)
    level = {"_nats.level": str(API_LEVEL), "_nats.ver": REPORTED_VERSION}
    config["metadata"] = dict(sorted({**config["metadata"], **level}.items()))
    fields: Fields = {
        "config": config,
        "created": rfc3339(assignment.created_ns),
        "state": answer["state"],
    }
    if context.domain:
        fields["domain"] = context.domain
    if answer.get("cluster"):
        fields["cluster"] = answer["cluster"]
    fields |= answer.get("links") or {}
    if answer.get("guard"):
        fields[retention_guard.FIELD] = answer["guard"]
    fields["ts"] = rfc3339(context.clock.time_ns())
    return fields


def _parse_config(context: ApiContext, request: Request, *, update: bool = False) -> Fields:
    """The normalised wire form of the request's configuration; its name is the subject's."""
    parsed = models.StreamConfigRequest.from_fields(
        request.fields,
        strict=request.strict,
    )
    if update and not parsed.name:
        stream_rules.check_name(parsed.name)  # 10052, where a create without a name is a mismatch
    if parsed.name != request.stream:
        raise by_code(errors.STREAM_MISMATCH)
    stream_rules.check_name(parsed.name)
    limits = context.limits(request.account)
    config = parsed.normalised(limits, auto_allow_direct=context.compat.auto_allow_direct)
    wire = config.to_wire()
    if not update:
        stream_rules.check_create(wire)
    if parsed.pedantic:
        models.check_pedantic(parsed, config, limits)
    given = parsed.mirror_direct if parsed.pedantic else None
    return link_rules.inherited(wire, _finder(context, request), given=given)


def check_republish(request: Request, config: Fields, known: Mapping[str, Any] | None = None) -> None:
    """Raises ApiError 10052 where the stream would publish in the place of a client that may not. `known` is the
    stream's previous configuration."""
    if not request.may_republish(config, known):
        raise invalid_config("stream configuration for republish destination is not permitted")


def _finder(context: ApiContext, request: Request) -> link_rules.Find:
    def find_config(name: str) -> link_rules.Config | None:
        known = context.cluster.assignment(request.account, name)
        return known.config if known is not None else None

    return find_config


def new_limits(context: ApiContext, account: str, config: Fields) -> dict[str, dict[str, int]]:
    """`meta_limits` of a stream before its creation. In a cluster they are the account's own: the room that the servers
    have left is checked where the stream is placed (10005)."""
    limits = context.own_limits(account) if context.cluster.clustered else context.limits(account)
    return meta_limits(limits, config)


def meta_limits(limits: AccountLimits, config: Fields) -> dict[str, dict[str, int]]:
    """Limits that the meta state machine decides by; they go into the command, since apply reads no configuration.
    Raises ApiError 10120."""
    found = {"limits": _bounds(limits)}
    if limits.tiers is not None:
        tier = limits.tier(config["num_replicas"])
        found["tier"] = {**_bounds(tier), "replicas": tier.replicas}
    return found


def _bounds(limits: AccountLimits) -> dict[str, int]:
    return {
        "max_streams": limits.max_streams or -1,  # 0 is any number, as in nats-server, unlike 0 bytes
        "max_memory": limits.max_memory,
        "max_storage": limits.max_storage,
    }


async def meta(context: ApiContext, kind: str, request: Request, **body: Any) -> Fields:
    return await context.cluster.meta_request(
        kind, {"request": context.request_id(), "account": request.account, **body}
    )


async def _page(context: ApiContext, kind: str, request: Request, wanted: models.PageRequest, limit: int) -> Fields:
    body = {"account": request.account, "offset": wanted.offset, "limit": limit, "subject": wanted.subject}
    return await context.cluster.meta_request(kind, body)


async def _gather_info(context: ApiContext, assignments: list[Assignment], seconds: float) -> dict[int, Fields]:
    """Leaders' `info` answers by gid; streams that refused or did not answer in time are left out."""
    answers: dict[int, Fields] = {}
    gate = asyncio.Semaphore(MAX_LISTED_AT_ONCE)

    async def ask(assignment: Assignment) -> None:
        async with gate:
            try:
                body = {"revision": assignment.revision}
                answers[assignment.gid] = await context.cluster.stream_request(assignment, "info", body)
            except ApiError as error:
                context.log.debug("stream left out", stream=assignment.name, error=str(error))

    tasks = [asyncio.ensure_future(ask(assignment)) for assignment in assignments]
    if tasks:
        await asyncio.wait(tasks, timeout=seconds)
        await cancelled(tasks)
    return answers


def _newest(known: Assignment, answer: Fields) -> Assignment:
    """The leader adds its assignment when it is newer than the one asked with: after an update through another node
    INFO must not show the old configuration."""
    newer = answer.get("assignment")
    return Assignment.from_dict(newer) if newer else known


async def _standing(context: ApiContext, request: Request, known: Assignment) -> Fields:
    """Has the stream's leader confirm, with its majority, that it leads. This comes before a decision of the meta group
    about the stream, which is carried out also by servers that come back later, and must not have been refused. Raises
    ApiError 10118, 10008."""
    if context.cluster.offline(known):
        known = await _lookup(context, request)
        if context.cluster.offline(known):
            raise by_code(errors.STREAM_OFFLINE)
    body = {"revision": known.revision}
    return await context.cluster.stream_request(known, "standing", body, seconds=STANDING_SECONDS)


async def decided(context: ApiContext, assignment: Assignment, known: Fields) -> Fields:
    """Returns the leader's answer once the meta group's decision is in force, or this node's knowledge of the stream
    when the leader is lost right then: an error would not be true."""
    try:
        return await ready(context, assignment)
    except ApiError as error:
        if error.err_code != errors.NOT_AVAILABLE:
            raise
    return {**known, "cluster": {key: v for key, v in known["cluster"].items() if key in {"name", "raft_group"}}}


def _nothing(context: ApiContext, config: Fields) -> Fields:
    """Returns a leader's answer about a stream that was just created."""
    first = first if (first := int(config.get("first_seq") or 0)) > 1 else 0  # as `state_object` shows a new stream
    none = rfc3339(0)
    state = {"messages": 0, "bytes": 0, "first_seq": first, "first_ts": none, "last_seq": max(first - 1, 0)}
    return {"state": {**state, "last_ts": none, "consumer_count": 0}, "cluster": {}}


async def ready(context: ApiContext, assignment: Assignment) -> Fields:
    answer = await context.cluster.stream_request(assignment, "ready", {"revision": assignment.revision})
    await context.cluster.heard(assignment.revision)
    return answer


async def find(context: ApiContext, request: Request) -> Assignment:
    """The request's stream. This node's replica of the meta group may not have a create yet that another node answered,
    so only the meta leader's "not found" counts. Raises ApiError 10059."""
    found = context.cluster.assignment(request.account, request.stream)
    return found if found is not None else await _lookup(context, request)


async def _lookup(context: ApiContext, request: Request) -> Assignment:
    result = await context.cluster.meta_request("lookup", {"account": request.account, "name": request.stream})
    return Assignment.from_dict(result["assignment"])


async def on_leader(
    context: ApiContext,
    request: Request,
    kind: str,
    body: Fields,
    under_way: Callable[[], None] | None = None,
) -> tuple[Assignment, Fields]:
    """Asks the stream's leader; once more if the stream turns out to have been deleted and created again. `under_way`
    is called when it takes longer (`JetStream.stream_request`)."""
    found = await find(context, request)
    body = {**body, "revision": found.revision}
    try:
        return found, await context.cluster.stream_request(found, kind, body, under_way)
    except ApiError as error:
        if error.err_code not in {errors.NOT_AVAILABLE, errors.STREAM_NOT_FOUND}:
            raise
        fresh = await _lookup(context, request)
        if fresh.gid == found.gid:
            raise
    return fresh, await context.cluster.stream_request(fresh, kind, body, under_way)
