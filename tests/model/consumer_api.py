"""Requests of `$JS.API` about consumers: configuration with its defaults, what is refused, and answers."""

from __future__ import annotations

import re
from typing import Any

from tests.model.answers import ANY
from tests.model.api import StreamApi, body_of
from tests.model.consumer import Consumer
from tests.model.errors import Refused
from tests.model.reading import Unknown
from tests.model.stream import Stream
from tests.model.subjects import overlap

SECOND = 10**9
FIXED = {
    "deliver_policy": "deliver policy",
    "opt_start_seq": "start sequence",
    "opt_start_time": "start time",
    "ack_policy": "ack policy",
    "replay_policy": "replay policy",
    "max_waiting": "max waiting",
}
"""Fields that an update may not change, with the words of the refusal, in the order in which they are checked."""
OPTIONS = (
    "description", "opt_start_seq", "opt_start_time", "backoff", "filter_subject", "filter_subjects", "headers_only",
    "max_batch", "sample_freq", "inactive_threshold",
)  # fmt: skip
NO_PAGES: dict[str, Any] = {"total": 0, "offset": 0, "limit": 0, "consumers": []}
POLICIES = {
    "all": "all", "last": "last", "new": "new", "by_start_sequence": "by start sequence",
    "by_start_time": "by start time", "last_per_subject": "last per subject",
}  # fmt: skip


def filled(asked: dict[str, Any], name: str) -> dict[str, Any]:
    durable = asked.get("durable_name") or ""
    config: dict[str, Any] = {"name": name}
    if durable:
        config["durable_name"] = durable
    acks = asked.get("ack_policy", "none")
    config |= {
        "deliver_policy": asked.get("deliver_policy", "all"),
        "ack_policy": acks,
        "max_deliver": asked.get("max_deliver") if (asked.get("max_deliver") or 0) > 0 else -1,
        "replay_policy": "instant",
        "max_waiting": asked.get("max_waiting") or 512,
        "num_replicas": 0,
    }
    config |= {key: asked[key] for key in OPTIONS if asked.get(key)}
    backoff = config.get("backoff")
    if wait := backoff[0] if backoff else asked.get("ack_wait") or (30 * SECOND if acks != "none" else 0):
        config["ack_wait"] = wait
    if acks != "none" or asked.get("max_ack_pending"):
        config["max_ack_pending"] = asked.get("max_ack_pending") or 1000
    if not durable:
        config.setdefault("inactive_threshold", 5 * SECOND)
    config["metadata"] = {"_nats.ver": ANY, "_nats.level": ANY, "_nats.req.level": "0"}
    return config


def _check(config: dict[str, Any], stream: Stream) -> None:
    backoff = config.get("backoff")
    if backoff and 0 < config["max_deliver"] < len(backoff):
        raise Refused(10116)
    queue = stream.config["retention"] == "workqueue"
    if queue and config["ack_policy"] == "none":
        raise Refused(10084)
    if config.get("filter_subject") and config.get("filter_subjects"):
        raise Refused(10136)
    filters = config.get("filter_subjects") or []
    if "" in filters:
        raise Refused(10139)
    for at, one in enumerate(filters):
        if any(overlap(one, other) for other in filters[:at]):
            raise Refused(10138)
    _check_start(config)


def _check_start(config: dict[str, Any]) -> None:
    policy = config["deliver_policy"]
    word = POLICIES[policy]
    for key, own, text in (
        ("opt_start_seq", "by_start_sequence", "start sequence"),
        ("opt_start_time", "by_start_time", "start time"),
    ):
        if policy == own and key not in config:
            raise _start(word, f"{text} is not set")
        if policy != own and key in config:
            raise _start(word, f"{text} is also set")
    if policy == "last_per_subject" and not _filters(config):
        raise _start(word, "filter subject is not set")


def _start(policy: str, text: str) -> Refused:
    return Refused(10094, text=f"consumer delivery policy is deliver {policy}, but optional {text}")


def _check_queue(config: dict[str, Any], stream: Stream, name: str) -> None:
    """Each message of a work queue belongs to one consumer. Raises Refused."""
    if stream.config["retention"] != "workqueue":
        return
    others = [one for one in stream.consumers.values() if one.name != name]
    if config["ack_policy"] != "explicit":
        raise Refused(10098)
    if config["deliver_policy"] != "all":
        raise Refused(10101)
    if others and not _filters(config):
        raise Refused(10099)
    pairs = ((a, b) for other in others for a in _filters(other.config) or [">"] for b in _filters(config))
    if any(overlap(*pair) for pair in pairs):
        raise Refused(10100)


def _filters(config: dict[str, Any]) -> list[str]:
    return config.get("filter_subjects") or ([config["filter_subject"]] if config.get("filter_subject") else [])


class ConsumerApi(StreamApi):
    def consumer(self, stream: str, name: str) -> Consumer:
        known = self.stream(stream).consumers
        if name not in known:
            raise Refused(10014)
        return known[name]

    def CONSUMER_CREATE(self, stream: str, name: str, body: bytes) -> dict[str, Any]:
        asked = body_of(body)
        if asked.get("stream_name") != stream:
            raise Refused(10056)
        wanted = asked.get("config") or {}
        durable = wanted.get("durable_name")
        if durable and durable != name:
            raise Refused(10017)
        return self._made(stream, name, wanted, asked.get("action") or "")

    def CONSUMER_DURABLE_CREATE(self, stream: str, name: str, body: bytes) -> dict[str, Any]:
        asked = body_of(body)
        if asked.get("stream_name") != stream:
            raise Refused(10056)
        wanted = asked.get("config") or {}
        if not wanted.get("durable_name"):
            raise Refused(10018)
        if wanted["durable_name"] != name:
            raise Refused(10017)
        return self._made(stream, name, wanted, asked.get("action") or "")

    def _made(self, where: str, name: str, asked: dict[str, Any], action: str) -> dict[str, Any]:
        stream = self.stream(where)
        config = filled(asked, name)
        _check(config, stream)
        known = stream.consumers.get(name)
        if known is None:
            if action == "update":
                raise Refused(10149)
            most = stream.config["max_consumers"]
            if 0 < most <= len(stream.consumers):
                raise Refused(10026)
            _check_queue(config, stream, name)
            stream.consumers[name] = Consumer.new(stream, config)
            return stream.consumers[name].info()
        if action == "create" and known.config != config:
            raise Refused(10148)
        for key, text in FIXED.items():
            if known.config.get(key) != config.get(key):
                raise Refused(10012, text=f"{text} can not be updated")
        _check_queue(config, stream, name)
        if _filters(config) != _filters(known.config):
            raise Unknown  # how far it has looked with the old filters is its server's own affair
        kept = {"pause_until": known.config["pause_until"]} if "pause_until" in known.config else {}
        config["metadata"]["_nats.req.level"] = known.config["metadata"]["_nats.req.level"]
        known.config = config | kept
        return known.info()

    def CONSUMER_INFO(self, stream: str, name: str, body: bytes) -> dict[str, Any]:
        _nothing(body)
        return self.consumer(stream, name).info()

    def CONSUMER_DELETE(self, stream: str, name: str, body: bytes) -> dict[str, Any]:
        _nothing(body)
        del self.consumer(stream, name).stream.consumers[name]
        return {"success": True}

    def CONSUMER_NAMES(self, stream: str, body: bytes) -> dict[str, Any]:
        try:
            found, pages = self._page(stream, body, 1024)
        except Refused as error:
            return {"error": error.error, **NO_PAGES}
        return {**pages, "consumers": [one.name for one in found]}

    def CONSUMER_LIST(self, stream: str, body: bytes) -> dict[str, Any]:
        try:
            found, pages = self._page(stream, body, 256)
        except Refused as error:
            return {"error": error.error, **NO_PAGES}
        return {**pages, "consumers": [one.info(listed=True) for one in found]}

    def _page(self, stream: str, body: bytes, most: int) -> tuple[list[Consumer], dict[str, Any]]:
        found = [one for _, one in sorted(self.stream(stream).consumers.items())]
        offset = min(max(0, body_of(body).get("offset") or 0), len(found))
        return found[offset : offset + most], {"total": len(found), "offset": offset, "limit": most}

    def CONSUMER_PAUSE(self, stream: str, name: str, body: bytes) -> dict[str, Any]:
        """Until a time that is far away, or ended by one that is past or none."""
        until = body_of(body).get("pause_until") or ""
        try:
            consumer = self.consumer(stream, name)
        except Refused as error:
            return {"error": error.error, "paused": False, "pause_until": "0001-01-01T00:00:00Z"}
        consumer.paused = bool(re.match(r"20[5-9]", until))
        consumer.config.pop("pause_until", None)
        shown = consumer.paused or (until and self.rules.past_pause_shown)
        if shown:
            consumer.config["pause_until"] = until
        consumer.config["metadata"]["_nats.req.level"] = "1" if shown else "0"
        if not consumer.paused:
            return {"paused": False, "pause_until": until or "0001-01-01T00:00:00Z"}
        return {"paused": True, "pause_until": until, "pause_remaining": ANY}


def _nothing(body: bytes) -> None:
    if body.strip() not in (b"", b"{}"):
        raise Refused(10038)
