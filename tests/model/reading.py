"""Reads: MSG.GET, and Direct Get in all its forms."""

from __future__ import annotations

import base64
import json
from typing import Any

from tests.model.answers import Answer, nanoseconds
from tests.model.errors import Refused
from tests.model.rules import Rules
from tests.model.stream import Message, Stream
from tests.model.subjects import matches

KINDS: dict[str, type | tuple[type, ...]] = {
    "seq": int, "last_by_subj": str, "next_by_subj": str, "batch": int, "max_bytes": int, "start_time": str,
    "multi_last": list, "up_to_seq": int, "up_to_time": str, "no_hdr": bool,
}  # fmt: skip
MOST_SUBJECTS = 1024


class Unknown(Exception):
    """The answer depends on a time that was not learned."""


def status(text: str) -> list[Answer]:
    return [Answer(text)]


def time_of(message: Message) -> int:
    if message.stamp.ns is None:
        raise Unknown
    return message.stamp.ns


def direct(stream: Stream, body: bytes, rules: Rules) -> list[Answer]:
    if not body:
        return status("408 Empty Request")
    try:
        asked = json.loads(body)
        well = isinstance(asked, dict) and all(_fits(key, value) for key, value in asked.items() if key in KINDS)
        for key in ("start_time", "up_to_time"):
            if well and asked.get(key):
                nanoseconds(asked[key])
    except ValueError:
        well = False
    if not well:
        return status("408 Malformed Request")
    asked = {key: value for key, value in asked.items() if value}
    if not asked.keys() & {"seq", "last_by_subj", "next_by_subj", "multi_last", "start_time"}:
        return status("408 Empty Request")
    if _conflict(asked) or asked.get("batch", 0) < 0:
        return status("408 Bad Request")
    if "multi_last" in asked:
        return _multi(stream, asked, rules)
    return _batch(stream, asked, rules) if "batch" in asked else _single(stream, asked)


def _fits(key: str, value: Any) -> bool:
    if key in ("seq", "up_to_seq", "batch", "max_bytes"):
        return isinstance(value, int) and not isinstance(value, bool) and (value >= 0 or key in ("batch", "max_bytes"))
    return isinstance(value, KINDS[key])


def _conflict(asked: dict[str, Any]) -> bool:
    has = asked.keys()
    if "last_by_subj" in has:
        return bool(has & {"seq", "next_by_subj", "batch", "start_time", "multi_last"})
    if {"seq", "start_time"} <= has:
        return True
    if "multi_last" in has:
        return "next_by_subj" in has or {"up_to_seq", "up_to_time"} <= has
    return False


def last_of_subject(stream: Stream, subject: str, body: bytes) -> list[Answer]:
    """The form with the subject appended."""
    if body:
        return status("408 Bad Request")
    last = stream.last_of(subject)
    return [_shown(stream, stream.messages[last])] if last else status("404 Message Not Found")


def found(stream: Stream, asked: dict[str, Any]) -> Message | None:
    """The message that a read without a batch asks for."""
    if subject := asked.get("last_by_subj"):
        last = stream.last_of(subject)
        return stream.messages[last] if last else None
    if "next_by_subj" not in asked and "start_time" not in asked:
        return stream.messages.get(asked["seq"])
    return next(iter(_from(stream, asked)), None)


def _from(stream: Stream, asked: dict[str, Any]) -> list[Message]:
    """All that begin at a sequence or a time."""
    start = asked.get("seq", 0)
    if "start_time" in asked:
        since = nanoseconds(asked["start_time"])
        start = min((one.seq for one in stream.messages.values() if time_of(one) >= since), default=stream.last_seq + 1)
    wanted = asked.get("next_by_subj", ">")
    return [one for one in stream.of(wanted) if one.seq >= start]


def _single(stream: Stream, asked: dict[str, Any]) -> list[Answer]:
    message = found(stream, asked)
    if message is None:
        return status("404 Message Not Found")
    return [_shown(stream, message, bare=asked.get("no_hdr", False))]


def _shown(stream: Stream, message: Message, more: tuple[tuple[str, Any], ...] = (), *, bare: bool = False) -> Answer:
    own = (
        ("Nats-Stream", stream.name),
        ("Nats-Subject", message.subject),
        ("Nats-Sequence", str(message.seq)),
        ("Nats-Time-Stamp", message.stamp),
        *more,
    )
    names = {key for key, _ in own} | {"Nats-Num-Pending", "Nats-Last-Sequence"}
    stored = tuple(pair for pair in message.headers if pair[0] not in names)
    return Answer("", () if bare else (*stored, *own), message.data)


def _pages(stream: Stream, messages: list[Message], left: int, asked: dict[str, Any]) -> tuple[list[Answer], int, int]:
    """Answers, the last sequence among them, and how many are left."""
    answers: list[Answer] = []
    last = total = 0
    for message in messages[: asked.get("batch") or len(messages)]:
        left -= 1
        more = (("Nats-Num-Pending", str(left)), ("Nats-Last-Sequence", str(last)))
        answers.append(_shown(stream, message, more, bare=asked.get("no_hdr", False)))
        last = message.seq
        total += len(message.subject) + len(message.block) + len(message.data)
        if asked.get("max_bytes") and total >= asked["max_bytes"]:
            break
    return answers, last, left


def _batch(stream: Stream, asked: dict[str, Any], rules: Rules) -> list[Answer]:
    messages = _from(stream, asked)
    if not messages:
        return status("404 Message Not Found")
    answers, last, left = _pages(stream, messages, len(messages), asked)
    if asked.get("no_hdr") and not rules.bare_counted:
        left = len(messages)
    return [*answers, Answer("204 EOB", (("Nats-Num-Pending", str(left)), ("Nats-Last-Sequence", str(last))))]


def _multi(stream: Stream, asked: dict[str, Any], rules: Rules) -> list[Answer]:
    ceiling = asked.get("up_to_seq") or stream.last_seq
    if ceiling > stream.last_seq:
        if rules.behind_the_end:
            ceiling = stream.last_seq
        elif stream.config["storage"] == "file":
            return status("404 No Results")
    if "up_to_time" in asked:
        until = nanoseconds(asked["up_to_time"]) + rules.up_to_time_included
        later = [one.seq for one in stream.messages.values() if time_of(one) >= until]
        ceiling = min(later) - 1 if later else stream.last_seq
    newest: dict[str, Message] = {}
    for message in stream.messages.values():
        if message.seq <= ceiling and any(matches(one, message.subject) for one in asked["multi_last"]):
            newest[message.subject] = message
    every = sorted(newest.values(), key=lambda one: one.seq)
    if not every:
        return status("404 No Results")
    wanted = [one for one in every if one.seq >= asked.get("seq", 0)]
    answers, last, left = _pages(stream, wanted, len(wanted), asked)
    counts = (("Nats-Num-Pending", str(left)), ("Nats-Last-Sequence", str(last)), ("Nats-UpTo-Sequence", str(ceiling)))
    return [*answers, Answer("204 EOB", counts)]


def check_message_get(asked: dict[str, Any]) -> None:
    """Raises Refused."""
    has = {key for key, value in asked.items() if value}
    if {"batch", "max_bytes"} & has:
        raise Refused(10003)
    ways = has & {"seq", "last_by_subj", "next_by_subj", "start_time"}
    if not ways or ("last_by_subj" in ways and len(ways) > 1) or {"seq", "start_time"} <= ways:
        raise Refused(10003)


def message_get(stream: Stream, asked: dict[str, Any], rules: Rules) -> dict[str, Any]:
    """The answer of MSG.GET. Raises Refused."""
    asked = {key: value for key, value in asked.items() if value}
    message = found(stream, asked)
    if message is None:
        raise Refused(10037)
    told: dict[str, Any] = {"subject": message.subject, "seq": message.seq, "time": message.stamp}
    if message.headers and not asked.get("no_hdr"):
        told["hdrs"] = base64.b64encode(message.block).decode()
        if rules.headers_of_messages:
            told["headers"] = _object(message)
    if message.data:
        told["data"] = base64.b64encode(message.data).decode()
    return {"message": told}


def _object(message: Message) -> dict[str, Any]:
    """Headers by name; a list where one is repeated."""
    values: dict[str, list[str]] = {}
    for key, value in message.headers:
        values.setdefault(key, []).append(value)
    return {key: value[0] if len(value) == 1 else value for key, value in values.items()}
