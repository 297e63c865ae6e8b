"""`Upstream`: one link of a stream's configuration: its requests to the upstream, and the stored form of its messages.

The wire form is nats-server's, so that either end may be one.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from typing import Any, Final

from jetcluster import errors
from jetcluster.errors import ApiError
from jetcluster.mirror.ports import LinkTarget
from jetcluster.model import times
from jetcluster.model.limits import FARTHEST_SEQ
from jetcluster.model.transforms import SubjectTransform
from jetcluster.protocol import headers as header_block
from jetcluster.records import NamedTuple
from jetcluster.store.api import Msg
from jetcluster.store.block_store import BlockStore
from jetcluster.stream.fields import FIELD, appended, nats_fields
from jetcluster.stream.rules import link_filters, link_index, link_key

ACK_WAIT_NS: Final = 22 * 3600 * 10**9
HEARTBEAT_NS: Final = 10**9
INACTIVE_NS: Final = 10 * 10**9
MAX_ACK_PENDING: Final = 4096
"""Unacknowledged messages of an upstream that waits for acknowledgements; nats-server's links use 1000."""
_SOURCE: Final = b"Nats-Stream-Source"
_NO_LINES: Final = b"NATS/1.0\r\n\r\n"
_DROPPED: Final = (b"Nats-Expected-", b"Nats-Batch-")

SEARCH_STEP_MESSAGES: Final = 512
CLOCKS_NS: Final = 60 * 10**9
"""The most that the clocks of two clusters are thought to differ."""
MAX_SEARCHED_MESSAGES: Final = 65_536
"""Stored messages searched for one of a source without a cursor."""


class Start(NamedTuple):
    """The place to begin at: after sequence `after`, or with `configured` as the link's start options say."""

    after: int
    configured: bool = False
    time: str = ""
    """RFC 3339: the time to begin at if there are neither."""


class SourcedFrom(NamedTuple):
    """The place of a stored message in its upstream, and the message."""

    seq: int
    identity: bytes
    subject: bytes
    headers: bytes
    """As stored here."""
    payload: bytes
    ts: int
    """The time at which it was stored here."""


class Upstream:
    """One link's upstream. `stream` is the name of the stream that the link feeds."""

    def __init__(self, config: Mapping[str, Any], stream: str, *, mirror: bool) -> None:
        self.config = config
        self.stream = stream
        self.mirror = mirror
        self.name: str = config["name"]
        self.key = b"" if mirror else link_key(config)
        external = config.get("external") or {}
        self.external = bool(external)
        self.consumer: Mapping[str, str] | None = config.get("consumer")
        """The user's own durable consumer, if configured: it exists, has filters and start, and stays."""
        self.prefix: str = external.get("api") or "$JS.API"
        base = external.get("deliver") or "$JS"
        self.deliver = f"{base}.{'M' if mirror else 'S'}."
        transforms = config.get("subject_transforms") or ()
        self.transforms = [
            SubjectTransform((t.get("src") or "").encode(), (t.get("dest") or "").encode()) for t in transforms
        ]
        self.filters: list[str] = [t.get("src") or ">" for t in transforms]
        if config.get("filter_subject"):
            self.filters = [config["filter_subject"]]
        if ">" in self.filters:
            self.filters = []
        self._index = link_index(config)
        self._filter = b"%b %b" % link_filters(config)

    def setup_error(self, text: str) -> ApiError:
        return errors.by_code(10029 if self.mirror else 10045, err=text)

    # -- requests -------------------------------------------------------------------------------------------------

    def info_subject(self) -> bytes:
        return f"{self.prefix}.STREAM.INFO.{self.name}".encode()

    def get_subject(self) -> bytes:
        return f"{self.prefix}.STREAM.MSG.GET.{self.name}".encode()

    def create_subject(self, consumer: str, *, durable: bool = False) -> bytes:
        subject = f"{self.prefix}.CONSUMER.CREATE.{self.name}"
        if len(self.filters) == 1:
            return f"{subject}.{consumer}.{self.filters[0]}".encode()
        return f"{subject}.{consumer}".encode() if durable else subject.encode()

    def reset_subject(self, consumer: str) -> bytes:
        return f"{self.prefix}.CONSUMER.RESET.{self.name}.{consumer}".encode()

    def delete_subject(self, consumer: str) -> bytes:
        return f"{self.prefix}.CONSUMER.DELETE.{self.name}.{consumer}".encode()

    def create_request(self, consumer: str, deliver: bytes, start: Start, account: str) -> bytes:
        own = {
            "ack_policy": "none",
            "ack_wait": ACK_WAIT_NS,
            "max_deliver": 1,
            "inactive_threshold": INACTIVE_NS,
            "direct": True,
        }
        return self._request(consumer, deliver, {**self._begin(start), **own}, account)

    def durable_request(self, consumer: str, deliver: bytes, account: str, max_ack_pending: int) -> bytes:
        """Request for the durable consumer (workqueue, interest). Only `deliver` differs between attempts, and
        `max_ack_pending`, 0 for the upstream's default."""
        begin = self._begin(Start(0, configured=True))
        own = {"durable_name": consumer, "ack_policy": "flow_control", "max_ack_pending": max_ack_pending}
        return self._request(consumer, deliver, {**begin, **own}, account)

    def _request(self, consumer: str, deliver: bytes, own: Mapping[str, Any], account: str) -> bytes:
        kind = "mirror" if self.mirror else "src"
        config: dict[str, Any] = {
            "name": consumer,
            **own,
            "replay_policy": "instant",
            "flow_control": True,
            "deliver_subject": deliver.decode(),
            "idle_heartbeat": HEARTBEAT_NS,
            "metadata": {f"_nats.{kind}.acc": account, f"_nats.{kind}.stream": self.stream},
        }
        if len(self.filters) == 1:
            config["filter_subject"] = self.filters[0]
        elif self.filters:
            config["filter_subjects"] = self.filters
        return json.dumps({"stream_name": self.name, "config": config, "action": ""}).encode()

    def _begin(self, start: Start) -> dict[str, Any]:
        if start.after:
            return {"deliver_policy": "by_start_sequence", "opt_start_seq": start.after + 1}
        if start.configured and self.config.get("opt_start_seq"):
            return {"deliver_policy": "by_start_sequence", "opt_start_seq": self.config["opt_start_seq"]}
        time = self.config.get("opt_start_time") if start.configured else start.time
        if time:
            return {"deliver_policy": "by_start_time", "opt_start_time": time}
        return {"deliver_policy": "all"}

    # -- messages -------------------------------------------------------------------------------------------------

    def mapped(self, subject: bytes, seq: int) -> bytes:
        """The subject after the first transform that matches."""
        for transform in self.transforms:
            made = transform.match(subject, seq)
            if made is not None:
                return made
        return subject

    def headers(self, block: bytes, seq: int, subject: bytes, identity: bytes) -> bytes:
        """The header block as stored here; `subject` is the upstream's."""
        if block and FIELD in block:
            block = _without_orders(block, source=not self.mirror)
        if self.mirror:
            return _some(block)
        value = b"%b %d %b %b" % (self._index, seq, self._filter, subject)
        return appended(block, _SOURCE, value + b" " + identity if identity else value)

    def origin_of(self, message: Msg) -> SourcedFrom | None:
        """The place of a stored message of this link; None for other messages."""
        value = nats_fields(message.headers).get(_SOURCE)
        parts = value.split(b" ") if value else []
        if len(parts) < 2 or parts[0] != self._index or not parts[1].isdigit():
            return None
        if len(parts) >= 4 and b" ".join(parts[2:4]) != self._filter:
            return None
        subject = parts[4] if len(parts) > 4 else message.subject
        identity = parts[5] if len(parts) > 5 else b""
        return SourcedFrom(int(parts[1]), identity, subject, message.headers, message.payload, message.ts)

    def is_same(self, answer: Mapping[str, Any], own: Msg) -> bool:
        """Compares a message of the upstream, as STREAM.MSG.GET tells it, with the one that a mirror has stored. Times
        are strictly increasing here, and may be later than those of an upstream whose messages share one, or whose
        clock was set back. Raises KeyError, ValueError, TypeError and AttributeError for an answer that is none."""
        subject, block, payload = _told(answer)
        block = self.headers(block, own.seq, subject, b"") if block else block
        later = times.parse_rfc3339(answer["time"]) > own.ts
        told = (self.mapped(subject, own.seq), block, payload)
        return not later and told == (own.subject, _some(own.headers), own.payload)

    def is_origin(self, answer: Mapping[str, Any], own: SourcedFrom) -> bool:
        """Compares a message of the upstream with the one that a source has taken, which has the time at which it was
        taken: the upstream's is not later. Raises as `is_same`."""
        subject, block, payload = _told(answer)
        later = times.parse_rfc3339(answer["time"]) > own.ts + CLOCKS_NS
        return not later and (subject, _plain(block), payload) == (own.subject, _plain(own.headers), own.payload)


def _without_orders(block: bytes, *, source: bool) -> bytes:
    """Removes fields that were instructions to the upstream."""
    for name in nats_fields(block):
        if name.startswith(_DROPPED) or (source and name == _SOURCE):
            block = header_block.remove(block, name)
    return block


def _told(answer: Mapping[str, Any]) -> tuple[bytes, bytes, bytes]:
    """(subject, header block, payload) of a message that STREAM.MSG.GET tells."""
    block, payload = (base64.b64decode(answer.get(key) or "") for key in ("hdrs", "data"))
    return answer["subject"].encode(), block, payload


def _plain(block: bytes) -> bytes:
    """A header block without what a source removes or adds."""
    return _some(_without_orders(block, source=True) if block else block)


def _some(block: bytes) -> bytes:
    """The block, b"" for one without a field: what had instructions only is a message without headers."""
    return b"" if block == _NO_LINES else block


def start_of(upstream: Upstream, target: LinkTarget, identity: bytes, same: bytes = b"") -> Start:
    """The place to begin at; `identity` is the upstream's present one, `same` that of an earlier upstream which was the
    same stream. Raises DamagedError."""
    store = target.store
    cursor = target.cursor(upstream.key)
    if upstream.mirror:
        return Start(store.last_seq, configured=not store.last_seq and cursor is None)
    if cursor is not None:
        renewed = b"" not in (identity, cursor.identity) and identity != cursor.identity
        if renewed:
            return Start(0)
        return Start(cursor.seq, configured=not cursor.seq)
    found = newest_of(upstream, store) if store.messages else None
    if found is not None:
        return Start(found.seq if found.identity in (b"", identity, same) else 0)
    if store.messages and store.first_seq > 1:
        return Start(0, time=times.rfc3339(store.last_ts))
    return Start(0, configured=True)


def newest_of(upstream: Upstream, store: BlockStore) -> SourcedFrom | None:
    """The place of the newest stored message of the source, or None. After a restore from an archive, or when a removed
    source comes back, there is no cursor. Raises DamagedError."""
    high = store.last_seq
    low = max(store.first_seq, high - MAX_SEARCHED_MESSAGES)
    while high >= low:
        start = max(low, high - SEARCH_STEP_MESSAGES + 1)
        for message in reversed(store.reader.read(range(start, high + 1))):
            found = upstream.origin_of(message)
            if found is not None:
                return found
        high = start - 1
    return None


def count_in(value: object) -> int:
    """A sequence or a count in an answer. Raises ValueError."""
    if type(value) is not int or not 0 <= value <= FARTHEST_SEQ:
        raise ValueError(f"{value!r} is no number of this kind")
    return value
