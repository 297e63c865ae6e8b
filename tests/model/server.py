"""The model: `ask` is one request, `pass_time` is time that passes."""

from __future__ import annotations

import copy
import math

from tests.model import publishing, reading
from tests.model.answers import ANY, MAYBE, Answer
from tests.model.api import PREFIX
from tests.model.consumer import Consumer
from tests.model.consumer_api import ConsumerApi
from tests.model.errors import Refused
from tests.model.rules import OURS, Rules
from tests.model.stream import Headers, Stream
from tests.model.subjects import matches

API = "$JS.API."
DIRECT = "$JS.API.DIRECT.GET."
CONSUMER = "$JS.API.CONSUMER."
NEXT = "$JS.API.CONSUMER.MSG.NEXT."
ACK = "$JS.ACK."
NEXT_TOO = b"+NXT"
NO_RESPONDERS = [Answer("503", ANY, b"")]


class Server:
    def __init__(self, rules: Rules = OURS) -> None:
        self.rules = rules
        self.streams: dict[str, Stream] = {}
        self.pushed: list[Answer] = []
        """Messages for subscribers that nobody took yet: deliveries of push consumers, republished messages,
        advisories."""
        self.listened: list[str] = []
        """Subjects of advisories that somebody subscribes to."""

    def branch(self) -> Server:
        return copy.deepcopy(self)

    def pass_time(self, now: float) -> None:
        """Raises reading.Unknown."""
        while (due := self._next_push()) <= now:
            self._pass_time(due)
        self._pass_time(now)

    def _next_push(self) -> float:
        """When the first message is pushed again."""
        pushed = (one for one in self._consumers() if one.target)
        return min((one.due for consumer in pushed for one in consumer.pending.values()), default=math.inf)

    def _pass_time(self, now: float) -> None:
        for stream in self.streams.values():
            stream.pass_time(now)
        self._push(now)

    def _push(self, now: float) -> None:
        for stream in self.streams.values():
            self.pushed += stream.republished
            stream.republished = []
            for consumer in stream.consumers.values():
                self.pushed += consumer.push(now)
                told, consumer.told = consumer.told, []
                self.pushed += [one for one in told if any(matches(each, one.subject) for each in self.listened)]

    def awaited(self, now: float) -> float:
        """The time at which what a pull request waited for fell due; `now` where none did."""
        return next((consumer.awaited[1] for consumer in self._consumers() if consumer.awaited), now)

    def came(self, now: float) -> float:
        """Seconds by which a message was late that a pull request waited for, and that is there now."""
        return next((consumer.came(now) for consumer in self._consumers() if consumer.awaited), 0.0)

    def _consumers(self) -> list[Consumer]:
        return [consumer for stream in self.streams.values() for consumer in stream.consumers.values()]

    def deadlines(self) -> list[float]:
        return [moment for stream in self.streams.values() for moment in stream.deadlines()]

    def ask(self, subject: str, headers: Headers, body: bytes, now: float) -> list[Answer]:
        """Raises reading.Unknown."""
        self.pass_time(now)
        answers = self._answers(subject, headers, body, now)
        self._push(now)
        return answers

    def _answers(self, subject: str, headers: Headers, body: bytes, now: float) -> list[Answer]:
        if subject.startswith(DIRECT):
            return self._direct(subject.removeprefix(DIRECT), body)
        if subject.startswith(NEXT):
            return self._pull(subject.removeprefix(NEXT), body, now)
        if subject.startswith(ACK):
            return self._ack(subject.removeprefix(ACK).split("."), body, now)
        if subject.startswith(API):
            return self._api(subject.removeprefix(API), body, now)
        return self._publish(subject, headers, body, now)

    def _direct(self, rest: str, body: bytes) -> list[Answer]:
        name, dot, subject = rest.partition(".")
        stream = self.streams.get(name)
        if stream is None or not stream.config["allow_direct"]:
            return NO_RESPONDERS
        if dot:
            return reading.last_of_subject(stream, subject, body)
        return reading.direct(stream, body, self.rules)

    def _api(self, rest: str, body: bytes, now: float) -> list[Answer]:
        parts = rest.split(".")
        streams = ConsumerApi(self.streams, self.rules, now)
        for words in (3, 2):
            handler = getattr(streams, "_".join(parts[:words]), None)
            if handler is not None:
                kind = "_".join(parts[:words]).lower().replace("durable_", "")
                if kind == "consumer_reset" and not self.rules.reset_says_no and not self._known(*parts[2:4]):
                    return []
                try:
                    answer = handler(*parts[words:], body)
                except Refused as error:
                    answer = {"error": error.error}
                return [Answer(data={"type": f"{PREFIX}{kind}_response", **answer})]
        raise NotImplementedError(rest)

    def _known(self, stream: str, consumer: str) -> bool:
        return stream in self.streams and consumer in self.streams[stream].consumers

    def _pull(self, rest: str, body: bytes, now: float) -> list[Answer]:
        stream, _, name = rest.partition(".")
        known = self.streams[stream].consumers if stream in self.streams else {}
        return known[name].pull(body, now) if name in known else NO_RESPONDERS

    def _ack(self, parts: list[str], body: bytes, now: float) -> list[Answer]:
        stream, name, _, seq, number, *_ = parts
        known = self.streams[stream].consumers if stream in self.streams else {}
        if name not in known or known[name].acks == "none":
            return NO_RESPONDERS
        if int(seq) >= known[name].next_seq:
            raise reading.Unknown  # of a consumer that was made anew: some words are answered, others are not
        if body.startswith(NEXT_TOO):
            known[name].ack(int(seq), int(number), b"+ACK", now)
            return known[name].follow(body.removeprefix(NEXT_TOO), now)
        known[name].ack(int(seq), int(number), body, now)
        return [Answer()]

    def _publish(self, subject: str, headers: Headers, body: bytes, now: float) -> list[Answer]:
        for stream in self.streams.values():
            if not any(matches(one, subject) for one in stream.config["subjects"]):
                continue
            sent = publishing.arrived(stream, subject, headers, body, now)
            try:
                if sent.header("Nats-Batch-Id"):
                    ack = publishing.batch(stream, sent)
                    if ack is None:
                        return [Answer()]
                else:
                    ack = publishing.publish(stream, sent, self.rules)
            except Refused as error:
                ack = {"error": error.error, "stream": stream.name, "seq": 0}
            return [Answer(data={**ack, "domain": MAYBE})]
        return NO_RESPONDERS
