"""The judge of consumers' owners: their memory against the consumer's state. Nothing is under way, everything that
falls due is watched, and each count is that of what it counts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterator
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from jetcluster.consumer.owner.pull import PullDelivery
from jetcluster.consumer.state.pending import NEVER

if TYPE_CHECKING:
    from jetcluster.consumer.owner.key_queues import KeyQueues
    from jetcluster.consumer.owner.owner import ConsumerOwner
    from jetcluster.consumer.owner.pull_queue import PullQueue
    from jetcluster.consumer.owner.selection import Redelivery, Selection
    from jetcluster.replica.stream_replica import StreamReplica

WAITS, READY, LEFT = 2, 3, 4
"""States of messages in `KeyQueues`."""


def owners(replica: StreamReplica) -> Iterator[str]:
    """Return faults of the owners that run on a replica, once all is calm."""
    for hosted in replica.consumers.running.values():
        owner = hosted.owner
        yield from (f"{owner.state.name}: {text}" for text in _owner(owner, replica))


def _owner(owner: ConsumerOwner, replica: StreamReplica) -> Iterator[str]:
    selection, state = owner.selection, owner.state
    acks = len(owner.acks.in_flight), len(owner.acks.acked), len(owner.acks.batches)
    under_way = selection.in_flight, selection.ops_in_flight, *acks
    if any(under_way):
        yield f"nothing is under way, and {under_way} operations and acks are"
    if selection.cursor < state.delivered_sseq:
        yield f"its cursor is at {selection.cursor}, and {state.delivered_sseq} is delivered"
    yield from _left(selection, replica)
    yield from _watched(selection.redelivery, owner.deferred)
    if selection.keys is not None and not replica.table.by_cid[state.cid].rules.pause_until:
        yield from _keys(selection.keys.queues)
    if isinstance(owner.delivery, PullDelivery):
        yield from _pulls(owner.delivery.queue)
    elif not state.rules.acks and (sent := attrgetter("_advance.cseq")(owner.delivery)) != state.delivered_cseq:
        yield f"it has sent {sent} messages, and {state.delivered_cseq} are in the log"


def _left(selection: Selection, replica: StreamReplica) -> Iterator[str]:
    """The number that goes with each message, unless it waits to be counted again."""
    stale, last_of, counted_to, removals, left = attrgetter("_stale", "_last_of", "_counted_to", "_removals", "_left")(
        selection
    )
    store = replica.store
    if stale or last_of or counted_to != store.last_seq or removals != store.removals:
        return
    counted = store.queries.count_any(selection.state.rules.filters, max(selection.cursor, 0) + 1)
    if counted != left:
        yield f"{counted} messages are left to take, and it tells of {left}"


def _watched(redelivery: Redelivery, deferred: Container[int]) -> Iterator[str]:
    """Each message that waits for its ack is delivered again when that is due, or given up once there is room for its
    dead letter (`deferred`)."""
    heap, due, state = attrgetter("_heap", "_due", "_state")(redelivery)
    awaited = {(at, seq) for _, _, seqs, at in heap for seq in seqs}
    for seq, entry in state.unacked.entries.items():
        looked_at = (entry.due, seq) in awaited or due.get(seq) == entry.due or seq in deferred
        if 0 < entry.due < NEVER and not looked_at:
            yield f"{seq} is due at {entry.due}, and nobody looks"
    if gone := [seq for seq in redelivery.order if seq not in due]:
        yield f"{gone} are in the queue of redeliveries twice"


def _keys(queues: KeyQueues) -> Iterator[str]:
    states: Counter[int] = Counter(attrgetter("_states")(queues))
    blocked = len(attrgetter("_table")(queues).waiting())
    there = states[WAITS] + states[READY], states[LEFT], blocked
    counted = queues.waiting, queues.left, queues.blocked
    if there != counted:
        yield f"of its keys {there} messages wait, have left, and keys wait, and {counted} are counted"


def _pulls(queue: PullQueue) -> Iterator[str]:
    requests: list[Any] = list(queue)
    replies = Counter(request.reply for request in requests)
    wanted, special = sum(one.left for one in requests), sum(one.max_bytes > 0 for one in requests)
    there = len(requests), wanted, special, dict(replies)
    counted = queue.size, queue.wanted, queue.special, queue.replies
    if there != counted:
        yield f"requests {there} wait, and {counted} are counted"
    if lost := [one.reply for one in queue.spent if not one.open]:
        yield f"requests of {lost} have ended, and are to get a status"
    alarms = {(at, id(one)) for at, _, one in attrgetter("_alarms")(queue)}
    if deaf := [one.reply for one in requests if one.alarm_at and (one.alarm_at, id(one)) not in alarms]:
        yield f"requests of {deaf} expire, and nobody looks"
