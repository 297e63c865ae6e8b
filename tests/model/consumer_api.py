"""Requests of `$JS.API` about consumers: configuration with its defaults, what is refused, and answers."""

from __future__ import annotations

import re
from typing import Any

from tests.model.answers import ANY, MAYBE, Text
from tests.model.api import StreamApi, body_of, invalid_json
from tests.model.consumer import Consumer
from tests.model.errors import Refused
from tests.model.reading import Unknown
from tests.model.stream import Stream
from tests.model.subjects import matches, overlap

SECOND = 10**9
PIN = 120 * SECOND
FIXED = {
    "deliver_policy": "deliver policy",
    "opt_start_seq": "start sequence",
    "opt_start_time": "start time",
    "ack_policy": "ack policy",
    "replay_policy": "replay policy",
    "idle_heartbeat": "heart beats",
    "flow_control": "flow control",
}
"""Fields that an update may not change, with the words of the refusal, in the order in which they are checked."""
OPTIONS = (
    "description", "opt_start_seq", "opt_start_time", "backoff", "filter_subject", "filter_subjects", "headers_only",
    "max_batch", "sample_freq", "inactive_threshold", "deliver_subject", "deliver_group", "idle_heartbeat",
    "flow_control", "mem_storage", "priority_groups", "priority_policy",
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
        "replay_policy": asked.get("replay_policy", "instant"),
        "num_replicas": asked.get("num_replicas") or 0,
    }
    if waiting := asked.get("max_waiting") or (0 if asked.get("deliver_subject") else 512):
        config["max_waiting"] = waiting
    config |= {key: asked[key] for key in OPTIONS if asked.get(key)}
    backoff = config.get("backoff")
    if wait := backoff[0] if backoff else asked.get("ack_wait") or (30 * SECOND if acks != "none" else 0):
        config["ack_wait"] = wait
    if acks != "none" or asked.get("max_ack_pending"):
        config["max_ack_pending"] = asked.get("max_ack_pending") or 1000
    if not durable:
        config.setdefault("inactive_threshold", 5 * SECOND)
    if config.get("priority_policy") == "none":
        del config["priority_policy"]
    if config.get("priority_policy") == "pinned_client":
        config["priority_timeout"] = asked.get("priority_timeout") or PIN
    level = "1" if config.get("priority_groups") else "0"
    config["metadata"] = {"_nats.ver": ANY, "_nats.level": ANY, "_nats.req.level": level}
    return config


def _check(config: dict[str, Any], stream: Stream) -> None:
    backoff = config.get("backoff")
    if backoff and 0 < config["max_deliver"] < len(backoff):
        raise Refused(10116)
    if config.get("deliver_subject"):
        _check_push(config, stream)
    else:
        _check_pull(config, stream)
    if config.get("filter_subject") and config.get("filter_subjects"):
        raise Refused(10136)
    filters = config.get("filter_subjects") or []
    if "" in filters:
        raise Refused(10139)
    for at, one in enumerate(filters):
        if any(overlap(one, other) for other in filters[:at]):
            raise Refused(10138)
    _check_start(config)
    if config.get("flow_control") and not config.get("idle_heartbeat"):
        raise Refused(10108)
    _check_priority(config)


def _check_push(config: dict[str, Any], stream: Stream) -> None:
    target = config["deliver_subject"]
    if {"*", ">"} & set(target.split(".")):
        raise Refused(10079)
    if any(matches(one, target) for one in stream.config["subjects"]):
        raise Refused(10081)
    if config.get("max_waiting"):
        raise Refused(10080)
    if config["ack_policy"] == "none" and config.get("max_ack_pending"):
        raise Refused(10082)
    if 0 < config.get("idle_heartbeat", 0) < SECOND // 10:
        raise Refused(10083)


def _check_pull(config: dict[str, Any], stream: Stream) -> None:
    if stream.config["retention"] == "workqueue" and config["ack_policy"] == "none":
        raise Refused(10084)
    if config.get("idle_heartbeat"):
        raise Refused(10088)
    if config.get("flow_control"):
        raise Refused(10089)


def _check_priority(config: dict[str, Any]) -> None:
    groups, policy = config.get("priority_groups") or [], config.get("priority_policy")
    if not policy:
        if groups:
            raise Refused(10196)
        return
    if config.get("deliver_subject"):
        raise Refused(10178)
    if not groups:
        raise Refused(10159)
    for group in groups:
        if not group:
            raise Refused(10161)
        if not re.fullmatch(r"[A-Za-z0-9/_=-]{1,16}", group):
            raise Refused(10162)


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

    def CONSUMER_CREATE(self, stream: str, name: str, *filtered: Any) -> dict[str, Any]:
        """Further tokens are those of the filter; the last argument is the body."""
        *tokens, body = filtered
        asked = body_of(body)
        if asked.get("stream_name") != stream:
            raise Refused(10056)
        wanted = asked.get("config") or {}
        durable = wanted.get("durable_name")
        if durable and durable != name:
            raise Refused(10017)
        if tokens and wanted.get("filter_subjects"):
            raise Refused(10137)
        if tokens and ".".join(tokens) != wanted.get("filter_subject"):
            raise Refused(10131)
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
            bound = {"push_bound": MAYBE} if config.get("deliver_subject") else {}  # it may not have looked yet
            return stream.consumers[name].info() | bound
        if action == "create" and known.config != config:
            raise Refused(10148)
        targets = [one.get("deliver_subject") for one in (known.config, config)]
        bound = all(targets) and targets[0] != targets[1]  # the player always listens to the old one
        if bound and self.rules.bound_first:
            raise Refused(10013)
        for key, text in FIXED.items():
            if known.config.get(key) != config.get(key):
                raise Refused(10012, text=f"{text} can not be updated")
        if targets[0] != targets[1] and not all(targets):
            kinds = ("push", "pull") if targets[0] else ("pull", "push")
            raise Refused(10012, text="can not update {} consumer to {} based".format(*kinds))
        if known.config.get("max_waiting") != config.get("max_waiting"):
            raise Refused(10012, text="max waiting can not be updated")
        if bound:
            raise Refused(10013)
        _check_queue(config, stream, name)
        if _filters(config) != _filters(known.config):
            raise Unknown  # how far it has looked with the old filters is its server's own affair
        kept = {"pause_until": known.config["pause_until"]} if "pause_until" in known.config else {}
        if "pause_until" in kept:
            config["metadata"]["_nats.req.level"] = "1"
        known.config = config | kept
        return known.info()

    def CONSUMER_INFO(self, stream: str, name: str, body: bytes) -> dict[str, Any]:
        _nothing(body)
        return self.consumer(stream, name).info()

    def CONSUMER_DELETE(self, stream: str, name: str, body: bytes) -> dict[str, Any]:
        _nothing(body)
        found = self.consumer(stream, name).stream
        del found.consumers[name]
        if found.config["retention"] == "interest":
            found.unneeded(list(found.messages))
        return {"success": True}

    def CONSUMER_RESET(self, stream: str, name: str, body: bytes) -> dict[str, Any]:
        try:
            wanted = body_of(body).get("seq") or 0
            consumer = self.consumer(stream, name)
            _check_reset(consumer.config, wanted)
        except Refused as error:
            return {"error": error.error, "reset_seq": 0}
        if consumer.stream.config["retention"] != "limits":
            raise Unknown  # which messages it releases by that is its server's own affair
        return {**consumer.reset(wanted), "reset_seq": consumer.next_seq}

    def CONSUMER_UNPIN(self, stream: str, name: str, body: bytes) -> dict[str, Any]:
        group = body_of(body).get("group")
        if not group:
            raise invalid_json()
        consumer = self.consumer(stream, name)
        if group not in (consumer.config.get("priority_groups") or ()):
            raise Refused(10160)
        consumer.pin = None
        return {}

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
        level = "1" if shown or consumer.config.get("priority_groups") else "0"
        consumer.config["metadata"]["_nats.req.level"] = level
        if not consumer.paused:
            consumer.asleep |= bool(consumer.target) and not self.rules.removal_wakes
            return {"paused": False, "pause_until": until or "0001-01-01T00:00:00Z"}
        return {"paused": True, "pause_until": until, "pause_remaining": ANY}


def _check_reset(config: dict[str, Any], seq: int) -> None:
    policies = ("all", "by_start_sequence")
    if seq and (config["deliver_policy"] not in policies or seq < config.get("opt_start_seq", 0)):
        raise Refused(10204, text=Text("invalid reset: "))


def _nothing(body: bytes) -> None:
    if body.strip() not in (b"", b"{}"):
        raise Refused(10038)
