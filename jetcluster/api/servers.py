"""Handlers of `$JS.API.META.>` and `$JS.API.SERVER.>`: whole servers, for the system account alone.

Shapes: shared/reference/streams.md 5.2.
"""

from __future__ import annotations

from typing import Any

from jetcluster.api.context import ApiContext
from jetcluster.api.request import Request
from jetcluster.errors import BAD_REQUEST, CLUSTER_REQUIRED, by_code
from jetcluster.model.api import ServerRequest, StepdownRequest

Fields = dict[str, Any]


async def meta_stepdown(context: ApiContext, request: Request) -> Fields:
    _check_clustered(context)
    wanted = StepdownRequest.parse(request.body, strict=request.strict)
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


def _server(context: ApiContext, request: Request) -> Fields:
    _check_clustered(context)
    wanted = ServerRequest.parse(request.body, strict=request.strict)
    if not (wanted.peer or wanted.peer_id):
        raise by_code(BAD_REQUEST)
    return {"request": context.request_id(), **wanted.model_dump()}


def _check_clustered(context: ApiContext) -> None:
    if not context.cluster.clustered:
        raise by_code(CLUSTER_REQUIRED)
