"""The ConsumerInfo object of CONSUMER.INFO and similar responses."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from typing import Any, Final

from jetcluster.consumer.state.creation import following
from jetcluster.consumer.state.state import ConsumerState
from jetcluster.model import times
from jetcluster.model.order_per_key import KeySharing
from jetcluster.store.block_store import BlockStore
from jetcluster.stream.rules import StreamRules


def num_pending(state: ConsumerState, store: BlockStore) -> int:
    """Return the exact number of stored messages not yet delivered to the consumer. Raises DamagedError."""
    rules = state.rules
    above = max(state.delivered_sseq + 1, store.first_seq)
    upto = state.last_per_subject_upto
    found = 0
    if above <= upto:
        found = _last_ones(state, store, above, upto)
        above = upto + 1
    return found + state.unacked.held + store.queries.count_any(rules.filters, above)


def _last_ones(state: ConsumerState, store: BlockStore, above: int, upto: int) -> int:
    """Return the number of undelivered messages among those stored when a last_per_subject consumer was created. The
    count takes time for each subject, so it is kept until the consumer advances or a message is removed."""
    rules, at = state.rules, (above, upto, store.removals)
    if state.counted is not None:
        of, then, found = state.counted
        if of is rules and then == at:
            return found
    seqs = store.last_seqs_any(rules.filters, upto)
    found = len(seqs) - bisect_left(seqs, above)
    state.counted = rules, at, found
    return found


NO_SHARING: Final = KeySharing()


def consumer_info(
    stream: str,
    state: ConsumerState,
    store: BlockStore,
    now: int,
    of_stream: StreamRules,
    *,
    num_waiting: int = 0,
    push_bound: bool = False,
    sharing: KeySharing = NO_SHARING,
    letter_error: str = "",
    cluster: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return the object with keys in wire order, without `type`. `now` is Unix nanoseconds; `num_waiting`,
    `push_bound`, `sharing` and `letter_error` come from the owner; `cluster` is the finished object, None on a
    standalone server. Its `config` is the replicated one except for `num_replicas`; the edge converts it for clients.
    Raises DamagedError."""
    rules = state.rules
    view = state.view()
    found: dict[str, Any] = {
        "stream_name": stream,
        "name": state.name,
        "created": _time(state.created),
        "config": following(rules.config, of_stream),
        "delivered": _position(view.delivered_cseq, view.delivered_sseq, state.delivered_at),
        "ack_floor": _position(view.floor_cseq, view.floor_sseq, state.acked_at),
        "num_ack_pending": view.ack_pending,
        # With max_deliver 1 no message is ever shown as redelivered.
        "num_redelivered": view.redelivered if rules.max_deliver != 1 else 0,
        "num_waiting": num_waiting,
        "num_pending": num_pending(state, store),
    }
    if cluster is not None:
        found["cluster"] = dict(cluster)
    if push_bound:
        found["push_bound"] = True
    if rules.keys is not None or state.unacked.held:
        found["order_per_key"] = {
            "messages_waiting": state.unacked.held,
            "keys_waiting": sharing.waiting,
            "members": sharing.members,
            "spilled": sharing.spilled,
        }
    if rules.letters is not None or state.letters:
        found["dead_letters"] = _dead_letters(state, letter_error)
    if rules.pause_until > now:
        found["paused"] = True
        found["pause_remaining"] = rules.pause_until - now
    found["ts"] = _time(now)
    if rules.priority_groups:
        found["priority_groups"] = [_group(state, group) for group in rules.priority_groups]
    return found


def _dead_letters(state: ConsumerState, error: str) -> dict[str, Any]:
    found: dict[str, Any] = {"waiting": len(state.letters)}
    oldest = state.letters.oldest
    if oldest is not None:
        found |= {"oldest": _time(oldest.time)} | ({"last_error": error} if error else {})
    return found


def _position(cseq: int, sseq: int, at: int) -> dict[str, Any]:
    position: dict[str, Any] = {"consumer_seq": cseq, "stream_seq": sseq}
    if at:
        position["last_active"] = _time(at)
    return position


def _group(state: ConsumerState, group: bytes) -> dict[str, str]:
    pin, since = state.pins.get(group, (b"", 0))
    found = {"group": group.decode(errors="replace")}
    if pin:
        found["pinned_client_id"] = pin.decode(errors="replace")
    return {**found, "pinned_ts": _time(since)}


def _time(ns: int) -> str:
    return times.rfc3339(ns)
