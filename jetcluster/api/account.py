"""`$JS.API.INFO` and its alias `$JS.API.ACCOUNT.INFO` (streams.md 5.10, R19)."""

from __future__ import annotations

import asyncio
from typing import Any

from jetcluster import API_LEVEL
from jetcluster.api.context import ApiContext, Counters
from jetcluster.api.request import Request


async def info(context: ApiContext, request: Request, counters: Counters) -> dict[str, Any]:
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
        "limits": context.own_limits(request.account).to_wire(duplicate_window_max=context.compat.duplicate_window_max),
    }
    if context.domain:
        fields["domain"] = context.domain
    fields["api"] = {"level": API_LEVEL, "total": counters.total, "errors": counters.errors}
    return fields
