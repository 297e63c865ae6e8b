"""Events of consumers' messages; `advisory.Advisories.render` makes the
payload."""

from __future__ import annotations

from jetcluster.model.advisory import PREFIX, Event, consumer_pause
from jetcluster.model.times import rfc3339

MAX_DELIVERIES = "MAX_DELIVERIES"
MSG_NAKED = "MSG_NAKED"
MSG_TERMINATED = "MSG_TERMINATED"
PINNED = "PINNED"
UNPINNED = "UNPINNED"
PAUSE = "PAUSE"
LEADER_ELECTED = "LEADER_ELECTED"
ACK_METRIC = "ACK"

_METRIC_PREFIX = "$JS.EVENT.METRIC."


def subject(name: str, stream: str, consumer: str) -> bytes:
    """`name`: one of the above."""
    prefix = _METRIC_PREFIX if name == ACK_METRIC else PREFIX
    return f"{prefix}CONSUMER.{name}.{stream}.{consumer}".encode()


def leader_elected(stream: str, consumer: str, leader: str) -> Event:
    """Without its `replicas`, as `advisory.leader_elected`."""
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
    """`reason`: admin or timeout."""
    return _event(UNPINNED, "consumer_group_unpinned", stream, consumer, group=group, reason=reason)


def pause_ended(stream: str, consumer: str, until: int) -> Event:
    """By itself, at `until` (Unix nanoseconds)."""
    return consumer_pause(stream, consumer, {"paused": False, "pause_until": rfc3339(until)})


def ack_metric(stream: str, consumer: str, cseq: int, seq: int, deliveries: int, ack_time: int) -> Event:
    """A sampled ack; `ack_time`: ns since the delivery."""
    fields: dict[str, str | int] = {
        "consumer_seq": cseq,
        "stream_seq": seq,
        "ack_time": ack_time,
        "deliveries": deliveries,
    }
    return _event(ACK_METRIC, "io.nats.jetstream.metric.v1.consumer_ack", stream, consumer, **fields)


def _event(name: str, kind: str, stream: str, consumer: str, **fields: str | int) -> Event:
    return Event(subject(name, stream, consumer), kind, {"stream": stream, "consumer": consumer, **fields})
