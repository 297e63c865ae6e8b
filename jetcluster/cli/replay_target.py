"""`ReplayTarget`: tells whether an earlier replay may have put the message of a dead letter back into a stream.

A replay that was interrupted between the PubAck and the delete leaves a letter whose message is back. Within half of
its duplicate window the stream itself knows the id. Later the message is looked for; and where it is not found, it may
have been consumed and removed, unless the stream shows that it removed nothing since.
"""

from __future__ import annotations

import json
from base64 import b64decode
from collections.abc import Iterator
from enum import Enum
from typing import Any, Final

from jetcluster.client.connection import Connection
from jetcluster.client.stream_state import is_ours
from jetcluster.errors import NO_MESSAGE_FOUND, ApiError, CallerError
from jetcluster.model.times import parse_rfc3339, rfc3339
from jetcluster.protocol import headers as header_block

CLOCK_SLACK_NS: Final = 60_000_000_000
"""By so much the clocks of the servers may differ."""
PROVING: Final = b"NATS/1.0\r\nNats-Read-Consistency: linearizable\r\n\r\n"
REPLAYED: Final = b"replay:"
"""Beginning of the ids of replayed messages."""
BATCH: Final = 256
BATCH_BYTES: Final = 8 << 20
MAX_IDS: Final = 1_000_000
"""Ids of replayed messages that are kept in memory, about 150 bytes each."""


class Past(Enum):
    """Knowledge of a message's earlier replays."""

    SAFE = "not stored, or the stream knows its id"
    BACK = "stored"
    DOUBT = "not there, but may have been"


class ReplayTarget:
    """The messages with one subject in one stream. Searches go on where the last one ended."""

    def __init__(self, connection: Connection, stream: str, subject: str) -> None:
        self._connection = connection
        self._stream = stream
        self._subject = subject
        self._ids: set[bytes] = set()
        self._since = self._next = self._searched = 0
        """`_ids` has the ids from the time `_since` up to the sequence before `_next`, as of the time `_searched`."""

    @property
    def known(self) -> int:
        """Number of ids in memory."""
        return len(self._ids)

    def past(self, message_id: bytes, stored: int) -> Past:
        """Judges the message of a letter that was stored at `stored`, Unix nanoseconds: no replay can have begun
        before. Raises ApiError and what requests raise."""
        info = self._info()
        now = _time(info["ts"])
        half = int(info["config"].get("duplicate_window") or 0) // 2
        if now - stored < half:
            return Past.SAFE
        since = max(1, stored - CLOCK_SLACK_NS)
        if not self._next or since < self._since or now - self._searched >= half:
            self._search(since, now, info)
            # What was removed meanwhile counts, too.
            info = self._info()
        if message_id in self._ids:
            return Past.BACK
        return Past.SAFE if _has_all(info, since) else Past.DOUBT

    def _info(self) -> dict[str, Any]:
        return self._connection.api(f"STREAM.INFO.{self._stream}", headers=PROVING)

    def _search(self, since: int, now: int, info: dict[str, Any]) -> None:
        last = int(info["state"]["last_seq"])
        start: dict[str, Any] = {"seq": self._next}
        if not self._next or since < self._since:
            self._ids.clear()
            self._since = since
            start = {"start_time": rfc3339(since)}
        subject = ">" if info["config"].get("subject_transform") else self._subject
        batched = is_ours(self._connection) and info["config"].get("allow_direct")
        for block in (self._batches if batched else self._singles)(start, subject, last):
            # A value of a header may have a bare LF, and what follows it is no field.
            found = dict(reversed(header_block.parse(block))).get(b"Nats-Msg-Id", b"")
            if found.startswith(REPLAYED):
                self._ids.add(found)
                if len(self._ids) > MAX_IDS:
                    raise CallerError(f"{self._stream} has more than {MAX_IDS} replayed messages since a letter")
        self._next, self._searched = last + 1, now

    def _batches(self, start: dict[str, Any], subject: str, last: int) -> Iterator[bytes]:
        """Yields header blocks up to the sequence `last`, as the leader has them: a mirror may have removed some."""
        ask = {**start, "next_by_subj": subject, "batch": BATCH, "max_bytes": BATCH_BYTES}
        while True:
            api = f"{self._connection.api_prefix}DIRECT_LEADER.GET.{self._stream}"
            gather = self._connection.gather(api, json.dumps(ask).encode(), PROVING)
            end = gather.wait()
            if end.status not in (204, 404):
                raise ApiError(end.status, 0, f"{self._stream}: Direct Get was answered with {end.description}")
            seq = 0
            for block, _payload in gather.frames():
                fields = header_block.parse(block)
                seq = max(int(value) for key, value in fields if key == b"Nats-Sequence")
                if seq <= last:
                    yield block
            if not seq or seq >= last or end.get("Nats-Num-Pending") == "0":
                return
            ask = {"seq": seq + 1, "next_by_subj": subject, "batch": BATCH, "max_bytes": BATCH_BYTES}

    def _singles(self, start: dict[str, Any], subject: str, last: int) -> Iterator[bytes]:
        """As `_batches`, one message at a time."""
        ask = {**start, "next_by_subj": subject}
        while int(ask.get("seq", 0)) <= last:
            try:
                found = self._connection.api(f"STREAM.MSG.GET.{self._stream}", ask, headers=PROVING)["message"]
            except ApiError as error:
                if error.err_code == NO_MESSAGE_FOUND:
                    return
                raise
            yield b64decode(found.get("hdrs") or "")
            ask = {"seq": int(found["seq"]) + 1, "next_by_subj": subject}


def _has_all(info: dict[str, Any], since: int) -> bool:
    """Returns whether the stream still has every message that it stored since a time."""
    state, first_ever = info["state"], max(1, int(info["config"].get("first_seq") or 0))
    first, last = int(state["first_seq"]), int(state["last_seq"])
    created_before = _time(info["created"]) < since
    if last < first_ever:
        return created_before
    if int(state["messages"]) != last - first + 1:
        return False
    begun_before = _time(state["first_ts"]) < since if state["messages"] else False
    return begun_before or (created_before and first <= first_ever)


def _time(text: str) -> int:
    return parse_rfc3339(text)
