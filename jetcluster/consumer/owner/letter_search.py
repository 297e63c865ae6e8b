"""`LetterSearch`: looks through the streams that take dead letters for those that are there already.

A former owner may have sent a letter, or this one without an answer, longer ago than the target remembers message ids.
"""

from __future__ import annotations

import json
from base64 import b64decode
from collections.abc import Callable, Collection, Generator
from typing import Any, Final

from jetcluster.model.times import rfc3339
from jetcluster.protocol import headers as header_block
from jetcluster.protocol.bus import Bus

CLOCK_SLACK_NS: Final = 60_000_000_000
"""By so much the clock of the target's leader may be behind."""
NO_MESSAGE: Final = 10037
NOBODY: Final = "search for letters: nobody answers"
PROVING: Final = b"NATS/1.0\r\nNats-Read-Consistency: linearizable\r\n\r\n"

_Ask = tuple[bytes, dict[str, Any]]
_Found = tuple[set[bytes], int]


class SearchError(Exception):
    """A search came to no answer."""


class LetterSearch:
    """One search, one question at a time. `receive` takes each answer, and returns the result after the last one."""

    def __init__(
        self, bus: Bus, reply: Callable[[], bytes], pattern: str, since: int, wanted: Collection[bytes]
    ) -> None:
        """`reply` makes the reply subject of a question; `pattern` are the letters' subjects; `since`: Unix nanoseconds
        of the oldest one that may be there; `wanted`: message ids."""
        self._bus = bus
        self._reply = reply
        self._pattern = pattern
        self._since = since
        self._wanted = wanted
        self._steps = self._search()
        self.asked_with = b""
        """Reply subject of the question that waits for its answer."""

    def begin(self) -> None:
        """Ask the first question. Raises SearchError."""
        self._ask(next(self._steps))

    def receive(self, headers: bytes, payload: bytes) -> _Found | None:
        """Take an answer, its header block and payload; return the wanted ids that are stored and the shortest
        duplicate window of the streams in nanoseconds, None while there is more to ask. Raises SearchError."""
        if headers and header_block.status(headers)[0]:
            raise SearchError(NOBODY)
        try:
            answer = json.loads(payload)
            self._ask(self._steps.send(answer))
        except StopIteration as stop:
            found: _Found = stop.value
            return found
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise SearchError(f"search for letters: {error!r}") from error
        return None

    def _ask(self, ask: _Ask) -> None:
        subject, body = ask
        self.asked_with = self._reply()
        payload = json.dumps(body).encode() if body else b""
        if not self._bus.ask(b"$JS.API." + subject, payload, self.asked_with, PROVING):
            raise SearchError(NOBODY)

    def _search(self) -> Generator[_Ask, dict[str, Any], _Found]:
        found: set[bytes] = set()
        listed = yield b"STREAM.NAMES", {"subject": self._pattern}
        _refuse(listed)
        names = listed.get("streams") or []
        if int(listed["total"]) > len(names):
            raise SearchError("search for letters: too many streams take their subjects")
        window = 0
        for name in names:
            info = yield b"STREAM.INFO." + name.encode(), {}
            _refuse(info)
            config = info["config"]
            own = int(config.get("duplicate_window") or 0)
            window = min(window, own) if window else own
            yield from self._look_through(name, ">" if config.get("subject_transform") else self._pattern, found)
        return found, window

    def _look_through(self, stream: str, subject: str, found: set[bytes]) -> Generator[_Ask, dict[str, Any], None]:
        get = b"STREAM.MSG.GET." + stream.encode()
        ask: dict[str, Any] = {"start_time": rfc3339(max(1, self._since - CLOCK_SLACK_NS)), "next_by_subj": subject}
        while True:
            answer = yield get, ask
            if (answer.get("error") or {}).get("err_code") == NO_MESSAGE:
                return
            _refuse(answer)
            message = answer["message"]
            letter = header_block.get(b64decode(message.get("hdrs") or ""), b"Nats-Msg-Id")
            if letter is not None and letter in self._wanted:
                found.add(letter)
            ask = {"seq": int(message["seq"]) + 1, "next_by_subj": subject}


def _refuse(answer: dict[str, Any]) -> None:
    error = answer.get("error")
    if error:
        raise SearchError(f"search for letters: {error.get('description')}")
