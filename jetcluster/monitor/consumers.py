"""Consumers on /jsz: as this node's replica of their stream knows them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from jetcluster.consumer.info import consumer_info
from jetcluster.model.consumer_rules import shown
from jetcluster.monitor.source import Json
from jetcluster.replica.consumer_cluster import all_replicas, consumer_cluster

if TYPE_CHECKING:
    from jetcluster.cluster.jetstream import JetStream
    from jetcluster.replica.stream_replica import StreamReplica


def consumer_count(replica: StreamReplica) -> int:
    """Consumers of a stream, without those of mirrors and sources."""
    return sum(1 for state in replica.consumers.table.by_cid.values() if not state.rules.direct)


def each_consumer(engine: JetStream, replica: StreamReplica, *, config: bool, direct: bool = False) -> Iterator[Json]:
    """One ConsumerInfo each, in order of their names; `direct`: those of mirrors and sources instead. Waiting pulls and
    bound push consumers are only known on the node that owns them; only a leader knows how far the replicas are.
    Consumers may come and go between two. Raises DamagedError."""
    host, context = replica.consumers, engine.context
    peers = all_replicas(replica) if replica.leading else []
    for name in sorted(host.table.by_name):
        state = host.table.by_name.get(name)
        if state is None or state.rules.direct != direct:
            continue
        owner = host.owner(state.cid)
        info = consumer_info(
            replica.assignment.name,
            state,
            replica.store,
            context.clock.time_ns(),
            replica.machine.rules,
            num_waiting=owner.num_waiting if owner is not None else 0,
            push_bound=owner is not None and owner.push_bound,
            cluster=consumer_cluster(replica, state, peers),
        )
        if config:
            info["config"] = shown(info["config"])
        else:
            del info["config"]
        yield info
