"""Histories of streams: what is kept, counted, found, refused and removed."""

from __future__ import annotations

from typing import Any

from tests.model.directed import Directed
from tests.model.history import SECOND, Step

KNOWN = 1.0
"""Seconds within which each server knows who subscribes."""
WINDOW = 3


class StreamWriter(Directed):
    PARTS = (
        "limits", "per_subject", "full", "sizes", "purges", "more_purges", "reads", "headers", "batches", "counters",
        "transforms", "lives", "update",
    )  # fmt: skip
    SLOW = frozenset({"headers"})

    def begin(self) -> list[Step]:
        self.lives = 0
        self.base = self.stream
        return []

    def part(self, name: str) -> list[Step]:
        """Each has a stream of its own, which is gone afterwards."""
        self.lives += 1
        self.names = [f"{self.base}{self.lives}", *self.names[1:]]
        return [*super().part(name), self.api(f"STREAM.DELETE.{self.stream}")]

    def _state(self) -> list[Step]:
        """All that it has, for whoever asks."""
        asked = {"deleted_details": True, "subjects_filter": ">"}
        return [
            self.api(f"STREAM.INFO.{self.stream}", asked, settles=True),
            self.api(f"DIRECT.GET.{self.stream}", {"seq": 1, "batch": 100}),
        ]

    def _puts(self, number: int, subjects: int = 1) -> list[Step]:
        return [self.put(str(at % subjects)) for at in range(number)]

    def _purge(self, **body: Any) -> list[Step]:
        return [self.api(f"STREAM.PURGE.{self.stream}", body or b""), *self._state()]

    def _limits(self) -> list[Step]:
        limit: dict[str, Any] = self.rng.choice([{"max_msgs": 5}, {"max_bytes": 400}, {"max_msgs": 1}])
        return [self.created(**limit), *self._puts(9, 2), *self._state()]

    def _per_subject(self) -> list[Step]:
        return [self.created(max_msgs_per_subject=self.rng.randint(1, 2)), *self._puts(9, 3), *self._state()]

    def _full(self) -> list[Step]:
        """With `discard: new`, for the stream and for a subject."""
        more: dict[str, Any] = self.rng.choice(
            [{"max_msgs_per_subject": 1, "discard_new_per_subject": True}, {"max_msgs": 3}, {"max_bytes": 200}]
        )
        return [self.created(discard="new", **more), *self._puts(6, 4), *self._state()]

    def _sizes(self) -> list[Step]:
        texts = [self.put("a", "x" * size) for size in (19, 20, 21, 40)]
        return [self.created(max_msg_size=20), *texts, self.put("a", "x" * 15, X_Own="v"), *self._state()]

    def _purges(self) -> list[Step]:
        delete = self.api(f"STREAM.MSG.DELETE.{self.stream}", {"seq": 9})
        return [
            self.created(allow_rollup_hdrs=True), *self._puts(12, 3), *self._purge(filter=self.subject("0"), keep=1),
            *self._purge(filter=self.subject("1"), seq=8), delete, *self._state(), delete,
            self.put("2", "rolled up", Nats_Rollup="sub"), *self._state(), *self._purge(), self.put("a"),
            *self._state(), self.put("b", Nats_Rollup="all"), *self._state(),
        ]  # fmt: skip

    def _more_purges(self) -> list[Step]:
        found = [self.created(), *self._puts(12, 3)]
        bodies: list[dict[str, Any]] = [
            {"seq": 4}, {"keep": 5}, {"filter": self.subject("1")}, {"filter": self.subject(">"), "keep": 2},
            {"seq": 9, "keep": 1}, {"filter": self.subject("nobody")}, {"seq": 20},
        ]  # fmt: skip
        for body in bodies:
            found += self._purge(**body)
        return [*found, self.put("a"), *self._state()]

    def _reads(self) -> list[Step]:
        found = [self.created()]
        found += [self.put(self.rng.choice("abc"), X_Own=str(at)) for at in range(10)]
        for letter in "abc":
            subject = self.subject(letter)
            found += [
                self.api(f"STREAM.MSG.GET.{self.stream}", {"last_by_subj": subject}),
                self.api(f"STREAM.MSG.GET.{self.stream}", {"seq": self.rng.randint(1, 10), "next_by_subj": subject}),
                self.api(f"DIRECT.GET.{self.stream}.{subject}"),
            ]
        found += [self.api(f"DIRECT.GET.{self.stream}", {"multi_last": [self.subject(">")]})]
        return [*found, self.api(f"STREAM.MSG.GET.{self.stream}", {"seq": 11}), *self._state()]

    def _headers(self) -> list[Step]:
        """Message ids and expectations."""
        last, of_subject = "Nats_Expected_Last_Sequence", "Nats_Expected_Last_Subject_Sequence"
        return [
            self.created(duplicate_window=WINDOW * SECOND),
            self.put("a", Nats_Msg_Id="x"), self.put("b", Nats_Msg_Id="x"), self.put("b", Nats_Msg_Id="y"),
            self.put("a", Nats_Expected_Last_Msg_Id="y"), self.put("a", Nats_Expected_Last_Msg_Id="x"),
            self.put("a", **{last: "2"}), self.put("a", **{last: "3"}), self.put("b", **{of_subject: "1"}),
            self.put("b", **{of_subject: "2"}), self.put("b", Nats_Expected_Stream="other"),
            Step(wait=WINDOW + 2.0),  # less than twice the window, and more than it by what clocks may be apart
            self.put("a", Nats_Msg_Id="x"), *self._state(),
        ]  # fmt: skip

    def _batches(self) -> list[Step]:
        found = [self.created(allow_atomic=True), self.put("a")]
        for batch, expected in (("right", "1"), ("wrong", "7"), ("more", "0")):
            for number in (1, 2, 3):
                headers = {"Nats_Batch_Id": batch, "Nats_Batch_Sequence": str(number)}
                if number == (2 if batch == "wrong" else 1):
                    headers["Nats_Expected_Last_Subject_Sequence"] = expected
                if number == 3:
                    headers["Nats_Batch_Commit"] = self.rng.choice(["1", "eob"])
                found.append(self.put(" abc"[number] if batch != "more" else "new", **headers))
            found += self._state()
        return found

    def _counters(self) -> list[Step]:
        found = [self.created(allow_msg_counter=True)]
        for number in (self.rng.randint(-9, 99) for _ in range(6)):
            found.append(Step(self.subject(self.rng.choice("mn")), b"", (("Nats-Incr", f"{number:+d}"),)))
        return [*found, self.put("m"), self.put("m", Nats_Incr="1"), *self._state()]

    def _transforms(self) -> list[Step]:
        """Subjects change on their way in, and messages are sent on as they are stored."""
        transform = {"src": self.subject("in.*"), "dest": self.subject("out.{{wildcard(1)}}")}
        again: dict[str, Any] = {"src": ">", "dest": f"again.{self.stream}.>"}
        if self._maybe(0.3):
            again["headers_only"] = True
        return [
            self.created(subject_transform=transform, republish=again), Step(wait=KNOWN), self.put("in.x"),
            self.put("other", X_Own="value"), self.put("in.x"), *self._state(),
        ]  # fmt: skip

    def _lives(self) -> list[Step]:
        """It is found by its subjects, which are its own; deleted and made again it is another one."""
        create = self.created()
        other = {"name": f"{self.stream}X", "subjects": [self.subject("a")], "storage": "file"}
        if self.replicas > 1:
            other["num_replicas"] = self.replicas
        info = self.api(f"STREAM.INFO.{self.stream}")
        return [
            create, self.put("a"), self.api("STREAM.NAMES", {"subject": self.subject("a")}),
            self.api(f"STREAM.CREATE.{self.stream}X", other), self.api(f"STREAM.DELETE.{self.stream}"), info,
            create, info, self.put("a"), *self._state(), create,
        ]  # fmt: skip

    def _update(self) -> list[Step]:
        create = self.created(storage="file")
        config, subject = self.configs[self.stream], f"STREAM.UPDATE.{self.stream}"
        fewer = config | {"max_msgs": 3, "description": "new"}
        return [
            create, *self._puts(8), self.api(subject, fewer | {"storage": "memory"}), self.api(subject, fewer),
            *self._state(), self.put("a"), *self._state(), self.api(subject, fewer | {"sealed": True}), self.put("a"),
            self.api(f"STREAM.MSG.DELETE.{self.stream}", {"seq": 8}), *self._purge(), self.api(subject, fewer),
        ]  # fmt: skip
