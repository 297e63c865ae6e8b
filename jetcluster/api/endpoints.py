"""The table of API endpoints: subject, response type, handler, and what an error reply holds besides the error.

Imports the handlers and with them pydantic: loaded on the first request, not at start (see `api.dispatch`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from jetcluster.api import account, consumers, objects, restore, servers, snapshot, streams
from jetcluster.api.context import ApiContext, RequestCounters
from jetcluster.api.request import Request
from jetcluster.model.times import ZERO_TIME

RESCUE_SECONDS: Final = 14.0
"""All steps of META.RESCUE at their longest: given up before, it would be told as failed and might have come true."""

Reply = dict[str, Any] | bytes
"""Fields of the success reply after `type`, or the whole reply, rendered already."""


@dataclass(slots=True, frozen=True)
class Endpoint:
    name: str
    """Tokens after `$JS.API.`."""
    args: tuple[int, int]
    """Number of tokens that follow: least and most."""
    type: str
    """Type of the reply, behind its prefix; "" for replies without a type."""
    handler: Callable[[ApiContext, Request, RequestCounters], Awaitable[Reply]]
    in_error: Mapping[str, Any] = field(default_factory=dict)
    """Fields that an error reply holds too: nats-server renders Go's zero values there."""
    seconds: float | None = None
    """The longest that an answer may take, where it is not that of all others (`request.REQUEST_SECONDS`)."""
    decodes: bool = True
    """False: the handler refuses what is no JSON object itself, with an error or in a way of its own."""


PURGE_SECONDS: Final = 3600.0
"""One that is under way is waited for as long as it gets on (`cluster.requests.NO_PROGRESS`); another one as usual."""

_Plain = Callable[[ApiContext, Request], Awaitable[Reply]]


def _endpoint(name: str, args: int | tuple[int, int], type: str, handler: _Plain, **in_error: Any) -> Endpoint:
    async def run(context: ApiContext, request: Request, counters: RequestCounters) -> Reply:
        return await handler(context, request)

    return Endpoint(name, args if isinstance(args, tuple) else (args, args), type, run, in_error)


_NO_PAGE: Final[dict[str, Any]] = {"total": 0, "offset": 0, "limit": 0}
_MANY: Final = 64
"""Tokens of a filter subject at the end of CONSUMER.CREATE."""

ALL: Final = (
    Endpoint("INFO", (0, 0), "account_info_response", account.info),
    Endpoint("ACCOUNT.INFO", (0, 0), "account_info_response", account.info),
    _endpoint("STREAM.CREATE", 1, "stream_create_response", streams.create),
    _endpoint("STREAM.UPDATE", 1, "stream_update_response", streams.update),
    _endpoint("STREAM.INFO", 1, "stream_info_response", streams.info, **_NO_PAGE),
    replace(_endpoint("STREAM.DELETE", 1, "stream_delete_response", streams.delete), decodes=False),
    _endpoint("STREAM.NAMES", 0, "stream_names_response", streams.names, **_NO_PAGE, streams=[]),
    _endpoint("STREAM.LIST", 0, "stream_list_response", streams.list_streams, **_NO_PAGE, streams=[]),
    replace(_endpoint("STREAM.PURGE", 1, "stream_purge_response", streams.purge, purged=0), seconds=PURGE_SECONDS),
    _endpoint("STREAM.MSG.GET", 1, "stream_msg_get_response", streams.msg_get),
    _endpoint("STREAM.MSG.DELETE", 1, "stream_msg_delete_response", streams.msg_delete),
    _endpoint("STREAM.LEADER.STEPDOWN", 1, "stream_leader_stepdown_response", streams.leader_stepdown),
    _endpoint("STREAM.SNAPSHOT", 1, "stream_snapshot_response", snapshot.snapshot),
    _endpoint("STREAM.RESTORE", 1, "stream_restore_response", restore.restore, deliver_subject=""),
    _endpoint("STREAM.PEER.REMOVE", 1, "stream_remove_peer_response", streams.peer_remove),
    _endpoint("STREAM.CANCEL_MOVE", 1, "stream_cancel_move_response", streams.cancel_move),
    _endpoint("CONSUMER.NAMES", 1, "consumer_names_response", consumers.names, **_NO_PAGE, consumers=[]),
    _endpoint("CONSUMER.LIST", 1, "consumer_list_response", consumers.list_consumers, **_NO_PAGE, consumers=[]),
    _endpoint("CONSUMER.CREATE", (1, _MANY), "consumer_create_response", consumers.create),
    _endpoint("CONSUMER.DURABLE.CREATE", 2, "consumer_create_response", consumers.create_durable),
    replace(_endpoint("CONSUMER.INFO", 2, "consumer_info_response", consumers.info), decodes=False),
    replace(_endpoint("CONSUMER.DELETE", 2, "consumer_delete_response", consumers.delete), decodes=False),
    _endpoint("CONSUMER.PAUSE", 2, "consumer_pause_response", consumers.pause, paused=False, pause_until=ZERO_TIME),
    _endpoint("CONSUMER.RESET", 2, "consumer_reset_response", consumers.reset, reset_seq=0),
    _endpoint("CONSUMER.UNPIN", 2, "consumer_unpin_response", consumers.unpin),
    _endpoint("CONSUMER.LEADER.STEPDOWN", 2, "consumer_leader_stepdown_response", consumers.leader_stepdown),
    replace(_endpoint("$OBJ", 1, "", objects.serve), decodes=False),
    _endpoint("META.LEADER.STEPDOWN", 0, "meta_leader_stepdown_response", servers.meta_stepdown),
    replace(_endpoint("META.RESCUE", 0, "meta_rescue_response", servers.rescue), seconds=RESCUE_SECONDS, decodes=False),
    _endpoint("SERVER.REMOVE", 0, "meta_server_remove_response", servers.remove),
    _endpoint("SERVER.EVACUATE", 0, "meta_server_evacuate_response", servers.evacuate),
    _endpoint("ACCOUNT.PURGE", 1, "account_purge_response", servers.purge_account),
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
