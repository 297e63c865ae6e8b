"""`ChangeAudit`: what the users of the console change, for the log.

A second parser reads what a console's client sends; other clients do not have one. Requests are told whether or not
they are carried out: who tried is of interest as well.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from jetcluster.clock import Clock
from jetcluster.protocol.parser import PUB, Parser

READS: Final = frozenset(
    (
        "INFO", "STREAM.INFO", "STREAM.NAMES", "STREAM.LIST", "STREAM.MSG", "CONSUMER.INFO", "CONSUMER.NAMES",
        "CONSUMER.LIST", "DIRECT.GET",
    )
)  # fmt: skip
"""The first two tokens of API requests that change nothing; STREAM.MSG but for its DELETE."""
SYSTEM_CHANGES: Final = frozenset(("RELOAD", "KICK", "LDM", "UPDATE", "DELETE"))
"""The last token of requests of the system account that change something."""
UNTOLD: Final = ("_INBOX.", "$JS.ACK.", "$JS.FC.")
MAX_SHOWN: Final = 200
"""Bytes of a request's body that are shown."""
MAX_LINES: Final = 30
WINDOW_SECONDS: Final = 10.0
"""Lines of one connection in so many seconds; of further ones only the number is told."""


def change(subject: str, payload: bytes) -> str:
    """Returns what a publish changes, in words; "" for one that changes nothing, and for a part of an object, whose
    description tells it."""
    if subject.startswith(UNTOLD):
        return ""
    tokens = subject.split(".")
    if tokens[0] == "$SYS":
        return _request(subject, payload) if tokens[-1] in SYSTEM_CHANGES else ""
    if tokens[0] == "$JS" and "API" in tokens[1:3]:
        name = tokens[tokens.index("API") + 1 :]
        reads = name == ["INFO"] or (".".join(name[:2]) in READS and name[:3] != ["STREAM", "MSG", "DELETE"])
        return "" if reads else _request(".".join(name), payload)
    if tokens[0] == "$O" and tokens[2:3] == ["C"]:
        return ""
    return f"publishes to {subject[:MAX_SHOWN]}, {len(payload)} bytes"


def _request(name: str, payload: bytes) -> str:
    shown = payload[:MAX_SHOWN].decode("utf-8", "replace")
    return f"{name[:MAX_SHOWN]} {shown}{'…' if len(payload) > MAX_SHOWN else ''}".strip()


class ChangeAudit:
    """The audit of one connection; `tell` gets each line."""

    def __init__(self, parser: Parser, clock: Clock, tell: Callable[[str], None]) -> None:
        self._parser = parser
        self._clock = clock
        self._tell = tell
        self._window = clock.monotonic()
        self._lines = 0

    def received(self, data: bytes) -> None:
        """Takes the bytes of a read. Never raises: what is no protocol the client's own parser refuses."""
        for kind, subject, _, _, payload in self._parser.feed(data):
            if kind == PUB and (text := change(subject.decode("utf-8", "replace"), payload)):
                self._add(text)

    def _add(self, text: str) -> None:
        if self._clock.monotonic() - self._window >= WINDOW_SECONDS:
            self.end()
        self._lines += 1
        if self._lines <= MAX_LINES:
            self._tell(text)

    def end(self) -> None:
        """Ends a window of time: tells how many lines were left out."""
        left_out = self._lines - MAX_LINES
        if left_out > 0:
            self._tell(f"and {left_out} changes more in {WINDOW_SECONDS:.0f} s")
        self._window, self._lines = self._clock.monotonic(), 0
