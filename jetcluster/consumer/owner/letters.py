"""`LetterPublisher`: sends the dead letters of one consumer, each exactly once (docs/consumers.md, "Dead letters").

The log has which messages were given up. Each is published with a message id of its own, until a stream confirms it;
then BURIED is put into the log. Within half of the target's duplicate window a letter that may be stored is sent again,
since the target knows its id; later it is looked for first (`letter_search`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from itertools import islice
from typing import Final

from jetcluster.consumer.owner.context import DeliveryContext
from jetcluster.consumer.owner.letter_queue import MAX_IN_FLIGHT, MIN_PAUSE_NS, LetterQueue
from jetcluster.consumer.owner.letter_search import LetterSearch, SearchError, SearchMemory
from jetcluster.consumer.state.letters import TERMINATED, Letter
from jetcluster.consumer.state.turn import BURIED
from jetcluster.model.dead_letters import is_publishable
from jetcluster.model.times import SECOND, rfc3339
from jetcluster.ordered import OrderedSet
from jetcluster.protocol import headers as header_block
from jetcluster.protocol.bus import Origin, Subscription
from jetcluster.records import NamedTuple

MAX_BYTES_IN_FLIGHT: Final = 8 << 20
"""Letters under way; one may be larger alone."""
ANSWER_NS: Final = 5 * SECOND
"""Time after which a letter or question without an answer counts as failed."""
WINDOW_KNOWN_NS: Final = 60 * SECOND
"""An update of the target may change its duplicate window: it is asked for again."""
LEVEL_PAUSE_NS: Final = SECOND
"""Time after which it looks again whether all replicas understand the ops of letters."""
REFUSED_AGAIN_NS: Final = 30 * SECOND
REFUSED_AT_ONCE: Final = 1024
"""Letters that cannot be sent as they are: so many are looked at again after that time. They go out without their
message once that is removed."""
TELL_AGAIN_NS: Final = 60 * SECOND
"""Time between two advisories that letters begin to fail."""
MAX_ERROR_BYTES: Final = 200
"""A target's error is shown up to here."""
NOT_IN_FORCE: Final = "dead_letter of the configuration is not valid in this version"
MAX_ANSWERS: Final = 4 * MAX_IN_FLIGHT
"""Answers taken in one turn; what is beyond counts as lost."""

_PREFIX: Final = b"Nats-Dead-Letter-"
_DROPPED: Final = (
    b"nats-expected-", b"nats-ttl", b"nats-rollup", b"nats-schedule", b"nats-batch", b"nats-incr", b"nats-dead-letter-",
)  # fmt: skip
"""Beginnings of headers that steer a publish, or are of an earlier letter."""
_BREAKS: Final = re.compile(rb"[\r\n]+")
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

    __slots__ = ("_answers", "_confirming", "_doubts", "_in_flight", "_inbox", "_look_at", "_look_first", "_memory",
                 "_number", "_owner", "_queue", "_refused", "_search", "_search_began", "_search_until", "_size",
                 "_stored", "_stream", "_subscription", "_target", "_tell_after", "_window", "_window_until",
                 "last_error")  # fmt: skip

    def __init__(self, owner: DeliveryContext, stream: str) -> None:
        self._owner = owner
        self._stream = stream
        self._inbox = b""
        self._subscription: Subscription | None = None
        self._number = 0
        self._window = 0
        """Duplicate window of the target in nanoseconds; 0: not known."""
        self._window_until = 0
        """It may be another one later."""
        self._memory = SearchMemory()
        self._answers: list[tuple[bytes, bytes, bytes]] = []
        """(reply subject, header block, payload) since the last run."""
        self.last_error = ""
        """The last failure, "" after a success."""
        self._tell_after = 0
        self._target = self._subject()
        self._forget()

    def _forget(self) -> None:
        self._queue = LetterQueue()
        self._doubts: dict[int, _Doubt] = {}
        self._in_flight: dict[bytes, _Try] = {}
        self._size = 0
        self._refused: dict[int, str] = {}
        """Why letters wait that are not tried again; the next ones to look at first."""
        self._look_at = 0
        self._stored: list[int] = []
        """Confirmed ones that are not on their way into the log yet."""
        self._confirming: OrderedSet[int] = OrderedSet()
        """Confirmed ones whose BURIED is under way."""
        self._look_first = False
        """Nobody answered again and again: it looks for the letters before it sends more. The target may store them
        and not say so."""
        self._search: LetterSearch | None = None
        self._search_began = self._search_until = 0

    def reset(self, *, again: bool = False) -> None:
        """Continue from the replicated state. `again`: this owner only lost ops, so its tries are all there were.
        Otherwise whoever owned the consumer may have sent each letter until now."""
        if again:
            self._resume()
            return
        self._forget()
        self._answers.clear()
        self._take_up(self._owner.state.letters.by_seq)
        if self._queue:
            self._owner.run_soon()

    def configured(self) -> None:
        """Follow new `state.rules`: all that is not confirmed goes to the new target. The old one may have some of it:
        what is under way now."""
        if self._subject() == self._target:
            return
        self._take_answers(self._owner.clock.time_ns())
        self._target = self._subject()
        confirmed = OrderedSet([*self._confirming, *self._stored])
        self._window = self._window_until = 0
        self.last_error = ""
        self.reset()
        letters = self._owner.state.letters.by_seq
        self._confirming.update(dict.fromkeys(seq for seq in confirmed if seq in letters))
        self._queue = LetterQueue(seq for seq in letters if seq not in confirmed)
        for seq in confirmed:
            self._doubts.pop(seq, None)

    def _subject(self) -> str:
        wish = self._owner.state.rules.letters
        return "" if wish is None else wish.subject

    def _resume(self) -> None:
        """Confirm again what was confirmed, and send letters besides whose BURY was applied without notice."""
        letters = self._owner.state.letters.by_seq
        self._stored += [seq for seq in self._confirming if seq in letters]
        self._confirming.clear()
        known = {*self._queue, *self._stored, *self._refused, *[tried.seq for tried in self._in_flight.values()]}
        self._take_up([seq for seq in letters if seq not in known])
        if letters:
            self._owner.run_soon()

    def _take_up(self, seqs: Iterable[int]) -> None:
        """Send letters that may have been sent at any time until now."""
        now = self._owner.clock.time_ns()
        for seq in seqs:
            self._queue.extend([seq])
            self._doubts[seq] = _Doubt(self._owner.state.letters.by_seq[seq].time, now)

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

    @property
    def trouble(self) -> str:
        """For people, the reason why letters wait: a search, or the end of the last failure; "" for nothing."""
        return self.last_error if self._search is None else self._search.at

    def logged(self, seqs: Iterable[int]) -> None:
        """Note that the log has BURIED for `seqs`."""
        for seq in seqs:
            self._confirming.discard(seq)

    # -- answers ------------------------------------------------------------------------------------------------------

    def _receive(self, subject: bytes, reply: bytes, headers: bytes, payload: bytes, origin: Origin) -> None:
        if len(self._answers) < MAX_ANSWERS:
            self._answers.append((subject, headers, payload))
            self._owner.run_soon()

    def run(self, now: int) -> None:
        """Take answers, and send what may be sent. Raises DamagedError."""
        if not self._owner.state.letters and not self._answers:
            return
        self._take_answers(now)
        if self._owner.state.rules.letters is None:
            self.last_error = NOT_IN_FORCE if self._owner.state.letters else ""
            return
        self._expire(now)
        if not self._owner.buries:  # an older server came: its replica would stop at BURIED, so nothing is sent either
            self._owner.wake_at(now + LEVEL_PAUSE_NS)
        else:
            if self._stored:
                stored, self._stored = self._stored, []
                self._confirming.update(dict.fromkeys(stored))
                self._owner.submit(BURIED, stored)
            if self._refused and not now < self._look_at <= now + REFUSED_AGAIN_NS:  # or the clock was set back
                self._look_again(now)
            self._send_some(now)
        self._rearm(now)

    def _take_answers(self, now: int) -> None:
        answers, self._answers = self._answers, []
        for subject, headers, payload in answers:
            self._answered(subject, headers, payload, now)

    def _rearm(self, now: int) -> None:
        """Request the next tick: the owner forgets later ones with each."""
        times = [tried.until for tried in self._in_flight.values()]
        if self._search is not None:
            times.append(self._search_until)
        if at := self._queue.wake_at(now):
            times.append(at)
        if self._refused:
            times.append(self._look_at)
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
            self._queue.refused(tried.seq, now)
            self._tell(error, now)
        else:
            self._succeeded(tried.seq)
            wish = self._owner.state.rules.letters
            if wish is not None:
                self._memory.confirmed(wish.filter_of(self._stream, self._owner.state.name), payload)

    def _expire(self, now: int) -> None:
        for subject, tried in [one for one in self._in_flight.items() if not now < one[1].until <= now + 2 * ANSWER_NS]:
            del self._in_flight[subject]
            self._size -= tried.size
            known = self._doubts.get(tried.seq)
            at = tried.until - ANSWER_NS
            self._doubts[tried.seq] = _Doubt(at if known is None else known.first, at)
            self._queue.unanswered(tried.seq, now)
            self._tell("no stream answers", now)
            self._look_first = self._queue.silences > 1
        if self._search is not None and self._search_until <= now:
            self._search_failed("search for letters: no answer", now)

    def _succeeded(self, seq: int) -> None:
        self._queue.succeeded(seq)
        if not self._queue.fails:
            self.last_error = next(reversed(self._refused.values()), "")
        self._doubts.pop(seq, None)
        self._stored.append(seq)

    def _refuse(self, seq: int, error: str) -> None:
        """Leave a letter where it waits, since another try would not help; the others go on."""
        if not self.last_error:
            self._owner.advise.letters_fail(len(self._owner.state.letters), error)
        if not self._refused:
            self._look_at = self._owner.clock.time_ns() + REFUSED_AGAIN_NS
        self._refused[seq] = self.last_error = error
        self._doubts.pop(seq, None)

    def _look_again(self, now: int) -> None:
        """Take up refused letters whose message is removed by now: what was wrong with it is not in the letter then."""
        self._look_at = now + REFUSED_AGAIN_NS
        letters = self._owner.state.letters
        for seq, error in list(islice(self._refused.items(), REFUSED_AT_ONCE)):
            del self._refused[seq]
            if seq in letters and self._owner.stored(seq):
                self._refused[seq] = error
            elif seq in letters:
                self._take_up([seq])
        if not self._refused and not self._queue.fails:
            self.last_error = ""

    def _tell(self, error: str, now: int) -> None:
        error = error.encode("utf-8", "replace")[:MAX_ERROR_BYTES].decode("utf-8", "ignore")
        if not self.last_error and now >= self._tell_after:
            self._tell_after = now + TELL_AGAIN_NS
            self._owner.advise.letters_fail(len(self._owner.state.letters), error)
        self.last_error = error

    # -- sending ------------------------------------------------------------------------------------------------------

    def _send_some(self, now: int) -> None:
        """Send as many as may be under way."""
        for _ in range(MAX_IN_FLIGHT):
            if self._search is not None or not (seq := self._next(now)):
                return
            doubt = self._doubts.get(seq)
            if self._look_first and self._doubts:
                self._begin_search(now)
                return
            if doubt is not None and (now >= self._window_until or now - doubt.first >= self._window // 2):
                self._begin_search(now)
                return
            self._queue.take(seq)
            self._send(seq, self._owner.state.letters.by_seq[seq], now)
        self._owner.run_soon()

    def _next(self, now: int) -> int:
        """Return the next letter that may be under way, 0 for none."""
        if self._size >= MAX_BYTES_IN_FLIGHT:
            return 0
        return self._queue.next(now, len(self._in_flight), self._owner.state.letters.by_seq)

    def _send(self, seq: int, letter: Letter, now: int) -> None:
        owner, wish = self._owner, self._owner.state.rules.letters
        assert wish is not None
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
            self._queue.refused(seq, now)
            self._tell("no stream takes their subject", now)

    def _next_reply(self) -> bytes:
        if self._subscription is None:
            self._inbox = b"_INBOX.JSDL." + self._owner.rng.token(12).hex().encode() + b"."
            self._subscription = self._owner.bus.subscribe(self._inbox + b"*", self._receive)
        self._number += 1
        return self._inbox + b"%d" % self._number

    def id_of(self, seq: int) -> bytes:
        """Return the message id of the letter that waits for `seq`, the same for each owner and try. After a reset of
        the consumer the same message may be given up once more: that is another letter."""
        state = self._owner.state
        return f"dl:{self._stream}:{state.name}:{state.created}:{seq}:{state.letters.by_seq[seq].time}".encode()

    def _headers(self, seq: int, letter: Letter, subject: bytes, block: bytes) -> bytes:
        pairs = [
            (b"Nats-Msg-Id", self.id_of(seq)),
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
        return header_block.build(pairs + _copied(block))

    # -- letters that may be stored already ---------------------------------------------------------------------------

    def _begin_search(self, now: int) -> None:
        owner, wish = self._owner, self._owner.state.rules.letters
        assert wish is not None
        self._look_first = False
        letters = owner.state.letters
        self._doubts = {seq: doubt for seq, doubt in self._doubts.items() if seq in letters}
        if not self._doubts:
            owner.run_soon()
            return
        oldest = min(doubt.first for doubt in self._doubts.values())
        pattern = wish.filter_of(self._stream, owner.state.name)
        wanted = {self.id_of(seq) for seq in self._doubts}
        self._search = LetterSearch(owner.bus, self._next_reply, self._memory, pattern, oldest, wanted)
        self._search_began = now
        self._search_until = now + ANSWER_NS
        try:
            self._search.begin()
        except SearchError as error:
            self._search_failed(str(error), now)

    def _search_failed(self, error: str, now: int) -> None:
        """Letters without a doubt need no search: they go first."""
        self._search = None
        self._queue.put_last(self._doubts.__contains__)
        self._queue.pause(now)
        self._tell(error, now)

    def _searched(self, headers: bytes, payload: bytes, now: int) -> None:
        assert self._search is not None
        self._search_until = now + ANSWER_NS
        try:
            result = self._search.receive(headers, payload)
        except SearchError as error:
            self._search_failed(str(error), now)
            return
        if result is None:
            return
        found, self._window = result
        self._window_until = now + WINDOW_KNOWN_NS
        began, self._search = self._search_began, None
        waiting = self._owner.state.letters.by_seq.keys() & set(self._queue)
        stored = {seq for seq in self._doubts if seq in waiting and self.id_of(seq) in found}
        for seq in stored:
            self._succeeded(seq)
        self._queue.remove(stored)
        if stored:
            self._owner.run_soon()
        # A try of a moment ago may still be on its way: it is found by its id.
        self._doubts = {
            seq: _Doubt(max(began, doubt.first), doubt.last)
            for seq, doubt in self._doubts.items()
            if began - doubt.last < ANSWER_NS
        }
        if self._queue.first in self._doubts and self._window < 2 * ANSWER_NS:
            self._queue.pause(now, now + MIN_PAUSE_NS)


def _copied(block: bytes) -> list[tuple[bytes, bytes]]:
    """Return the headers that a letter has from its message. A bare CR or LF would begin a header for some readers,
    and a publisher could imitate the letter's own."""
    pairs: list[tuple[bytes, bytes]] = []
    for key, value in header_block.parse(block):
        name = key.strip().lower()
        if name == b"nats-msg-id":
            key = _PREFIX + b"Msg-Id"
        if name and not name.startswith(_DROPPED) and not _BREAKS.search(key):
            pairs.append((key, _BREAKS.sub(b" ", value)))
    return pairs


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
