"""Histories of consumers of a stream that stands still: where they begin, what their filters match, what they count."""

from __future__ import annotations

from typing import Any

from tests.model.directed import Directed
from tests.model.history import SECOND, Moment, Step

MESSAGES = 24
DELETED = 3
SUBJECTS = ("a", "b", "a.x", "b.x", "c.x.y")
FILTERS: tuple[tuple[str, ...], ...] = (
    (), (), ("a",), ("*",), ("*.x",), ("b.>",), ("a", "c.>"), ("a", "b", "*.x"), ("none",)
)  # fmt: skip
POLICIES = ("all", "all", "last", "new", "last_per_subject", "by_start_sequence", "by_start_time")


class DeliverWriter(Directed):
    PARTS = ("consumer", "consumer", "consumer", "consumer", "replay", "lists")

    def begin(self) -> list[Step]:
        self.known: list[str] = []
        self.total = 0
        found = [self.created()]
        for number in range(MESSAGES):
            headers = {"Nats_Msg_Id": f"{number}"} if self._maybe(0.5) else {}
            found.append(self.put(self.rng.choice(SUBJECTS), **headers))
        for seq in self.rng.sample(range(1, MESSAGES + 1), DELETED):
            found.append(self.api(f"STREAM.MSG.DELETE.{self.stream}", {"seq": seq}))
        return found

    def _config(self, name: str) -> dict[str, Any]:
        policy = self.rng.choice(POLICIES)
        config: dict[str, Any] = {"deliver_policy": policy, "ack_wait": 600 * SECOND}
        if filters := self.rng.choice(FILTERS):
            config["filter_subjects"] = [self.subject(one) for one in filters]
        elif policy == "last_per_subject":
            config["filter_subjects"] = [self.subject(">")]
        if policy == "by_start_sequence":
            config["opt_start_seq"] = self.rng.randint(1, MESSAGES)
        if policy == "by_start_time":
            config["opt_start_time"] = Moment(self.stream, self.rng.randint(1, MESSAGES), self.rng.choice([0, 0, 1]))
        if self._maybe(0.3):
            config["headers_only"] = True
        if self._maybe(0.2):
            config["ack_policy"] = self.rng.choice(["all", "none"])
        return config

    def _consumer(self) -> list[Step]:
        """All that it delivers, of which some is acknowledged."""
        self.total += 1
        name = f"c{self.total}"
        self.known.append(name)
        found = [self.consumer(name, **self._config(name)), self.info(name)]
        left = MESSAGES
        while left > 0:
            batch = self.rng.choice([1, 4, 50])
            left -= batch
            found.append(self.pull(name, batch, 0 if self._maybe(0.7) else 50_000_000))
        found += [self.info(name), self.pull(name, 1, 0)]
        turns = self.rng.sample(range(MESSAGES), self.rng.randint(1, MESSAGES))
        found += [self.ack(name, turn=turn) for turn in turns]
        return [*found, self.info(name), self.pull(name, 2, 0)]

    def _replay(self) -> list[Step]:
        """With `replay_policy: original` each message comes as long after the one before as it was stored then."""
        config = self._config("again") | {"replay_policy": "original", "deliver_policy": "all"}
        for key in ("opt_start_seq", "opt_start_time", "filter_subjects"):
            config.pop(key, None)
        found = [self.consumer("again", **config)]
        left = MESSAGES - DELETED
        while left:
            batch = min(left, self.rng.choice([1, 4, 50]))
            left -= batch
            found.append(self.pull("again", batch, 5 * SECOND))
        return [*found, self.info("again"), self.ack("again"), self.info("again"), self.delete("again")]

    def _lists(self) -> list[Step]:
        names, listed = self.api(f"CONSUMER.NAMES.{self.stream}"), self.api(f"CONSUMER.LIST.{self.stream}")
        found = [names, listed]
        if self.known:
            gone = self.known.pop(self.rng.randrange(len(self.known)))
            page = self.api(f"CONSUMER.NAMES.{self.stream}", {"offset": 1})
            found += [self.delete(gone), names, page, self.info(gone), self.pull(gone, 1, 0)]
        return [*found, self.api(f"STREAM.INFO.{self.stream}")]
