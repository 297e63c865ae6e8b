"""A server for the player that is the model itself, and may be made to lie."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from tests.model.answers import ANY, MAYBE, Answer, Between, Name, Stamp, Text, rfc3339
from tests.model.reading import Unknown
from tests.model.rules import OURS
from tests.model.server import Server
from tests.model.stream import Headers

Lie = Callable[[Server, list[Answer]], list[Answer]]
"""Spoils the server's state, or its answers, which it returns."""


class Twin:
    """A connection of the player. Its clock stands still but for what the player sleeps."""

    def __init__(self, lie: Lie | None = None) -> None:
        self.server = Server(OURS)
        self.lie = lie
        self.time = 1_800_000_000.0
        self.stamped = 0

    def now(self) -> float:
        return self.time

    async def sleep(self, seconds: float) -> None:
        self.time += seconds

    async def ask(
        self, subject: str, headers: Headers, body: bytes, wanted: int, patience: float = 0.0
    ) -> list[Answer]:
        self.time += 0.000_1
        try:
            answers = [self._real(one) for one in self.server.ask(subject, headers, body, self.time)]
        except Unknown:
            answers = []
        self.time = self.server.awaited(self.time)  # it stood still while the request waited
        self.server.came(self.time)
        if wanted and answers and answers[-1].status.startswith("408 Request Timeout"):
            self.time += patience
        return self.lie(self.server, answers) if self.lie else answers

    def listen(self, subject: str) -> None:
        self.server.listened.append(subject)

    async def heard(self, wanted: int) -> list[Answer]:
        try:
            self.server.pass_time(self.time)
        except Unknown:
            pass
        answers, self.server.pushed = [self._real(one) for one in self.server.pushed], []
        return self.lie(self.server, answers) if self.lie and answers else answers

    def _real(self, answer: Answer) -> Answer:
        told = answer._asdict()
        data = told.pop("data")
        known = {key: self._value(value) for key, value in told.items()}
        known["headers"] = tuple(map(tuple, known["headers"])) if isinstance(known["headers"], list | tuple) else ()
        return Answer(**known, data=json.dumps(self._value(data)).encode() if isinstance(data, dict) else data)

    def _value(self, value: Any) -> Any:
        """A value with times, and without what is not known."""
        if isinstance(value, Stamp):
            if value.ns is None:
                self.stamped += 1
                value.ns = int(self.time * 1e6) * 1000 + self.stamped
            return rfc3339(value.ns)
        if isinstance(value, Name):
            self.stamped += 1
            value.value = value.value or f"name{self.stamped}"
            return value.value
        if isinstance(value, Between):
            return value.most
        if isinstance(value, Text):
            return value.beginning + "it is"
        if isinstance(value, dict):
            return {key: self._value(one) for key, one in value.items() if one is not MAYBE}
        if isinstance(value, list | tuple):
            return [self._value(one) for one in value]
        return "whatever" if value is ANY else value
