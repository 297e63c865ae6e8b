"""The facts of a consumer for the rules of `jetcluster.doctor`, taken where it is owned."""

from __future__ import annotations

from typing import Final

from jetcluster.consumer.info import num_pending
from jetcluster.consumer.state.rules import ConsumerRules
from jetcluster.consumer.state.state import ConsumerState
from jetcluster.doctor.facts import ConsumerFacts
from jetcluster.replica.stream_replica import StreamReplica

LOOK_SECONDS: Final = 5.0
"""A consumer that delivered something since is not looked at any closer."""
MAX_FILTERS: Final = 16
"""Filters of a consumer for which its oldest message is looked for."""


def consumer_facts(replica: StreamReplica, state: ConsumerState, server: str, now: int) -> ConsumerFacts | None:
    """Returns a consumer that this node owns; None for one that gets on, which is seen without counting its messages,
    and for one that another node owns. `now`: Unix nanoseconds. Raises DamagedError."""
    owner, rules = replica.consumers.owner(state.cid), state.rules
    if owner is None or rules.direct:
        return None
    view = state.view()
    paused = max(rules.pause_until - now, 0) / 1e9
    exhausted, letter = len(state.exhausted.keys), state.letters.oldest
    delivered = (now - state.delivered_at) / 1e9 if state.delivered_at else -1.0
    waits = view.delivered_sseq < replica.store.last_seq and not 0 <= delivered < LOOK_SECONDS
    full = 0 < rules.max_ack_pending <= view.ack_pending
    if not (waits or full or paused or exhausted or letter or view.redelivered):
        return None
    pending = num_pending(state, replica.store)
    return ConsumerFacts(
        server, replica.assignment.account, replica.assignment.name, state.name,
        push=rules.push,
        pending=pending,
        oldest=_oldest(replica, state, now) if pending else -1.0,
        delivered=delivered,
        acked=(now - state.acked_at) / 1e9 if state.acked_at else -1.0,
        waiting=owner.num_waiting,
        bound=owner.push_bound,
        target=_target(rules),
        withheld=owner.withheld(),
        in_flight=owner.selection.in_flight,
        ack_pending=view.ack_pending,
        max_ack_pending=rules.max_ack_pending,
        redelivered=view.redelivered if rules.max_deliver != 1 else 0,
        ack_wait=rules.ack_wait / 1e9,
        paused=paused,
        exhausted=exhausted,
        letters=len(state.letters),
        letters_oldest=(now - letter.time) / 1e9 if letter else -1.0,
        letters_error=owner.letter_trouble if letter else "",
    )  # fmt: skip


def _target(rules: ConsumerRules) -> str:
    subject, group = (name.decode("utf-8", "replace") for name in (rules.deliver_subject, rules.deliver_group))
    return f"{subject} (queue group {group})" if group else subject


def _oldest(replica: StreamReplica, state: ConsumerState, now: int) -> float:
    """Returns the age in seconds of the oldest message that is not delivered; -1 where that takes a long search."""
    filters, start = state.rules.filters, state.delivered_sseq + 1
    if len(filters) > MAX_FILTERS or start <= state.last_per_subject_upto:
        return -1.0
    firsts = [replica.store.view(one, start).first() for one in filters]
    times = [first.ts for first in firsts if first is not None]
    return (now - min(times)) / 1e9 if times else -1.0
