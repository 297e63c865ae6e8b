"""`OriginQuestions`: asks a mirror's origin for its last sequence. It had what it answers after it was asked, so
whoever asked knows how old a copy is that has it, by its own clock alone: a heartbeat may have been under way for long.
"""

from __future__ import annotations

import json
from math import inf
from typing import Final

from jetcluster.clock import TimerHandle
from jetcluster.mirror.ports import LastSequence, LinkDependencies, Told
from jetcluster.mirror.upstream import Upstream
from jetcluster.model.limits import FARTHEST_SEQ
from jetcluster.protocol.bus import Origin, Subscription
from jetcluster.stream.rules import LIMITS, short_hash

ANSWER_SECONDS: Final = 2.0
RARE_SECONDS: Final = 10.0
"""Between two questions to an origin that has not answered any."""
MOST_SECONDS: Final = 640.0
"""Longest pause before it is asked again what it keeps."""
MAX_WAITING: Final = 8192
PROVING: Final = b"NATS/1.0\r\nNats-Read-Consistency: linearizable\r\n\r\n"
"""Headers of a question. A nats-server takes no notice of them: what it says is the word of a server that leads, or has
led until a moment ago."""


class OriginQuestions:
    """The questions of one link, one at a time: those that come meanwhile share the next, as its answer must be newer
    than they are."""

    def __init__(self, around: LinkDependencies, upstream: Upstream) -> None:
        self.answers = False
        """It has answered STREAM.INFO before. One that may not permit it is asked rarely, as each refusal is logged."""
        self._keeps = False
        self._look_at, self._pause = -inf, RARE_SECONDS
        self._sent_at = -inf
        self._around = around
        self._upstream = upstream
        self._waiting: list[Told] = []
        self._asked: list[Told] = []
        self._subscription: Subscription | None = None
        self._timer: TimerHandle | None = None

    def ask(self, told: Told) -> None:
        rarely = not self.answers and self._around.clock.monotonic() - self._sent_at < RARE_SECONDS
        if rarely or len(self._waiting) >= MAX_WAITING:
            told(None)
            return
        self._waiting.append(told)
        if not self._asked:
            self._send()

    def keeps_unacked(self) -> bool:
        """True when it has said that it keeps what is not acknowledged. One that has not answered yet is asked, ever
        more rarely: a consumer that was made meanwhile acknowledges nothing."""
        now = self._around.clock.monotonic()
        if not self.answers and now >= self._look_at:
            self._look_at, self._pause = now + self._pause, min(2 * self._pause, MOST_SECONDS)
            self.ask(lambda _: None)
        return self._keeps

    def end(self) -> None:
        """Tells all who wait that nothing is known."""
        waiting, self._waiting = self._waiting, []
        self._settle(None)
        for told in waiting:
            told(None)

    def _send(self) -> None:
        around = self._around
        self._sent_at = around.clock.monotonic()
        self._asked, self._waiting = self._waiting, []
        inbox = b"_INBOX.JSO." + around.rng.token(12).hex().encode()
        self._subscription = around.bus.subscribe(inbox, self._receive)
        taken = around.bus.ask(self._upstream.info_subject(), b"", inbox, PROVING)
        self._timer = around.timers.call_later(ANSWER_SECONDS if taken else 0.0, self._settle, None)

    def _receive(self, subject: bytes, reply: bytes, headers: bytes, payload: bytes, origin: Origin) -> None:
        try:
            self._settle(self._parse(payload))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            self._settle(None)

    def _parse(self, payload: bytes) -> LastSequence | None:
        info = json.loads(payload)
        if info.get("error"):
            return None
        self.answers = True
        self._keeps = (info.get("config") or {}).get("retention", LIMITS) != LIMITS
        cursor = self._around.target.cursor(self._upstream.key)
        if cursor is None or cursor.identity not in (b"", short_hash(str(info["created"]).encode())):
            return None  # another stream of this name
        state, proof = info["state"], info.get("freshness") or {}
        last = state["last_seq"]
        proven = proof.get("applied_seq") == last
        seq = proof["last_message"] if proven else last if state["messages"] else 0
        if any(type(number) is not int or not 0 <= number <= FARTHEST_SEQ for number in (last, seq)):
            return None
        return LastSequence(seq, proven)

    def _settle(self, found: LastSequence | None) -> None:
        if self._subscription is not None:
            self._around.bus.unsubscribe(self._subscription)
            self._subscription = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        asked, self._asked = self._asked, []
        for told in asked:
            told(found)
        if self._waiting and not self._asked:
            self._send()
