"""Requests of `$JS.API` about streams."""

from __future__ import annotations

import json
from typing import Any

from tests.model import reading
from tests.model.answers import ANY, Text
from tests.model.errors import STATUS, Refused
from tests.model.rules import Rules
from tests.model.stream import Stream
from tests.model.stream_config import NAMELESS, check_update, filled
from tests.model.subjects import overlap

PREFIX = "io.nats.jetstream.api.v1."
STATUS[10025] = (400, "")


def invalid_json() -> Refused:
    return Refused(10025, text=Text("invalid JSON: "))


def body_of(body: bytes, *, needed: bool = False) -> dict[str, Any]:
    """Raises Refused."""
    if not body.strip() and not needed:
        return {}
    try:
        asked = json.loads(body)
    except ValueError:
        raise invalid_json() from None
    if not isinstance(asked, dict):
        raise invalid_json()
    return asked


class StreamApi:
    def __init__(self, streams: dict[str, Stream], rules: Rules, now: float) -> None:
        self.streams = streams
        self.rules = rules
        self.now = now

    def stream(self, name: str) -> Stream:
        if name not in self.streams:
            raise Refused(10059)
        return self.streams[name]

    def STREAM_CREATE(self, name: str, body: bytes) -> dict[str, Any]:
        asked = self._named(name, body)
        if asked.get("sealed"):
            raise Refused(10052, text="stream configuration for create can not be sealed")
        config = filled(asked, self.rules)
        known = name in self.streams
        if known and self.streams[name].config != config:
            raise Refused(10058)
        if not known:
            self._alone(config)
            self.streams[name] = Stream.new(config, self.rules)
        made = {"did_create": True} if not known or self.rules.created_again else {}
        return {**self.streams[name].info(), **made}

    def _named(self, name: str, body: bytes) -> dict[str, Any]:
        asked = body_of(body)
        if asked.get("name", "") != name:
            raise Refused(10056)
        return asked

    def _alone(self, config: dict[str, Any]) -> None:
        for other in self.streams.values():
            pairs = ((a, b) for a in config["subjects"] for b in other.config["subjects"])
            if other.name != config["name"] and any(overlap(*pair) for pair in pairs):
                raise Refused(10065)

    def STREAM_UPDATE(self, name: str, body: bytes) -> dict[str, Any]:
        if not body_of(body).get("name"):
            raise Refused(10052, text=NAMELESS)
        asked = self._named(name, body)
        if self.rules.stream_first:
            self.stream(name)
        config = filled(asked, self.rules)
        stream = self.stream(name)
        check_update(stream.config, config)
        self._alone(config)
        if self.rules.first_seq_stays:
            config.pop("first_seq", None)
            config |= {key: value for key, value in stream.config.items() if key == "first_seq"}
        stream.config = config
        stream.limit()
        stream.pass_time(self.now)
        return stream.info()

    def STREAM_INFO(self, name: str, body: bytes) -> dict[str, Any]:
        pages = {"total": 0, "offset": 0, "limit": 0}
        asked = body_of(body)
        try:
            stream = self.stream(name)
        except Refused as error:
            return {**pages, "error": error.error}
        wanted = asked.get("subjects_filter") or ""
        info = stream.info(subjects=wanted, deleted=asked.get("deleted_details") or False)
        if wanted and (total := len(info["state"].get("subjects", {}))):
            pages |= {"limit": 100000, "total": total}
        return {**pages, **info}

    def STREAM_DELETE(self, name: str, body: bytes) -> dict[str, Any]:
        if body.strip() not in (b"", b"{}"):
            raise Refused(10038)
        self.stream(name)
        del self.streams[name]
        return {"success": True}

    def _listed(self, body: bytes, most: int) -> tuple[list[Stream], dict[str, Any]]:
        asked = body_of(body)
        wanted = asked.get("subject") or ""
        found = [
            one
            for _, one in sorted(self.streams.items())
            if not wanted or any(overlap(wanted, subject) for subject in one.config["subjects"])
        ]
        offset = min(max(0, asked.get("offset") or 0), len(found))
        return found[offset : offset + most], {"total": len(found), "offset": offset, "limit": most}

    def STREAM_NAMES(self, body: bytes) -> dict[str, Any]:
        found, pages = self._listed(body, 1024)
        names = [one.name for one in found]
        return {**pages, "streams": names if names or self.rules.empty_lists else None}

    def STREAM_LIST(self, body: bytes) -> dict[str, Any]:
        found, pages = self._listed(body, 256)
        listed = [one.info() for one in found]
        for one in listed if not self.rules.listed_versions else ():
            shown = {key: value for key, value in one["config"]["metadata"].items() if value is not ANY}
            one["config"] = {**one["config"], "metadata": shown}
        return {**pages, "streams": listed}

    def STREAM_PURGE(self, name: str, body: bytes) -> dict[str, Any]:
        try:
            return {"success": True, "purged": self._purge(name, body_of(body))}
        except Refused as error:
            return {"error": error.error, "purged": 0}

    def _purge(self, name: str, asked: dict[str, Any]) -> int:
        if self.rules.stream_first:
            self.stream(name)
        seq, keep, wanted = asked.get("seq") or 0, asked.get("keep") or 0, asked.get("filter") or ">"
        if seq and keep:
            raise Refused(10003)
        stream = self.stream(name)
        if stream.config["sealed"]:
            raise Refused(10109)
        if stream.config["deny_purge"]:
            raise Refused(10110, text="stream purge not permitted")
        messages = stream.of(wanted)
        if seq:
            messages = [one for one in messages if one.seq < seq]
        elif keep:
            messages = messages[: max(0, len(messages) - keep)]
        if wanted == ">" and not keep and stream.last_seq < seq - 1:
            stream.last_seq, stream.begun = seq - 1, True
        if self.rules.first_of_one and (wanted, keep) == (">", 0) and seq != 1:
            stream.begun = True
        return stream.remove([one.seq for one in messages])

    def STREAM_MSG_GET(self, name: str, body: bytes) -> dict[str, Any]:
        asked = self._needed(name, body)
        reading.check_message_get(asked)
        return reading.message_get(self.stream(name), asked, self.rules)

    def _needed(self, name: str, body: bytes) -> dict[str, Any]:
        """A request that has to say something. Raises Refused."""
        asked = body_of(body)
        if self.rules.stream_first:
            self.stream(name)
        if body.strip() in (b"", b"{}"):
            raise Refused(10003)
        return asked

    def STREAM_MSG_DELETE(self, name: str, body: bytes) -> dict[str, Any]:
        asked = self._needed(name, body)
        stream = self.stream(name)
        if stream.config["sealed"]:
            raise Refused(10109)
        if stream.config["deny_delete"]:
            raise Refused(10057, text="message delete not permitted")
        seq = asked.get("seq") or 0
        if seq not in stream.messages:
            if stream.config["storage"] == "file" and seq > stream.last_seq:
                raise Refused(10057, text="stream store EOF")
            if stream.config["storage"] == "file" and not seq:
                raise Refused(10057, text="no message found")
            if self.rules.nothing_to_delete and stream.config["storage"] == "file":
                return {"error": ANY}
            raise Refused(10043, seq)
        stream.remove([seq])
        return {"success": True}
