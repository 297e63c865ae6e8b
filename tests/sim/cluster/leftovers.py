"""The judge of what servers keep of what is gone: once all is done, nothing is left of it.

A callback that is not called, or a count that is not taken back, fails no request of that moment. It fails a later one,
or takes room for ever: so what a server keeps is compared with what is there.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from jetcluster.consumer.owner.key_stocks import NOBODY
from jetcluster.consumer.owner.pull import PullDelivery
from jetcluster.server.accounts.shared_routes import Shadow
from jetcluster.server.accounts.subscription import ClientSubscription, InternalSubscription
from testkit.sim.deployment import Deployment, Violation
from tests.sim.cluster.invariants import jetstream_of

if TYPE_CHECKING:
    from jetcluster.cluster.jetstream import JetStream
    from jetcluster.consumer.owner.owner import ConsumerOwner
    from jetcluster.server.server import Server

GOES = 20.0
"""Seconds within which each of them goes: owners look for clients that are gone every five."""
LOOK = 0.5
"""Seconds between two looks."""


async def settle(deployment: Deployment) -> None:
    """Returns once each thing that was left at the first look was gone at some later one. Raises Violation with what
    was there at every look for GOES."""
    end = deployment.scheduler.now + GOES
    left = list(leftovers(deployment))
    while left:
        if deployment.scheduler.now > end:
            raise Violation(f"{GOES:g} s after all is done: {left[0]}")
        await asyncio.sleep(LOOK)
        there = set(leftovers(deployment))
        left = [one for one in left if one in there]


def leftovers(deployment: Deployment) -> Iterator[str]:
    """Says what each server keeps of what is gone, the same as long as that is so."""
    for name, machine in deployment.machines.items():
        if machine.node is None or not machine.ready:
            continue
        for found in of_clients(machine.node.server):
            yield f"{name}: {found}"
        jetstream = jetstream_of(machine)
        for found in of_streams(jetstream) if jetstream is not None else ():
            yield f"{name}: {found}"


def of_clients(server: Server) -> Iterator[str]:
    """Connections that count for their account, and subscriptions of clients, also in accounts that others import."""
    clients = server.clients
    there = Counter(one.account for one in clients if one.account and one.cid not in clients.departed)
    counted = attrgetter("_of_account")(clients)
    for account in sorted(there.keys() | counted.keys()):
        if counted[account] != there[account]:
            yield f"account {account} counts {counted[account]} clients, and has {there[account]}"
    for router in server.accounts:
        for one in router.index:
            target = one.target if isinstance(one, Shadow) else one
            if isinstance(target, ClientSubscription | InternalSubscription) and target.closed:
                yield f"account {router.account} has {one.subject!r} for a subscription that is closed"


def of_streams(jetstream: JetStream) -> Iterator[str]:
    quota = jetstream.services.settings.account_quota
    for gid in attrgetter("_shares")(quota).keys() - jetstream.replicas.keys():
        yield f"bytes of group {gid} count, and it has no replica"
    for gid in jetstream.network.catchup.transfers.keys() - jetstream.replicas.keys():
        yield f"the state of group {gid} is fetched, and it has no replica"
    for replica in jetstream.replicas.values():
        name = replica.assignment.name
        wanted = set(replica.machine.rules.subjects) if replica.leading else set()
        if more := sorted(set(replica.listening.subjects) - wanted):
            yield f"stream {name} is listened to at {more}"
        for hosted in replica.consumers.running.values():
            for found in of_owner(hosted.owner):
                yield f"stream {name}, consumer {hosted.owner.state.name}: {found}"


def of_owner(owner: ConsumerOwner) -> Iterator[str]:
    """Requests, members and messages of one consumer where it is delivered."""
    state, delivery = owner.state, owner.delivery
    asked: Any = delivery.queue.replies if isinstance(delivery, PullDelivery) else {}
    for reply in state.waiting.keys() - asked.keys():
        yield f"a request for {reply!r} waits by the log, and nowhere else"
    if gone := [seq for seq in state.unacked.entries if not owner.stored(seq)]:
        yield f"{gone[0]} waits for an ack, and is not there"
    if isinstance(delivery, PullDelivery) and delivery.sharing is not None:
        members = delivery.sharing.members
        for number, seqs in owner.selection.redelivery.parked.items():
            if seqs and number != NOBODY and members.get(number) is None:
                yield f"{seqs[0]} waits for a member that is gone"
