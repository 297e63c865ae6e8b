"""`jetstream_*`: what prometheus-nats-exporter makes of /jsz with all its details, under the same names and labels."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from jetcluster.model.times import SECOND, parse_rfc3339
from jetcluster.monitor.consumers import each_consumer
from jetcluster.monitor.exposition import Exposition, Labels
from jetcluster.monitor.jsz import stream_group_name, stream_leader
from jetcluster.monitor.pages import NodeSource
from jetcluster.monitor.source import Json, Query
from jetcluster.monitor.view import NodeView, engine_of
from jetcluster.store.api import DamagedError

if TYPE_CHECKING:
    from jetcluster.cluster.jetstream import JetStream
    from jetcluster.replica.stream_replica import StreamReplica

MAX_ACCOUNTS = 10_000


def jetstream_metrics(out: Exposition, node: NodeView, source: NodeSource, system: str, query: Query) -> Iterator[None]:
    """Yields after each stream and each consumer, so that clients are served in between. `consumers=0` leaves the
    latter out."""
    page = source.page("jsz", {})
    meta = page.get("meta_cluster", {})
    leader = meta.get("leader", "")
    name = node.server.name
    own: Labels = (
        ("server_id", name),
        ("server_name", name),
        ("cluster", meta.get("name", "")),
        ("domain", page["config"].get("domain", "")),
        ("meta_leader", leader),
        ("is_meta_leader", _truth(not meta or leader == name)),
    )
    for key, value in (
        ("jetstream_disabled", int(page.get("disabled", False))),
        ("max_memory", page["config"]["max_memory"]),
        ("max_storage", page["config"]["max_storage"]),
        ("total_streams", page["streams"]),
        ("total_consumers", page["consumers"]),
        ("total_messages", page.get("messages", 0)),
        ("total_message_bytes", page.get("bytes", 0)),
    ):
        out.gauge(f"{system}_server_{key}", key, value, own)
    engine = engine_of(node)
    if engine is None:
        return
    _accounts(out, source, system, own)
    with_consumers = query.get("consumers", "1") not in ("0", "false")
    for replica in list(engine.replicas.values()):
        if replica.failed:
            continue
        labels = _stream(out, engine, replica, system, own, name)
        if with_consumers:
            yield from _consumers(out, engine, replica, system, labels, name)
        yield


def _accounts(out: Exposition, source: NodeSource, system: str, own: Labels) -> None:
    """Accounts as the exporter shows them: its `max_...` are the bytes that streams have reserved."""
    for account in source.page("jsz", {"accounts": "1", "limit": str(MAX_ACCOUNTS)}).get("account_details", ()):
        name = account["name"]
        labels = (*own, ("account", name), ("account_id", name), ("account_name", name))
        for key, field in (
            ("max_memory", "reserved_memory"),
            ("max_storage", "reserved_storage"),
            ("memory_used", "memory"),
            ("storage_used", "storage"),
        ):
            out.gauge(f"{system}_account_{key}", key, account[field], labels)


def _stream(out: Exposition, engine: JetStream, replica: StreamReplica, system: str, own: Labels, name: str) -> Labels:
    assignment, state = replica.assignment, replica.store.state
    leader = stream_leader(engine, replica)
    account = assignment.account
    labels = (
        *own,
        ("account", account),
        ("account_id", account),
        ("account_name", account),
        ("stream_name", assignment.name),
        ("stream_leader", leader),
        ("is_stream_leader", _truth(leader == name)),
        ("stream_raft_group", stream_group_name(replica)),
    )
    for key, value in (
        ("total_messages", state.messages),
        ("total_bytes", state.bytes),
        ("first_seq", state.first_seq),
        ("last_seq", state.last_seq),
        ("consumer_count", replica.machine.consumer_count),
        ("subject_count", state.num_subjects),
        ("limit_bytes", assignment.config["max_bytes"]),
        ("limit_messages", assignment.config["max_msgs"]),
    ):
        out.gauge(f"{system}_stream_{key}", key, value, labels)
    return labels


def _consumers(
    out: Exposition, engine: JetStream, replica: StreamReplica, system: str, stream: Labels, name: str
) -> Iterator[None]:
    try:
        for info in each_consumer(engine, replica, config=True):
            leader = info.get("cluster", {}).get("leader", "")
            labels = (
                *stream,
                ("consumer_name", info["name"]),
                ("consumer_leader", leader),
                ("is_consumer_leader", _truth(not leader or leader == name)),
                ("consumer_desc", info["config"].get("description", "")),
            )
            for key, value in _consumer_values(info):
                out.gauge(f"{system}_consumer_{key}", key, value, labels)
            for key, help_, seconds in _ages(info):
                out.gauge(f"{system}_consumer_{key}", help_, seconds, labels)
            yield
    except DamagedError:
        return  # told by jetcluster_replicas_damaged


def _ages(info: Json) -> Iterator[tuple[str, str, float]]:
    """Together with num_pending they tell a consumer that has stopped. None before its first delivery, or ack."""
    now = parse_rfc3339(info["ts"])
    for key, what, help_ in (
        ("last_delivery_seconds", "delivered", "Seconds since last message delivery to consumer"),
        ("last_ack_seconds", "ack_floor", "Seconds since last ack from consumer"),
    ):
        last = info[what].get("last_active")
        if last:
            yield key, help_, max((now - parse_rfc3339(last)) / SECOND, 0.0)


def _consumer_values(info: Json) -> tuple[tuple[str, int], ...]:
    return (
        ("delivered_consumer_seq", info["delivered"]["consumer_seq"]),
        ("delivered_stream_seq", info["delivered"]["stream_seq"]),
        ("num_ack_pending", info["num_ack_pending"]),
        ("num_redelivered", info["num_redelivered"]),
        ("num_waiting", info["num_waiting"]),
        ("num_pending", info["num_pending"]),
        ("ack_floor_stream_seq", info["ack_floor"]["stream_seq"]),
        ("ack_floor_consumer_seq", info["ack_floor"]["consumer_seq"]),
    )


def _truth(value: bool) -> str:
    return "true" if value else "false"
