"""`ChangeAudit`: what the users of the console change, for the log.

The commands of a console's client are told where they are executed (`door.ConsoleCommands`), so nothing that runs is
missed, however it was sent. Requests are told whether or not they are permitted: who tried is of interest as well.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Final

from jetcluster.clock import Clock
from jetcluster.records import NamedTuple

READS: Final = frozenset(
    (
        "INFO", "STREAM.INFO", "STREAM.NAMES", "STREAM.LIST", "STREAM.MSG", "CONSUMER.INFO", "CONSUMER.NAMES",
        "CONSUMER.LIST", "DIRECT.GET", "ACCOUNT.INFO",
    )
)  # fmt: skip
"""The first two tokens of API requests that change nothing; STREAM.MSG but for its DELETE."""
CHANGES: Final = frozenset(
    (
        "ACCOUNT.PURGE", "CONSUMER.CREATE", "CONSUMER.DELETE", "CONSUMER.DURABLE", "CONSUMER.LEADER", "CONSUMER.MSG",
        "CONSUMER.PAUSE", "CONSUMER.RESET", "CONSUMER.UNPIN", "META.LEADER", "META.RESCUE", "SERVER.EVACUATE",
        "CONSUMER.PEER", "SERVER.REMOVE", "STREAM.CANCEL_MOVE", "STREAM.CREATE", "STREAM.DELETE", "STREAM.LEADER",
        "STREAM.MSG", "STREAM.PEER", "STREAM.PURGE", "STREAM.RESCUE", "STREAM.RESTORE", "STREAM.SNAPSHOT",
        "STREAM.UPDATE",
    )
)  # fmt: skip
"""Those that have a quota of lines of their own: many of one kind hide none of another."""
SYSTEM_READS: Final = frozenset(
    (
        "PING", "IDZ", "STATSZ", "VARZ", "SUBSZ", "CONNZ", "ROUTEZ", "GATEWAYZ", "LEAFZ", "ACCOUNTZ", "JSZ", "HEALTHZ",
        "PROFILEZ", "EXPVARZ", "IPQUEUESZ", "RAFTZ", "FINDINGS", "HISTORY", "INFO", "STATZ", "CONNS", "LOOKUP", "LIST",
        "PACK",
    )
)  # fmt: skip
"""The last token of requests of the system account that change nothing."""
MAX_SHOWN: Final = 200
"""Bytes of a request's body that are shown."""
MAX_LINES: Final = 30
WINDOW_SECONDS: Final = 10.0
"""Lines of one kind, of one connection, in so many seconds; of further ones only the number is told."""


class Change(NamedTuple):
    """A change that a publish makes. `kind` is a row of `CHANGES` or a name in words."""

    kind: str
    text: str


class Detour(NamedTuple):
    """Where a publish has an effect other than at its subject; b"" and False for one that has none."""

    answer: bytes = b""
    """The subject to which the answer goes, when somebody else than the asker may take it: a stream, the API."""
    report: bytes = b""
    """The subject of the report of a traced message."""
    mapped: bool = False
    """The account leads the subject on to another one, by a mapping or an import."""


DIRECT: Final = Detour()


def change(subject: str, payload: bytes) -> Change | None:
    """Returns None for what changes nothing: requests that read, and answers to flow control."""
    tokens = subject.split(".")
    if tokens[:2] == ["$SYS", "REQ"]:
        return None if tokens[-1] in SYSTEM_READS else Change("system requests", _request(subject, payload))
    if tokens[0] == "$JS" and "API" in tokens[1:3]:
        name = tokens[tokens.index("API") + 1 :]
        verb = ".".join(name[:2])
        if name == ["INFO"] or (verb in READS and name[:3] != ["STREAM", "MSG", "DELETE"]):
            return None
        return Change(verb if verb in CHANGES else "other API requests", _request(".".join(name), payload))
    if tokens[:2] == ["$JS", "FC"]:
        return None
    if tokens[:2] == ["$JS", "ACK"]:
        return Change("acks", _request(f"acks with {subject[:MAX_SHOWN]}:", payload))
    kind = "parts of objects" if tokens[0] == "$O" and tokens[2:3] == ["C"] else "publishes"
    return Change(kind, f"publishes to {subject[:MAX_SHOWN]}, {len(payload)} bytes")


def _led_astray(subject: bytes, made: Change | None, detour: Detour) -> Change:
    """Returns the change that a publish makes elsewhere as well; what only reads changes something there."""
    kind, text = made or Change("reads with effects", f"reads {subject[:MAX_SHOWN].decode('utf-8', 'replace')}")
    for words, target in (("answer to", detour.answer), ("report to", detour.report)):
        if target:
            text += f", {words} {target[:MAX_SHOWN].decode('utf-8', 'replace')}"
            kind = f"{kind}, {words}"  # a quota of its own: others that change less hide none of these
    if detour.mapped:
        text, kind = f"{text}, mapped", f"{kind}, mapped"
    return Change(kind, text)


def _request(name: str, payload: bytes) -> str:
    shown = payload[:MAX_SHOWN].decode("utf-8", "replace")
    return f"{name[: 2 * MAX_SHOWN]} {shown}{'…' if len(payload) > MAX_SHOWN else ''}".strip()


class ChangeAudit:
    """The audit of one connection; `tell` gets each line."""

    def __init__(self, clock: Clock, tell: Callable[[str], None]) -> None:
        self._clock = clock
        self._tell = tell
        self._window = clock.monotonic()
        self._lines: Counter[str] = Counter()

    def published(self, subject: bytes, payload: bytes, detour: Detour = DIRECT) -> None:
        """Tells of a publish that is about to be executed, or refused."""
        made = change(subject.decode("utf-8", "replace"), payload)
        if detour != DIRECT:
            made = _led_astray(subject, made, detour)
        if made is None:
            return
        if self._clock.monotonic() - self._window >= WINDOW_SECONDS:
            self.end()
        self._lines[made.kind] += 1
        if self._lines[made.kind] <= MAX_LINES:
            self._tell(made.text)

    def end(self) -> None:
        """Ends a window of time: tells how many lines of each kind were left out."""
        for kind, count in sorted(self._lines.items()):
            if count > MAX_LINES:
                self._tell(f"and {count - MAX_LINES} {kind} more in {WINDOW_SECONDS:.0f} s")
        self._window = self._clock.monotonic()
        self._lines.clear()
