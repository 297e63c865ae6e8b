"""Histories of acks and their times: when a message comes again, how often, and what holds it back."""

from __future__ import annotations

from tests.model.directed import Directed
from tests.model.history import SECOND, Step

LONG = 8 * SECOND
WORDS = 70
"""More than the times that a consumer remembers before it looks which of them still count."""
ADVISORIES = "$JS.EVENT.ADVISORY.CONSUMER"


class AckWriter(Directed):
    PARTS = ("ack_wait", "watched", "delay", "backoff", "max_deliver", "term", "pending", "all", "next")
    SLOW = frozenset({"ack_wait", "watched", "delay", "backoff", "max_deliver", "term"})

    def begin(self) -> list[Step]:
        return [self.created(), *(self.put(str(number)) for number in range(1, 7))]

    def _only(self, number: int) -> str:
        """Subject of the message with this sequence."""
        return self.subject(str(number))

    def _listen(self, name: str, consumer: str) -> Step:
        return Step(listen=f"{ADVISORIES}.{name}.{self.stream}.{consumer}")

    def _ack_wait(self) -> list[Step]:
        """The clock of the wait begins anew with +WPI."""
        wait = self.rng.choice([2, 4])
        return [
            self.consumer("wait", ack_wait=wait * SECOND, filter_subject=self._only(2)),
            self.pull("wait", 1, LONG), self.pull("wait", 1, LONG), Step(wait=wait / 2),
            self.ack("wait", b"+WPI"), self.pull("wait", 1, LONG), self.info("wait"),
            self.ack("wait"), self.pull("wait", 1, wait * SECOND + SECOND), self.info("wait"), self.delete("wait"),
        ]  # fmt: skip

    def _watched(self) -> list[Step]:
        """Word of one message, again and again, makes nobody forget the other one that came with it."""
        return [
            self.consumer("watched", ack_wait=LONG), self.pull("watched", 3), self.ack("watched", turn=2),
            *(self.ack("watched", b"+WPI") for _ in range(WORDS)),
            self.pull("watched", 3), self.pull("watched", 1, LONG + SECOND), self.info("watched"),
            self.delete("watched"),
        ]  # fmt: skip

    def _delay(self) -> list[Step]:
        late = self.rng.choice([b'-NAK {"delay": 3000000000}', b"-NAK 3s"])
        return [
            self._listen("MSG_NAKED", "delay"),
            self.consumer("delay", ack_wait=30 * SECOND, filter_subject=self._only(3)),
            self.pull("delay"), self.ack("delay", b"-NAK"), self.pull("delay"), self.ack("delay", late),
            self.pull("delay", 1, SECOND), self.pull("delay", 1, LONG), self.info("delay"), self.delete("delay"),
        ]  # fmt: skip

    def _backoff(self) -> list[Step]:
        times = [SECOND, 3 * SECOND]
        return [
            self.consumer("backoff", backoff=times, max_deliver=3, filter_subject=self._only(4)),
            self.pull("backoff"), self.pull("backoff", 1, LONG), self.pull("backoff", 1, LONG), self.info("backoff"),
            self.pull("backoff", 1, 5 * SECOND), self.info("backoff"), self.delete("backoff"),
        ]  # fmt: skip

    def _max_deliver(self) -> list[Step]:
        return [
            self._listen("MAX_DELIVERIES", "last"),
            self.consumer("last", ack_wait=SECOND, max_deliver=2, filter_subject=self._only(5)),
            self.pull("last"), self.pull("last", 1, LONG), self.pull("last", 1, 4 * SECOND), self.info("last"),
            self.delete("last"),
        ]  # fmt: skip

    def _term(self) -> list[Step]:
        return [
            self._listen("MSG_TERMINATED", "term"),
            self.consumer("term", ack_wait=SECOND, filter_subject=self._only(6)), self.pull("term"),
            self.ack("term", self.rng.choice([b"+TERM because", b"+TERM"])), self.pull("term", 1, 3 * SECOND),
            self.info("term"), self.delete("term"),
        ]  # fmt: skip

    def _pending(self) -> list[Step]:
        return [
            self.consumer("few", ack_wait=30 * SECOND, max_ack_pending=2), self.pull("few", 5), self.info("few"),
            self.ack("few", turn=1), self.pull("few", 5), self.info("few"),
            self.ack("few", self.rng.choice([b"+TERM", b"-NAK"])), self.pull("few", 5), self.info("few"),
            self.delete("few"),
        ]  # fmt: skip

    def _all(self) -> list[Step]:
        return [
            self.consumer("all", ack_policy="all", ack_wait=30 * SECOND), self.pull("all", 5),
            self.ack("all", turn=self.rng.randint(1, 3)), self.info("all"), self.ack("all", turn=4), self.info("all"),
            self.ack("all"), self.info("all"), self.pull("all", 5), self.delete("all"),
        ]  # fmt: skip

    def _next(self) -> list[Step]:
        """+NXT acknowledges and asks for the next one, or for more."""
        more = self.rng.choice([b"+NXT 2", b'+NXT {"batch": 2}', b"+NXT 1"])
        return [
            self.consumer("next", ack_wait=30 * SECOND), self.pull("next"), self.ack("next", b"+NXT"),
            self.info("next"), self.ack("next", more), self.info("next"), self.ack("next", turn=1),
            self.ack("next", b"+NXT"), self.info("next"), self.delete("next"),
        ]  # fmt: skip
