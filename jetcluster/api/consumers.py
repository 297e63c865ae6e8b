"""Handlers of `$JS.API.CONSUMER.>`: one coroutine per endpoint, request in, fields of the success reply out.

The leader of the stream's group decides (`cluster.consumer_requests`); this module makes the checks that need only the
request, the stream's configuration and the account's limits. Order of checks, shapes and texts are nats-server's.

Mirrors and sources of nats-server ask for the same consumer, without acks, for any retention of the upstream;
with `workqueue` or `interest` the upstream makes a durable one of it, which waits for acknowledgements by flow control
(ADR-60). Without that a message would be gone as soon as it was sent.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, Final

from jetcluster import errors
from jetcluster.api import models
from jetcluster.api.request import ApiContext, Request, check_letters, check_target
from jetcluster.api.streams import LIST_LIMIT, NAMES_LIMIT, find, on_leader
from jetcluster.errors import ApiError, by_code
from jetcluster.meta.state import Assignment
from jetcluster.model import consumer_rules
from jetcluster.model.codec import invalid_json
from jetcluster.model.limits import AccountLimits
from jetcluster.model.times import parse_rfc3339, rfc3339, rfc3339_bytes
from jetcluster.protocol import headers

MAX_ACK_PENDING: Final = 1000


def waits_for_acks(wanted: models.ConsumerConfig, stream: Mapping[str, Any]) -> bool:
    """True for the consumer of a mirror or source of nats-server, on a stream whose messages go when acknowledged."""
    return wanted.sourcing and wanted.direct and bool(wanted.name) and stream.get("retention", "limits") != "limits"


def make_durable(wanted: models.ConsumerConfig) -> int:
    """Changes the request to the consumer that it gets. Returns the sequence that it asked to begin at, 0 for the
    first."""
    start = wanted.opt_start_seq
    wanted.durable_name = wanted.name
    wanted.deliver_policy, wanted.opt_start_seq, wanted.opt_start_time = "all", 0, ""
    wanted.ack_policy, wanted.max_ack_pending = "flow_control", MAX_ACK_PENDING
    wanted.ack_wait = wanted.max_deliver = wanted.inactive_threshold = 0
    wanted.direct = wanted.sourcing = False
    return start


async def rewind(context: ApiContext, request: Request, name: str, start: int) -> dict[str, Any] | None:
    """Sets the consumer of an earlier attempt back to `start` and acknowledges all before it; for 0, sets it back to
    what was acknowledged. Returns None when there is no such consumer."""
    try:
        _, result = await on_leader(context, request, "consumer_reset", {"name": name, "seq": start, "done": True})
    except ApiError as error:
        if error.err_code == errors.CONSUMER_NOT_FOUND:
            return None
        raise
    found: dict[str, Any] = result
    return found


Fields = dict[str, Any]

_ALPHABET = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_EPHEMERAL_LENGTH = 8
_IDENTITY_LENGTH = 8


async def create(context: ApiContext, request: Request) -> Fields:
    """CONSUMER.CREATE.<stream>[.<name>[.<filter>]]."""
    wanted = _parse_create(context, request)
    config = wanted.config
    if len(request.args) > 1:
        consumer_rules.check_name(request.args[1])
        if config.durable_name and config.durable_name != request.args[1]:
            raise by_code(errors.CONSUMER_NAME_MISMATCH)
        config.name = request.args[1]
    else:
        consumer_rules.check_name(config.name)
        if config.durable_name:
            raise by_code(errors.DURABLE_NAME_NOT_ALLOWED)
    if len(request.args) > 2:
        if config.filter_subjects:
            raise by_code(errors.FILTER_SUBJECTS_IN_SUBJECT)
        if config.filter_subject != ".".join(request.args[2:]):
            raise by_code(errors.FILTER_SUBJECT_MISMATCH)
    return await _create(context, request, wanted)


async def create_durable(context: ApiContext, request: Request) -> Fields:
    """CONSUMER.DURABLE.CREATE.<stream>.<name>."""
    wanted = _parse_create(context, request)
    consumer_rules.check_name(request.args[1])
    if not wanted.config.durable_name:
        raise by_code(errors.DURABLE_NAME_MISSING)
    if wanted.config.durable_name != request.args[1]:
        raise by_code(errors.CONSUMER_NAME_MISMATCH)
    wanted.config.name = request.args[1]
    return await _create(context, request, wanted)


def _parse_create(context: ApiContext, request: Request) -> models.ConsumerCreateRequest:
    wanted = models.ConsumerCreateRequest.from_fields(
        request.fields, strict=request.strict, refuse_empty=context.compat.empty_policy == "refuse"
    )
    if wanted.stream_name != request.stream:
        raise by_code(errors.STREAM_MISMATCH)
    check_target(request, wanted.config.deliver_subject)
    return wanted


async def _create(context: ApiContext, request: Request, wanted: models.ConsumerCreateRequest) -> Fields:
    wanted.config.settle_ack_policy(context.compat.ack_policy)
    given = wanted.config.to_wire()
    if wanted.config.num_replicas > 1 and not context.cluster.clustered:
        raise by_code(errors.REPLICAS_NOT_SUPPORTED)
    stream = await find(context, request)
    limits = context.limits(request.account).of(stream.replicas)
    if wanted.config.sourcing:
        _check_identity(request, stream)
    if waits_for_acks(wanted.config, stream.config):
        return await _for_link(context, request, wanted)
    if wanted.pedantic:
        consumer_rules.check_pedantic(given, stream.config)
    name = wanted.config.name or _random_name(context)
    if wanted.config.sourcing and wanted.config.direct and wanted.config.name and not wanted.config.durable_name:
        # A nats-server's mirror asks for the same name again and again; its previous consumer goes when unused.
        name = wanted.config.name = f"{name}-{_random_name(context)}"
        given = wanted.config.to_wire()
    config = consumer_rules.with_defaults(given, stream.config, limits, pedantic=wanted.pedantic)
    consumer_rules.check_config(name, config, stream.config, limits)
    consumer_rules.check_metadata(config)
    check_letters(request, config)
    body = {
        "name": name,
        "config": config,
        "action": wanted.action,
        "request": context.request_id(),
        "max_consumers": _max_consumers(stream, limits),
    }
    if wanted.action == "create" and not context.cluster.clustered and consumer_rules.always_new(given, stream.config):
        body["anew"] = True
    found, result = await on_leader(context, request, "consumer_create", body)
    if result["created"]:
        request.tell_consumer(found.name, name, "create")
        if result["info"].get("paused"):
            until = rfc3339(result["info"]["config"]["pause_until_ns"])
            request.tell_pause(found.name, name, {"paused": True, "pause_until": until})
    if "cid" in result:
        owner, cid = str(result["owner"]), int(result["cid"])
        request.answered = lambda: context.cluster.consumers.answered(owner, found.gid, cid)
    return _info(result["info"])


async def _for_link(context: ApiContext, request: Request, wanted: models.ConsumerCreateRequest) -> Fields:
    start = make_durable(wanted.config)
    name = wanted.config.name
    known = await rewind(context, request, name, start)  # the old deliver subject has no subscriber any more
    made = await _create(context, request, wanted)
    if known is None and start > 1:
        moved = await rewind(context, request, name, start)
        made = _info(moved["info"]) if moved is not None else made
    return made


def _check_identity(request: Request, stream: Assignment) -> None:
    """Raises ApiError 10225 for a source that goes on with another incarnation of the stream: a stream that was created
    anew refuses it and names itself. nats-server 2.15 asks that of `sourcing` consumers only, too."""
    expected = headers.get(request.headers, b"Nats-Stream-Identity")
    if not expected:
        return
    digest = hashlib.sha256(f"{stream.gid} {stream.created_ns} {stream.name}".encode()).digest()
    identity = _letters(digest[:_IDENTITY_LENGTH])
    if expected != identity.encode():
        raise by_code(10225, msg=identity)


def _random_name(context: ApiContext) -> str:
    return _letters(context.rng.token(_EPHEMERAL_LENGTH))


def _letters(random: bytes) -> str:
    return "".join(_ALPHABET[byte % len(_ALPHABET)] for byte in random)


def _max_consumers(stream: Assignment, limits: AccountLimits) -> int:
    """Returns the most consumers that the account lets each of its streams have, as upstream, or the default where
    nobody says a number; 0 for any. The stream's own number is looked at where its newest configuration is: in apply.
    This server may not know it yet."""
    if limits.max_consumers > 0:
        return limits.max_consumers
    return 0 if stream.config["max_consumers"] > 0 else max(limits.default_max_consumers, 0)


async def info(context: ApiContext, request: Request) -> Fields:
    _refuse_body(request)
    _, result = await on_leader(context, request, "consumer_info", {"name": request.args[1]})
    return _info(result)


async def delete(context: ApiContext, request: Request) -> Fields:
    _refuse_body(request)
    name = request.args[1]
    found, _ = await on_leader(context, request, "consumer_delete", {"name": name})
    request.tell_consumer(found.name, name, "delete")
    return {"success": True}


async def names(context: ApiContext, request: Request) -> Fields:
    page, result = await _page(context, request, "consumer_names", NAMES_LIMIT)
    return {**page, "consumers": result["names"]}


async def list_consumers(context: ApiContext, request: Request) -> Fields:
    page, result = await _page(context, request, "consumer_list", LIST_LIMIT)
    return {**page, "consumers": [_info(one, versions=False) for one in result["consumers"]]}


async def pause(context: ApiContext, request: Request) -> Fields:
    """`pause_until` of the answer is the time that was given, also when it is past; the zero time without any."""
    wanted = models.ConsumerPauseRequest.from_fields(request.fields, strict=request.strict)
    given = parse_rfc3339(wanted.pause_until) if wanted.pause_until else 0
    until = max(0, given)
    name = request.args[1]
    found, answer = await on_leader(context, request, "consumer_pause", {"name": name, "pause_until": until})
    left = until - context.clock.time_ns()
    if answer.get("changed", True):
        request.tell_pause(found.name, name, {"paused": left > 0, "pause_until": rfc3339(until)})
    if left > 0:
        return {"paused": True, "pause_until": rfc3339(until), "pause_remaining": left}
    return {"paused": False, "pause_until": rfc3339_bytes(given).decode()}


async def reset(context: ApiContext, request: Request) -> Fields:
    """Answers a consumer that does not exist with 404; upstream sends no answer then."""
    wanted = models.ConsumerResetRequest.from_fields(request.fields, strict=request.strict)
    _, result = await on_leader(context, request, "consumer_reset", {"name": request.args[1], "seq": wanted.seq})
    return {**_info(result["info"]), "reset_seq": result["reset_seq"]}


async def unpin(context: ApiContext, request: Request) -> Fields:
    wanted = models.ConsumerUnpinRequest.from_fields(request.fields, strict=request.strict)
    if not wanted.group:
        raise invalid_json("consumer group not specified")
    await find(context, request)
    consumer_rules.check_group(wanted.group)
    await on_leader(context, request, "consumer_unpin", {"name": request.args[1], "group": wanted.group})
    return {}


async def leader_stepdown(context: ApiContext, request: Request) -> Fields:
    if not context.cluster.clustered:
        raise by_code(errors.CLUSTER_REQUIRED)
    wanted = models.StepdownRequest.from_fields(request.fields, strict=request.strict)
    placement = wanted.placement.model_dump() if wanted.placement is not None else {}
    body = {"name": request.args[1], "placement": placement, "preferred": placement.get("preferred", "")}
    await on_leader(context, request, "consumer_stepdown", body)
    return {"success": True}


async def peer_remove(context: ApiContext, request: Request) -> Fields:
    """Lets a consumer with one replica leave a server that its stream stays on; EVACUATE is the same."""
    if not context.cluster.clustered:
        raise by_code(errors.CLUSTER_REQUIRED)
    wanted = models.PeerRequest.from_fields(request.fields, strict=request.strict)
    if not wanted.peer:
        raise by_code(errors.BAD_REQUEST)
    await on_leader(context, request, "consumer_leave", {"name": request.args[1], "peer": wanted.peer})
    return {"success": True}


async def _page(context: ApiContext, request: Request, kind: str, limit: int) -> tuple[Fields, Fields]:
    wanted = models.PageRequest.from_fields(request.fields, strict=request.strict)
    _, result = await on_leader(context, request, kind, {"offset": max(0, wanted.offset), "limit": limit})
    total = int(result["total"])
    page = {"total": total, "offset": min(max(0, wanted.offset), total), "limit": result.get("limit", limit)}
    return page, result


def _refuse_body(request: Request) -> None:
    if request.payload.strip() not in {b"", b"{}"}:
        raise by_code(errors.NOT_EMPTY_REQUEST)


def _info(info: Fields, *, versions: bool = True) -> Fields:
    return {**info, "config": consumer_rules.shown(info["config"], versions=versions)}
