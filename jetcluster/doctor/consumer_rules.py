"""Rules about one consumer, evaluated by its owner: the watchdog for consumers that deliver nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from jetcluster.doctor import catalogue as kinds
from jetcluster.doctor.facts import ConsumerFacts
from jetcluster.doctor.finding import Finding, Subject
from jetcluster.doctor.words import span

STUCK_SECONDS: Final = 15.0
"""A message that waits longer while somebody wants it should have been delivered."""
QUIET_SECONDS: Final = 5.0
"""Without an ack for so long, and for ack_wait, a consumer that has all it may in flight waits for its workers."""
IDLE_SECONDS: Final = 300.0
"""Messages that nobody has asked for during that time are worth a word."""
LETTERS_SECONDS: Final = 60.0
"""A dead letter usually waits for milliseconds; the target may be without a leader meanwhile."""
MIN_REDELIVERED: Final = 10
READERS_FAULT: Final[Mapping[str, str]] = {
    "unread": "its readers do not read what was sent to them",
    "unconfirmed": "its subscriber does not answer flow control",
}
"""The values of `ConsumerFacts.withheld` that somebody should look at. With the others a consumer does what it was
configured to do."""


BY_KEY: Final = "keys"
"""The value for a consumer with order per key when all that is left waits for others of its keys."""


def look_at_consumer(facts: ConsumerFacts) -> Iterator[Finding]:
    """Yields why the consumer does not get on."""
    about = Subject(account=facts.account, stream=facts.stream, consumer=facts.name)
    if facts.paused > 0:
        what = f"{facts.name} is paused for {span(facts.paused)} more; {facts.pending} messages wait"
        yield kinds.PAUSED.found(about, what, seconds=round(facts.paused), pending=facts.pending)
    elif _at_most(facts):
        # With acks that come, the window is full because the workers are busy: each may take ack_wait.
        if _is_quiet(facts):
            yield _full(facts, about)
    elif facts.withheld == BY_KEY:
        if _is_quiet(facts):
            what = f"{facts.name} waits for acks: {facts.pending} messages wait for others of their keys"
            yield _waits(facts, about, what)
    elif facts.pending and facts.oldest > STUCK_SECONDS:
        yield from _undelivered(facts, about)
    if facts.redelivered >= max(facts.ack_pending, MIN_REDELIVERED):
        what = f"Every one of the {facts.ack_pending} messages of {facts.name} that wait for an ack came again"
        acked = "never" if facts.acked < 0 else f"{span(facts.acked)} ago"
        why = f"The last ack came {acked}; ack_wait is {span(facts.ack_wait)}. {kinds.REDELIVERED.reason}"
        yield kinds.REDELIVERED.found(about, what, why, redelivered=facts.redelivered, ack_pending=facts.ack_pending)
    if facts.exhausted:
        what = f"{facts.name} gave up {facts.exhausted} messages after max_deliver attempts"
        yield kinds.GIVEN_UP.found(about, what, messages=facts.exhausted)
    if facts.letters and facts.letters_oldest > LETTERS_SECONDS:
        what = f"{facts.letters} dead letters of {facts.name} wait, the first for {span(facts.letters_oldest)}"
        why = f"{facts.letters_error}. {kinds.LETTERS_WAIT.reason}" if facts.letters_error else ""
        figures = {"letters": facts.letters, "oldest_seconds": round(facts.letters_oldest)}
        yield kinds.LETTERS_WAIT.found(about, what, why or kinds.LETTERS_WAIT.reason, **figures)


def _at_most(facts: ConsumerFacts) -> bool:
    return 0 < facts.max_ack_pending <= facts.ack_pending and facts.pending > 0


def _is_quiet(facts: ConsumerFacts) -> bool:
    """True when no ack came lately."""
    return not 0 <= facts.acked < max(QUIET_SECONDS, facts.ack_wait)


def _full(facts: ConsumerFacts, about: Subject) -> Finding:
    what = f"{facts.name} waits for acks: {facts.ack_pending} of max_ack_pending {facts.max_ack_pending} are open"
    return _waits(facts, about, what)


def _waits(facts: ConsumerFacts, about: Subject, what: str) -> Finding:
    acked = "none has ever come" if facts.acked < 0 else f"the last one came {span(facts.acked)} ago"
    why = f"{facts.pending} messages wait behind them; {acked}. {kinds.ACKS_FULL.reason}"
    figures = {"ack_pending": facts.ack_pending, "max_ack_pending": facts.max_ack_pending, "pending": facts.pending}
    return kinds.ACKS_FULL.found(about, what, why, **figures)


def _undelivered(facts: ConsumerFacts, about: Subject) -> Iterator[Finding]:
    """Messages wait. A consumer that has delivered one since the oldest came is only slow."""
    if 0 <= facts.delivered < min(facts.oldest, STUCK_SECONDS):
        return
    last = "nothing was ever delivered" if facts.delivered < 0 else f"the last delivery was {span(facts.delivered)} ago"
    figures = {"pending": facts.pending, "oldest_seconds": round(facts.oldest, 1), "waiting": facts.waiting}
    why = f"The oldest waits for {span(facts.oldest)}; {last}. "
    if facts.withheld in READERS_FAULT:
        what = f"{facts.pending} messages wait at {facts.name}: {READERS_FAULT[facts.withheld]}"
        yield kinds.UNREAD.found(about, what, why + kinds.UNREAD.reason, **figures)
    elif facts.waiting or facts.bound:
        if facts.withheld:
            return
        who = "a subscriber is there" if facts.bound else f"{facts.waiting} pull requests wait"
        what = f"{facts.name} delivers nothing: {facts.pending} messages wait although {who}"
        if facts.in_flight:
            why += f"{facts.in_flight} deliveries wait until the stream's log has them. "
        yield kinds.STUCK.found(about, what, why + kinds.STUCK.reason, **figures)
    elif facts.oldest > IDLE_SECONDS and not 0 <= facts.delivered < IDLE_SECONDS:
        kind = kinds.UNBOUND if facts.push else kinds.UNASKED
        asks = f"nobody has subscribed to {facts.target}" if facts.push else "nobody asks for them"
        what = f"{facts.pending} messages wait at {facts.name} and {asks}"
        yield kind.found(about, what, why + kind.reason, **figures)
