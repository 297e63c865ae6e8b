"""Publishing of events of a stream, on nats-server's subjects; an event nobody listens to is not built."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jetcluster.meta.state import Assignment
from jetcluster.model.advisory import Advisories, Event, StreamAction, for_system_account, stream_action
from jetcluster.replica.context import NodeContext
from jetcluster.replica.replica_state import ReplicaState


def advisories(context: NodeContext) -> Advisories:
    return Advisories(context.clock, context.rng, context.name, context.domain)


def tell_stream_action(context: NodeContext, assignment: Assignment, action: StreamAction) -> None:
    tell(context, assignment.account, stream_action(assignment.name, action))


def tell(context: NodeContext, account: str, event: Event) -> None:
    """For what the cluster does by itself."""
    bus = context.bus(account)
    if bus.has_interest(event.subject):
        bus.publish(event.subject, advisories(context).render(event, {"acc": account}))


def tell_both(
    replica: ReplicaState, *events: Event, replicas: Callable[[], Sequence[Mapping[str, Any]]] | None = None
) -> None:
    """Publishes events to the stream's account and, with that account's name, to the system account. `replicas` makes
    the last field of each event, the replica objects of all peers; it is called only when somebody listens."""
    context, account = replica.context, replica.assignment.account
    system = [for_system_account(event, account) for event in events]
    listening = [(replica.bus, event) for event in events if replica.bus.has_interest(event.subject)]
    bus = context.bus(context.system_account)
    listening += [(bus, event) for event in system if bus.has_interest(event.subject)]
    more = {"replicas": replicas()} if listening and replicas is not None else {}
    for bus, event in listening:
        bus.publish(event.subject, advisories(context).render(event._replace(fields={**event.fields, **more})))
