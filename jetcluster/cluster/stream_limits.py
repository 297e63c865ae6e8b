"""Limits of an account that the leader of the meta group looks at before it proposes a stream. `apply` decides what two
clients can race for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jetcluster import errors
from jetcluster.errors import by_code
from jetcluster.meta.machine import MetaMachine

Body = Mapping[str, Any]


def limits_of(body: Body) -> dict[str, int]:
    """Returns the limits of the stream's tier, or without a tier the account's."""
    limits: dict[str, int] = body.get("tier") or body["limits"]
    return limits


def check_tier(machine: MetaMachine, body: Body) -> None:
    """Raises ApiError 10027 for a stream that is scaled up into a tier that has its most streams, as nats-server. What
    the tier has no storage for is refused before that: `apply` does so."""
    tier, account, config = body.get("tier"), body["account"], body["config"]
    if tier is not None and not machine.limit_use(account, config, tier).exceeded:
        there, _, _ = machine.usage(account).get(config["num_replicas"], (0, 0, 0))
        if 0 <= tier["max_streams"] <= there:
            raise by_code(errors.MAX_STREAMS)


def check_room(machine: MetaMachine, account: str, config: Mapping[str, Any], limits: Mapping[str, int]) -> None:
    """Raises ApiError 10028 or 10047 for a new stream without max_bytes where not a byte is left for each of its
    replicas: it could never store anything. An account without any memory has no streams in memory, as in nats-server.
    """
    use = machine.limit_use(account, config, limits)
    least = 1 if limits.get("replicas") else int(config["num_replicas"])
    if not use.wanted and use._replace(wanted=least).exceeded:
        raise by_code(10028 if config["storage"] == "memory" else 10047)
