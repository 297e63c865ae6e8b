"""Consumers that mirrors and sources of nats-server ask for on a stream whose messages go when they are acknowledged.

nats-server asks for one and the same consumer, without acks, for any retention of the upstream; with `workqueue` or
`interest` the upstream makes a durable one of it, which waits for acknowledgements by flow control (ADR-60).
Without that a message would be gone as soon as it was sent.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from jetcluster.api.context import ApiContext
from jetcluster.api.request import Request
from jetcluster.api.streams import on_leader
from jetcluster.errors import ApiError
from jetcluster.model.consumer import ConsumerConfig

MAX_ACK_PENDING: Final = 1000
_NO_CONSUMER: Final = 10014


def waits_for_acks(wanted: ConsumerConfig, stream: Mapping[str, Any]) -> bool:
    """True for such a consumer, on such a stream."""
    return wanted.sourcing and wanted.direct and bool(wanted.name) and stream.get("retention", "limits") != "limits"


def make_durable(wanted: ConsumerConfig) -> int:
    """Changes the request to the consumer that it gets; the sequence that it wanted to begin at, 0 for the first."""
    start = wanted.opt_start_seq
    wanted.durable_name = wanted.name
    wanted.deliver_policy, wanted.opt_start_seq, wanted.opt_start_time = "all", 0, ""
    wanted.ack_policy, wanted.max_ack_pending = "flow_control", MAX_ACK_PENDING
    wanted.ack_wait = wanted.max_deliver = wanted.inactive_threshold = 0
    wanted.direct = wanted.sourcing = False
    return start


async def rewind(context: ApiContext, request: Request, name: str, start: int) -> dict[str, Any] | None:
    """The consumer of an earlier attempt goes back to `start`, what lies before that is acknowledged; to what was
    acknowledged for 0. None when there is no such consumer."""
    try:
        _, result = await on_leader(context, request, "consumer_reset", {"name": name, "seq": start, "done": True})
    except ApiError as error:
        if error.err_code == _NO_CONSUMER:
            return None
        raise
    found: dict[str, Any] = result
    return found
