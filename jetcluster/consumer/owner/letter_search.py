"""`LetterSearch`: looks through the streams that take dead letters for those that are there already.

A former owner may have sent a letter, or this one without an answer, longer ago than the target remembers message ids.
What a search cannot see it does not take for absent: the target may be a stream of another account or domain.
"""

from __future__ import annotations

import json
from base64 import b64decode
from collections.abc import Callable, Collection, Generator, Iterable
from typing import Any, Final

from jetcluster.errors import INVALID_JSON, STREAM_NOT_FOUND, PassingError
from jetcluster.model.times import rfc3339
from jetcluster.protocol import headers as header_block
from jetcluster.protocol.bus import Bus
from jetcluster.stream.read.id_search import MAX_PREFIXES, common_beginning

CLOCK_SLACK_NS: Final = 60_000_000_000
"""By so much the clock of the target's leader may be behind."""
NO_MESSAGE: Final = 10037
NOBODY: Final = "search for letters: nobody answers"
PROVING: Final = b"NATS/1.0\r\nNats-Read-Consistency: linearizable\r\n\r\n"

_Ask = tuple[bytes, dict[str, Any]]
_Found = tuple[set[bytes], int]
_Answer = tuple[bytes, bytes]
"""(header block, payload)."""
_Stream = tuple[str, str]
"""(name, creation time): one made again counts from 1 again."""


class SearchError(PassingError):
    """A search came to no answer."""


class SearchMemory:
    """Kept by an owner from search to search, for one pattern of subjects."""

    __slots__ = ("domain", "found", "listed", "next", "pattern", "since", "taker", "wanted")

    def __init__(self) -> None:
        self.pattern = ""
        self._begin("")

    def _begin(self, pattern: str) -> None:
        self.pattern = pattern
        self.taker = self.domain = ""
        """The stream of the last PubAck, and its domain, "" for none."""
        self.listed: set[str] = set()
        """Streams that were seen to take the letters' subjects here."""
        self._look_for(0, frozenset())

    def _look_for(self, since: int, wanted: frozenset[bytes]) -> None:
        self.since = since
        self.wanted = wanted
        self.found: set[bytes] = set()
        self.next: dict[_Stream, int] = {}
        """Sequences below which all was looked through for `wanted`."""

    def confirmed(self, pattern: str, puback: bytes) -> None:
        """A stream confirmed a letter."""
        if pattern != self.pattern:
            self._begin(pattern)
        answer = json.loads(puback)
        self.taker, self.domain = str(answer["stream"]), str(answer.get("domain") or "")

    def aim(self, pattern: str, since: int, wanted: frozenset[bytes]) -> None:
        """Forget what does not help to find `wanted`: progress holds for what was looked for on the way, since what is
        stored later comes behind it."""
        if pattern != self.pattern:
            self._begin(pattern)
        if since < self.since or not wanted <= self.wanted:
            self._look_for(since, wanted)


class LetterSearch:
    """One search, one question at a time. `receive` takes each answer, and returns the result after the last one."""

    def __init__(
        self,
        bus: Bus,
        reply: Callable[[], bytes],
        memory: SearchMemory,
        pattern: str,
        since: int,
        wanted: Collection[bytes],
    ) -> None:
        """`reply` makes the reply subject of a question; `memory` is of earlier searches; `pattern` are the letters'
        subjects; `since`: Unix nanoseconds of the oldest one that may be there; `wanted`: message ids."""
        self._bus = bus
        self._reply = reply
        self._memory = memory
        memory.aim(pattern, since, frozenset(wanted))
        self._wanted = wanted
        self._steps = self._search()
        self.asked_with = b""
        """Reply subject of the question that waits for its answer."""
        self.at = "searching"
        """Where it is, for people."""

    def begin(self) -> None:
        """Ask the first question. Raises SearchError."""
        self._ask(next(self._steps))

    def receive(self, headers: bytes, payload: bytes) -> _Found | None:
        """Take an answer, its header block and payload; return the wanted ids that are stored and the shortest
        duplicate window of the streams in nanoseconds, None while there is more to come. Raises SearchError."""
        try:
            self._ask(self._steps.send((headers, payload)))
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

    def _search(self) -> Generator[_Ask, _Answer, _Found]:
        memory = self._memory
        targets = yield from self._targets()
        window: int | None = None
        for name, takes in targets.items():
            info = _object((yield b"STREAM.INFO." + name.encode(), {}))
            if (info.get("error") or {}).get("err_code") == STREAM_NOT_FOUND and not takes:
                continue  # it was here, and is deleted
            _refuse(info)
            config = info["config"]
            own = int(config.get("duplicate_window") or 0)
            window = own if window is None else min(window, own)
            subject = memory.pattern if takes and not config.get("subject_transform") else ">"
            stream, last = (name, str(info["created"])), int(info["state"]["last_seq"])
            yield from self._look(stream, subject, last)
            memory.next[stream] = max(memory.next.get(stream, 0), last + 1)
        return memory.found & set(self._wanted), window or 0

    def _targets(self) -> Generator[_Ask, _Answer, dict[str, bool]]:
        """Return the streams to look through, and whether they take the letters' subjects still. Raises SearchError if
        there may be others."""
        memory = self._memory
        listed = _object((yield b"STREAM.NAMES", {"subject": memory.pattern}))
        _refuse(listed)
        names = [str(name) for name in listed.get("streams") or ()]
        if int(listed["total"]) > len(names):
            raise SearchError("search for letters: too many streams take their subjects")
        taker = memory.taker
        if memory.domain:
            here = _object((yield b"INFO", {}))
            if here.get("domain") != memory.domain:
                raise SearchError(_hidden(f"stream {taker} of domain {memory.domain}"))
        if taker and taker not in names and taker not in memory.listed:
            raise SearchError(_hidden(f"stream {taker}, not one here that takes their subjects,"))
        if not names:
            raise SearchError(_hidden("a stream elsewhere") + ": none here takes their subjects")
        memory.listed = set(names) | ({taker} & memory.listed)
        return dict.fromkeys([taker] if taker else (), False) | dict.fromkeys(names, True)

    def _look(self, stream: _Stream, subject: str, last: int) -> Generator[_Ask, _Answer, None]:
        get = b"STREAM.MSG.GET." + stream[0].encode()
        by_id: dict[str, Any] = {"msg_id_prefixes": _prefixes(self._memory.wanted)}
        while (ask := self._next_ask(stream, subject, last)) is not None:
            answer = _object((yield get, ask | by_id))
            code = (answer.get("error") or {}).get("err_code")
            if code == NO_MESSAGE:
                return
            if code == INVALID_JSON and by_id:  # a strict server of a version without `msg_id_prefixes`
                by_id = {}
                continue
            _refuse(answer)
            if (found := answer.get("msg_ids")) is not None:
                letters = [str(one).encode("utf-8", "surrogateescape") for one in found["found"]]
                seq = int(found["searched"])
            else:  # a server of such a version that is not strict
                message = answer["message"]
                block = b64decode(message.get("hdrs") or "")
                letters, seq = [header_block.get(block, b"Nats-Msg-Id") or b""], int(message["seq"])
            self._passed(stream, seq, last, letters)

    def _next_ask(self, stream: _Stream, subject: str, last: int) -> dict[str, Any] | None:
        """Return what to ask next; None at the end as it was when the search came to this stream."""
        start = self._memory.next.get(stream, 0)
        if max(start, 1) > last:
            return None
        where: dict[str, Any] = {"seq": start}
        if not start:
            where = {"start_time": rfc3339(max(1, self._memory.since - CLOCK_SLACK_NS))}
        return {**where, "next_by_subj": subject}

    def _passed(self, stream: _Stream, seq: int, last: int, letters: Iterable[bytes]) -> None:
        """Note an answer about all messages up to `seq`. Raises SearchError."""
        if seq < self._memory.next.get(stream, 0):
            raise SearchError(f"search for letters: an answer about nothing new in {stream[0]}")
        self._memory.found |= self._memory.wanted.intersection(letters)
        self._memory.next[stream] = seq + 1
        self.at = f"searching {stream[0]}: at {seq} of {last}"


def _prefixes(wanted: Collection[bytes]) -> list[str]:
    """Return what to ask for: the ids, or what they all begin with where they are too many."""
    asked = sorted(wanted) if len(wanted) <= MAX_PREFIXES else [common_beginning(wanted)]
    return [one.decode("utf-8", "surrogateescape") for one in asked]


def _hidden(where: str) -> str:
    return f"cannot see whether {where} has them"


def _object(answer: _Answer) -> dict[str, Any]:
    """Raises ValueError, SearchError."""
    if answer[0] and header_block.status(answer[0])[0]:
        raise SearchError(NOBODY)
    found: dict[str, Any] = json.loads(answer[1])
    return found


def _refuse(answer: dict[str, Any]) -> None:
    error = answer.get("error")
    if error:
        raise SearchError(f"search for letters: {error.get('description')}")
