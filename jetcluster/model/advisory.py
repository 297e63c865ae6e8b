"""JetStream advisories, published on `$JS.EVENT.ADVISORY.>`, and their rendering.

The publisher calls `Bus.has_interest(subject)` first: an event without a listener is not built.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from jetcluster.clock import Clock, Rng
from jetcluster.model.codec import dumps
from jetcluster.model.times import rfc3339
from jetcluster.records import NamedTuple

PREFIX = "$JS.EVENT.ADVISORY."
_TYPE = "io.nats.jetstream.advisory.v1."
_NUID = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"

Client = Mapping[str, Any]
"""The client that caused the event: `acc` at least; `user`, `name`, `host` and others if known."""

StreamAction = Literal["create", "delete", "modify"]
_ACTION_SUBJECT = {"create": "CREATED", "delete": "DELETED", "modify": "UPDATED"}
ConsumerAction = Literal["create", "delete"]
API_AUDIT_SUBJECT = b"$JS.EVENT.ADVISORY.API"


class Event(NamedTuple):
    """An event and the subject on which it is published; `Advisories.render` makes the payload."""

    subject: bytes
    kind: str
    """Type, either complete or without the advisories' prefix."""
    fields: Mapping[str, Any]


def stream_action(stream: str, action: StreamAction) -> Event:
    subject = f"{PREFIX}STREAM.{_ACTION_SUBJECT[action]}.{stream}".encode()
    return Event(subject, "stream_action", {"stream": stream, "action": action})


def consumer_action(stream: str, consumer: str, action: ConsumerAction) -> Event:
    subject = f"{PREFIX}CONSUMER.{_ACTION_SUBJECT[action]}.{stream}.{consumer}".encode()
    return Event(subject, "consumer_action", {"stream": stream, "consumer": consumer, "action": action})


def consumer_pause(stream: str, consumer: str, state: Mapping[str, Any]) -> Event:
    subject = f"{PREFIX}CONSUMER.PAUSE.{stream}.{consumer}".encode()
    return Event(subject, "consumer_pause", {"stream": stream, "consumer": consumer, **state})


def for_system_account(event: Event, account: str) -> Event:
    """Returns the system account's copy of an event of `account`, which names that account first."""
    return event._replace(fields={"account": account, **event.fields})


def leader_elected(stream: str, leader: str) -> Event:
    """Returns the event without its `replicas`, which are `replica_wire` objects of all peers and the leader."""
    fields = {"stream": stream, "leader": leader}
    return Event(f"{PREFIX}STREAM.LEADER_ELECTED.{stream}".encode(), "stream_leader_elected", fields)


def quorum_lost(stream: str) -> Event:
    """Returns the event without its `replicas`, as `leader_elected`."""
    return Event(f"{PREFIX}STREAM.QUORUM_LOST.{stream}".encode(), "stream_quorum_lost", {"stream": stream})


def replica_damaged(stream: str, server: str, peer: str, damage: str, cause: str) -> Event:
    """Own event, which nats-server does not have: records of one replica cannot be read."""
    fields = {"stream": stream, "server": server, "peer": peer, "damage": damage}
    if cause:
        fields["cause"] = cause
    return Event(f"{PREFIX}STREAM.REPLICA_DAMAGED.{stream}".encode(), "stream_replica_damaged", fields)


def leader_refused(stream: str, server: str, peer: str, reason: str) -> Event:
    """Own event, without its `replicas`: a replica refuses a leader that contradicts its committed entries."""
    fields = {"stream": stream, "server": server, "peer": peer, "reason": reason}
    return Event(f"{PREFIX}STREAM.LEADER_REFUSED.{stream}".encode(), "stream_leader_refused", fields)


def replicas_differ(stream: str, server: str, index: int, replicas: Sequence[tuple[str, str, str]]) -> Event:
    """Own event: `replicas` (name, peer id, hash in hex or "") differ at a log index and no majority of them agrees."""
    fields: dict[str, Any] = {"stream": stream, "server": server, "index": index}
    fields["replicas"] = [{"name": name, "peer": peer, "hash": value} for name, peer, value in replicas]
    return Event(f"{PREFIX}STREAM.REPLICAS_DIFFER.{stream}".encode(), "stream_replicas_differ", fields)


def domain_leader_elected(peer: str, replicas: Sequence[Mapping[str, Any]], cluster: str, domain: str) -> Event:
    """Event for the system account: the server with the id `peer` leads the meta group, whose members are `replicas`
    (`replica_wire`)."""
    fields = {"leader": peer, "replicas": replicas, "cluster": cluster} | ({"domain": domain} if domain else {})
    return Event(f"{PREFIX}DOMAIN.LEADER_ELECTED".encode(), "domain_leader_elected", fields)


def api_limit_reached(server: str, domain: str, dropped: int) -> Event:
    """Event for the system account: `dropped` API requests had no room on `server`."""
    fields = {"server": server} | ({"domain": domain} if domain else {}) | {"dropped": dropped}
    return Event(f"{PREFIX}API.LIMIT_REACHED".encode(), "api_limit_reached", fields)


def server_removed(server: str, peer: str, cluster: str) -> Event:
    """Event for the system account. `server` is a name, `peer` the id, which can never be a member again."""
    fields = {"server": server, "server_id": peer, "cluster": cluster}
    return Event(f"{PREFIX}SERVER.REMOVED".encode(), "server_removed", fields)


def meta_rescue(server: str, server_id: str, before: int, now: int, cluster: str, left_out: Sequence[str]) -> Event:
    """Event for the system account, from each remaining server. `before` and `now` are majorities of the meta group;
    `left_out`, a field of this server only, are the names of the servers that must not come back."""
    fields = {"server": server, "server_id": server_id, "prev_quorum": before, "new_quorum": now, "cluster": cluster}
    return Event(f"{PREFIX}SERVER.META_RESCUE".encode(), "meta_rescue", {**fields, "left_out": list(left_out)})


def server_health(server: str, peer: str, aspect: str, reason: str, seconds: float | None) -> Event:
    """Own event for the system account: a server is unhealthy (`seconds` None), or healthy again after `seconds`."""
    fields: dict[str, Any] = {"server": server, "server_id": peer, "aspect": aspect, "reason": reason}
    if seconds is None:
        return Event(f"{PREFIX}SERVER.UNHEALTHY.{server}".encode(), "server_unhealthy", fields)
    return Event(f"{PREFIX}SERVER.HEALTHY.{server}".encode(), "server_healthy", fields | {"seconds": seconds})


def balanced(
    stream: str,
    kind: str,
    consumer: str,
    servers: tuple[str, str],
    why: str,
    before: Mapping[str, Mapping[str, int]],
    after: Mapping[str, Mapping[str, int]],
) -> Event:
    """Own event: for balance a leader, a consumer or a replica (`kind`) goes from the first of `servers` to the second;
    `before` and `after` say what each carries."""
    fields: dict[str, Any] = {"stream": stream, "kind": kind, "from": servers[0], "to": servers[1], "why": why}
    if consumer:
        fields["consumer"] = consumer
    fields |= {"before": before, "after": after}
    return Event(f"{PREFIX}STREAM.BALANCED.{stream}".encode(), "stream_balanced", fields)


def batch_abandoned(stream: str, batch_id: bytes, reason: str) -> tuple[Event, Event]:
    """Returns nats-server's event and the specification's."""
    fields = {"stream": stream, "batch": batch_id.decode("utf-8", "replace"), "reason": reason}
    return (
        Event(f"{PREFIX}STREAM.BATCH_ABANDONED.{stream}".encode(), "stream_batch_abandoned", fields),
        Event(f"{PREFIX}BATCH_ABANDONED.{stream}".encode(), "batch_abandoned", fields),
    )


def guard_refuses(stream: str, consumer: str, reason: str, waiting: int) -> Event:
    """Own event: publishes begin to be refused, as `waiting` messages wait for the stream's retention guard."""
    fields = {"stream": stream, "consumer": consumer, "reason": reason, "waiting": waiting}
    return Event(f"{PREFIX}STREAM.GUARD_REFUSES.{stream}".encode(), "stream_guard_refuses", fields)


def guard_overrun(stream: str, consumer: str, messages: int, seq: int) -> Event:
    """Own event: the stream's retention guard gave up so many messages, all of them below `seq`."""
    fields = {"stream": stream, "consumer": consumer, "messages": messages, "given_up_below": seq}
    return Event(f"{PREFIX}STREAM.GUARD_OVERRUN.{stream}".encode(), "stream_guard_overrun", fields)


Transfer = Literal["snapshot_create", "snapshot_complete", "restore_create", "restore_complete"]


def transfer_subjects(stream: str, kind: Transfer) -> tuple[bytes, bytes]:
    """Returns nats-server's subject and the specification's for the same event."""
    name = kind.upper()
    return (
        f"{PREFIX}STREAM.{name}.{stream}".encode(),
        f"{PREFIX}STREAM.{name.replace('_', '.')}.{stream}".encode(),
    )


class Advisories:
    """Renders events of one server."""

    def __init__(self, clock: Clock, rng: Rng, server: str = "", domain: str = "") -> None:
        self._clock = clock
        self._rng = rng
        self._server = server
        self._domain = domain

    def render(self, event: Event, client: Client | None = None) -> bytes:
        """Returns the payload; `client`: the client whose request caused the event, if any."""
        return self._event(event.kind, event.fields, client=client)

    def snapshot_create(self, stream: str, state: Mapping[str, Any], client: Client) -> bytes:
        return self._event("snapshot_create", {"stream": stream, "state": state}, client=client)

    def snapshot_complete(self, stream: str, start_ns: int, client: Client, error: str = "") -> bytes:
        fields: dict[str, Any] = {"stream": stream, **self._span(start_ns)}
        if error:
            fields["error"] = error
        return self._event("snapshot_complete", fields, client=client)

    def restore_create(self, stream: str, client: Client) -> bytes:
        return self._event("restore_create", {"stream": stream}, client=client)

    def restore_complete(self, stream: str, start_ns: int, size: int, client: Client) -> bytes:
        """Returns the payload; `size`: received bytes of the archive."""
        fields = {"stream": stream, **self._span(start_ns), "bytes": size}
        return self._event("restore_complete", fields, client=client)

    def api_audit(self, subject: str, request: bytes, response: bytes, client: Client) -> bytes:
        fields: dict[str, Any] = {"server": self._server, "client": client, "subject": subject}
        if request:
            fields["request"] = request.decode("utf-8", "replace")
        return self._event("api_audit", {**fields, "response": response.decode("utf-8", "replace")})

    def _span(self, start_ns: int) -> dict[str, str]:
        return {"start": rfc3339(start_ns), "end": rfc3339(self._clock.time_ns())}

    def _event(self, kind: str, fields: Mapping[str, Any], client: Client | None = None) -> bytes:
        kind = kind if "." in kind else _TYPE + kind
        event: dict[str, Any] = {"type": kind, "id": self._id(), "timestamp": rfc3339(self._clock.time_ns())}
        event |= fields
        if client is not None:
            event["client"] = client  # nats-server's action events do not have it
        if self._domain:
            event["domain"] = self._domain
        return dumps(event)

    def _id(self) -> str:
        """Returns 22 characters, like a NUID."""
        return "".join(_NUID[byte % 62] for byte in self._rng.token(22))


MAX_DELIVERIES = "MAX_DELIVERIES"
MSG_NAKED = "MSG_NAKED"
MSG_TERMINATED = "MSG_TERMINATED"
PINNED = "PINNED"
UNPINNED = "UNPINNED"
PAUSE = "PAUSE"
DEAD_LETTERS = "DEAD_LETTERS_FAIL"
LEADER_ELECTED = "LEADER_ELECTED"
ACK_METRIC = "ACK"

_METRIC_PREFIX = "$JS.EVENT.METRIC."


def subject(name: str, stream: str, consumer: str) -> bytes:
    """Returns the subject of a consumer's event; `name`: one of the constants above."""
    prefix = _METRIC_PREFIX if name == ACK_METRIC else PREFIX
    return f"{prefix}CONSUMER.{name}.{stream}.{consumer}".encode()


def consumer_leader_elected(stream: str, consumer: str, leader: str) -> Event:
    """Returns the event without its `replicas`, as `leader_elected`."""
    return _event(LEADER_ELECTED, "consumer_leader_elected", stream, consumer, leader=leader)


def max_deliveries(stream: str, consumer: str, seq: int, deliveries: int) -> Event:
    return _event(MAX_DELIVERIES, "max_deliver", stream, consumer, stream_seq=seq, deliveries=deliveries)


def naked(stream: str, consumer: str, cseq: int, seq: int, deliveries: int) -> Event:
    numbers = {"consumer_seq": cseq, "stream_seq": seq, "deliveries": deliveries}
    return _event(MSG_NAKED, "nak", stream, consumer, **numbers)


def terminated(stream: str, consumer: str, cseq: int, seq: int, deliveries: int, reason: str) -> Event:
    fields: dict[str, str | int] = {"consumer_seq": cseq, "stream_seq": seq, "deliveries": deliveries}
    if reason:
        fields["reason"] = reason
    return _event(MSG_TERMINATED, "terminated", stream, consumer, **fields)


def pinned(stream: str, consumer: str, group: str, pin: str) -> Event:
    return _event(PINNED, "consumer_group_pinned", stream, consumer, group=group, pinned_id=pin)


def unpinned(stream: str, consumer: str, group: str, reason: str) -> Event:
    """Returns the event; `reason`: admin or timeout."""
    return _event(UNPINNED, "consumer_group_unpinned", stream, consumer, group=group, reason=reason)


def pause_ended(stream: str, consumer: str, until: int) -> Event:
    """Returns the event of a pause that ended by itself at `until` (Unix nanoseconds)."""
    return consumer_pause(stream, consumer, {"paused": False, "pause_until": rfc3339(until)})


def dead_letters_fail(stream: str, consumer: str, waiting: int, error: str) -> Event:
    """Own event, which nats-server does not have: dead letters begin to fail; `waiting` is their number."""
    return _event(DEAD_LETTERS, "consumer_dead_letters_fail", stream, consumer, waiting=waiting, error=error)


def ack_metric(stream: str, consumer: str, cseq: int, seq: int, deliveries: int, ack_time: int) -> Event:
    """Returns the event of a sampled ack; `ack_time`: nanoseconds since the delivery."""
    fields: dict[str, str | int] = {
        "consumer_seq": cseq,
        "stream_seq": seq,
        "ack_time": ack_time,
        "deliveries": deliveries,
    }
    return _event(ACK_METRIC, "io.nats.jetstream.metric.v1.consumer_ack", stream, consumer, **fields)


def _event(name: str, kind: str, stream: str, consumer: str, **fields: str | int) -> Event:
    return Event(subject(name, stream, consumer), kind, {"stream": stream, "consumer": consumer, **fields})
