"""`$JS.API.INFO` and its alias `$JS.API.ACCOUNT.INFO` (streams.md 5.10, R19)."""

from __future__ import annotations

from typing import Any

from jetcluster import API_LEVEL
from jetcluster.api.context import ApiContext, Counters
from jetcluster.api.request import Request
from jetcluster.api.streams import LIST_LIMIT, gather_info
from jetcluster.cluster.meta_state import Assignment

USAGE_SECONDS = 2.0


async def info(context: ApiContext, request: Request, counters: Counters) -> dict[str, Any]:
    """Bytes in use are asked of the streams' leaders and multiplied by the replicas; a leader that does not answer
    within `USAGE_SECONDS` is left out."""
    usage = await context.cluster.meta_request("usage", {"account": request.account})
    memory, storage = await _used(context, request.account)
    fields: dict[str, Any] = {
        "memory": memory,
        "storage": storage,
        "reserved_memory": usage["reserved_memory"],
        "reserved_storage": usage["reserved_storage"],
        "streams": usage["streams"],
        "consumers": 0,
        "limits": context.limits(request.account).to_wire(),
    }
    if context.domain:
        fields["domain"] = context.domain
    fields["api"] = {"level": API_LEVEL, "total": counters.total, "errors": counters.errors}
    return fields


async def _used(context: ApiContext, account: str) -> tuple[int, int]:
    used = {True: 0, False: 0}
    end = context.clock.monotonic() + USAGE_SECONDS
    offset, total = 0, 1
    while offset < total and context.clock.monotonic() < end:
        body = {"account": account, "offset": offset, "limit": LIST_LIMIT, "subject": ""}
        page = await context.cluster.meta_request("list", body)
        assignments = [Assignment.from_dict(item) for item in page["assignments"]]
        answers = await gather_info(context, assignments, max(end - context.clock.monotonic(), 0.05))
        for assignment in assignments:
            state = answers.get(assignment.gid, {}).get("state", {})
            used[assignment.memory] += state.get("bytes", 0) * assignment.replicas
        offset, total = offset + LIST_LIMIT, page["total"]
    return used[True], used[False]
