"""`LetterPublisher`: sends the dead letters of one consumer, each exactly once (docs/consumers.md, "Dead letters").

The log has which messages were given up. Each is published with a message id of its own, until a stream confirms it;
then BURIED is put into the log. Within half of the target's duplicate window a letter that may be stored is sent again,
since the target knows its id; later it is looked for first (`letter_search`).
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterable
from itertools import islice
from typing import Final

from jetcluster.consumer.owner.context import DeliveryContext
from jetcluster.consumer.owner.letter_search import LetterSearch, SearchError
from jetcluster.consumer.state.letters import MAX_LETTERS, TERMINATED, Letter
from jetcluster.consumer.state.turn import BURIED
from jetcluster.model.dead_letters import is_publishable
from jetcluster.model.times import SECOND, rfc3339
from jetcluster.protocol import headers as header_block
from jetcluster.protocol.bus import Origin, Subscription
from jetcluster.records import NamedTuple

MAX_IN_FLIGHT: Final = 16
MAX_BYTES_IN_FLIGHT: Final = 8 << 20
"""Letters under way; one may be larger alone."""
ANSWER_NS: Final = 5 * SECOND
"""Time after which a letter or question without an answer counts as failed."""
MIN_PAUSE_NS: Final = SECOND
MAX_PAUSE_NS: Final = 30 * SECOND
"""Pauses between failures in a row double."""
MAX_ANSWERS: Final = 4 * MAX_IN_FLIGHT
"""Answers taken in one turn; what is beyond counts as lost."""

_PREFIX: Final = b"Nats-Dead-Letter-"
_DROPPED: Final = (
    b"nats-expected-", b"nats-ttl", b"nats-rollup", b"nats-schedule", b"nats-batch", b"nats-incr", b"nats-dead-letter-",
)  # fmt: skip
"""Beginnings of headers that steer a publish, or are of an earlier letter."""
MAX_HOPS: Final = 8
"""Dead letters that a message may have been in a row, of consumers of dead letters."""
_HOPS: Final = _PREFIX + b"Hops"
_REASONS: Final = {TERMINATED: b"terminated"}


class _Try(NamedTuple):
    seq: int
    size: int
    until: int
    """When it counts as failed, Unix nanoseconds."""


class _Doubt(NamedTuple):
    """A letter may be stored though no stream confirmed it."""

    first: int
    """Time of the first try that may have succeeded."""
    last: int


class LetterPublisher:
    """The letters of one owned consumer."""

    __slots__ = ("_answers", "_doubts", "_failures", "_in_flight", "_inbox", "_not_before", "_number", "_owner",
                 "_queue", "_refused", "_search", "_search_began", "_search_until", "_size", "_stored", "_stream",
                 "_subscription", "_window", "last_error")  # fmt: skip

    def __init__(self, owner: DeliveryContext, stream: str) -> None:
        self._owner = owner
        self._stream = stream
        self._inbox = b""
        self._subscription: Subscription | None = None
        self._number = 0
        self._window = 0
        """Duplicate window of the target in nanoseconds; 0: not known."""
        self._answers: list[tuple[bytes, bytes, bytes]] = []
        """(reply subject, header block, payload) since the last run."""
        self.last_error = ""
        """The last failure, "" after a success."""
        self._failures = 0
        self._not_before = 0
        self._forget()

    def _forget(self) -> None:
        self._queue: deque[int] = deque()
        self._doubts: dict[int, _Doubt] = {}
        self._in_flight: dict[bytes, _Try] = {}
        self._size = 0
        self._refused = ""
        """Why letters wait that are not tried again."""
        self._stored: list[int] = []
        """Confirmed ones that the log does not have yet."""
        self._search: LetterSearch | None = None
        self._search_began = self._search_until = 0

    def reset(self) -> None:
        """Continue from the replicated state. Whoever owned the consumer may have sent each letter until now."""
        self._forget()
        self._answers.clear()
        now = self._owner.clock.time_ns()
        for seq, letter in self._owner.state.letters.by_seq.items():
            self._queue.append(seq)
            self._doubts[seq] = _Doubt(letter.time, now)
        if self._queue:
            self._owner.run_soon()

    def stop(self) -> None:
        if self._subscription is not None:
            self._owner.bus.unsubscribe(self._subscription)
            self._subscription = None
        self._forget()

    def added(self, seqs: Iterable[int]) -> None:
        """Send what the log has as letters since now; nobody has sent them before."""
        letters = self._owner.state.letters
        self._queue.extend(seq for seq in seqs if seq in letters)
        self._owner.run_soon()

    # -- answers ------------------------------------------------------------------------------------------------------

    def _receive(self, subject: bytes, reply: bytes, headers: bytes, payload: bytes, origin: Origin) -> None:
        if len(self._answers) < MAX_ANSWERS:
            self._answers.append((subject, headers, payload))
            self._owner.run_soon()

    def run(self, now: int) -> None:
        """Take answers, and send what may be sent. Raises DamagedError."""
        if not self._owner.state.letters and not self._answers:
            return
        answers, self._answers = self._answers, []
        for subject, headers, payload in answers:
            self._answered(subject, headers, payload, now)
        self._expire(now)
        if self._stored:
            stored, self._stored = self._stored, []
            self._owner.submit(BURIED, stored)
        self._send_some(now)
        self._rearm(now)

    def _rearm(self, now: int) -> None:
        """Request the next tick: the owner forgets later ones with each."""
        times = [tried.until for tried in self._in_flight.values()]
        if self._search is not None:
            times.append(self._search_until)
        if self._queue and self._not_before > now:
            times.append(self._not_before)
        if times:
            self._owner.wake_at(min(times))

    def _answered(self, subject: bytes, headers: bytes, payload: bytes, now: int) -> None:
        if self._search is not None and subject == self._search.asked_with:
            self._searched(headers, payload, now)
            return
        tried = self._in_flight.pop(subject, None)
        if tried is None:
            return
        self._size -= tried.size
        error = _error_of(headers, payload)
        if error:
            self._failed(tried.seq, error, now)
        else:
            self._succeeded(tried.seq)

    def _expire(self, now: int) -> None:
        for subject, tried in [one for one in self._in_flight.items() if one[1].until <= now]:
            del self._in_flight[subject]
            self._size -= tried.size
            known = self._doubts.get(tried.seq)
            at = tried.until - ANSWER_NS
            self._doubts[tried.seq] = _Doubt(at if known is None else known.first, at)
            self._failed(tried.seq, "no stream answers", now)
        if self._search is not None and self._search_until <= now:
            self._search = None
            self._pause("search for letters: no answer", now)

    def _succeeded(self, seq: int) -> None:
        self._failures = 0
        self.last_error = self._refused
        self._doubts.pop(seq, None)
        self._stored.append(seq)

    def _failed(self, seq: int, error: str, now: int) -> None:
        self._queue.append(seq)
        self._pause(error, now)

    def _refuse(self, seq: int, error: str) -> None:
        """Leave a letter where it waits, since another try would not help; the others go on."""
        if not self.last_error:
            self._owner.advise.letters_fail(len(self._owner.state.letters), error)
        self._refused = self.last_error = error
        self._doubts.pop(seq, None)

    def _pause(self, error: str, now: int) -> None:
        if not self.last_error:
            self._owner.advise.letters_fail(len(self._owner.state.letters), error)
        self.last_error = error
        pause = min(MIN_PAUSE_NS << min(self._failures, 6), MAX_PAUSE_NS)
        self._failures += 1
        self._not_before = now + pause

    # -- sending ------------------------------------------------------------------------------------------------------

    def _send_some(self, now: int) -> None:
        """Send as many as may be under way; one alone while they fail."""
        for _ in range(MAX_IN_FLIGHT):
            if now < self._not_before or self._search is not None or not (seq := self._next()):
                return
            doubt = self._doubts.get(seq)
            if doubt is not None and now - doubt.first >= self._window // 2:
                self._begin_search(now)
                return
            self._queue.popleft()
            self._send(seq, self._owner.state.letters.by_seq[seq], now)
        self._owner.run_soon()

    def _next(self) -> int:
        """Return the next letter that may be under way, 0 for none."""
        most = 1 if self._failures else MAX_IN_FLIGHT
        if len(self._in_flight) >= most or self._size >= MAX_BYTES_IN_FLIGHT:
            return 0
        letters = self._owner.state.letters
        while self._queue and self._queue[0] not in letters:
            self._doubts.pop(self._queue.popleft(), None)
        return self._queue[0] if self._queue else 0

    def _send(self, seq: int, letter: Letter, now: int) -> None:
        owner, wish = self._owner, self._owner.state.rules.letters
        if wish is None:  # an update takes it away, and the letters with it
            return
        columns = owner.selection.read([seq])
        subject, block, payload = (
            (columns.subjects[0], columns.headers[0], columns.payloads[0]) if columns.seqs else (b"", b"", b"")
        )
        name = owner.state.name
        target = wish.subject_of(self._stream, name, subject.decode("utf-8", "surrogateescape"))
        if _hops(block) > MAX_HOPS:
            self._refuse(seq, f"a message was a dead letter {MAX_HOPS} times")
            return
        if not is_publishable(target):
            self._refuse(seq, f"nothing may be published to {target[:100]!r}")
            return
        lines = self._headers(seq, letter, subject, block)
        reply = self._next_reply()
        size = len(lines) + len(payload)
        self._in_flight[reply] = _Try(seq, size, now + ANSWER_NS)
        self._size += size
        taken = owner.bus.publish(target.encode("utf-8", "surrogateescape"), payload, reply, lines)
        if not taken and self._in_flight.pop(reply, None) is not None:
            self._size -= size
            self._failed(seq, "no stream takes their subject", now)

    def _next_reply(self) -> bytes:
        if self._subscription is None:
            self._inbox = b"_INBOX.JSDL." + self._owner.rng.token(12).hex().encode() + b"."
            self._subscription = self._owner.bus.subscribe(self._inbox + b"*", self._receive)
        self._number += 1
        return self._inbox + b"%d" % self._number

    def id_of(self, seq: int) -> bytes:
        """Return the message id of a letter, the same for each owner and time."""
        state = self._owner.state
        return f"dl:{self._stream}:{state.name}:{state.created}:{seq}".encode()

    def _headers(self, seq: int, letter: Letter, subject: bytes, block: bytes) -> bytes:
        pairs = [(b"Nats-Msg-Id", self.id_of(seq))]
        for key, value in header_block.parse(block):
            if key.lower() == b"nats-msg-id":
                pairs.append((_PREFIX + b"Msg-Id", value))
            elif not key.lower().startswith(_DROPPED):
                pairs.append((key, value))
        pairs += [
            (_PREFIX + b"Stream", self._stream.encode()),
            (_PREFIX + b"Consumer", self._owner.state.name.encode()),
            (_PREFIX + b"Sequence", b"%d" % seq),
            (_PREFIX + b"Time", rfc3339(letter.time).encode()),
            (_PREFIX + b"Reason", _REASONS.get(letter.reason, b"max_deliver")),
            (_PREFIX + b"Deliveries", b"%d" % letter.deliveries),
            (_HOPS, b"%d" % _hops(block)),
        ]
        if letter.text:
            text = letter.text.decode("utf-8", "replace")
            pairs.append((_PREFIX + b"Term-Reason", " ".join(text.split()).encode()))
        pairs.append((_PREFIX + b"Subject", subject) if subject else (_PREFIX + b"Removed", b"true"))
        return header_block.build(pairs)

    # -- letters that may be stored already ---------------------------------------------------------------------------

    def _begin_search(self, now: int) -> None:
        owner, wish = self._owner, self._owner.state.rules.letters
        if wish is None:
            return
        oldest = min(doubt.first for doubt in self._doubts.values())
        pattern = wish.filter_of(self._stream, owner.state.name)
        wanted = {self.id_of(seq) for seq in self._doubts}
        self._search = LetterSearch(owner.bus, self._next_reply, pattern, oldest, wanted)
        self._search_began = now
        self._search_until = now + ANSWER_NS
        try:
            self._search.begin()
        except SearchError as error:
            self._search = None
            self._pause(str(error), now)

    def _searched(self, headers: bytes, payload: bytes, now: int) -> None:
        assert self._search is not None
        self._search_until = now + ANSWER_NS
        try:
            result = self._search.receive(headers, payload)
        except SearchError as error:
            self._search = None
            self._pause(str(error), now)
            return
        if result is None:
            return
        found, self._window = result
        began, self._search = self._search_began, None
        waiting = set(self._queue)
        stored = {seq for seq in self._doubts if seq in waiting and self.id_of(seq) in found}
        for seq in stored:
            self._succeeded(seq)
        self._queue = deque(seq for seq in islice(self._queue, MAX_LETTERS) if seq not in stored)
        if stored:
            self._owner.run_soon()
        # A try of a moment ago may still be on its way: it is found by its id.
        self._doubts = {
            seq: _Doubt(max(began, doubt.first), doubt.last)
            for seq, doubt in self._doubts.items()
            if began - doubt.last < ANSWER_NS
        }
        if self._queue and self._queue[0] in self._doubts and self._window < 2 * ANSWER_NS:
            self._not_before = now + MIN_PAUSE_NS


def _hops(block: bytes) -> int:
    """Return how often a message with these headers is a dead letter, with the next one."""
    told = header_block.get(block, _HOPS) or b""
    return int(told) + 1 if told.isdigit() and len(told) < 4 else 1


def _error_of(headers: bytes, payload: bytes) -> str:
    """Return the reason why an answer is no PubAck, "" for one."""
    if headers and header_block.status(headers)[0]:
        return "no stream takes their subject"
    try:
        answer = json.loads(payload)
        if answer.get("error"):
            return str(answer["error"].get("description") or "refused")
        if answer["stream"] and int(answer["seq"]) > 0:
            return ""
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        pass
    return "the answer is no PubAck"
