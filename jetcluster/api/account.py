"""`$JS.API.INFO` and its alias `$JS.API.ACCOUNT.INFO`."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Final

from jetcluster import API_LEVEL
from jetcluster.api.context import ApiContext, RequestCounters
from jetcluster.api.request import Request
from jetcluster.model.limits import AccountLimits, tier_replicas

_NONE: Final = AccountLimits(0, 0, 0, 0, 0, 0, 0)
"""Limits shown for a tier that has streams although the account has no such limits any more."""


async def info(context: ApiContext, request: Request, counters: RequestCounters) -> dict[str, Any]:
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
    """By name, those that have limits and those that have streams."""
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
