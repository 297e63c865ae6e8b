"""Telling what happens to a stream, on nats-server's subjects; an event nobody listens to is not built."""

from __future__ import annotations

from jetcluster.meta.state import Assignment
from jetcluster.model.advisory import Advisories, Event, StreamAction, stream_action
from jetcluster.replica.context import NodeContext


def advisories(context: NodeContext) -> Advisories:
    return Advisories(context.clock, context.rng, context.name, context.domain)


def tell_stream_action(context: NodeContext, assignment: Assignment, action: StreamAction) -> None:
    tell(context, assignment.account, stream_action(assignment.name, action))


def tell(context: NodeContext, account: str, event: Event) -> None:
    """For what the cluster does by itself."""
    bus = context.bus(account)
    if bus.has_interest(event.subject):
        bus.publish(event.subject, advisories(context).render(event, {"acc": account}))
