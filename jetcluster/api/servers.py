"""Handlers of `$JS.API.META.>`, `$JS.API.SERVER.>` and `$JS.API.ACCOUNT.PURGE.*`: whole servers and accounts, for the
system account alone.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

from jetcluster.api.context import ApiContext
from jetcluster.api.request import Request
from jetcluster.errors import BAD_REQUEST, CLUSTER_REQUIRED, STREAM_NOT_FOUND, ApiError, by_code
from jetcluster.model.api import RescueRequest, ServerRequest, StepdownRequest
from jetcluster.model.codec import dumps

Fields = dict[str, Any]

RESCUE_TYPE = "io.nats.jetstream.api.v1.meta_rescue_response"
_EMPTY = (b"", b"{}")
MAX_BY = 256
"""Characters of who asked for a rescue: kept in the meta log."""
PURGE_AT_ONCE = 100
"""Streams of one look at what an account still has."""
PURGE_SECONDS = 60.0
"""Since the last one that was deleted: then the rest is left, as nobody leads the meta group."""
AGAIN_SECONDS = 0.25


async def meta_stepdown(context: ApiContext, request: Request) -> Fields:
    _check_clustered(context)
    wanted = StepdownRequest.from_fields(request.fields, strict=request.strict)
    placement = wanted.placement.model_dump() if wanted.placement is not None else {}
    await context.cluster.meta_request("meta_stepdown", {"placement": placement})
    return {"success": True}


async def remove(context: ApiContext, request: Request) -> Fields:
    """Success says that the meta group does without the server now."""
    await context.cluster.meta_request("server_remove", _server(context, request))
    return {"success": True}


async def evacuate(context: ApiContext, request: Request) -> Fields:
    """The server takes nothing new and gives away what it has; asked again, the reply says what is left. With `cancel`
    it is in use again."""
    answer = await context.cluster.meta_request("server_evacuate", _server(context, request))
    return {"success": True, **answer}


async def rescue(context: ApiContext, request: Request) -> bytes:
    """One reply of each server, as if all of them had been asked; those of the others are sent here."""
    _check_clustered(context)
    client = request.client()
    by = " ".join(str(client[key]) for key in ("user", "name", "host") if client.get(key)) or str(client["acc"])
    by = by[:MAX_BY]
    wanted: int | ApiError
    try:
        if b"".join(request.payload.split()) in _EMPTY:
            raise by_code(BAD_REQUEST)
        wanted = RescueRequest.from_fields(request.fields, strict=request.strict).quorum_needed
    except ApiError as error:
        wanted = error
    own, *others = [dumps({"type": RESCUE_TYPE, **answer}) for answer in await context.cluster.rescue_meta(wanted, by)]
    if request.reply:
        for answer in others:
            request.bus.publish(request.reply, answer)
    return own


async def purge_account(context: ApiContext, request: Request) -> Fields:
    """All streams of an account, and with them its consumers. The reply says that it has begun, as nats-server's does:
    also for an account that has nothing, or is not known; not while nobody leads the meta group."""
    (account,) = request.args
    await context.cluster.meta_request("names", {"account": account, "offset": 0, "limit": 1, "subject": ""})
    request.follow = partial(_delete_streams, context, account)
    return {"initiated": True}


async def _delete_streams(context: ApiContext, account: str) -> None:
    """Until none is left; raises ApiError when the meta group refuses to delete one, or nobody leads it for long."""
    page = {"account": account, "offset": 0, "limit": PURGE_AT_ONCE, "subject": ""}
    end = context.clock.monotonic() + PURGE_SECONDS
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
            end = context.clock.monotonic() + PURGE_SECONDS


def _server(context: ApiContext, request: Request) -> Fields:
    _check_clustered(context)
    wanted = ServerRequest.from_fields(request.fields, strict=request.strict)
    if not (wanted.peer or wanted.peer_id):
        raise by_code(BAD_REQUEST)
    return {"request": context.request_id(), **wanted.model_dump()}


def _check_clustered(context: ApiContext) -> None:
    if not context.cluster.clustered:
        raise by_code(CLUSTER_REQUIRED)
