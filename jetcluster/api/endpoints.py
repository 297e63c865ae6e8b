"""The table of API endpoints: subject, response type, handler, and the further fields of an error reply.

Also holds the handlers of accounts, of buckets, and of `$JS.API.META.>`, `$JS.API.SERVER.>` and `ACCOUNT.PURGE.*`
(whole servers and accounts, for the system account alone). The module imports the handlers, so it is loaded after the
start or on the first request (see `api.dispatch`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final

from jetcluster import API_LEVEL
from jetcluster.api import consumers, models, streams
from jetcluster.api.request import ApiContext, Request, RequestCounters
from jetcluster.api.streams import on_leader
from jetcluster.errors import BAD_REQUEST, CLUSTER_REQUIRED, OBJECT_DELIVER_SUBJECT, STREAM_NOT_FOUND, ApiError, by_code
from jetcluster.model.codec import dumps
from jetcluster.model.limits import AccountLimits, tier_replicas
from jetcluster.model.times import ZERO_TIME
from jetcluster.objects.layout import STREAM_PREFIX
from jetcluster.objects.request import decode


async def object_request(context: ApiContext, request: Request) -> bytes:
    """Hands a request to `$OBJ.<bucket>` to the leader of the bucket's stream, which answers a get itself, before the
    chunks and on the same path, so that the client sees them in that order. Raises ApiError: 404/10059 when there is no
    such bucket."""
    asked = decode(request.payload, request.headers)
    if asked.deliver and asked.action == "get" and not request.may_deliver_to(asked.deliver):
        raise by_code(OBJECT_DELIVER_SUBJECT)
    request.args = (STREAM_PREFIX + request.args[0],)
    body = {
        "action": asked.action,
        "name": asked.name,
        "deliver": asked.deliver,
        "offset": asked.offset,
        "limit": asked.limit,
        "reply": request.reply.decode("latin-1"),
    }
    _, found = await on_leader(context, request, "object", body)
    if asked.action == "get":
        request.reply = b""
    answer: str = found["answer"]
    return answer.encode()


_NONE: Final = AccountLimits(0, 0, 0, 0, 0, 0, 0)
"""Limits shown for a tier that has streams although the account has no such limits any more."""


async def account_info(context: ApiContext, request: Request, counters: RequestCounters) -> dict[str, Any]:
    """`$JS.API.INFO` and its alias `$JS.API.ACCOUNT.INFO`."""
    own = context.own_limits(request.account)
    usage, (memory, storage, consumers) = await asyncio.gather(
        context.cluster.meta_request("usage", {"account": request.account}), context.cluster.used(request.account)
    )
    fields: dict[str, Any] = {
        "memory": memory,
        "storage": storage,
        "reserved_memory": usage["reserved_memory"],
        "reserved_storage": usage["reserved_storage"],
        "streams": usage["streams"],
        "consumers": consumers,
        "limits": own.to_wire(duplicate_window_max=context.compat.duplicate_window_max),
    }
    if context.domain:
        fields["domain"] = context.domain
    fields["api"] = {"level": API_LEVEL, "total": counters.total, "errors": counters.errors}
    if own.tiers is not None:
        fields["limits"] = {name: type(value)(0) for name, value in fields["limits"].items()}  # as nats-server shows it
        used = await context.cluster.used_by_tier(request.account)
        fields["tiers"] = _tiers(own, used, usage.get("tiers", {}))
    return fields


def _tiers(own: AccountLimits, used: Mapping[int, tuple[int, int, int]], claimed: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the tiers that have limits or streams, by name."""
    names = {*(own.tiers or ()), *(f"R{replicas}" for replicas in (*used, *claimed))}
    found: dict[str, Any] = {}
    for name in sorted(names):
        limits = (own.tiers or {}).get(name)
        memory, storage, consumers = used.get(tier_replicas(name), (0, 0, 0))
        streams = claimed.get(name[1:], {})
        found[name] = {
            "memory": memory,
            "storage": storage,
            "reserved_memory": streams.get("reserved_memory", 0),
            "reserved_storage": streams.get("reserved_storage", 0),
            "streams": streams.get("streams", 0),
            "consumers": consumers,
            "limits": (limits or _NONE).to_wire(),
        }
    return found


Fields = dict[str, Any]

RESCUE_TYPE = "io.nats.jetstream.api.v1.meta_rescue_response"
_EMPTY_BODIES = (b"", b"{}")
MAX_RESCUER_LENGTH = 256
"""The most characters of the requester's name that a rescue keeps in the meta log."""
MAX_PURGED_AT_ONCE = 100
"""Streams that are listed at a time."""
ACCOUNT_PURGE_SECONDS = 60.0
"""Seconds without a deleted stream after which the rest is left: then no server leads the meta group."""
AGAIN_SECONDS = 0.25


async def meta_stepdown(context: ApiContext, request: Request) -> Fields:
    _check_clustered(context)
    wanted = models.StepdownRequest.from_fields(request.fields, strict=request.strict)
    placement = wanted.placement.model_dump() if wanted.placement is not None else {}
    await context.cluster.meta_request("meta_stepdown", {"placement": placement})
    return {"success": True}


async def remove_server(context: ApiContext, request: Request) -> Fields:
    """Removes a server. Success says that the meta group continues without it."""
    await context.cluster.meta_request("server_remove", _server(context, request))
    return {"success": True}


async def evacuate_server(context: ApiContext, request: Request) -> Fields:
    """Marks a server: it takes nothing new and gives away what it has; a repeated request returns what is left. With
    `cancel` it is in use again."""
    answer = await context.cluster.meta_request("server_evacuate", _server(context, request))
    return {"success": True, **answer}


async def rescue_meta(context: ApiContext, request: Request) -> bytes:
    """Returns this server's reply and sends those of the others here, as if all of them had been asked."""
    _check_clustered(context)
    client = request.client()
    by = " ".join(str(client[key]) for key in ("user", "name", "host") if client.get(key)) or str(client["acc"])
    by = by[:MAX_RESCUER_LENGTH]
    wanted: int | ApiError
    try:
        if b"".join(request.payload.split()) in _EMPTY_BODIES:
            raise by_code(BAD_REQUEST)
        wanted = models.RescueRequest.from_fields(request.fields, strict=request.strict).quorum_needed
    except ApiError as error:
        wanted = error
    own, *others = [dumps({"type": RESCUE_TYPE, **answer}) for answer in await context.cluster.rescue_meta(wanted, by)]
    if request.reply:
        for answer in others:
            request.bus.publish(request.reply, answer)
    return own


async def purge_account(context: ApiContext, request: Request) -> Fields:
    """Deletes all streams of an account, and with them its consumers. The reply says that the deletion has begun, as
    nats-server's does, also for an account that has nothing or is not known. It is an error while no server leads the
    meta group."""
    (account,) = request.args
    await context.cluster.meta_request("names", {"account": account, "offset": 0, "limit": 1, "subject": ""})
    request.follow = partial(_delete_streams, context, account)
    return {"initiated": True}


async def _delete_streams(context: ApiContext, account: str) -> None:
    """Deletes streams until none is left. Raises ApiError when the meta group refuses to delete one, or has no leader
    for long."""
    page = {"account": account, "offset": 0, "limit": MAX_PURGED_AT_ONCE, "subject": ""}
    end = context.clock.monotonic() + ACCOUNT_PURGE_SECONDS
    while True:
        try:
            names = (await context.cluster.meta_request("names", page))["names"]
            for name in names:
                body = {"request": context.request_id(), "account": account, "name": name}
                await context.cluster.meta_request("stream_delete", body)
        except ApiError as error:
            gone = error.err_code == STREAM_NOT_FOUND  # by a request whose answer was lost, or by its owner
            if not (gone or error.retriable) or context.clock.monotonic() >= end:
                raise
            await asyncio.sleep(AGAIN_SECONDS)
        else:
            if not names:
                return
            end = context.clock.monotonic() + ACCOUNT_PURGE_SECONDS


async def _snapshot(context: ApiContext, request: Request) -> Fields:
    from jetcluster.api.snapshot import snapshot  # few servers are ever asked for an archive

    return await snapshot(context, request)


async def _restore(context: ApiContext, request: Request) -> Fields:
    from jetcluster.api.restore import restore

    return await restore(context, request)


def _server(context: ApiContext, request: Request) -> Fields:
    _check_clustered(context)
    wanted = models.ServerRequest.from_fields(request.fields, strict=request.strict)
    if not (wanted.peer or wanted.peer_id):
        raise by_code(BAD_REQUEST)
    return {"request": context.request_id(), **wanted.model_dump()}


def _check_clustered(context: ApiContext) -> None:
    if not context.cluster.clustered:
        raise by_code(CLUSTER_REQUIRED)


RESCUE_SECONDS: Final = 14.0
"""Seconds that all steps of META.RESCUE take at most: a request that was given up before could be reported as failed
and yet succeed."""

Reply = dict[str, Any] | bytes
"""Fields of the success reply after `type`, or the whole reply, rendered already."""


@dataclass(slots=True, frozen=True)
class Endpoint:
    """One endpoint of the JetStream API."""

    name: str
    """Tokens after `$JS.API.`."""
    args: tuple[int, int]
    """Number of tokens that follow: least and most."""
    type: str
    """Type of the reply without its prefix; "" for replies without a type."""
    handler: Callable[[ApiContext, Request, RequestCounters], Awaitable[Reply]]
    in_error: Mapping[str, Any] = field(default_factory=dict)
    """Fields that an error reply also holds: nats-server renders Go's zero values there."""
    seconds: float | None = None
    """The longest that an answer may take; None for the usual time (`request.REQUEST_SECONDS`)."""
    decodes: bool = True
    """False when the handler itself refuses a body that is no JSON object."""
    uses_models: Callable[[Request], bool] = lambda request: True
    """Returns False for a request whose handler uses none of `api.models`."""


PURGE_SECONDS: Final = 3600.0
"""Time for a purge that makes progress (`cluster.requests.NO_PROGRESS_SECONDS`); otherwise the usual time holds."""

_Plain = Callable[[ApiContext, Request], Awaitable[Reply]]


def _endpoint(name: str, args: int | tuple[int, int], type: str, handler: _Plain, **in_error: Any) -> Endpoint:
    async def run(context: ApiContext, request: Request, counters: RequestCounters) -> Reply:
        return await handler(context, request)

    return Endpoint(name, args if isinstance(args, tuple) else (args, args), type, run, in_error)


def _plain(endpoint: Endpoint, uses_models: Callable[[Request], bool] = lambda request: False) -> Endpoint:
    return replace(endpoint, uses_models=uses_models)


_NO_PAGE: Final[dict[str, Any]] = {"total": 0, "offset": 0, "limit": 0}
_MAX_FILTER_TOKENS: Final = 64
"""Tokens of a filter subject at the end of CONSUMER.CREATE."""

ALL: Final = (
    _plain(Endpoint("INFO", (0, 0), "account_info_response", account_info)),
    _plain(Endpoint("ACCOUNT.INFO", (0, 0), "account_info_response", account_info)),
    _endpoint("STREAM.CREATE", 1, "stream_create_response", streams.create),
    _endpoint("STREAM.UPDATE", 1, "stream_update_response", streams.update),
    _plain(
        _endpoint("STREAM.INFO", 1, "stream_info_response", streams.info, **_NO_PAGE),
        lambda request: bool(request.payload),
    ),
    replace(_endpoint("STREAM.DELETE", 1, "stream_delete_response", streams.delete), decodes=False),
    _endpoint("STREAM.NAMES", 0, "stream_names_response", streams.names, **_NO_PAGE, streams=[]),
    _endpoint("STREAM.LIST", 0, "stream_list_response", streams.list_streams, **_NO_PAGE, streams=[]),
    replace(_endpoint("STREAM.PURGE", 1, "stream_purge_response", streams.purge, purged=0), seconds=PURGE_SECONDS),
    _plain(_endpoint("STREAM.MSG.GET", 1, "stream_msg_get_response", streams.msg_get)),
    _endpoint("STREAM.MSG.DELETE", 1, "stream_msg_delete_response", streams.msg_delete),
    _endpoint("STREAM.LEADER.STEPDOWN", 1, "stream_leader_stepdown_response", streams.leader_stepdown),
    _endpoint("STREAM.SNAPSHOT", 1, "stream_snapshot_response", _snapshot),
    _endpoint("STREAM.RESTORE", 1, "stream_restore_response", _restore, deliver_subject=""),
    _endpoint("STREAM.PEER.REMOVE", 1, "stream_remove_peer_response", streams.peer_remove),
    _endpoint("STREAM.PEER.EVACUATE", 1, "stream_evacuate_peer_response", streams.peer_remove),
    _endpoint("STREAM.CANCEL_MOVE", 1, "stream_cancel_move_response", streams.cancel_move),
    _endpoint("CONSUMER.NAMES", 1, "consumer_names_response", consumers.names, **_NO_PAGE, consumers=[]),
    _endpoint("CONSUMER.LIST", 1, "consumer_list_response", consumers.list_consumers, **_NO_PAGE, consumers=[]),
    _endpoint("CONSUMER.CREATE", (1, _MAX_FILTER_TOKENS), "consumer_create_response", consumers.create),
    _endpoint("CONSUMER.DURABLE.CREATE", 2, "consumer_create_response", consumers.create_durable),
    _plain(replace(_endpoint("CONSUMER.INFO", 2, "consumer_info_response", consumers.info), decodes=False)),
    replace(_endpoint("CONSUMER.DELETE", 2, "consumer_delete_response", consumers.delete), decodes=False),
    _endpoint("CONSUMER.PAUSE", 2, "consumer_pause_response", consumers.pause, paused=False, pause_until=ZERO_TIME),
    _endpoint("CONSUMER.RESET", 2, "consumer_reset_response", consumers.reset, reset_seq=0),
    _endpoint("CONSUMER.UNPIN", 2, "consumer_unpin_response", consumers.unpin),
    _endpoint("CONSUMER.LEADER.STEPDOWN", 2, "consumer_leader_stepdown_response", consumers.leader_stepdown),
    _endpoint("CONSUMER.PEER.REMOVE", 2, "consumer_remove_peer_response", consumers.peer_remove),
    _endpoint("CONSUMER.PEER.EVACUATE", 2, "consumer_evacuate_peer_response", consumers.peer_remove),
    replace(_endpoint("$OBJ", 1, "", object_request), decodes=False),
    _endpoint("META.LEADER.STEPDOWN", 0, "meta_leader_stepdown_response", meta_stepdown),
    replace(_endpoint("META.RESCUE", 0, "meta_rescue_response", rescue_meta), seconds=RESCUE_SECONDS, decodes=False),
    _endpoint("SERVER.REMOVE", 0, "meta_server_remove_response", remove_server),
    _endpoint("SERVER.EVACUATE", 0, "meta_server_evacuate_response", evacuate_server),
    _endpoint("ACCOUNT.PURGE", 1, "account_purge_response", purge_account),
)
"""Every endpoint below `$JS.API`."""

_BY_NAME: Final = {endpoint.name: endpoint for endpoint in ALL}


def find(tokens: list[str]) -> tuple[Endpoint, tuple[str, ...]] | None:
    """The endpoint of a subject's tokens after `$JS.API`, and its arguments; None for an unknown subject."""
    for depth in range(min(3, len(tokens)), 0, -1):
        endpoint = _BY_NAME.get(".".join(tokens[:depth]))
        if endpoint is not None:
            least, most = endpoint.args
            args = tuple(tokens[depth:])
            return (endpoint, args) if least <= len(args) <= most else None
    return None
