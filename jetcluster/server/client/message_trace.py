"""Message tracing (ADR-41): the takers of a message with the header Nats-Trace-Dest are reported to that subject; with
Nats-Trace-Only the message is not delivered.

A report covers this node. It shows that a message went to another node or leaf link, and that an internal taker (a
stream, the API) took it; nats-server would add events of those.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from jetcluster import REPORTED_VERSION
from jetcluster.model.times import rfc3339
from jetcluster.protocol import headers as header_block
from jetcluster.protocol import subjects
from jetcluster.server.accounts.subscription import ClientSubscription, Sink

if TYPE_CHECKING:
    from jetcluster.protocol.interest import RemotePeer
    from jetcluster.server.accounts.route import Route
    from jetcluster.server.accounts.router import Router
    from jetcluster.server.client.connection import ClientConnection

Json = dict[str, Any]

_DEST: Final = b"Nats-Trace-Dest"
_ONLY: Final = b"Nats-Trace-Only"
_TRUE: Final = frozenset((b"1", b"true", b"on"))
MAX_TAKERS: Final = 1000
MAX_HEADER_BYTES: Final = 4096
"""Takers, and bytes of headers, that a report shows; max_payload limits a report too."""
MESSAGES_PER_EVENT: Final = 2
HEADER_BYTES_PER_MESSAGE: Final = 64
"""Messages charged to the client's portion for an event, and bytes of shown headers for which one is charged."""
CLIENT, ROUTER, LEAF, JETSTREAM = 0, 1, 4, 5
"""Kinds of takers, as nats-server numbers them."""


def destination(headers: bytes) -> bytes | None:
    """Returns the subject of the message's report; None when it is not traced."""
    found = header_block.get(headers, _DEST)
    return found if found and subjects.is_valid_literal(found) else None


def only_traced(headers: bytes) -> bool:
    value = header_block.get(headers, _ONLY)
    return value is not None and value.lower() in _TRUE


def publish_traced(
    client: ClientConnection,
    router: Router,
    target: bytes,
    subject: bytes,
    reply: bytes,
    headers: bytes,
    payload: bytes,
) -> int:
    """Delivers the message, unless it is only traced, and reports to `target`; returns the number of takers."""
    # A report shows only the first takers: all could take milliseconds and megabytes for one small message.
    route = router.literals.get(subject) or router.lookup(subject)
    events: list[Json] = [_event(client, "in", CLIENT, client) | {"acc": client.account, "subj": _text(subject)}]
    members = _clients(route.clients)
    if only_traced(headers):
        taken = route.takers
        got = [member for member in members if not member.closed and (client.echo or member.owner.cid != client.cid)]
        got += [one for group in route.queues[:MAX_TAKERS] for one in _clients(group.local[:1])]
    else:
        for group in route.queues[:MAX_TAKERS]:
            members += _clients(group.local[: MAX_TAKERS // len(route.queues) + 1])
        before = [member.delivered for member in members]
        taken = router.deliver(route, subject, reply, headers, payload, client)
        got = [member for member, count in zip(members, before, strict=True) if member.delivered > count]
    room = client.server.options.max_payload
    for subscription in got[:MAX_TAKERS]:
        room -= len(subscription.subject) + len(subscription.owner.name)
        if room > 0:
            events.append(_egress(client, subscription))
    events += _others(client, route)[:MAX_TAKERS]
    client.spend(len(events) * MESSAGES_PER_EVENT + min(len(headers), MAX_HEADER_BYTES) // HEADER_BYTES_PER_MESSAGE)
    router.publish(target, _encoded(client, headers, payload, events))
    return taken


def _encoded(client: ClientConnection, headers: bytes, payload: bytes, events: list[Json]) -> bytes:
    """Encodes a report; if it exceeds max_payload, without headers and with the first events only."""
    most = client.server.options.max_payload
    report = _report(client, headers, payload, events)
    encoded = json.dumps(report, separators=(",", ":")).encode()
    while len(encoded) > most and report["events"]:
        report["request"]["header"] = {}
        report["events"] = report["events"][: len(report["events"]) * most // len(encoded)]
        encoded = json.dumps(report, separators=(",", ":")).encode()
    return encoded


def _clients(members: tuple[Any, ...]) -> list[ClientSubscription]:
    """Returns the clients' subscriptions among the first MAX_TAKERS members."""
    return [member for member in members[:MAX_TAKERS] if isinstance(member, ClientSubscription)]


def _others(client: ClientConnection, route: Route) -> list[Json]:
    """Returns the events of takers other than clients of this node."""
    events = [_event(client, "eg", JETSTREAM) for _ in route.callbacks[:MAX_TAKERS]]
    leaves: tuple[RemotePeer, ...] = route.leaves
    return events + [_event(client, "eg", LEAF if peer in leaves else ROUTER) | _link(peer) for peer in route.peers]


def _link(peer: RemotePeer) -> Json:
    """Returns the peer's name, and the link's number in /routez."""
    found: Json = {"name": peer.server_name}
    return found if peer.route_id is None else found | {"cid": peer.route_id}


def _egress(client: ClientConnection, subscription: ClientSubscription) -> Json:
    event = _event(client, "eg", CLIENT, subscription.owner) | {"sub": _text(subscription.subject)}
    if subscription.queue is not None:
        event["queue"] = _text(subscription.queue)
    return event


def _event(client: ClientConnection, kind: str, taker: int, connection: Sink | None = None) -> Json:
    now = rfc3339(client.server.clock.time_ns())
    event: Json = {"type": kind, "ts": now, "kind": taker, "cid": 0 if connection is None else connection.cid}
    return event | {"name": connection.name} if connection is not None and connection.name else event


def _report(client: ClientConnection, headers: bytes, payload: bytes, events: list[Json]) -> Json:
    server = client.server
    who: Json = {"name": server.name, "host": server.options.host, "id": server.server_id}
    if server.options.cluster_name:
        who["cluster"] = server.options.cluster_name
    who |= {"ver": REPORTED_VERSION, "time": rfc3339(server.clock.time_ns())}
    fields: dict[str, list[str]] = {}
    for name, value in header_block.parse(header_block.beginning(headers, MAX_HEADER_BYTES)):
        fields.setdefault(_text(name), []).append(_text(value))
    request = {"header": fields, "msgsize": len(headers) + len(payload)}
    return {"server": who, "request": request, "events": events}


def _text(raw: bytes) -> str:
    return raw.decode(errors="replace")
