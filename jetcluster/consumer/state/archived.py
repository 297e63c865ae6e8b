"""Consumers in the archive of a stream: entries `consumers/<name>` of nats-server's format V2.

    {"config": {...}, "state": {"delivered": {"consumer_seq", "stream_seq"}, "ack_floor": {...},
     "pending": {"<stream seq>": {"Sequence": consumer seq, "Timestamp": ns}}, "redelivered": {"<stream seq>": n}}}

A pending message is due at its time plus the wait after its deliveries; `redelivered` counts the deliveries after the
first. The form in the log is `{"delivered": [cseq, sseq], "floor": [cseq, sseq], "pending": [[sseq, cseq, ns,
deliveries], ...]}`, and "held": [sseq, ...] if messages wait for others of their key, "by_key" if some ever did. Each
message is there once, whatever the archive has: a message that is pending is not held.

Dead letters that wait are "letters": [[sseq, reason, deliveries, ns, text], ...], with texts that are at most
`MAX_LETTER_TEXT_BYTES` of JSON together. "created": ns beside them is when the consumer was made, which their ids have:
a target that stored some after the archive was made has to know them again.

nats-server has no such messages. A consumer with some is shown to it at its ack floor, where it begins again; its exact
state is beside that, under `jetcluster`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from json.encoder import encode_basestring_ascii
from typing import Any, Final

from jetcluster.budget import Steps, at_once
from jetcluster.consumer.state.letters import MAX_LETTERS, MAX_TEXT_BYTES, REASONS, Letter, WaitingLetters
from jetcluster.consumer.state.pending import HELD, NEVER, PendingSet
from jetcluster.consumer.state.state import ConsumerState
from jetcluster.store.block_store import BlockStore
from jetcluster.stream.log.commands import CommandError

MAX_PENDING_MESSAGES: Final = 50_000
"""Pending messages of a consumer; with more it is restored at its ack floor, since a log command is bounded."""
MAX_HELD_MESSAGES: Final = 131_072
"""The same for those that wait for others of their key: what an owner lets wait, and what is in flight beside it."""
MAX_LETTER_TEXT_BYTES: Final = 1 << 20
"""Texts of the dead letters of a consumer in an archive, as JSON in ASCII, where a character may be 6 bytes and more;
the later ones lose theirs."""
ENTRIES_PER_STEP: Final = 500
HELD_PER_STEP: Final = 4096
"""Pending and held messages read in one step."""
MAX_DELIVERIES: Final = (1 << 31) - 1
"""Largest count taken from an archive: a page of pending messages has 32 bits for it, and the count goes on."""

_OWN: Final = "jetcluster"
"""Key of the exact state of a consumer that nats-server cannot have."""

Fields = dict[str, Any]


def frozen(state: ConsumerState) -> ConsumerState:
    """Return what `encoding` reads of `state` as it is now."""
    found = copy(state)
    found.unacked = PendingSet()
    found.unacked.entries, found.unacked.held = state.pending.copy(), state.unacked.held
    found.letters = WaitingLetters()
    found.letters.by_seq = state.letters.by_seq.copy()
    return found


def encode(state: ConsumerState) -> Fields:
    """Run all steps of `encoding`."""
    return at_once(encoding(state))


def encoding(state: ConsumerState) -> Steps[Fields]:
    """Return the `state` of an archive's entry, in steps; the caller must not change `state` between them."""
    exact = yield from _encoding(state)
    if not state.by_key and not state.letters:
        return exact
    letters = _kept_letters(state)
    if not state.by_key:
        return {**exact, _OWN: exact | letters}
    entries = state.pending
    held = [seq for seq, entry in entries.items() if entry is HELD]
    floor = exact["ack_floor"]
    shown = {"delivered": floor, "ack_floor": floor} if held else exact
    return {**shown, _OWN: {**exact, "by_key": True} | ({"held": held} if held else {}) | letters}


def at_floor(state: ConsumerState) -> Fields:
    """Return the `state` of an archive's entry where it begins again at its ack floor, as with too much pending."""
    floor = {"consumer_seq": state.floor_cseq, "stream_seq": state.floor_sseq}
    shown: Fields = {"delivered": floor, "ack_floor": floor}
    own = ({"by_key": True} if state.by_key else {}) | _kept_letters(state)
    return {**shown, _OWN: {**shown, **own}} if own else shown


def _kept_letters(state: ConsumerState) -> Fields:
    return {"letters": list(_letters(state)), "created": state.created} if state.letters else {}


def _letters(state: ConsumerState) -> Iterator[list[int | str]]:
    room = MAX_LETTER_TEXT_BYTES
    for seq, letter in state.letters.by_seq.items():
        text = letter.text.decode("utf-8", "replace")
        room -= _size(text)
        yield [seq, letter.reason, letter.deliveries, letter.time, text if room >= 0 else ""]


def _size(text: str) -> int:
    return len(encode_basestring_ascii(text)) - len('""')


def _encoding(state: ConsumerState) -> Steps[Fields]:
    found: Fields = {
        "delivered": {"consumer_seq": state.delivered_cseq, "stream_seq": state.delivered_sseq},
        "ack_floor": {"consumer_seq": state.floor_cseq, "stream_seq": state.floor_sseq},
    }
    pending: Fields = {}
    again: Fields = {}
    wait = state.rules.wait_after
    for number, (seq, entry) in enumerate(state.pending.items(), 1):
        if entry is not HELD:
            due = _delivered(entry.due, wait(entry.deliveries), state)
            pending[str(seq)] = {"Sequence": entry.cseq, "Timestamp": due}
            if entry.deliveries > 1:
                again[str(seq)] = entry.deliveries - 1
        if number % ENTRIES_PER_STEP == 0:
            yield
    return found | ({"pending": pending} if pending else {}) | ({"redelivered": again} if again else {})


def decode(found: Mapping[str, Any]) -> Fields:
    """Run all steps of `decoding`."""
    return at_once(decoding(found))


def decoding(found: Mapping[str, Any]) -> Steps[Fields]:
    """Convert an entry's `state` to the form in the log, in steps. Raises ValueError for a malformed one."""
    try:
        found = found.get(_OWN) or found
        delivered, floor = (
            [_number(found[key]["consumer_seq"]), _number(found[key]["stream_seq"])]
            for key in ("delivered", "ack_floor")
        )
        again = found.get("redelivered") or {}
        by_key = {"by_key": True} if found.get("by_key") or found.get("held") else {}
        listed, waits = found.get("pending") or {}, found.get("held") or ()
        letters = _decoded_letters(found.get("letters") or ())
        if len(listed) > MAX_PENDING_MESSAGES or len(waits) > MAX_HELD_MESSAGES:
            return {"delivered": floor, "floor": floor, "pending": []} | by_key | letters
        pending: dict[int, list[int]] = {}
        for number, (seq, one) in enumerate(listed.items(), 1):
            numbers = _number(one["Sequence"]), _number(one["Timestamp"]), 1 + _number(again.get(seq, 0))
            pending.setdefault(_number(int(seq)), [int(seq), *numbers])
            if number % ENTRIES_PER_STEP == 0:
                yield
        held: set[int] = set()
        for number, seq in enumerate(waits, 1):
            held.add(_number(seq))
            if number % HELD_PER_STEP == 0:
                yield
    except KeyError as error:
        raise ValueError(f"the state of a consumer has no {error.args[0]}") from error
    except (AttributeError, TypeError) as error:
        raise ValueError("the state of a consumer is malformed") from error
    left = sorted(held.difference(pending))
    made: Fields = {"delivered": delivered, "floor": floor, "pending": sorted(pending.values()), **by_key, **letters}
    return made | ({"held": left} if left else {})


def created(found: object) -> int | None:
    """Returns when the consumer of an entry's `state` was made, Unix nanoseconds; None where it may be made anew."""
    own = found.get(_OWN) if isinstance(found, Mapping) else None
    made = own.get("created") if isinstance(own, Mapping) and own.get("letters") else None
    return made if type(made) is int and 0 < made < 1 << 63 else None


def _decoded_letters(found: Sequence[Any]) -> Fields:
    """Raises TypeError, ValueError."""
    kept: dict[int, list[int | str]] = {}
    room = MAX_LETTER_TEXT_BYTES
    for seq, reason, deliveries, at, text in found[:MAX_LETTERS]:
        cut = _cut(text)
        room -= _size(cut)
        numbers = [_number(seq), _number(reason), _number(deliveries), _number(at)]
        kept.setdefault(numbers[0], [*numbers, cut if room >= 0 else ""])
    return {"letters": list(kept.values())} if kept else {}


def _cut(text: str) -> str:
    return text.encode("utf-8", "replace")[:MAX_TEXT_BYTES].decode("utf-8", "ignore")


def restore(state: ConsumerState, found: Mapping[str, Any], store: BlockStore) -> None:
    """Set a new consumer to its archived progress, in apply. Raises CommandError."""
    try:
        delivered_cseq, delivered_sseq = map(_number, found["delivered"])
        floor_cseq, floor_sseq = map(_number, found["floor"])
        delivered_sseq = min(delivered_sseq, store.last_seq)
        floor = min(floor_cseq, delivered_cseq), min(floor_sseq, delivered_sseq)
        state.resume((delivered_cseq, delivered_sseq), floor)
        if not state.rules.acks:  # pending messages would never go away
            return
        if found.get("by_key") or found.get("held"):
            state.order_by_key()
        entries: dict[int, list[int] | None] = dict.fromkeys(map(_number, found.get("held", ())))
        entries.update((_number(seq), one) for seq, *one in found["pending"])
        for seq, one in sorted(entries.items()):
            if not state.floor_sseq < seq <= state.delivered_sseq or not store.contains(seq):
                continue
            if one is None:
                state.unacked.add_some([], [seq], 0, 0)
            else:
                *numbers, deliveries = one
                cseq, ts = map(_number, numbers)
                wait = state.rules.wait_after(deliveries)
                due = min(ts + wait, NEVER) if wait > 0 else NEVER
                state.unacked.add([seq], min(cseq, delivered_cseq), due)
                if deliveries > 1:
                    state.unacked.change(seq, due, min(deliveries, MAX_DELIVERIES))
        if state.rules.letters is not None:
            _restore_letters(state, found.get("letters", ()))
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise CommandError(f"consumer out of an archive: {error!r}") from error


def _restore_letters(state: ConsumerState, found: Sequence[Any]) -> None:
    """Set the letters of messages that were delivered and are not pending."""
    for seq, reason, deliveries, at, text in found[:MAX_LETTERS]:
        if not 0 < _number(seq) <= state.delivered_sseq or seq in state.unacked.entries or reason not in REASONS:
            continue
        count = min(_number(deliveries), MAX_DELIVERIES)
        state.letters.add(seq, Letter(reason, count, _number(at), _cut(text).encode()))


def _delivered(due: int, wait: int, state: ConsumerState) -> int:
    return state.delivered_at if due >= NEVER else max(0, due - wait)


def _number(value: object) -> int:
    if type(value) is not int or not 0 <= value < 1 << 63:
        raise ValueError(f"{value!r} is no number of this kind")
    return value
