"""A published message gets an ack, is a duplicate, or is refused with the error of the first check that it fails."""

from __future__ import annotations

import json
import math
import re
from typing import Any, NamedTuple

from tests.model.errors import Refused
from tests.model.rules import Rules
from tests.model.stream import Headers, Stream
from tests.model.subjects import transformed

BATCH_LIMIT = 1000
STRIPPED = ("Nats-Required-Api-Level", "Nats-Request-Info")
NOT_WITH_COUNTERS = (
    "Nats-Rollup", "Nats-Expected-Stream", "Nats-Expected-Last-Sequence", "Nats-Expected-Last-Subject-Sequence",
    "Nats-Expected-Last-Subject-Sequence-Subject", "Nats-Expected-Last-Msg-Id",
)  # fmt: skip


class Sent(NamedTuple):
    """A message that came for a stream, under the subject that it will be stored with."""

    subject: str
    headers: Headers
    data: bytes
    at: float

    def header(self, key: str) -> str | None:
        """The first value, whose key is written exactly so."""
        return next((value for name, value in self.headers if name == key), None)

    @property
    def size(self) -> int:
        block = sum(len(key) + len(value) + 4 for key, value in self.headers)
        return len(self.data) + (block + 12 if block else 0)


def arrived(stream: Stream, subject: str, headers: Headers, data: bytes, now: float) -> Sent:
    transform = stream.config.get("subject_transform")
    if transform:
        subject = transformed(transform.get("src") or ">", transform.get("dest") or ">", subject) or subject
    return Sent(subject, tuple(pair for pair in headers if pair[0] not in STRIPPED), data, now)


def publish(stream: Stream, sent: Sent, rules: Rules) -> dict[str, Any]:
    """The ack. Raises Refused."""
    if stream.config["sealed"]:
        raise Refused(10109)
    _check_size(stream, sent)
    if not rules.duplicates_first:
        return _publish_late(stream, sent)
    _check_plain(stream, sent)
    if known := _known(stream, sent):
        return known
    _check_counter(stream, sent)
    _check_last(stream, sent)
    _check_last_subject(stream, sent)
    check_rollup(stream, sent)
    check_room(stream, sent)
    _check_last_id(stream, sent)
    return store(stream, sent)


def _publish_late(stream: Stream, sent: Sent) -> dict[str, Any]:
    """In the order of a single nats-server."""
    ttl = sent.header("Nats-TTL")
    wrong = ttl is not None and lifetime(ttl) is None
    headers = tuple(pair for pair in sent.headers if pair[0] != "Nats-TTL") if wrong else sent.headers
    _check_plain(stream, sent._replace(headers=headers))
    _check_last_subject(stream, sent)
    _check_last(stream, sent)
    if known := _known(stream, sent):
        return known
    _check_last_id(stream, sent)
    check_rollup(stream, sent)
    _check_counter(stream, sent)
    if wrong:
        raise Refused(10165)
    check_room(stream, sent)
    return store(stream, sent)


def store(stream: Stream, sent: Sent) -> dict[str, Any]:
    """Stores a message that passed all checks, and returns its ack."""
    data, more = sent.data, {}
    if sent.header("Nats-Incr"):
        data, total = _counted(stream, sent)
        more = {"val": total}
    message = stream.append(sent.subject, sent.headers, data, sent.at, lifetime(sent.header("Nats-TTL")))
    if stream.config["retention"] == "interest":
        stream.unneeded([message.seq])
    stream.limit(sent.subject)
    if rollup := (sent.header("Nats-Rollup") or "").lower():
        found = stream.messages.values() if rollup == "all" else stream.of(sent.subject)
        stream.remove([one.seq for one in found if one.seq != message.seq])
    return {"stream": stream.name, "seq": message.seq} | more


def _known(stream: Stream, sent: Sent) -> dict[str, Any] | None:
    name = sent.header("Nats-Msg-Id")
    if not name or name not in stream.ids:
        return None
    return {"stream": stream.name, "seq": stream.ids[name][0], "duplicate": True}


def _check_plain(stream: Stream, sent: Sent) -> None:
    """Checks headers against the configuration alone. Raises Refused."""
    if increment := sent.header("Nats-Incr"):
        if not re.fullmatch(r"[+-]?\d+", increment):
            raise Refused(10171)
        if not stream.config.get("allow_msg_counter"):
            raise Refused(10168)
        if sent.data:
            raise Refused(10170)
        if any(sent.header(key) is not None for key in NOT_WITH_COUNTERS):
            raise Refused(10171)
    expected = sent.header("Nats-Expected-Stream")
    if expected is not None and expected != stream.name:
        raise Refused(10060)
    if (ttl := sent.header("Nats-TTL")) is not None:
        if not stream.config["allow_msg_ttl"]:
            raise Refused(10166)
        if lifetime(ttl) is None:
            raise Refused(10165)


def lifetime(text: str | None) -> float | None:
    """Seconds that a Nats-TTL says; None where it says nothing that is right."""
    if text is None:
        return None
    if text == "never":
        return math.inf
    if re.fullmatch(r"\d+", text):
        return float(text) if int(text) >= 1 else None
    found = re.fullmatch(r"(?:(\d+)h)?(?:(\d+)m)?(?:(\d+(?:\.\d+)?)s)?(?:(\d+)ms)?", text)
    if not text or not found:
        return None
    hours, minutes, seconds, milliseconds = (float(part or 0) for part in found.groups())
    whole = math.floor(hours * 3600 + minutes * 60 + seconds + milliseconds / 1000)
    return float(whole) if whole >= 1 else None


def _check_size(stream: Stream, sent: Sent) -> None:
    if 0 < stream.config["max_msg_size"] < sent.size:
        raise Refused(10054)


def _check_last_id(stream: Stream, sent: Sent) -> None:
    expected = sent.header("Nats-Expected-Last-Msg-Id")
    if expected is not None and expected != stream.last_id:
        raise Refused(10070, stream.last_id)


def _check_counter(stream: Stream, sent: Sent) -> None:
    if stream.config.get("allow_msg_counter") and not sent.header("Nats-Incr"):
        raise Refused(10169)
    most, increment = stream.config["max_msg_size"], sent.header("Nats-Incr")
    if most > 0 and increment and sent._replace(data=_counted(stream, sent)[0]).size > most:
        raise Refused(10054)


def _counted(stream: Stream, sent: Sent) -> tuple[bytes, str]:
    """The payload that is stored for a counter's message, and the total."""
    total = str(_total(stream, sent.subject) + int(sent.header("Nats-Incr") or 0))
    return json.dumps({"val": total}, separators=(",", ":")).encode(), total


def _total(stream: Stream, subject: str) -> int:
    last = stream.last_of(subject)
    return int(json.loads(stream.messages[last].data)["val"]) if last else 0


def _check_last(stream: Stream, sent: Sent) -> None:
    expected = sent.header("Nats-Expected-Last-Sequence")
    if expected is not None and expected != str(stream.last_seq):
        raise Refused(10071, stream.last_seq)


def _check_last_subject(stream: Stream, sent: Sent) -> None:
    expected = sent.header("Nats-Expected-Last-Subject-Sequence")
    of = sent.header("Nats-Expected-Last-Subject-Sequence-Subject")
    if expected is None:
        if of is not None:
            raise Refused(10193)
        return
    last = stream.last_of(of or sent.subject)
    if expected != str(last):
        raise Refused(10071, last)


def check_rollup(stream: Stream, sent: Sent) -> None:
    rollup = sent.header("Nats-Rollup")
    if not rollup:
        return
    if not stream.config["allow_rollup_hdrs"] or stream.config["deny_purge"]:
        raise Refused(10111, text="rollup not permitted")
    if rollup.lower() not in ("sub", "all"):
        raise Refused(10111, text=f'rollup value invalid: "{rollup.lower()}"')


def check_room(stream: Stream, sent: Sent) -> None:
    """A stream with `discard: new` refuses a message, unless it replaces the oldest one of its subject."""
    config = stream.config
    if config["discard"] != "new":
        return
    full = _check_subject_room(stream, sent, [])
    if 0 < config["max_msgs"] < len(stream.messages) + 1 and not full:
        raise Refused(10077, text="maximum messages exceeded")
    if config["max_bytes"] > 0 and stream.bytes + _stored_size(stream, [sent]) > config["max_bytes"]:
        oldest = [one for one in stream.messages.values() if one.subject == sent.subject][:1]
        if not full or not oldest or oldest[0].size(config["storage"]) < _stored_size(stream, [sent]):
            raise Refused(10077, text="maximum bytes exceeded")


def _check_batch_room(stream: Stream, sent: Sent, staged: list[Sent]) -> None:
    """In a batch, what replaces another message needs room as well."""
    config = stream.config
    if config["discard"] != "new":
        return
    if 0 < config["max_msgs"] < len(stream.messages) + len(staged) + 1:
        raise Refused(10077, text="maximum messages exceeded")
    if 0 < config["max_bytes"] < stream.bytes + _stored_size(stream, [*staged, sent]):
        raise Refused(10077, text="maximum bytes exceeded")
    _check_subject_room(stream, sent, staged)


def _check_subject_room(stream: Stream, sent: Sent, staged: list[Sent]) -> bool:
    """True when the subject has as many messages as it may have. Raises Refused."""
    own = sum(one.subject == sent.subject for one in [*stream.messages.values(), *staged])
    full = 0 < stream.config["max_msgs_per_subject"] <= own
    if full and stream.config.get("discard_new_per_subject") and not sent.header("Nats-Rollup"):
        raise Refused(10077, text="maximum messages per subject exceeded")
    return full


def _stored_size(stream: Stream, messages: list[Sent]) -> int:
    from tests.model.stream import Message

    return sum(Message(0, one.subject, one.headers, one.data, 0.0).size(stream.config["storage"]) for one in messages)


def batch(stream: Stream, sent: Sent) -> dict[str, Any] | None:
    """A message of an atomic batch: the ack of a batch that is stored, None for one that is held. Raises Refused."""
    config, name = stream.config, sent.header("Nats-Batch-Id") or ""
    if config["sealed"]:
        raise Refused(10109)
    _check_size(stream, sent)
    if not config.get("allow_atomic"):
        raise Refused(10174)
    if len(name) > 64:
        raise Refused(10179)
    sequence = sent.header("Nats-Batch-Sequence")
    if sequence is None or not re.fullmatch(r"\d+", sequence):
        raise Refused(10175)
    number, commit = int(sequence), sent.header("Nats-Batch-Commit")
    end = commit == "eob"
    if name not in stream.batches and number != 1:
        raise Refused(10199, BATCH_LIMIT) if number - end > BATCH_LIMIT else Refused(10176)
    held = stream.batches.pop(name, []) if number != 1 or name in stream.batches else []
    if commit not in (None, "1", "eob"):
        raise Refused(10200)
    if number != len(held) + 1 or (number == 1 and end):
        raise Refused(10176)
    if not end:
        held.append(sent)
    elif held:
        last = held[-1]
        held[-1] = last._replace(headers=(*last.headers, ("Nats-Batch-Commit", "1")))
    if commit is None:
        stream.batches[name] = held
        return None
    _check_batch(stream, held)
    for one in held:
        store(stream, one._replace(at=sent.at))  # stored when the last one came, however long it was held
    return {"stream": stream.name, "seq": stream.last_seq, "batch": name, "count": len(held)}


def _check_batch(stream: Stream, held: list[Sent]) -> None:
    """All against the stream as it was before. Raises Refused."""
    ids: set[str] = set()
    expected: dict[str, str] = {}
    for at, sent in enumerate(held):
        if sent.header("Nats-Expected-Last-Msg-Id") is not None:
            raise Refused(10177, "Nats-Expected-Last-Msg-Id")
        _check_plain(stream, sent)
        name = sent.header("Nats-Msg-Id")
        if name:
            if name in ids or name in stream.ids:
                raise Refused(10201)
            ids.add(name)
        _check_counter(stream, sent)
        _check_batch_last(stream, sent, at)
        _check_batch_subject(stream, sent, held[:at], expected)
        check_rollup(stream, sent)
        rollup = (sent.header("Nats-Rollup") or "").lower()
        if rollup == "sub" and any(one.subject == sent.subject for one in held[:at]):
            raise Refused(10111, text="batch rollup sub invalid")
        if rollup == "all" and at:
            raise Refused(10111, text="batch rollup all invalid")
        _check_batch_room(stream, sent, held[:at])


def _check_batch_last(stream: Stream, sent: Sent, at: int) -> None:
    last = sent.header("Nats-Expected-Last-Sequence")
    if last is None:
        return
    if last != str(stream.last_seq + at):
        raise Refused(10071, stream.last_seq + at)
    if at:
        raise Refused(10164)


def _check_batch_subject(stream: Stream, sent: Sent, before: list[Sent], expected: dict[str, str]) -> None:
    value = sent.header("Nats-Expected-Last-Subject-Sequence")
    of = sent.header("Nats-Expected-Last-Subject-Sequence-Subject")
    if value is None:
        if of is not None:
            raise Refused(10193)
        return
    subject = of or sent.subject
    if any(one.subject == subject for one in before):
        raise Refused(10164)
    last = stream.last_of(subject)
    if value != str(last):
        raise Refused(10071, last)
