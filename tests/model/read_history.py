"""Histories of reads of a stream with holes: pages, the last of each subject, times, sizes, and what is refused."""

from __future__ import annotations

from typing import Any

from tests.model.directed import Directed
from tests.model.history import Moment, Step

MESSAGES = 16
SUBJECTS = ("a", "b", "c", "b.x", "c.x")
FILTERS = (">", "a", "*", "b.x", "*.x", "none")
KNOWN = 1.5
"""Seconds within which each server goes by a new configuration."""


class ReadWriter(Directed):
    PARTS = ("pages", "sizes", "lasts", "times", "single", "refusals", "closed")
    SLOW = frozenset({"closed"})

    def begin(self) -> list[Step]:
        found = [self.created()]
        for number in range(MESSAGES):
            headers = {"X_Own": "value"} if self._maybe(0.2) else {}
            found.append(self.put(self.rng.choice(SUBJECTS), f"{number}" * self.rng.randint(1, 9), **headers))
        self.gone = sorted(self.rng.sample(range(1, MESSAGES + 1), 4))
        found += [self.api(f"STREAM.MSG.DELETE.{self.stream}", {"seq": seq}) for seq in self.gone]
        return [*found, self.api(f"STREAM.INFO.{self.stream}", {"deleted_details": True, "subjects_filter": ">"})]

    def _direct(self, **request: Any) -> Step:
        return self.api(f"DIRECT.GET.{self.stream}", request or b"")

    def _get(self, **request: Any) -> Step:
        return self.api(f"STREAM.MSG.GET.{self.stream}", request)

    def _filtered(self) -> str:
        pattern = self.rng.choice(FILTERS)
        return pattern if pattern == ">" and self._maybe(0.5) else self.subject(pattern)

    def _somewhere(self) -> int:
        return self.rng.randint(1, MESSAGES)

    def _moment_of(self) -> Moment:
        return Moment(self.stream, self._somewhere(), self.rng.choice([0, 0, 1]))

    def _pages(self) -> list[Step]:
        """Batches of a filter, from all sorts of beginnings."""
        found = []
        for _ in range(4):
            wanted, batch = self._filtered(), self.rng.choice([1, 3, 5, 50])
            starts = sorted({1, MESSAGES, MESSAGES + 1, *(self._somewhere() for _ in range(4))})
            found += [self._direct(seq=start, batch=batch, next_by_subj=wanted) for start in starts]
        return found

    def _sizes(self) -> list[Step]:
        """A page ends with the message that fills it, and has one at least."""
        rooms = [1, 1000, *(self.rng.randint(2, 90) for _ in range(6))]
        return [self._direct(seq=self.rng.choice([1, 1, 5]), batch=100, max_bytes=room) for room in rooms]

    def _lasts(self) -> list[Step]:
        found = []
        for wanted in ([">"], ["a", "b"], ["*.x", "c"], ["none"], ["*", "*.x"]):
            request: dict[str, Any] = {"multi_last": [self.subject(one) for one in wanted]}
            if self._maybe(0.5):
                request["up_to_seq"] = self._somewhere()
            found += [self._direct(**request), self._direct(**request, batch=2)]
            found.append(self._direct(**request, seq=self._somewhere()))
        return found

    def _times(self) -> list[Step]:
        found = []
        for _ in range(3):
            at = self._moment_of()
            found += [
                self._direct(start_time=at, batch=3),
                self._direct(start_time=at, batch=9, next_by_subj=self._filtered()),
                self._direct(multi_last=[self.subject(">")], up_to_time=at), self._get(start_time=at),
            ]  # fmt: skip
        return found

    def _single(self) -> list[Step]:
        found = []
        for _ in range(3):
            seq, wanted = self._somewhere(), self._filtered()
            for request in (
                {"seq": seq}, {"last_by_subj": wanted}, {"seq": seq, "next_by_subj": wanted},
                {"start_time": Moment(self.stream, seq, 0)},
            ):  # fmt: skip
                found += [self._direct(**request), self._get(**request)]
            found.append(self._direct(seq=seq, no_hdr=True))
            found.append(self.api(f"DIRECT.GET.{self.stream}.{self.subject(self.rng.choice(SUBJECTS))}"))
        return found

    def _refusals(self) -> list[Step]:
        at = Moment(self.stream, 1, 0)
        wrong: list[dict[str, Any]] = [
            {}, {"batch": 3}, {"seq": 1, "start_time": at}, {"last_by_subj": self.subject("a"), "seq": 1},
            {"multi_last": [">"], "up_to_seq": 3, "up_to_time": at}, {"seq": self.gone[0]}, {"seq": MESSAGES + 1},
            {"last_by_subj": self.subject("none")}, {"multi_last": [">"], "next_by_subj": ">"},
        ]  # fmt: skip
        return [step for request in wrong for step in (self._direct(**request), self._get(**request))]

    def _closed(self) -> list[Step]:
        """A stream without `allow_direct` answers no Direct Get."""
        config, subject = self.configs[self.stream], f"STREAM.UPDATE.{self.stream}"
        return [
            self.api(subject, config | {"allow_direct": False}), Step(wait=KNOWN), self._direct(seq=1),
            self._get(last_by_subj=">"), self.api(subject, config), Step(wait=KNOWN), self._direct(last_by_subj=">"),
        ]  # fmt: skip
