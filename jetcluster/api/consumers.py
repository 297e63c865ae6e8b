"""`$JS.API.CONSUMER.>` while there are no consumers: true answers where there is one, a clear refusal otherwise."""

from __future__ import annotations

from typing import Any

from jetcluster import errors
from jetcluster.api.context import ApiContext
from jetcluster.api.request import Request
from jetcluster.api.streams import LIST_LIMIT, NAMES_LIMIT, find
from jetcluster.errors import ApiError, by_code

CONSUMER_NOT_FOUND = 10014


async def names(context: ApiContext, request: Request) -> dict[str, Any]:
    await find(context, request)
    return {"total": 0, "offset": 0, "limit": NAMES_LIMIT, "consumers": []}


async def list_consumers(context: ApiContext, request: Request) -> dict[str, Any]:
    await find(context, request)
    return {"total": 0, "offset": 0, "limit": LIST_LIMIT, "consumers": []}


async def absent(context: ApiContext, request: Request) -> dict[str, Any]:
    """INFO, DELETE and the like: no consumer can exist, so none is found."""
    await find(context, request)
    raise by_code(CONSUMER_NOT_FOUND)


async def create(context: ApiContext, request: Request) -> dict[str, Any]:
    await find(context, request)
    raise ApiError(503, errors.NOT_SUPPORTED, "consumers are not implemented yet")
