"""Effects of the ops of a turn on the state of a consumer.

Every function takes (state, value of the op, time of the command, last sequence of the stream) and returns the op's
outcome (`turn.Outcome`). An op that does not fit its consumer is void as a whole: it changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from jetcluster.consumer.state import turn
from jetcluster.consumer.state.letters import MAX_DELIVER, MAX_LETTERS, TERMINATED, Letter
from jetcluster.consumer.state.pending import HELD, NEVER, Pending
from jetcluster.consumer.state.rules import CUMULATIVE, EXPLICIT
from jetcluster.consumer.state.state import ConsumerState
from jetcluster.consumer.state.turn import Outcome, SentMessages, SettledMessages


def deliver(state: ConsumerState, seqs: list[int], ts: int, last_seq: int) -> Outcome:
    """Add first deliveries: all of `seqs`, or none if they do not follow the state."""
    cseq = state.delivered_cseq + 1
    if not state.rules.acks or not seqs or seqs[0] <= state.delivered_sseq or seqs[-1] > last_seq:
        return None
    if not _ascending(seqs):
        return None
    state.unacked.add(seqs, cseq, _due(state, ts, 1))
    state.delivered_cseq += len(seqs)
    state.delivered_sseq = seqs[-1]
    state.delivered_at = ts
    return SentMessages(cseq, seqs, None)


def deliver_some(state: ConsumerState, value: tuple[list[int], list[int]], ts: int, last_seq: int) -> Outcome:
    """Add first deliveries, and messages that wait for others of their key: all, or none if they do not follow the
    state."""
    seqs, held = value
    merged = sorted((*seqs, *held))
    if state.rules.ack_policy != EXPLICIT or not merged or merged[0] <= state.delivered_sseq or merged[-1] > last_seq:
        return None
    if len(set(merged)) < len(merged) or not all(map(_ascending, filter(None, value))):
        return None
    state.order_by_key()
    cseq = state.delivered_cseq + 1
    state.unacked.add_some(seqs, held, cseq, _due(state, ts, 1))
    state.delivered_cseq += len(seqs)
    state.delivered_sseq = merged[-1]
    if seqs:
        state.delivered_at = ts
    return SentMessages(cseq, seqs, None)


def release(state: ConsumerState, seqs: list[int], ts: int, last_seq: int) -> Outcome:
    """Deliver those of `seqs` that wait for others of their key; the others are ignored and take no number."""
    cseq = state.delivered_cseq + 1
    taken = list(dict.fromkeys(state.unacked.held_of(seqs)))
    if taken:
        state.unacked.release(taken, cseq, _due(state, ts, 1))
        state.delivered_cseq += len(taken)
        state.delivered_at = ts
    return SentMessages(cseq, taken, None if len(taken) == len(seqs) else [1] * len(taken))


def redeliver(state: ConsumerState, seqs: list[int], ts: int, last_seq: int) -> Outcome:
    unacked = state.unacked
    taken: list[int] = []
    deliveries: list[int] = []
    for seq in unacked.delivered(seqs) if unacked.held else seqs:
        entry = unacked.entries.get(seq)
        if entry is not None:
            count = entry.deliveries + 1
            unacked.change(seq, _due(state, ts, count), count)
            taken.append(seq)
            deliveries.append(count)
    cseq = state.delivered_cseq + 1
    if taken:
        state.delivered_cseq += len(taken)
        state.delivered_at = ts
    return SentMessages(cseq, taken, deliveries)


def ack(state: ConsumerState, seqs: list[int], ts: int, last_seq: int) -> Outcome:
    if not state.rules.acks:
        return None
    if state.rules.ack_policy in CUMULATIVE:
        return ack_up_to(state, seqs, ts)
    settled = _take(state, state.unacked.delivered(seqs) if state.unacked.held else seqs)
    if settled.seqs:
        state.acked_at = ts
    return settled


def nak(state: ConsumerState, pairs: list[tuple[int, int]], ts: int, last_seq: int) -> Outcome:
    changed = SettledMessages([], [])
    for seq, delay in pairs:
        entry = state.unacked.entries.get(seq)
        if entry is not None and entry is not HELD:
            changed.seqs.append(seq)
            changed.entries.append(state.unacked.change(seq, min(ts + delay, NEVER), entry.deliveries))
    return changed


def progress(state: ConsumerState, seqs: list[int], ts: int, last_seq: int) -> Outcome:
    changed = SettledMessages([], [])
    for seq in seqs:
        entry = state.unacked.entries.get(seq)
        if entry is not None and entry is not HELD:
            changed.seqs.append(seq)
            due = _due(state, ts, entry.deliveries)
            changed.entries.append(state.unacked.change(seq, due, entry.deliveries))
    return changed


def advance(state: ConsumerState, value: tuple[int, int], ts: int, last_seq: int) -> Outcome:
    seq, count = value
    if state.rules.acks:
        return None
    if not state.delivered_sseq < seq <= last_seq or not 0 < count <= seq - state.delivered_sseq:
        return 0
    state.delivered_cseq += count
    state.delivered_sseq = seq
    state.delivered_at = ts
    state.raise_floor(state.delivered_cseq, seq)
    return 1


def wait(state: ConsumerState, reply: bytes, ts: int, last_seq: int) -> Outcome:
    return int(state.wait(reply))


def unwait(state: ConsumerState, reply: bytes, ts: int, last_seq: int) -> Outcome:
    return int(state.waits.discard(reply))


def pin(state: ConsumerState, value: tuple[bytes, bytes], ts: int, last_seq: int) -> Outcome:
    return state.pin(*value, ts)


def exhausted(state: ConsumerState, seqs: list[int], ts: int, last_seq: int) -> Outcome:
    """Remove those that reached max_deliver, which an update may have raised since the owner decided."""
    most, entries = state.rules.max_deliver, state.unacked.entries
    if not most:
        return SettledMessages([], [])
    return _take(state, [seq for seq in seqs if seq in entries and entries[seq].deliveries >= most])


def bury(state: ConsumerState, items: list[tuple[int, int, bytes]], ts: int, last_seq: int) -> Outcome:
    """Give up messages. They become letters as far as there is room, and stay pending beyond it. Without `dead_letter`,
    which an update may have taken away since, they are given up as by EXHAUSTED and TERM."""
    rules, letters, entries = state.rules, state.letters, state.unacked.entries
    if not rules.acks:
        return None
    most = rules.max_deliver or NEVER
    doomed: dict[int, tuple[int, bytes]] = {}
    for seq, reason, text in items:
        entry = entries.get(seq)
        if entry is not None and entry is not HELD and (reason != MAX_DELIVER or entry.deliveries >= most):
            doomed.setdefault(seq, (reason, text))
    if rules.letters is not None:
        room = MAX_LETTERS - len(letters)
        doomed = dict(list(doomed.items())[:room])
        for seq, (reason, text) in doomed.items():
            letters.add(seq, Letter(reason, entries[seq].deliveries, ts, text))
    termed = [seq for seq, (reason, _) in doomed.items() if reason == TERMINATED]
    settled = SettledMessages([], [])
    if termed and rules.ack_policy in CUMULATIVE:
        settled = ack_up_to(state, termed, ts)
    rest = _take(state, [seq for seq in doomed if seq in entries])
    if termed:
        state.acked_at = ts
    return SettledMessages(settled.seqs + rest.seqs, settled.entries + rest.entries)


def buried(state: ConsumerState, seqs: list[int], ts: int, last_seq: int) -> Outcome:
    """Remove letters that are confirmed."""
    settled = SettledMessages([], [])
    for seq in seqs:
        letter = state.letters.take(seq)
        if letter is not None:
            settled.seqs.append(seq)
            settled.entries.append(Pending(0, NEVER, letter.deliveries))
    return settled


def gone(state: ConsumerState, seqs: list[int], ts: int, last_seq: int) -> Outcome:
    return _take(state, seqs)


def skip(state: ConsumerState, seq: int, ts: int, last_seq: int) -> Outcome:
    if not state.delivered_sseq < seq <= last_seq:
        return 0
    state.delivered_sseq = seq
    if not state.rules.acks:
        state.raise_floor(state.floor_cseq, seq)
    return 1


OPS: Final[dict[int, Callable[[ConsumerState, Any, int, int], Outcome]]] = {
    turn.DELIVER: deliver,
    turn.REDELIVER: redeliver,
    turn.ACK: ack,
    turn.NAK: nak,
    turn.TERM: ack,  # nats-server treats +TERM as an ack without success: policy `all` includes all below, too
    turn.PROGRESS: progress,
    turn.ADVANCE: advance,
    turn.WAIT: wait,
    turn.UNWAIT: unwait,
    turn.PIN: pin,
    turn.EXHAUSTED: exhausted,
    turn.GONE: gone,
    turn.SKIP: skip,
    turn.DELIVER_SOME: deliver_some,
    turn.RELEASE: release,
    turn.BURY: bury,
    turn.BURIED: buried,
}


def _take(state: ConsumerState, seqs: list[int]) -> SettledMessages:
    settled = SettledMessages(*state.unacked.take(seqs))
    if settled.seqs:
        state.settle_floor()
    return settled


def ack_up_to(state: ConsumerState, seqs: list[int], ts: int) -> SettledMessages:
    highest = max((seq for seq in seqs if seq <= state.delivered_sseq), default=0)
    if highest <= state.floor_sseq:
        return SettledMessages([], [])
    settled = SettledMessages(*state.unacked.take_up_to(highest))
    if settled.seqs:
        state.acked_at = ts
        lowest = state.unacked.lowest()
        cseq = state.unacked.entries[lowest].cseq - 1 if lowest else state.delivered_cseq
        state.raise_floor(max(cseq, state.floor_cseq), highest)  # numbers from an archive need not ascend
    return settled


def _due(state: ConsumerState, ts: int, deliveries: int) -> int:
    wait = state.rules.wait_after(deliveries)
    return min(ts + wait, NEVER) if wait > 0 else NEVER


def _ascending(seqs: list[int]) -> bool:
    if seqs[-1] - seqs[0] + 1 == len(seqs):  # consecutive, the usual case
        return seqs == list(range(seqs[0], seqs[-1] + 1))
    return seqs == sorted(set(seqs))
