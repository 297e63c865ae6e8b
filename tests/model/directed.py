"""Histories that are directed at one subject, part by part, and not at whatever may happen."""

from __future__ import annotations

from typing import Any, ClassVar

from tests.model.history import Step, Writer

WAITS = 100_000_000
"""Nanoseconds for which a pull request waits when nobody minds."""


class Directed(Writer):
    """Draws the histories of an exam. Each part leaves nothing behind that falls due in another one."""

    PARTS: ClassVar[tuple[str, ...]]
    SLOW: ClassVar[frozenset[str]] = frozenset()
    """Parts that take seconds."""

    def begin(self) -> list[Step]:
        """The steps that all parts need."""
        return []

    def part(self, name: str) -> list[Step]:
        found: list[Step] = getattr(self, f"_{name}")()
        return found

    def history(self, steps: int) -> list[Step]:
        found = self.begin()
        names = [name for name in self.PARTS if self.timed or name not in self.SLOW]
        while len(found) < steps:
            for name in self.rng.sample(names, len(names)):
                found += self.part(name) if len(found) < steps else []
        return found

    # -- words

    @property
    def stream(self) -> str:
        return self.names[0]

    def subject(self, rest: str) -> str:
        return f"{self.stream.lower()}.{rest}"

    def created(self, **config: Any) -> Step:
        """A new stream, of all subjects below its name."""
        whole: dict[str, Any] = {"name": self.stream, "subjects": [self.subject(">")], "allow_direct": True}
        whole |= {"storage": self.rng.choice(self.storages), "duplicate_window": 3600 * 10**9} | config
        if self.replicas > 1:
            whole["num_replicas"] = self.replicas
        self.configs[self.stream] = whole
        return self.api(f"STREAM.CREATE.{self.stream}", whole)

    def api(self, subject: str, body: Any = b"", *, settles: bool = False) -> Step:
        return Step(f"$JS.API.{subject}", body, settles=settles)

    def put(self, rest: str, body: bytes | str = b"", **headers: str) -> Step:
        """A message; `Nats_Msg_Id`, for example, is a header."""
        data = body.encode() if isinstance(body, str) else body
        own = tuple((key.replace("_", "-"), value) for key, value in headers.items())
        return Step(self.subject(rest), data or self._payload(), own)

    def consumer(self, name: str, **config: Any) -> Step:
        whole = {"durable_name": name, "ack_policy": "explicit"} | config
        body = {"stream_name": self.stream, "config": whole}
        return self.api(f"CONSUMER.DURABLE.CREATE.{self.stream}.{name}", body)

    def pull(self, name: str, batch: int = 1, expires: int = WAITS) -> Step:
        """`expires`: nanoseconds; 0: it does not wait."""
        waits: dict[str, Any] = {"expires": expires} if expires else {"no_wait": True}
        return self.api(f"CONSUMER.MSG.NEXT.{self.stream}.{name}", {"batch": batch} | waits)

    def ack(self, name: str, word: bytes = b"+ACK", turn: int = 0) -> Step:
        """`turn`: of which delivery, 0 the last one."""
        return Step(f"ACK.{self.stream}.{name}", word, turn=turn)

    def info(self, name: str) -> Step:
        return self.api(f"CONSUMER.INFO.{self.stream}.{name}")

    def delete(self, name: str) -> Step:
        return self.api(f"CONSUMER.DELETE.{self.stream}.{name}")
